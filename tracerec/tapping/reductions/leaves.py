"""Leaves of every dtype as one of two things: integers, or floats of 32 or 64 bits with their bits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

__all__ = [
    "Floats",
    "Format",
    "absolute",
    "axes_of",
    "from_bits",
    "is_integer",
    "keyed",
    "lowered",
    "number_format",
    "plain",
    "power_of_two",
    "scaled",
    "to_bits",
    "unkeyed",
    "where",
]


@dataclasses.dataclass(frozen=True)
class Format:
    """IEEE 754's binary32 or binary64, in which floats are worked on.

    Attributes:
        dtype: the floats.
        bits: their bits: unsigned integers of the same size.
        signed: signed integers of that size.
        fraction: bits of the fraction.
        bias: the exponent's bias.
        low: the smallest exponent of a largest magnitude whose elements' squares can be summed as they are: what
            their spread's square loses below the smallest number does not matter yet.
        high: the largest such exponent: the squares of 2**32 elements do not overflow.
    """

    dtype: Any
    bits: Any
    signed: Any
    fraction: int
    bias: int
    low: int
    high: int

    @property
    def size(self) -> int:
        """The bits of a number."""
        return 8 * np.dtype(self.bits).itemsize

    @property
    def infinity(self) -> Any:
        """The bits of the positive infinity."""
        return self.bits((2 * self.bias + 1) << self.fraction)

    @property
    def sign(self) -> Any:
        """The sign bit."""
        return self.bits(1 << (self.size - 1))


SINGLE = Format(np.float32, np.uint32, np.int32, 23, 127, -36, 40)
DOUBLE = Format(np.float64, np.uint64, np.int64, 52, 1023, -420, 460)


@dataclasses.dataclass(frozen=True)
class Floats:
    """What is known of a leaf of floats from its dtype.

    Attributes:
        format: what they are worked on in.
        smallest: the smallest normal number.
        nan: whether there is NaN.
        infinity: whether there are infinities.
        negative: whether there are negative numbers.
    """

    format: Format
    smallest: float
    nan: bool
    infinity: bool
    negative: bool = True

    @staticmethod
    def of(dtype: Any) -> Floats:
        """Returns what is known of a dtype, real or complex."""
        kind = np.dtype(dtype)
        if kind.kind == "c":
            part = Floats.of(np.float32 if kind.itemsize == 8 else np.float64)  # noqa: PLR2004 - of complex64
            return dataclasses.replace(part, negative=False)
        facts = ml_dtypes.finfo(kind)
        with np.errstate(all="ignore"):
            special = [float(np.asarray(x, np.float32).astype(kind).astype(np.float32)) for x in (np.nan, np.inf)]
        return Floats(
            format=DOUBLE if kind.itemsize == 8 else SINGLE,  # noqa: PLR2004 - bytes of a float64
            smallest=float(facts.smallest_normal),
            nan=math.isnan(special[0]),
            infinity=math.isinf(special[1]),
            negative=kind.name != "float8_e8m0fnu",
        )


def axes_of(x: jax.Array, lanes: int) -> tuple[int, ...]:
    """Returns the axes that are reduced."""
    return tuple(range(lanes, x.ndim))


def is_integer(dtype: Any) -> bool:
    """Returns whether a leaf's elements are integers; bools are."""
    return dtype == np.bool_ or jnp.issubdtype(dtype, np.integer)


def plain(x: jax.Array) -> jax.Array:
    """Returns the elements, complex ones by their magnitude, in int32, uint32, int64, uint64, float32 or float64.

    bfloat16 stays: its elements are the upper halves of float32's.
    """
    dtype = x.dtype
    if is_integer(dtype):
        if dtype.itemsize == 8:  # noqa: PLR2004 - bytes of an int64
            return x
        return x.astype(np.uint32 if jnp.issubdtype(dtype, np.unsignedinteger) else np.int32)
    if jnp.issubdtype(dtype, np.complexfloating):
        return _magnitude(x)
    if dtype in (np.float32, np.float64, jnp.bfloat16):
        return x
    if dtype == ml_dtypes.float8_e8m0fnu:
        return lax.bitcast_convert_type(to_bits(x), np.float32)
    return x.astype(np.float32)


