"""What a tail reads from sealed files: segments that were sealed before it came to them, and a recording's end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tracerec.journal.batches import batch_of_stream
from tracerec.model import INDEX_DTYPE
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracerec.formats.contract import StreamSource, TraceSource
    from tracerec.journal.batches import Gathered

__all__ = ["SealedCursor", "open_sealed", "rows_after"]

_BLOCK_ROWS = 1 << 14


def open_sealed(path: Path) -> TraceSource:
    """Returns a part, or a recording that is one file or folder of Arrow files, opened; raises TraceError."""
    if path.suffix.lower() == ".arrow":
        from tracerec.formats.arrow.reading import ArrowSource

        return ArrowSource(path)
    from tracerec.formats.hdf5.reading import Hdf5Source

    return Hdf5Source(path)


def rows_after(stream: StreamSource, arrival: int, *, exact: bool) -> int:
    """Returns the number of the first record behind one that was seen already.

    The index table is read from its end, as far as it is new.

    Args:
        stream: the stream.
        arrival: an arrival number.
        exact: it is that of the last record of the stream that was seen; else no record with a later one was.
    """
    stop = stream.records
    while stop:
        start = max(0, stop - _BLOCK_ROWS)
        arrivals = stream.index(start, stop)["arrival"]
        # records of one batch may stand out of order, so that the number itself is looked for
        seen = np.flatnonzero(arrivals == arrival if exact else arrivals <= arrival)
        if len(seen):
            return start + int(seen[-1]) + 1
        stop = start
    # cut back after it was seen, as a full disk makes a recording do
    return rows_after(stream, arrival, exact=False) if exact else 0


class SealedCursor:
    """Reads a sealed source from front to back, stream by stream, in pieces.

    Args:
        source: the source; it is closed at the end.
        first: returns the number of the first record of a stream that is wanted.
    """

    def __init__(self, source: TraceSource, first: Callable[[StreamSource], int]) -> None:
        self._source = source
        self._pieces = self._all(first)
        self._limit = 0

    def read(self, gathered: Gathered, limit: int) -> int:
        """Adds records of at most about so many bytes; returns how many there were, 0 at the end."""
        self._limit = limit
        piece = next(self._pieces, None)
        if piece is None:
            return 0
        stream, start, stop = piece
        # copied, since the source may be closed before they are joined
        arrays = [np.array(array) for array in batch_of_stream(stream, start, stop)]
        gathered.add(stream.site, arrays)
        return sum(array.nbytes for array in arrays)

    def newest_arrival(self) -> int:
        """Returns the arrival number of the newest record; -1 when there is none."""
        ends = [stream.index(stream.records - 1, stream.records) for stream in self._source.streams if stream.records]
        return max((int(rows["arrival"][0]) for rows in ends), default=-1)

    def close(self) -> None:
        """Closes the source."""
        self._source.close()

    def _all(self, first: Callable[[StreamSource], int]) -> Iterator[tuple[StreamSource, int, int]]:
        for stream in self._source.streams:
            size = _record_bytes(stream)
            start = first(stream)
            while start < stream.records:
                stop = min(stream.records, start + max(1, self._limit // size))
                yield stream, start, stop
                start = stop


def _record_bytes(stream: StreamSource) -> int:
    arrays = [*stream.site.leaves, *(c for c in stream.site.columns if not c.in_index)]
    return INDEX_DTYPE.itemsize + sum(math.prod(a.shape) * dtypes.from_name(a.dtype).itemsize for a in arrays)
