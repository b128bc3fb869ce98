"""Which lanes of a vmapped branch or loop count. Expected masks are the predicates, worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, JVP, Fired, Program, batch, f32, i32
from tracerec import Transform, tap

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = f32([1, 2])
FIRST = np.array([True, False])
LANE = (batch(2, 0),)
TWO_MODES = (EAGER, JIT)


def inside(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """The function in the branch of a cond that the first lane takes."""
    return lambda p, x: lax.cond(p, function, lambda x: x, x)


def double(x: Any) -> Any:
    """The simplest tap."""
    return tap(x * 2.0, "u")


def branch(p: Any, x: Any) -> Any:
    """A tap in either branch."""
    return lax.cond(p, lambda x: tap(x * 2.0, "yes"), lambda x: tap(x * 4.0, "no"), x)


def switch(i: Any, x: Any) -> Any:
    """A tap in each branch."""
    return lax.switch(i, [lambda x, k=k: tap(x * (k + 1.0), f"b{k}") for k in range(3)], x)


def cond_in_cond(p: Any, q: Any, x: Any) -> Any:
    """The inner branch counts where both predicates hold."""
    return lax.cond(p, lambda x: lax.cond(q, double, lambda x: x, x), lambda x: x, x)


def scan_inside(x: Any) -> Any:
    """A loop in the branch."""
    return lax.scan(lambda c, _: (double(c), None), x, None, length=2)[0]


def in_scan(p: Any, x: Any) -> Any:
    """A branch in a loop: the predicate turns with every iteration."""
    return lax.scan(lambda c, _: ((~c[0], inside(double)(*c)), None), (p, x), None, length=2)[0][1]


def in_while(n: Any, x: Any) -> Any:
    """A branch in a loop that lanes leave at different times: the branch is known, the loop is not."""
    body = lambda c: (c[0] + 1, lax.cond(c[1] < 9, double, lambda x: x, c[1]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, body, (jnp.int32(0), x))[1]


def shared_value(p: Any, x: Any) -> Any:
    """The value has no lanes, the predicate has."""
    return lax.cond(p, lambda: tap(x * 2.0, "u"), lambda: x)


@jax.custom_vjp
def ruled(x: Any) -> Any:
    """A rule in a branch."""
    return tap(x * x, "f")


ruled.defvjp(lambda x: (tap(x * x, "fwd"), x), lambda x, ct: (tap(ct * x * 2.0, "bwd"),))


@jax.custom_jvp
def ruled_forward(x: Any) -> Any:
    """A forward rule in a branch; the function itself has no tap."""
    return x * x


@ruled_forward.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return tap(x * x, "p"), tap(t * x * 2.0, "t")


@sequential_vmap
def in_sequence(x: Any) -> Any:
    """One lane after the other."""
    return double(x)


@custom_vmap
def all_at_once(x: Any) -> Any:
    """The rule doubles all lanes at once."""
    return x * 2.0


@all_at_once.def_vmap
def _(_size: int, _batched: Any, x: Any) -> Any:
    return tap(x * 2.0, "rule"), True


def while_inside(n: Any, x: Any) -> Any:
    """A loop of n iterations around a rule of vmap."""
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, in_sequence(c[1])), (jnp.int32(0), x))[1]


U = Fired("u", [2.0, 4.0], LANE, lanes=[True, False])
MASK = (Transform("mask"),)
UNCERTAIN = Fired("u", [2.0, 4.0], LANE, uncertain=True)
YES_NO = (Fired("yes", [2.0, 4.0], LANE, lanes=[True, False]), Fired("no", [4.0, 8.0], LANE, lanes=[False, True]))
NESTED = (batch(2, 0), batch(2, 0))
GRID = f32([[1, 2], [3, 4]])


def of_vmap(function: Any) -> Any:
    """The sum of a vmapped function, as a function of x alone."""
    return lambda x: jax.vmap(function)(jnp.asarray(FIRST), x).sum()


PROGRAMS = [
    Program("vmap of cond, a predicate a lane", jax.vmap(branch), (FIRST, LANES), YES_NO, modes=TWO_MODES),
    Program(
        "vmap of switch, an index a lane",
        jax.vmap(switch),
        (i32([0, 2]), LANES),
        (
            Fired("b0", LANES, LANE, lanes=[True, False]),
            Fired("b1", LANES * 2, LANE, lanes=[False, False]),
            Fired("b2", LANES * 3, LANE, lanes=[False, True]),
        ),
        modes=TWO_MODES,
    ),
    # y = [2, 8] is squared: its cotangent is 2y, for all lanes in both branches.
    Program(
        "vmap of grad of cond, a predicate a lane",
        jax.vmap(jax.grad(lambda x, p: branch(p, x) ** 2)),
        (LANES, FIRST),
        (
            *YES_NO,
            Fired("yes", [4.0, 16.0], (*COTANGENT, *LANE), lanes=[True, False]),
            Fired("no", [4.0, 16.0], (*COTANGENT, *LANE), lanes=[False, True]),
        ),
        modes=TWO_MODES,
    ),
    Program(
        "grad of vmap of cond, a predicate a lane",
        jax.grad(of_vmap(branch)),
        (LANES,),
        (
            *YES_NO,
            Fired("yes", [1.0, 0.0], (*LANE, *COTANGENT), lanes=[True, False]),
            Fired("no", [0.0, 1.0], (*LANE, *COTANGENT), lanes=[False, True]),
        ),
        modes=TWO_MODES,
    ),
    Program(
        "jvp of vmap of cond, a predicate a lane",
        lambda x: jax.jvp(of_vmap(branch), (x,), (x,)),
        (LANES,),
        (
            *YES_NO,
            Fired("yes", [2.0, 4.0], (*LANE, JVP), lanes=[True, False]),
            Fired("no", [4.0, 8.0], (*LANE, JVP), lanes=[False, True]),
        ),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond in cond",
        jax.vmap(cond_in_cond),
        (np.array([True, True, False, False]), np.array([True, False, True, False]), f32([1, 2, 3, 4])),
        (Fired("u", [2.0, 4.0, 6.0, 8.0], (batch(4, 0),), lanes=[True, False, False, False]),),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond in cond, outer predicate shared",
        jax.vmap(cond_in_cond, (None, 0, 0)),
        (np.ones((), bool), FIRST, LANES),
        (U,),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond in cond, inner predicate shared",
        jax.vmap(cond_in_cond, (0, None, 0)),
        (FIRST, np.ones((), bool), LANES),
        (U,),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of vmap of cond",
        jax.vmap(jax.vmap(inside(double))),
        (np.array([[True, False], [False, True]]), GRID),
        (Fired("u", GRID * 2, NESTED, lanes=[[True, False], [False, True]]),),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of vmap of cond, predicate of the inner lanes",
        jax.vmap(jax.vmap(inside(double)), in_axes=(None, 0)),
        (FIRST, GRID),
        (Fired("u", GRID * 2, (batch(2, 0, kwargs=(0,)), batch(2, 0, kwargs=(None,))), lanes=[True, False]),),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of vmap of cond, predicate of the outer lanes",
        jax.vmap(jax.vmap(inside(double), in_axes=(None, 0))),
        (FIRST, GRID),
        (Fired("u", GRID * 2, (batch(2, 0, kwargs=(None,)), batch(2, 0, kwargs=(0,))), lanes=[True, False]),),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond of vmap",
        jax.vmap(inside(jax.vmap(double))),
        (FIRST, GRID),
        (Fired("u", GRID * 2, NESTED, lanes=[True, False]),),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond of jit",
        jax.vmap(inside(jax.jit(double))),
        (FIRST, LANES),
        (UNCERTAIN,),
        modes=TWO_MODES,
        limit="In an inner jit, loop or checkpoint of such a branch nothing tells lanes apart: the record is marked.",
    ),
    Program(
        "vmap of cond of scan",
        jax.vmap(inside(scan_inside)),
        (FIRST, LANES),
        (UNCERTAIN, Fired("u", [4.0, 8.0], LANE, uncertain=True)),
        modes=TWO_MODES,
        limit="The same holds for a scan.",
    ),
    Program(
        "vmap of grad of cond of scan",
        jax.vmap(jax.grad(lambda x, p: inside(scan_inside)(p, x))),
        (LANES, FIRST),
        (
            UNCERTAIN,
            Fired("u", [4.0, 8.0], LANE, uncertain=True),
            Fired("u", [1.0, 1.0], (*COTANGENT, *LANE), uncertain=True),
            Fired("u", [2.0, 2.0], (*COTANGENT, *LANE), uncertain=True),
        ),
        modes=TWO_MODES,
    ),
    # The second lane's predicate is false, then true: 2 is not doubled, then it is.
    Program(
        "vmap of scan of cond",
        jax.vmap(in_scan),
        (FIRST, LANES),
        (U, Fired("u", [4.0, 4.0], LANE, lanes=[False, True])),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of grad of cond of checkpoint",
        jax.vmap(jax.grad(lambda x, p: inside(jax.checkpoint(lambda x: double(x) ** 2))(p, x))),
        (LANES, FIRST),
        (
            U,
            Fired("u", [4.0, 8.0], (*COTANGENT, *LANE), live=[True, False], uncertain=True),
        ),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of grad of checkpoint of cond",
        jax.vmap(jax.grad(jax.checkpoint(lambda x, p: inside(lambda x: double(x) ** 2)(p, x)))),
        (LANES, FIRST),
        (U, Fired("u", [4.0, 8.0], (*COTANGENT, *LANE), lanes=[True, False])),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of grad of cond of custom_vjp",
        jax.vmap(jax.grad(lambda x, p: inside(ruled)(p, x))),
        (LANES, FIRST),
        (Fired("fwd", [1.0, 4.0], LANE, lanes=[True, False]), Fired("bwd", [2.0, 4.0], LANE, lanes=[True, False])),
        modes=TWO_MODES,
    ),
    # The second lane's cotangent is that of the other branch's result: zero.
    Program(
        "grad of vmap of cond of custom_vjp",
        jax.grad(of_vmap(inside(ruled))),
        (LANES,),
        (
            Fired("fwd", [1.0, 4.0], LANE, uncertain=True),
            Fired("bwd", [2.0, 0.0], LANE, uncertain=True),
        ),
        modes=TWO_MODES,
        limit="JAX batches a custom rule that is differentiated outside of the vmap later than the branch: its records "
        "are marked.",
    ),
    Program(
        "jvp of vmap of cond of custom_jvp",
        lambda x: jax.jvp(of_vmap(inside(ruled_forward)), (x,), (x,)),
        (LANES,),
        (
            Fired("p", [1.0, 4.0], LANE, uncertain=True),
            Fired("t", [2.0, 0.0], LANE, live=[True, False], uncertain=True),
        ),
        modes=TWO_MODES,
    ),
    Program("vmap of sequential_vmap", jax.vmap(in_sequence), (LANES,), (Fired("u", 2.0), Fired("u", 4.0))),
    Program("vmap of custom_vmap", jax.vmap(all_at_once), (LANES,), (Fired("rule", [2.0, 4.0]),)),
    Program(
        "vmap of cond of custom_vmap",
        jax.vmap(inside(all_at_once)),
        (FIRST, LANES),
        (Fired("rule", [2.0, 4.0], MASK, uncertain=True),),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond of sequential_vmap",
        jax.vmap(inside(in_sequence)),
        (FIRST, LANES),
        (Fired("u", 2.0, MASK, uncertain=True), Fired("u", 4.0, MASK, uncertain=True)),
        modes=TWO_MODES,
        limit="A rule of `jax.custom_batching` runs for all lanes, with no batch in its records: they are marked by a "
        "`mask` among their transforms.",
    ),
    # Trip counts 1 and 2: 4 is doubled to 8; the first lane's 2 is doubled once more, in vain.
    Program(
        "vmap of while of sequential_vmap",
        jax.vmap(while_inside),
        (i32([1, 2]), LANES),
        tuple(Fired("u", value, MASK, uncertain=True) for value in (2.0, 4.0, 4.0, 8.0)),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond, value without lanes",
        jax.vmap(shared_value, (0, None)),
        (FIRST, np.float32(1)),
        (
            # JAX gives all operands of such a cond lanes
            Fired("u", [2.0, 2.0], LANE, lanes=[True, False]),
        ),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of cond, where beside the predicate",
        jax.vmap(inside(lambda x: tap(x * 2.0, "u", where=x < 2.0))),
        (np.array([True, True, False]), f32([1, 2, 1])),
        (Fired("u", [2.0, 4.0, 2.0], (batch(3, 0),), lanes=[True, False, False]),),
        modes=TWO_MODES,
    ),
    # Trip counts 1 and 2: the first lane takes the branch although it has left the loop.
    Program(
        "vmap of cond in while",
        jax.vmap(in_while),
        (i32([1, 2]), LANES),
        (
            Fired("u", [2.0, 4.0], LANE, lanes=[True, True], uncertain=True),
            Fired("u", [4.0, 8.0], LANE, lanes=[True, True], uncertain=True),
        ),
        modes=TWO_MODES,
        limit="A branch in such a loop has its own mask, which does not know of the loop: the record is marked.",
    ),
]
