"""What the way from a computation to a consumer costs: per record, per call, per tap of a program, per leaf.

The consumers do nothing, so that what is timed is the outfeed: callback, queue, receiver thread, grouping, hand-over.
A timing ends when the last record has been consumed (``outfeed.barrier``). What the host's callback alone costs
is measured beside it, in the same rounds: the same tap, so the same lowering, with nobody listening. Its callback
returns at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import tracerec
from tools.bench.harness import Report, best_of
from tracerec import outfeed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tracerec.outfeed.batch import Batch

__all__ = ["run"]

SIZES = {"4 B": 1, "1 KB": 256}
"""Elements of float32 a record."""
LENGTH = 5000
"""Iterations of the scan."""
CALLS = 300
"""Calls of a small program within one timing."""
TAPS = 32
"""Taps of one program; leaves of one tap."""


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Cost of the outfeed to a consumer that does nothing: per record in a scan, per call, 32 taps, 32 leaves.

    Args:
        quick: short scans, few calls, one round: shows that the benchmark runs.

    Returns:
        One row a measurement: microseconds a unit, and the ratio of a tap with a consumer to what it is set against.
    """
    rounds = 1 if quick else 7
    length, calls = (20, 3) if quick else (LENGTH, CALLS)
    rows = [
        *(_in_scan(size, elements, length, rounds, busy=False) for size, elements in SIZES.items()),
        *(_in_scan(size, elements, length, rounds, busy=True) for size, elements in SIZES.items()),
        _a_call(calls, rounds),
        *_many(calls, rounds),
    ]
    return Report(
        name="outfeed_cost",
        title="Cost of the way from a computation to a consumer that does nothing; microseconds",
        columns={
            "what": "what",
            "per": "us per",
            "none_us": "no tap",
            "base": "against",
            "base_us": "us",
            "consumer_us": "consumer",
            "ratio": "ratio",
        },
        rows=rows,
        notes=(
            f"best of {rounds} interleaved rounds; 'us' and 'consumer' are what is added to 'no tap'",
            "bare: the same tap with nobody listening, whose host callback returns at once",
            "busy: another Python thread computes all the while, and has the interpreter most of the time",
            f"a call: {calls} calls of a program with one tap of 4 B, {TAPS} taps or a tap of {TAPS} leaves",
            "consumer: a tap and a consumer, until the last record was consumed, outfeed.barrier() included",
        ),
    )


class _Nothing:
    """A consumer that counts, and does nothing else."""

    def __init__(self) -> None:
        self.count = 0

    def consume(self, batch: Batch) -> None:
        """Counts the records."""
        self.count += batch.count


def _in_scan(size: str, elements: int, length: int, rounds: int, *, busy: bool) -> dict[str, Any]:
    def scan(tap: Callable[[Any], Any]) -> Callable[[], Any]:
        def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return tap(x * jnp.float32(0.999) + jnp.float32(0.1)), None

        function = jax.jit(lambda x: jax.lax.scan(body, x, length=length)[0])
        x = jnp.asarray(np.linspace(0, 1, elements, dtype=np.float32))
        return lambda: function(x).block_until_ready()

    plain, tapped = scan(lambda x: x), scan(lambda x: tracerec.tap(x, "x"))
    variants = {
        "none": partial(_timed, plain, 1),
        "bare": partial(_timed, tapped, 1),
        "consumer": partial(_consumed, tapped, 1, length),
    }
    if busy:
        variants = {name: partial(_beside_a_busy_thread, variant) for name, variant in variants.items()}
    best = _best(variants, rounds, length)
    what = f"{size}, busy thread" if busy else f"{size} in a scan"
    return _row(what, "record", best, "bare")


