"""The records of a damaged recording that are intact, as a source that can be sealed: whole records or none."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import TraceError
from tracerec.formats.contract import RECORDING_NOTE, RunInfo
from tracerec.protocol import dtypes
from tracerec.salvaging.described import attempts_fault, run_fault
from tracerec.salvaging.sifting import sift
from tracerec.summaries import summarizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracerec.formats.contract import StreamSource
    from tracerec.model import Site
    from tracerec.statistics import LeafSummary
    from tracerec.verifying.arrivals import Seen
    from tracerec.verifying.streams import StreamCheck

__all__ = ["Salvage", "SalvagedSource", "SalvagedStream", "repaired_info", "salvaged"]

_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 16

_HULL = 4
"""Rows read at most for each one that is wanted, where they are read in one piece."""


class SalvagedStream:
    """Some records of a stream, in any order; a `tracerec.formats.contract.StreamSource`.

    Args:
        stream: the stream.
        runs: ranges of its records, ``(n, 2)``, in the order in which they are to be.
        tick: called at every read.
    """

    def __init__(self, stream: StreamSource, runs: np.ndarray, tick: Callable[[], None]) -> None:
        self._stream, self._runs, self._tick = stream, runs, tick
        self._ends = np.cumsum(runs[:, 1] - runs[:, 0])
        self.records = int(self._ends[-1]) if len(runs) else 0
        self.nbytes = stream.nbytes

    @property
    def site(self) -> Site:
        """The site."""
        return self._stream.site

    def leaf_nbytes(self, number: int) -> int:
        """Returns what the leaf takes where it comes from."""
        return self._stream.leaf_nbytes(number)

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, made from the records."""
        leaves = summarizers(self)
        step = max(1, _BLOCK_BYTES // max(1, self.site.record_nbytes))
        for number, leaf in enumerate(leaves):
            for start in range(0, self.records, step):
                leaf.add(self.leaf(number, start, min(start + step, self.records)))
        return [leaf.summary() for leaf in leaves]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table."""
        return self._read(self._stream.index, start, stop)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns a leaf."""
        return self._read(lambda a, b: self._stream.leaf(number, a, b), start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns a column."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(dtypes.from_name(column.dtype))
        return self._read(lambda a, b: self._stream.column(number, a, b), start, stop)

    def _read(self, read: Callable[[int, int], np.ndarray], start: int, stop: int) -> np.ndarray:
        self._tick()
        runs = self._overlapping(start, stop)
        if not len(runs):
            return read(0, 0)
        if len(runs) == 1:
            return read(*runs[0].tolist())
        low, high = int(runs[:, 0].min()), int(runs[:, 1].max())
        if self._is_whole(low, high) and high - low <= _HULL * (stop - start):
            rows = np.concatenate([np.arange(first, last) for first, last in runs.tolist()])
            return read(low, high)[rows - low]
        return np.concatenate([read(first, last) for first, last in runs.tolist()])

    def _overlapping(self, start: int, stop: int) -> np.ndarray:
        """Returns the ranges of the stream that are these records."""
        if start >= stop:
            return self._runs[:0]
        low = int(np.searchsorted(self._ends, start, side="right"))
        high = int(np.searchsorted(self._ends, stop, side="left")) + 1
        runs = self._runs[low:high].copy()
        before = int(self._ends[low - 1]) if low else 0
        runs[0, 0] += start - before
        runs[-1, 1] -= int(self._ends[high - 1]) - stop
        return runs

    def _is_whole(self, low: int, high: int) -> bool:
        """Returns whether all rows of a range are among those that can be read."""
        inside = self._runs[(self._runs[:, 0] < high) & (self._runs[:, 1] > low)]
        return int((np.minimum(inside[:, 1], high) - np.maximum(inside[:, 0], low)).sum()) == high - low


@dataclasses.dataclass(frozen=True)
class SalvagedSource:
    """Streams that can be sealed; a `tracerec.formats.contract.TraceSource`.

    Attributes:
        path: where they come from.
        info: what the new recording says of itself.
        streams: those with records, in first-seen order.
    """

    path: str
    info: RunInfo
    streams: Sequence[StreamSource]

    def close(self) -> None:
        """Does nothing: whoever opened the recording closes it."""


@dataclasses.dataclass
class Salvage:
    """The intact records of some streams.

    Attributes:
        streams: those that have any.
        lost: how many records are left out, by tap name.
        notes: sentences about what is left out, or kept, for want of proof, and about what was there twice.
    """

    streams: list[SalvagedStream] = dataclasses.field(default_factory=list[SalvagedStream])
    lost: Counter[str] = dataclasses.field(default_factory=Counter[str])
    notes: list[str] = dataclasses.field(default_factory=list[str])


def salvaged(
    checks: Iterable[StreamCheck],
    *,
    keep_suspect: bool,
    tick: Callable[[], None],
    attempts: Sequence[int] | None = None,
    seen: Seen | None = None,
    last: Mapping[int, int] | None = None,
) -> Salvage:
    """Returns the intact records of the streams that were checked, those that go together.

    `tracerec.salvaging.sifting` says which do.

    Args:
        checks: what checking the streams found.
        keep_suspect: whether records count as intact that can be read but may be wrong.
        tick: called at every read.
        attempts: the first arrival number of each attempt, in order, where no checksum covers the records.
        seen: arrival numbers of the files before this one, whose records are there already.
        last: the arrival number of each site's last record in those files, by the site's id: what came before cannot
            be put behind it.
    """
    found = Salvage()
    whole: list[StreamCheck] = []
    for check in checks:
        if check.opened.suspect is not None:
            left = "kept all the same: some may be wrong" if keep_suspect else "left out"
            which = f"which of its records are right cannot be told, they are {left}"
            found.notes.append(f"{check.opened.file}: {check.opened.suspect}; {which}")
        if check.opened.suspect is not None and not keep_suspect:
            found.lost[check.tap] += check.opened.stream.records
        else:
            whole.append(check)
    streams = [check.opened.stream for check in whole]
    runs = [np.array(list(check.bad.rest(0, check.opened.stream.records)), np.int64).reshape(-1, 2) for check in whole]
    if seen is not None:
        for number, stream in enumerate(streams):
            runs[number], early = _behind(stream, runs[number], (last or {}).get(stream.site.id), seen)
            left = "which come before others of that tap in an earlier file, are left out"
            found.notes += [f"{early} records of {whole[number].tap!r}, {left}"] * bool(early)
    sifted = sift(streams, runs, attempts, seen)
    for number, check in enumerate(whole):
        stream = SalvagedStream(check.opened.stream, sifted.runs[number], tick)
        repeated = sifted.repeated[number]
        if seen is not None and attempts is None:
            repeated += _had(check.opened.stream, runs[number], seen)
        found.lost[check.tap] += check.opened.stream.records - stream.records - repeated
        if repeated:
            found.notes.append(f"{repeated} records of {check.tap!r} were there twice")
        if stream.records:
            found.streams.append(stream)
    found.lost = +found.lost
    found.notes = list(dict.fromkeys(found.notes))
    return found


def _behind(stream: StreamSource, runs: np.ndarray, last: int | None, seen: Seen) -> tuple[np.ndarray, int]:
    """Returns ranges without the records that came before a last one and are not there; and how many these are."""
    if last is None or not len(runs):
        return runs, 0
    kept: list[np.ndarray] = []
    early = 0
    for low, high in runs.tolist():
        for start in range(low, high, _BLOCK_ROWS):
            arrival = stream.index(start, min(start + _BLOCK_ROWS, high))["arrival"]
            stays = (arrival > np.uint64(last)) | seen.has(arrival)
            early += int(np.count_nonzero(~stays))
            edges = np.flatnonzero(np.diff(np.concatenate([[False], stays, [False]]).astype(np.int8)))
            kept.append(start + edges.reshape(-1, 2))
    return np.concatenate(kept), early


def _had(stream: StreamSource, runs: np.ndarray, seen: Seen) -> int:
    """Returns how many of the records that cannot be kept, those outside of ranges, are there already."""
    had = 0
    starts, stops = [0, *runs[:, 1].tolist()], [*runs[:, 0].tolist(), stream.records]
    for low, high in zip(starts, stops, strict=True):
        for start in range(low, high, _BLOCK_ROWS):
            # Without their arrival numbers nobody can tell.
            with contextlib.suppress(TraceError):
                had += int(np.count_nonzero(seen.has(stream.index(start, min(start + _BLOCK_ROWS, high))["arrival"])))
    return had


def repaired_info(
    info: RunInfo | None, streams: Sequence[StreamSource], lost: Counter[str], notes: list[str]
) -> RunInfo:
    """Returns what the repaired recording says of itself.

    Args:
        info: what the damaged one says; None where that cannot be read.
        streams: what it has.
        lost: records left out, by tap name.
        notes: further sentences.
    """
    if info is not None and run_fault(info) is not None:
        info = None
    said = [] if info is None else [note for note in info.notes if note != RECORDING_NOTE]
    if info is None:
        info = RunInfo(uuid.uuid4().hex, _started(streams), clean=False, host="")
        said.append("what was known of the run was damaged, and is lost with its id")
    elif RECORDING_NOTE in info.notes:
        said.insert(0, "the run did not end cleanly")
    if lost:
        count = lost.total()
        are = "1 record that was" if count == 1 else f"{count} records that were"
        taps = ", ".join(f"{number} of {tap!r}" for tap, number in sorted(lost.items()))
        said.append(f"repaired: {are} damaged could not be kept: {taps}")
    if not _are_attempts(info, streams):
        said.append("what was known of the attempts of the run was damaged, and is lost")
        info = dataclasses.replace(info, attempts=())
    return dataclasses.replace(
        info,
        started=info.started or _started(streams),
        records=sum(stream.records for stream in streams),
        dropped=dict(Counter(info.dropped) + lost),
        notes=(*said, *notes),
    )


def _started(streams: Sequence[StreamSource]) -> int:
    """Returns the time of the first record, 0 where there is none."""
    times = [int(stream.index(0, 1)["time"][0]) for stream in streams if stream.records]
    return max(0, min(times, default=0))


def _are_attempts(info: RunInfo, streams: Sequence[StreamSource]) -> bool:
    """Returns whether a run's attempts are listed in order, and begin before all records do."""
    if attempts_fault(info) is not None:
        return False
    firsts: list[int] = [attempt["first_arrival"] for attempt in info.attempts]
    begin = min((int(s.index(0, 1)["arrival"][0]) for s in streams if s.records), default=None)
    return firsts == sorted(firsts) and (not firsts or begin is None or firsts[0] <= begin)