def to_bits(x: jax.Array) -> jax.Array:
    """Returns the bits of floats from `plain`, or of float8_e8m0fnu, as those of float32 or float64."""
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(x, np.uint16).astype(np.uint32) << np.uint32(16)
    if x.dtype == ml_dtypes.float8_e8m0fnu:
        # Powers of two from 2**-127, which is subnormal in float32; 255 is NaN.
        code = lax.bitcast_convert_type(x, np.uint8).astype(np.uint32)
        power = where(code == np.uint32(0), np.uint32(1 << 22), code << np.uint32(23))
        return where(code == np.uint32(255), np.uint32(0x7FC00000), power)
    return lax.bitcast_convert_type(x, np.uint64 if x.dtype == np.float64 else np.uint32)


def from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    """Returns floats of a real dtype that have such values: the inverse of `plain` and `to_bits`."""
    if dtype == jnp.bfloat16:
        # A NaN keeps a bit of its fraction: all NaN here are the quiet one.
        return lax.bitcast_convert_type((bits >> np.uint32(16)).astype(np.uint16), jnp.bfloat16)
    if dtype == ml_dtypes.float8_e8m0fnu:
        return lax.bitcast_convert_type((bits >> np.uint32(23)).astype(np.uint8), dtype)
    if dtype in (np.float32, np.float64):
        return lax.bitcast_convert_type(bits, dtype)
    return lax.bitcast_convert_type(bits, np.float32).astype(dtype)


def keyed(bits: jax.Array, form: Format) -> jax.Array:
    """Returns signed integers in the order of the floats that have these bits, -0.0 below 0.0."""
    number = lax.bitcast_convert_type(bits, form.signed)
    return number ^ ((number >> form.signed(form.size - 1)) & form.signed(np.iinfo(form.signed).max))


def unkeyed(key: jax.Array, form: Format) -> jax.Array:
    """Returns the bits of the float that an integer of `keyed` stands for."""
    number = key ^ ((key >> form.signed(form.size - 1)) & form.signed(np.iinfo(form.signed).max))
    return lax.bitcast_convert_type(number, form.bits)


def number_format(dtype: Any) -> Format:
    """Returns what a leaf's numbers are computed in, and stored."""
    return DOUBLE if dtype in (np.int64, np.uint64, np.float64, np.complex128) else SINGLE


def absolute(x: jax.Array) -> jax.Array:
    """Returns the magnitudes of integers as unsigned ones: that of the smallest is no signed one."""
    if jnp.issubdtype(x.dtype, np.unsignedinteger):
        return x
    unsigned = lax.bitcast_convert_type(x, np.uint64 if x.dtype == np.int64 else np.uint32)
    return where(x < x.dtype.type(0), unsigned.dtype.type(0) - unsigned, unsigned)


def power_of_two(exponent: jax.Array, form: Format) -> jax.Array:
    """Returns 2**exponent for exponents of normal numbers, without arithmetic that rounds."""
    bits = (exponent + form.signed(form.bias)) << form.signed(form.fraction)
    return lax.bitcast_convert_type(bits, form.dtype)


