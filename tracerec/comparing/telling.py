"""How much the records of two runs differ, told by what was kept of them: fingerprints, summaries, histograms.

Lane by lane. Digests, counts and bins must be equal whatever the tolerance, and so must the smallest and the largest
element. A mean, a standard deviation and the two norms, in units of an element (l1 over the number of elements, l2 over
its root), may differ by ``atol + rtol * rms``, where rms is the larger root mean square of both sides: as far as
they can where all elements are within tolerance. What one side computes of the whole leaf is rounded otherwise than on
a device, and less than the default tolerance of the numbers that the device stored does not count.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing.distances import lower_precision
from tracerec.comparing.kept import KeptSide, lanes_alike
from tracerec.comparing.measures import MEASURES
from tracerec.comparing.ordinals import is_float, mantissa_bits
from tracerec.comparing.reading import NotComparable
from tracerec.comparing.tolerances import default
from tracerec.keeping.bins import is_whole, is_wide
from tracerec.keeping.digests import fingerprint
from tracerec.keeping.reading import NOT_KNOWN
from tracerec.keeping.specs import COUNTED
from tracerec.keeping.summaries import summary_columns
from tracerec.statistics import moments_by_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracerec.comparing.tolerances import Tolerance

__all__ = ["Asked", "Told", "tell"]

_RANGE = ("min", "max")
_MEASURED = ("mean", "std", "l1", "l2")


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """Records of a leaf that are to be compared.

    Attributes:
        kind: ``"fingerprint"``, ``"summary"`` or ``"histogram"``.
        a: the first side.
        b: the second side.
        numbers: the numbers of the records in each, ``(n,)``.
        tolerance: what counts as beyond, of the tapped leaf's elements.
        cast: whether different dtypes are compared.
    """

    kind: str
    a: KeptSide
    b: KeptSide
    numbers: tuple[np.ndarray, np.ndarray]
    tolerance: Tolerance
    cast: bool

    @property
    def sides(self) -> tuple[tuple[KeptSide, np.ndarray], tuple[KeptSide, np.ndarray]]:
        """Both sides, with the numbers of the records in each."""
        return (self.a, self.numbers[0]), (self.b, self.numbers[1])

    @property
    def computed(self) -> bool:
        """Whether a side has the whole leaf."""
        return self.a.is_whole or self.b.is_whole


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Told:
    """What was found of some records.

    Attributes:
        rows: their measures, ``(n,)`` of `tracerec.comparing.measures.MEASURES`; ``size`` counts lanes, or statistics.
        beyond: which lanes differ in what, ``(n, *lanes)`` of bool by statistic.
        values: both sides' statistics, ``(n, *lanes)``, by name; NaN (or -1, of counts) for what a side does not tell.
    """

    rows: np.ndarray
    beyond: dict[str, np.ndarray]
    values: dict[str, tuple[np.ndarray, np.ndarray]]


def tell(asked: Asked) -> Told:
    """Returns how much some records differ.

    Raises:
        NotComparable: lanes do not fit together, or a record cannot be read.
    """
    found = _KINDS[asked.kind](asked)
    found.rows["abs_at"] = found.rows["rel_at"] = found.rows["ulp_at"] = -1
    return found


def _fingerprints(asked: Asked) -> Told:
    lanes_alike(asked.a, asked.b, asked.kind)
    one, other = (_digests(side, numbers) for side, numbers in asked.sides)
    _check(one[0], other[0])
    # Where other elements count, whatever the digests, it is not the bits that differ.
    some = one[2] | other[2]
    lone = np.where(one[2], one[1][..., 0], 0) != np.where(other[2], other[1][..., 0], 0)
    beyond = {"digest": (one[0] != other[0]) & some}
    values = {"digest": (one[0], other[0])}
    for place, name in enumerate(COUNTED):
        counts = one[1][..., place], other[1][..., place]
        values[name] = counts
        beyond[name] = (counts[0] != counts[1]) & (counts[0] >= 0) & (counts[1] >= 0) & some
    rows = _rows(some, lone, beyond)
    return Told(rows, beyond, values)


def _digests(side: KeptSide, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns digests ``(n, *lanes)`` of uint64, counts ``(n, *lanes, 6)``, and which lanes count."""
    if not side.is_whole:
        words, counts = side.part("digest", numbers), side.part("counts", numbers).astype(np.int64)
        return _joined(words), counts, side.live("digest", numbers) & (counts[..., 0] > 0)
    array, valid = side.whole(numbers)
    digest = _joined(fingerprint(array, 1 + side.lanes, valid))
    own = tuple(range(1 + side.lanes, array.ndim))
    count = np.full(digest.shape, _size(array, own)) if valid is None else valid.sum(axis=own, dtype=np.int64)
    counts = np.full((*digest.shape, len(COUNTED)), NOT_KNOWN, np.int64)
    counts[..., 0] = count
    return digest, counts, count > 0


