"""Loops and branches. Expected values are worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tapping.programs.program import COTANGENT, DISABLE_JIT, EAGER, JIT, JVP, TANGENT, Fired, Program, f32
from tracerec import tap

ONE = np.float32(1)
TWO = np.float32(2)
HALF = np.float32(0.5)


def doubling(x: Any, length: int = 3, **options: Any) -> Any:
    """C -> 2c, tapped, with the iteration as step."""
    steps = jnp.arange(length, dtype=jnp.int32)
    return lax.scan(lambda c, i: (tap(c * 2.0, "c", step=i), None), x, steps, **options)[0]


def steps(values: list[float], transforms: Any = (), *, back: bool = False) -> tuple[Fired, ...]:
    """One record an iteration: the values, and steps counted up or down."""
    numbers = range(len(values))[::-1] if back else range(len(values))
    return tuple(Fired("c", value, transforms, {"step": i}) for i, value in zip(numbers, values, strict=True))


def over_xs(xs: Any) -> Any:
    """Taps of xs, of ys, and a statement tap."""

    def body(c: Any, x: Any) -> Any:
        tap(c, "before")
        y = tap(x * 2.0, "y")
        return c + y, y

    carry, ys = lax.scan(body, jnp.float32(0), xs)
    return carry + ys.sum()


def nested(x: Any) -> Any:
    """Two by three iterations, with both indices."""

    def outer(c: Any, i: Any) -> Any:
        def inner(c: Any, j: Any) -> Any:
            return tap(c * 2.0, "c", i=i, j=j), None

        return lax.scan(inner, c, jnp.arange(3, dtype=jnp.int32))[0], None

    return lax.scan(outer, x, jnp.arange(2, dtype=jnp.int32))[0]


def nested_steps(values: list[float], transforms: Any = ()) -> tuple[Fired, ...]:
    """The records of ``nested``, for the iterations in forward order."""
    return tuple(Fired("c", v, transforms, {"i": k // 3, "j": k % 3}) for k, v in enumerate(values))


def while_body(x: Any) -> Any:
    """Doubles up to 8."""
    return lax.while_loop(lambda c: c < 8.0, lambda c: tap(c * 2.0, "w"), x)


def while_condition(x: Any) -> Any:
    """The condition depends on the data, so it runs once more than the body."""
    return lax.while_loop(lambda c: tap(c, "cond") < 8.0, lambda c: c * 2.0, x)


def counting_condition(x: Any) -> Any:
    """XLA knows the trip count of this loop."""
    return lax.while_loop(lambda c: tap(c[0], "cond") < 3, lambda c: (c[0] + 1, c[1] * 2.0), (jnp.int32(0), x))


def branch(x: Any) -> Any:
    """Only the branch taken records."""
    return lax.cond(x > 0, lambda x: tap(x * 2.0, "yes"), lambda x: tap(x * 4.0, "no"), x)


def switch(i: Any, x: Any) -> Any:
    """Only the branch taken records."""
    return lax.switch(i, [lambda x, k=k: tap(x * (k + 1.0), f"b{k}") for k in range(3)], x)


def scan_of_cond(x: Any) -> Any:
    """Even iterations double, odd ones multiply by four."""

    def body(c: Any, i: Any) -> Any:
        double = lambda c: tap(c * 2.0, "even", step=i)  # noqa: E731
        quadruple = lambda c: tap(c * 4.0, "odd", step=i)  # noqa: E731
        return lax.cond(i % 2 == 0, double, quadruple, c), None

    return lax.scan(body, x, jnp.arange(3, dtype=jnp.int32))[0]


def cond_of_scan(x: Any) -> Any:
    """A loop in the branch taken."""
    return lax.cond(x > 0, doubling, lambda x: tap(x, "no"), x)


def linearize_while(x: Any) -> Any:
    """The loop's primal part runs in both passes."""
    _, pushforward = jax.linearize(while_body, x)
    return pushforward(jnp.float32(1))


def mapped(x: Any) -> Any:
    """lax.map is a scan."""
    return lax.map(lambda v: tap(v * 2.0, "m"), x)