def scaled(bits: jax.Array, exponent: jax.Array, form: Format) -> jax.Array:
    """Returns finite floats over 2**exponent, subnormal ones included, where a processor flushes those too.

    Args:
        bits: the floats' bits.
        exponent: of form.signed, from that of the smallest subnormal number to one below the largest; broadcast
            to the bits. What is lost is below 2**-80 of the number that has this exponent.
        form: the floats'.
    """
    least = form.signed(1 - form.bias)
    normal = lax.bitcast_convert_type(bits, form.dtype) * power_of_two(-lax.max(exponent, least), form)
    fraction = lax.bitcast_convert_type(bits & ~form.sign, form.signed).astype(form.dtype)
    unit = form.signed(1 - form.bias - form.fraction)
    # Beside numbers that are not scaled, subnormal ones are nothing.
    up = where(exponent < form.signed(0), power_of_two(lax.max(unit - exponent, least), form), form.dtype(0))
    signed = where((bits & form.sign) != form.bits(0), -fraction, fraction)
    return where((bits << form.bits(1)) < form.bits(2 << form.fraction), signed * up, normal)


def where(condition: jax.Array, yes: Any, no: Any) -> jax.Array:
    """Returns a choice by element of two arrays or scalars of one dtype: `jax.numpy.where` takes longer to trace."""
    shape = np.broadcast_shapes(condition.shape, yes.shape, no.shape)
    chosen = (x if x.shape == shape else jnp.broadcast_to(x, shape) for x in (condition, yes, no))
    return lax.select(*chosen)


def _magnitude(x: jax.Array) -> jax.Array:
    """Returns magnitudes to the last bits, subnormal ones too, by scaling where squares would leave the range.

    Where subnormal numbers are flushed to zero, as on CPUs, they must not be touched by arithmetic of floats.
    """
    form = SINGLE if x.dtype == np.complex64 else DOUBLE
    parts = [to_bits(part) & ~form.sign for part in (lax.real(x), lax.imag(x))]
    large, small = lax.max(*parts), lax.min(*parts)
    # 2**up takes what is below 2**-(up - margin) to normal numbers whose squares are normal.
    up = form.bias - 1
    tiny = large < form.bits((form.bias - up // 2) << form.fraction)
    huge = large >= form.bits((2 * form.bias - 2) << form.fraction)
    a, b = (_raised(part, tiny, huge, up, form) for part in (large, small))
    ratio = where(a > form.dtype(0), b / a, form.dtype(0))
    magnitude = a * jnp.sqrt(form.dtype(1) + ratio * ratio)
    most = lax.bitcast_convert_type(jnp.broadcast_to(form.infinity - form.bits(1), x.shape), form.dtype)
    large_ones = jnp.minimum(magnitude, most * form.dtype(0.125)) * form.dtype(8)
    bits = where(huge, to_bits(large_ones), to_bits(magnitude))
    bits = where(tiny, lowered(magnitude, up, form), bits)
    bits = where(large >= form.infinity, form.infinity, bits)
    # NaN has the largest bits, so that it is in the larger part if it is in one and no infinity is in the other.
    nan = large > form.infinity
    return lax.bitcast_convert_type(where(nan, form.infinity | (form.infinity >> form.bits(1)), bits), form.dtype)


def _raised(bits: jax.Array, tiny: jax.Array, huge: jax.Array, up: int, form: Format) -> jax.Array:
    """Returns positive floats times 2**up where they are tiny, over 8 where they are huge; exact for the first."""
    value = lax.bitcast_convert_type(bits, form.dtype)
    normal = bits >= form.bits(1 << form.fraction)
    fraction = lax.bitcast_convert_type(bits, form.signed).astype(form.dtype)
    raised = where(
        normal, value * form.dtype(2.0**up), fraction * form.dtype(2.0 ** (up + 1 - form.bias - form.fraction))
    )
    return where(tiny, raised, value * where(huge, form.dtype(0.125), form.dtype(1)))


def lowered(value: jax.Array, up: int, form: Format) -> jax.Array:
    """Returns the bits of positive floats over 2**up, rounded where they become subnormal."""
    whole = jnp.round(value * form.dtype(2.0 ** (form.bias + form.fraction - 1 - up)))
    low = whole.astype(form.bits)
    normal = to_bits(value) - form.bits(up << form.fraction)
    return where(value < form.dtype(2.0 ** (up + 1 - form.bias)), low, normal)
