"""Records that contradict each other: each arrival number once, in order, and each device's numbers rising with them.

That is so of what a recording wrote. It is not of values that no checksum covers, and of parts that are there twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.contract import StreamSource
    from tracerec.verifying.arrivals import Seen

__all__ = ["MAX_ROWS", "Sifted", "sift"]

MAX_ROWS = 1 << 23
"""Records compared with each other: 300 MB of their numbers. Of more, each stream's are compared alone."""

_BLOCK_ROWS = 1 << 16
_ROUNDS = 64

_FIELDS = np.dtype([("arrival", "<u8"), ("number", "<u8"), ("device", "<i4"), ("stream", "<i4"), ("row", "<i8")])


class Sifted:
    """The rows that are left of some streams.

    Attributes:
        runs: of each stream, ranges of rows ``(n, 2)`` in the order of arrival.
        repeated: how many rows of each stream have an arrival number that another row before had.
        wrong: how many rows of each stream contradict others in another way.
    """

    def __init__(self, streams: int) -> None:
        self.runs: list[np.ndarray] = [np.empty((0, 2), np.int64) for _ in range(streams)]
        self.repeated = [0] * streams
        self.wrong = [0] * streams


def sift(
    streams: Sequence[StreamSource],
    runs: Sequence[np.ndarray],
    attempts: Sequence[int] | None = None,
    seen: Seen | None = None,
) -> Sifted:
    """Returns which rows of streams go together.

    Args:
        streams: the streams.
        runs: of each, ranges of rows ``(n, 2)`` that can be read.
        attempts: the first arrival number of each attempt, in order, if rows whose device's number does not rise are
            wrong. None where a checksum covers them: then they are what was recorded.
        seen: arrival numbers of the files before this one.
    """
    found = Sifted(len(streams))
    counts = [int((ranges[:, 1] - ranges[:, 0]).sum()) for ranges in runs]
    together = [range(len(streams))] if sum(counts) <= MAX_ROWS else [range(n, n + 1) for n in range(len(streams))]
    for group in together:
        rows = _rows(streams, runs, group)
        good, repeated = _once(rows, seen)
        right = good if attempts is None else _rising(good, attempts)
        for number in group:
            mine = right["row"][right["stream"] == number]
            found.runs[number] = _ranges(mine)
            found.repeated[number] = int(np.count_nonzero(repeated == number))
            found.wrong[number] = counts[number] - len(mine) - found.repeated[number]
    return found


def _rows(streams: Sequence[StreamSource], runs: Sequence[np.ndarray], group: range) -> np.ndarray:
    """Returns the numbers of all rows, sorted by arrival; of equal ones the first stream's first."""
    parts: list[np.ndarray] = []
    for number in group:
        for first, last in runs[number].tolist():
            for start in range(first, last, _BLOCK_ROWS):
                stop = min(start + _BLOCK_ROWS, last)
                index = streams[number].index(start, stop)
                part = np.empty(len(index), _FIELDS)
                for name in ("arrival", "number", "device"):
                    part[name] = index[name]
                part["stream"], part["row"] = number, np.arange(start, stop)
                parts.append(part)
    rows = np.concatenate(parts) if parts else np.empty(0, _FIELDS)
    return rows[np.argsort(rows["arrival"], kind="stable")]


def _once(rows: np.ndarray, seen: Seen | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first row of each arrival number, of those not seen before, and the streams of the others."""
    again = np.zeros(len(rows), bool)
    again[1:] = rows["arrival"][1:] == rows["arrival"][:-1]
    if seen is not None:
        again |= seen.has(rows["arrival"])
    return rows[~again], rows["stream"][again]


def _rising(rows: np.ndarray, attempts: Sequence[int]) -> np.ndarray:
    """Returns the rows without those whose device's number does not rise, as few as can be seen to be wrong."""
    attempt = np.searchsorted(np.array(attempts, np.uint64), rows["arrival"], side="right")
    order = np.lexsort((rows["arrival"], attempt, rows["device"]))
    rows, attempt = rows[order], attempt[order]
    for _ in range(_ROUNDS):
        same = (rows["device"][1:] == rows["device"][:-1]) & (attempt[1:] == attempt[:-1])
        falls = np.flatnonzero(same & (rows["number"][1:] <= rows["number"][:-1]))
        if not len(falls):
            return rows[np.argsort(rows["arrival"], kind="stable")]
        keep = np.ones(len(rows), bool)
        keep[_wrong_of(rows["number"], same, falls)] = False
        rows, attempt = rows[keep], attempt[keep]
    # Nothing but noise.
    return rows[:0]


def _wrong_of(numbers: np.ndarray, same: np.ndarray, falls: np.ndarray) -> np.ndarray:
    """Returns which of each two rows that fall is wrong: the one without which its neighbours rise.

    Args:
        numbers: of all rows.
        same: whether a row and the next are of the same device and attempt.
        falls: the first rows of the pairs.
    """
    first, second = numbers[falls], numbers[falls + 1]
    before, behind = np.maximum(falls - 1, 0), np.minimum(falls + 2, len(numbers) - 1)
    no_before = (falls == 0) | ~same[before]
    no_behind = (falls + 2 >= len(numbers)) | ~same[np.minimum(falls + 1, len(same) - 1)]
    without_first = no_before | (numbers[before] < second)
    without_second = no_behind | (first < numbers[behind])
    return np.where(without_first & ~without_second, falls, falls + 1)


def _ranges(rows: np.ndarray) -> np.ndarray:
    """Returns rows as ranges, in the same order."""
    if not len(rows):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate([[0], breaks + 1])]
    stops = rows[np.concatenate([breaks, [len(rows) - 1]])] + 1
    return np.stack([starts, stops], axis=1)
