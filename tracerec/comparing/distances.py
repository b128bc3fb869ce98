"""How far two arrays of numbers are apart, element by element: exact for integers, in float64 for the rest."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from tracerec.comparing.ordinals import is_float, mantissa_bits, ordinals

__all__ = ["Distances", "distances", "lower_precision"]

_TOP = 2.0**64


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Distances:
    """Two arrays of one shape, and how far they are apart. Where both hold NaN, or the same infinity, it is 0.

    Attributes:
        a: the first, float64; 0 where either is not finite.
        b: the second, float64; 0 where either is not finite.
        absolute: the absolute difference, float64; infinite where NaN or an infinity is on one side only.
        ulps: how many representable values lie between, unsigned or float64; None where that means nothing. Infinite
            (the largest value of an unsigned type) where ``absolute`` is for want of a number.
        lone: where NaN, +Inf and -Inf are on one side only, each of bool; None where all elements are finite.
        both_nan: where both are NaN; None where all elements are finite.
    """

    a: np.ndarray
    b: np.ndarray
    absolute: np.ndarray
    ulps: np.ndarray | None
    lone: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    both_nan: np.ndarray | None = None


def distances(a: np.ndarray, b: np.ndarray) -> Distances:
    """Returns how far two arrays of real numbers are apart.

    Args:
        a: numbers of any real dtype, bool included.
        b: numbers of any real dtype, of the same shape.

    Example:
        >>> found = distances(np.array([2**53 + 1]), np.array([2.0**53]))
        >>> found.absolute.tolist()
        [1.0]
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if _is_wide(a.dtype) or _is_wide(b.dtype):
        absolute = _exact(a, b)
    else:
        absolute = np.subtract(wide_a, wide_b)
        np.abs(absolute, out=absolute)
    if is_float(a.dtype) or is_float(b.dtype):
        # One pass tells whether any element is not finite. What overflows looks the same and is sorted out there.
        if not np.isfinite(absolute.sum()):
            return _with_lone(a, b, wide_a, wide_b, absolute)
        return Distances(wide_a, wide_b, absolute, _ulps(a, b))
    return Distances(wide_a, wide_b, absolute, absolute)


def lower_precision(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any] | None:
    """Returns the one of two dtypes with fewer bits of mantissa; None unless both are floats, or both complex.

    Example:
        >>> lower_precision(np.dtype("float32"), np.dtype("float16")).name
        'float16'
    """
    if a.kind == b.kind == "c":
        return a if a.itemsize <= b.itemsize else b
    if not (is_float(a) and is_float(b)):
        return None
    # Of two that are as precise, the one of larger range, in which more values have a place.
    return min(a, b, key=lambda d: (mantissa_bits(d), d.itemsize, -float(ml_dtypes.finfo(d).max), d.name))


def _is_wide(dtype: np.dtype[Any]) -> bool:
    """Returns whether a dtype has integers that float64 cannot hold."""
    return dtype.kind in "iu" and dtype.itemsize == np.dtype(np.int64).itemsize


def _exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the absolute differences where a side has 64-bit integers, exact and then rounded once."""
    if is_float(a.dtype):
        return _from_float(b, a.astype(np.float64))
    if is_float(b.dtype):
        return _from_float(a, b.astype(np.float64))
    return _integers(_widened(a), _widened(b))


def _widened(values: np.ndarray) -> np.ndarray:
    """Returns integers or bools as int64, or uint64 where they are that already."""
    return values if values.dtype == np.uint64 else values.astype(np.int64)


def _integers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype == b.dtype:
        # The larger minus the smaller is right modulo 2**64 and below it.
        return (np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)).astype(np.float64)
    signed, unsigned = (a, b) if a.dtype == np.int64 else (b, a)
    positive = np.maximum(signed, 0).view(np.uint64)
    apart = (np.maximum(positive, unsigned) - np.minimum(positive, unsigned)).astype(np.float64)
    negative = signed < 0
    if negative.any():
        below = np.where(negative, signed, 0).view(np.uint64)
        below = np.where(negative, np.uint64(0) - below, below)
        total = unsigned + below
        # A sum of 2**64 and more wraps.
        apart = np.where(negative, total.astype(np.float64) + _TOP * (total < below), apart)
    return apart


def _from_float(integers: np.ndarray, floats: np.ndarray) -> np.ndarray:
    integers = _widened(integers)
    low, high = (0.0, _TOP) if integers.dtype == np.uint64 else (-_TOP / 2, _TOP / 2)
    whole = np.trunc(floats)
    inside = (whole >= low) & (whole < high)
    whole = np.where(inside, whole, 0.0)
    rest = np.where(inside, floats - whole, 0.0)
    part = whole.astype(integers.dtype)
    larger = integers > part
    apart = _integers(integers, part)
    exact = np.abs(np.where(larger, apart - rest, apart + rest))
    return np.where(inside, exact, np.abs(integers.astype(np.float64) - floats))


def _ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if a.dtype != b.dtype:
        lower = lower_precision(a.dtype, b.dtype)
        if lower is None:
            return None
        a, b = a.astype(lower), b.astype(lower)
    if a.dtype.itemsize == 1:
        one, other = ordinals(a), ordinals(b)
        return np.abs(one - other).view(np.uint16)
    return _between(a, b)


def _between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns how many values lie between two floats of sign and magnitude, of 16 bits or more."""
    width = a.dtype.itemsize
    word, top = np.dtype(f"u{width}"), np.iinfo(f"i{width}").max
    one, other = np.ascontiguousarray(a).view(word), np.ascontiguousarray(b).view(word)
    apart = np.maximum(one, other)
    apart -= np.minimum(one, other)
    # Of one sign, the bits themselves count; of two, zero lies between.
    across = np.flatnonzero((one ^ other) > top)
    if len(across):
        apart.reshape(-1)[across] = (one.reshape(-1)[across] & top) + (other.reshape(-1)[across] & top)
    return apart


def _with_lone(a: np.ndarray, b: np.ndarray, wide_a: np.ndarray, wide_b: np.ndarray, absolute: np.ndarray) -> Distances:
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    nan_a, nan_b = np.isnan(wide_a), np.isnan(wide_b)
    lone = (nan_a ^ nan_b, (wide_a == np.inf) ^ (wide_b == np.inf), (wide_a == -np.inf) ^ (wide_b == -np.inf))
    alone = lone[0] | lone[1] | lone[2]
    absolute = np.where(finite, absolute, np.where(alone, np.inf, 0.0))
    ulps = _ulps(a, b)
    if ulps is not None:
        most = np.full((), np.iinfo(ulps.dtype).max, ulps.dtype)
        ulps = np.where(finite, ulps, np.where(alone, most, np.zeros((), ulps.dtype)))
    wide_a, wide_b = np.where(finite, wide_a, 0.0), np.where(finite, wide_b, 0.0)
    return Distances(wide_a, wide_b, absolute, ulps, lone, nan_a & nan_b)
