"""Logical dtypes as HDF5 types: a file's elements are the bits that numpy holds, and their type says so.

What HDF5 has is native. bfloat16 and float8_e5m2 are HDF5 floats of 16 and 8 bits, which follow IEEE 754's
rules, so that every reader converts them; int2 and int4 are integers of that precision in a byte. The other
small floats have codes that HDF5 would misread (float8_e4m3fn has no infinity): they are their bits, uint8.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from h5py import h5t

from tracerec.formats.hdf5.layout import INDEX
from tracerec.model import INDEX_DTYPE

__all__ = ["file_type"]

_NATIVE: dict[str, Any] = {
    "int8": h5t.STD_I8LE,
    "int16": h5t.STD_I16LE,
    "int32": h5t.STD_I32LE,
    "int64": h5t.STD_I64LE,
    "uint8": h5t.STD_U8LE,
    "uint16": h5t.STD_U16LE,
    "uint32": h5t.STD_U32LE,
    "uint64": h5t.STD_U64LE,
    "float16": h5t.IEEE_F16LE,
    "float32": h5t.IEEE_F32LE,
    "float64": h5t.IEEE_F64LE,
}

_FLOATS = {
    # name: bytes, exponent bits, exponent bias; below the sign bit the exponent, below that the mantissa
    "bfloat16": (2, 8, 127),
    "float8_e5m2": (1, 5, 15),
}

_INTEGERS = {
    "int2": (h5t.STD_I8LE, 2),
    "int4": (h5t.STD_I8LE, 4),
    "uint2": (h5t.STD_U8LE, 2),
    "uint4": (h5t.STD_U8LE, 4),
}

_COMPLEX: dict[str, Any] = {"complex64": h5t.IEEE_F32LE, "complex128": h5t.IEEE_F64LE}


@cache
def file_type(name: str) -> h5t.TypeID:
    """Returns the HDF5 type of a logical dtype, or of the index table for ``"index"``.

    Example:
        >>> file_type("bfloat16").get_size(), file_type("bfloat16").dtype.name
        (2, 'float32')
        >>> file_type("float8_e4m3fn").dtype.name
        'uint8'
    """
    if name in _NATIVE:
        return _NATIVE[name]
    if name == "bool":
        return _bool()
    if name in _COMPLEX:
        return _complex(_COMPLEX[name])
    if name in _FLOATS:
        return _float(*_FLOATS[name])
    if name in _INTEGERS:
        base, precision = _INTEGERS[name]
        integer = base.copy()
        integer.set_precision(precision)
        return integer
    return _index() if name == INDEX else h5t.STD_U8LE


def _bool() -> h5t.TypeID:
    """The enum that h5py reads as bool."""
    enum = h5t.enum_create(h5t.STD_I8LE)
    enum.enum_insert(b"FALSE", 0)
    enum.enum_insert(b"TRUE", 1)
    return enum


def _complex(part: Any) -> h5t.TypeID:
    """The compound that h5py reads as complex. HDF5 2.0's own complex type breaks readers of 1.10 to 1.14."""
    size = part.get_size()
    compound = h5t.create(h5t.COMPOUND, 2 * size)
    compound.insert(b"r", 0, part)
    compound.insert(b"i", size, part)
    return compound


def _float(size: int, exponent: int, bias: int) -> h5t.TypeID:
    custom = h5t.IEEE_F32LE.copy()
    mantissa = 8 * size - 1 - exponent
    # In this order: HDF5 checks after each call that fields lie inside the precision and the size.
    custom.set_fields(8 * size - 1, mantissa, exponent, 0, mantissa)
    custom.set_offset(0)
    custom.set_precision(8 * size)
    custom.set_size(size)
    custom.set_ebias(bias)
    return custom


def _index() -> h5t.TypeID:
    compound = h5t.create(h5t.COMPOUND, INDEX_DTYPE.itemsize)
    offset = 0
    for name, kind, *_ in INDEX_DTYPE.descr:
        dtype = np.dtype(kind)
        compound.insert(name.encode(), offset, _NATIVE[dtype.name])
        offset += dtype.itemsize
    return compound
