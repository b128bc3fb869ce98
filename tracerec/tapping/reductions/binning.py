"""Histograms: each element's bin, then one scatter of ones, which is quicker than a comparison a bin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tracerec.keeping.bins import LINEAR_BINS, exponent_bins, histogram_edges
from tracerec.keeping.specs import OUTSIDE
from tracerec.tapping.reductions.counting import census
from tracerec.tapping.reductions.leaves import (
    Floats,
    Format,
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
    from tracerec.keeping.specs import Histogram

__all__ = ["histogram"]


def histogram(keep: Histogram, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the parts of a `tracerec.keeping.Histogram`; the mask is of the leaf's shape."""
    if keep.by == "exponent":
        bins, places = _by_exponent(keep, x)
        more: list[jax.Array] = []
    elif keep.range is not None:
        edges = histogram_edges(keep, x.dtype.name)
        bins = len(edges) - 1
        form = number_format(x.dtype)
        keys = keyed(to_bits(jnp.asarray(edges.astype(form.dtype))), form)
        places, more = _by_value(_compared(x), keys), []
    else:
        bins = keep.bins or LINEAR_BINS
        edges = _edges(x, lanes, valid, bins)
        keys = keyed(to_bits(edges), number_format(x.dtype))
        batched = _by_value
        for _ in range(lanes):
            batched = jax.vmap(batched)
        places, more = batched(_compared(x), keys), [edges]
    places = _outside(x, places, bins)
    if valid is not None:
        places = where(valid, places, np.int32(bins + len(OUTSIDE)))
    counts = _counted(places, lanes, bins + len(OUTSIDE) + 1)
    return [counts[..., :bins], counts[..., bins:-1], *more]


def _counted(places: jax.Array, lanes: int, width: int) -> jax.Array:
    """Returns how often each place occurs, lane by lane."""
    shape = places.shape[:lanes]
    row = jnp.zeros(places.shape, np.int32)
    step = width
    for axis in reversed(range(lanes)):
        row += lax.broadcasted_iota(np.int32, places.shape, axis) * np.int32(step)
        step *= places.shape[axis]
    flat = jnp.zeros(math.prod(shape) * width, np.uint32).at[places + row].add(np.uint32(1), mode="promise_in_bounds")
    return flat.reshape(*shape, width)


def _outside(x: jax.Array, places: jax.Array, bins: int) -> jax.Array:
    """Returns the places with those of elements that are not finite put right."""
    if is_integer(x.dtype):
        return places
    form = Floats.of(x.dtype).format
    bits = to_bits(plain(x))
    nan = (bits & ~form.sign) > form.infinity
    for name, there in (
        ("nan", nan),
        ("posinf", bits == form.infinity),
        ("neginf", bits == (form.infinity | form.sign)),
    ):
        places = where(there, np.int32(bins + OUTSIDE.index(name)), places)
    return places


def _by_exponent(keep: Histogram, x: jax.Array) -> tuple[int, jax.Array]:
    low, high, bins = exponent_bins(keep, x.dtype.name)
    exponent, zero = _exponents(x)
    inside = lax.clamp(np.int32(low), exponent, np.int32(high)) - np.int32(low)
    places = lax.div(inside * np.int32(bins), np.int32(high - low + 1))
    places = where(exponent < np.int32(low), np.int32(bins + OUTSIDE.index("under")), places)
    places = where(exponent > np.int32(high), np.int32(bins + OUTSIDE.index("over")), places)
    return bins, where(zero, np.int32(bins + OUTSIDE.index("zeros")), places)


def _exponents(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the power of two at or below each magnitude, as int32, and which elements are zero."""
    values = plain(x)
    if is_integer(x.dtype):
        size = absolute(values)
        top = size.dtype.itemsize * 8 - 1
        return np.int32(top) - lax.clz(size).astype(np.int32), size == size.dtype.type(0)
    form = Floats.of(x.dtype).format
    size = to_bits(values) & ~form.sign
    field = (size >> form.bits(form.fraction)).astype(np.int32)
    low = np.int32(form.size - form.bias - form.fraction) - lax.clz(size).astype(np.int32)
    exponent = where(field == np.int32(0), low, field - np.int32(form.bias))
    return exponent, size == form.bits(0)


def _compared(x: jax.Array) -> jax.Array:
    """Returns integers in the order of the elements as floats, zeros all alike."""
    form = number_format(x.dtype)
    values = plain(x)
    bits = to_bits(values.astype(form.dtype) if is_integer(x.dtype) else values)
    return keyed(where(bits == form.sign, form.bits(0), bits), form)


def _by_value(keys: jax.Array, edges: jax.Array) -> jax.Array:
    bins = len(edges) - 1
    places = jnp.searchsorted(edges, keys, side="right").astype(np.int32) - np.int32(1)
    places = lax.clamp(np.int32(0), places, np.int32(bins - 1))
    places = where(keys < edges[0], np.int32(bins + OUTSIDE.index("under")), places)
    return where(keys > edges[-1], np.int32(bins + OUTSIDE.index("over")), places)


def _edges(x: jax.Array, lanes: int, valid: jax.Array | None, bins: int) -> jax.Array:
    """Returns edges from the smallest to the largest finite element, which both are edges exactly."""
    form = number_format(x.dtype)
    found = census(x, lanes, valid)
    low, high = (_as_floats(end, x, form)[..., None] for end in (found.low, found.high))
    none = (found.low > found.high)[..., None]
    low, high = where(none, form.dtype(0), low), where(none, form.dtype(1), high)
    same = to_bits(low) == to_bits(high)
    low, high = where(same, low - form.dtype(0.5), low), where(same, high + form.dtype(0.5), high)
    part = jnp.asarray((np.arange(bins + 1) / bins).astype(form.dtype)).reshape((1,) * lanes + (-1,))
    middle = low * (form.dtype(1) - part) + high * part
    edges = jnp.concatenate([low, middle[..., 1:-1], high], axis=-1)
    # Rounding must not put an edge before the one below it, or beyond the last.
    keys = keyed(to_bits(edges), form)
    keys = lax.cummax(lax.min(keys, jnp.broadcast_to(keys[..., -1:], keys.shape)), axis=lanes)
    return lax.bitcast_convert_type(unkeyed(keys, form), form.dtype)


def _as_floats(end: jax.Array, x: jax.Array, form: Format) -> jax.Array:
    if is_integer(x.dtype):
        return end.astype(form.dtype)
    bits = unkeyed(end, form)
    return lax.bitcast_convert_type(where(bits == form.sign, form.bits(0), bits), form.dtype)
