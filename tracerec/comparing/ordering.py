"""All index rows of a trace, and the place of each record in its process's order of execution."""

from __future__ import annotations

import tempfile
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from tracerec.model import INDEX_DTYPE
from tracerec.trace.order import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.trace import Trace
    from tracerec.trace.view import StreamView

__all__ = ["TraceIndex", "streams_of"]

_AHEAD = 1 << 17
"""Rows of a process that are read at once."""

_IN_MEMORY = 16 << 20
"""Bytes of index rows held in memory; more are in a file that goes with the object."""


def streams_of(trace: Trace) -> Sequence[StreamView]:
    """Returns the records of a trace that count, a view a stream, in first-seen order."""
    # `Trace` shows its streams by tap alone.
    return trace._views  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class TraceIndex:
    """The index rows of some views, and their places in order, for which all rows are read and kept in a file.

    Args:
        views: the views.

    Attributes:
        views: as given.
        processes: the number of each view's process.
    """

    def __init__(self, views: Sequence[StreamView]) -> None:
        self.views = tuple(views)
        counts = [view.records for view in views]
        self.processes = np.array([view.process for view in views], np.int32)
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, view: int) -> np.ndarray:
        """Returns the index rows of a view."""
        start, stop = int(self._starts[view]), int(self._starts[view + 1])
        if self._file is None:
            # Of a run whose order nobody asks for each row is read once, beside the leaves of its stream.
            return self.views[view].index(0, stop - start)
        rows = np.empty(stop - start, INDEX_DTYPE)
        self.read([(start, stop)], rows)
        return rows

    def read(self, ranges: Sequence[tuple[int, int]], out: np.ndarray) -> None:
        """Fills ``out`` with ranges of index rows by number, counted over all views."""
        file, data, done = self._all, out.view(np.uint8).data, 0
        for start, stop in ranges:
            file.seek(start * INDEX_DTYPE.itemsize)
            end = done + (stop - start) * INDEX_DTYPE.itemsize
            file.readinto(data[done:end])
            done = end

    def places(self, view: int) -> np.ndarray:
        """Returns the place of each record of a view in execution order: ``(records,)`` of int64."""
        return self._places[self._starts[view] : self._starts[view + 1]]

    @property
    def _all(self) -> tempfile.SpooledTemporaryFile[bytes]:
        """All rows, one view after the other."""
        if self._file is None:
            file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it goes with this object
            weakref.finalize(self, file.close)
            for view, count in zip(self.views, np.diff(self._starts).tolist(), strict=True):
                for start in range(0, count, _AHEAD):
                    rows = np.ascontiguousarray(view.index(start, min(start + _AHEAD, count)))
                    file.write(rows.view(np.uint8).data)
            self._file = file
        return self._file

    @cached_property
    def _places(self) -> np.ndarray:
        """Found from one stream a process, its records as they arrived: merging thousands takes twice as long."""
        arrival = np.empty(len(self), INDEX_DTYPE["arrival"])
        rows = np.empty(min(_AHEAD, len(self)), INDEX_DTYPE)
        for start in range(0, len(self), _AHEAD):
            stop = min(start + _AHEAD, len(self))
            self.read([(start, stop)], rows[: stop - start])
            arrival[start:stop] = rows["arrival"][: stop - start]
        del rows
        of = np.repeat(self.processes, np.diff(self._starts))
        # In the order of their first streams.
        known = dict.fromkeys(self.processes.tolist())
        numbers = {process: None if len(known) == 1 else np.flatnonzero(of == process) for process in known}
        processes = [_Arrived(self, each, arrival, process) for process, each in numbers.items()]
        del of, numbers, arrival
        places = np.empty(len(self), np.int64)
        done = 0
        for batch in in_order(cast("list[StreamView]", processes)):
            for number in np.unique(batch.stream):
                mine = np.flatnonzero(batch.stream == number)
                places[processes[number].numbers[batch.number[mine]]] = done + mine
            done += len(batch)
        return places


class _Arrived:
    """All records of a process as they arrived: what `in_order` needs of a view.

    Args:
        rows: the rows of the trace.
        numbers: which of them are the process's; None: all.
        arrival: the arrival of every row of the trace.
        process: the process's number.

    Attributes:
        numbers: those given, made to ascend by arrival.
        process: as given.
        ranks: as `StreamView.ranks`.
    """

    ranks: np.ndarray | None = None

    def __init__(self, rows: TraceIndex, numbers: np.ndarray | None, arrival: np.ndarray, process: int) -> None:
        if numbers is None:
            self.numbers = np.argsort(arrival, kind="stable")
        else:
            self.numbers = numbers[np.argsort(arrival[numbers], kind="stable")]
        self.process = process
        self._all = rows
        self._start, self._rows = 0, np.empty(0, INDEX_DTYPE)

    @property
    def records(self) -> int:
        return len(self.numbers)

    def index(self, start: int, stop: int) -> np.ndarray:
        if not self._start <= start <= stop <= self._start + len(self._rows):
            self._start, self._rows = start, self._read(self.numbers[start : max(stop, start + _AHEAD)])
        return self._rows[start - self._start : stop - self._start]

    def _read(self, numbers: np.ndarray) -> np.ndarray:
        if not len(numbers):
            return np.empty(0, INDEX_DTYPE)
        # A stream's rows mostly lie in the file as they arrived, so that there are a few runs of them to read.
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        breaks = np.flatnonzero(np.diff(ascending) != 1) + 1
        lows, highs = ascending[np.append(0, breaks)], ascending[np.append(breaks - 1, len(ascending) - 1)] + 1
        found = np.empty(len(numbers), INDEX_DTYPE)
        self._all.read(list(zip(lows.tolist(), highs.tolist(), strict=True)), found)
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        return np.take(found, back)
