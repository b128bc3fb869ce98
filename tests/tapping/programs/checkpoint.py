"""jax.checkpoint with every policy, alone and nested. A rematerialised pass records nothing again.

Expected values are worked out by hand.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, JVP, TANGENT, Fired, Program, batch, f32
from tracerec import tap

ONE = np.float32(1)
X = f32([1, 2])
W = f32([[1, 2], [3, 4]])

policies = jax.checkpoint_policies
POLICIES: dict[str, Any] = {
    "default": None,
    "everything_saveable": policies.everything_saveable,
    "nothing_saveable": policies.nothing_saveable,
    "dots_saveable": policies.dots_saveable,
    "checkpoint_dots": policies.checkpoint_dots,
    "dots_with_no_batch_dims_saveable": policies.dots_with_no_batch_dims_saveable,
    "checkpoint_dots_with_no_batch_dims": policies.checkpoint_dots_with_no_batch_dims,
    "offload_dot_with_no_batch_dims": policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "save_any_names_but_these": policies.save_any_names_but_these("h"),
    "save_anything_except_these_names": policies.save_anything_except_these_names("h"),
    "save_only_these_names": policies.save_only_these_names("h"),
    "save_and_offload_only_these_names": policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    "save_from_both_policies": policies.save_from_both_policies(
        policies.dots_saveable, policies.save_only_these_names("h")
    ),
}


def layer(x: Any) -> Any:
    """H = xW is a dot with a name, y = h^2 and the sum follow: the cotangents are 1 of y, 2h of h."""
    h = tap(checkpoint_name(x @ jnp.asarray(W), "h"), "h")
    y = tap(h * h, "y")
    return y.sum()


# x W = [7, 10]
LAYER = (
    Fired("h", [7.0, 10.0]),
    Fired("y", [49.0, 100.0]),
    Fired("y", [1.0, 1.0], COTANGENT),
    Fired("h", [14.0, 20.0], COTANGENT),
)


def cube(x: Any) -> Any:
    """U = 2x, u^3: the cotangent of u is 3u^2."""
    return tap(x * 2.0, "u") ** 3


CUBE = (Fired("u", 2.0), Fired("u", 12.0, COTANGENT))


def statement(x: Any) -> Any:
    """The tap's result is not used."""
    tap(x * 2.0, "u")
    return x * x * x


def squaring(x: Any, one: Any = lambda c: tap(c * c, "c")) -> Any:
    """C -> c^2 twice: x = 2 gives 4, 16; cotangents 1, then 2 * 4 = 8."""
    return lax.scan(lambda c, _: (one(c), None), x, None, length=2)[0]


SQUARING = (Fired("c", 4.0), Fired("c", 16.0), Fired("c", 1.0, COTANGENT), Fired("c", 8.0, COTANGENT))
TWO = np.float32(2)


def branch(x: Any) -> Any:
    """The branch taken, squared."""
    return lax.cond(x > 0, lambda x: tap(x * x, "yes"), lambda x: tap(x, "no"), x) ** 2


BRANCH = (Fired("yes", 4.0), Fired("yes", 8.0, COTANGENT))


def while_inside(x: Any) -> Any:
    """A while loop of values that are not differentiated, and a product with one that is."""
    n = lax.while_loop(lambda c: c < 4.0, lambda c: tap(c * 2.0, "w"), lax.stop_gradient(x))
    return tap(n * x, "y") ** 2


def both(x: Any) -> Any:
    """Checkpoint of a function with a checkpointed part, then a tap after it."""
    return tap(jax.checkpoint(cube)(x), "outer") ** 2


def vjp_twice(x: Any) -> Any:
    """One forward pass, two backward passes, each with its own rematerialisation."""
    _, pullback = jax.vjp(jax.checkpoint(cube), x)
    return pullback(jnp.float32(1)), pullback(jnp.float32(0.5))


CKPT = jax.checkpoint

