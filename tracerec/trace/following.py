"""The newest records of a trace, and those that come while its run goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from tracerec import lanes
from tracerec.errors import TraceNotFound
from tracerec.formats.joined import site_id
from tracerec.journal.tail import JournalTail
from tracerec.model import Record
from tracerec.trace.order import in_order
from tracerec.trace.records import read_one
from tracerec.trace.refreshing import known_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from tracerec.formats.contract import TraceSource
    from tracerec.journal.tail import TailBatch
    from tracerec.trace.refreshing import Opened
    from tracerec.trace.view import StreamView

__all__ = ["Following", "last_records"]

POLL_BYTES = 16 << 20


def last_records(views: Sequence[StreamView], count: int) -> list[Record]:
    """Returns the last records of some views in order of arrival; their arrays alone are read."""
    ends = [view.pick(np.arange(max(0, view.records - count), view.records)) for view in views]
    last: list[tuple[int, int]] = []
    for batch in in_order(ends, "arrival"):
        last += zip(batch.stream.tolist()[-count:], batch.number.tolist()[-count:], strict=True)
        last = last[-count:]
    return [read_one(ends[stream], number) for stream, number in last] if count else []


class Following:
    """The records that come after those of a trace; made by `tracerec.trace.Trace.follow`.

    Looking costs what is new alone, and locks nothing. Records of which ``where`` has no lane are left out.

    Attributes:
        ended: whether nothing more is to come.
        notes: of recordings that ended, but were not closed: what became of them.

    Example:
        >>> with tracerec.open("run.h5") as trace, trace.follow("loss") as coming:  # doctest: +SKIP
        ...     while not coming.ended:
        ...         for record in coming.poll():
        ...             print(record.step, record.value)
        ...         time.sleep(0.1)
    """

    def __init__(self, opened: Opened, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted
        self._stack = contextlib.ExitStack()
        before, numbers = opened.parts, opened.numbers
        tails: list[JournalTail | None] = []
        for part in before:
            tail = None
            if part.info.state == "recording":
                # What is sealed by now is all in the trace once that has looked again.
                with contextlib.suppress(TraceNotFound):
                    tail = self._stack.enter_context(JournalTail(Path(part.path), from_start=False))
            tails.append(tail)
        try:
            opened.refresh()
        except BaseException:
            self._stack.close()
            raise
        self._tails = [
            _Tail(tail, number, _arrivals_since(old, new), max(len(new.info.attempts) - 1, 0))
            for tail, number, old, new in zip(tails, numbers, before, opened.parts, strict=True)
            if tail is not None
        ]

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come."""
        return all(each.tail.ended for each in self._tails)

    @property
    def notes(self) -> tuple[str, ...]:
        """Of recordings that ended, but were not closed: what became of them."""
        notes: list[str] = []
        for each in self._tails:
            what = {"killed": "the run did not end cleanly", "deleted": "the recording was deleted"}
            if each.tail.reason in what:
                notes.append(f"{each.tail.folder}: {what[each.tail.reason]}")
            elif each.tail.end is not None and each.tail.end.get("failure"):
                notes.append(f"{each.tail.folder}: recording stopped early: {each.tail.end['failure']}")
            notes += [f"{each.tail.folder}: {damage}" for damage in each.tail.damage]
        return tuple(notes)

    def poll(self, max_bytes: int = POLL_BYTES) -> list[Record]:
        """Returns the records that have come since the last call, in order of arrival.

        Args:
            max_bytes: about how many bytes to read at most of each process; what is over is left to the next call.

        Raises:
            TraceError: a file cannot be read.
        """
        found: list[Record] = []
        for each in self._tails:
            come = [record for batch in each.tail.poll(max_bytes) for record in self._records(each, batch)]
            found += sorted(come, key=lambda record: record.arrival)
        return found if len(self._tails) == 1 else sorted(found, key=lambda record: record.row["time"])

    def close(self) -> None:
        """Lets go of the files."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _records(self, each: _Tail, batch: TailBatch) -> Iterator[Record]:
        site, rows = batch.site, batch.rows
        if not self._is_wanted(site.name):
            return
        where = site.column("where")
        counts = np.ones(len(rows), bool) if where is None else lanes.counted(batch.columns[where])
        seen = each.seen.get(site.id)
        if seen is not None:
            counts &= ~np.isin(rows["arrival"], seen)
        for at in np.flatnonzero(counts).tolist():
            numbers = tuple(c.to_python(x[at, ...]) for c, x in zip(site.columns, batch.columns, strict=True))
            arrays = tuple(leaf[at, ...] for leaf in batch.leaves)
            yield Record(site, rows[at], arrays, numbers, each.attempt, each.process)


class _Tail:
    """A process that is followed. Attributes: arrival numbers that were ``seen``, by site; the rest as given."""

    def __init__(self, tail: JournalTail, process: int, seen: dict[int, np.ndarray], attempt: int) -> None:
        self.tail, self.process, self.seen, self.attempt = tail, process, seen, attempt


def _arrivals_since(old: TraceSource, new: TraceSource) -> dict[int, np.ndarray]:
    """Returns the arrival numbers of the records that came between two looks, by the id of their site."""
    before = {site_id(stream): stream for stream in old.streams}
    found: dict[int, np.ndarray] = {}
    for stream in new.streams:
        start = known_records(before.get(site_id(stream)), stream) if new is not old else stream.records
        if start < stream.records:
            found[site_id(stream)] = stream.index(start, stream.records)["arrival"]
    return found
