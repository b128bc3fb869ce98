"""Records of several streams, one after the other, with bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.model import Record
from tracerec.trace.order import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.trace.order import Order
    from tracerec.trace.view import StreamView

__all__ = ["Reader", "iterate", "read_one"]

_MEMORY = 128 << 20
"""Bytes of arrays held while iterating, over all streams, as far as single records allow."""

_BLOCK = 4 << 20
"""The most bytes read at once of one stream; larger reads are not faster."""


def iterate(views: Sequence[StreamView], order: Order = "program") -> Iterator[Record]:
    """Yields the records of the views in order. Their arrays are read-only views of a block that was read."""
    nbytes = min(_BLOCK, _MEMORY // (_KEPT * max(len(views), 1)))
    readers = [Reader(view, nbytes) for view in views]
    for batch in in_order(views, order):
        for row, stream, number in zip(batch.rows, batch.stream.tolist(), batch.number.tolist(), strict=True):
            yield readers[stream].record(row, number)


def read_one(view: StreamView, number: int) -> Record:
    """Returns one record of a view; it reads that record alone."""
    return Reader(view, 0).record(view.index(number, number + 1)[0], number)


_KEPT = 2
"""Blocks kept of each stream: program order can step back across the border of two."""


class Reader:
    """One view's records by number; block by block, the last `_KEPT` of them held.

    Args:
        view: the view.
        nbytes: the most bytes of a block; 0: one record.
    """

    def __init__(self, view: StreamView, nbytes: int) -> None:
        self._view = view
        self._size = max(1, min(1 << 14, nbytes // max(view.site.record_nbytes, 1)))
        if not nbytes:
            self._size = 1
        self._blocks: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {}

    def record(self, row: np.void, number: int) -> Record:
        """Returns the record of a row of the view; ``row`` is its row of the index table."""
        arrays, columns = self._block(number // self._size)
        at = number % self._size
        site = self._view.site
        numbers = tuple(c.to_python(column[at, ...]) for c, column in zip(site.columns, columns, strict=True))
        attempts = self._view.attempts
        attempt = 0 if attempts is None else int(attempts.number(np.atleast_1d(row))[0])
        return Record(site, row, tuple(array[at, ...] for array in arrays), numbers, attempt, self._view.process)

    def _block(self, number: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if number in self._blocks:
            return self._blocks[number]
        start = number * self._size
        stop = min(start + self._size, self._view.records)
        site = self._view.site
        arrays = [_read_only(self._view.leaf(i, start, stop)) for i in range(len(site.leaves))]
        columns = [self._view.column(i, start, stop) for i in range(len(site.columns))]
        if len(self._blocks) >= _KEPT:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = arrays, columns
        return arrays, columns


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # A user's write would otherwise change the records that share the block.
    array = array.view()
    array.flags.writeable = False
    return array
