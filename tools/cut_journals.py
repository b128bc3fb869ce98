"""Cuts a journal after every write of it, and inside of them, and reads what is left.

A recording's receiver writes its journal with ``writev``. Each call's end is a moment at which the process, or the
disk, may have stopped; a stop within a call leaves a part of its bytes. So a recording is written once, with every
call's end noted, and of what had been flushed then; then, from the last to the first, the journal is cut to what it
was at each of these moments and, of calls, at random places inside, next to their ends and to those of frames. It is
read whole each time: nothing may be unreadable, every record flushed until then is there with its value, and where
the cut is no end of a frame, its bytes are told.

    python -m tools.cut_journals --records 20000
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

import tracerec
from tools.feeding import Feed, expected
from tracerec.errors import SealingError
from tracerec.journal import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Journal", "check", "cuts", "main", "write"]

_SHAPES = ((), (64,), (4096,), (65_536,), (0,))
_INSIDE = 6
"""Random cuts inside each call's bytes."""


@dataclasses.dataclass(frozen=True)
class Journal:
    """A journal as it was written.

    Attributes:
        path: the recording's; its live folder is beside it.
        writes: for each call of ``writev`` the segment and its size afterwards.
        flushed: how many records of each tap had been flushed when so many calls were done; by that number.
    """

    path: Path
    writes: Sequence[tuple[int, int]]
    flushed: dict[int, dict[str, int]]


def write(path: Path, records: int, seed: int) -> Journal:
    """Records numbered values of several sizes, in segments that are not sealed, and leaves the journal."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    writes: list[tuple[int, int]] = []
    flushed: dict[int, dict[str, int]] = {}
    real = os.writev

    def noted(descriptor: int, buffers: Sequence[object]) -> int:
        written = real(descriptor, buffers)  # type: ignore[arg-type]
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        writes.append((layout.segment_number(name), name.stat().st_size))
        return written

    feeds = [Feed(number, _SHAPES[number % len(_SHAPES)]) for number in range(12)]
    with mock.patch("os.writev", noted), mock.patch("tracerec.sealer.Sealer.part"):
        recording = tracerec.record(path, segment_bytes=1 << 20)
        for number in range(records):
            feeds[chance.randrange(1 + number * len(feeds) // records)].put()
            if chance.random() < 0.02:  # noqa: PLR2004
                recording.flush()
                flushed[len(writes)] = {feed.name: feed.sent for feed in feeds if feed.sent}
        recording.flush()
        wanted = SealingError("it is the journal that is wanted")
        with mock.patch("tracerec.sealer.Sealer.finish", side_effect=wanted), contextlib.suppress(SealingError):
            recording.close()
    return Journal(path, writes, flushed)


def cuts(journal: Journal, chance: random.Random) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Yields segment, size and what was flushed by then, from the last cut to the first."""
    for number in range(len(journal.writes), 0, -1):
        segment, end = journal.writes[number - 1]
        before = journal.writes[number - 2] if number > 1 else (segment, 0)
        begin = before[1] if before[0] == segment else 0
        places = {begin + 1, end - 1, *(chance.randrange(begin, end) for _ in range(_INSIDE))} - {begin}
        now = max((done for done in journal.flushed if done <= number), default=0)
        earlier = max((done for done in journal.flushed if done < number), default=0)
        yield segment, end, journal.flushed.get(now, {})
        for place in sorted((p for p in places if begin < p < end), reverse=True):
            yield segment, place, journal.flushed.get(earlier, {})


def cut(journal: Journal, segment: int, size: int) -> None:
    """Cuts the journal: segments behind are removed."""
    folder = Path(f"{journal.path}.live")
    for path in layout.segments(folder):
        if layout.segment_number(path) > segment:
            path.unlink()
    os.truncate(layout.segment_path(folder, segment), size)


def check(path: Path, flushed: dict[str, int]) -> tuple[str, list[str]]:
    """Reads all; returns the state, and what is wrong."""
    found: list[str] = []
    with tracerec.open(path) as trace:
        info = trace.info
        for name, count in flushed.items():
            if name not in trace.taps:
                found.append(f"{name}: {count} flushed records are missing")
        for name, tap in trace.taps.items():
            values, steps = tap.to_numpy(), tap.steps
            if len(steps) < flushed.get(name, 0):
                found.append(f"{name}: {len(steps)} records, {flushed[name]} were flushed")
            if not np.array_equal(steps, np.arange(len(steps))):
                found.append(f"{name}: records are not the first ones, in order")
            if not np.array_equal(values, expected(int(name.split("/")[1]), steps, values.shape[1:])):
                found.append(f"{name}: values are wrong")
        if info.state == "killed" and not info.notes:
            found.append("nothing is said of the end")
    return info.state, found


def main(arguments: Sequence[str] | None = None) -> int:
    """Cuts a journal everywhere, prints figures, and returns 1 when there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    states: Counter[str] = Counter()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        journal = write(Path(folder, "run.h5"), options.records, options.seed)
        for segment, size, flushed in cuts(journal, random.Random(options.seed)):  # noqa: S311 - no secret
            cut(journal, segment, size)
            try:
                state, found = check(journal.path, flushed)
            except Exception:  # noqa: BLE001 - whatever is raised is a fault that is reported
                state, found = "unreadable", [traceback.format_exc()]
            states[state] += 1
            if found:
                faults += 1
                print(f"segment {segment} cut to {size}: {'; '.join(found)}")
    told = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    print(f"{len(journal.writes):,} writes, {states.total():,} cuts: {told}; {faults} with faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
