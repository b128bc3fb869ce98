"""Handing a record to a consumer: the arguments that a function gets, live and replayed alike. Free of JAX.

`tracerec.id_tap` calls a function while the program runs, `tracerec.Trace.replay` calls it later. Both go through
`call`, so that the function cannot tell them apart.
"""

from __future__ import annotations

import abc
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import lanes
from tracerec.structure import PyTreeNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracerec.model import Record, Site

__all__ = ["TRANSFORM_KWARGS", "Firing", "TapConsumer", "call", "leaves_of", "transform_kwargs"]

TRANSFORM_KWARGS = frozenset({"transforms", "batch_dims", "logical_shapes", "where", "transform_params"})
"""The names of what `transform_kwargs` gives."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Firing:
    """One record as a consumer gets it.

    Attributes:
        tap: the tap's name; of an ``id_tap`` its kwarg ``tap``, and without one ``"id_tap NAME"``.
        args: the positional arguments: pytrees of numpy arrays.
        kwargs: the keyword arguments, those of `transform_kwargs` included.
        record: the record; None where a consumer was called by hand.
        raw: whether elements count that ``where`` or a logical shape rules out.
    """

    tap: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    record: Record | None = None
    raw: bool = False

    @property
    def step(self) -> Any:
        """The kwarg ``step``, or None."""
        return self.kwargs.get("step")

    @property
    def transforms(self) -> tuple[str, ...]:
        """The names of the transformations, innermost first."""
        return tuple(self.kwargs.get("transforms", ()))

    def leaves(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields each array with its key path: ``""`` for one bare array, ``"[1]['w']"`` in a second argument."""
        for path, leaf in leaves_of(self.args[0] if len(self.args) == 1 else self.args):
            yield path, np.asarray(leaf)

    def counted(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields each leaf's elements that count: the array itself, or a flat array of those that are not ruled out.

        Lanes of which nothing is known (`Site.lanes_may_be_invalid`) count; PRNG keys, whose bits are no numbers, are
        left out.
        """
        for number, (path, array) in enumerate(self.leaves()):
            if self.record is None:
                yield path, array
            elif self.record.site.leaves[number].key_impl is None:
                yield path, _counted(self.record, number, array, raw=self.raw)


class TapConsumer(abc.ABC):
    """A consumer that is told more than a function is: which tap a record is of, and which elements count.

    It is used as a function is, ``id_tap(consumer, x)`` and ``trace.replay(consumer)``, and can be called by hand.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of one record; the kwarg ``tap`` says of which tap."""
        self.take(Firing(str(kwargs.get("tap", "")), args, kwargs))

    @abc.abstractmethod
    def take(self, firing: Firing) -> None:
        """Takes one record."""


def call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    record: Record,
    *,
    static: Mapping[str, Any] | None = None,
    tap: str | None = None,
    raw: bool = False,
) -> None:
    """Calls a consumer with a record; raises what it raises.

    Args:
        function: called as ``function(*args, **kwargs)``; a `TapConsumer` gets a `Firing`.
        args: the positional arguments.
        record: the record, whose kwargs are passed on. A kwarg with a name of `TRANSFORM_KWARGS` gives way to what the
            function is told of transformations.
        static: static kwargs in the place of the record's.
        tap: the tap's name; None: the kwarg ``tap`` of the record, or the record's name.
        raw: as `Firing.raw`.
    """
    known = static or {}
    kwargs = {name: _plain(known.get(name, value)) for name, value in record.kwargs.items()}
    kwargs |= transform_kwargs(record)
    if isinstance(function, TapConsumer):
        name = str(kwargs.get("tap", record.tap)) if tap is None else tap
        function.take(Firing(name, args, kwargs, record, raw))
    else:
        function(*args, **kwargs)


def transform_kwargs(record: Record) -> dict[str, Any]:
    """Returns the keyword arguments that tell a consumer what was done to a record; empty when nothing was.

    ``transforms`` has the names, innermost first; ``batch_dims`` and ``logical_shapes`` one entry a leaf;
    ``transform_params``, for a nest, one dict a level; ``where`` which lanes count.
    """
    site = record.site
    if not site.transforms:
        return {}
    out: dict[str, Any] = {"transforms": site.transform_names}
    batches = [t for t in site.transforms if t.name == "batch"]
    if batches:
        out["batch_dims"] = batches[-1].dims
    if site.column("extent") is not None:
        out["logical_shapes"] = tuple(record.logical_shape(i) for i in range(len(site.leaves)))
    if record.where is not None:
        out["where"] = record.where
    if len(site.transforms) > 1:
        out["transform_params"] = tuple(_params(site, i) for i in range(len(site.transforms)))
    return out


def leaves_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a pytree, None left out, with their key paths as JAX prints them.

    It knows what a trace gives back and Python's own containers; classes that a program registered with JAX are left
    to JAX, which such a program has imported.

    Example:
        >>> list(leaves_of({"a": [1, None], "b": (2,)}))
        [("['a'][0]", 1), ("['b'][0]", 2)]
    """
    if tree is None:
        return
    children = _children(tree)
    if children is not None:
        for key, child in children:
            yield from leaves_of(child, path + key)
    elif isinstance(tree, (np.ndarray, np.generic, bool, int, float, complex)) or "jax" not in sys.modules:
        yield path, tree
    else:
        tree_util = sys.modules["jax"].tree_util
        for keys, leaf in tree_util.tree_flatten_with_path(tree)[0]:
            yield path + tree_util.keystr(keys), leaf


def _children(tree: Any) -> list[tuple[str, Any]] | None:
    """Returns the items of a container by key; None for anything else."""
    if isinstance(tree, PyTreeNode):
        return list(tree.children.items())
    if isinstance(tree, dict):
        items: dict[Any, Any] = tree
        return [(f"[{key!r}]", child) for key, child in items.items()]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        named: Any = tree
        return [(f".{name}", child) for name, child in zip(named._fields, named, strict=True)]
    if type(tree) in (tuple, list):
        return [(f"[{number}]", child) for number, child in enumerate(tree)]
    return None


def _counted(record: Record, number: int, array: np.ndarray, *, raw: bool) -> np.ndarray:
    if raw or all(column.role is None for column in record.site.columns):
        return array
    valid = lanes.LeafLanes(record.site, number).valid(lanes.columns_of(record))
    return array if valid is None else array[np.broadcast_to(valid[0], array.shape)]


def _params(site: Site, level: int) -> dict[str, Any]:
    transform = site.transforms[level]
    names = {"size": "batch_size", "dims": "batch_dims", "axis_name": "axis_name"}
    return {key: getattr(transform, field) for field, key in names.items() if getattr(transform, field) is not None}


def _plain(value: Any) -> Any:
    """Integer scalars arrive as Python ints, whatever JAX computed them as."""
    return int(value) if isinstance(value, np.integer) else value
