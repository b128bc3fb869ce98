"""Which part of a record counts: the lanes of a batch (``where``), the valid extent of a padded leaf."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tracerec.errors import TapError
from tracerec.tapping._jax import is_tracer
from tracerec.tapping.encode import ColumnSpec

__all__ = ["TAKEN", "WHEN", "WHERE", "encode_extents", "encode_where", "is_told"]

WHERE = ColumnSpec("where", role="where")

WHEN = ColumnSpec("when", role="when")
"""Whether a tap fires at all: an operand until it is lowered, and in no record."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken(ColumnSpec):
    """A mask that nobody passed: which lanes take a branch. It knows nothing of loops and branches further out."""


TAKEN = _Taken("where", role="where")


def is_told(columns: tuple[ColumnSpec, ...]) -> bool:
    """Returns whether the user says which lanes count, by ``where=``."""
    return WHERE in columns


def encode_where(where: Any, tap: str) -> list[tuple[ColumnSpec, Any]]:
    """Returns the column of a mask and its operand, a bool scalar; nothing when there is no mask.

    Raises:
        TapError: the mask is no bool scalar.
    """
    if where is None:
        return []
    dtype = np.dtype(bool) if isinstance(where, bool) else getattr(where, "dtype", None)
    if dtype != np.dtype(bool) or np.shape(where) != ():
        message = (
            f"tap {tap!r}: where must be a bool scalar (a lane's own under vmap), not {type(where).__name__} "
            f"of shape {np.shape(where)} and dtype {dtype}"
        )
        raise TapError(message, tap=tap)
    return [(WHERE, where if is_tracer(where) else np.array(where))]


def encode_extents(shapes: Any, tree: Any, leaves: list[tuple[str, Any]], tap: str) -> list[tuple[ColumnSpec, Any]]:
    """Returns a column and an operand, int32 of ``(rank,)``, for each leaf that has a logical shape.

    Args:
        shapes: what the user passed as ``logical_shapes``.
        tree: the structure of the tapped value.
        leaves: its leaves with their key paths.
        tap: the tap's name, for messages.

    Raises:
        TapError: the tree, a rank or a size does not fit.
    """
    if shapes is None:
        return []
    try:
        entries = [shapes] if tree == _LEAF else tree.flatten_up_to(shapes)
    except ValueError as error:
        message = f"tap {tap!r}: logical_shapes does not have the structure of the value: {error}"
        raise TapError(message, tap=tap) from error
    out: list[tuple[ColumnSpec, Any]] = []
    for entry, (path, leaf) in zip(entries, leaves, strict=True):
        if entry is not None:
            out.append((ColumnSpec(path, role="extent"), _extent(entry, np.shape(leaf), path, tap)))
    return out


_LEAF = jax.tree_util.tree_structure(0)


def _extent(entry: Any, shape: tuple[int, ...], path: str, tap: str) -> Any:
    where = f"tap {tap!r}: logical_shapes of leaf {path or 'the value'!r}"
    if not isinstance(entry, (tuple, list)) or len(entry) != len(shape):  # pyright: ignore[reportUnknownArgumentType]
        message = f"{where} is {entry!r}; give a tuple with one size for each axis of {shape}"
        raise TapError(message, tap=tap)
    sizes: list[Any] = [whole if size is None else size for size, whole in zip(entry, shape, strict=True)]
    for size, whole in zip(sizes, shape, strict=True):
        if np.shape(size) != () or not np.issubdtype(getattr(size, "dtype", type(size)), np.integer):
            message = f"{where} has {size!r} for a size; use ints, traced ints or None"
            raise TapError(message, tap=tap)
        if not is_tracer(size) and not 0 <= int(size) <= whole:
            message = f"{where} is {tuple(entry)}, which does not fit into {shape}"
            raise TapError(message, tap=tap)
    if any(map(is_tracer, sizes)):
        return jnp.stack([jnp.asarray(size).astype(jnp.int32) for size in sizes])
    return np.array([int(size) for size in sizes], np.int32)
