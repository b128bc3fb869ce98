"""Type codes and logical dtypes: which element types a frame can carry, and how their bits lie.

Codes 0 to 11 are those of JAX's removed ``host_callback`` module (2020); later ones are tracerec's own.
Sub-byte types take one byte an element, as numpy and XLA's host buffers hold them.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

__all__ = ["CODES", "NAMES", "as_bits", "code_of", "from_bits", "from_code", "from_name", "itemsize"]

NAMES: tuple[str, ...] = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "int2",
    "int4",
    "uint2",
    "uint4",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)
"""Logical dtype names; a name's place is its type code."""

CODES: dict[str, int] = {name: code for code, name in enumerate(NAMES)}

_FROM_ML_DTYPES = frozenset(
    n for n in NAMES if n.startswith(("bfloat", "float8", "float4", "int2", "int4", "uint2", "uint4"))
)


@functools.cache
def from_name(name: str) -> np.dtype[Any]:
    """Returns the little-endian numpy dtype of a logical name.

    Raises:
        ValueError: the name is not in `NAMES`.

    Example:
        >>> from_name("bfloat16").itemsize
        2
    """
    if name not in CODES:
        message = f"unknown dtype {name!r}"
        raise ValueError(message)
    if name in _FROM_ML_DTYPES:
        # Its import takes up to a second with NumPy 2.4; to look at a trace is quicker without.
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    dtype = np.dtype(name)
    return dtype if sys.byteorder == "little" else dtype.newbyteorder("<")


def itemsize(name: str) -> int:
    """Returns the bytes of one element; raises ValueError for a name that is not in `NAMES`.

    Example:
        >>> itemsize("bfloat16"), itemsize("int4"), itemsize("complex128")
        (2, 1, 16)
    """
    if name in _FROM_ML_DTYPES:
        return 2 if name == "bfloat16" else 1
    return from_name(name).itemsize


def from_code(code: int) -> np.dtype[Any]:
    """Returns the numpy dtype of a type code; raises ValueError for an unknown one."""
    if not 0 <= code < len(NAMES):
        message = f"unknown type code {code}"
        raise ValueError(message)
    return from_name(NAMES[code])


# The name of a dtype is made anew each time, in some 5 us.
@functools.lru_cache(maxsize=256)
def code_of(dtype: np.dtype[Any]) -> int:
    """Returns the type code of a numpy dtype; raises ValueError for one that no frame can carry.

    Example:
        >>> code_of(np.dtype("float32"))
        9
    """
    try:
        return CODES[dtype.name]
    except KeyError:
        message = f"dtype {dtype} has no type code"
        raise ValueError(message) from None


def as_bits(array: np.ndarray) -> np.ndarray:
    """Returns a view of an array as unsigned integers of the same width (bool and complex as they are).

    The bits of an ml_dtypes array can then go wherever numpy's own types go.
    """
    if array.dtype.name in _FROM_ML_DTYPES:
        return array.view(np.dtype(f"<u{array.dtype.itemsize}"))
    return array


def from_bits(bits: np.ndarray, name: str) -> np.ndarray:
    """Returns a view of stored bits as the logical dtype; the itemsizes must agree."""
    dtype = from_name(name)
    return bits if bits.dtype == dtype else bits.view(dtype)
