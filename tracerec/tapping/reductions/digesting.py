"""Fingerprints: the digest of `tracerec.keeping.digests`, in the same pass as the counts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tracerec.keeping.digests import LANES, WORD_STRIDE, Lane, fingerprint_seed
from tracerec.tapping.reductions.counting import Operand, added, census
from tracerec.tapping.reductions.leaves import where

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fingerprint"]

_WORD = 1 << 32


def fingerprint(x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    """Returns the parts of `tracerec.keeping.Fingerprint`; the mask is of the leaf's shape."""
    words = _words(x)
    operands: dict[str, Operand] = {}
    for number, lane in enumerate(LANES):
        mixed = functools.reduce(lax.add, [_mixed(word, place, lane, lanes) for place, word in enumerate(words)])
        operands[str(number)] = added(mixed if valid is None else where(valid, mixed, np.uint32(0)))
    found = census(x, lanes, valid, operands, ends=False)
    seed = fingerprint_seed(x.dtype.name, x.shape[lanes:])
    digest = [found.more[str(number)] + np.uint32(start) for number, start in enumerate(seed)]
    return [jnp.stack(digest, axis=-1), found.counts]


def _words(x: jax.Array) -> list[jax.Array]:
    """Returns the 32-bit words of each element, the lowest first."""
    dtype = x.dtype
    if dtype == np.bool_:
        return [x.astype(np.uint32)]
    if jnp.issubdtype(dtype, np.complexfloating):
        return [*_words(lax.real(x)), *_words(lax.imag(x))]
    bits = lax.bitcast_convert_type(x, _unsigned(dtype))
    if bits.dtype == np.uint64:
        return [bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)]
    return [bits.astype(np.uint32)]


def _unsigned(dtype: Any) -> Any:
    """Returns the unsigned integers of a dtype's size in bits."""
    if dtype.name in {"int2", "uint2"}:
        return ml_dtypes.uint2
    if dtype.name in {"int4", "uint4", "float4_e2m1fn"}:
        return ml_dtypes.uint4
    return np.dtype(f"u{dtype.itemsize}")


def _mixed(word: jax.Array, number: int, lane: Lane, lanes: int) -> jax.Array:
    """Returns the elements' words, mixed with their places."""
    factor, addend, (first, one, second, two, third) = lane
    x = word ^ _places(word.shape, lanes, factor, (addend + number * WORD_STRIDE * factor) % _WORD)
    x = (x ^ (x >> np.uint32(first))) * np.uint32(one)
    x = (x ^ (x >> np.uint32(second))) * np.uint32(two)
    return x ^ (x >> np.uint32(third))


def _places(shape: Sequence[int], lanes: int, factor: int, addend: int) -> jax.Array:
    """Returns ``position * factor + addend`` modulo 2**32 without joining axes: a sharded leaf stays as it is."""
    total = jnp.full(shape, np.uint32(addend), np.uint32)
    step = factor
    for axis in reversed(range(lanes, len(shape))):
        total += lax.broadcasted_iota(np.uint32, shape, axis) * np.uint32(step)
        step = step * shape[axis] % _WORD
    return total
