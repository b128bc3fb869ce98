"""Reading offline: a whole tap beside h5py, statistics, a file of thousands of streams, and how fast it starts."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from tools.bench.harness import Report, best_of
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.seal import seal
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.journal.writing import JournalWriter
from tracerec.model import FLAG_STEP, INDEX_DTYPE, NO_SHARD, Column, Leaf, Site
from tracerec.trace import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["run"]

ELEMENTS = 262_144
"""Of a record: 1 MB of float32."""

RECORDS, QUICK_RECORDS = 200, 8
STREAMS, QUICK_STREAMS = 2_000, 20
ROUNDS, QUICK_ROUNDS = 5, 1

COMPRESSIONS: tuple[str | None, ...] = (None, "lz4")


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Reading offline: a whole tap beside h5py, statistics, 2,000 streams inspected, the import.

    Args:
        quick: small files, once: shows that it runs, not how fast.
    """
    rounds = QUICK_ROUNDS if quick else ROUNDS
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tracerec-bench-") as name:
        folder = Path(name)
        journal = _journal(folder / "few", [_site("act", ELEMENTS)], QUICK_RECORDS if quick else RECORDS)
        for compression in COMPRESSIONS:
            rows += _reading(journal, folder, compression, rounds)
        streams = QUICK_STREAMS if quick else STREAMS
        sites = [_site(f"block_{number:05}/act", 4) for number in range(streams)]
        many = folder / "many.h5"
        with JournalSource(_journal(folder / "many", sites, 2)) as source:
            seal(source, many)
        rows += _starting(many, streams, rounds)
    columns = {"what": "what", "value": "measured", "unit": "", "bar": "bar", "beside": "beside"}
    notes = (
        "h5py reads the same dataset of the same file by whole chunks into one array, the decompression its own.",
        "The files lie in the page cache. Statistics: count, NaN, Inf, zeros, min, max, mean, std, l2 of each record.",
        "inspect: `tracerec inspect` in a process of its own, start included; import: `import tracerec` in one.",
    )
    return Report("offline", "Reading offline", columns, rows, notes)


def _reading(journal: Path, folder: Path, compression: str | None, rounds: int) -> list[dict[str, Any]]:
    path = folder / f"few-{compression}.h5"
    with JournalSource(journal) as source:
        seal(source, path, compression=compression)
    variants: dict[str, Callable[[], Mapping[str, float]]] = {
        "tracerec": lambda: _timed(lambda: _whole(path)),
        "h5py": lambda: _timed(lambda: _with_h5py(path)),
        "statistics": lambda: _timed(lambda: _statistics(path)),
    }
    best = {name: times["seconds"] for name, times in best_of(variants, rounds).items()}
    nbytes = _whole(path).nbytes
    return [
        {
            "what": f"a whole tap, {nbytes / 1e6:,.0f} MB, compression {compression}",
            "value": 100 * best["h5py"] / best["tracerec"],
            "unit": "% of h5py",
            "bar": "95",
            "beside": f"{nbytes / best['tracerec'] / 1e9:.2f} GB/s, h5py {nbytes / best['h5py'] / 1e9:.2f}",
        },
        {
            "what": f"to_pandas with statistics, float32, compression {compression}",
            "value": nbytes / best["statistics"] / 1e9,
            "unit": "GB/s",
            "bar": "0.7",
            "beside": "",
        },
    ]


def _starting(many: Path, streams: int, rounds: int) -> list[dict[str, Any]]:
    nothing = [sys.executable, "-c", "pass"]
    variants: dict[str, Callable[[], Mapping[str, float]]] = {
        "inspect": lambda: _process([sys.executable, "-m", "tracerec", "inspect", str(many)]),
        "import": lambda: _process([sys.executable, "-c", "import tracerec"]),
        "nothing": lambda: _process(nothing),
    }
    best = {name: times["seconds"] for name, times in best_of(variants, rounds).items()}
    return [
        {
            "what": f"inspect, {streams:,} streams, {many.stat().st_size / 1e6:.1f} MB",
            "value": best["inspect"],
            "unit": "s",
            "bar": "1",
            "beside": "",
        },
        {
            "what": "import tracerec",
            "value": best["import"] - best["nothing"],
            "unit": "s",
            "bar": "0.15",
            "beside": f"Python itself {best['nothing']:.3f} s",
        },
    ]


def _timed(work: Callable[[], object]) -> Mapping[str, float]:
    start = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - start}


def _process(command: list[str]) -> Mapping[str, float]:
    return _timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ}))


def _whole(path: Path) -> np.ndarray:
    with open_trace(path) as trace:
        return trace["act"].to_numpy()


def _statistics(path: Path) -> object:
    with open_trace(path) as trace:
        return trace.to_pandas()


def _with_h5py(path: Path) -> np.ndarray:
    """Reads the tap's one dataset by whole chunks."""
    # It brings lz4 to h5py.
    importlib.import_module("hdf5plugin")
    with h5py.File(path) as file:
        dataset: Any = file["streams/000000/data_0"]
        out = np.empty(dataset.shape, dataset.dtype)
        for chunk in dataset.iter_chunks():
            dataset.read_direct(out, chunk, chunk)
        return out


def _site(name: str, elements: int) -> Site:
    step = Column("step", "int64", python="int")
    return Site(name, (Leaf("", (elements,), "float32"),), (step,), '{"step":{"slot":0}}')


def _journal(folder: Path, sites: list[Site], records: int) -> Path:
    """Writes the journal of some sites that fire once a step; returns its folder."""
    folder.mkdir()
    layout.write_manifest(folder, RunInfo("0" * 32, 0, pid=os.getpid()))
    rng = np.random.default_rng(1)
    elements = max(site.leaves[0].shape[0] for site in sites)
    noise = rng.normal(size=(4, elements)).astype(np.float32)
    # As activations kept in float32 from bfloat16 are: half of their bits compress.
    noise = (noise.view(np.uint32) & 0xFFFF0000).view(np.float32)
    writer = JournalWriter(folder)
    for step in range(records):
        for number, site in enumerate(sites):
            row = np.zeros(1, INDEX_DTYPE)
            row["arrival"] = row["number"] = row["call"] = step * len(sites) + number
            row["step"], row["flags"], row["shard"] = step, FLAG_STEP, NO_SHARD
            values = noise[step % len(noise) : step % len(noise) + 1, : site.leaves[0].shape[0]]
            writer.append(site, [row.view(np.uint8).reshape(1, -1), np.ascontiguousarray(values)])
    writer.flush()
    writer.end({"ended": 1, "dropped": {}, "lost": {}, "high_water_bytes": 0, "failure": None})
    writer.close()
    return folder
