"""The measures of long rows of finite floats of one dtype: the case in which time counts, in the fewest passes.

`distances` and `measures` say what is found. The same is found here, number for number, in buffers that stay in the
processor's cache, and without the passes that a glance at the largest value rules out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing.ordinals import is_float

if TYPE_CHECKING:
    from tracerec.comparing.tolerances import Tolerance

__all__ = ["PIECE", "TINY", "Buffers", "Stretch", "fits"]

PIECE = 1 << 16
"""Elements at once. All buffers, 2.3 MB, stay in the third cache; in smaller pieces the calls themselves count."""

_NOWHERE = np.empty(0, np.intp)

TINY = 5e-324
"""What stands for a magnitude of 0 where one is divided by it."""


def fits(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Returns whether `Stretch` can be used for two dtypes: one float, of 16 bits or more."""
    return a == b and a.itemsize > 1 and is_float(a)


class Buffers:
    """What passes over a piece write into.

    Args:
        dtype: of both sides.
        size: elements of a piece.

    Attributes:
        wide: three of float64.
        narrow: two of float32; None for another dtype.
        words: of signed integers as wide as the dtype.
        mask: bools.
    """

    def __init__(self, dtype: np.dtype[Any], size: int) -> None:
        self.wide = np.empty((3, size))
        self.narrow = np.empty((2, size), dtype) if dtype == np.float32 else None
        self.words = np.empty(size, f"i{dtype.itemsize}")
        self.mask = np.empty(size, bool)


