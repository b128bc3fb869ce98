"""One call for every kind of keeping."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tracerec.errors import TapError
from tracerec.keeping import specs
from tracerec.tapping.reductions import binning, choosing, digesting, measuring, norming

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.keeping import Keep

__all__ = ["reduce", "reduce_parts"]

_MOST = 1 << 32
"""Elements of a lane that can be counted."""


def reduce(keep: Keep, x: jax.Array, lanes: int = 0, valid: jax.Array | None = None) -> list[jax.Array]:
    """Returns what is to be kept of a leaf: one array a part, ``(*lane axes, *the part's own)``.

    Can be traced anywhere, ``shard_map`` and ``scan`` included, and has no effects.

    Args:
        keep: what to keep; its ``parts`` name the arrays that come back.
        x: the leaf, of any dtype; PRNG keys as their uint32 data.
        lanes: how many leading axes are lanes, each of which is reduced by itself.
        valid: which elements count, bools that broadcast to the leaf; None: all.

    Raises:
        TapError: the leaf cannot be kept so: an index or an axis that it has not, 2**32 or more elements in a lane.
    """
    return list(reduce_parts(keep, x, lanes, valid).values())


def reduce_parts(keep: Keep, x: jax.Array, lanes: int = 0, valid: jax.Array | None = None) -> dict[str, jax.Array]:
    """Returns what `reduce` does, by the names of the parts: those of a `Function` show when it is traced."""
    if not 0 <= lanes <= x.ndim:
        message = f"{lanes} lane axes of a leaf with {x.ndim} axes"
        raise ValueError(message)
    if math.prod(x.shape[lanes:]) >= _MOST:
        message = f"keep={keep.name!r}: a leaf of shape {x.shape[lanes:]} has 2**32 elements or more"
        raise TapError(message)
    if isinstance(keep, specs.Function):
        found, _ = jax.tree.flatten_with_path(_applied(keep, x, lanes, valid))
        if not found:
            message = f"keep={keep!r}: the function returns no array"
            raise TapError(message)
        return {_path(path): part for path, part in found}
    return dict(zip(keep.parts, _reduced(keep, x, lanes, valid), strict=True))


@partial(jax.jit, static_argnums=(0, 2))
def _reduced(keep: Keep, x: jax.Array, lanes: int, valid: jax.Array | None) -> list[jax.Array]:
    mask = None if valid is None else jnp.broadcast_to(valid, x.shape)
    if isinstance(keep, specs.Full):
        return [x]
    if isinstance(keep, specs.Cast):
        return choosing.cast(keep, x, mask)
    return _REDUCTIONS[type(keep)](keep, x, lanes, mask)


@partial(jax.jit, static_argnums=(0, 2))
def _applied(keep: Any, x: jax.Array, lanes: int, valid: jax.Array | None) -> Any:
    return norming.apply(keep, x, lanes, None if valid is None else jnp.broadcast_to(valid, x.shape))


_REDUCTIONS: dict[type[Keep], Callable[[Any, jax.Array, int, jax.Array | None], list[jax.Array]]] = {
    specs.Summary: lambda _, x, lanes, mask: measuring.summarize(x, lanes, mask),
    specs.Fingerprint: lambda _, x, lanes, mask: digesting.fingerprint(x, lanes, mask),
    specs.Histogram: binning.histogram,
    specs.Slice: choosing.cut,
    specs.Sample: choosing.sample,
    specs.Quantiles: choosing.quantiles,
    specs.TopK: choosing.top,
    specs.Norms: norming.norms,
}


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") if path else "value"
