"""custom_jvp and custom_vjp, with taps in the function and in its rules. Expected values are worked out by hand."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tapping.programs.program import COTANGENT, TANGENT, TRANSPOSE, Fired, Program, batch, f32
from tracerec import tap

TWO = np.float32(2)
THREE = np.float32(3)
LANES = f32([1, 3])


@jax.custom_jvp
def forward(x: Any) -> Any:
    """x^2; ``f`` fires when it is not differentiated, ``p`` and ``t`` in its rule."""
    return tap(x * x, "f")


@forward.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return tap(x * x, "p"), tap(t * x * 2.0, "t")


@jax.custom_jvp
def calls_itself(x: Any) -> Any:
    """x^2, and a rule that runs the function for the primal."""
    return tap(x * x, "f")


@calls_itself.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return calls_itself(x), t * x * 2.0


@jax.custom_vjp
def backward(x: Any) -> Any:
    """x^2; ``f`` fires when it is not differentiated, ``fwd`` and ``bwd`` when it is."""
    return tap(x * x, "f")


def _fwd(x: Any) -> Any:
    return tap(x * x, "fwd"), x


def _bwd(x: Any, ct: Any) -> Any:
    return (tap(ct * x * 2.0, "bwd"),)


backward.defvjp(_fwd, _bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x: Any, factor: float) -> Any:
    """A static argument."""
    return x * factor


scaled.defvjp(lambda x, factor: (tap(x * factor, "fwd"), None), lambda factor, _, ct: (tap(ct * factor, "bwd"),))


@jax.custom_gradient
def by_gradient(x: Any) -> Any:
    """custom_gradient is custom_vjp by another name."""
    return tap(x * x, "fwd"), lambda ct: tap(ct * x * 2.0, "bwd")


@jax.custom_vjp
def watched(x: Any) -> Any:
    """The identity, tapping cotangents alone."""
    return x


watched.defvjp(lambda x: (x, None), lambda _, ct: (tap(ct, "ct"),))


def squared_twice(function: Any) -> Any:
    """C -> c^2 twice: x = 2 gives 4, 16."""
    return lambda x: lax.scan(lambda c, _: (function(c), None), x, None, length=2)[0]


def jvp_of(function: Any) -> Any:
    """The function's jvp with tangent 1/2."""
    return lambda x: jax.jvp(function, (x,), (jnp.float32(0.5),))


def branch(x: Any) -> Any:
    """In the branch taken."""
    return lax.cond(x > 0, backward, lambda x: x, x)


FWD_BWD = (Fired("fwd", 9.0), Fired("bwd", 6.0))

