"""From a tap that decides (``when``) or reduces (``keep``) to one that does neither, on the device.

Rules carry such a tap through transformations as any other, with its leaves whole and its decision as one more
operand. Only where it is lowered, or fires eagerly, the decision becomes a branch, and the leaves what is kept of them:
so primals, tangents and cotangents, one lane or many, are reduced alike, and what is not recorded is not copied.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tracerec import structure
from tracerec.errors import TapError
from tracerec.keeping import Full
from tracerec.lanes import LeafLanes
from tracerec.model import Kept, Transform
from tracerec.tapping._jax import is_key_dtype
from tracerec.tapping.emitters import TapSpec, physical_dtype, physical_shape, site_of
from tracerec.tapping.masks import WHERE
from tracerec.tapping.reductions import reduce_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.keeping import Keep
    from tracerec.model import Site

__all__ = ["Plain", "fire_eagerly", "fire_when", "is_plain"]


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """A tap that neither decides nor reduces.

    Attributes:
        spec: what is static.
        transforms: as the primitive has them.
        present: which of the spec's leaves are there.
    """

    spec: TapSpec
    transforms: tuple[Transform, ...]
    present: tuple[int, ...]


def is_plain(spec: TapSpec) -> bool:
    """Returns whether a tap fires always, with its leaves whole."""
    return not spec.keep and all(column.role != "when" for column in spec.columns)


def fire_when(args: Sequence[Any], fire: Callable[[Plain, list[Any]], None], plain: Plain) -> None:
    """Fires a tap if it decides so, with what it keeps of its leaves. To be traced.

    Args:
        args: the leaves, then the operands.
        fire: fires a plain tap with its arguments; called while tracing.
        plain: the tap's parameters, which are not plain yet.
    """
    n = len(plain.present)
    decided, operands, decision = _decided(plain, list(args[n:]))

    def reduced(*xs: Any) -> tuple[()]:
        fire(*_reduced(decided, list(xs[:n]), list(xs[n:])))
        return ()

    if decision is None:
        reduced(*args[:n], *operands)
    else:
        lax.cond(decision, reduced, lambda *_: (), *args[:n], *operands)


def fire_eagerly(args: Sequence[Any], fire: Callable[[Plain, list[Any]], None], plain: Plain) -> None:
    """As `fire_when`, with arguments that are there."""
    number = _column(plain.spec, "when")
    if number is not None and not np.any(np.asarray(args[len(plain.present) + number])):
        return
    avals = tuple((jnp.shape(x), x.dtype if hasattr(x, "dtype") else jnp.result_type(x)) for x in args)
    run, found = _program(plain, avals)
    fire(found, list(run(*args)))


@lru_cache(maxsize=1024)
def _program(plain: Plain, avals: tuple[Any, ...]) -> tuple[Callable[..., list[Any]], Plain]:
    """Returns what reduces the arguments of an eager tap, compiled, and the parameters of what comes out."""
    n = len(plain.present)
    found: list[Plain] = []

    def run(*xs: Any) -> list[Any]:
        decided, operands, _ = _decided(plain, list(xs[n:]))
        reduced, arrays = _reduced(decided, list(xs[:n]), operands)
        found.append(reduced)
        return arrays

    compiled = jax.jit(run)
    jax.eval_shape(compiled, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals))
    return compiled, found[0]


def _column(spec: TapSpec, role: str, name: str | None = None) -> int | None:
    for number, column in enumerate(spec.columns):
        if column.role == role and name in (None, column.name):
            return number
    return None


def _decided(plain: Plain, operands: list[Any]) -> tuple[Plain, list[Any], Any]:
    """Returns the tap and its operands without ``when``, and whether it fires; None: always.

    A decision for each lane of a vmap fires when one lane wants it, and says which did, as ``where`` does.
    """
    number = _column(plain.spec, "when")
    if number is None:
        return plain, operands, None
    when = operands[number]
    if jnp.ndim(when) == 0:
        return _without(plain, {number}), [x for i, x in enumerate(operands) if i != number], when
    told = _column(plain.spec, "where")
    if told is None:
        columns = tuple(WHERE if i == number else column for i, column in enumerate(plain.spec.columns))
        decided = dataclasses.replace(plain, spec=dataclasses.replace(plain.spec, columns=columns))
        return decided, operands, jnp.any(when)
    mask = _spread(plain, when, number) & _spread(plain, operands[told], told)
    levels = [has or also for has, also in zip(_levels(plain, number), _levels(plain, told), strict=True)]
    operands[told] = mask.reshape([size for size, there in zip(mask.shape, levels, strict=True) if there])
    lanes = dict(zip(_batches(plain), levels, strict=True))
    transforms = tuple(
        dataclasses.replace(t, kwarg_dims=_with(t.kwarg_dims, told, 0 if lanes[i] else None)) if i in lanes else t
        for i, t in enumerate(plain.transforms)
    )
    decided = _without(dataclasses.replace(plain, transforms=transforms), {number})
    return decided, [x for i, x in enumerate(operands) if i != number], jnp.any(mask)


def _with(dims: tuple[int | None, ...] | None, number: int, dim: int | None) -> tuple[int | None, ...]:
    return tuple(dim if i == number else d for i, d in enumerate(dims or ()))


def _without(plain: Plain, numbers: set[int]) -> Plain:
    """Returns the tap without some columns."""
    columns = tuple(column for i, column in enumerate(plain.spec.columns) if i not in numbers)
    transforms = tuple(
        t
        if t.kwarg_dims is None
        else dataclasses.replace(t, kwarg_dims=tuple(d for i, d in enumerate(t.kwarg_dims) if i not in numbers))
        for t in plain.transforms
    )
    return dataclasses.replace(plain, spec=dataclasses.replace(plain.spec, columns=columns), transforms=transforms)


def _batches(plain: Plain) -> list[int]:
    """Returns the places of the batch transforms, the outermost first."""
    return [i for i, t in reversed(list(enumerate(plain.transforms))) if t.name == "batch"]


def _levels(plain: Plain, column: int) -> list[bool]:
    """Returns for each batch level, the outermost first, whether a column has lanes of it."""
    found: list[bool] = []
    for i in _batches(plain):
        dims = plain.transforms[i].kwarg_dims
        found.append(dims is not None and dims[column] is not None)
    return found


def _spread(plain: Plain, operand: Any, column: int) -> Any:
    """Returns an operand with an axis for each batch level, of size 1 where it has no lanes, then its own."""
    levels = _levels(plain, column)
    sizes = iter(jnp.shape(operand))
    shape = [next(sizes) if there else 1 for there in levels]
    return jnp.reshape(operand, (*shape, *sizes))


def _reduced(plain: Plain, leaves: list[Any], operands: list[Any]) -> tuple[Plain, list[Any]]:
    """Returns a tap whose leaves are what is kept of those given, and its arguments."""
    spec = plain.spec
    if not spec.keep:
        return plain, [*leaves, *operands]
    shapes = [(physical_shape(x), physical_dtype(x)) for x in map(jax.typeof, [*leaves, *operands])]
    site = site_of(spec, plain.transforms, plain.present, shapes)
    tree = _Tree(plain, site, operands)
    for number, leaf in enumerate(leaves):
        tree.keep(number, leaf)
    extents = {i for i, column in enumerate(spec.columns) if column.role == "extent"} - tree.used
    out = _without(plain, extents)
    transforms = tuple(t if t.name != "batch" else dataclasses.replace(t, dims=tree.dims(t)) for t in out.transforms)
    reduced = dataclasses.replace(
        out.spec,
        structure=tree.structure(spec.structure),
        paths=tuple(kept.path_of for kept in tree.arrays),
        numbers=tuple(range(len(tree.arrays))),
        key_impls=tuple(kept.key_impl for kept in tree.arrays),
        columns=tuple(tree.renamed.get(column, column) for column in out.spec.columns),
        kept=tuple(kept.kept for kept in tree.arrays),
        shards="gather",
        keep=(),
    )
    arguments = [kept.array for kept in tree.arrays]
    arguments += [x for i, x in enumerate(operands) if i not in extents]
    return Plain(reduced, transforms, tuple(range(len(tree.arrays)))), arguments


@dataclasses.dataclass(frozen=True, slots=True)
class _Array:
    """One array that is kept. Attributes: itself; its key path; which leaf it is of; whether it is that leaf."""

    array: Any
    path_of: str
    leaf: int
    whole: bool
    kept: Kept
    key_impl: str | None


class _Tree:
    """What stands for the tapped pytree: in the place of each leaf an object of what is kept of it.

    Attributes:
        arrays: what is kept, in order.
        used: the columns of extents that are still needed.
        renamed: what became of them.
    """

    def __init__(self, plain: Plain, site: Site, operands: list[Any]) -> None:
        self.arrays: list[_Array] = []
        self.used: set[int] = set()
        self.renamed: dict[Any, Any] = {}
        self._plain, self._site, self._operands = plain, site, operands
        self._nodes: dict[int, Any] = {}

    def keep(self, number: int, leaf: Any) -> None:
        """Adds what is kept of one leaf of the site."""
        spec, lanes = self._plain.spec, LeafLanes(self._site, number)
        array = jax.random.key_data(leaf) if is_key_dtype(leaf.dtype) else jnp.asarray(leaf)
        axes = [axis for axis in lanes.axes if axis is not None]
        moved = jnp.moveaxis(array, axes, range(len(axes)))
        valid = _valid(self._plain, self._site, lanes, number, self._operands)
        count = len(axes) if spec.over == "lanes" else 0
        children: dict[str, Any] = {}
        for keep in spec.keep:
            name = _name_apart(keep.name, list(children))
            if keep == Full():
                children[name] = self._whole(number, name, leaf)
            else:
                parts = _parts(keep, moved, count, valid, self._site.name)
                children[name] = self._reduced(number, name, keep, parts, count)
        names = [f".{name}" for name in children]
        self._nodes[self._site.leaves[number].number] = {"object": ["tracerec:Kept", names, [*children.values()]]}

    def dims(self, batch: Transform) -> tuple[int | None, ...]:
        """Returns the batch axis of each array."""
        dims = batch.dims or ()
        return tuple(
            dims[kept.leaf] if kept.whole else 0 if kept.kept.lanes and dims[kept.leaf] is not None else None
            for kept in self.arrays
        )

    def structure(self, text: str) -> str:
        """Returns the structure of the tapped pytree with the nodes in the places of the leaves."""
        return structure.canonical(_filled(json.loads(text), self._nodes))

    def _whole(self, number: int, name: str, leaf: Any) -> Any:
        before = self._site.leaves[number].path
        path = f"{before}.{name}"
        column = _column(self._plain.spec, "extent", before)
        if column is not None:
            spec = self._plain.spec.columns[column]
            self.used.add(column)
            self.renamed[spec] = dataclasses.replace(spec, name=path)
        kept = self._kept(number, Full(), "full", 0)
        return self._add(_Array(leaf, path, number, whole=True, kept=kept, key_impl=kept.key_impl))

    def _reduced(self, number: int, name: str, keep: Keep, parts: dict[str, Any], lanes: int) -> Any:
        path = f"{self._site.leaves[number].path}.{name}"
        single = len(parts) == 1 and next(iter(parts)) in (keep.name, "value")
        slots: list[Any] = []
        for part, value in parts.items():
            kept = self._kept(number, keep, part, lanes)
            place = path if single else f"{path}.{part}"
            slots.append(self._add(_Array(value, place, number, whole=False, kept=kept, key_impl=None)))
        if single:
            return slots[0]
        return {"object": [f"tracerec:{type(keep).__name__}", [f".{part}" for part in parts], slots]}

    def _kept(self, number: int, keep: Keep, part: str, lanes: int) -> Kept:
        leaf = self._site.leaves[number]
        text = structure.canonical(keep.to_json())
        return Kept(text, part, leaf.path, leaf.shape, leaf.dtype, leaf.key_impl, lanes)

    def _add(self, array: _Array) -> Any:
        self.arrays.append(array)
        return {"slot": len(self.arrays) - 1}


def _filled(node: Any, nodes: dict[int, Any]) -> Any:
    if isinstance(node, dict):
        if set(node) == {"slot"}:
            return nodes.get(node["slot"])
        return {name: _filled(value, nodes) for name, value in node.items()}
    return [_filled(item, nodes) for item in node] if isinstance(node, list) else node


def _parts(keep: Keep, x: Any, lanes: int, valid: Any, tap: str) -> dict[str, Any]:
    try:
        return reduce_parts(keep, x, lanes, valid)
    except TapError as error:
        message = f"tap {tap!r}: {error}"
        raise TapError(message, tap=tap) from error


def _name_apart(name: str, names: list[str]) -> str:
    """Returns a name that an attribute can have, and that no other has."""
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    count = sum(other == plain or other.rpartition("_")[0] == plain for other in names)
    return plain if not count else f"{plain}_{count + 1}"


def _valid(plain: Plain, site: Site, lanes: LeafLanes, number: int, operands: list[Any]) -> Any:
    """Returns which elements of a leaf count, with its lane axes first; None: all.

    An element of a leaf that is the same for all lanes counts if it does in any lane, as `tracerec.lanes` has it.
    """
    where = _column(plain.spec, "where")
    extent = _column(plain.spec, "extent", site.leaves[number].path)
    if where is None and extent is None:
        return None
    shared = tuple(level for level, axis in enumerate(lanes.axes) if axis is None)
    mask = jnp.ones((1,) * len(lanes.axes), bool) if where is None else _spread(plain, operands[where], where)
    sizes = None if extent is None else _spread(plain, operands[extent], extent)
    # any(w & e) over lanes of one extent is any(w) & e.
    loose = tuple(level for level in shared if sizes is None or sizes.shape[level] == 1)
    mask = jnp.any(mask, axis=loose, keepdims=True).reshape(*_sizes(mask, loose), *(1,) * lanes.rank)
    if sizes is not None:
        own = [n for axis, n in enumerate(site.leaves[number].shape) if axis not in lanes.axes]
        for axis in range(sizes.shape[-1]):
            limit = sizes[..., axis].reshape(*sizes.shape[:-1], *(1,) * lanes.rank)
            place = jnp.arange(own[axis], dtype=limit.dtype).reshape(-1, *(1,) * (lanes.rank - axis - 1))
            mask = mask & (place < limit)
    return jnp.any(mask, axis=shared)


def _sizes(mask: Any, loose: tuple[int, ...]) -> list[int]:
    return [1 if level in loose else size for level, size in enumerate(mask.shape)]
