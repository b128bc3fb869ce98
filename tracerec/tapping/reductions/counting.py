"""Counts, exact ranges and digests: everything that is integers, in one pass over the leaf."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tracerec.tapping.reductions.leaves import Floats, axes_of, is_integer, keyed, plain, to_bits, where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Census", "Operand", "added", "census", "together"]

Operand = tuple[jax.Array, "Callable[[Any, Any], Any]", Any]
"""What is reduced, how two of them are put together, and what changes nothing."""

_SPLIT = 1 << 14
"""Elements from which on a reduction is taken in two steps: the first has many results, and uses all cores."""

_ROW = 256
"""Elements that the first step reduces at least."""


@dataclasses.dataclass(frozen=True)
class Census:
    """What one pass finds, an array of the lanes' shape each.

    Attributes:
        counts: uint32, in the order of `tracerec.keeping.COUNTED`, as a last axis.
        low: the smallest finite element: an integer, or what `keyed` makes of a float's bits.
        high: the largest; below the smallest where no element is finite.
        finite: uint32, how many elements are finite.
        more: the reductions of the operands that came along, by name.
    """

    counts: jax.Array
    low: jax.Array
    high: jax.Array
    finite: jax.Array
    more: Mapping[str, jax.Array]


def added(x: jax.Array) -> Operand:
    """Returns an operand that is summed modulo 2**32; bools are 0 and 1."""
    return x.astype(np.uint32), lax.add, np.uint32(0)


def census(
    x: jax.Array, lanes: int, valid: jax.Array | None, more: Mapping[str, Operand] | None = None, *, ends: bool = True
) -> Census:
    """Counts a leaf's elements and finds the range of the finite ones.

    Args:
        x: the leaf.
        lanes: how many leading axes are lanes.
        valid: which elements count, of the leaf's shape; None: all.
        more: operands of the leaf's shape to reduce in the same pass, what does not count left out already.
        ends: whether the range is wanted.
    """
    values = plain(x)
    operands = _of_integers(values) if is_integer(x.dtype) else _of_floats(values, Floats.of(x.dtype))
    if not ends:
        del operands["low"], operands["high"]
    if valid is not None:
        operands = {name: _masked(operand, valid) for name, operand in operands.items()}
        operands["count"] = added(valid)
    found = together(operands | dict(more or {}), lanes)
    size = math.prod(x.shape[lanes:])
    count = found.get("count", jnp.full(x.shape[:lanes], size, np.uint32))
    nothing = jnp.zeros(x.shape[:lanes], np.uint32)
    bad = [found.get(name, nothing) for name in ("nan", "posinf", "neginf")]
    return Census(
        counts=jnp.stack([count, *bad, found.get("zeros", nothing), found.get("subnormals", nothing)], axis=-1),
        low=found.get("low", nothing),
        high=found.get("high", nothing),
        finite=count - bad[0] - bad[1] - bad[2],
        more={name: found[name] for name in more or {}},
    )


def together(operands: Mapping[str, Operand], lanes: int) -> dict[str, jax.Array]:
    """Reduces operands of one shape over all axes but the first ``lanes``, in one pass over memory."""
    arrays = [x for x, _, _ in operands.values()]
    if arrays[0].ndim == lanes:
        return dict(zip(operands, arrays, strict=True))
    combine = [function for _, function, _ in operands.values()]
    starts = tuple(start for _, _, start in operands.values())

    def put_together(a: Any, b: Any) -> Any:
        return tuple(function(p, q) for function, p, q in zip(combine, a, b, strict=True))

    shape = arrays[0].shape
    axes = axes_of(arrays[0], lanes)
    steps = [axes]
    if math.prod(shape) >= _SPLIT:
        first = next((n for n in range(1, len(axes)) if math.prod(shape[-n:]) >= _ROW), len(axes))
        steps = [axes[len(axes) - first :], axes[: len(axes) - first]]
    for step in steps:
        if step:
            arrays = lax.reduce(tuple(arrays), starts, put_together, step)
    return dict(zip(operands, arrays, strict=True))


def _masked(operand: Operand, valid: jax.Array) -> Operand:
    x, function, start = operand
    return where(valid, x, start), function, start


def _of_integers(x: jax.Array) -> dict[str, Operand]:
    limits = np.iinfo(x.dtype)
    return {
        "low": (x, lax.min, x.dtype.type(limits.max)),
        "high": (x, lax.max, x.dtype.type(limits.min)),
        "zeros": added(x == x.dtype.type(0)),
    }


def _of_floats(x: jax.Array, facts: Floats) -> dict[str, Operand]:
    form = facts.format
    bits = to_bits(x)
    # Without the sign, and with room for numbers that wrap below zero.
    twice = bits << form.bits(1)
    edge = form.infinity << form.bits(1)
    key = keyed(bits, form)
    finite = twice < edge
    special = facts.nan or facts.infinity
    limits = np.iinfo(form.signed)
    least, most = form.signed(limits.min), form.signed(limits.max)
    smallest = form.bits(int(np.asarray(facts.smallest, form.dtype).view(form.bits)) << 1)
    operands: dict[str, Operand] = {
        "low": (where(finite, key, most) if special else key, lax.min, most),
        "high": (where(finite, key, least) if special else key, lax.max, least),
        "zeros": added(twice == form.bits(0)),
        "subnormals": added(twice - form.bits(1) < smallest - form.bits(1)),
    }
    if facts.nan:
        operands["nan"] = added(twice > edge)
    if facts.infinity:
        operands["posinf"] = added(bits == form.infinity)
        if facts.negative:
            operands["neginf"] = added(bits == (form.infinity | form.sign))
    return operands