PROGRAMS = [
    Program("custom_jvp", forward, (THREE,), (Fired("f", 9.0),)),
    Program("jvp of custom_jvp", jvp_of(forward), (THREE,), (Fired("p", 9.0), Fired("t", 3.0))),
    # The tap of the rule's tangent is linear: reverse mode transposes it, and it sees the cotangent.
    Program("grad of custom_jvp", jax.grad(forward), (THREE,), (Fired("p", 9.0), Fired("t", 1.0, (TRANSPOSE,)))),
    Program("grad of custom_jvp that calls itself", jax.grad(calls_itself), (THREE,), (Fired("f", 9.0),)),
    Program("custom_jvp in scan", squared_twice(forward), (TWO,), (Fired("f", 4.0), Fired("f", 16.0))),
    # d = 1/2: t = 2 * 2 * 1/2 = 2, then 2 * 4 * 2 = 16.
    Program(
        "jvp of custom_jvp in scan",
        jvp_of(squared_twice(forward)),
        (TWO,),
        (Fired("p", 4.0), Fired("p", 16.0), Fired("t", 2.0), Fired("t", 16.0)),
    ),
    Program(
        "grad of custom_jvp in scan",
        jax.grad(squared_twice(forward)),
        (TWO,),
        (Fired("p", 4.0), Fired("p", 16.0), Fired("t", 1.0, (TRANSPOSE,)), Fired("t", 8.0, (TRANSPOSE,))),
    ),
    Program("vmap of custom_jvp", jax.vmap(forward), (LANES,), (Fired("f", [1.0, 9.0], (batch(2, 0),)),)),
    Program(
        "vmap of grad of custom_jvp",
        jax.vmap(jax.grad(calls_itself)),
        (LANES,),
        (Fired("f", [1.0, 9.0], (batch(2, 0),)),),
    ),
    Program(
        "checkpoint of custom_jvp",
        jax.grad(jax.checkpoint(forward)),
        (THREE,),
        (Fired("p", 9.0), Fired("t", 1.0, (TRANSPOSE,))),
    ),
    # The rule differentiated: p = x^2 and t = 2x dt, dt = 1, by x with tangent 1/2.
    Program(
        "jvp of jvp of custom_jvp",
        jvp_of(lambda x: jax.jvp(forward, (x,), (jnp.float32(1),))[1]),
        (THREE,),
        (Fired("p", 9.0), Fired("p", 3.0, TANGENT), Fired("t", 6.0), Fired("t", 1.0, TANGENT)),
    ),
    Program("custom_vjp", backward, (THREE,), (Fired("f", 9.0),)),
    Program("grad of custom_vjp", jax.grad(backward), (THREE,), FWD_BWD),
    Program("grad of custom_vjp in jit", jax.grad(jax.jit(backward)), (THREE,), FWD_BWD),
    Program(
        "grad of custom_vjp, static argument",
        jax.grad(lambda x: scaled(x, 4.0)),
        (THREE,),
        (Fired("fwd", 12.0), Fired("bwd", 4.0)),
    ),
    Program("grad of custom_gradient", jax.grad(by_gradient), (THREE,), FWD_BWD),
    Program("custom_vjp in scan", squared_twice(backward), (TWO,), (Fired("f", 4.0), Fired("f", 16.0))),
    # 16: 2 * 4 = 8; 4: 8 * 2 * 2 = 32.
    Program(
        "grad of custom_vjp in scan",
        jax.grad(squared_twice(backward)),
        (TWO,),
        (Fired("fwd", 4.0), Fired("fwd", 16.0), Fired("bwd", 8.0), Fired("bwd", 32.0)),
    ),
    Program("grad of custom_vjp in cond", jax.grad(branch), (THREE,), FWD_BWD),
    Program("checkpoint of custom_vjp", jax.grad(jax.checkpoint(backward)), (THREE,), FWD_BWD),
    Program(
        "scan of checkpoint of custom_vjp",
        jax.grad(squared_twice(jax.checkpoint(backward))),
        (TWO,),
        (Fired("fwd", 4.0), Fired("fwd", 16.0), Fired("bwd", 8.0), Fired("bwd", 32.0)),
    ),
    Program("vmap of custom_vjp", jax.vmap(backward), (LANES,), (Fired("f", [1.0, 9.0], (batch(2, 0),)),)),
    Program(
        "vmap of grad of custom_vjp",
        jax.vmap(jax.grad(backward)),
        (LANES,),
        (Fired("fwd", [1.0, 9.0], (batch(2, 0),)), Fired("bwd", [2.0, 6.0], (batch(2, 0),))),
    ),
    Program(
        "vmap of grad of custom_vjp, one cotangent for all lanes",
        jax.vmap(jax.grad(watched)),
        (LANES,),
        (Fired("ct", 1.0, (batch(2, None),)),),
    ),
    Program(
        "vmap of grad of custom_vjp in scan",
        jax.vmap(jax.grad(squared_twice(backward))),
        (f32([1, 2]),),
        (
            Fired("fwd", [1.0, 4.0], (batch(2, 0),)),
            Fired("fwd", [1.0, 16.0], (batch(2, 0),)),
            Fired("bwd", [2.0, 8.0], (batch(2, 0),)),
            Fired("bwd", [4.0, 32.0], (batch(2, 0),)),
        ),
    ),
    Program(
        "grad of vmap of custom_vjp",
        jax.grad(lambda x: jax.vmap(backward)(x).sum()),
        (LANES,),
        (Fired("fwd", [1.0, 9.0], (batch(2, 0),)), Fired("bwd", [2.0, 6.0], (batch(2, 0),))),
    ),
    # 2x: fwd's value is not used by the gradient, bwd is 2x ct: its cotangent is 1.
    Program(
        "grad of grad of custom_vjp", jax.grad(jax.grad(backward)), (THREE,), (*FWD_BWD, Fired("bwd", 1.0, COTANGENT))
    ),
]