PROGRAMS = [
    *(
        Program(f"checkpoint, {name}", jax.grad(jax.checkpoint(layer, policy=policy)), (X,), LAYER, modes=(EAGER, JIT))
        for name, policy in POLICIES.items()
    ),
    Program("checkpoint, not differentiated", CKPT(cube), (ONE,), (Fired("u", 2.0),)),
    Program("checkpoint, result unused", jax.grad(CKPT(statement)), (ONE,), (Fired("u", 2.0),)),
    Program("checkpoint, prevent_cse=False", jax.grad(CKPT(cube, prevent_cse=False)), (ONE,), CUBE),
    Program("checkpoint, value_and_grad", jax.value_and_grad(CKPT(cube)), (ONE,), CUBE),
    Program(
        "jvp of checkpoint",
        lambda x: jax.jvp(CKPT(cube), (x,), (jnp.float32(1),)),
        (ONE,),
        (Fired("u", 2.0), Fired("u", 2.0, TANGENT)),
    ),
    Program("checkpoint of jit", jax.grad(CKPT(jax.jit(cube))), (ONE,), CUBE),
    # outer = u^3 = 8, its cotangent 16, that of u 12 * 16.
    Program(
        "checkpoint of checkpoint",
        jax.grad(CKPT(both)),
        (ONE,),
        (Fired("u", 2.0), Fired("outer", 8.0), Fired("outer", 16.0, COTANGENT), Fired("u", 192.0, COTANGENT)),
    ),
    Program("checkpoint of scan", jax.grad(CKPT(squaring)), (TWO,), SQUARING),
    Program("scan of checkpoint", jax.grad(lambda x: squaring(x, CKPT(lambda c: tap(c * c, "c")))), (TWO,), SQUARING),
    Program(
        "checkpoint of scan of checkpoint",
        jax.grad(CKPT(lambda x: squaring(x, CKPT(lambda c: tap(c * c, "c"))))),
        (TWO,),
        SQUARING,
    ),
    Program("checkpoint of cond", jax.grad(CKPT(branch)), (TWO,), BRANCH),
    Program(
        "cond of checkpoint",
        jax.grad(lambda x: lax.cond(x > 0, CKPT(lambda x: tap(x * x, "yes") ** 2), lambda x: tap(x, "no"), x)),
        (TWO,),
        BRANCH,
    ),
    Program(
        "vmap of grad of checkpoint",
        jax.vmap(jax.grad(CKPT(cube))),
        (f32([1, 2]),),
        (Fired("u", [2.0, 4.0], (batch(2, 0),)), Fired("u", [12.0, 48.0], (*COTANGENT, batch(2, 0)))),
    ),
    Program(
        "grad of checkpoint of vmap",
        jax.grad(CKPT(lambda x: jax.vmap(cube)(x).sum())),
        (f32([1, 2]),),
        (Fired("u", [2.0, 4.0], (batch(2, 0),)), Fired("u", [12.0, 48.0], (batch(2, 0), *COTANGENT))),
    ),
    Program(
        "jvp of grad of checkpoint",
        lambda x: jax.jvp(jax.grad(CKPT(cube)), (x,), (jnp.float32(1),)),
        (ONE,),
        (*CUBE, Fired("u", 2.0, TANGENT), Fired("u", 24.0, (*COTANGENT, JVP))),
    ),
    Program(
        "grad of grad of checkpoint",
        jax.grad(jax.grad(CKPT(cube))),
        (ONE,),
        (*CUBE, Fired("u", 24.0, COTANGENT), Fired("u", 2.0, (*COTANGENT, *COTANGENT))),
    ),
    Program("vjp of checkpoint called twice", vjp_twice, (ONE,), (*CUBE, Fired("u", 6.0, COTANGENT))),
    # The while loop gives 4, y = 8, its cotangent 16.
    Program(
        "while inside checkpoint",
        jax.grad(CKPT(while_inside)),
        (TWO,),
        (Fired("w", 4.0, times=2), Fired("y", 8.0), Fired("y", 16.0, COTANGENT)),
        limit="A while loop runs again when its checkpoint is rematerialised, so its taps fire twice.",
    ),
]
