"""Keeps JAX's caches apart for branches and loops with taps that are batched under different predicates.

JAX caches the batched form of a branch by the branch and by which operands are batched. A tap's record also depends on
whether the *predicate* is batched: then all lanes run, and some do not count. So while JAX batches a cond or while that
has taps, this is part of the cache key, as scopes are.
"""

from __future__ import annotations

from typing import Any

from jax import lax

from tracerec.tapping._jax import DEBUG_EFFECT, ORDERED_EFFECT, wrap_batching_rule
from tracerec.tapping.context import batching_under

__all__ = ["install"]


def install() -> None:
    """Wraps the batching rules of cond and while. Called once, when taps are first imported."""
    wrap_batching_rule(lax.cond_p, _cond)
    wrap_batching_rule(lax.while_p, _while)


def _cond(rule: Any, axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    if not any(map(_has_taps, params["branches"])):
        return rule(axis, args, dims, **params)
    with batching_under(("cond", dims[0] is not None)):
        return rule(axis, args, dims, **params)


def _while(rule: Any, axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    if not (_has_taps(params["body_jaxpr"]) or _has_taps(params["cond_jaxpr"])):
        return rule(axis, args, dims, **params)
    # Whether the predicate is batched follows from the condition and what of its operands is.
    with batching_under(("while", params["cond_jaxpr"], tuple(dims))):
        return rule(axis, args, dims, **params)


def _has_taps(jaxpr: Any) -> bool:
    return DEBUG_EFFECT in jaxpr.effects or ORDERED_EFFECT in jaxpr.effects