def _a_call(calls: int, rounds: int) -> dict[str, Any]:
    """One tap in a small program, against ``jax.debug.callback`` in its place."""

    def callback(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda _: None, x)
        return x

    variants = {
        "none": partial(_timed, _program(lambda x: x), calls),
        "bare": partial(_timed, _program(lambda x: tracerec.tap(x, "x")), calls),
        "jax.debug.callback": partial(_timed, _program(callback), calls),
        "consumer": partial(_consumed, _program(lambda x: tracerec.tap(x, "x")), calls, calls),
    }
    best = _best(variants, rounds, calls)
    return _row("one tap", "call", best, "jax.debug.callback") | {"bare_us": best["bare"] - best["none"]}


def _many(calls: int, rounds: int) -> list[dict[str, Any]]:
    """32 taps in one program against one tap of 32 leaves."""

    def taps(x: jax.Array) -> Any:
        return [tracerec.tap(x + k, f"x{k}") for k in range(TAPS)]

    def leaves(x: jax.Array) -> Any:
        return tracerec.tap([x + k for k in range(TAPS)], "x")

    variants = {
        "none": partial(_timed, _program(lambda x: [x + k for k in range(TAPS)]), calls),
        "bare": partial(_timed, _program(taps), calls),
        "consumer": partial(_consumed, _program(taps), calls, TAPS * calls),
        "leaves": partial(_consumed, _program(leaves), calls, calls),
    }
    best = _best(variants, rounds, calls)
    taps_row = _row(f"{TAPS} taps", "call", best, "bare")
    leaves_row = _row(
        f"tap of {TAPS} leaves",
        "call",
        {"none": best["none"], "32 taps": best["consumer"], "consumer": best["leaves"]},
        "32 taps",
    )
    return [taps_row, leaves_row]


def _program(function: Callable[[jax.Array], Any]) -> Callable[[], Any]:
    jitted = jax.jit(lambda x: function(x + jnp.float32(1)))
    x = jnp.float32(1)
    return lambda: jitted(x)


def _timed(work: Callable[[], Any], calls: int) -> dict[str, float]:
    """Returns the seconds of some calls, after one that is not timed."""
    jax.block_until_ready(work())
    jax.effects_barrier()
    begun = time.perf_counter()
    for _ in range(calls - 1):
        work()
    jax.block_until_ready(work())
    jax.effects_barrier()
    return {"run": time.perf_counter() - begun}


def _consumed(work: Callable[[], Any], calls: int, records: int) -> dict[str, float]:
    """The same, with a consumer and until it has had everything."""
    consumer = _Nothing()
    outfeed.add_consumer(consumer)
    try:
        jax.block_until_ready(work())
        jax.effects_barrier()
        outfeed.barrier()
        before = consumer.count
        begun = time.perf_counter()
        for _ in range(calls - 1):
            work()
        jax.block_until_ready(work())
        jax.effects_barrier()
        outfeed.barrier()
        seconds = time.perf_counter() - begun
    finally:
        outfeed.remove_consumer(consumer)
    if consumer.count - before != records:
        message = f"{consumer.count - before} records have arrived, not {records}"
        raise RuntimeError(message)
    return {"run": seconds}


@contextlib.contextmanager
def _busy_thread() -> Generator[None]:
    end = threading.Event()

    def compute() -> None:
        while not end.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _beside_a_busy_thread(variant: Callable[[], dict[str, float]]) -> dict[str, float]:
    with _busy_thread():
        return variant()


def _best(variants: dict[str, Callable[[], dict[str, float]]], rounds: int, units: int) -> dict[str, float]:
    """Returns the microseconds a unit of each variant."""
    return {name: 1e6 * times["run"] / units for name, times in best_of(variants, rounds).items()}


def _row(what: str, per: str, best: dict[str, float], base: str) -> dict[str, Any]:
    added = {name: best[name] - best["none"] for name in (base, "consumer")}
    return {
        "what": what,
        "per": per,
        "none_us": best["none"],
        "base": base,
        "base_us": added[base],
        "consumer_us": added["consumer"],
        "ratio": added["consumer"] / added[base],
    }