def fori(n: Any, x: Any) -> Any:
    """C -> 2c, with the index as step."""
    return lax.fori_loop(0, n, lambda i, c: tap(c * 2.0, "c", step=i), x)


def associative(x: Any) -> Any:
    """The combining function is called on whole slices: log depth, no loop."""
    return lax.associative_scan(lambda a, b: tap(a + b, "pair"), x)


def jvp_of(function: Any) -> Any:
    """The function's jvp with tangent 1."""
    return lambda x: jax.jvp(function, (x,), (jnp.float32(1),))


PROGRAMS = [
    Program("scan", doubling, (ONE,), steps([2.0, 4.0, 8.0])),
    Program("scan, unrolled in part", lambda x: doubling(x, unroll=2), (ONE,), steps([2.0, 4.0, 8.0])),
    Program("scan, unrolled", lambda x: doubling(x, unroll=True), (ONE,), steps([2.0, 4.0, 8.0])),
    Program("scan, reversed", lambda x: doubling(x, reverse=True), (ONE,), steps([2.0, 4.0, 8.0], back=True)),
    Program("scan of no iterations", lambda x: doubling(x, length=0), (ONE,), (), modes=(EAGER, JIT)),
    Program("scan, nested", nested, (ONE,), nested_steps([2.0, 4.0, 8.0, 16.0, 32.0, 64.0])),
    Program(
        "scan over xs",
        over_xs,
        (f32([1, 2]),),
        (Fired("before", 0.0), Fired("before", 2.0), Fired("y", 2.0), Fired("y", 4.0)),
    ),
    Program(
        "grad of scan",
        jax.grad(doubling),
        (ONE,),
        (*steps([2.0, 4.0, 8.0]), *steps([1.0, 2.0, 4.0], COTANGENT, back=True)),
    ),
    Program(
        "grad of scan, unrolled",
        jax.grad(lambda x: doubling(x, unroll=3)),
        (ONE,),
        (*steps([2.0, 4.0, 8.0]), *steps([1.0, 2.0, 4.0], COTANGENT, back=True)),
    ),
    Program(
        "grad of scan, reversed",
        jax.grad(lambda x: doubling(x, reverse=True)),
        (ONE,),
        (*steps([2.0, 4.0, 8.0], back=True), *steps([1.0, 2.0, 4.0], COTANGENT)),
    ),
    Program(
        "grad of scan, nested",
        jax.grad(nested),
        (ONE,),
        (*nested_steps([2.0, 4.0, 8.0, 16.0, 32.0, 64.0]), *nested_steps([32.0, 16.0, 8.0, 4.0, 2.0, 1.0], COTANGENT)),
    ),
    # y is used twice: in the carry and in ys.
    Program(
        "grad of scan over xs",
        jax.grad(over_xs),
        (f32([1, 2]),),
        (
            Fired("before", 0.0),
            Fired("before", 2.0),
            Fired("y", 2.0),
            Fired("y", 4.0),
            Fired("y", 2.0, COTANGENT, times=2),
        ),
    ),
    Program("jvp of scan", jvp_of(doubling), (HALF,), (*steps([1.0, 2.0, 4.0]), *steps([2.0, 4.0, 8.0], TANGENT))),
    # f = (c0 2)(2)(2) is linear in x; the square at the end makes the second derivative 2 * 8 * 8.
    Program(
        "jvp of grad of scan",
        jvp_of(jax.grad(lambda x: doubling(x) ** 2)),
        (ONE,),
        (
            *steps([2.0, 4.0, 8.0]),
            *steps([2.0, 4.0, 8.0], TANGENT),
            *steps([16.0, 32.0, 64.0], COTANGENT, back=True),
            *steps([16.0, 32.0, 64.0], (*COTANGENT, JVP), back=True),
        ),
    ),
    Program("fori", lambda x: fori(3, x), (ONE,), steps([2.0, 4.0, 8.0])),
    Program("fori, traced bound", fori, (np.int32(3), ONE), steps([2.0, 4.0, 8.0])),
    Program(
        "grad of fori",
        jax.grad(lambda x: fori(3, x)),
        (ONE,),
        (*steps([2.0, 4.0, 8.0]), *steps([1.0, 2.0, 4.0], COTANGENT, back=True)),
    ),
    Program("map", mapped, (f32([1, 2]),), (Fired("m", 2.0), Fired("m", 4.0))),
    # [1, 2, 3]: the pairs 1 + 2, then (1 + 2) + 3.
    Program("associative_scan", associative, (f32([1, 2, 3]),), (Fired("pair", [3.0]), Fired("pair", [6.0]))),
    Program("while, body", while_body, (ONE,), (Fired("w", 2.0), Fired("w", 4.0), Fired("w", 8.0))),
    Program("while, condition", while_condition, (ONE,), tuple(Fired("cond", v) for v in (1.0, 2.0, 4.0, 8.0))),
    Program(
        "while, condition of a counting loop",
        counting_condition,
        (ONE,),
        (),
        modes=(JIT,),
        limit="XLA's CPU compiler knows the trip count and never runs the condition, so its taps do not fire.",
    ),
    Program(
        "while, condition of a counting loop, not jitted",
        counting_condition,
        (ONE,),
        tuple(Fired("cond", i) for i in range(4)),
        modes=(EAGER, DISABLE_JIT),
    ),
    Program(
        "while, ordered condition of a counting loop",
        lambda x: lax.while_loop(
            lambda c: tap(c[0], "cond", ordered=True) < 3, lambda c: (c[0] + 1, c[1] * 2.0), (jnp.int32(0), x)
        ),
        (ONE,),
        tuple(Fired("cond", i) for i in range(4)),
    ),
    Program(
        "jvp of while",
        jvp_of(while_body),
        (ONE,),
        (*(Fired("w", v) for v in (2.0, 4.0, 8.0)), *(Fired("w", v, TANGENT) for v in (2.0, 4.0, 8.0))),
    ),
    Program(
        "linearize of while",
        linearize_while,
        (ONE,),
        (*(Fired("w", v, times=2) for v in (2.0, 4.0, 8.0)), *(Fired("w", v, TANGENT) for v in (2.0, 4.0, 8.0))),
        modes=(EAGER, JIT),
        limit="JAX runs a while loop's primal part again in the tangent pass, so its primals are recorded twice.",
    ),
    Program("cond, true", branch, (ONE,), (Fired("yes", 2.0),)),
    Program("cond, false", branch, (-ONE,), (Fired("no", -4.0),)),
    Program(
        "grad of cond", jax.grad(lambda x: branch(x) ** 2), (ONE,), (Fired("yes", 2.0), Fired("yes", 4.0, COTANGENT))
    ),
    Program("jvp of cond", jvp_of(branch), (-ONE,), (Fired("no", -4.0), Fired("no", 4.0, TANGENT))),
    Program("switch", switch, (np.int32(2), ONE), (Fired("b2", 3.0),)),
    Program(
        "grad of switch",
        jax.grad(lambda x, i: switch(i, x) ** 2),
        (TWO, np.int32(1)),
        (Fired("b1", 4.0), Fired("b1", 8.0, COTANGENT)),
    ),
    Program(
        "scan of cond",
        scan_of_cond,
        (ONE,),
        (
            Fired("even", 2.0, kwargs={"step": 0}),
            Fired("odd", 8.0, kwargs={"step": 1}),
            Fired("even", 16.0, kwargs={"step": 2}),
        ),
    ),
    Program(
        "grad of scan of cond",
        jax.grad(scan_of_cond),
        (ONE,),
        (
            Fired("even", 2.0, kwargs={"step": 0}),
            Fired("odd", 8.0, kwargs={"step": 1}),
            Fired("even", 16.0, kwargs={"step": 2}),
            Fired("even", 1.0, COTANGENT, {"step": 2}),
            Fired("odd", 2.0, COTANGENT, {"step": 1}),
            Fired("even", 8.0, COTANGENT, {"step": 0}),
        ),
    ),
    Program(
        "grad of cond of scan",
        jax.grad(cond_of_scan),
        (ONE,),
        (*steps([2.0, 4.0, 8.0]), *steps([1.0, 2.0, 4.0], COTANGENT, back=True)),
    ),
]
