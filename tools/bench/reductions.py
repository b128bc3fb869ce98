"""What the reductions of ``keep=`` cost on the device, against a plain sum of the same array.

Each reduction is one jitted function of one array: the summary, the fingerprint, the histogram by exponent, and, for
comparison, the plain sum and what one would write by hand: the same eleven statistics with `jax.numpy` and masks.
Arrays are five million float32 and bfloat16, the same with one NaN (the branch that is rare), with lanes, with a mask,
and sixty-four small arrays reduced one by one in one program, as the taps of a model are.

Compiling is timed as well, lowering apart: a tap adds both to every program that it is in.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tools.bench.harness import Report, best_of
from tracerec.keeping import Fingerprint, Histogram, Summary
from tracerec.tapping.reductions import reduce

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

SHAPE = (10, 500, 1000)
"""Five million elements."""
SMALL, MANY = (64, 100), 64
"""The shape of a small array, and how many of them one program reduces."""
LIVE = 0.7
"""The share of rows that count where there is a mask."""
CALLS = 5
"""Calls within one timing."""


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Time of each reduction of `keep=` against a plain sum, and what it adds to compiling.

    Args:
        quick: small arrays and one round: shows that the benchmark runs.

    Returns:
        One row an array.
    """
    rounds = 1 if quick else 7
    rows = [_row(name, make, rounds) for name, make in _arrays(quick=quick).items()]
    return Report(
        name="reductions",
        title="Reductions on the device: nanoseconds an element, and milliseconds to lower and compile",
        columns={
            "array": "array",
            "sum_ns": "plain sum",
            "summary_ns": "summary",
            "fingerprint_ns": "fingerprint",
            "histogram_ns": "histogram",
            "by_hand_ns": "by hand",
            "sum_compile_ms": "sum: compile",
            "summary_compile_ms": "summary: compile",
            "fingerprint_compile_ms": "fingerprint: compile",
            "by_hand_compile_ms": "by hand: compile",
            "summary_lines": "summary: HLO lines",
            "fingerprint_lines": "fingerprint: HLO lines",
        },
        rows=rows,
        notes=(
            f"best of {rounds} interleaved rounds of {CALLS} calls",
            "by hand: the statistics of a summary with jax.numpy, each with its mask, in one jitted function",
            "compile: lowering and XLA, of one reduction (of all of them where there are many arrays)",
        ),
    )


def _arrays(*, quick: bool) -> dict[str, Any]:
    """Returns, by name, arrays with the number of lane axes and the mask."""
    shape = (2, 5, 100) if quick else SHAPE
    rng = np.random.default_rng(1)
    plain = jnp.asarray(rng.normal(size=shape).astype(np.float32))
    small = [jnp.asarray(rng.normal(size=SMALL).astype(np.float32)) for _ in range(2 if quick else MANY)]
    size = f"{plain.size:,}"
    return {
        f"{size} float32": ([plain], 0, None),
        f"{size} float32, flat": ([plain.reshape(-1)], 0, None),
        f"{size} bfloat16": ([plain.astype(jnp.bfloat16)], 0, None),
        f"{size} int32": ([(plain * np.float32(1000)).astype(np.int32)], 0, None),
        f"{size} float32, one NaN": ([plain.at[0, 0, 0].set(np.float32(np.nan))], 0, None),
        f"{size} float32, lanes": ([plain], 1, None),
        f"{size} float32, mask": ([plain], 0, jnp.asarray(rng.random((*shape[:2], 1)) < LIVE)),
        f"{len(small)} times {small[0].size:,} float32": (small, 0, None),
    }


def _row(name: str, made: Any, rounds: int) -> dict[str, Any]:
    arrays, lanes, mask = made
    ways: dict[str, Callable[[jax.Array, jax.Array | None], Any]] = {
        "sum": lambda x, _: jnp.sum(x, dtype=np.float32),
        "summary": lambda x, mask: reduce(Summary(), x, lanes, mask),
        "fingerprint": lambda x, mask: reduce(Fingerprint(), x, lanes, mask),
        "histogram": lambda x, mask: reduce(Histogram(), x, lanes, mask),
        "by_hand": partial(_by_hand, lanes),
    }
    row: dict[str, Any] = {"array": name}
    compiled: dict[str, Callable[[], dict[str, float]]] = {}
    for way, function in ways.items():
        begun = time.perf_counter()
        jitted = jax.jit(lambda xs, mask, function=function: [function(x, mask) for x in xs])
        program = jitted.lower(arrays, mask).compile()
        row[f"{way}_compile_ms"] = 1e3 * (time.perf_counter() - begun)
        row[f"{way}_lines"] = len((program.as_text() or "").splitlines())
        compiled[way] = partial(_timed, program, (arrays, mask))
    elements = sum(x.size for x in arrays)
    for way, best in best_of(compiled, rounds).items():
        row[f"{way}_ns"] = 1e9 * best["run"] / elements
    return row


def _timed(program: Any, arguments: Any) -> dict[str, float]:
    jax.block_until_ready(program(*arguments))
    begun = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(program(*arguments))
    return {"run": (time.perf_counter() - begun) / CALLS}


def _by_hand(lanes: int, x: jax.Array, mask: jax.Array | None) -> list[jax.Array]:
    axes = tuple(range(lanes, x.ndim))
    values = x.astype(np.float32)
    counted = jnp.ones_like(x, np.bool_) if mask is None else jnp.broadcast_to(mask, x.shape)
    good = jnp.isfinite(values) & counted
    safe = jnp.where(good, values, np.float32(0))
    number = jnp.maximum(jnp.sum(good, axis=axes, keepdims=True), 1).astype(np.float32)
    mean = jnp.sum(safe, axis=axes, keepdims=True) / number
    spread = jnp.where(good, jnp.square(values - mean), np.float32(0))
    return [
        jnp.sum(counted, axis=axes),
        jnp.sum(jnp.isnan(values) & counted, axis=axes),
        jnp.sum(jnp.isposinf(values) & counted, axis=axes),
        jnp.sum(jnp.isneginf(values) & counted, axis=axes),
        jnp.sum((values == np.float32(0)) & counted, axis=axes),
        jnp.min(jnp.where(good, values, np.float32(np.inf)), axis=axes),
        jnp.max(jnp.where(good, values, np.float32(-np.inf)), axis=axes),
        mean,
        jnp.sqrt(jnp.sum(spread, axis=axes, keepdims=True) / number),
        jnp.sum(jnp.abs(safe), axis=axes),
        jnp.sqrt(jnp.sum(jnp.square(safe), axis=axes)),
    ]
