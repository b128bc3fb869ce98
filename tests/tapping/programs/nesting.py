"""Deep nests, several at once, and modes of JAX that change how a program runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, JVP, TANGENT, Fired, Program, batch, f32
from tracerec import disabled, scope, tap

ONE = np.float32(1)
TWO = np.float32(2)
LANES = f32([1, 2])


def between_jits(x: Any) -> Any:
    """Taps in an inner jit between outer ones."""
    inner = jax.jit(lambda x: tap(x * 2.0, "inner"))
    x = tap(x * 2.0, "before")
    x = inner(x)
    return tap(x * 2.0, "after")


def everything(x: Any) -> Any:
    """Scan of checkpoint of cond of jit: c -> c^2, twice, in the branch for positive c."""
    square = jax.jit(lambda c: tap(c * c, "c"))
    body = jax.checkpoint(lambda c: lax.cond(c.shape == (), square, lambda c: c, c))
    return lax.scan(lambda c, _: (body(c), None), x, None, length=2)[0]


def newton(a: Any) -> Any:
    """A gradient inside a loop: x -> x - f'(x)/4 with f = (x - a)^2, so that x - a is halved each time."""

    def body(x: Any, _: Any) -> Any:
        gradient = jax.grad(lambda x: tap(x - a, "e") ** 2)(x)
        return x - tap(gradient, "g") / 4.0, None

    return lax.scan(body, jnp.float32(0), None, length=2)[0]


def loss_of_gradient(w: Any) -> Any:
    """The gradient of a penalty on a gradient, over lanes: f = (wx)^2 / 2 has gradient w x^2."""

    def penalty(x: Any) -> Any:
        return jax.grad(lambda w: tap(w * x, "h") ** 2 / 2.0)(w)

    return jax.vmap(penalty)(jnp.asarray(LANES)).sum()


def in_scopes(x: Any) -> Any:
    """Names are joined, the innermost kwarg wins."""
    with scope("net", step=5, layer=0), scope("enc", layer=1):
        return jax.jit(lambda x: tap(x * 2.0, "u"))(x)


def partly_disabled(x: Any) -> Any:
    """Taps are left out of what is traced inside."""
    inner = jax.jit(lambda x: tap(x * 2.0, "u"))
    with disabled():
        y = inner(x)
    return inner(x) + y


def with_nans(x: Any) -> Any:
    """JAX runs a program again, op by op, to find the first NaN."""
    with jax.debug_nans(True):  # noqa: FBT003 - JAX takes it so
        try:
            jax.jit(lambda x: jnp.log(tap(x * 2.0, "u")))(x)
        except FloatingPointError:
            return x
    message = "the NaN was not found"
    raise AssertionError(message)


def strided(x: Any) -> Any:
    """Views of all kinds: values, not layouts, are recorded."""
    return tap({"t": x.T, "r": x[::-1], "s": x[:, ::2], "b": jnp.broadcast_to(x[0], (2, 3))}, "views")


GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
VIEWS = {"t": GRID.T.copy(), "r": GRID[::-1].copy(), "s": GRID[:, ::2].copy(), "b": np.stack([GRID[0]] * 2)}


