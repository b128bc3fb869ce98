"""Records millions of small records, and looks whether memory, cost, files and descriptors stay flat.

One process puts numbered records of 4 bytes to 500 streams, as fast as they are taken. After each tenth of them
it notes the processor time and the wall time that the tenth took, its resident memory, its open files, and the files
in the live folder. Then the recording is closed, opened, and its counts and a sample of its values are compared.

    python -m tools.soak                       10 million records
    python -m tools.soak --records 200000      a short one
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tracerec
from tools.feeding import Feed, expected

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Tenth", "faults", "main", "soak"]

STREAMS = 500
TENTHS = 10
MOST_TIMES = 1.3
"""How much more a record of the last tenth may cost than one of the first."""
MOST_GROWN_BYTES = 64 << 20
"""How far memory may grow from the end of the first tenth to that of the last."""
MOST_FILES = 40
"""Descriptors and files that are no more than a recording of any length needs."""

_BURST = 5_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True, slots=True)
class Tenth:
    """What was seen at the end of one tenth of the records.

    Attributes:
        wall: seconds it took.
        cpu: seconds of processor time that this process used for it, user and system.
        resident: bytes of memory.
        descriptors: open files of the process.
        files: files in the live folder.
    """

    wall: float
    cpu: float
    resident: int
    descriptors: int
    files: int


def soak(path: Path, records: int) -> list[Tenth]:
    """Records to a path and returns what was seen; raises ValueError where a record is missing or wrong."""
    feeds = [Feed(number, (1,)) for number in range(STREAMS)]
    values = [expected(feed.number, np.arange(TENTHS), (1,)) for feed in feeds]
    seen: list[Tenth] = []
    per_tenth = records // TENTHS
    recording = tracerec.record(path, block_timeout=None)
    for _ in range(TENTHS):
        wall, cpu = time.perf_counter(), time.process_time()
        for first in range(0, per_tenth, _BURST):
            for number in range(first, min(first + _BURST, per_tenth)):
                feed = feeds[number % STREAMS]
                # Values repeat: making each anew would cost more than recording it.
                feed.put(values[feed.number][feed.sent % TENTHS])
        recording.flush()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        live = sum(1 for _ in Path(f"{path}.live").iterdir())
        seen.append(Tenth(wall, cpu, resident, len(os.listdir("/proc/self/fd")), live))  # noqa: PTH208
    summary = recording.close()
    if summary.records != per_tenth * TENTHS or summary.dropped or summary.lost:
        message = f"{summary.records} of {per_tenth * TENTHS} records were written: {summary}"
        raise ValueError(message)
    _check(path, feeds, values)
    return seen


def _check(path: Path, feeds: Sequence[Feed], values: Sequence[np.ndarray]) -> None:
    with tracerec.open(path) as trace:
        for feed in feeds:
            tap = trace[feed.name]
            if not np.array_equal(tap.steps, np.arange(feed.sent)):
                message = f"{feed.name}: steps are wrong or missing"
                raise ValueError(message)
            if not np.array_equal(tap.to_numpy(), values[feed.number][np.arange(feed.sent) % TENTHS]):
                message = f"{feed.name}: values are wrong"
                raise ValueError(message)


def faults(seen: Sequence[Tenth]) -> list[str]:
    """Returns what is not flat."""
    found: list[str] = []
    times = seen[-1].cpu / seen[0].cpu
    if times > MOST_TIMES:
        found.append(f"a record of the last tenth costs {times:.2f} times one of the first")
    grown = max(tenth.resident for tenth in seen[1:]) - seen[0].resident
    if grown > MOST_GROWN_BYTES:
        found.append(f"memory grew by {grown >> 20} MiB after the first tenth")
    most = max(max(tenth.descriptors, tenth.files) for tenth in seen)
    if most > MOST_FILES:
        found.append(f"{most} files or descriptors")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak, prints a table, and returns 1 when something is not flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--format", choices=("h5", "arrow"), default="h5")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="soak-") as folder:
        seen = soak(Path(folder, f"run.{options.format}"), options.records)
    count = options.records // TENTHS
    print("tenth  wall us/record  cpu us/record  memory MiB  descriptors  files")
    for number, tenth in enumerate(seen):
        print(
            f"{number:>5}  {1e6 * tenth.wall / count:>14.2f}  {1e6 * tenth.cpu / count:>13.2f}"
            f"  {tenth.resident >> 20:>10}  {tenth.descriptors:>11}  {tenth.files:>5}"
        )
    found = faults(seen)
    for fault in found:
        print(f"FAULT: {fault}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