@dataclasses.dataclass(slots=True)
class Stretch:
    """The measures of one row so far.

    Attributes:
        tolerance: what counts as beyond.
        buffers: what is used while a piece is measured.
        differing: elements of different value.
        bits: elements of different bits.
        beyond: elements beyond tolerance.
        sums: of the absolute differences, then of the products of a with a, b with b, a with b, and of the squared
            differences.
        worst: the largest absolute difference, relative one, and ulps.
        places: where each of them is, -1: nothing differs.
        need: the least rtol and atol, as `measures` has them.
    """

    tolerance: Tolerance
    buffers: Buffers
    differing: int = 0
    bits: int = 0
    beyond: int = 0
    sums: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 5)
    worst: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 3)
    places: list[int] = dataclasses.field(default_factory=lambda: [-1] * 3)
    need: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 2)

    def add(self, a: np.ndarray, b: np.ndarray, left: int) -> bool:
        """Measures a piece of the row; returns False, and changes nothing, if anything in it is not finite.

        Args:
            a: ``(n,)`` of the first side, up to `PIECE` elements.
            b: ``(n,)`` of the second side.
            left: the place of its first element in the row.
        """
        first, second = (buffer[: len(a)] for buffer in self.buffers.wide[:2])
        np.copyto(first, a)
        np.copyto(second, b)
        products = np.dot(first, first), np.dot(second, second), np.dot(first, second)
        apart = np.abs(np.subtract(first, second, out=second), out=second)
        total = apart.sum()
        if not np.isfinite(total):
            return False
        for number, value in enumerate((total, *products, np.dot(apart, apart))):
            self.sums[number] += float(value)
        most = self._keep(0, apart, left)
        # Of equal values zeros alone can have two signs.
        across = self._distances(a, b, left) if most else np.flatnonzero(first == 0)
        self._ulps(a, b, left, across)
        if most > self.tolerance.atol or most > self.need[1]:
            self._excess(apart, first)
        return True

    def _distances(self, a: np.ndarray, b: np.ndarray, left: int) -> np.ndarray:
        """Finds relative differences; puts the larger magnitudes into the first buffer, the second being differences.

        Returns:
            Where signs may differ: where a difference is no less than the larger magnitude, and where both are 0.
        """
        larger, apart, scratch = (buffer[: len(a)] for buffer in self.buffers.wide)
        self._magnitudes(a, b, larger, scratch)
        relative = np.divide(apart, larger, out=scratch)
        worst = float(relative[relative.argmax()])
        across = _NOWHERE
        if not worst < 1:
            below = np.less(relative, 1, out=self.buffers.mask[: len(a)])
            across = np.flatnonzero(np.logical_not(below, out=below))
        if np.isnan(worst):
            # NaN is found before any number: somewhere both are 0.
            np.maximum(larger, TINY, out=larger)
            np.divide(apart, larger, out=relative)
        worst = self._keep(1, relative, left)
        atol = self.tolerance.atol
        # What is needed is no more than the relative difference, which mostly is no record.
        if worst > self.need[0]:
            if atol:
                np.subtract(apart, atol, out=scratch)
                np.divide(scratch, larger, out=scratch)
                worst = float(scratch.max())
            self.need[0] = max(self.need[0], worst)
        return across

    def _magnitudes(self, a: np.ndarray, b: np.ndarray, larger: np.ndarray, scratch: np.ndarray) -> None:
        if self.buffers.narrow is None:
            np.abs(larger, out=larger)
            np.copyto(scratch, b)
            np.maximum(larger, np.abs(scratch, out=scratch), out=larger)
            return
        # In float32 a pass takes half the time.
        one, other = (buffer[: len(a)] for buffer in self.buffers.narrow)
        np.maximum(np.abs(a, out=one), np.abs(b, out=other), out=one)
        np.copyto(larger, one)

    def _ulps(self, a: np.ndarray, b: np.ndarray, left: int, across: np.ndarray) -> None:
        """Counts what differs and notes the most ulps; leaves all of them in the buffer, as they are or negative.

        Args:
            a: the first side.
            b: the second side.
            left: the place of their first element.
            across: where signs may differ.
        """
        apart = self.buffers.words[: len(a)]
        one, other = a.view(apart.dtype), b.view(apart.dtype)
        # Of one sign, the bits themselves count, and their difference fits the signed type.
        np.subtract(one, other, out=apart)
        if len(across):
            across = across[(one[across] ^ other[across]) < 0]
        if len(across):
            self._across(one, other, left, across)
            return
        differing = int(np.count_nonzero(apart))
        self.differing += differing
        self.bits += differing
        above, below = int(apart.argmax()), int(apart.argmin())
        up, down = int(apart[above]), -int(apart[below])
        self._note(2, max(up, down), left + min((above, below) if up == down else (above,) if up > down else (below,)))

    def _across(self, one: np.ndarray, other: np.ndarray, left: int, places: np.ndarray) -> None:
        apart = self.buffers.words[: len(one)]
        ulps, top = apart.view(f"u{apart.itemsize}"), np.iinfo(apart.dtype).max
        np.abs(apart, out=apart)
        # Of two signs, zero lies between. A zero of each sign differs in its bits alone.
        between = (one[places] & top).astype(ulps.dtype) + (other[places] & top).astype(ulps.dtype)
        ulps[places] = between
        differing = int(np.count_nonzero(ulps))
        self.differing += differing
        self.bits += differing + len(between) - int(np.count_nonzero(between))
        self._keep(2, ulps, left)

    def _excess(self, apart: np.ndarray, larger: np.ndarray) -> None:
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        # Beyond depends on sums that are rounded as in `Tolerance`.
        excess = apart
        if rtol:
            excess = np.multiply(larger, -rtol, out=larger)
            excess += apart
        highest = float(excess[excess.argmax()])
        self.need[1] = max(self.need[1], highest)
        if highest > atol:
            beyond = np.greater(excess, atol, out=self.buffers.mask[: len(apart)])
            if self.tolerance.ulp:
                words = self.buffers.words[: len(apart)]
                beyond &= np.abs(words, out=words).view(f"u{words.itemsize}") > self.tolerance.ulp
            self.beyond += int(np.count_nonzero(beyond))

    def _keep(self, number: int, values: np.ndarray, left: int) -> float:
        place = int(values.argmax())
        largest = float(values[place])
        self._note(number, largest, left + place)
        return largest

    def _note(self, number: int, largest: float, place: int) -> None:
        if largest > self.worst[number]:
            self.worst[number], self.places[number] = largest, place
