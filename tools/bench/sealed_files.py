"""Sealed files: merging parts beside sealing the journal anew, and opening a file of thousands of streams.

Merging. A recording of a made-up network is written to a journal step by step, its segments are sealed into parts, and
the parts are merged into one file:

    anew       one file sealed from the journal
    parts      the parts sealed from the segments, one after the other
    merged     one file of those parts, which continue the grid of chunks of the part before
    unaligned  one file of parts that do not

A step records scalars, and activations of 1 KB, 64 KB and 1 MB: float32 of which 16 bits are zeros, a random walk over
the steps, which compress about as activations kept in float32 do. Rates are of the records' bytes, uncompressed, the
index rows left out; every file is flushed to the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tools.bench.harness import Report, best_of
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.merge import merge
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.live import open_live
from tracerec.formats.pool import Pool
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.journal.writing import JournalWriter, SegmentHead
from tracerec.model import FLAG_STEP, INDEX_DTYPE, NO_SHARD, Column, Leaf, Site
from tracerec.trace import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracerec.formats.contract import TraceSource
    from tracerec.formats.hdf5.merge import Merged

__all__ = ["listing", "merging"]

MIXES = {
    "few taps": {"scalar": (8, 1), "1 KB": (4, 256), "64 KB": (8, 16_384), "1 MB": (1, 262_144)},
    "many taps": {"scalar": (100, 1), "1 KB": (40, 256), "64 KB": (30, 16_384)},
}
"""For each mix how many taps of each size there are, and the elements of a record."""

STEPS = {"few taps": 300, "many taps": 240}
QUICK_STEPS = 8
QUICK_SEGMENT_BYTES = 4 << 20
SEGMENT_BYTES = 64 << 20
ROUNDS = 2

STREAMS = 5_000
QUICK_STREAMS = 50

_RUN = RunInfo("0" * 32, 0, ended=1)


def merging(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Merging parts into one file, beside sealing the whole journal anew.

    Args:
        quick: a small recording, once: shows that it runs, not how fast.
    """
    cases = [("few taps", "lz4"), ("many taps", "lz4"), ("few taps", "gzip"), ("few taps", None)]
    rows = [_merging_row(mix, compression, quick=quick) for mix, compression in cases]
    columns = {
        "mix": "mix",
        "compression": "compression",
        "mb": "payload, MB",
        "parts": "parts",
        "ratio": "payload / file",
        "anew": "anew, MB/s",
        "sealing": "parts, MB/s",
        "merged": "merged, MB/s",
        "copied": "copied, %",
        "unaligned": "unaligned, MB/s",
        "unaligned_copied": "copied, %",
    }
    notes = (
        f"Segments of {(QUICK_SEGMENT_BYTES if quick else SEGMENT_BYTES) >> 20} MiB. A step of few taps and of many: "
        + "; ".join(", ".join(f"{count} of {size}" for size, (count, _) in mix.items()) for mix in MIXES.values()),
        "Unaligned: parts that do not continue the grid of chunks of the part before. Rates are of uncompressed bytes.",
    )
    return Report("merging", "Merging sealed parts beside sealing anew", columns, rows, notes)


