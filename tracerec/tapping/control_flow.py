"""Marks lanes that do not count: those that vmap runs through a branch or loop although they did not take it.

When a cond's predicate is batched, JAX runs every branch on all lanes; when a while's is, it goes on with finished
ones. So while JAX batches such a cond or while, this marks the axis of the vmap: the mark goes wherever that axis goes,
to the batching rule of each tap inside, at once or when something later differentiates a custom rule.

A rule of ``jax.custom_batching`` is the user's own and has no such axis: what it binds is marked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from tracerec.model import Transform
from tracerec.tapping._jax import (
    CUSTOM_VMAP,
    DEBUG_EFFECT,
    ORDERED_EFFECT,
    jex,
    lanes_differ,
    lu,
    with_lanes_that_differ,
    wrap_batching_rule,
)
from tracerec.tapping.context import batching_under, is_batching_under
from tracerec.tapping.masks import is_told

if TYPE_CHECKING:
    from tracerec.tapping.emitters import TapSpec

__all__ = ["install", "marked_transforms", "marks", "may_be_invalid"]

_UNKNOWN = Transform("mask", lanes_may_be_invalid=True)


def install(tap: Any) -> None:
    """Wraps batching rules of JAX. Called once, when taps are first imported.

    Args:
        tap: the tap primitive.
    """
    wrap_batching_rule(lax.cond_p, _batch_cond)
    wrap_batching_rule(lax.while_p, _batch_while)

    def batch_custom(rule: Any, axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
        return _batch_custom(tap, rule, axis, args, dims, **params)

    wrap_batching_rule(CUSTOM_VMAP, batch_custom)


def may_be_invalid(axis: Any) -> bool:
    """Returns whether what is batched with an axis runs for lanes that do not count."""
    return lanes_differ(axis) or (axis.spmd_name is not None and is_batching_under(_differ(axis)))


def _batch_cond(rule: Any, axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
    # lanes of a vmap are all on one platform
    differ = dims[0] is not None and "branches_platforms" not in params
    if differ and any(map(_may_tap, params["branches"])):
        return _batch_marked(rule, axis, args, dims, params)
    return rule(axis, args, dims, **params)


def _batch_while(rule: Any, axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
    may_tap = _may_tap(params["body_jaxpr"]) or _may_tap(params["cond_jaxpr"])
    if may_tap and _predicate_has_lanes(rule, axis, args, dims, params):
        return _batch_marked(rule, axis, args, dims, params)
    return rule(axis, args, dims, **params)


def _batch_marked(rule: Any, axis: Any, args: Any, dims: Any, params: Any) -> Any:
    marked = with_lanes_that_differ(axis)
    if axis.spmd_name is None:
        return rule(marked, args, dims, **params)
    # shard_map makes a new axis for its part of the lanes, without the mark; it does so while the rule runs
    with batching_under(_differ(axis)):
        return rule(marked, args, dims, **params)


def _differ(axis: Any) -> tuple[Any, ...]:
    return ("lanes differ", axis.spmd_name)


def _predicate_has_lanes(rule: Any, axis: Any, args: Any, dims: Any, params: Any) -> bool:
    """Returns whether a while's predicate is batched, so that lanes end at different times.

    JAX finds out only after it has batched the body, and may then use that body again: too late for the taps in it. So
    the rule is tried on abstract values first; a batched predicate has one axis more.
    """
    tried = jax.make_jaxpr(lambda *xs: rule(axis, xs, dims, **params)[0])(*args)
    (loop,) = (eqn for eqn in tried.eqns if eqn.primitive is lax.while_p)
    rank_after, rank_before = (p["cond_jaxpr"].out_avals[0].ndim for p in (loop.params, params))
    return rank_after > rank_before


# Primitives with Python functions that JAX calls when it differentiates or batches them: they may tap as well.
_WITH_RULES = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "remat_opt"})


def _may_tap(jaxpr: Any) -> bool:
    return DEBUG_EFFECT in jaxpr.effects or ORDERED_EFFECT in jaxpr.effects or _has_rules(jaxpr)


def _has_rules(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in _WITH_RULES or any(map(_has_rules, _jaxprs_of(list(eqn.params.values()))))
        for eqn in jaxpr.eqns
    )


def _jaxprs_of(values: list[Any]) -> list[Any]:
    """Returns the jaxprs among an equation's parameters, and in the tuples among them."""
    out: list[Any] = []
    for value in values:
        if isinstance(value, (jex.ClosedJaxpr, jex.Jaxpr)):
            out.append(value)
        elif isinstance(value, tuple):
            out.extend(_jaxprs_of(list(value)))  # pyright: ignore[reportUnknownArgumentType]
    return out


