"""Taps of values that do not change inside a loop: n iterations, n records, in every mode.

JAX's partial evaluation moves such values out of a scan, and a callback with them
(https://github.com/jax-ml/jax/issues/16637). The loop is c -> c v with v = 2w, n times, so that with v = 2w:

* primals: c_k = v^k; v, n times; ones, n times
* tangents by w: c_k: 2 k v^(k-1); v: 2, n times
* cotangents: c_k: v^(n-k); v: v^(n-1), n times
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, TANGENT, Fired, Program, batch, f32
from tracerec import tap

if TYPE_CHECKING:
    from collections.abc import Callable

ITERATIONS = 3


def step(w: Any, c: Any) -> Any:
    """One iteration; ``ones`` and ``v`` do not change from one to the next."""
    ones = tap(jnp.ones(2), "ones")
    v = tap(w * 2.0, "v")
    return tap(c * v * ones[0], "c")


def _scan(w: Any, one: Callable[[Any, Any], Any] = step, **options: Any) -> Any:
    return lax.scan(lambda c, _: (one(w, c), None), jnp.float32(1), None, length=ITERATIONS, **options)[0]


def _nested(w: Any) -> Any:
    def outer(c: Any, _: Any) -> Any:
        return lax.scan(lambda c, _: (step(w, c), None), c, None, length=ITERATIONS)[0], None

    return lax.scan(outer, jnp.float32(1), None, length=2)[0]


def _of_cond(w: Any) -> Any:
    def body(c: Any, i: Any) -> Any:
        return lax.cond(i >= 0, step, lambda w, c: c * w, w, c), None

    return lax.scan(body, jnp.float32(1), jnp.arange(ITERATIONS, dtype=jnp.int32))[0]


def _fori(w: Any) -> Any:
    return lax.fori_loop(0, ITERATIONS, lambda _, c: step(w, c), jnp.float32(1))


LOOPS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "scan": (_scan, ITERATIONS),
    "unrolled scan": (functools.partial(_scan, unroll=2), ITERATIONS),
    "fori": (_fori, ITERATIONS),
    "scan of jit": (functools.partial(_scan, one=jax.jit(step)), ITERATIONS),
    "nested scans": (_nested, 2 * ITERATIONS),
    "checkpoint of scan": (jax.checkpoint(_scan), ITERATIONS),
    "scan of checkpoint": (functools.partial(_scan, one=jax.checkpoint(step)), ITERATIONS),
    "scan of cond": (_of_cond, ITERATIONS),
}


def _linearized(loop: Any) -> Any:
    def function(w: Any) -> Any:
        y, pushforward = jax.linearize(loop, w)
        return y, pushforward(jnp.float32(1))

    return function


MODES: dict[str, Callable[[Any], Any]] = {
    "forward": lambda loop: loop,
    "jvp": lambda loop: lambda w: jax.jvp(loop, (w,), (jnp.float32(1),)),
    "grad": jax.grad,
    "jit of value_and_grad": lambda loop: jax.jit(jax.value_and_grad(loop)),
    "linearize": _linearized,
    "vmap of grad": lambda loop: jax.vmap(jax.grad(loop)),
}

WEIGHTS = {"vmap of grad": f32([1, 0.5])}


def expected(mode: str, n: int) -> tuple[Fired, ...]:
    """Returns the records of n iterations, as worked out above."""
    w = WEIGHTS.get(mode, np.float32(1))
    v = w * np.float32(2)
    lanes = (batch(2, 0),) if w.ndim else ()
    fired = [
        Fired("ones", [1.0, 1.0], (batch(2, None),) if w.ndim else (), times=n),
        Fired("v", v, lanes, times=n),
        *(Fired("c", v**k, lanes) for k in range(1, n + 1)),
    ]
    if mode in ("jvp", "linearize"):
        fired.append(Fired("v", 2.0, TANGENT, times=n))
        fired.extend(Fired("c", 2 * k * v ** (k - 1), TANGENT) for k in range(1, n + 1))
    elif mode != "forward":
        fired.append(Fired("v", v ** (n - 1), (*COTANGENT, *lanes), times=n))
        fired.extend(Fired("c", v ** (n - k), (*COTANGENT, *lanes)) for k in range(1, n + 1))
    return tuple(fired)


PROGRAMS = [
    Program(
        f"invariant in {loop_name}, {mode}",
        transform(loop),
        (WEIGHTS.get(mode, np.float32(1)),),
        expected(mode, n),
        modes=(EAGER, JIT),
        # JAX 0.10.2: "_check_closed_call() got an unexpected keyword argument 'name'"
        checks=(loop_name, mode) != ("checkpoint of scan", "vmap of grad"),
    )
    for loop_name, (loop, n) in LOOPS.items()
    for mode, transform in MODES.items()
]
