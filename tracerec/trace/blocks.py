"""Records of several streams in program order, a bounded block at a time."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.trace.view import StreamView

__all__ = ["Block", "Sorted", "blocks"]

_GAP_ROWS = 4
"""Unwanted rows that are read through: records of one tap stand together, but for loops and several devices."""

_MOST_ROWS = 1 << 16
"""Rows of a block of the smallest records."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Records that follow each other in program order.

    Attributes:
        start: the place of the first one.
        stop: the place after the last one.
        members: for each stream that has any: its number, their rows in it, ascending, and where in the block they go.
    """

    start: int
    stop: int
    members: tuple[tuple[int, np.ndarray, np.ndarray], ...]

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, read: Callable[[int, int, int], np.ndarray]) -> np.ndarray:
        """Returns what is read of the records, in program order, as ``(n, *shape)``.

        Args:
            read: returns, for the number of a stream and a range of its rows, an array ``(rows, *shape)`` whose shape
                and dtype are the same for all streams.
        """
        out: np.ndarray | None = None
        for stream, rows, places in self.members:
            found = _rows(rows, lambda low, high, stream=stream: read(stream, low, high))
            if len(rows) == len(self) and bool(np.all(np.diff(places) > 0)):
                return found
            if out is None:
                out = np.empty((len(self), *found.shape[1:]), found.dtype)
            out[places] = found
        return read(0, 0, 0) if out is None else out


class Sorted:
    """The records of some views, to be had by their places in program order.

    Args:
        views: the views.
        places: for each view the place of its records in program order; see `tracerec.trace.order.places`.
    """

    def __init__(self, views: Sequence[StreamView], places: Sequence[np.ndarray]) -> None:
        self._views = views
        self._orders = [np.argsort(place, kind="stable") for place in places]
        self._places = [place[order] for place, order in zip(places, self._orders, strict=True)]
        self._count = sum(len(place) for place in places)

    def __len__(self) -> int:
        return self._count

    def between(self, start: int, stop: int) -> Block:
        """Returns the records from a place up to another one."""
        members: list[tuple[int, np.ndarray, np.ndarray]] = []
        for stream, (order, place) in enumerate(zip(self._orders, self._places, strict=True)):
            low, high = np.searchsorted(place, (start, stop))
            if low < high:
                rows = order[low:high]
                ascending = np.argsort(rows, kind="stable")
                members.append((stream, rows[ascending], place[low:high][ascending] - start))
        return Block(start, stop, tuple(members))

    def ranges(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of places that cover all records.

        Args:
            nbytes: the most bytes of a range's arrays; a larger record is a range of its own.
        """
        size = max([view.site.record_nbytes for view in self._views], default=1)
        step = max(1, min(_MOST_ROWS, nbytes // max(size, 1)))
        for start in range(0, self._count, step):
            yield start, min(start + step, self._count)


def blocks(views: Sequence[StreamView], places: Sequence[np.ndarray], nbytes: int) -> Iterator[Block]:
    """Yields blocks that cover all records of some views, each of at most ``nbytes`` but for larger records."""
    records = Sorted(views, places)
    for start, stop in records.ranges(nbytes):
        yield records.between(start, stop)


def _rows(rows: np.ndarray, read: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Returns some rows, ascending, read in as few ranges as do not hold many others."""
    breaks = np.flatnonzero(np.diff(rows) > _GAP_ROWS) + 1
    edges = [0, *breaks.tolist(), len(rows)]
    out: np.ndarray | None = None
    for low, high in itertools.pairwise(edges):
        first, last = int(rows[low]), int(rows[high - 1]) + 1
        found = read(first, last)
        if last - first > high - low:
            found = found[rows[low:high] - first]
        if len(edges) == 2:  # noqa: PLR2004 - one range
            return found
        if out is None:
            out = np.empty((len(rows), *found.shape[1:]), found.dtype)
        out[low:high] = found
    return read(0, 0) if out is None else out