def _joined(words: np.ndarray) -> np.ndarray:
    wide = words.astype(np.uint64)
    return (wide[..., 1] << np.uint64(32)) | wide[..., 0]


def _summaries(asked: Asked) -> Told:
    # Of all lanes together where one side has them apart.
    together = asked.a.lanes != asked.b.lanes and not asked.computed
    if not together:
        lanes_alike(asked.a, asked.b, asked.kind)
    one, other = (_statistics(side, numbers, together=together) for side, numbers in asked.sides)
    _check(one["count"], other["count"])
    values = {name: (one[name], other[name]) for name in (*COUNTED, *_RANGE, *_MEASURED)}
    some = (one["count"] > 0) | (other["count"] > 0)
    beyond = {name: _unequal(*values[name], some) for name in COUNTED}
    apart = _Apart(asked, values)
    # A tolerance is of elements, and the smallest is one. Integers have one only where it was asked for.
    strict = not asked.cast and is_whole(asked.a.dtype.name)
    for name in _RANGE:
        beyond[name] = apart.add(name, exact=strict) & some
    for name in _MEASURED:
        beyond[name] = apart.add(name, exact=False) & some
    if not (together or asked.cast) and is_wide(asked.a.dtype.name) and asked.a.dtype.kind in "iu":
        for name, ends in _wide(asked).items():
            values[name] = ends
            beyond[name] = (ends[0] != ends[1]) & some
    rows = _rows(some, one["count"] != other["count"], beyond)
    apart.fill(rows, some)
    rows["beyond"] = sum(_reduced(mask.astype(np.int64), np.add) for mask in beyond.values())
    rows["differing"] += sum(_reduced(beyond[name].astype(np.int64), np.add) for name in COUNTED)
    rows["differing"] = rows["bits"] = np.maximum(rows["differing"], rows["beyond"])
    exact = [beyond[name] for name in (*COUNTED, *(_RANGE if strict else ()))]
    lost = np.any([_any(mask) for mask in exact], axis=0)
    rows["need_rtol"][lost] = rows["need_atol"][lost] = np.inf
    return Told(rows, beyond, values)


def _wide(asked: Asked) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the smallest and the largest element of integers that float64 does not tell apart."""
    ends = [_ends(side, numbers) for side, numbers in asked.sides]
    return {name: (ends[0][..., place], ends[1][..., place]) for place, name in enumerate(_RANGE)}


def _ends(side: KeptSide, numbers: np.ndarray) -> np.ndarray:
    if not side.is_whole:
        return side.part("range", numbers)
    array, valid = side.whole(numbers)
    own, limits = tuple(range(1 + side.lanes, array.ndim)), np.iinfo(array.dtype)
    there = np.True_ if valid is None else valid
    low = np.where(there, array, array.dtype.type(limits.max)).min(axis=own, initial=limits.max)
    high = np.where(there, array, array.dtype.type(limits.min)).max(axis=own, initial=limits.min)
    # Where nothing counts, a device says 0.
    return np.where((low <= high)[..., None], np.stack([low, high], axis=-1), 0)


def _unequal(a: np.ndarray, b: np.ndarray, some: np.ndarray) -> np.ndarray:
    return (a != b) & (a != NOT_KNOWN) & (b != NOT_KNOWN) & some


def _statistics(side: KeptSide, numbers: np.ndarray, *, together: bool) -> dict[str, np.ndarray]:
    """Returns the statistics of each lane, or of all together; NaN, or -1, for what the whole leaf's do not tell."""
    if not side.is_whole:
        parts = (side.part(name, numbers) for name in ("counts", "range", "moments"))
        found = summary_columns(*parts, lanes=side.lanes if together else 0)
        if not together:
            found["count"] = np.where(side.live("counts", numbers), found["count"], 0)
        return found
    array, valid = side.whole(numbers)
    shape, own = array.shape[: 1 + side.lanes], array.shape[1 + side.lanes :]
    count = int(np.prod(shape, dtype=np.int64))
    flat = np.ascontiguousarray(array).reshape(count, *own)
    if valid is None:
        found = moments_by_row(flat)
    else:
        mask = np.ascontiguousarray(valid).reshape(count, *own)
        found = moments_by_row(np.empty((count, 0), array.dtype))
        for i in range(count):
            for name, value in moments_by_row(flat[i, ...][mask[i, ...]][None]).items():
                found[name][i] = value[0]
    found["subnormals"] = np.full(count, NOT_KNOWN, np.int64)
    found["l1"] = np.full(count, np.nan)
    return {name: values.reshape(shape) for name, values in found.items()}


