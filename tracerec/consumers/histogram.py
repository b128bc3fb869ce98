"""Histograms of each tap over all its records, without knowing beforehand how far values go."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.consumers.running import Key, key_of
from tracerec.consuming import TapConsumer
from tracerec.statistics import finite_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.consuming import Firing

__all__ = ["Counter", "Counts", "Histogram"]


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """A histogram.

    Attributes:
        edges: the edges of the bins, ascending, ``(bins + 1,)`` of float64. A bin holds its lower edge; the last
            holds both.
        counts: elements in each bin, ``(bins,)`` of int64.
        below: finite elements below the first edge.
        above: finite elements above the last.
        not_finite: NaN and infinities.
    """

    edges: np.ndarray
    counts: np.ndarray
    below: int = 0
    above: int = 0
    not_finite: int = 0


class Histogram(TapConsumer):
    """Counts the values of each tap, leaf and chain of transforms in bins.

    Without edges, bins are as wide as the smallest power of two with which ``bins`` of them reach from the smallest
    value to the largest. When a value lies outside, neighbours are joined: counts stay exact, whatever the order of
    the records. Complex numbers count by their magnitude.

    Args:
        bins: the most bins.
        edges: the edges of the bins, if they are known: ascending numbers.

    Raises:
        ValueError: there are fewer than two bins, or the edges are not at least two ascending numbers.

    Example:
        >>> import numpy as np
        >>> histogram = Histogram(bins=4)
        >>> histogram(np.array([0.0, 1.0, 1.5]), tap="act")
        >>> histogram(np.array([7.0, np.nan]), tap="act")
        >>> counts = histogram["act"]
        >>> counts.edges.tolist(), counts.counts.tolist(), counts.not_finite
        ([0.0, 2.0, 4.0, 6.0, 8.0], [3, 0, 0, 1], 1)
    """

    def __init__(self, bins: int = 64, *, edges: Sequence[float] | np.ndarray | None = None) -> None:
        Counter(bins, edges)  # so that wrong arguments are told here
        self._bins, self._edges = bins, edges
        self._counters: dict[Key, Counter] = {}

    def take(self, firing: Firing) -> None:
        """Counts a record."""
        for path, elements in firing.counted():
            self._counters.setdefault(key_of(firing, path), Counter(self._bins, self._edges)).add(elements)

    @property
    def results(self) -> dict[Key, Counts]:
        """The histograms so far."""
        return {key: counter.counts() for key, counter in self._counters.items()}

    def __getitem__(self, key: str | tuple[Any, ...]) -> Counts:
        """Returns the histogram of a tap, or of a ``Key(tap, leaf, transforms)``, of which the end may be left out.

        Raises:
            KeyError: no record of it has come.
        """
        return self._counters[Key(key) if isinstance(key, str) else Key(*key)].counts()


_LARGEST = float(np.finfo(np.float64).max)


class Counter:
    """Counts elements of arrays in bins; `Histogram` says in which."""

    def __init__(self, bins: int = 64, edges: Sequence[float] | np.ndarray | None = None) -> None:
        if edges is None and bins < 2:  # noqa: PLR2004 - values on both sides of zero need two
            message = f"a histogram needs 2 bins or more, not {bins}"
            raise ValueError(message)
        self._edges = None if edges is None else _checked(edges)
        self._bins = bins
        self._below = self._above = self._not_finite = 0
        # Bin number i goes from i * 2**exponent to (i + 1) * 2**exponent; counts begin at bin `first`.
        self._exponent = 0
        self._first = 0
        self._counts = np.zeros(0 if self._edges is None else len(self._edges) - 1, np.int64)
        self._range: tuple[float, float] | None = None

    def add(self, array: np.ndarray) -> None:
        """Counts the elements of an array of any shape and dtype."""
        for values, others in finite_values(array):
            self._not_finite += others
            if not values.size:
                continue
            if self._edges is None:
                self._add(values)
            else:
                self._counts += np.histogram(values, self._edges)[0]
                self._below += int(np.count_nonzero(values < self._edges[0]))
                self._above += int(np.count_nonzero(values > self._edges[-1]))

    def counts(self) -> Counts:
        """Returns the histogram so far; one without elements has no bins."""
        if self._edges is None:
            numbers = np.arange(self._first, self._first + len(self._counts) + 1, dtype=np.float64)
            with np.errstate(over="ignore"):
                # The last edge can be 2**1024, which float64 lacks.
                edges = np.clip(np.ldexp(numbers, self._exponent), -_LARGEST, _LARGEST)
        else:
            edges = self._edges
        return Counts(edges, self._counts.copy(), self._below, self._above, self._not_finite)

    def _add(self, values: np.ndarray) -> None:
        low, high = float(values.min()), float(values.max())
        if self._range is not None:
            low, high = min(low, self._range[0]), max(high, self._range[1])
        self._range = low, high
        self._widen(low, high)
        numbers = np.floor(np.ldexp(values, -self._exponent)).astype(np.int64)
        # What underflows is still below zero.
        numbers[(values < 0) & (numbers == 0)] = -1
        self._counts += np.bincount(numbers - self._first, minlength=len(self._counts))

    def _widen(self, low: float, high: float) -> None:
        """Makes bins as wide, and as many, as the range needs."""
        exponent = (
            max(_smallest_exponent(low, high), self._exponent) if len(self._counts) else _smallest_exponent(low, high)
        )
        while _number(high, exponent) - _number(low, exponent) >= self._bins:
            exponent += 1
        first = _number(low, exponent)
        counts = np.zeros(_number(high, exponent) - first + 1, np.int64)
        if len(self._counts):
            old = self._first + np.arange(len(self._counts))
            np.add.at(counts, (old >> min(exponent - self._exponent, 63)) - first, self._counts)
        self._exponent, self._first, self._counts = exponent, first, counts


def _smallest_exponent(low: float, high: float) -> int:
    """Returns the exponent of bins of which float64 can still tell the numbers."""
    return math.frexp(max(abs(low), abs(high)))[1] - 53 if low or high else -1074


def _number(value: float, exponent: int) -> int:
    number = math.floor(math.ldexp(value, -exponent))
    return -1 if value < 0 and not number else number


def _checked(edges: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(edges, np.float64)
    if array.ndim != 1 or len(array) < 2 or not (np.diff(array) > 0).all():  # noqa: PLR2004
        message = "the edges of a histogram are two or more ascending numbers"
        raise ValueError(message)
    return array
