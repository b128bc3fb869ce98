"""What summaries, fingerprints and rare full records cost a transformer's training step.

Twelve layers with attention; a tap on each layer's activation, whose cotangents are recorded too, and on all
gradients. Variants of the same step:

    disabled      under tracerec.disabled(): the untapped program
    summary       keep="summary", every step
    fingerprint   keep="fingerprint", every step
    every 100     everything as it is, every=100
    full          everything as it is, every step
    by hand       the statistics of a summary, written by hand, as auxiliary outputs of the step, fetched
    callback      jax.debug.callback of the same tensors to a function that keeps numpy's statistics

What is recorded goes to an HDF5 recording; its end is not part of a step.
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import tracerec
from tools.bench.harness import Report, best_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 12, 128, 4, 64, 4
STEPS, ROUNDS = 20, 5
_BARS = {"summary": 1.08, "fingerprint": 1.05, "every 100": 1.01}


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Step time of a transformer whose activations and gradients are tapped, by what is kept of them.

    Args:
        quick: two steps and one round: shows that the benchmark runs.
    """
    steps, rounds = (2, 1) if quick else (STEPS, ROUNDS)
    model = _Model()
    variants: dict[str, Callable[[], dict[str, float]]] = {
        "disabled": functools.partial(model.timed, "none", steps),
        "summary": functools.partial(model.recorded, {"keep": "summary"}, steps),
        "fingerprint": functools.partial(model.recorded, {"keep": "fingerprint"}, steps),
        "every 100": functools.partial(model.recorded, {"every": 100}, steps),
        "full": functools.partial(model.recorded, {}, steps),
        "by hand": functools.partial(model.by_hand, steps),
        "callback": functools.partial(model.timed, "callback", steps),
    }
    best = best_of(variants, rounds)
    none = best["disabled"]["step"]
    rows = [
        {
            "variant": name,
            "step_ms": 1e3 * times["step"],
            "of_disabled": times["step"] / none,
            "bar": _BARS.get(name, ""),
            "kb": times.get("bytes", 0.0) / 1e3,
        }
        for name, times in best.items()
    ]
    columns = {
        "variant": "variant",
        "step_ms": "step ms",
        "of_disabled": "times disabled",
        "bar": "bar",
        "kb": "recorded KB a step",
    }
    notes = (
        f"{LAYERS} layers of width {WIDTH}, {BATCH} x {LENGTH} tokens, {model.count:,} parameters",
        f"{steps} steps, best of {rounds} interleaved rounds",
        f"the untapped and the disabled program are the same: {model.same_when_disabled()}",
        "every 100: the first step is recorded, the others are not; its cost is spread over the steps timed",
    )
    return Report("keep", "What is kept of a transformer's step", columns, rows, notes)


