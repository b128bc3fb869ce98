"""Attempts: which process's turn a record is of, and which records a later turn has superseded.

A recording that was continued (``record(mode="a")``) holds the records of several processes. Steps that a later one
recorded again are shown in its version; the others are still there, in ``trace.raw``.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.model import FLAG_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracerec.formats.contract import StreamSource

__all__ = ["Attempts"]

_ROWS = 1 << 16


class Attempts:
    """The attempts of one trace.

    Args:
        attempts: as `tracerec.formats.contract.RunInfo` has them, the oldest first.
        streams: all streams of the trace.
    """

    def __init__(self, attempts: Sequence[Mapping[str, Any]], streams: Sequence[StreamSource]) -> None:
        self._first = np.array([int(attempt["first_arrival"]) for attempt in attempts], np.uint64)
        self._streams = streams

    @property
    def newest(self) -> int:
        """The number of the newest attempt."""
        return len(self._first) - 1

    def number(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of each index row's attempt, from 0: ``(n,)`` of int64."""
        return np.maximum(np.searchsorted(self._first, rows["arrival"], side="right") - 1, 0)

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """Returns which index rows no later attempt has superseded: ``(n,)`` of bool.

        An attempt supersedes the steps from its first to its last. Records without a step are never superseded.
        """
        number, stepped = self.number(rows), (rows["flags"] & FLAG_STEP) != 0
        superseded = np.zeros(len(rows), bool)
        for attempt, steps in enumerate(self._steps):
            if steps is not None:
                again = (rows["step"] >= steps[0]) & (rows["step"] <= steps[1])
                superseded |= (number < attempt) & again
        return ~(superseded & stepped)

    @cached_property
    def _steps(self) -> list[tuple[int, int] | None]:
        """The first and the last step of each attempt. All index tables are read for it."""
        found: list[tuple[int, int] | None] = [None] * len(self._first)
        for stream in self._streams:
            for start in range(0, stream.records, _ROWS):
                rows = stream.index(start, min(start + _ROWS, stream.records))
                rows = rows[(rows["flags"] & FLAG_STEP) != 0]
                numbers = self.number(rows)
                for number in np.unique(numbers).tolist():
                    steps = rows["step"][numbers == number]
                    low, high = int(steps.min()), int(steps.max())
                    known = found[number]
                    found[number] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))
        return found
