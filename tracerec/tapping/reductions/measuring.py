"""A summary's moments: sums of floats that neither overflow nor lose, quick where the numbers are ordinary."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tracerec.tapping.reductions.counting import Census, census
from tracerec.tapping.reductions.leaves import (
    Floats,
    Format,
    absolute,
    axes_of,
    from_bits,
    is_integer,
    number_format,
    plain,
    scaled,
    to_bits,
    unkeyed,
    where,
)

__all__ = ["summarize"]


def summarize(x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the parts of `tracerec.keeping.Summary`; the mask is of the leaf's shape."""
    if math.prod(x.shape[lanes:]) == 0:
        return _of_nothing(x, lanes)
    # A magnitude costs more than a pass over memory: it is computed once.
    values = plain(x) if jnp.issubdtype(x.dtype, np.complexfloating) else x
    found = census(values, lanes, valid)
    return [found.counts, _range(values.dtype, found), _moments(values, lanes, valid, found)]


def _of_nothing(x: jax.Array, lanes: int) -> list[jax.Array]:
    shape = x.shape[:lanes]
    own = _own(x.dtype)
    none: Any = np.zeros((), own) if is_integer(own) or not Floats.of(own).nan else np.asarray(np.nan).astype(own)
    form = number_format(x.dtype)
    empty = np.array([np.nan] * 4 + [0], form.dtype)
    return [
        jnp.zeros((*shape, 6), np.uint32),
        jnp.full((*shape, 2), none, own),
        jnp.broadcast_to(jnp.asarray(empty), (*shape, 5)),
    ]


def _own(dtype: Any) -> Any:
    if dtype == np.complex64:
        return np.float32
    return np.float64 if dtype == np.complex128 else dtype


def _range(dtype: Any, found: Census) -> jax.Array:
    ends = jnp.stack([found.low, found.high], axis=-1)
    some = jnp.stack([found.low <= found.high] * 2, axis=-1)
    if is_integer(dtype):
        return where(some, ends, ends.dtype.type(0)).astype(dtype)
    facts = Floats.of(dtype)
    form = facts.format
    none = form.infinity | (form.infinity >> form.bits(1)) if facts.nan else form.bits(0)
    return from_bits(where(some, unkeyed(ends, form), none), dtype)


def _moments(x: jax.Array, lanes: int, valid: jax.Array | None, found: Census) -> jax.Array:
    integer = is_integer(x.dtype)
    careful = _careful_integers if integer else _careful_floats
    if valid is not None:
        return careful(x, lanes, valid, found)
    facts = None if integer else Floats.of(x.dtype)
    if x.dtype.itemsize <= 2 and (facts is None or not (facts.nan or facts.infinity)):  # noqa: PLR2004 - bytes of int16
        return _quick(x, lanes, found)
    form = number_format(x.dtype)
    if integer:
        ordinary = lax.max(absolute(found.low), absolute(found.high)) <= form.bits(1 << form.fraction)
    else:
        ordinary = _is_ordinary(found, form) & (found.finite == found.counts[..., 0])
    # One number for all lanes: a branch for each would compute both.
    return lax.cond(
        jnp.all(ordinary),
        lambda x: _quick(x, lanes, found),
        lambda x: careful(x, lanes, None, found),
        x,
    )


def _quick(x: jax.Array, lanes: int, found: Census) -> jax.Array:
    """All elements are finite, and their squares can be summed."""
    form = number_format(x.dtype)

    def floats(x: jax.Array) -> jax.Array:
        return x.astype(form.dtype) if is_integer(x.dtype) else plain(x).astype(form.dtype)

    mean = _sum(floats(x), lanes) * form.dtype(1 / math.prod(x.shape[lanes:]))
    x, mean = _apart(x, mean)
    away = floats(x) - _spread(mean, x)
    squares = _sum(away * away, lanes)
    x, squares = _apart(x, squares)
    return _stacked(found, form, mean, squares, _sum(lax.abs(floats(x)), lanes))


