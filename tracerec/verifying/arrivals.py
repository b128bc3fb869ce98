"""Arrival numbers over all streams: each is there once, and each device's own numbers rise with them.

Streams are gone through side by side, a window of arrival numbers at a time, so that memory is bounded by the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.formats.contract import StreamSource
    from tracerec.verifying.report import Findings

__all__ = ["Seen", "check_arrivals", "check_rows", "fields_of"]

WINDOW = 1 << 20
"""Arrival numbers looked at side by side: 28 MB of the fields that are needed, if every number is there."""

BUFFER_ROWS = 1 << 20
"""Rows of all streams that are read ahead."""

MAX_RUNS = 1 << 22
"""Runs of consecutive arrival numbers that `Seen` holds: 64 MiB. A recording of all taps has a few."""

_FIELDS = np.dtype([("arrival", "<u8"), ("number", "<u8"), ("device", "<i4"), ("stream", "<i4")])


class Seen:
    """The arrival numbers seen so far in a folder of several files, as runs of consecutive ones."""

    def __init__(self) -> None:
        self._first = np.empty(0, np.uint64)
        self._last = np.empty(0, np.uint64)
        self.full = False

    def has(self, arrivals: np.ndarray) -> np.ndarray:
        """Returns which numbers were there before."""
        if not len(self._first):
            return np.zeros(len(arrivals), bool)
        run = np.searchsorted(self._first, arrivals, side="right") - 1
        return (run >= 0) & (arrivals <= self._last[np.maximum(run, 0)])

    def add(self, arrivals: np.ndarray) -> int | None:
        """Adds numbers, sorted and each once; returns the first that was there before, or None."""
        if not len(arrivals) or self.full:
            return None
        breaks = np.flatnonzero(np.diff(arrivals) != 1)
        first = arrivals[np.concatenate([[0], breaks + 1])]
        last = arrivals[np.concatenate([breaks, [len(arrivals) - 1]])]
        first, last = np.concatenate([self._first, first]), np.concatenate([self._last, last])
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
        overlaps = np.flatnonzero(first[1:] <= last[:-1])
        if len(overlaps):
            return int(first[overlaps[0] + 1])
        ends = np.flatnonzero(first[1:] - last[:-1] != 1)
        self._first = first[np.concatenate([[0], ends + 1])]
        self._last = last[np.concatenate([ends, [len(last) - 1]])]
        self.full = len(self._first) > MAX_RUNS
        return None


def check_arrivals(
    streams: Sequence[StreamSource],
    file: str,
    findings: Findings,
    *,
    attempts: Sequence[int] = (),
    seen: Seen | None = None,
) -> None:
    """Reports arrival numbers that two records have, and numbers of devices that fall.

    Args:
        streams: streams whose index tables can be read, with arrival numbers that rise.
        file: the file's name, for reports.
        findings: takes the faults.
        attempts: the first arrival number of each attempt, in order.
        seen: the numbers of the files before this one; it takes this one's.
    """
    last: dict[int, tuple[int, int]] = {}
    for rows in _windows(streams, file, findings):
        check_rows(rows, file, findings, attempts=attempts, seen=seen, last=last, taps=[s.site.name for s in streams])


def check_rows(
    rows: np.ndarray,
    file: str,
    findings: Findings,
    *,
    attempts: Sequence[int],
    seen: Seen | None,
    last: dict[int, tuple[int, int]],
    taps: Sequence[str],
) -> None:
    """The same of rows that `fields_of` gave, in any order; ``last`` has what is known of each device so far."""
    if not len(rows):
        return
    rows = rows[np.argsort(rows["arrival"], kind="stable")]
    same = np.flatnonzero(rows["arrival"][1:] == rows["arrival"][:-1])
    if len(same):
        at = int(same[0])
        one, other = (taps[int(rows["stream"][n])] for n in (at, at + 1))
        count = "" if len(same) == 1 else f", and {len(same) - 1} more numbers"
        message = (
            f"arrival number {int(rows['arrival'][at])} is that of a record of tap {one!r} and of one of tap "
            f"{other!r}{count}: records are there twice, or are not of this run"
        )
        findings.add("arrival-unique", file, message, tap=other)
    _check_numbers(rows, file, findings, attempts, last)
    if seen is not None:
        twice = seen.add(np.unique(rows["arrival"]))
        if twice is not None:
            message = f"arrival number {twice} is that of a record in an earlier part or segment, too"
            findings.add("arrival-unique", file, message)
        if seen.full:
            findings.note("arrival numbers are so scattered that they were compared within each file alone")


def fields_of(rows: np.ndarray, stream: int) -> np.ndarray:
    """Returns what the checks need of rows of the index table."""
    found = np.empty(len(rows), _FIELDS)
    for name in ("arrival", "number", "device"):
        found[name] = rows[name]
    found["stream"] = stream
    return found


def _check_numbers(
    rows: np.ndarray, file: str, findings: Findings, attempts: Sequence[int], last: dict[int, tuple[int, int]]
) -> None:
    """Checks that numbers rise in rows sorted by arrival; ``last`` has attempt and number of each device so far."""
    attempt = np.searchsorted(np.array(attempts, np.uint64), rows["arrival"], side="right")
    order = np.argsort(rows["device"], kind="stable")
    device, number, attempt, arrival = rows["device"][order], rows["number"][order], attempt[order], rows["arrival"]
    firsts = np.flatnonzero(np.concatenate([[True], device[1:] != device[:-1]])).tolist()
    wrong = (device[1:] == device[:-1]) & (attempt[1:] == attempt[:-1]) & (number[1:] <= number[:-1])
    falls = (np.flatnonzero(wrong) + 1).tolist()
    for first in firsts:
        before = last.get(int(device[first]))
        if before is not None and before[0] == int(attempt[first]) and int(number[first]) <= before[1]:
            falls.append(first)
    for at, end in zip(firsts, [*firsts[1:], len(device)], strict=True):
        last[int(device[at])] = (int(attempt[end - 1]), int(number[end - 1]))
    if falls:
        at = falls[0]
        message = (
            f"device {int(device[at])}: number {int(number[at])}, at arrival number {int(arrival[order[at]])}, is not "
            f"larger than the one before it, {len(falls)} such in all: program order cannot be told there"
        )
        findings.add("number-monotone", file, message)


class _Cursor:
    """Reads the index table of one stream from front to back."""

    def __init__(self, stream: StreamSource, number: int, block: int) -> None:
        self._stream, self._number, self._block = stream, number, block
        self._at = 0
        self._rows = np.empty(0, _FIELDS)

    def next(self) -> int | None:
        """Returns the next arrival number, None at the end."""
        if not len(self._rows) and self._at < self._stream.records:
            stop = min(self._at + self._block, self._stream.records)
            self._rows = fields_of(self._stream.index(self._at, stop), self._number)
            self._at = stop
        return int(self._rows["arrival"][0]) if len(self._rows) else None

    def until(self, end: int) -> Iterator[np.ndarray]:
        """Yields all rows with arrival numbers up to one, itself included."""
        while (first := self.next()) is not None and first <= end:
            count = int(np.searchsorted(self._rows["arrival"], np.uint64(end), side="right"))
            yield self._rows[:count]
            self._rows = self._rows[count:]


def _windows(streams: Sequence[StreamSource], file: str, findings: Findings) -> Iterator[np.ndarray]:
    """Yields the rows of all streams, sorted by window."""
    block = max(256, BUFFER_ROWS // max(1, len(streams)))
    cursors = [_Cursor(stream, number, block) for number, stream in enumerate(streams)]
    try:
        while cursors:
            starts = [(cursor, cursor.next()) for cursor in cursors]
            cursors = [cursor for cursor, start in starts if start is not None]
            if not cursors:
                return
            first = min(start for _, start in starts if start is not None)
            end = min(first + WINDOW - 1, (1 << 64) - 1)
            parts: list[np.ndarray] = []
            count = 0
            for cursor in cursors:
                for part in cursor.until(end):
                    parts.append(part)
                    count += len(part)
                    if count > WINDOW:
                        message = f"more than {WINDOW} records have arrival numbers from {first} to {end}"
                        findings.add("arrival-unique", file, f"{message}; the rest was not compared")
                        return
            yield np.concatenate(parts)
    except TraceFormatError as error:
        # The file changed since its streams were read.
        findings.add("readable", file, str(error))
