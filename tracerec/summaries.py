"""Summaries of streams, made where records are written down: padding and lanes that do not count are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from tracerec.lanes import LeafLanes, counted
from tracerec.statistics import Summarizer

if TYPE_CHECKING:
    from tracerec.model import Site
    from tracerec.statistics import LeafSummary

__all__ = ["LeafSummarizer", "summarizers"]

_ROWS = 1 << 16
"""Rows of a mask looked at at once, as far as their lanes allow."""

_MASK_BYTES = 4 << 20


class _Columns(Protocol):
    """What is needed of a stream: its site, how many records it has, and its columns."""

    @property
    def site(self) -> Site: ...

    @property
    def records(self) -> int: ...

    def column(self, number: int, start: int, stop: int) -> np.ndarray: ...


class LeafSummarizer:
    """Makes the summary of one leaf of a stream, whose records come in blocks, in order.

    Args:
        stream: the stream; its columns are read block by block.
        leaf: the leaf's place in ``site.leaves``.
        records: how many records of the stream count.
    """

    def __init__(self, stream: _Columns, leaf: int, records: int) -> None:
        self._stream = stream
        self._where = stream.site.column("where")
        masked = self._where is not None or stream.site.column("extent", stream.site.leaves[leaf].path) is not None
        self._lanes = LeafLanes(stream.site, leaf) if masked else None
        self._summarizer = Summarizer(records, key=stream.site.leaves[leaf].key_impl is not None)
        self._seen = 0

    def add(self, block: np.ndarray) -> None:
        """Takes the next records, ``(n, *shape)``."""
        start, self._seen = self._seen, self._seen + len(block)
        if self._lanes is None:
            self._summarizer.add(block)
            return
        stop = self._seen
        valid = self._lanes.valid(lambda number: self._stream.column(number, start, stop))
        if self._where is not None and valid is not None:
            counts = counted(self._stream.column(self._where, start, stop))
            if not counts.all():
                block, valid = block[counts], valid[counts]
        self._summarizer.add(block, valid)

    def summary(self) -> LeafSummary:
        """Returns the summary; raises ValueError when fewer records came than the stream has."""
        return self._summarizer.summary()


def summarizers(stream: _Columns) -> list[LeafSummarizer]:
    """Returns one summarizer a leaf; it reads the stream's mask, if there is one, to see how many records count."""
    records = _count(stream)
    return [LeafSummarizer(stream, leaf, records) for leaf in range(len(stream.site.leaves))]


def _count(stream: _Columns) -> int:
    where = stream.site.column("where")
    if where is None:
        return stream.records
    lanes = int(np.prod(stream.site.columns[where].shape, dtype=np.int64))
    size = max(1, min(_ROWS, _MASK_BYTES // max(lanes, 1)))
    starts = range(0, stream.records, size)
    return sum(int(counted(stream.column(where, n, min(n + size, stream.records))).sum()) for n in starts)
