"""A trace without what changes from run to run: times, host, process, command, versions, numbers of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracerec.comparing.ordering import TraceIndex, streams_of
from tracerec.comparing.reading import ColumnSide, LeafSide
from tracerec.errors import ComparisonError
from tracerec.formats.contract import RunInfo
from tracerec.model import FLAG_CALL_GUESSED, INDEX_DTYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.model import Site
    from tracerec.statistics import LeafSummary
    from tracerec.trace import Trace
    from tracerec.trace.view import StreamView

__all__ = ["StableSource"]


class StableSource:
    """The records of a trace that count, in order of execution: a `tracerec.formats.contract.TraceSource`.

    Two runs that recorded the same give the same, bit for bit. Arrival numbers are places in the order of execution,
    calls and programs are counted from the first, and times are zero.

    Args:
        trace: the trace; it is not closed with this.
        process: the number of the process whose records count; None: the only one.
        number: the number that the process has among those of the run, which tells their golden traces apart.

    Attributes:
        path: the trace's path.
        info: what is left of the run's description: the counts.
        streams: the streams, in the order of their first records.

    Raises:
        ComparisonError: the trace is of several processes, whose order the clock alone tells.
    """

    def __init__(self, trace: Trace, process: int | None = None, *, number: int = 0) -> None:
        views = [view for view in streams_of(trace) if view.records and process in (None, view.process)]
        if len({view.process for view in views}) > 1:
            message = f"{trace.path} is of several processes: what order their records have changes from run to run"
            raise ComparisonError(message)
        self.path = trace.path
        index = TraceIndex(views)
        # Places first: their rows are kept, and need not be read again.
        places = np.concatenate([index.places(n) for n in range(len(views))]) if views else np.empty(0, np.int64)
        rows = np.concatenate([index.rows(n) for n in range(len(views))]) if views else np.empty(0, INDEX_DTYPE)
        stable = _stable(rows, places)
        ends = np.cumsum([view.records for view in views])
        parts = np.split(stable, ends[:-1]) if views else []
        streams = [_Stream(view, part) for view, part in zip(views, parts, strict=True)]
        self.streams: Sequence[_Stream] = sorted(streams, key=lambda stream: stream.first)
        info = trace.info if process is None else trace.info.processes[trace.processes.index(process)]
        self.info = RunInfo(
            run_id=f"{number:032x}",
            started=0,
            ended=0,
            records=len(rows),
            dropped=info.dropped,
            retired=info.retired,
            over_budget=info.over_budget,
        )

    def close(self) -> None:
        """Does nothing: the trace is its opener's."""


class _Stream:
    """One stream in order of execution: a `tracerec.formats.contract.StreamSource`."""

    def __init__(self, view: StreamView, rows: np.ndarray) -> None:
        self._view = view
        self._order = np.argsort(rows["arrival"], kind="stable")
        self._rows = rows[self._order]

    @property
    def first(self) -> int:
        return int(self._rows["arrival"][0])

    @property
    def site(self) -> Site:
        return self._view.site

    @property
    def records(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self.records * (self.site.record_nbytes + INDEX_DTYPE.itemsize)

    def leaf_nbytes(self, number: int) -> int:
        side = LeafSide(self._view, number)
        return self.records * int(np.prod(side.shape, dtype=np.int64)) * side.dtype.itemsize

    def summaries(self) -> Sequence[LeafSummary]:
        from tracerec.summaries import summarizers

        leaves = summarizers(self)
        for number, leaf in enumerate(leaves):
            for start, stop in self._view.blocks(self.site.record_nbytes):
                leaf.add(self.leaf(number, start, stop))
        return [leaf.summary() for leaf in leaves]

    def index(self, start: int, stop: int) -> np.ndarray:
        return self._rows[start:stop]

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        return LeafSide(self._view.as_raw(), number).read(self._order[start:stop])[0]

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        return ColumnSide(self._view, number).read(self._order[start:stop])[0]


def _stable(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    out = rows.copy()
    out["arrival"] = places
    out["time"] = 0
    out["flags"] &= ~np.uint32(FLAG_CALL_GUESSED)
    for name in ("call", "program"):
        out[name] = _counted(rows[name], places, zero=name == "program")
    order = np.argsort(places, kind="stable")
    for device in np.unique(rows["device"]):
        mine = order[rows["device"][order] == device]
        out["number"][mine] = np.arange(len(mine))
    return out


def _counted(values: np.ndarray, places: np.ndarray, *, zero: bool) -> np.ndarray:
    """Returns numbers counted anew, in order of their first records; 0, which has a meaning, stays where it has one."""
    unique, inverse = np.unique(values, return_inverse=True)
    first = np.full(len(unique), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, places)
    if zero:
        first[unique == 0] = -1
    ranks = np.empty(len(unique), np.int64)
    ranks[np.argsort(first, kind="stable")] = np.arange(len(unique)) + (0 if zero and 0 in unique else 1)
    return ranks[inverse]
