"""jit, forward and reverse differentiation, to second order. Expected values are worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, JVP, TANGENT, TRANSPOSE, Fired, Program, batch, f32
from tracerec import tap

ONE = np.float32(1)
THREE = np.float32(3)


def cube(x: Any) -> Any:
    """(2x)^3, tapped at u = 2x: the tangent of u is 2t, its cotangent 3u^2 = 12 at x = 1."""
    return tap(x * 2.0, "u") ** 3


def square(x: Any) -> Any:
    """x^2, tapped at the result: tangent 2xt."""
    return tap(x * x, "s")


def powers(tapped: Any) -> Any:
    """v^3 + (1 + v + v^2), by a scan that carries a power and stacks the one before it."""

    def function(v: Any) -> Any:
        last, before = lax.scan(lambda c, _: (tapped(c * v), c * 1.0), jnp.float32(1), None, length=3)
        return tap(last + before.sum(), "o")

    return function


U = Fired("u", 2.0)
U_COTANGENT = Fired("u", 12.0, COTANGENT)


def nested_jit(x: Any) -> Any:
    """One inner function, called twice from one program."""
    inner = jax.jit(cube)
    return inner(inner(x))


def with_aux(x: Any) -> Any:
    """Aux has no cotangent."""

    def function(x: Any) -> Any:
        return cube(x), tap(x * 4.0, "aux")

    return jax.value_and_grad(function, has_aux=True)(x)


def vjp_twice(x: Any) -> Any:
    """One forward pass, two backward passes."""
    _, pullback = jax.vjp(cube, x)
    return pullback(jnp.float32(1)), pullback(jnp.float32(0.5))


def linearize_twice(x: Any) -> Any:
    """One primal pass, two tangent passes."""
    _, pushforward = jax.linearize(cube, x)
    return pushforward(jnp.float32(1)), pushforward(jnp.float32(0.5))


def linear_transpose(ct: Any) -> Any:
    """A linear function is only transposed: there are no primals."""
    return jax.linear_transpose(lambda x: tap(x * 2.0, "u") * 3.0, jnp.float32(0))(ct)


def jvp_of(function: Any) -> Any:
    """The function's jvp as a function of primal and tangent."""
    return lambda x, t: jax.jvp(function, (x,), (t,))


def unused(x: Any) -> Any:
    """The tap's result is thrown away, so there is nothing to differentiate."""
    tap(x * 2.0, "u")
    return x * x


def integer_beside(x: Any) -> Any:
    """An integer leaf has no cotangent: the cotangent record does not hold it."""
    both = tap({"f": x * 2.0, "i": jnp.arange(2, dtype=jnp.int32)}, "t")
    return both["f"] * 3.0


def integer_jvp(x: Any, t: Any) -> Any:
    """The tangent of an integer is float0, which is no data."""

    def function(x: Any, n: Any) -> Any:
        return x * tap(n + 1, "n").astype(jnp.float32)

    n = jnp.int32(2)
    return jax.jvp(function, (x, n), (t, np.zeros((), jax.dtypes.float0)))


def float_and_integer_inputs(x: Any, n: Any) -> Any:
    """Vjp of an integer input."""
    _, pullback = jax.vjp(lambda x, n: tap(x, "x") * tap(n, "n").astype(jnp.float32), x, n)
    return pullback(jnp.float32(1))[0]


def two_leaves_one_used(x: Any) -> Any:
    """Only the first leaf reaches the result; the other's cotangent is zero and is not recorded."""
    a, _ = tap((x * 2.0, x * 4.0), "t")
    return a * 3.0


