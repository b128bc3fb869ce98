"""Several sources of one recording, one after the other, as one: parts, and the journal of what is not sealed."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tracerec import summaries
from tracerec.errors import TraceError, TraceFormatError
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from tracerec.formats.contract import RunInfo, StreamSource, TraceSource
    from tracerec.statistics import LeafSummary

__all__ = ["JoinedSource", "JoinedStream"]

_ROWS = 1 << 16
_UNKNOWN = object()


class JoinedSource:
    """Sources one after the other as one: a `tracerec.formats.contract.TraceSource`.

    Streams are joined by the id of their site, in first-seen order. Sources are read when something of them is asked
    for; whether they keep their files open is their own business (`tracerec.formats.pool`).

    Args:
        path: the recording, for messages.
        info: what is known of the run.
        sources: the pieces in order of their records; closed with this.
        closing: called once, when this is closed.
        damage: what could not be read of them, as the journal tells it.

    Attributes:
        path: as given.
        info: as given.
        streams: the streams, in first-seen order.
        sources: as given.
        damage: as given.
        closed: whether it was closed.

    Example:
        >>> with JoinedSource("run.h5.live", info, [part, journal]) as source:  # doctest: +SKIP
        ...     source.streams[0].leaf(0, 0, 10)
    """

    def __init__(
        self,
        path: str,
        info: RunInfo,
        sources: Sequence[TraceSource],
        *,
        closing: Callable[[], None] | None = None,
        damage: Sequence[Any] = (),
    ) -> None:
        self.path, self.info = path, info
        self.sources, self.damage = tuple(sources), tuple(damage)
        self.closed = False
        self._closing = closing
        pieces: dict[int, list[StreamSource]] = {}
        for source in self.sources:
            for stream in source.streams:
                pieces.setdefault(site_id(stream), []).append(stream)
        self.streams: Sequence[JoinedStream] = tuple(JoinedStream(self, found) for found in pieces.values())

    def close(self) -> None:
        """Closes all sources; reading from the streams then raises TraceError. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for source in self.sources:
            source.close()
        if self._closing is not None:
            self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JoinedStream:
    """All records of one site over all sources: a `tracerec.formats.contract.StreamSource`. Made by `JoinedSource`.

    Attributes:
        pieces: the streams of the sources, in order.
        starts: the number of the first record of each piece.
        records: how many records there are.
    """

    def __init__(self, source: JoinedSource, pieces: Sequence[StreamSource]) -> None:
        self._source = source
        self.pieces = pieces
        *starts, self.records = itertools.accumulate((piece.records for piece in pieces), initial=0)
        self.starts: Sequence[int] = starts

    @property
    def site(self) -> Site:
        """The site; raises TraceFormatError where the first piece does not describe one."""
        return self.pieces[0].site

    @property
    def site_id(self) -> int:
        """The site's id, for which the site need not be parsed."""
        return site_id(self.pieces[0])

    @property
    def tap(self) -> str:
        """The tap's name, for which the site need not be parsed."""
        return tap_name(self.pieces[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces in their files."""
        return sum(piece.nbytes for piece in self.pieces)

    @cached_property
    def steps(self) -> tuple[int, int] | None:
        """The smallest and the largest step, None when no record has one."""
        return step_range(self.pieces)

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes that a leaf takes in the files of all pieces."""
        return sum(piece.leaf_nbytes(number) for piece in self.pieces)

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf: the same that sealing all records at once would make."""
        return self._summaries

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table, as an array of `tracerec.model.INDEX_DTYPE`."""
        return self._read(start, stop, (), INDEX_DTYPE, lambda piece: piece.index)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` of ``site.leaves`` as ``(stop - start, *shape)`` of the logical dtype."""
        leaf = self.site.leaves[number]

        def read(piece: StreamSource) -> Callable[[int, int], np.ndarray]:
            return lambda low, high: piece.leaf(number, low, high)

        return self._read(start, stop, leaf.shape, dtypes.from_name(leaf.dtype), read)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` of ``site.columns`` as ``(stop - start, *shape)``."""
        column = self.site.columns[number]

        def read(piece: StreamSource) -> Callable[[int, int], np.ndarray]:
            return lambda low, high: piece.column(number, low, high)

        return self._read(start, stop, column.shape, dtypes.from_name(column.dtype), read)

    @cached_property
    def _summaries(self) -> Sequence[LeafSummary]:
        self._check_open()
        try:
            return summaries.joined(self.pieces)
        except ValueError as error:
            message = f"{self._source.path!r} is no intact trace: tap {self.site.name!a}: {error}"
            raise TraceFormatError(message, path=self._source.path) from error

    def _read(
        self,
        start: int,
        stop: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read: Callable[[StreamSource], Callable[[int, int], np.ndarray]],
    ) -> np.ndarray:
        self._check_open()
        if not 0 <= start <= stop <= self.records:
            message = f"records {start}:{stop} of {self.records} of tap {self.site.name!r}"
            raise IndexError(message)
        parts = list(self._overlapping(start, stop))
        if len(parts) == 1:
            ((piece, low, high),) = parts
            return _checked(piece, read(piece)(low, high), (high - low, *shape), dtype, self._source)
        out = np.empty((stop - start, *shape), dtype)
        row = 0
        for piece, low, high in parts:
            block = _checked(piece, read(piece)(low, high), (high - low, *shape), dtype, self._source)
            out[row : row + high - low] = block
            row += high - low
        return out

    def _overlapping(self, start: int, stop: int) -> Iterator[tuple[StreamSource, int, int]]:
        """Yields the pieces that have some of these records, with the range in each."""
        number = max(bisect_right(self.starts, start) - 1, 0)
        for piece, first in zip(self.pieces[number:], self.starts[number:], strict=True):
            low, high = max(start - first, 0), min(stop - first, piece.records)
            if first >= stop:
                return
            if low < high:
                yield piece, low, high

    def _check_open(self) -> None:
        if self._source.closed:
            message = f"{self._source.path!r} is closed"
            raise TraceError(message, path=self._source.path)


def site_id(stream: StreamSource) -> int:
    """Returns the id of a stream's site; sealed forms have it without parsing the site."""
    known = getattr(stream, "site_id", None)
    return stream.site.id if known is None else known


def tap_name(stream: StreamSource) -> str:
    """Returns the name of a stream's tap; sealed forms have it without parsing the site."""
    known: str | None = getattr(stream, "tap", None)
    return stream.site.name if known is None else known


def step_range(pieces: Sequence[StreamSource]) -> tuple[int, int] | None:
    """Returns the smallest and the largest step of several streams; sealed forms have it."""
    steps = summaries.StepRange()
    for piece in pieces:
        known: Any = getattr(piece, "steps", _UNKNOWN)
        if known is not _UNKNOWN:
            steps.add_range(known)
            continue
        for start in range(0, piece.records, _ROWS):
            steps.add(piece.index(start, min(start + _ROWS, piece.records)))
    return steps.range


def _checked(
    piece: StreamSource, block: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any], source: JoinedSource
) -> np.ndarray:
    """Returns a block; a piece whose site is another one, although it has its id, gives another."""
    if block.shape != shape or block.dtype != dtype:
        message = (
            f"{source.path!r} is no intact trace: tap {piece.site.name!a}: one of its pieces has {block.dtype} of "
            f"{block.shape}, not {dtype} of {shape}"
        )
        raise TraceFormatError(message, path=source.path)
    return block
