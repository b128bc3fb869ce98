"""A stream as selected: some of its rows, some of its leaves, read by contiguous blocks."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracerec import lanes
from tracerec.errors import TraceError
from tracerec.formats.joined import tap_name
from tracerec.keeping import reading
from tracerec.model import INDEX_DTYPE
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.formats.contract import StreamSource, TraceSource
    from tracerec.model import Site, Transform
    from tracerec.trace.attempts import Attempts
    from tracerec.trace.availability import Progress

__all__ = ["BLOCK_BYTES", "StreamView", "with_places"]

BLOCK_BYTES = 8 << 20
"""The most bytes that one read of scattered rows takes; a single larger record is read whole."""

_GAP_BYTES = 64 << 10
"""Unwanted rows of fewer bytes are read through: a second read costs more (one is about 70 us in HDF5)."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class StreamView:
    """Some rows and some leaves of one stream. Ranges count the rows selected.

    Attributes:
        source: the stream.
        raw: whether everything counts: all records, all lanes, padding.
        chosen: which rows are selected.
        attempts: those of the recording; None when there is one.
        process: the number of the process, in a trace of several; else 0.
        progress: how far the run has got; None when it has ended.
        owner: the opened recording that the stream is of: it lives, and can be closed, as long as the view does.
        ranks: the places of the rows selected in an order that a user chose, ``(records,)``; None: program order.
        narrowed: the site with only the leaves selected; None: all are.
    """

    source: StreamSource
    raw: bool
    chosen: _Rows
    attempts: Attempts | None = None
    process: int = 0
    progress: Progress | None = None
    owner: TraceSource | None = None
    ranks: np.ndarray | None = None
    narrowed: Site | None = None

    @classmethod
    def of(
        cls,
        source: StreamSource,
        *,
        raw: bool = False,
        superseded: bool = False,
        attempts: Attempts | None = None,
        process: int = 0,
        progress: Progress | None = None,
        owner: TraceSource | None = None,
    ) -> StreamView:
        """Returns the view of all leaves and of the rows that count.

        Those are the rows of which ``where`` has a lane, and which no later attempt has superseded.

        Args:
            source: the stream.
            raw: whether all rows count.
            superseded: whether rows count that a later attempt has superseded.
            attempts: those of the recording; None when there is one.
            process: the number of the process.
            progress: how far the run has got; None when it has ended.
            owner: the opened recording.
        """
        chosen = _Rows() if raw else _Counted(source, None if superseded else attempts)
        return cls(source, raw, chosen, attempts, process, progress, owner)

    @property
    def site(self) -> Site:
        """The stream's site, with only the leaves selected. It is parsed when it is first asked for."""
        return self.source.site if self.narrowed is None else self.narrowed

    @property
    def tap(self) -> str:
        """The tap's name, for which the site of a sealed file need not be parsed."""
        return tap_name(self.source)

    @property
    def rows(self) -> np.ndarray | None:
        """Numbers of the rows selected, none less than the one before; None: all of them. Masks are read when asked."""
        return self.chosen.numbers

    @property
    def records(self) -> int:
        """How many rows are selected."""
        return self.source.records if self.rows is None else len(self.rows)

    @property
    def shown_records(self) -> int:
        """How many rows to show to people: of a closed file whose mask was never read, those that were written."""
        try:
            return self.records
        except TraceError:
            return self.source.records

    def take(self, mask: np.ndarray) -> StreamView:
        """Returns the view of the rows for which ``mask``, ``(records,)`` of bool, is true."""
        return self if mask.all() else self.pick(np.flatnonzero(mask))

    def pick(self, numbers: np.ndarray, ranks: np.ndarray | None = None) -> StreamView:
        """Returns the view of some of the rows selected.

        Args:
            numbers: their numbers, ``(n,)``, none less than the one before; one can be there several times.
            ranks: the order in which they are wanted, ``(n,)``; None: as they stand now.
        """
        if ranks is None and self.ranks is not None:
            ranks = self.ranks[numbers]
        rows = _Rows(numbers if self.rows is None else self.rows[numbers])
        return dataclasses.replace(self, chosen=rows, ranks=ranks)

    def as_raw(self) -> StreamView:
        """Returns the view of the same rows in which all lanes and padding count."""
        return dataclasses.replace(self, raw=True)

    def with_leaf(self, path: str) -> StreamView:
        """Returns the view of the array with this key path, or of those that were kept of such a leaf; or of none."""
        return self.with_places(reading.places_at(self.site, path))

    def with_places(self, kept: Sequence[int]) -> StreamView:
        """Returns the view of the arrays at some places in ``site.leaves``."""
        return dataclasses.replace(self, narrowed=with_places(self.site, kept))

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

    def valid(self, number: int, start: int, stop: int) -> np.ndarray | None:
        """Returns which elements of a leaf count: bools that broadcast to `leaf`'s array; None: all of them."""
        if self.raw or all(column.role is None for column in self.site.columns):
            return None
        leaf = lanes.LeafLanes(self.site, number)
        return leaf.valid(lambda column: self.column(column, start, stop))

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
            if hi - lo != last - first or np.any(np.diff(rows[lo:hi]) != 1):
                block = block[rows[lo:hi] - first]
            if hi - lo == len(rows):
                return block
            if out is None:
                out = np.empty((len(rows), *block.shape[1:]), block.dtype)
            out[lo:hi] = block
        return np.empty((0, *shape), dtype) if out is None else out


def with_places(site: Site, kept: Sequence[int]) -> Site:
    """Returns a site with the arrays at some places alone."""
    leaves = tuple(site.leaves[i] for i in kept)
    transforms = tuple(_of_leaves(t, kept) for t in site.transforms)
    return dataclasses.replace(site, leaves=leaves, transforms=transforms)


class _Rows:
    """Rows of a stream. Attributes: their numbers, ascending; None: all of them."""

    def __init__(self, numbers: np.ndarray | None = None) -> None:
        self.numbers = numbers


class _Counted(_Rows):
    """The rows that count, found when they are first asked for: opening a trace reads no column."""

    def __init__(self, source: StreamSource, attempts: Attempts | None) -> None:
        self._source = source
        self._attempts = attempts

    @cached_property
    def numbers(self) -> np.ndarray | None:  # type: ignore[override]
        masks = [mask for mask in (self._with_lanes(), self._newest()) if mask is not None]
        counts = np.logical_and.reduce(masks) if masks else np.ones(0, bool)
        return None if counts.all() else np.flatnonzero(counts)

    def _with_lanes(self) -> np.ndarray | None:
        where = self._source.site.column("where")
        if where is None:
            return None
        view = StreamView.of(self._source, raw=True)
        lanes_of_record = int(np.prod(self._source.site.columns[where].shape, dtype=np.int64))
        parts = [lanes.counted(view.column(where, *block)) for block in view.blocks(max(_ROW_NBYTES, lanes_of_record))]
        return np.concatenate(parts) if parts else None

    def _newest(self) -> np.ndarray | None:
        if self._attempts is None:
            return None
        view = StreamView.of(self._source, raw=True)
        parts = [self._attempts.counts(view.index(*block)) for block in view.blocks(INDEX_DTYPE.itemsize)]
        return np.concatenate(parts) if parts else None


_ROW_NBYTES = 16


def _of_leaves(transform: Transform, kept: Sequence[int]) -> Transform:
    """Returns a transform with the axes of some leaves."""
    if transform.dims is None or any(i >= len(transform.dims) for i in kept):
        return transform
    return dataclasses.replace(transform, dims=tuple(transform.dims[i] for i in kept))


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