class _Model:
    """A transformer and its data."""

    def __init__(self) -> None:
        keys = iter(jax.random.split(jax.random.key(0), 4 * LAYERS + 2))

        def weight(*shape: int) -> Any:
            return jax.random.normal(next(keys), shape) / np.sqrt(shape[0])

        self.parameters: Any = [
            {
                "qkv": weight(WIDTH, 3 * WIDTH),
                "out": weight(WIDTH, WIDTH),
                "up": weight(WIDTH, 4 * WIDTH),
                "down": weight(4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ]
        self.x = jax.random.normal(next(keys), (BATCH, LENGTH, WIDTH))
        self.count = sum(leaf.size for leaf in jax.tree.leaves(self.parameters))
        # Functions are kept, so that each variant compiles once.
        self._steps = {"none": self.step(_tap_nothing), "tap": self.step(_tap), "callback": self.step(_call_back)}
        self._hand = _step_by_hand()

    def timed(self, kind: str, steps: int) -> dict[str, float]:
        """Returns the time of a step of one kind."""
        train = self._steps[kind]
        parameters = jax.block_until_ready(train(self.parameters, self.x, 0))
        jax.effects_barrier()
        start = time.perf_counter()
        for step in range(1, steps + 1):
            parameters = train(parameters, self.x, step)
        jax.block_until_ready(parameters)
        jax.effects_barrier()
        end = time.perf_counter()
        _seen.clear()
        return {"step": (end - start) / steps}

    def recorded(self, options: dict[str, Any], steps: int) -> dict[str, float]:
        """Returns the time of a step that is recorded, until all is on the disk."""
        with tempfile.TemporaryDirectory(prefix="tracerec-bench-") as folder:
            with tracerec.record(Path(folder) / "run.h5", **options) as rec:
                times = self.timed("tap", steps)
                start = time.perf_counter()
                rec.flush()
                late = time.perf_counter() - start
            return {"step": times["step"] + late / steps, "bytes": rec.recorder.nbytes / (steps + 1)}

    def by_hand(self, steps: int) -> dict[str, float]:
        """Returns the time of a step with statistics as further outputs, which the host fetches."""
        parameters, found = jax.block_until_ready(self._hand(self.parameters, self.x))
        start = time.perf_counter()
        for _ in range(steps):
            parameters, found = self._hand(parameters, self.x)
            jax.device_get(found)
        jax.block_until_ready(parameters)
        return {"step": (time.perf_counter() - start) / steps}

    def step(self, tap: Any) -> Any:
        """Returns a jitted training step with taps."""

        def loss(parameters: Any, x: Any, step: Any) -> Any:
            for number, layer in enumerate(parameters):
                x = tap(_layer(layer, x), f"layer_{number}/act", step)
            return jnp.mean(x**2)

        @jax.jit
        def train(parameters: Any, x: Any, step: Any) -> Any:
            gradients = tap(jax.grad(loss)(parameters, x, step), "gradients", step)
            return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients)

        return train

    def same_when_disabled(self) -> bool:
        """Returns whether a tapped step is, under ``disabled``, the untapped one."""
        with tracerec.disabled():
            tapped = self.step(_tap).lower(self.parameters, self.x, 0).as_text()
        return tapped == self.step(_tap_nothing).lower(self.parameters, self.x, 0).as_text()


def _layer(layer: Any, x: Any) -> Any:
    q, k, v = jnp.split(_normal(x) @ layer["qkv"], 3, axis=-1)
    heads = [y.reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS) for y in (q, k, v)]
    x = x + jax.nn.dot_product_attention(*heads).reshape(x.shape) @ layer["out"]
    return x + jax.nn.gelu(_normal(x) @ layer["up"]) @ layer["down"]


def _normal(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)


def _tap(x: Any, name: str, step: Any) -> Any:
    return tracerec.tap(x, name, step=step)


def _tap_nothing(x: Any, name: str, step: Any) -> Any:  # noqa: ARG001 - a tap's arguments
    return x


def _statistics(x: Any, xp: Any) -> dict[str, Any]:
    fine = xp.isfinite(x)
    y = xp.where(fine, x, 0)
    n = fine.sum()
    mean = y.sum() / n
    return {
        "nan": xp.isnan(x).sum(),
        "inf": xp.isinf(x).sum(),
        "zeros": (x == 0).sum(),
        "min": xp.where(fine, x, xp.inf).min(),
        "max": xp.where(fine, x, -xp.inf).max(),
        "mean": mean,
        "std": xp.sqrt(xp.where(fine, (x - mean) ** 2, 0).sum() / n),
        "l1": xp.abs(y).sum(),
        "l2": xp.sqrt((y * y).sum()),
    }


def _call_back(x: Any, name: str, step: Any) -> Any:
    for leaf in jax.tree.leaves(x):
        jax.debug.callback(
            lambda value, step: _seen.append((name, int(step), _statistics(np.asarray(value), np))), leaf, step
        )
    return x


_seen: list[Any] = []


def _step_by_hand() -> Any:
    """Returns a jitted training step that also returns statistics of activations and gradients."""

    def loss(parameters: Any, x: Any) -> Any:
        found: list[Any] = []
        for layer in parameters:
            x = _layer(layer, x)
            found.append(_statistics(x, jnp))
        return jnp.mean(x**2), found

    @jax.jit
    def train(parameters: Any, x: Any) -> Any:
        gradients, found = jax.grad(loss, has_aux=True)(parameters, x)
        also = jax.tree.map(lambda g: _statistics(g, jnp), gradients)
        return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients), (found, also)

    return train
