"""What is made of some elements: slices, samples, the largest, quantiles; and the leaf in another dtype."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tracerec.errors import TapError
from tracerec.keeping.positions import sample_positions
from tracerec.tapping.reductions.leaves import (
    Floats,
    absolute,
    is_integer,
    keyed,
    number_format,
    plain,
    to_bits,
    unkeyed,
    where,
)

if TYPE_CHECKING:
    from tracerec.keeping.specs import Cast, Quantiles, Sample, Slice, TopK

__all__ = ["cast", "cut", "quantiles", "sample", "top"]

_NOWHERE = np.uint32(0xFFFFFFFF)
"""The position of an element that there is not."""


def cut(keep: Slice, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the part of `tracerec.keeping.Slice`."""
    shape = x.shape[lanes:]
    try:
        np.broadcast_to(np.uint8(0), shape)[keep.key]
    except IndexError as error:
        message = f"keep={keep!r} of a leaf of shape {shape}: {error}"
        raise TapError(message) from None
    return [_back(_carried(x, valid)[(slice(None),) * lanes + keep.key], x.dtype)]


def sample(keep: Sample, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the part of `tracerec.keeping.Sample`."""
    shape = x.shape[lanes:]
    positions = sample_positions(keep.n, keep.seed, shape)
    if not shape:
        return [_back(_carried(x, valid)[..., None], x.dtype)]
    # Axis by axis: joining the axes of a sharded leaf would move it between devices.
    index = tuple(place.astype(np.int32) for place in np.unravel_index(positions, shape)) if len(positions) else None
    if index is None:
        return [jnp.zeros((*x.shape[:lanes], 0), x.dtype)]
    return [_back(_carried(x, valid)[(slice(None),) * lanes + index], x.dtype)]


def cast(keep: Cast, x: jax.Array, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the part of `tracerec.keeping.Cast`."""
    from tracerec.protocol import dtypes

    dtype = dtypes.from_name(str(keep.dtype))
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        message = f"keep={keep!r}: JAX has no {keep.dtype} here: jax_enable_x64 is off"
        raise TapError(message)
    if jnp.issubdtype(x.dtype, np.complexfloating) and not jnp.issubdtype(dtype, np.complexfloating):
        message = f"keep={keep!r} of a {x.dtype} leaf would drop the imaginary part; cast to a complex dtype"
        raise TapError(message)
    return [_cleared(x.astype(dtype), valid)]


def top(keep: TopK, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the parts of `tracerec.keeping.TopK`."""
    shape, size = x.shape[:lanes], math.prod(x.shape[lanes:])
    k = min(keep.k, size)
    if not k:
        return [jnp.zeros((*shape, 0), x.dtype), jnp.zeros((*shape, 0), np.uint32)]
    flat = _carried(x, None).reshape(*shape, size)
    order = _sizes(x).reshape(*shape, size)
    if valid is None:
        found = lax.top_k(order, k)[1]
        return [_back(_taken(flat, found), x.dtype), found.astype(np.uint32)]
    # What does not count comes after all zeros that do.
    live = valid.reshape(*shape, size)
    places = lax.broadcasted_iota(np.int32, live.shape, lanes)
    dead, _, places = lax.sort((~live, ~order, places), dimension=lanes, is_stable=True, num_keys=2)
    dead, found = dead[..., :k], places[..., :k]
    values = where(dead, np.zeros((), flat.dtype), _taken(flat, found))
    return [_back(values, x.dtype), where(dead, _NOWHERE, found.astype(np.uint32))]


def quantiles(keep: Quantiles, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the part of `tracerec.keeping.Quantiles`."""
    form = number_format(x.dtype)
    shape, size = x.shape[:lanes], math.prod(x.shape[lanes:])
    wanted: Any = keep.q
    if not size:
        return [jnp.full((*shape, len(wanted)), form.dtype(np.nan), form.dtype)]
    keys, counts = _ordered(x)
    counts = counts if valid is None else counts & valid
    last = keys.dtype.type(np.iinfo(keys.dtype).max)
    keys = lax.sort(where(counts, keys, last).reshape(*shape, size), dimension=lanes)
    count = jnp.sum(counts.astype(np.uint32), axis=tuple(range(lanes, x.ndim)), dtype=np.uint32)
    most = where(count == np.uint32(0), count, count - np.uint32(1))
    found: list[jax.Array] = []
    for q in wanted:
        whole, rest = _times(most, q)
        ends = [_taken(keys, lax.min(place, most)[..., None].astype(np.int32))[..., 0] for place in (whole, whole + 1)]
        low, high = (_number(end, x.dtype, form) for end in ends)
        part = rest.astype(form.dtype) * form.dtype(2.0**-32)
        between = low * (form.dtype(1) - part) + high * part
        found.append(where((rest == np.uint32(0)) | (ends[0] == ends[1]), low, between))
    numbers = jnp.stack(found, axis=-1)
    return [where((count == np.uint32(0))[..., None], form.dtype(np.nan), numbers)]


def _carried(x: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Returns what is to be moved about: small floats as integers, lest a backend computes and quietens a NaN."""
    if jnp.issubdtype(x.dtype, np.floating) and x.dtype.name.startswith(("float8", "float16", "bfloat16")):
        x = lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))
    return _cleared(x, valid)


def _back(x: jax.Array, dtype: Any) -> jax.Array:
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)


def _cleared(x: jax.Array, valid: jax.Array | None) -> jax.Array:
    return x if valid is None else where(valid, x, np.zeros((), x.dtype))


def _taken(x: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, places, axis=-1, mode="promise_in_bounds")


def _sizes(x: jax.Array) -> jax.Array:
    """Returns signed integers in the order of the magnitudes, all NaN alike and above."""
    values = plain(x)
    if is_integer(x.dtype):
        size = absolute(values)
        form = number_format(np.int64 if size.dtype == np.uint64 else np.int32)
        return lax.bitcast_convert_type(size ^ form.sign, form.signed)
    form = Floats.of(x.dtype).format
    bits = lax.min(to_bits(values) & ~form.sign, jnp.broadcast_to(form.infinity + form.bits(1), x.shape))
    return lax.bitcast_convert_type(bits, form.signed)


def _ordered(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns integers in the order of the elements, and which elements are finite."""
    values = plain(x)
    if is_integer(x.dtype):
        return values, jnp.ones(x.shape, np.bool_)
    form = Floats.of(x.dtype).format
    bits = to_bits(values)
    return keyed(bits, form), (bits & ~form.sign) < form.infinity


def _number(key: jax.Array, dtype: Any, form: Any) -> jax.Array:
    if is_integer(dtype):
        return key.astype(form.dtype)
    return lax.bitcast_convert_type(unkeyed(key, form), form.dtype)


def _times(number: jax.Array, q: float) -> tuple[jax.Array, jax.Array]:
    """Returns the whole part of a uint32 number times q, and the rest in units of 2**-32: without 64-bit types."""
    factor = round(q * 2**32)
    if factor == 1 << 32:
        return number, jnp.zeros_like(number)
    half, low = np.uint32(16), np.uint32(0xFFFF)
    a0, a1, b0, b1 = number & low, number >> half, np.uint32(factor & 0xFFFF), np.uint32(factor >> 16)
    p00, p01, p10 = a0 * b0, a0 * b1, a1 * b0
    middle = (p00 >> half) + (p01 & low) + (p10 & low)
    return a1 * b1 + (p01 >> half) + (p10 >> half) + (middle >> half), (middle << half) | (p00 & low)
