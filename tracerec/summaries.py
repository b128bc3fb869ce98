"""Summaries of streams, made where records are written down: padding and lanes that do not count are left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tracerec.keeping import reading
from tracerec.keeping.summarizing import KeptSummarizer, SharedSummary
from tracerec.lanes import LeafLanes, counted
from tracerec.model import FLAG_STEP
from tracerec.protocol import dtypes
from tracerec.statistics import SPARK_POINTS, LeafSummary, Summarizer, evenly_spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.keeping.reading import Kind
    from tracerec.model import Site

__all__ = ["LeafSummarizer", "StepRange", "joined", "summarizers"]

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


class _Piece(_Columns, Protocol):
    """What is needed of a piece of a longer stream: its records, and summaries of them."""

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray: ...

    def summaries(self) -> Sequence[LeafSummary]: ...


class LeafSummarizer:
    """Makes the summary of one leaf of a stream, whose records come in blocks, in order.

    Args:
        stream: the stream; its columns are read block by block.
        leaf: the leaf's place in ``site.leaves``.
        records: how many records of the stream count.
        shared: of an array that tells of a tapped leaf: the summary of that leaf, to which it contributes.
    """

    def __init__(self, stream: _Columns, leaf: int, records: int, shared: SharedSummary | None = None) -> None:
        self._stream = stream
        self._where = stream.site.column("where")
        self._lanes = _lanes(stream.site, leaf)
        key = stream.site.leaves[leaf].key_impl is not None
        self._summarizer = Summarizer(records, key=key) if shared is None else KeptSummarizer(shared, leaf)
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
    """Returns one summarizer a leaf; it reads the stream's mask, if there is one, to see how many records count.

    The arrays of a summary, a fingerprint or a histogram that the device made of a tapped leaf have what these tell of
    that leaf, all the same. So none can be asked for before all have seen their records.
    """
    records = _count(stream)
    shared = {
        place: together
        for kind, key in _telling(stream.site)
        for together in [SharedSummary(kind, records, key=key)]
        for place in kind.places.values()
    }
    return [LeafSummarizer(stream, leaf, records, shared.get(leaf)) for leaf in range(len(stream.site.leaves))]


def joined(pieces: Sequence[_Piece]) -> list[LeafSummary]:
    """Returns the summaries of a stream of which the pieces, one after the other, are summarized already.

    They are those that `summarizers` would make of all records, bit for bit. Of the records at most `SPARK_POINTS` a
    leaf are read.

    Args:
        pieces: at least one; all of the same site.

    Raises:
        ValueError: the summaries of a piece are not those of its records.
    """
    known = [piece.summaries() for piece in pieces]
    for piece, leaves in zip(pieces, known, strict=True):
        masked = piece.site.column("where") is not None
        if not all(leaf.records <= piece.records if masked else leaf.records == piece.records for leaf in leaves):
            message = f"summaries of {[leaf.records for leaf in leaves]} records, of {piece.records}"
            raise ValueError(message)
    return [_joined(pieces, leaf, [leaves[leaf] for leaves in known]) for leaf in range(len(pieces[0].site.leaves))]


def _joined(pieces: Sequence[_Piece], leaf: int, known: Sequence[LeafSummary]) -> LeafSummary:
    records = sum(summary.records for summary in known)
    # That of a piece in which no record counts says nothing.
    last = [summary for summary in known if summary.records] or [known[-1]]
    kind, key = _teller(pieces[0].site, leaf)
    has_means = not key and (kind is None or kind.keep.name == "summary")
    return LeafSummary(
        records=records,
        nan=sum(summary.nan for summary in known),
        posinf=sum(summary.posinf for summary in known),
        neginf=sum(summary.neginf for summary in known),
        last=last[-1].last,
        spark=tuple(_spark(pieces, leaf, known, evenly_spread(records))) if has_means else (),
    )


def _spark(
    pieces: Sequence[_Piece], leaf: int, known: Sequence[LeafSummary], picks: np.ndarray
) -> Iterator[float | None]:
    """Yields the means of records that are counted over all pieces; those that a piece knows are not read."""
    first = 0
    for piece, summary in zip(pieces, known, strict=True):
        mine = picks[(picks >= first) & (picks < first + summary.records)] - first
        first += summary.records
        means = dict(zip(evenly_spread(summary.records).tolist(), summary.spark, strict=False))
        unknown = [pick for pick in mine.tolist() if pick not in means]
        means.update(zip(unknown, _means(piece, leaf, _rows(piece, unknown)), strict=True))
        for pick in mine.tolist():
            yield means[pick]


def _rows(stream: _Columns, picks: Sequence[int]) -> list[int]:
    """Returns the places in a stream of some of its records that count, given by their places among those."""
    where = stream.site.column("where")
    if not picks or where is None:
        return list(picks)
    rows: list[int] = []
    seen = 0
    for start, counts in _counts(stream, where):
        there = np.flatnonzero(counts)
        rows += [start + int(there[pick - seen]) for pick in picks[len(rows) :] if pick - seen < len(there)]
        seen += len(there)
        if len(rows) == len(picks):
            return rows
    message = f"only {seen} records count where summaries count more"
    raise ValueError(message)


def _means(stream: _Piece, leaf: int, rows: Sequence[int]) -> list[float | None]:
    """Returns the means of some records, as a summary has them; rows ascend."""
    part = stream.site.leaves[leaf]
    nbytes = math.prod(part.shape) * dtypes.from_name(part.dtype).itemsize
    kind, _ = _teller(stream.site, leaf)
    lanes = _lanes(stream.site, leaf)
    means: list[float | None] = []
    for near in _near(rows, max(1, _SPAN_BYTES // max(nbytes, 1))):
        start, stop = near[0], near[-1] + 1
        which = np.array(near) - start
        if kind is not None:
            found = reading.told(kind, lambda place, a=start, b=stop, some=which: stream.leaf(place, a, b)[some])
            means += [mean if math.isfinite(mean) else None for mean in found["mean"].tolist()]
            continue
        valid = lanes and lanes.valid(lambda number, start=start, stop=stop: stream.column(number, start, stop))
        summarizer = Summarizer(len(near))
        summarizer.add(stream.leaf(leaf, start, stop)[which], None if valid is None else valid[which])
        means += summarizer.summary().spark
    return means


def _near(rows: Sequence[int], span: int) -> Iterator[list[int]]:
    """Yields rows that are best read at once: it costs as much to read a chunk as to read one row of it."""
    near: list[int] = []
    for row in rows:
        if near and (row - near[0] >= span or len(near) == SPARK_POINTS):
            yield near
            near = []
        near.append(row)
    if near:
        yield near


_SPAN_BYTES = 1 << 20


def _lanes(site: Site, leaf: int) -> LeafLanes | None:
    masked = site.column("where") is not None or site.column("extent", site.leaves[leaf].path) is not None
    return LeafLanes(site, leaf) if masked else None


def _telling(site: Site) -> Iterator[tuple[Kind, bool]]:
    """Yields what tells statistics of tapped leaves in the place of their elements, and whether of a PRNG key."""
    for row in reading.rows(site):
        for kind in row.kinds:
            if row.array not in kind.places.values():
                yield kind, row.leaf.key_impl is not None


def _teller(site: Site, leaf: int) -> tuple[Kind | None, bool]:
    """Returns what an array is a part of that tells statistics, and whether of a PRNG key; None: it is elements."""
    for kind, key in _telling(site):
        if leaf in kind.places.values():
            return kind, key
    return None, site.leaves[leaf].key_impl is not None


def _count(stream: _Columns) -> int:
    where = stream.site.column("where")
    return stream.records if where is None else sum(int(counts.sum()) for _, counts in _counts(stream, where))


def _counts(stream: _Columns, where: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields, block by block, the first record and which records count, by the stream's mask."""
    lanes = int(np.prod(stream.site.columns[where].shape, dtype=np.int64))
    size = max(1, min(_ROWS, _MASK_BYTES // max(lanes, 1)))
    for start in range(0, stream.records, size):
        yield start, counted(stream.column(where, start, min(start + size, stream.records)))


class StepRange:
    """The smallest and the largest step of a stream.

    Attributes:
        range: both; None while no record had a step.
    """

    range: tuple[int, int] | None = None

    def add(self, rows: np.ndarray) -> None:
        """Takes rows of the index table."""
        steps = rows["step"][(rows["flags"] & FLAG_STEP) != 0]
        if len(steps):
            self.add_range((int(steps.min()), int(steps.max())))

    def add_range(self, other: tuple[int, int] | None) -> None:
        """Takes the range of some records."""
        if self.range is None or other is None:
            self.range = self.range or other
        else:
            self.range = (min(self.range[0], other[0]), max(self.range[1], other[1]))
