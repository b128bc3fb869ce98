"""How much the records of two runs differ: every measure of a record, any dtype against any.

A block of records is measured at once, row by row and in pieces that stay in the processor's cache. Distances are
exact for integers and in float64 for the rest, complex numbers are compared part by part, and what is not finite is
matched by place: NaN (or an infinity) at one place of both is equal, on one side only it is an infinite difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing.distances import distances
from tracerec.comparing.stretches import PIECE, TINY, Buffers, Stretch, fits
from tracerec.comparing.tolerances import Tolerance

if TYPE_CHECKING:
    from tracerec.comparing.distances import Distances

__all__ = ["MEASURES", "cosine", "measure", "rel_l2", "snr_db", "value_of"]

_VALUE = 16
"""Bytes of the widest element, complex128."""

MEASURES = np.dtype(
    [
        ("size", "<i8"),  # elements compared: those that count on both sides
        ("differing", "<i8"),  # elements of different value
        ("bits", "<i8"),  # elements of different bits, NaN against NaN apart
        ("beyond", "<i8"),  # elements beyond tolerance
        ("nan", "<i8"),  # elements that are NaN on one side only
        ("posinf", "<i8"),  # likewise +Inf
        ("neginf", "<i8"),  # likewise -Inf
        ("lanes", "<i8"),  # elements that count on one side only
        ("max_abs", "<f8"),
        ("max_rel", "<f8"),  # relative to the larger of the two magnitudes; 0 where both are 0
        ("max_ulp", "<f8"),  # NaN where the dtypes have no common ulp
        ("abs_at", "<i8"),  # flat index of the largest difference, -1 where nothing differs
        ("rel_at", "<i8"),
        ("ulp_at", "<i8"),
        ("abs_a", "u1", (_VALUE,)),  # the bytes of the element there, see `value_of`
        ("abs_b", "u1", (_VALUE,)),
        ("rel_a", "u1", (_VALUE,)),
        ("rel_b", "u1", (_VALUE,)),
        ("ulp_a", "u1", (_VALUE,)),
        ("ulp_b", "u1", (_VALUE,)),
        ("sum_abs", "<f8"),  # of absolute differences, where both sides are finite, as the four sums below
        ("count", "<i8"),  # how many parts these sums are over
        ("aa", "<f8"),
        ("bb", "<f8"),
        ("ab", "<f8"),
        ("dd", "<f8"),
        ("need_rtol", "<f8"),  # the least rtol that would have passed, the atol being as it is
        ("need_atol", "<f8"),  # the least atol that would have passed, the rtol being as it is
    ]
)
"""The measures of one record and leaf."""

_PIECE = 8192
"""Elements measured at once: a dozen float64 arrays of this size stay in a core's second cache."""

_LONG = 8192
"""Elements of a row that is measured by itself where it can be."""

_HEAD = 4096
"""Words that are compared before all are: what differs mostly does so early."""

_NUDGE = 1 + 2.0**-50
"""What makes a least rtol pass although its product is rounded."""


def measure(
    a: np.ndarray,
    b: np.ndarray,
    tolerance: Tolerance | None = None,
    *,
    valid: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
    key: bool = False,
) -> np.ndarray:
    """Returns the measures of each row of two blocks.

    Args:
        a: ``(n, *shape)``, of any dtype.
        b: ``(n, *shape)``, of any dtype.
        tolerance: what counts as beyond; None: any difference.
        valid: which elements of each side count, bools that broadcast to the block; None: all.
        key: whether the elements are PRNG key data, in which the size of a difference means nothing.

    Returns:
        ``(n,)`` of `MEASURES`.

    Example:
        >>> row = measure(np.array([[0, 255]], np.uint8), np.array([[1, 255]], np.uint8))[0]
        >>> int(row["differing"]), float(row["max_abs"]), int(row["abs_at"])
        (1, 1.0, 0)
    """
    tolerance = tolerance or Tolerance(0.0, 0.0, 0)
    flat_a, flat_b = _flat(a), _flat(b)
    out = np.zeros(len(a), MEASURES)
    out["abs_at"] = out["rel_at"] = out["ulp_at"] = -1
    out["size"] = flat_a.shape[1]
    if any(mask is not None for mask in valid):
        flat_a, flat_b = _masked(out, a.shape, flat_a, flat_b, valid)
    same = flat_a.dtype == flat_b.dtype
    rows = _different(flat_a, flat_b) if same else np.arange(len(out))
    if flat_a.shape[1] and len(rows):
        if len(rows) == len(out):
            _Measured(out, flat_a, flat_b, tolerance, key=key)
        else:
            out[rows] = _Measured(out[rows], flat_a[rows], flat_b[rows], tolerance, key=key).rows
    return out


