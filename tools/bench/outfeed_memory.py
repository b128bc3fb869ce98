"""How far the memory of a process grows while a slow consumer holds the computation up.

A jitted scan taps faster than the recorder, which is slowed down, takes the records: the outfeed's queue is full
most of the time. What is measured is the resident memory of the process, sampled all the while, beside what it
was after a first call and a flush. The bar is the queue's bound plus 64 MiB.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

import tracerec
from tools.bench.harness import Report

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["PeakMemory", "run"]

BOUND_BYTES = 32 << 20
SLACK_BYTES = 64 << 20
RETAINED_BYTES = 256 << 20

# elements of float32 a record, records, iterations of one scan, seconds that the consumer sleeps a record
FULL = {"4 B": (1, 10_000_000, 10_000, 2e-6), "1 MB": (262_144, 20_000, 50, 1e-3)}
PART = {"4 B": (1, 1_000_000, 10_000, 2e-6), "1 MB": (262_144, 2_000, 50, 1e-3)}
QUICK = {"4 B": (1, 2_000, 1_000, 2e-6), "1 MB": (262_144, 10, 5, 1e-3)}

_SAMPLE_SECONDS = 0.002
_PAGE = resource.getpagesize()


class PeakMemory:
    """A context that samples the process's resident memory.

    Attributes:
        grown_bytes: how far it was above what it was at the begin, at most.
    """

    def __init__(self) -> None:
        self.grown_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._begin = 0

    def __enter__(self) -> Self:
        self._begin = resident_bytes()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(_SAMPLE_SECONDS):
            self.grown_bytes = max(self.grown_bytes, resident_bytes() - self._begin)


def resident_bytes() -> int:
    """Returns the resident memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Growth of resident memory with the queue full: a million records of 4 B, 2000 of 1 MB.

    Ten times as many, the figures of the design: ``python -m tools.bench.outfeed_memory``.

    Args:
        quick: few records.

    Returns:
        One row a record size.
    """
    return measure(QUICK if quick else PART)


def measure(sizes: dict[str, tuple[int, int, int, float]]) -> Report:
    """Returns the report of some sizes."""
    return Report(
        name="outfeed_memory",
        title="Resident memory while a slow consumer holds the computation up; MiB",
        columns={
            "size": "record",
            "records": "records",
            "bound_mib": "queue's bound",
            "high_water_mib": "queue at most",
            "grown_mib": "memory grown by",
            "bar_mib": "bar",
            "seconds": "seconds",
        },
        rows=[_row(size, *numbers) for size, numbers in sizes.items()],
        notes=(
            "the recorder sleeps 2 us a record of 4 B and 1 ms a record of 1 MB, and then writes the journal",
            f"resident memory is sampled every {1e3 * _SAMPLE_SECONDS:.0f} ms",
            f"of the journal {RETAINED_BYTES >> 20} MiB are retained",
        ),
    )


def _row(size: str, elements: int, records: int, length: int, sleep: float) -> dict[str, Any]:
    @jax.jit
    def scan(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (tracerec.tap(c + np.float32(1), "x"), None), x, length=length)[0]

    with tempfile.TemporaryDirectory() as folder:
        recording = tracerec.record(
            str(Path(folder, "run.h5")),
            max_queue_bytes=BOUND_BYTES,
            block_timeout=None,
            # 20 GB of records need no 20 GB of disk
            retain_bytes=RETAINED_BYTES,
        )
        x = scan(jax.numpy.zeros(elements, np.float32))
        recording.flush()
        consume = recording.recorder.consume

        def slow(batch: Any) -> None:
            time.sleep(sleep * batch.count)
            consume(batch)

        recording.recorder.consume = slow  # type: ignore[method-assign]
        begun = time.perf_counter()
        with PeakMemory() as memory:
            for _ in range(records // length):
                x = scan(x)
            recording.flush()
        seconds = time.perf_counter() - begun
        summary = recording.close()
    if summary.records != records + length or summary.dropped:
        message = f"{summary.records} records were written and {summary.dropped} dropped, of {records + length}"
        raise RuntimeError(message)
    return {
        "size": size,
        "records": records,
        "bound_mib": BOUND_BYTES / (1 << 20),
        "high_water_mib": summary.high_water_bytes / (1 << 20),
        "grown_mib": memory.grown_bytes / (1 << 20),
        "bar_mib": (BOUND_BYTES + SLACK_BYTES) / (1 << 20),
        "seconds": seconds,
    }


def main() -> None:
    """Prints the report of the full numbers of records."""
    from rich.console import Console

    from tools.bench import harness

    harness.show(measure(FULL), Console())


if __name__ == "__main__":
    main()