class _Apart:
    """How far statistics are apart, in units of an element."""

    def __init__(self, asked: Asked, values: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
        a, b = asked.a.dtype, asked.b.dtype
        self._values = values
        lowest = [sum(values[name][side] for name in ("nan", "posinf", "neginf")) for side in (0, 1)]
        self._count = [np.maximum(values["count"][side] - lowest[side], 1) for side in (0, 1)]
        rms = [np.nan_to_num(values["l2"][side], posinf=0.0) / np.sqrt(self._count[side]) for side in (0, 1)]
        self._scale = np.maximum(*rms)
        stored = "float64" if is_wide(a.name) or is_wide(b.name) else "float32"
        self._rounded = default(np.dtype(stored)).rtol if asked.computed else 0.0
        self._computed = asked.computed
        self._rtol, self._atol = _allowed(asked.tolerance, lower_precision(a, b) or a)
        shape = self._scale.shape
        self._most = {name: np.zeros(shape) for name in ("abs", "rel", "rtol", "atol")}
        self._sums = {name: np.zeros(shape) for name in ("aa", "bb", "ab", "dd", "abs")}
        self._number = 0
        self._differing = np.zeros(shape, np.int64)

    def add(self, name: str, *, exact: bool) -> np.ndarray:
        """Takes a statistic; returns which lanes are beyond tolerance in it."""
        a, b = self._in_elements(name)
        if name == "l1" and self._computed:
            # The statistics of whole leaves do not tell it.
            return np.zeros(a.shape, bool)
        with np.errstate(invalid="ignore"):
            apart = np.abs(a - b)
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.where(np.isnan(apart), np.inf, apart))
        # The smallest and the largest are elements, which may be apart by what such elements may be.
        scale = np.fmax(self._scale, np.fmax(np.abs(a), np.abs(b))) if name in _RANGE else self._scale
        if not exact:
            apart = np.where(apart <= self._rounded * scale, 0.0, apart)
        self._note(a, b, apart)
        if exact:
            return apart > 0
        self._most["atol"] = np.maximum(self._most["atol"], apart - self._rtol * scale)
        need = np.divide(apart - self._atol, scale, out=np.zeros_like(apart), where=scale > 0)
        self._most["rtol"] = np.maximum(self._most["rtol"], np.where((scale == 0) & (apart > 0), np.inf, need))
        return apart > self._atol + self._rtol * scale

    def fill(self, rows: np.ndarray, some: np.ndarray) -> None:
        """Writes what was found of the lanes that count into rows of measures."""
        for name, field in (("abs", "max_abs"), ("rel", "max_rel"), ("rtol", "need_rtol"), ("atol", "need_atol")):
            rows[field] = _reduced(np.where(some, self._most[name], 0.0), np.maximum)
        for name, field in (("aa", "aa"), ("bb", "bb"), ("ab", "ab"), ("dd", "dd"), ("abs", "sum_abs")):
            rows[field] = _reduced(np.where(some, self._sums[name], 0.0), np.add)
        rows["differing"] = _reduced(np.where(some, self._differing, 0), np.add)
        rows["size"] *= len(COUNTED) + self._number
        rows["count"] = rows["size"]

    def _in_elements(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        a, b = self._values[name]
        if name == "l1":
            return a / self._count[0], b / self._count[1]
        return (a / np.sqrt(self._count[0]), b / np.sqrt(self._count[1])) if name == "l2" else (a, b)

    def _note(self, a: np.ndarray, b: np.ndarray, apart: np.ndarray) -> None:
        self._number += 1
        self._differing += apart > 0
        self._most["abs"] = np.maximum(self._most["abs"], apart)
        relative = np.divide(apart, self._scale, out=np.zeros_like(apart), where=self._scale > 0)
        relative[(self._scale == 0) & (apart > 0)] = np.inf
        self._most["rel"] = np.maximum(self._most["rel"], relative)
        finite = np.isfinite(a) & np.isfinite(b)
        one, other, away = (np.where(finite, x, 0.0) for x in (a, b, apart))
        with np.errstate(over="ignore"):
            products = {"aa": one * one, "bb": other * other, "ab": one * other, "dd": away * away, "abs": away}
            for field, product in products.items():
                self._sums[field] += product


def _allowed(tolerance: Tolerance, dtype: np.dtype[Any]) -> tuple[float, float]:
    """Returns rtol and atol, in which ulp is an rtol: k units of the last place are at most k times the epsilon."""
    if tolerance.exact:
        return 0.0, 0.0
    part = np.dtype("float64" if dtype.itemsize == 16 else "float32") if dtype.kind == "c" else dtype  # noqa: PLR2004 - complex128
    ulp = tolerance.ulp * 2.0 ** -mantissa_bits(part) if tolerance.ulp and is_float(part) else 0.0
    return max(tolerance.rtol, ulp), tolerance.atol


def _histograms(asked: Asked) -> Told:
    lanes_alike(asked.a, asked.b, asked.kind)
    some = [side.live("outside", numbers) for side, numbers in asked.sides]
    _check(*some)
    beyond: dict[str, np.ndarray] = {}
    values: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for part in asked.a.parts:
        one, other = (side.part(part, numbers) for side, numbers in asked.sides)
        _check(one, other)
        beyond[part] = (one != other).any(axis=-1) & (some[0] | some[1])
        values[part] = one, other
    return Told(_rows(some[0] | some[1], some[0] ^ some[1], beyond), beyond, values)


def _check(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape[1:] != b.shape[1:]:
        message = f"lanes, or bins, of shape {a.shape[1:]} in one run and of shape {b.shape[1:]} in the other"
        raise NotComparable(message)


def _rows(some: np.ndarray, lone: np.ndarray, beyond: dict[str, np.ndarray]) -> np.ndarray:
    """Returns rows in which lanes are counted, without measures."""
    rows = np.zeros(len(some), MEASURES)
    each = np.any(list(beyond.values()), axis=0)
    rows["size"] = _reduced(some.astype(np.int64), np.add)
    rows["differing"] = rows["bits"] = rows["beyond"] = _reduced(each.astype(np.int64), np.add)
    rows["lanes"] = _reduced(lone.astype(np.int64), np.add)
    for name in ("nan", "posinf", "neginf"):
        if name in beyond:
            rows[name] = _reduced(beyond[name].astype(np.int64), np.add)
    for name in ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol"):
        rows[name] = np.nan
    return rows


def _any(mask: np.ndarray) -> np.ndarray:
    return _reduced(mask, np.logical_or)


def _reduced(values: np.ndarray, by: np.ufunc) -> np.ndarray:
    """Returns a number a record of those of its lanes."""
    flat = values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))
    return by.reduce(flat, axis=1, initial=0)


def _size(array: np.ndarray, axes: tuple[int, ...]) -> int:
    return int(np.prod([array.shape[axis] for axis in axes], dtype=np.int64))


_KINDS: dict[str, Callable[[Asked], Told]] = {
    "fingerprint": _fingerprints,
    "summary": _summaries,
    "histogram": _histograms,
}