def _apart(x: jax.Array, result: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns both, such that what follows converts the leaf anew.

    XLA has kernels that sum narrow elements as floats. It does not use them where several sums share the
    conversion: then the floats are written to memory first, which takes more time than the sums.
    """
    if x.dtype.name not in _QUICKLY_CONVERTED:
        return x, result
    return lax.optimization_barrier((x, result))


_QUICKLY_CONVERTED = frozenset({"bfloat16", "int8", "uint8"})


def _careful_floats(x: jax.Array, lanes: int, valid: jax.Array | None, found: Census) -> jax.Array:
    form = number_format(x.dtype)
    exponent = _exponent(found, form)
    bits = to_bits(plain(x))
    counts = (bits << form.bits(1)) < (form.infinity << form.bits(1))
    counts = counts if valid is None else counts & valid
    values = where(counts, scaled(bits, _spread(exponent, x), form), form.dtype(0))
    mean = _sum(values, lanes) / found.finite.astype(form.dtype)
    away = where(counts, values - _spread(mean, x), form.dtype(0))
    return _stacked(found, form, mean, _sum(away * away, lanes), _sum(lax.abs(values), lanes), exponent=exponent)


def _careful_integers(x: jax.Array, lanes: int, valid: jax.Array | None, found: Census) -> jax.Array:
    """Floats do not hold the elements, but their distances from a number near the mean."""
    form = number_format(x.dtype)
    values = plain(x)

    def of_those_that_count(numbers: jax.Array) -> jax.Array:
        return numbers if valid is None else where(valid, numbers, form.dtype(0))

    count = found.finite.astype(form.dtype)
    near = _sum(of_those_that_count(values.astype(form.dtype)), lanes) / count
    near = lax.clamp(found.low, _whole(near, values.dtype, form), found.high)
    middle = _spread(near, x)
    above = values >= middle
    far, middle = (lax.bitcast_convert_type(y, form.bits) for y in (values, jnp.broadcast_to(middle, x.shape)))
    distance = where(above, far - middle, middle - far).astype(form.dtype)
    distance = of_those_that_count(where(above, distance, -distance))
    shift = _sum(distance, lanes) / count
    away = of_those_that_count(distance - _spread(shift, x))
    sizes = of_those_that_count(absolute(values).astype(form.dtype))
    return _stacked(found, form, near.astype(form.dtype) + shift, _sum(away * away, lanes), _sum(sizes, lanes))


def _stacked(
    found: Census,
    form: Format,
    mean: jax.Array,
    squares: jax.Array,
    l1: jax.Array,
    *,
    exponent: jax.Array | None = None,
) -> jax.Array:
    """Returns the part, of what has the lanes' shape; the squares are those of the distances from the mean."""
    count = found.finite.astype(form.dtype)
    # Of equal elements a mean may be off by its last bit, and they must not be said to be spread.
    squares = where(found.low == found.high, form.dtype(0), squares)
    numbers = [mean, lax.sqrt(squares / count), l1, lax.sqrt(squares + count * mean * mean)]
    numbers = [where(found.low <= found.high, number, form.dtype(np.nan)) for number in numbers]
    last = jnp.zeros_like(mean) if exponent is None else exponent.astype(form.dtype)
    return jnp.stack([*numbers, last], axis=-1)


def _largest(found: Census, form: Format) -> jax.Array:
    """Returns the bits of the largest magnitude."""
    return lax.max(*(unkeyed(key, form) & ~form.sign for key in (found.low, found.high)))


def _is_ordinary(found: Census, form: Format) -> jax.Array:
    """Returns whether each lane's elements can be summed and squared as they are."""
    largest = _largest(found, form)
    least, most = (form.bits((form.bias + power) << form.fraction) for power in (form.low, form.high))
    return ((largest >= least) & (largest < most)) | (largest == form.bits(0))


def _exponent(found: Census, form: Format) -> jax.Array:
    """Returns by which power of two each lane's elements are scaled: 0 where they need not be."""
    field = lax.bitcast_convert_type(_largest(found, form) >> form.bits(form.fraction), form.signed)
    # 1 / 2**bias would be subnormal, and so would any smaller unit of subnormal numbers be.
    exponent = lax.min(field - form.signed(form.bias), jnp.full_like(field, form.bias - 1))
    exponent = where(field == form.signed(0), form.signed(1 - form.bias - form.fraction), exponent)
    return where(_is_ordinary(found, form) | (found.low > found.high), form.signed(0), exponent)


def _whole(number: jax.Array, dtype: Any, form: Format) -> jax.Array:
    """Returns floats as integers; what is beyond the dtype, or NaN, as some integer of it."""
    limits = np.iinfo(dtype)
    most = np.nextafter(form.dtype(limits.max), form.dtype(0))
    inside = (number > form.dtype(limits.min)) & (number < most)
    return where(inside, number, where(number >= most, most, form.dtype(limits.min))).astype(dtype)


def _sum(x: jax.Array, lanes: int) -> jax.Array:
    return lax.reduce(x, x.dtype.type(0), lax.add, axes_of(x, lanes))


def _spread(of_lanes: jax.Array, x: jax.Array) -> jax.Array:
    """Returns an array of the lanes' shape as one that broadcasts to the leaf."""
    return lax.expand_dims(of_lanes, tuple(range(of_lanes.ndim, x.ndim)))