def listing(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Opening an HDF5 file of 5,000 streams and listing its taps; and with their sites parsed.

    Args:
        quick: few streams, twice: shows that it runs, not how fast.
    """
    streams, rounds = (QUICK_STREAMS, 2) if quick else (STREAMS, 20)
    with tempfile.TemporaryDirectory(prefix="tracerec-bench-") as folder:
        path = Path(folder) / "run.h5"
        seal(_many_streams(Path(folder), streams), path)
        best = best_of({"list": lambda: _listed(path), "sites": lambda: _with_sites(path)}, rounds)
        row = {
            "streams": streams,
            "mb": path.stat().st_size / 1e6,
            "list_ms": 1e3 * best["list"]["seconds"],
            "sites_ms": 1e3 * best["sites"]["seconds"],
        }
    columns = {"streams": "streams", "mb": "file, MB", "list_ms": "open and list, ms", "sites_ms": "sites parsed, ms"}
    return Report("listing", "Opening a file of many streams", columns, [row], ("The bar is 100 ms.",))


def _merging_row(mix: str, compression: str | None, *, quick: bool) -> dict[str, Any]:
    steps = QUICK_STEPS if quick else STEPS[mix]
    with tempfile.TemporaryDirectory(prefix="tracerec-bench-") as name:
        folder = Path(name)
        (folder / "live").mkdir()
        payload = _recorded(folder / "live", mix, steps, QUICK_SEGMENT_BYTES if quick else SEGMENT_BYTES)
        work = _Work(folder, compression)
        variants: dict[str, Callable[[], Mapping[str, float]]] = {
            "anew": work.anew,
            "sealing": lambda: work.sealed(folder / "aligned", counting=True),
            "unaligned_sealing": lambda: work.sealed(folder / "unaligned", counting=False),
        }
        best = best_of(variants, 1 if quick else ROUNDS)
        found: dict[str, Merged] = {}
        variants = {
            "merged": lambda: work.merged(folder / "aligned", found),
            "unaligned": lambda: work.merged(folder / "unaligned", found),
        }
        best |= best_of(variants, 1 if quick else ROUNDS)
        parts = len(list((folder / "aligned").iterdir()))
        size = (folder / "run.h5").stat().st_size
    rates = {key: payload / best[key]["seconds"] / 1e6 for key in ("anew", "sealing", "merged", "unaligned")}
    shares = {name: 100 * done.copied_records / (done.copied_records + done.cut) for name, done in found.items()}
    return {
        "mix": mix,
        "compression": str(compression),
        "mb": payload / 1e6,
        "parts": parts,
        "ratio": payload / size,
        **rates,
        "copied": shares["aligned"],
        "unaligned_copied": shares["unaligned"],
    }


class _Work:
    """What is timed: each returns the seconds that it took."""

    def __init__(self, folder: Path, compression: str | None) -> None:
        self._folder, self._compression = folder, compression

    def anew(self) -> Mapping[str, float]:
        start = time.perf_counter()
        with JournalSource(self._folder / "live") as source:
            seal(source, self._folder / "run.h5", compression=self._compression)
        return {"seconds": time.perf_counter() - start}

    def sealed(self, folder: Path, *, counting: bool) -> Mapping[str, float]:
        folder.mkdir(exist_ok=True)
        before: dict[int, int] = {}
        start = time.perf_counter()
        for path in layout.segments(self._folder / "live"):
            number = layout.segment_number(path)
            with JournalSource(self._folder / "live", only=number) as source:
                known = before if counting else None
                seal(source, layout.part_path(folder, number, ".h5"), compression=self._compression, before=known)
                for stream in source.streams:
                    before[stream.site.id] = before.get(stream.site.id, 0) + stream.records
        return {"seconds": time.perf_counter() - start}

    def merged(self, folder: Path, found: dict[str, Merged]) -> Mapping[str, float]:
        start = time.perf_counter()
        pool = Pool()
        parts = [Hdf5Source(path, pool=pool) for path in layout.parts(folder).values()]
        found[folder.name] = merge(parts, self._folder / "run.h5", info=_RUN, compression=self._compression)
        for part in parts:
            part.close()
        return {"seconds": time.perf_counter() - start}


def _recorded(folder: Path, mix: str, steps: int, segment_bytes: int) -> int:
    """Records steps of a mix to a journal, ended; returns the bytes of the records' arrays."""
    layout.write_manifest(folder, RunInfo(_RUN.run_id, 0, pid=os.getpid()))
    sites = [
        (Site(f"{size}/{n}", (Leaf("", (elements,), "float32"),), (Column("step", "int64", python="int"),)), elements)
        for size, (count, elements) in MIXES[mix].items()
        for n in range(count)
    ]
    random = np.random.default_rng(0)
    walks = {elements: random.standard_normal(elements).astype(np.float32) for _, elements in sites}
    writer = JournalWriter(folder, segment_bytes, head=SegmentHead(_RUN.run_id))
    payload = arrival = 0
    for step in range(steps):
        for elements in walks:
            walks[elements] += random.standard_normal(elements).astype(np.float32)
        for site, elements in sites:
            values = walks[elements].astype(ml_dtypes.bfloat16).astype(np.float32)
            writer.append(site, [_row(arrival, step), values[None]])
            payload += values.nbytes
            arrival += 1
    writer.end({"ended": 1})
    return payload


def _row(arrival: int, step: int) -> np.ndarray:
    row = np.zeros(1, INDEX_DTYPE)
    row["arrival"] = row["number"] = arrival
    row["call"], row["step"], row["flags"], row["shard"], row["program"] = step + 1, step, FLAG_STEP, NO_SHARD, 1
    row["time"] = 1_700_000_000_000_000_000 + 1_000 * arrival
    return row.view(np.uint8).reshape(1, -1)


def _many_streams(folder: Path, count: int) -> TraceSource:
    """Returns a journal of streams of three records of 256 B each."""
    live = folder / "live"
    live.mkdir()
    layout.write_manifest(live, RunInfo(_RUN.run_id, 0, pid=os.getpid()))
    writer = JournalWriter(live, head=SegmentHead(_RUN.run_id))
    columns = (Column("step", "int64", python="int"),)
    for n in range(count):
        site = Site(f"model/layer_{n}/act", (Leaf("", (64,), "float32"),), columns, kwargs='{"step":{"slot":0}}')
        for step in range(3):
            writer.append(site, [_row(3 * n + step, step), np.full((1, 64), step, np.float32)])
    writer.end({"ended": 1})
    return open_live(live)


def _listed(path: Path) -> Mapping[str, float]:
    start = time.perf_counter()
    with open_trace(path) as trace:
        names = list(trace.taps)
    return {"seconds": time.perf_counter() - start, "streams": float(len(names))}


def _with_sites(path: Path) -> Mapping[str, float]:
    start = time.perf_counter()
    with Hdf5Source(path) as source:
        names = [stream.site.name for stream in source.streams]
    return {"seconds": time.perf_counter() - start, "streams": float(len(names))}
