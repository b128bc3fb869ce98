"""The summary of a tapped leaf, made from the arrays that the device kept of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tracerec.keeping.reading import moments_at, told
from tracerec.keeping.specs import COUNTED, OUTSIDE
from tracerec.statistics import LeafSummary, evenly_spread, moments

if TYPE_CHECKING:
    from tracerec.keeping.reading import Kind

__all__ = ["KeptSummarizer", "SharedSummary"]

_NONFINITE = ("nan", "posinf", "neginf")

_BAD = {
    "counts": [COUNTED.index(name) for name in _NONFINITE],
    "outside": [OUTSIDE.index(name) for name in _NONFINITE],
}
"""Where parts count what is not finite."""


class SharedSummary:
    """What the arrays of one kind say together; each of them contributes by a `KeptSummarizer`.

    Memory does not depend on how many records there are: those alone are kept of which a summary has the mean.

    Args:
        kind: what was kept, with all its arrays.
        records: how many records will come.
        key: whether the leaf is a PRNG key.
    """

    def __init__(self, kind: Kind, records: int, *, key: bool = False) -> None:
        self.records = records
        self.picks = evenly_spread(records)
        self.taken: dict[int, list[np.ndarray]] = {place: [] for place in kind.places.values()}
        self.bad = np.zeros(3, np.int64)
        self._kind, self._key = kind, key

    def part(self, place: int) -> str:
        """Returns which part the array at a place is."""
        return next(part for part, at in self._kind.places.items() if at == place)

    def summary(self) -> LeafSummary:
        """Returns the summary; all arrays have seen all records."""
        nan, posinf, neginf = map(int, self.bad)
        if not self.records:
            return LeafSummary(0, 0, 0, 0, moments(np.empty(0)), ())
        found = told(self._kind, lambda place: np.concatenate(self.taken[place]), key=self._key)
        means: list[float | None] = [mean if math.isfinite(mean) else None for mean in found["mean"].tolist()]
        spark = tuple(means) if self._kind.keep.name == "summary" and not self._key else ()
        return LeafSummary(self.records, nan, posinf, neginf, moments_at(found, -1), spark)


class KeptSummarizer:
    """Takes one array of a `SharedSummary`; used as a `tracerec.statistics.Summarizer` is.

    Args:
        shared: the summary.
        place: the array's place in ``site.leaves``.
    """

    def __init__(self, shared: SharedSummary, place: int) -> None:
        self._shared = shared
        self._taken = shared.taken[place]
        self._bad = _BAD.get(shared.part(place))
        self._seen = 0

    def add(self, block: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Takes the next records, ``(n, *shape)``; what does not count the device has left out already.

        Raises:
            ValueError: these are more records than were announced.
        """
        del valid
        start, self._seen = self._seen, self._seen + len(block)
        if self._seen > self._shared.records:
            message = f"{self._seen} records for a summary of {self._shared.records}"
            raise ValueError(message)
        low, high = np.searchsorted(self._shared.picks, (start, self._seen))
        self._taken.append(block[self._shared.picks[low:high] - start])
        if self._bad is not None:
            self._shared.bad += block[..., self._bad].sum(axis=tuple(range(block.ndim - 1)), dtype=np.int64)

    def summary(self) -> LeafSummary:
        """Returns the summary of the leaf; raises ValueError when fewer records came than were announced."""
        if self._seen != self._shared.records:
            message = f"{self._seen} records for a summary of {self._shared.records}"
            raise ValueError(message)
        return self._shared.summary()