PROGRAMS = [
    Program(
        "taps around an inner jit",
        between_jits,
        (ONE,),
        (Fired("before", 2.0), Fired("inner", 4.0), Fired("after", 8.0)),
    ),
    Program(
        "grad around an inner jit",
        jax.grad(between_jits),
        (ONE,),
        (
            Fired("before", 2.0),
            Fired("inner", 4.0),
            Fired("after", 8.0),
            Fired("after", 1.0, COTANGENT),
            Fired("inner", 2.0, COTANGENT),
            Fired("before", 4.0, COTANGENT),
        ),
    ),
    # 2 -> 4 -> 16; cotangents 1, 8.
    Program(
        "grad of scan of checkpoint of cond of jit",
        jax.grad(everything),
        (TWO,),
        (Fired("c", 4.0), Fired("c", 16.0), Fired("c", 1.0, COTANGENT), Fired("c", 8.0, COTANGENT)),
    ),
    Program(
        "vmap of grad of scan of checkpoint of cond of jit",
        jax.vmap(jax.grad(everything)),
        (LANES,),
        (
            Fired("c", [1.0, 4.0], (batch(2, 0),)),
            Fired("c", [1.0, 16.0], (batch(2, 0),)),
            Fired("c", [1.0, 1.0], (*COTANGENT, batch(2, 0))),
            Fired("c", [2.0, 8.0], (*COTANGENT, batch(2, 0))),
        ),
        # op by op, the first cotangent is the same for both lanes: the batch has no axis yet
        modes=(EAGER, JIT),
    ),
    # a = 8: x = 0, 4: e = -8, -4, its cotangent and g = 2e.
    Program(
        "scan of grad",
        newton,
        (np.float32(8),),
        (
            Fired("e", -8.0),
            Fired("e", -4.0),
            Fired("e", -16.0, COTANGENT),
            Fired("e", -8.0, COTANGENT),
            Fired("g", -16.0),
            Fired("g", -8.0),
        ),
    ),
    # h = wx and its cotangent c = h, w = 1. The gradient is the sum of c x; by w: the cotangent of c is x, that of h
    # is x too.
    Program(
        "grad of vmap of grad",
        jax.grad(loss_of_gradient),
        (ONE,),
        (
            Fired("h", LANES, (batch(2, 0),)),
            Fired("h", LANES, (*COTANGENT, batch(2, 0))),
            Fired("h", LANES, (*COTANGENT, batch(2, 0), *COTANGENT)),
            Fired("h", LANES, (batch(2, 0), *COTANGENT)),
        ),
    ),
    # s = x^2, s^2 = x^4; by one lane each: ds = 2x, the cotangent 2s and its derivative 2 ds.
    Program(
        "hessian of jit",
        jax.hessian(jax.jit(lambda x: tap(x * x, "s") ** 2)),
        (ONE,),
        (
            Fired("s", 1.0, (batch(1, None),)),
            Fired("s", [2.0], (JVP, batch(1, 0))),
            Fired("s", [2.0], (*COTANGENT, batch(1, 0), batch(1, None))),
            Fired("s", [[4.0]], (*COTANGENT, batch(1, 0), JVP, batch(1, 0))),
        ),
    ),
    Program(
        "linearize of vmap",
        lambda x: jax.linearize(jax.vmap(lambda x: tap(x * x, "s")), x)[1](x),
        (LANES,),
        (Fired("s", [1.0, 4.0], (batch(2, 0),)), Fired("s", [2.0, 8.0], (batch(2, 0), *TANGENT))),
    ),
    Program("scopes", in_scopes, (ONE,), (Fired("net/enc/u", 2.0, kwargs={"step": 5, "layer": 1}),)),
    Program("disabled inside", partly_disabled, (ONE,), (Fired("u", 2.0),)),
    Program("strided views", strided, (GRID,), (Fired("views", VIEWS),)),
    Program(
        "strided views in scan",
        lambda x: lax.scan(lambda c, _: (c, strided(c)), x, None, length=2)[1],
        (GRID,),
        (Fired("views", VIEWS, times=2),),
    ),
    Program(
        "ordered taps",
        lambda x: tap(tap(x * 2.0, "a", ordered=True) * 2.0, "b", ordered=True),
        (ONE,),
        (Fired("a", 2.0), Fired("b", 4.0)),
    ),
    Program(
        "grad of ordered taps in scan",
        jax.grad(lambda x: lax.scan(lambda c, _: (tap(c * c, "c", ordered=True), None), x, None, length=2)[0]),
        (TWO,),
        (Fired("c", 4.0), Fired("c", 16.0), Fired("c", 1.0, COTANGENT), Fired("c", 8.0, COTANGENT)),
    ),
    Program("empty array", lambda x: tap(x[:0], "e"), (LANES,), (Fired("e", np.zeros(0, np.float32)),)),
    Program(
        "debug_nans",
        with_nans,
        (-ONE,),
        (Fired("u", -2.0, times=2),),
        modes=(EAGER,),
        limit="With jax_debug_nans JAX runs a program that made a NaN again, and its taps with it.",
    ),
]
