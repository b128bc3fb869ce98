"""Journals for tests, made frame by frame: every value of a record tells which record it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.formats.contract import RunInfo
from tracerec.journal import layout
from tracerec.model import FLAG_STEP, INDEX_DTYPE, Column, Leaf, Site
from tracerec.protocol import dtypes, frames
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracerec.formats.contract import StreamSource

# not that of tests.support, which imports jax: a writer would take seconds to start
ROOT = Path(__file__).resolve().parents[2]

RUN_ID = "0123456789abcdef" * 2

A = Site("a", (Leaf("", (3,), "bfloat16"),), (Column("step", "int64", (), "int"), Column("lr", "float64")))
B = Site("b", (Leaf("['x']", (2, 2), "float32"), Leaf("['y']", (), "int16", number=1)))


def arrays_of(site: Site, ids: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """The arrays of a frame that holds the records with these numbers."""
    ids = np.asarray(ids)
    rows = np.zeros(len(ids), INDEX_DTYPE)
    rows["arrival"] = rows["step"] = ids
    rows["flags"] = FLAG_STEP
    stored = [*site.leaves, *(column for column in site.columns if not column.in_index)]
    tables = [np.broadcast_to(ids.reshape(-1, *(1 for _ in a.shape)), (len(ids), *a.shape)) for a in stored]
    values = [t.astype(dtypes.from_name(a.dtype)) for t, a in zip(tables, stored, strict=True)]
    return [rows.view(np.uint8).reshape(len(ids), INDEX_DTYPE.itemsize), *values]


def record_frame(site: Site, ids: Sequence[int]) -> bytes:
    """A frame with the records of these numbers."""
    return b"".join(frames.encode(site.id, arrays_of(site, ids)))


def text_frame(consumer_id: int, data: Any) -> bytes:
    """A frame that holds a JSON text."""
    return b"".join(frames.encode(consumer_id, [np.frombuffer(canonical(data).encode(), np.uint8)]))


def head_frame(number: int, attempt: int = 0, run_id: str = RUN_ID) -> bytes:
    """The frame that a segment begins with."""
    return text_frame(frames.DEFINE, {"segment": number, "run_id": run_id, "attempt": attempt})


def end_frame(**summary: Any) -> bytes:
    """The frame that an attempt ends with."""
    return text_frame(frames.END, {"ended": 2, **summary})


def segment(
    number: int,
    groups: Iterable[tuple[Site, Sequence[int]]],
    *,
    attempt: int = 0,
    run_id: str = RUN_ID,
    head: bool = True,
    end: dict[str, Any] | None = None,
) -> bytes:
    """The bytes of a segment: its head, each site's definition before its first frame, and a frame a group."""
    parts = [head_frame(number, attempt, run_id)] if head else []
    defined: set[int] = set()
    for site, ids in groups:
        if site.id not in defined:
            parts.append(text_frame(frames.DEFINE, site.to_json()))
            defined.add(site.id)
        parts.append(record_frame(site, ids))
    if end is not None:
        parts.append(end_frame(**end))
    return b"".join(parts)


def make_folder(folder: Path, segments: dict[int, bytes] | None = None, **run: Any) -> Path:
    """Makes a live folder with a manifest and these segments."""
    folder.mkdir(exist_ok=True)
    journal = layout.Journal(run.pop("first_segment", 0), run.pop("target", None))
    info: dict[str, Any] = {"run_id": RUN_ID, "started": 1, **run}
    layout.write_manifest(folder, RunInfo(**info), journal)
    for number, data in (segments or {}).items():
        layout.segment_path(folder, number).write_bytes(data)
    return folder


def ids_of(stream: StreamSource) -> list[int]:
    """The numbers of a stream's records, which every one of its arrays must agree on."""
    site, n = stream.site, stream.records
    ids = stream.index(0, n)["arrival"].astype(np.int64)
    for number in range(len(site.leaves)):
        check_values(stream.leaf(number, 0, n), ids)
    for number in range(len(site.columns)):
        check_values(stream.column(number, 0, n), ids)
    return ids.tolist()


def all_of(found: dict[str, list[int]]) -> list[int]:
    """The numbers of all taps, ascending."""
    return sorted(number for ids in found.values() for number in ids)


def check_values(array: np.ndarray, ids: np.ndarray) -> None:
    """Asserts that all elements of each record are its number, as the array's dtype has it."""
    expected = np.broadcast_to(ids.reshape(-1, *(1 for _ in array.shape[1:])), array.shape).astype(array.dtype)
    assert array.tobytes() == expected.tobytes()


def positions(data: bytes) -> list[frames.FrameHead]:
    """The heads of the frames of intact bytes."""
    return list(frames.heads(data))


def flipped(data: bytes, at: int, bit: int = 4) -> bytes:
    """The bytes with one bit changed."""
    changed = bytearray(data)
    changed[at] ^= bit
    return bytes(changed)


WRITER = """
import json, sys, time
import numpy as np
from pathlib import Path
from tests.journal.folders import A, B, arrays_of, make_folder
from tracerec.journal.lock import JournalLock
from tracerec.journal.writing import JournalWriter, SegmentHead
from tests.journal.folders import RUN_ID

options = json.loads(sys.argv[2])
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
lock = JournalLock(folder)
import os
make_folder(folder, pid=os.getpid(), target=options.get("target"))
writer = JournalWriter(folder, options["segment_bytes"], head=SegmentHead(RUN_ID))
first = 0
while options["records"] is None or first < options["records"]:
    for site, n in ((A, 1 + first % 5), (B, 2)):
        writer.append(site, arrays_of(site, range(first, first + n)))
        first += n
    if first % 3 == 0:
        writer.flush()
        print(first, flush=True)
        time.sleep(options.get("pause", 0))
writer.flush()
print(first, flush=True)
if options.get("end", True):
    writer.end({"ended": 5, "dropped": {"a": 1}})
print("done", flush=True)
sys.stdin.read()
"""
"""Writes records 0, 1, 2, ... to a journal, and prints how many are flushed; then waits for its input to end."""


class Writer:
    """A process that writes a journal.

    Args:
        folder: the live folder to make.
        options: ``segment_bytes``, ``records`` (None: until it is killed), ``pause``, ``end``, ``target``.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        options = {"segment_bytes": 20_000, "records": None, **options}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def line(self) -> str:
        """Waits for the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait_done(self) -> int:
        """Waits until all is written; returns how many records there are."""
        count = 0
        while (line := self.line()) != "done":
            assert line, "the writer died"
            count = int(line)
        return count

    def kill(self) -> int:
        """Kills it; returns how many records it had said that it flushed."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.stdout is not None
        lines = [line for line in self.process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        self.close()
        return max((int(line) for line in lines if line.strip().isdigit()), default=0)

    def close(self) -> None:
        """Lets it end, and waits for that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def wait_for(condition: Any, seconds: float = 30) -> None:
    """Waits until a function returns something true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
