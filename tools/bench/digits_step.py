"""How much recording slows the digits example down, with every activation kept at every step.

Variants of the same training, from the first step after compiling to the last:

    none       the example as it is, no recording: its taps find nobody who listens
    journal    recorded, and nothing is sealed before the end: segments are larger than the recording
    sealed     recorded as it comes; full segments are sealed meanwhile by the low-priority process

The end of a recording is not part of a step: it is timed apart.
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
import optax

import tracerec
from examples import digits
from tools.bench.harness import Report, best_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

STEPS, QUICK_STEPS = 600, 4
_SEGMENT_BYTES = 16 << 20
_NEVER = 1 << 40


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Step time of the digits example, recorded and not.

    Args:
        quick: few steps and one round: shows that the benchmark runs.

    Returns:
        One row a variant.
    """
    steps, rounds = (QUICK_STEPS, 1) if quick else (STEPS, 5)
    training = _Training(steps)
    variants: dict[str, Callable[[], dict[str, float]]] = {
        "none": training.plain,
        "journal": functools.partial(training.recorded, _NEVER),
        "sealed": functools.partial(training.recorded, _SEGMENT_BYTES),
    }
    best = best_of(variants, rounds)
    none = best["none"]["run"]
    rows = [
        {
            "variant": name,
            "step_us": 1e6 * times["run"] / steps,
            "of_none": times["run"] / none,
            "close_s": times.get("close", 0.0),
            "mbs": training.nbytes.get(name, 0) / times["run"] / 1e6,
        }
        for name, times in best.items()
    ]
    return Report(
        name="digits_step",
        title="The digits example: microseconds a step",
        columns={
            "variant": "variant",
            "step_us": "step us",
            "of_none": "times no recording",
            "close_s": "close s",
            "mbs": "payload MB/s",
        },
        rows=rows,
        notes=(
            f"{steps} steps, best of {rounds} interleaved rounds; bar: 1.3 times no recording",
            f"sealed: segments of {_SEGMENT_BYTES >> 20} MiB",
            "every layer's activation, its cotangent and key, the loss, all gradients and all parameters, every step",
        ),
    )


class _Training:
    """The example's training, compiled once.

    Attributes:
        nbytes: bytes in the journal, by variant.
    """

    def __init__(self, steps: int) -> None:
        self.nbytes: dict[str, int] = {}
        self._steps = steps
        self._images, self._labels, *_ = digits.load()
        self._optimizer = optax.adamw(digits.PEAK_LEARNING_RATE, weight_decay=1e-2)
        self._step = digits.make_train_step(self._optimizer)

    def plain(self) -> dict[str, float]:
        return {"run": self._train()}

    def recorded(self, segment_bytes: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            recording = tracerec.record(Path(folder, "run.h5"), segment_bytes=segment_bytes)
            seconds = self._train(recording.flush)
            begun = time.perf_counter()
            summary = recording.close()
            if summary.dropped:
                message = f"records were dropped: {summary.dropped}"
                raise RuntimeError(message)
            self.nbytes["sealed" if segment_bytes == _SEGMENT_BYTES else "journal"] = recording.recorder.nbytes
            return {"run": seconds, "close": time.perf_counter() - begun}

    def _train(self, flush: Callable[[], Any] = lambda: None) -> float:
        params = digits.init(jax.random.key(0))
        state = self._optimizer.init(params)
        order = np.random.default_rng(1)
        begun = 0.0
        for step in range(self._steps + 1):
            batch = order.choice(len(self._labels), digits.BATCH, replace=False)
            arguments = self._images[batch], self._labels[batch], jnp.int32(step)
            params, state, loss = self._step(params, state, *arguments)
            if step == 0:
                jax.block_until_ready(loss)
                flush()
                begun = time.perf_counter()
        jax.block_until_ready(params)
        flush()
        return time.perf_counter() - begun