PROGRAMS = [
    Program("plain", lambda x: tap(x * 2.0, "u"), (ONE,), (U,)),
    Program("nested jit", nested_jit, (np.float32(0.25),), (Fired("u", 0.5), Fired("u", 0.25))),
    Program("result unused", unused, (ONE,), (U,)),
    Program("result given", lambda x: tap(x * 2.0, "u", result=x), (ONE,), (U,)),
    Program("same value twice", lambda x: tap(tap(x, "x"), "x"), (ONE,), (Fired("x", 1.0, times=2),)),
    Program("grad", jax.grad(cube), (ONE,), (U, U_COTANGENT)),
    Program("grad, result unused", jax.grad(unused), (ONE,), (U,)),
    Program(
        "grad, one leaf used",
        jax.grad(two_leaves_one_used),
        (ONE,),
        (Fired("t", (2.0, 4.0)), Fired("t", (3.0, None), COTANGENT)),
    ),
    Program(
        "grad, integer leaf",
        jax.grad(integer_beside),
        (ONE,),
        (Fired("t", {"f": 2.0, "i": [0, 1]}), Fired("t", {"f": 3.0, "i": None}, COTANGENT)),
    ),
    Program("grad, stop_gradient", jax.grad(lambda x: cube(lax.stop_gradient(x)) * x), (ONE,), (U,)),
    Program("grad, derivatives=False", jax.grad(lambda x: tap(x * 2.0, "u", derivatives=False) ** 3), (ONE,), (U,)),
    Program("grad, result given", jax.grad(lambda x: tap(x * 2.0, "u", result=x * 2.0) ** 3), (ONE,), (U,)),
    Program(
        "grad, static and dynamic kwargs",
        jax.grad(lambda x: tap(x * 2.0, "u", step=7, phase="train") ** 3),
        (ONE,),
        (
            Fired("u", 2.0, kwargs={"step": 7, "phase": "train"}),
            Fired("u", 12.0, COTANGENT, {"step": 7, "phase": "train"}),
        ),
    ),
    Program(
        "grad, kwarg from the differentiated value",
        jax.grad(lambda x: tap(x * 2.0, "u", norm=x * 8.0) ** 3),
        (ONE,),
        (Fired("u", 2.0, kwargs={"norm": 8.0}), Fired("u", 12.0, COTANGENT, {"norm": 8.0})),
    ),
    Program(
        "grad in bfloat16",
        jax.grad(cube),
        (jnp.ones((), jnp.bfloat16),),
        (Fired("u", np.array(2, jnp.bfloat16)), Fired("u", np.array(12, jnp.bfloat16), COTANGENT)),
    ),
    Program(
        "grad, holomorphic",
        jax.grad(cube, holomorphic=True),
        (np.complex64(1j),),
        (
            # u = 2j, 3u^2 = -12
            Fired("u", np.complex64(2j)),
            Fired("u", np.complex64(-12), COTANGENT),
        ),
    ),
    Program("value_and_grad with aux", with_aux, (ONE,), (U, Fired("aux", 4.0), U_COTANGENT)),
    Program("vjp called twice", vjp_twice, (ONE,), (U, U_COTANGENT, Fired("u", 6.0, COTANGENT))),
    Program(
        "vjp of an integer",
        float_and_integer_inputs,
        (ONE, np.int32(3)),
        (Fired("x", 1.0), Fired("n", 3), Fired("x", 3.0, COTANGENT)),
    ),
    Program("jvp", jvp_of(cube), (ONE, THREE), (U, Fired("u", 6.0, TANGENT))),
    Program("jvp of an integer", integer_jvp, (ONE, THREE), (Fired("n", 3),)),
    Program("linearize", linearize_twice, (ONE,), (U, Fired("u", 2.0, TANGENT), Fired("u", 1.0, TANGENT))),
    Program("linear_transpose", linear_transpose, (np.float32(0.5),), (Fired("u", 1.5, (TRANSPOSE,)),)),
    # x = 1: du = 2, cotangent 3u^2 = 12, its derivative by x 24; jacfwd and jacrev are each one vmap of one lane.
    Program(
        "hessian",
        jax.hessian(cube),
        (ONE,),
        (
            Fired("u", 2.0, (batch(1, None),)),
            Fired("u", [2.0], (JVP, batch(1, 0))),
            Fired("u", [12.0], (*COTANGENT, batch(1, 0), batch(1, None))),
            Fired("u", [[24.0]], (*COTANGENT, batch(1, 0), JVP, batch(1, 0))),
        ),
    ),
    # grad cube = 2 c(u), c = 3u^2: the outer cotangents are 2 of c, 2 * 6u = 24 of u.
    Program(
        "grad of grad",
        jax.grad(jax.grad(cube)),
        (ONE,),
        (U, U_COTANGENT, Fired("u", 24.0, COTANGENT), Fired("u", 2.0, (*COTANGENT, *COTANGENT))),
    ),
    # At v = 2, c = 2, 4, 8 has the cotangents b = 7, 3, 1 (each 1, or 0 for the last, and v times the next), and the
    # gradient is b1 + b2 v + b3 v^2. Its own cotangents: of b, in this order, 1, 2 + 2 * 1, 4 + 2 * 4; of c: b of the
    # next and v times the cotangent of the next c, from 0 on. The gradient has no use for the value of o.
    Program(
        "grad of grad of scan",
        jax.grad(jax.grad(powers(lambda c: tap(c, "c")))),
        (np.float32(2),),
        (
            Fired("o", 15.0),
            Fired("o", 1.0, COTANGENT),
            *(Fired("c", value) for value in (2.0, 4.0, 8.0)),
            *(Fired("c", value, COTANGENT) for value in (1.0, 3.0, 7.0)),
            *(Fired("c", value, (*COTANGENT, *COTANGENT)) for value in (1.0, 4.0, 12.0)),
            *(Fired("c", value, COTANGENT) for value in (0.0, 1.0, 5.0)),
        ),
        modes=(EAGER, JIT),
    ),
    Program(
        "grad of grad of scan, tap behind it",
        jax.grad(jax.grad(powers(lambda c: c))),
        (np.float32(2),),
        (Fired("o", 15.0), Fired("o", 1.0, COTANGENT)),
    ),
    Program(
        "jvp of grad",
        jvp_of(jax.grad(cube)),
        (ONE, THREE),
        (U, Fired("u", 6.0, TANGENT), U_COTANGENT, Fired("u", 72.0, (*COTANGENT, JVP))),
    ),
    # d/dx of 3u^2 du, du = 2: the cotangent of u is 6u du = 24; du does not depend on x.
    Program(
        "grad of jvp",
        jax.grad(lambda x: jax.jvp(cube, (x,), (jnp.float32(1),))[1]),
        (ONE,),
        (U, Fired("u", 2.0, TANGENT), Fired("u", 24.0, COTANGENT)),
    ),
    # s = x^2 = 9, ds = 2x = 6 by either level, d2s = 2.
    Program(
        "jvp of jvp",
        lambda x: jvp_of(lambda y: jvp_of(square)(y, jnp.float32(1)))(x, jnp.float32(1)),
        (THREE,),
        (Fired("s", 9.0), Fired("s", 6.0, TANGENT, times=2), Fired("s", 2.0, (JVP, JVP))),
    ),
    Program(
        "jacfwd",
        jax.jacfwd(square),
        (f32([1, 2]),),
        (Fired("s", [1.0, 4.0], (batch(2, None),)), Fired("s", [[2.0, 0.0], [0.0, 4.0]], (JVP, batch(2, 0)))),
    ),
    Program(
        "jacrev",
        jax.jacrev(lambda x: tap(x * 2.0, "u") ** 2),
        (f32([1, 2]),),
        (Fired("u", [2.0, 4.0]), Fired("u", [[4.0, 0.0], [0.0, 8.0]], (*COTANGENT, batch(2, 0)))),
    ),
    Program("eval_shape", lambda x: jax.eval_shape(jax.grad(cube), x).dtype.itemsize * x, (ONE,), ()),
    Program("ahead of time", lambda x: jax.jit(cube).lower(x).compile()(x), (ONE,), (U,), modes=(EAGER,)),
    Program("donated argument", lambda x: jax.jit(cube, donate_argnums=0)(x * 1.0), (ONE,), (U,)),
    Program(
        "typed keys",
        lambda k: tap(jax.random.split(k, 2), "k"),
        (jax.random.key(3),),
        lambda: (Fired("k", np.asarray(jax.random.key_data(jax.random.split(jax.random.key(3), 2)))),),
    ),
    Program(
        "constants of the trace",
        jax.grad(lambda x: cube(x) + tap(np.float32(5), "c")),
        (ONE,),
        (U, Fired("c", 5.0), U_COTANGENT),
        modes=(EAGER, JIT),
    ),
]
