"""Floats as integers that count the representable values between them: what ulp differences are made of."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["is_float", "mantissa_bits", "ordinals"]

_SIGN_MAGNITUDE = {2: np.int16, 4: np.int32, 8: np.int64}


@cache
def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether a dtype is a real floating type, those of ``ml_dtypes`` included.

    Example:
        >>> is_float(np.dtype(ml_dtypes.bfloat16)), is_float(np.dtype(ml_dtypes.int4)), is_float(np.dtype("complex64"))
        (True, False, False)
    """
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


@cache
def mantissa_bits(dtype: np.dtype[Any]) -> int:
    """Returns the stored mantissa bits of a floating dtype: 23 of float32, 7 of bfloat16, 0 of float8_e8m0fnu."""
    return int(ml_dtypes.finfo(dtype).nmant)


def ordinals(values: np.ndarray) -> np.ndarray:
    """Returns the place of each float among all values of its dtype, counted from zero, as signed integers.

    Neighbouring values differ by one, and both zeros are 0. The integers are as wide as the floats (16 bits at
    least), so that a difference of two can wrap: take the larger minus the smaller, viewed as unsigned.
    What NaN gives says nothing.

    Args:
        values: an array of a floating dtype.

    Example:
        >>> ordinals(np.array([0.0, -0.0, 1e-45, -1e-45, 1.0], np.float32)).tolist()
        [0, 0, 1, -1, 1065353216]
    """
    width = values.dtype.itemsize
    if width == 1:
        return _table(values.dtype)[values.view(np.uint8)]
    signed = _SIGN_MAGNITUDE[width]
    bits = np.ascontiguousarray(values).view(signed)
    # All ones where negative.
    sign = bits >> (8 * width - 1)
    out = bits & np.iinfo(signed).max
    out ^= sign
    out -= sign
    return out


@cache
def _table(dtype: np.dtype[Any]) -> np.ndarray:
    """Returns the ordinal of each of the 256 bytes of a small dtype, found from the values they stand for."""
    with np.errstate(invalid="ignore"):
        values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    there = np.unique(values[~np.isnan(values)])
    # float8_e8m0fnu has no zero; its smallest value is 0 then.
    zero = int(np.searchsorted(there, 0.0))
    out = np.searchsorted(there, np.where(np.isnan(values), 0.0, values)) - zero
    return out.astype(np.int16)
