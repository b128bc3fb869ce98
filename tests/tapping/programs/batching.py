"""vmap with any in_axes, nested, of loops and branches and back. Expected values are worked out with numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, JVP, TANGENT, Fired, Program, batch, f32, i32
from tracerec import tap

LANES = f32([1, 2])
GRID = np.arange(6, dtype=np.float32).reshape(3, 2)
CUBOID = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
TRUE = np.ones((), bool)
LANE = (batch(2, 0),)


def double(x: Any) -> Any:
    """The simplest tap."""
    return tap(x * 2.0, "u")


def cube(x: Any) -> Any:
    """U = 2x, u^3: the cotangent of u is 3u^2."""
    return tap(x * 2.0, "u") ** 3


def tree(d: Any, y: Any) -> Any:
    """A batched and an unbatched leaf in one tap."""
    return tap({"x": d["x"] * 2.0, "y": y}, "t")


def with_step(x: Any, step: Any, lr: Any) -> Any:
    """A batched kwarg and one that is the same for all lanes."""
    return tap(x, "u", step=step, lr=lr, phase="eval")


def centred(x: Any) -> Any:
    """A collective over the lanes makes an unbatched value."""
    return x - tap(lax.psum(x, "lanes"), "sum")


def doubling(x: Any) -> Any:
    """C -> 2c, three times, with the iteration as step."""
    return lax.scan(lambda c, i: (tap(c * 2.0, "c", step=i), None), x, jnp.arange(3, dtype=jnp.int32))[0]


def row_by_row(xs: Any) -> Any:
    """A scan over rows whose body is a vmap over their elements."""
    return lax.scan(lambda c, row: (c, jax.vmap(double)(row)), 0.0, xs)[1]


def counted(n: Any) -> Any:
    """Every lane has a trip count of its own: lanes that are done go on, and repeat what they have."""
    return lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, tap(c[1] * 2.0, "w")), (jnp.int32(0), jnp.float32(1))
    )


def masked_while(n: Any) -> Any:
    """The same, and ``where`` says which lanes are not done."""
    return lax.while_loop(lambda c: c < n, lambda c: tap(c + 1, "w", where=c < n), jnp.zeros_like(n))


def same_count(x: Any, n: Any) -> Any:
    """A trip count that all lanes share: nothing is garbage."""
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, tap(c[1] * 2.0, "w")), (jnp.int32(0), x))[1]


def branch(p: Any, x: Any) -> Any:
    """A predicate of its own in every lane runs both branches on all lanes."""
    return lax.cond(p, lambda x: tap(x * 2.0, "yes"), lambda x: tap(x * 4.0, "no"), x)


def masked_branch(p: Any, x: Any) -> Any:
    """The same, and ``where`` says which lanes take the branch."""
    yes = lambda p, x: tap(x * 2.0, "yes", where=p)  # noqa: E731
    no = lambda p, x: tap(x * 4.0, "no", where=~p)  # noqa: E731
    return lax.cond(p, yes, no, p, x)


def switch(i: Any, x: Any) -> Any:
    """As cond, with an index."""
    return lax.switch(i, [lambda x, k=k: tap(x * (k + 1.0), f"b{k}") for k in range(3)], x)


def conditional_vmap(p: Any, xs: Any) -> Any:
    """A vmap inside the branch taken."""
    return lax.cond(p, jax.vmap(double), lambda xs: xs, xs)


def while_of_vmap(xs: Any) -> Any:
    """A vmap in the body, until the sum is 12."""
    return lax.while_loop(lambda c: c.sum() < 12.0, jax.vmap(double), xs)


def loss(w: Any, x: Any) -> Any:
    """A weight without lanes and an example with: h = wx, h^2."""
    h = tap(tap(w, "w") * x, "h")
    return h * h


STEPS = tuple(range(3))

PROGRAMS = [
    Program("vmap", jax.vmap(double), (LANES,), (Fired("u", [2.0, 4.0], LANE),)),
    Program("vmap, axis 1", jax.vmap(double, in_axes=1), (GRID,), (Fired("u", GRID * 2, (batch(2, 1),)),)),
    Program("vmap, axis -1", jax.vmap(double, in_axes=-1), (CUBOID,), (Fired("u", CUBOID * 2, (batch(4, 2),)),)),
    Program(
        "vmap, out_axes", jax.vmap(double, in_axes=1, out_axes=0), (CUBOID,), (Fired("u", CUBOID * 2, (batch(3, 1),)),)
    ),
    Program(
        "vmap, dict of axes",
        jax.vmap(tree, in_axes=({"x": 1}, None)),
        ({"x": GRID}, np.float32(7)),
        (Fired("t", {"x": GRID * 2, "y": np.float32(7)}, (batch(2, 1, None),)),),
    ),
    Program(
        "vmap, kwargs",
        jax.vmap(with_step, in_axes=(0, 0, None)),
        (LANES, i32([5, 6]), np.float32(0.5)),
        (
            # kwargs are in alphabetical order: lr, step
            Fired("u", [1.0, 2.0], (batch(2, 0, kwargs=(None, 0)),), {"step": [5, 6], "lr": 0.5, "phase": "eval"}),
        ),
    ),
    Program(
        "vmap, nothing batched",
        lambda x: jax.vmap(lambda _: tap(x, "x"))(jnp.arange(3)),
        (np.float32(7),),
        (Fired("x", 7.0, (batch(3, None),)),),
    ),
    Program(
        "vmap, axis_name and psum",
        jax.vmap(centred, axis_name="lanes"),
        (LANES,),
        (Fired("sum", 3.0, (batch(2, None, axis="lanes"),)),),
    ),
    Program(
        "vmap, axis_index",
        jax.vmap(lambda x: tap(x + lax.axis_index("i").astype(jnp.float32), "u"), axis_name="i"),
        (LANES,),
        (Fired("u", [1.0, 3.0], (batch(2, 0, axis="i"),)),),
    ),
    Program("vmap, one lane", jax.vmap(double), (f32([3]),), (Fired("u", [6.0], (batch(1, 0),)),)),
    Program(
        "vmap of keys",
        jax.vmap(lambda k: tap(k, "k")),
        (jax.random.split(jax.random.key(3), 2),),
        lambda: (Fired("k", np.asarray(jax.random.key_data(jax.random.split(jax.random.key(3), 2))), LANE),),
    ),
    Program("vmap of vmap", jax.vmap(jax.vmap(double)), (GRID,), (Fired("u", GRID * 2, (batch(2, 0), batch(3, 0))),)),
    Program(
        "vmap of vmap, other axes",
        jax.vmap(jax.vmap(double, in_axes=1), in_axes=2),
        (CUBOID,),
        (
            # The outer vmap takes axis 2 of three, the inner one axis 1 of the two left.
            Fired("u", CUBOID * 2, (batch(3, 1), batch(4, 2))),
        ),
    ),
    Program(
        "vmap of vmap, one argument each",
        jax.vmap(jax.vmap(lambda x, y: tap((x, y, x + y), "t"), (None, 0)), (0, None)),
        (LANES, f32([0, 1, 2])),
        (
            Fired(
                "t",
                (f32([1, 2]), f32([0, 1, 2]), f32([[1, 2, 3], [2, 3, 4]])),
                (batch(3, None, 0, 0), batch(2, 0, None, 0)),
            ),
        ),
    ),
    Program("vmap of jit", jax.vmap(jax.jit(double)), (LANES,), (Fired("u", [2.0, 4.0], LANE),)),
    Program("vectorize", jnp.vectorize(double), (GRID,), (Fired("u", GRID * 2, (batch(2, 0), batch(3, 0))),)),
    Program(
        "vmap of grad",
        jax.vmap(jax.grad(cube)),
        (LANES,),
        (Fired("u", [2.0, 4.0], LANE), Fired("u", [12.0, 48.0], (*COTANGENT, batch(2, 0)))),
    ),
    Program(
        "vmap of grad, weight without lanes",
        jax.vmap(jax.grad(loss), in_axes=(None, 0)),
        (np.float32(3), LANES),
        (
            # h = 3x, its cotangent 2h, that of w 2hx.
            Fired("w", 3.0, (batch(2, None),)),
            Fired("h", [3.0, 6.0], LANE),
            Fired("h", [6.0, 12.0], (*COTANGENT, batch(2, 0))),
            Fired("w", [6.0, 24.0], (*COTANGENT, batch(2, 0))),
        ),
    ),
    Program(
        "grad of vmap",
        jax.grad(lambda x: jax.vmap(cube)(x).sum()),
        (LANES,),
        (Fired("u", [2.0, 4.0], LANE), Fired("u", [12.0, 48.0], (batch(2, 0), *COTANGENT))),
    ),
    Program(
        "jvp of vmap",
        lambda x: jax.jvp(jax.vmap(cube), (x,), (x,)),
        (LANES,),
        (Fired("u", [2.0, 4.0], LANE), Fired("u", [2.0, 4.0], (batch(2, 0), JVP))),
    ),
    Program(
        "vmap of jvp, one primal",
        jax.vmap(lambda t: jax.jvp(cube, (jnp.float32(1),), (t,))),
        (LANES,),
        (Fired("u", 2.0, (batch(2, None),)), Fired("u", [2.0, 4.0], (*TANGENT, batch(2, 0)))),
    ),
    Program(
        "vmap of vmap of grad",
        jax.vmap(jax.vmap(jax.grad(cube))),
        (GRID,),
        (
            Fired("u", GRID * 2, (batch(2, 0), batch(3, 0))),
            Fired("u", 3 * (GRID * 2) ** 2, (*COTANGENT, batch(2, 0), batch(3, 0))),
        ),
    ),
    Program(
        "vmap of scan",
        jax.vmap(doubling),
        (LANES,),
        tuple(Fired("c", LANES * 2 ** (i + 1), LANE, {"step": i}) for i in STEPS),
    ),
    Program(
        "vmap of grad of scan",
        jax.vmap(jax.grad(lambda x: doubling(x) * x)),
        (LANES,),
        (
            *(Fired("c", LANES * 2 ** (i + 1), LANE, {"step": i}) for i in STEPS),
            *(Fired("c", LANES * 2 ** (2 - i), (*COTANGENT, batch(2, 0)), {"step": i}) for i in STEPS),
        ),
    ),
    Program("scan of vmap", row_by_row, (GRID,), tuple(Fired("u", row * 2, LANE) for row in GRID)),
    Program(
        "vmap of while, same trip count",
        jax.vmap(same_count, in_axes=(0, None)),
        (LANES, np.int32(2)),
        (Fired("w", [2.0, 4.0], LANE), Fired("w", [4.0, 8.0], LANE)),
    ),
    # Trip counts 1, 2, 3: the first lane is done after one iteration, and its value is doubled from 2 again and again.
    Program(
        "vmap of while, finished lanes",
        jax.vmap(counted),
        (i32([1, 2, 3]),),
        (
            Fired("w", [2.0, 2.0, 2.0], (batch(3, 0),), uncertain=True),
            Fired("w", [4.0, 4.0, 4.0], (batch(3, 0),), uncertain=True),
            Fired("w", [4.0, 8.0, 8.0], (batch(3, 0),), uncertain=True),
        ),
        modes=(EAGER, JIT),
        limit="JAX runs the body on all lanes until the last is done, and does not tell which are: pass where=.",
    ),
    Program(
        "vmap of while, where",
        jax.vmap(masked_while),
        (i32([1, 2, 3]),),
        (
            Fired("w", [1, 1, 1], (batch(3, 0),), lanes=[True, True, True]),
            Fired("w", [2, 2, 2], (batch(3, 0),), lanes=[False, True, True]),
            Fired("w", [2, 3, 3], (batch(3, 0),), lanes=[False, False, True]),
        ),
        modes=(EAGER, JIT),
    ),
    Program("while of vmap", while_of_vmap, (LANES,), (Fired("u", [2.0, 4.0], LANE), Fired("u", [4.0, 8.0], LANE))),
    Program(
        "vmap of cond, one predicate",
        jax.vmap(branch, in_axes=(None, 0)),
        (TRUE, LANES),
        (Fired("yes", [2.0, 4.0], LANE),),
    ),
    Program(
        "vmap of cond, where",
        jax.vmap(masked_branch),
        (np.array([True, False]), LANES),
        (
            Fired("yes", [2.0, 4.0], LANE, lanes=[True, False]),
            Fired("no", [4.0, 8.0], LANE, lanes=[False, True]),
        ),
        modes=(EAGER, JIT),
    ),
    Program(
        "grad of vmap of cond, where",
        jax.grad(lambda x, p: jax.vmap(masked_branch)(p, x).sum()),
        (LANES, np.array([True, False])),
        (
            Fired("yes", [2.0, 4.0], LANE, lanes=[True, False]),
            Fired("no", [4.0, 8.0], LANE, lanes=[False, True]),
            Fired("yes", [1.0, 0.0], (*LANE, *COTANGENT), lanes=[True, False]),
            Fired("no", [0.0, 1.0], (*LANE, *COTANGENT), lanes=[False, True]),
        ),
        modes=(EAGER, JIT),
    ),
    Program("where, no lanes", lambda x: tap(x, "u", where=x > 1), (np.float32(1),), (Fired("u", 1.0, lanes=False),)),
    Program("cond of vmap", conditional_vmap, (TRUE, LANES), (Fired("u", [2.0, 4.0], LANE),)),
    Program(
        "vmap of switch, one index",
        jax.vmap(switch, in_axes=(None, 0)),
        (np.int32(2), LANES),
        (Fired("b2", [3.0, 6.0], LANE),),
    ),
]
