"""Programs of libraries: checkify, odeint, optax, flax.

Exact numbers where the arithmetic is dyadic, worked out with numpy. ``odeint`` chooses its steps as it goes: there the
expected records come from a spy of JAX's own, a custom_vjp around ``jax.debug.callback``, in the program without taps.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.experimental import checkify
from jax.experimental.ode import odeint

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, Fired, Program, f32
from tracerec import tap

X = f32([[1, 2], [3, -4]])
W1 = f32([[1, 0.5], [-1, 2]])
W2 = f32([[1], [-0.5]])

# The network is y = relu(x W1) W2 with the loss sum(y^2), tapped at h = x W1 and at y.
H = X @ W1
Y = np.maximum(H, 0) @ W2
DY = 2 * Y
DH = np.where(H > 0, DY @ W2.T, np.float32(0))
DW1, DW2 = X.T @ DH, np.maximum(H, 0).T @ DY
NETWORK = (Fired("h", H), Fired("y", Y), Fired("y", DY, COTANGENT), Fired("h", DH, COTANGENT))


def spied(function: Any) -> tuple[Fired, ...]:
    """Runs ``function(spy)``; returns what its spies saw, as the records of taps in their places."""
    seen: list[Fired] = []

    def spy(x: Any, name: str) -> Any:
        def report(transforms: Any) -> Any:
            return lambda x: seen.append(Fired(name, np.array(x), transforms))

        @jax.custom_vjp
        def identity(x: Any) -> Any:
            jax.debug.callback(report(()), x)
            return x

        def forward(x: Any) -> Any:
            jax.debug.callback(report(()), x)
            return x, None

        def backward(_: Any, ct: Any) -> Any:
            jax.debug.callback(report(COTANGENT), ct)
            return (ct,)

        identity.defvjp(forward, backward)
        return identity(x)

    jax.block_until_ready(function(spy))
    jax.effects_barrier()
    return tuple(seen)


def decay(probe: Any) -> Any:
    """Y' = -ky, from 1, up to t = 1."""

    def final(k: Any) -> Any:
        times = jnp.float32([0, 1])
        return odeint(lambda y, _, k: probe(-k * y, "dy"), jnp.float32(1), times, k, rtol=1e-2, atol=1e-2)[1]

    return final


K = np.float32(0.5)


def checked(x: Any) -> Any:
    """A check between two taps; the error is a value."""

    def function(x: Any) -> Any:
        x = tap(x * 2.0, "before")
        checkify.check(x > 0, "{x} is not positive", x=x)
        return tap(x * 2.0, "after")

    error, y = checkify.checkify(function)(x)
    return error.get() is None or y, y


def checked_floats(x: Any) -> Any:
    """Checks of every float operation, in a scan."""

    def body(c: Any, _: Any) -> Any:
        return tap(c * 2.0, "c"), None

    function = checkify.checkify(lambda x: lax.scan(body, x, None, length=2)[0], errors=checkify.float_checks)
    return function(x)[1]


def checked_grad(x: Any) -> Any:
    """Grad inside checkify."""
    return checkify.checkify(jax.grad(lambda x: tap(x * 2.0, "u") ** 3), errors=checkify.float_checks)(x)[1]


def sgd(w: Any) -> Any:
    """Two steps of momentum on w^2, in a scan: g = 2w, m = g + m/2, w = w - m/4."""
    optimizer = optax.sgd(0.25, momentum=0.5)

    def step(carry: Any, i: Any) -> Any:
        params, state = carry
        gradients = tap(jax.grad(lambda p: (tap(p["w"], "w") ** 2).sum())(params), "g", step=i)
        updates, state = optimizer.update(gradients, state)
        updates = tap(updates, "u", step=i)
        return (optax.apply_updates(params, updates), state), None

    params = {"w": w}
    return lax.scan(step, (params, optimizer.init(params)), jnp.arange(2, dtype=jnp.int32))[0][0]


def adam(w: Any) -> Any:
    """The first step of adam moves every weight by the learning rate, against its gradient's sign."""
    optimizer = optax.adam(0.5, eps=0.0)
    gradients = jax.grad(lambda w: (w * w).sum())(w)
    # adam's bias correction raises a Python float to an integer array.
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(gradients, optimizer.init(w))
    return optax.apply_updates(w, tap(updates, "u"))


