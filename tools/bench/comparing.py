"""What comparing two recordings costs: equal ones, ones that differ everywhere, and many taps of scalars.

Variants, on the same data:

    equal       two recordings of the same bytes: equal chunks are passed over as they lie in the files
    different   every float32 differs, and every measure is taken
    scalars     2,000 taps of 1,000 steps, one number each; all equal, and all different

Rates are of the payload of one run; the other is read, too. Memory is the largest resident set of a process that does
nothing but compare.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.memory_source import MemorySource, make_stream
from tools.bench.harness import Report
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]

_STEP = Column("step", "int64", python="int")
_KWARGS = '{"step":{"slot":0}}'

_PROGRAM = """
import json, os, re, sys, time
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import tracerec
compare = tracerec.compare
wall, cpu = time.perf_counter(), time.process_time()
found = compare(sys.argv[1], sys.argv[2])
times = time.perf_counter() - wall, time.process_time() - cpu
# Not ru_maxrss, which a process inherits.
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(json.dumps({"seconds": times[0], "cpu": times[1], "peak": peak, "different": found.different}))
"""


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Rate and memory of comparing two recordings, on one core.

    Args:
        quick: little data and one round: shows that the benchmark runs.

    Returns:
        One row a case.
    """
    rounds = 1 if quick else 3
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        a, b, c = (Path(folder) / f"{name}.h5" for name in "abc")
        payload = _tensors(a, 0.0, quick=quick)
        _tensors(b, 0.0, quick=quick)
        rows.append(_row("equal", [a, b], payload, rounds))
        b.unlink()
        _tensors(c, 1e-3, quick=quick)
        rows.append(_row("different", [a, c], payload, rounds))
        for path in (a, c):
            path.unlink()
        records = _scalars(a, 0.0, quick=quick)
        _scalars(b, 1.0, quick=quick)
        rows.append(_row(f"{records:,} scalars, equal", [a, a], 4 * records, rounds))
        rows.append(_row(f"{records:,} scalars, different", [a, b], 4 * records, rounds))
    return Report(
        name="comparing",
        title="Comparing two recordings, all measures: one core",
        columns={
            "case": "case",
            "seconds": "s",
            "cpu": "CPU s",
            "gbs": "GB/s",
            "cpu_gbs": "GB/CPU s",
            "peak_mb": "peak MB",
        },
        rows=rows,
        notes=(
            f"best of {rounds} rounds, each in a process of its own; GB/s of one run's payload",
            "float32 of a smooth signal with noise, in records of 4 MB, sealed with the default LZ4; in the page cache",
        ),
    )


def _row(case: str, paths: Sequence[Path], payload: int, rounds: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        command = [sys.executable, "-c", _PROGRAM, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    seconds, cpu = (min(each[name] for each in found) for name in ("seconds", "cpu"))
    return {
        "case": case,
        "seconds": seconds,
        "cpu": cpu,
        "gbs": payload / seconds / 1e9,
        "cpu_gbs": payload / cpu / 1e9,
        "peak_mb": max(each["peak"] for each in found) / 1e6,
        "different": found[0]["different"],
    }


class _Repeated:
    """A stream whose records are made as they are read: 2 GB need not be in memory."""

    def __init__(self, steps: int, size: int, noise: float) -> None:
        self.site = Site("act", (Leaf("", (size,), "float32"),), (_STEP,), kwargs=_KWARGS)
        self.records, self.size, self.noise = steps, size, noise
        self._stream = make_stream(Site("act", (), (_STEP,), kwargs=_KWARGS), [], numbers=[np.arange(steps)])
        self.nbytes = steps * size * 4

    def summaries(self) -> list[Any]:
        """Returns nothing: sealing makes them."""
        return []

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes of the leaf."""
        return self.nbytes + 0 * number

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns index rows."""
        return self._stream.index(start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns the steps."""
        return self._stream.column(number, start, stop)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns records."""
        out = np.empty((stop - start, self.size), np.float32)
        for row, step in enumerate(range(start, stop)):
            rng = np.random.default_rng([step, number])
            out[row] = np.sin(np.arange(self.size) / 1000 + step) + 1e-2 * rng.normal(size=self.size)
            if self.noise:
                out[row] += np.float32(self.noise) * (1 + rng.random(self.size, np.float32))
        return out


def _tensors(path: Path, noise: float, *, quick: bool) -> int:
    stream = _Repeated(4 if quick else 512, 1 << 20, noise)
    seal(MemorySource([stream]), path)
    return stream.nbytes


def _scalars(path: Path, shift: float, *, quick: bool) -> int:
    taps, steps = (20, 50) if quick else (2_000, 1_000)
    streams = [
        make_stream(
            Site(f"tap{tap:04d}", (Leaf("", (), "float32"),), (_STEP,), kwargs=_KWARGS),
            [np.arange(steps) / 7 + tap + shift],
            numbers=[np.arange(steps)],
            arrival=np.arange(steps) * taps + tap,
            call=np.arange(steps) + 1,
            position=tap,
        )
        for tap in range(taps)
    ]
    seal(MemorySource(streams), path)
    return taps * steps