def _batch_custom(tap: Any, rule: Any, axis: Any, args: Any, dims: Any, /, **params: Any) -> Any:
    if may_be_invalid(axis):
        params = _marked_custom(params, tap)
    return rule(axis, args, dims, **params)


def _marked_custom(params: dict[str, Any], tap: Any) -> dict[str, Any]:
    """Returns the parameters of a custom_vmap with marks on the taps of its function and its rule."""
    return {**params, "call": _marked(params["call"], tap), "rule": _marked_rule(params["rule"], tap)}


def _marked_rule(rule: Any, tap: Any) -> Any:
    """Returns a rule of a custom_vmap with marks on its taps.

    The rule is free to tap one lane, all of them, or something else, so there is no batch to carry the mark.
    """

    def marked_rule(size: int, in_batched: Any, *args: Any) -> Any:
        out_batched: list[Any] = []

        def called(*xs: Any) -> Any:
            out, batched = rule(size, in_batched, *xs)
            out_batched.append(batched)
            return out

        traced, shape = jax.make_jaxpr(called, return_shape=True)(*args)
        flat = jex.jaxpr_as_fun(_marked(traced, tap))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), flat), out_batched[-1]

    return marked_rule


def _marked(value: Any, tap: Any) -> Any:
    """Returns an equation's parameter with marks on all taps in it that do not say themselves which lanes count."""
    if isinstance(value, tuple):
        return tuple(_marked(each, tap) for each in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, lu.WrappedFun):
        return _marking(value)
    if not isinstance(value, (jex.ClosedJaxpr, jex.Jaxpr)):
        return value
    jaxpr: Any = getattr(value, "jaxpr", value)
    marked = jaxpr.replace(eqns=[_marked_equation(eqn, tap) for eqn in jaxpr.eqns])
    return marked if jaxpr is value else value.replace(jaxpr=marked)


def _marked_equation(eqn: Any, tap: Any) -> Any:
    if eqn.primitive is tap:
        transforms = marked_transforms(eqn.params["spec"], eqn.params["transforms"])
        return eqn.replace(params={**eqn.params, "transforms": transforms})
    if eqn.primitive is CUSTOM_VMAP:
        return eqn.replace(params=_marked_custom(eqn.params, tap))
    return eqn.replace(params={name: _marked(value, tap) for name, value in eqn.params.items()})


def marked_transforms(spec: TapSpec, transforms: tuple[Transform, ...]) -> tuple[Transform, ...]:
    """Returns a tap's transforms with a mark, unless it has one or says by itself whether it counts."""
    known = is_told(spec.columns) or any(transform.lanes_may_be_invalid for transform in transforms)
    return transforms if known else (*transforms, _UNKNOWN)


_MARKING = ("marking",)


@lu.transformation2
def _marking(rule: Any, *args: Any) -> Any:
    """Calls the rule of a custom_jvp or custom_vjp, which JAX does later, so that its taps are marked when bound."""
    with batching_under(_MARKING):
        return rule(*args)


def marks() -> bool:
    """Returns whether taps that are bound now are to be marked: a custom rule runs for lanes that do not count."""
    return is_batching_under(_MARKING)