def cosine(rows: np.ndarray) -> np.ndarray:
    """Returns the cosine between both sides of each row: 1 for equal bits and for two zeros, 0 if one is zero."""
    norms = np.sqrt(rows["aa"]) * np.sqrt(rows["bb"])
    equal = (rows["dd"] == 0) & (rows["aa"] == rows["bb"])
    # Squares that overflow leave no cosine.
    with np.errstate(invalid="ignore"):
        ratio = np.divide(rows["ab"], norms, out=np.zeros(len(rows)), where=norms > 0)
    return np.where(equal, 1.0, np.clip(ratio, -1.0, 1.0))


def rel_l2(rows: np.ndarray) -> np.ndarray:
    """Returns the norm of the difference over that of the first side; infinite where only that is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rows["dd"] == 0, 0.0, np.sqrt(rows["dd"]) / np.sqrt(rows["aa"]))


def snr_db(rows: np.ndarray) -> np.ndarray:
    """Returns the signal-to-noise ratio in decibels, the difference being the noise; infinite where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rows["dd"] == 0, np.inf, 10 * np.log10(rows["aa"] / rows["dd"]))


def value_of(stored: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Returns an element kept in a row of measures as a Python number, exactly.

    Args:
        stored: a field such as ``row["abs_a"]``.
        dtype: the dtype of that side.
    """
    item = np.ascontiguousarray(stored)[: dtype.itemsize].view(dtype)[0]
    if dtype.kind == "V" or dtype.name.startswith(("bfloat", "float")):
        return float(item)
    return int(item) if dtype.name.startswith(("int", "uint")) else item.item()


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(len(array), int(np.prod(array.shape[1:], dtype=np.int64)))


def _different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns which rows differ in any bit."""
    nbytes = a.shape[1] * a.dtype.itemsize
    word = next(np.dtype(f"u{width}") for width in (8, 4, 2, 1) if nbytes % width == 0)
    a, b = a.view(word), b.view(word)
    if _is_single(a):
        return np.flatnonzero(a[:, 0] != b[:, 0])
    different = (a[:, :_HEAD] != b[:, :_HEAD]).any(axis=1)
    if a.shape[1] > _HEAD:
        for row in np.flatnonzero(~different).tolist():
            different[row] = not np.array_equal(a[row], b[row])
    return np.flatnonzero(different)


def _bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns which elements of two arrays of one dtype differ in any bit."""
    width = a.dtype.itemsize
    if width < _VALUE:
        word = np.dtype(f"u{width}")
        return a.view(word) != b.view(word)
    halves = np.ascontiguousarray(a).view(np.uint64) != np.ascontiguousarray(b).view(np.uint64)
    return halves.reshape(len(a), -1, 2).any(axis=2)


def _masked(
    out: np.ndarray,
    shape: tuple[int, ...],
    a: np.ndarray,
    b: np.ndarray,
    valid: tuple[np.ndarray | None, np.ndarray | None],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both sides with zeros where an element does not count; counts those that do in ``out``."""
    masks = [_flat(np.broadcast_to(True if mask is None else mask, shape)) for mask in valid]
    both = masks[0] & masks[1]
    out["size"] = both.sum(axis=1)
    out["lanes"] = (masks[0] ^ masks[1]).sum(axis=1)
    return np.where(both, a, np.zeros((), a.dtype)), np.where(both, b, np.zeros((), b.dtype))


class _Measured:
    """The measures of rows that are not equal bit for bit, piece by piece.

    Attributes:
        rows: the measures so far.
    """

    def __init__(
        self,
        rows: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        tolerance: Tolerance,
        *,
        key: bool,
    ) -> None:
        self.rows = rows
        self._tolerance = tolerance
        self._worst = {name: np.zeros(len(rows)) for name in ("abs", "rel", "ulp")}
        self._need = {name: np.zeros(len(rows)) for name in ("need_rtol", "need_atol")}
        self._has_ulp = True
        count, size = a.shape
        if key:
            self._keys(a, b)
            return
        self._parts = 2 if "c" in (a.dtype.kind, b.dtype.kind) else 1
        with np.errstate(over="ignore", invalid="ignore"):
            if size >= _LONG and fits(a.dtype, b.dtype):
                self._long(a, b)
            else:
                high = max(1, min(count, _PIECE // size))
                for top in range(0, count, high):
                    self._pieces(slice(top, top + high), 0, size, a, b)
        self._finish(a, b)

    def _keys(self, a: np.ndarray, b: np.ndarray) -> None:
        count = _count(_bits(a, b)) if a.dtype == b.dtype else self.rows["size"]
        for name in ("differing", "bits", "beyond"):
            self.rows[name] = count
        for name in ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol"):
            self.rows[name] = np.nan

    def _long(self, a: np.ndarray, b: np.ndarray) -> None:
        """Measures row by row; only pieces with what is not finite are measured as any dtype's are."""
        size = a.shape[1]
        buffers = Buffers(a.dtype, min(PIECE, size))
        for row in range(len(a)):
            stretch = Stretch(self._tolerance, buffers)
            for left in range(0, size, PIECE):
                stop = min(left + PIECE, size)
                if stretch.add(a[row, left:stop], b[row, left:stop], left):
                    self.rows["count"][row] += stop - left
                else:
                    self._pieces(slice(row, row + 1), left, stop, a, b)
            self._add_stretch(row, stretch)

    def _add_stretch(self, row: int, stretch: Stretch) -> None:
        rows = self.rows
        for name in ("differing", "bits", "beyond"):
            rows[name][row] += getattr(stretch, name)
        for name, value in zip(("sum_abs", "aa", "bb", "ab", "dd"), stretch.sums, strict=True):
            rows[name][row] += value
        for name, worst, place in zip(self._worst, stretch.worst, stretch.places, strict=True):
            known, at = self._worst[name][row], rows[f"{name}_at"][row]
            if place >= 0 and (worst > known or (worst == known and place < at)):
                self._worst[name][row], rows[f"{name}_at"][row] = worst, place
        for name, need in zip(self._need, stretch.need, strict=True):
            self._need[name][row] = max(self._need[name][row], need)

    def _pieces(self, at: slice, start: int, stop: int, a: np.ndarray, b: np.ndarray) -> None:
        for left in range(start, stop, _PIECE):
            self._piece(at, slice(left, min(left + _PIECE, stop)), a, b)

    def _piece(self, at: slice, across: slice, a: np.ndarray, b: np.ndarray) -> None:
        a, b, rows = a[at, across], b[at, across], self.rows[at]
        bits = _bits(a, b) if a.dtype == b.dtype else None
        if bits is not None and not bits.any() and _is_finite(a):
            # No element of the piece differs: it counts in the norms alone.
            wide = _parts(a).astype(np.float64)
            square = np.vecdot(wide, wide)
            for name in ("aa", "bb", "ab"):
                rows[name] += square
            rows["count"] += wide.shape[1]
            return
        found = distances(_parts(a, self._parts), _parts(b, self._parts))
        self._add_counts(rows, found, bits)
        self._add_sums(rows, found)
        self._add_worst(at, across.start, found)

    def _add_counts(self, rows: np.ndarray, found: Distances, bits: np.ndarray | None) -> None:
        nonzero = self._elements(found.absolute != 0)
        rows["differing"] += _count(nonzero)
        if found.lone is not None:
            for name, lone in zip(("nan", "posinf", "neginf"), found.lone, strict=True):
                rows[name] += _count(self._elements(lone))
        if bits is None:
            rows["bits"] += _count(nonzero)
        elif found.both_nan is None:
            rows["bits"] += _count(bits)
        else:
            # NaN against NaN is equal whatever its payload, unless the other part of a complex number differs.
            rows["bits"] += _count(bits & (nonzero | ~self._elements(found.both_nan)))

    def _add_sums(self, rows: np.ndarray, found: Distances) -> None:
        apart, count = found.absolute, found.absolute.shape[1]
        if found.lone is not None:
            finite = np.isfinite(apart) & ~found.both_nan  # type: ignore[operator]  # there, where lone is
            apart, count = np.where(np.isfinite(apart), apart, 0.0), _count(finite)
        rows["sum_abs"] += apart[:, 0] if _is_single(apart) else apart.sum(axis=1)
        rows["dd"] += _products(apart, apart)
        rows["aa"] += _products(found.a, found.a)
        rows["bb"] += _products(found.b, found.b)
        rows["ab"] += _products(found.a, found.b)
        rows["count"] += count

    def _add_worst(self, at: slice, left: int, found: Distances) -> None:
        rtol, atol = self._tolerance.rtol, self._tolerance.atol
        apart = found.absolute
        self._keep("abs", at, left, apart)
        larger = np.abs(found.a)
        larger = np.maximum(larger, np.abs(found.b, out=found.b), out=larger)
        divisor = np.maximum(larger, TINY)
        relative = np.divide(apart, divisor, out=found.b)
        self._keep("rel", at, left, relative)
        if found.ulps is None:
            self._has_ulp = False
        else:
            self._keep("ulp", at, left, found.ulps)
        # What is beyond depends on sums that are rounded as in `Tolerance`.
        excess = apart
        if rtol:
            excess = np.multiply(larger, -rtol, out=larger)
            excess += apart
        beyond = excess > atol
        if self._tolerance.ulp and found.ulps is not None:
            beyond &= (found.ulps > self._tolerance.ulp) | np.isinf(apart)
        self.rows["beyond"][at] += _count(self._elements(beyond))
        self._most("need_atol", at, excess)
        if atol:
            np.subtract(apart, atol, out=relative)
            relative /= divisor
        self._most("need_rtol", at, relative)

    def _keep(self, name: str, at: slice, left: int, values: np.ndarray) -> None:
        """Notes the largest value of each row, and where it is."""
        if len(values) == 1:
            # Long rows come piece by piece, and numpy's indexing by arrays takes longer than a piece.
            place = int(values.argmax())
            largest = float(values[0, place])
            if largest > self._worst[name][at.start]:
                self._worst[name][at.start] = largest
                self.rows[f"{name}_at"][at.start] = left + place // self._parts
            return
        if _is_single(values):
            where, most = np.zeros(len(values), np.intp), values[:, 0].astype(np.float64)
        else:
            where = values.argmax(axis=1)
            most = values[np.arange(len(where)), where].astype(np.float64)
        known, places = self._worst[name][at], self.rows[f"{name}_at"][at]
        better = most > known
        known[better] = most[better]
        places[better] = left + where[better] // self._parts

    def _most(self, name: str, at: slice, values: np.ndarray) -> None:
        if len(values) == 1:
            self._need[name][at.start] = max(self._need[name][at.start], values.max())
        else:
            most = values[:, 0] if _is_single(values) else values.max(axis=1)
            np.maximum(self._need[name][at], most, out=self._need[name][at])

    def _elements(self, parts: np.ndarray) -> np.ndarray:
        return parts if self._parts == 1 else np.any(parts.reshape(len(parts), -1, 2), axis=2)

    def _finish(self, a: np.ndarray, b: np.ndarray) -> None:
        rows = self.rows
        for name, worst in self._worst.items():
            rows[f"max_{name}"] = worst
        lone = np.isinf(rows["max_abs"]) & (rows["nan"] + rows["posinf"] + rows["neginf"] > 0)
        if self._has_ulp:
            rows["max_ulp"][lone] = np.inf
        else:
            rows["max_ulp"] = np.nan
        rows["need_atol"] = self._need["need_atol"]
        need = self._need["need_rtol"]
        rows["need_rtol"] = np.where(need > 0, need * _NUDGE, 0.0)
        number = np.arange(len(rows))
        for side, array in (("a", a), ("b", b)):
            # As words: numpy copies a few bytes a row ten times as slowly.
            width = array.dtype.itemsize
            words = array.view(f"u{width}" if width < _VALUE else f"V{width}")
            for name in self._worst:
                place = np.maximum(rows[f"{name}_at"], 0)
                picked = words[:, 0] if _is_single(words) else words[number, place]
                rows[f"{name}_{side}"][:, :width].view(words.dtype)[:, 0] = picked


def _is_single(values: np.ndarray) -> bool:
    """Returns whether rows have one number each, of which numpy takes ten times as long to reduce than to pick it."""
    return values.shape[1] == 1


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, 0] * b[:, 0] if _is_single(a) else np.vecdot(a, b)


def _count(mask: np.ndarray) -> Any:
    if _is_single(mask):
        return mask[:, 0]
    # Along an axis numpy takes three times as long.
    return np.count_nonzero(mask) if len(mask) == 1 else np.count_nonzero(mask, axis=1)


def _is_finite(values: np.ndarray) -> bool:
    if values.dtype.kind in "biu" or values.dtype.name.startswith(("int", "uint")):
        return True
    return bool(np.isfinite(values).all())


def _parts(values: np.ndarray, parts: int | None = None) -> np.ndarray:
    """Returns complex numbers as pairs of real ones, side by side; real ones as such pairs too if ``parts`` is 2."""
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values)
        return values.view(np.float32 if values.itemsize == np.dtype(np.complex64).itemsize else np.float64)
    if parts == 2:  # noqa: PLR2004 - real and imaginary
        return np.stack([values, np.zeros_like(values)], axis=-1).reshape(len(values), -1)
    return values
