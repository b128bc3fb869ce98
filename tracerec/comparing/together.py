"""Small leaves of many streams, compared at once: of a few numbers numpy's calls take longer than their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracerec.comparing.reading import ColumnSide, LeafSide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    from tracerec.comparing.cells import Cell
    from tracerec.comparing.reading import Side

    Work = tuple[Cell, np.ndarray, np.ndarray]
    """A cell, its pairs, and what they are matched by."""

__all__ = ["batches"]

_ROWS = 1 << 12
"""Pairs at once: their measures, a megabyte, about fill a core's second cache."""

_BYTES = 1 << 15
"""Bytes at once, of a side; fewer than those from which on chunks are compared as they lie in the files."""


def batches(work: Iterable[Work]) -> Iterator[list[Work]]:
    """Yields cells in their order: runs of those that can be measured in one array, and each other one by itself.

    What can be are elements of one shape, dtype and tolerance, all of which count, of streams that lie as they are.

    Args:
        work: cells, their pairs, and what these are matched by.
    """
    held: list[Work] = []
    known: Any = None
    rows = nbytes = 0
    for each in work:
        cell, pairs, _ = each
        kind = _kind(cell)
        rows, nbytes = rows + len(pairs), nbytes + len(pairs) * cell.a.nbytes
        if held and (kind is None or kind != known or rows > _ROWS or nbytes > _BYTES):
            yield held
            held, rows, nbytes = [], len(pairs), len(pairs) * cell.a.nbytes
        held.append(each)
        known = kind
        if kind is None:
            yield held
            held, rows, nbytes = [], 0, 0
    if held:
        yield held


def _kind(cell: Cell) -> Any:
    """Returns what cells have in common that are measured at once; None of a cell that is measured by itself."""
    a, b = cell.a, cell.b
    if cell.by is not None or cell.opaque or a.dtype != b.dtype or a.shape != b.shape:
        return None
    return (a.shape, a.dtype, cell.tolerance) if _is_plain(a) and _is_plain(b) else None


def _is_plain(side: Side) -> bool:
    """Returns whether a side is read from one stream, no keys, and all its elements count."""
    if not isinstance(side, (LeafSide, ColumnSide)) or side.key_impl is not None or side.unknown:
        return False
    view = side.view
    return view.raw or all(column.role is None for column in view.site.columns)
