"""Norms along axes, and what users' functions make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from tracerec.errors import TapError
from tracerec.tapping.reductions.leaves import (
    axes_of,
    is_integer,
    lowered,
    number_format,
    plain,
    power_of_two,
    scaled,
    to_bits,
    where,
)

if TYPE_CHECKING:
    from tracerec.keeping.specs import Function, Norms

__all__ = ["apply", "norms"]

_LOW = -100
"""Exponents below which a norm may be subnormal."""


def norms(keep: Norms, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the part of `tracerec.keeping.Norms`; the mask is of the leaf's shape."""
    axes = _axes(keep, x, lanes)
    form = number_format(x.dtype)
    values = plain(x)
    if is_integer(x.dtype):
        numbers = values.astype(form.dtype)
        numbers = numbers if valid is None else where(valid, numbers, form.dtype(0))
        return [jnp.sqrt(jnp.sum(jnp.square(numbers), axis=axes))]
    bits = to_bits(values)
    bits = bits if valid is None else where(valid, bits, form.bits(0))
    largest = lax.reduce(bits & ~form.sign, form.bits(0), lax.max, axes)
    field = lax.bitcast_convert_type(largest >> form.bits(form.fraction), form.signed)
    exponent = where(
        field == form.signed(0),
        form.signed(1 - form.bias - form.fraction),
        lax.min(field, form.signed(2 * form.bias - 1)) - form.signed(form.bias),
    )
    spread = jnp.expand_dims(exponent, axes)
    size = jnp.sqrt(jnp.sum(jnp.square(scaled(bits, spread, form)), axis=axes))
    usual = size * power_of_two(lax.max(exponent, form.signed(_LOW)), form)
    small = size * power_of_two(lax.min(exponent, form.signed(_LOW)) - form.signed(_LOW), form)
    found = where(exponent < form.signed(_LOW), lowered(small, -_LOW, form), to_bits(usual))
    found = where(largest == form.bits(0), form.bits(0), found)
    found = where(largest >= form.infinity, largest, found)
    return [lax.bitcast_convert_type(found, form.dtype)]


def apply(keep: Function, x: jax.Array, lanes: int, valid: jax.Array | None) -> Any:
    """Returns what a user's function makes of each lane: a pytree of arrays, lane axes first."""
    function: Any = keep.func
    if function is None:
        message = f"keep={keep!r} was read from a recording, which has the function's name alone"
        raise TapError(message)

    def one(x: jax.Array, valid: jax.Array | None) -> Any:
        found = function(x, where=valid) if keep.where else function(x)
        return jax.tree.map(jnp.asarray, found)

    batched = one
    for _ in range(lanes):
        batched = jax.vmap(batched)
    return batched(x, valid)


def _axes(keep: Norms, x: jax.Array, lanes: int) -> tuple[int, ...]:
    own, wanted = axes_of(x, lanes), cast("tuple[int, ...] | None", keep.axis)
    if wanted is None:
        return own
    try:
        found = sorted({own[axis] for axis in wanted})
    except IndexError:
        found = []
    if len(found) != len(wanted):
        message = f"keep={keep!r} of a leaf of shape {x.shape[lanes:]}: it has not those axes, or one of them twice"
        raise TapError(message)
    return tuple(found)
