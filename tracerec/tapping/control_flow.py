"""Keeps JAX's caches apart for branches and loops with taps that are batched under different predicates.

JAX caches the batched form of a branch by the branch and by which operands are batched. A tap's record also depends on
whether the *predicate* is batched: then all lanes run, and some do not count. So while JAX batches a cond or while that
has taps, this is part of the cache key, as scopes are.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from tracerec.tapping._jax import DEBUG_EFFECT, ORDERED_EFFECT, wrap_batching_rule
from tracerec.tapping.context import batching_under

__all__ = ["install"]


def install() -> None:
    """Wraps the batching rules of cond and while. Called once, when taps are first imported."""
    wrap_batching_rule(lax.cond_p, _batch_cond)
    wrap_batching_rule(lax.while_p, _batch_while)


def _batch_cond(rule: Any, axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    if not any(map(_has_taps, params["branches"])):
        return rule(axis, args, dims, **params)
    with batching_under(("cond", dims[0] is not None)):
        return rule(axis, args, dims, **params)


def _batch_while(rule: Any, axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    if not (_has_taps(params["body_jaxpr"]) or _has_taps(params["cond_jaxpr"])):
        return rule(axis, args, dims, **params)
    # `runs_invalid_lanes` reads this variable, by its name, from the stack.
    lanes_differ = _lanes_differ(rule, axis, args, dims, params)
    with batching_under(("while", lanes_differ)):
        return rule(axis, args, dims, **params)


def _lanes_differ(rule: Any, axis: Any, args: Any, dims: Any, params: Any) -> bool:
    """Returns whether the predicate is batched, so that lanes end at different times.

    JAX finds out only after it has batched the body, and may then use that body again: too late for the taps in it. So
    the rule is tried on abstract values first; a batched predicate has one axis more.
    """
    with batching_under(("trial",)):
        tried = jax.make_jaxpr(lambda *xs: rule(axis, xs, dims, **params)[0])(*args)
    (loop,) = (eqn for eqn in tried.eqns if eqn.primitive is lax.while_p)
    rank_after, rank_before = (p["cond_jaxpr"].out_avals[0].ndim for p in (loop.params, params))
    return rank_after > rank_before


def _has_taps(jaxpr: Any) -> bool:
    return DEBUG_EFFECT in jaxpr.effects or ORDERED_EFFECT in jaxpr.effects
