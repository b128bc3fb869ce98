"""What one tap costs in a ``lax.scan``: with tracerec, and the way it is done without it.

Three variants of one jitted scan over an array, for records of 4 B, 1 KB and 1 MB:

    no tap     the computation alone
    tracerec   ``tracerec.tap(x, "x", step=i)`` in the body, recording to HDF5
    today      ``jax.debug.callback`` in the body; the callback appends to an h5py dataset: resize, ``d[i] = x``

The time of a variant ends when its records are out of the process's hands: ``rec.flush()`` has returned, or
``jax.effects_barrier()`` and the h5py file's ``flush()`` have. Compiling, opening and the first call are not
timed; closing is timed apart, since tracerec seals the journal into the HDF5 file then. The cost of a tap is
the difference to "no tap", divided by the number of records.
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np

import tracerec
from tools.bench.harness import Report, best_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

SIZES = {"4 B": 1, "1 KB": 256, "1 MB": 262_144}
"""Elements of float32 a record."""
LENGTHS = {"4 B": 2000, "1 KB": 2000, "1 MB": 64}
"""Iterations of one scan."""
CALLS = 3
"""Calls of the jitted function within one timing."""

Scan = Any


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Cost per tap in a scan: no tap, tracerec to HDF5, jax.debug.callback + h5py.

    Args:
        quick: short scans and one round: shows that the benchmark runs.

    Returns:
        One row a record size.
    """
    rounds = 1 if quick else 5
    rows: list[dict[str, Any]] = []
    for size, elements in SIZES.items():
        length = 8 if quick else LENGTHS[size]
        variants = {
            "none": functools.partial(_none, elements, length),
            "tracerec": functools.partial(_tracerec, elements, length),
            "today": functools.partial(_today, elements, length),
        }
        rows.append(_row(size, length, best_of(variants, rounds)))
    return Report(
        name="tap_in_scan",
        title="Cost of a tap in a lax.scan: tracerec, and jax.debug.callback + h5py (today); microseconds a record",
        columns={
            "size": "record",
            "records": "records",
            "none_us": "no tap",
            "tracerec_us": "tracerec",
            "today_us": "today",
            "ratio": "times cheaper",
            "tracerec_close_ms": "close, ms",
            "today_close_ms": "today's close, ms",
        },
        rows=rows,
        notes=(
            f"best of {rounds} interleaved rounds, each {CALLS} calls of one compiled scan",
            "no tap: one iteration of the scan; tracerec, today: what a tap adds to it, draining included",
            "draining: until rec.flush() has returned; today: until effects_barrier() and file.flush() have",
            "close: of the whole file; tracerec seals the journal into compressed HDF5 in a process started for it",
        ),
    )


def _row(size: str, length: int, best: dict[str, dict[str, float]]) -> dict[str, Any]:
    records = CALLS * length
    none = best["none"]["run"]
    tap_us = {name: 1e6 * (best[name]["run"] - none) / records for name in ("tracerec", "today")}
    return {
        "size": size,
        "records": records,
        "none_us": 1e6 * none / records,
        "tracerec_us": tap_us["tracerec"],
        "today_us": tap_us["today"],
        "ratio": tap_us["today"] / tap_us["tracerec"],
        "records_in_file": records + length,
        "tracerec_close_ms": 1e3 * best["tracerec"]["close"],
        "today_close_ms": 1e3 * best["today"]["close"],
    }


def _scan(tap: Callable[[jax.Array, jax.Array], jax.Array], length: int) -> Scan:
    """Returns a jitted scan whose body does a little arithmetic and calls ``tap(x, step)``."""

    def body(x: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
        return tap(x * jnp.float32(0.999) + jnp.float32(0.1), step), None

    @jax.jit
    def scan(x: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.scan(body, x, start + jnp.arange(length))[0]

    return scan


def _timed(scan: Scan, elements: int, length: int, drain: Callable[[], object]) -> float:
    """Returns the seconds of `CALLS` calls, and of draining, after a first call that is not timed."""
    x = scan(jnp.asarray(np.linspace(0, 1, elements, dtype=np.float32)), jnp.int32(0))
    x.block_until_ready()
    drain()
    begun = time.perf_counter()
    for call in range(CALLS):
        x = scan(x, jnp.int32((call + 1) * length))
    x.block_until_ready()
    drain()
    return time.perf_counter() - begun


def _none(elements: int, length: int) -> dict[str, float]:
    return {"run": _timed(_scan(lambda x, _: x, length), elements, length, lambda: None)}


def _tracerec(elements: int, length: int) -> dict[str, float]:
    def tap(x: jax.Array, step: jax.Array) -> jax.Array:
        return tracerec.tap(x, "x", step=step)

    with tempfile.TemporaryDirectory() as folder:
        with tracerec.record(str(Path(folder, "run.h5"))) as recording:
            seconds = _timed(_scan(tap, length), elements, length, recording.flush)
            _check(recording.records, length)
            begun = time.perf_counter()
        return {"run": seconds, "close": time.perf_counter() - begun}


def _today(elements: int, length: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = h5py.File(Path(folder, "run.h5"), "w")
        data = file.create_dataset("x", (0, elements), np.float32, maxshape=(None, elements), chunks=True)

        def append(x: jax.Array, step: jax.Array) -> None:
            number = int(step)
            if number >= len(data):
                data.resize(number + 1, axis=0)
            data[number] = x

        def tap(x: jax.Array, step: jax.Array) -> jax.Array:
            jax.debug.callback(append, x, step)
            return x

        def drain() -> None:
            jax.effects_barrier()
            file.flush()

        seconds = _timed(_scan(tap, length), elements, length, drain)
        _check(len(data), length)
        begun = time.perf_counter()
        file.close()
        return {"run": seconds, "close": time.perf_counter() - begun}


def _check(records: int, length: int) -> None:
    """Raises unless every record has arrived: a cheap way that loses records is no way."""
    if records != (CALLS + 1) * length:
        message = f"{records} records have arrived, not {(CALLS + 1) * length}"
        raise RuntimeError(message)
