"""A stream as selected: some of its rows, some of its leaves, read by contiguous blocks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec.model import INDEX_DTYPE
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracerec.formats.contract import StreamSource
    from tracerec.model import Site

__all__ = ["BLOCK_BYTES", "StreamView"]

BLOCK_BYTES = 8 << 20
"""The most bytes that one read of scattered rows takes; a single larger record is read whole."""

_GAP_BYTES = 64 << 10
"""Unwanted rows of fewer bytes are read through: a second read costs more (one is about 70 us in HDF5)."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class StreamView:
    """Some rows and some leaves of one stream. Ranges count the rows selected.

    Attributes:
        source: the stream.
        site: its site, with only the leaves selected.
        rows: numbers of the rows selected, ascending; None: all of them.
    """

    source: StreamSource
    site: Site
    rows: np.ndarray | None = None

    @classmethod
    def of(cls, source: StreamSource) -> StreamView:
        """Returns the view of all rows and leaves of a stream."""
        return cls(source, source.site)

    @property
    def records(self) -> int:
        """How many rows are selected."""
        return self.source.records if self.rows is None else len(self.rows)

    def take(self, mask: np.ndarray) -> StreamView:
        """Returns the view of the rows for which ``mask``, ``(records,)`` of bool, is true."""
        if mask.all():
            return self
        chosen = np.flatnonzero(mask)
        return dataclasses.replace(self, rows=chosen if self.rows is None else self.rows[chosen])

    def with_leaf(self, path: str) -> StreamView:
        """Returns the view of the leaves with this key path: one, or none."""
        leaves = tuple(leaf for leaf in self.site.leaves if leaf.path == path)
        return dataclasses.replace(self, site=dataclasses.replace(self.site, leaves=leaves))

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table."""
        return self._read(self.source.index, start, stop, (), INDEX_DTYPE)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` of ``site.leaves`` as ``(stop - start, *shape)``."""
        leaf = self.site.leaves[number]
        place = next(i for i, x in enumerate(self.source.site.leaves) if x.number == leaf.number)
        dtype = dtypes.from_name(leaf.dtype)
        return self._read(lambda lo, hi: self.source.leaf(place, lo, hi), start, stop, leaf.shape, dtype)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` of ``site.columns`` as ``(stop - start, *shape)``."""
        column = self.site.columns[number]
        dtype = dtypes.from_name(column.dtype)
        return self._read(lambda lo, hi: self.source.column(number, lo, hi), start, stop, column.shape, dtype)

    def blocks(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges that cover all rows selected, each of about ``BLOCK_BYTES`` at ``nbytes`` a row."""
        size = max(1, BLOCK_BYTES // max(nbytes, 1))
        for start in range(0, self.records, size):
            yield start, min(start + size, self.records)

    def _read(
        self,
        read: Callable[[int, int], np.ndarray],
        start: int,
        stop: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
    ) -> np.ndarray:
        if self.rows is None:
            return read(start, stop)
        rows = self.rows[start:stop]
        row_nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        out: np.ndarray | None = None
        for lo, hi in _runs(rows, row_nbytes):
            first, last = int(rows[lo]), int(rows[hi - 1]) + 1
            block = read(first, last)
            if hi - lo < last - first:
                block = block[rows[lo:hi] - first]
            if hi - lo == len(rows):
                return block
            if out is None:
                out = np.empty((len(rows), *block.shape[1:]), block.dtype)
            out[lo:hi] = block
        return np.empty((0, *shape), dtype) if out is None else out


def _runs(rows: np.ndarray, row_nbytes: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of ``rows``, each read at once: without wide gaps, of at most `BLOCK_BYTES`."""
    if not len(rows):
        return
    row_nbytes = max(row_nbytes, 1)
    widest = max(1, _GAP_BYTES // row_nbytes)
    longest = max(1, BLOCK_BYTES // row_nbytes)
    breaks = np.flatnonzero(np.diff(rows) > widest) + 1
    for lo, hi in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
        at = lo
        while at < hi:
            end = max(at + 1, int(np.searchsorted(rows[:hi], rows[at] + longest)))
            yield at, end
            at = end