class Network(nn.Module):
    """The network in flax.linen."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """The output."""
        h = tap(nn.Dense(2, use_bias=False, name="first")(x), "h")
        return tap(nn.Dense(1, use_bias=False, name="second")(nn.relu(h)), "y")


def linen(module: type[nn.Module]) -> Any:
    """The loss's gradient with respect to the parameters, given."""

    def gradient(w1: Any, w2: Any) -> Any:
        params = {"params": {"first": {"kernel": w1}, "second": {"kernel": w2}}}
        return jax.grad(lambda p: (module().apply(p, jnp.asarray(X)) ** 2).sum())(params)  # pyright: ignore[reportOperatorIssue, reportAttributeAccessIssue]

    return gradient


class Layers(nnx.Module):
    """The network in flax.nnx."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Initialises the weights, which are then given."""
        self.first = nnx.Linear(2, 2, use_bias=False, rngs=rngs)
        self.second = nnx.Linear(2, 1, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """The output."""
        return tap(self.second(nnx.relu(tap(self.first(x), "h"))), "y")


def nnx_step(w1: Any, w2: Any) -> Any:
    """A gradient and an update, with the gradients tapped."""
    model = Layers(nnx.Rngs(0))
    model.first.kernel.set_value(w1)
    model.second.kernel.set_value(w2)
    optimizer = nnx.Optimizer(model, optax.sgd(0.25), wrt=nnx.Param)
    gradients = nnx.grad(lambda model: (model(jnp.asarray(X)) ** 2).sum())(model)
    tap((gradients.first.kernel.get_value(), gradients.second.kernel.get_value()), "g")
    optimizer.update(model, gradients)
    return tap(model.second.kernel.get_value(), "w2")


ODE_MODES = (EAGER, JIT)

PROGRAMS = [
    Program("checkify", checked, (np.float32(1),), (Fired("before", 2.0), Fired("after", 4.0)), modes=(EAGER,)),
    Program(
        "checkify, failed check",
        checked,
        (np.float32(-1),),
        (Fired("before", -2.0), Fired("after", -4.0)),
        modes=(EAGER,),
    ),
    Program("checkify of scan", checked_floats, (np.float32(1),), (Fired("c", 2.0), Fired("c", 4.0))),
    Program("checkify of grad", checked_grad, (np.float32(1),), (Fired("u", 2.0), Fired("u", 12.0, COTANGENT))),
    Program("odeint", decay(tap), (K,), lambda: spied(lambda spy: decay(spy)(K)), modes=ODE_MODES, rtol=1e-5),
    Program(
        "grad of odeint",
        jax.grad(decay(tap)),
        (K,),
        lambda: spied(lambda spy: jax.grad(decay(spy))(K)),
        modes=ODE_MODES,
        rtol=1e-5,
    ),
    # w = [1, -2]: g = 2w, u = -g/4 = -w/2; then w/2, g = w, u = -(g + 2w/2)/4 = -w/2.
    Program(
        "optax sgd in scan",
        sgd,
        (f32([1, -2]),),
        (
            Fired("w", [1.0, -2.0]),
            Fired("w", [2.0, -4.0], COTANGENT),
            Fired("g", {"w": [2.0, -4.0]}, kwargs={"step": 0}),
            Fired("u", {"w": [-0.5, 1.0]}, kwargs={"step": 0}),
            Fired("w", [0.5, -1.0]),
            Fired("w", [1.0, -2.0], COTANGENT),
            Fired("g", {"w": [1.0, -2.0]}, kwargs={"step": 1}),
            Fired("u", {"w": [-0.5, 1.0]}, kwargs={"step": 1}),
        ),
    ),
    Program("optax adam", adam, (f32([1, -2]),), (Fired("u", [-0.5, 0.5]),), rtol=1e-5),
    Program("flax.linen", linen(Network), (W1, W2), NETWORK),
    Program("flax.linen remat", linen(nn.remat(Network)), (W1, W2), NETWORK),
    Program("flax.nnx with optax", nnx_step, (W1, W2), (*NETWORK, Fired("g", (DW1, DW2)), Fired("w2", W2 - DW2 / 4))),
]
