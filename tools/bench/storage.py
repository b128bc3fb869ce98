"""What recording to the disk costs, beside writing the same bytes raw, and beside h5py as people append to it.

Variants, for records of 4 B (over 500 sites), 1 KB, 64 KB, 1 MB and 16 MB:

    journal    the recorder alone: batches of records in, frames in the segments of a journal out, until all is written
    line       the whole line, fed from numpy: outfeed, receiver, recorder, journal, segments sealed meanwhile, until
               ``rec.flush()`` has returned
    scan       the whole line, from taps in a jitted scan
    raw        the same bytes with ``os.writev``, 1 MiB or a record a call, to one file on the same disk
    h5py       ``dataset.resize(); dataset[i] = x``, a dataset a site, until ``file.flush()`` has returned

Writing ends in the page cache: nothing is synchronised. Sealing is timed apart, from closing: its rate is of payload.
"""

from __future__ import annotations

import functools
import os
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
from tools.feeding import Feed
from tracerec import outfeed
from tracerec.budget import Budget
from tracerec.formats.contract import RunInfo
from tracerec.journal import layout
from tracerec.journal.writing import JournalWriter
from tracerec.model import NO_SHARD, Leaf, Site
from tracerec.outfeed.batch import Batcher
from tracerec.outfeed.programs import EAGER
from tracerec.recorder import Recorder
from tracerec.tapping.emitters import Emitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracerec.outfeed.batch import Batch

__all__ = ["run"]

SIZES = {"4 B": 1, "1 KB": 256, "64 KB": 16_384, "1 MB": 262_144, "16 MB": 4_194_304}
"""Elements of float32 a record."""
SITES = {"4 B": 500}
RECORDS = {"4 B": 100_000, "1 KB": 100_000, "64 KB": 4_000, "1 MB": 300, "16 MB": 24}
QUICK_RECORDS = {"4 B": 1_000, "1 KB": 100, "64 KB": 10, "1 MB": 3, "16 MB": 1}

_BATCH_BYTES = 4 << 20
_BATCH_RECORDS = 4096
_WRITE_BYTES = 1 << 20
_H5PY_RECORDS = 5_000


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Sustained recording through the journal and the whole line, beside raw writes and h5py; sealing.

    Args:
        quick: few records and one round: shows that the benchmark runs.

    Returns:
        One row a record size.
    """
    rounds = 1 if quick else 3
    counts = QUICK_RECORDS if quick else RECORDS
    rows = [_row(size, counts[size], rounds) for size in SIZES]
    return Report(
        name="storage",
        title="Recording to the disk: microseconds a record, MB/s of payload",
        columns={
            "size": "record",
            "journal_us": "journal us",
            "line_us": "line us",
            "scan_us": "scan us",
            "raw_us": "raw us",
            "h5py_us": "h5py us",
            "journal_of_raw": "journal / raw rate",
            "times_h5py": "line: times h5py",
            "journal_mbs": "journal MB/s",
            "seal_mbs": "sealing MB/s",
            "file_ratio": "file / payload",
        },
        rows=rows,
        notes=(
            f"best of {rounds} interleaved rounds; 4 B records go to {SITES['4 B']} sites",
            "values are float32 of a smooth signal with noise in the low bits; sealed with the default LZ4",
            "sealing: the close of a recording, which is done by a process started for it",
        ),
    )


def _row(size: str, records: int, rounds: int) -> dict[str, Any]:
    elements, sites = SIZES[size], SITES.get(size, 1)
    source = _values(elements)
    variants: dict[str, Callable[[], dict[str, float]]] = {
        "journal": functools.partial(_journal, source, records, sites),
        "line": functools.partial(_line, source, records, sites),
        "scan": functools.partial(_scan, elements, records, sites),
        "raw": functools.partial(_raw, source, records),
        "h5py": functools.partial(_h5py, source, min(records, _H5PY_RECORDS), sites),
    }
    best = best_of(variants, rounds)
    per_record = {name: times["run"] / records for name, times in best.items()}
    per_record["h5py"] = best["h5py"]["run"] / min(records, _H5PY_RECORDS)
    payload = 4 * elements
    return {
        "size": size,
        "records": records,
        **{f"{name}_us": 1e6 * seconds for name, seconds in per_record.items()},
        "journal_of_raw": per_record["raw"] / per_record["journal"],
        "times_h5py": per_record["h5py"] / per_record["line"],
        "journal_mbs": payload / per_record["journal"] / 1e6,
        "seal_mbs": payload * records / best["line"]["close"] / 1e6,
        "file_ratio": best["line"]["bytes"] / (payload * records),
    }


def _values(elements: int) -> list[np.ndarray]:
    """Returns a few records' values, so that neither generator nor cache decides."""
    random = np.random.default_rng(0)
    count = max(2, min(64, (64 << 20) // (4 * elements)))
    smooth = np.sin(np.linspace(0, 7, elements))
    return [(smooth + random.normal(0, 0.01, elements)).astype(np.float32) for _ in range(count)]


def _journal(source: list[np.ndarray], records: int, sites: int) -> dict[str, float]:
    batches = _batches(source, records, sites)
    with tempfile.TemporaryDirectory(dir=_disk()) as name:
        folder = Path(name)
        layout.write_manifest(folder, RunInfo(run_id="0" * 32, started=0))
        recorder = Recorder(JournalWriter(folder), name, lambda: None, lambda _: None, Budget(name, None, {}))
        seconds = 0.0
        for batch in batches:
            begun = time.perf_counter()
            recorder.consume(batch)
            seconds += time.perf_counter() - begun
        recorder.end({})
        return {"run": seconds}


def _batches(source: list[np.ndarray], records: int, sites: int) -> Iterator[Batch]:
    """Yields the records as the receiver hands them over, numbered as they would be."""
    nbytes = source[0].nbytes
    emitters = [
        Emitter(
            Site(f"site/{n}", (Leaf("", source[0].shape, "float32"),)),
            EAGER,
            0,
            once=True,
            is_mark=False,
            function=None,
            devices=(),
            words=(),
            nbytes=nbytes,
        )
        for n in range(sites)
    ]
    batcher = Batcher()
    size = max(1, min(_BATCH_RECORDS, _BATCH_BYTES // nbytes))
    for first in range(0, records, size):
        yield batcher.batch(
            [
                (emitters[n % sites], (source[n % len(source)],), 0, NO_SHARD, n, n)
                for n in range(first, min(first + size, records))
            ]
        )


def _scan(elements: int, records: int, sites: int) -> dict[str, float]:
    """Of a scan with a tap a site in its body; the computation itself is a sum."""
    scan = _compiled(elements, max(1, records // sites), sites)
    x = jnp.zeros(elements, jnp.float32)
    with tempfile.TemporaryDirectory(dir=_disk()) as folder:
        path = Path(folder, "run.h5")
        recording = tracerec.record(path)
        begun = time.perf_counter()
        scan(x).block_until_ready()
        recording.flush()
        done = time.perf_counter()
        written = recording.close().records
        # per record of those asked for, of which there are a few more or fewer
        return {"run": (done - begun) * records / written}


@functools.cache
def _compiled(elements: int, length: int, sites: int) -> Callable[[jax.Array], jax.Array]:
    def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        for n in range(sites):
            x = tracerec.tap(x + np.float32(n), f"site/{n}")
        return x, None

    scan = jax.jit(lambda x: jax.lax.scan(body, x, length=length)[0])
    scan(jnp.zeros(elements, jnp.float32)).block_until_ready()
    return scan


def _line(source: list[np.ndarray], records: int, sites: int) -> dict[str, float]:
    feeds = [Feed(number, source[0].shape, dtype="float32") for number in range(sites)]
    with tempfile.TemporaryDirectory(dir=_disk()) as folder:
        path = Path(folder, "run.h5")
        recording = tracerec.record(path)
        begun = time.perf_counter()
        for n in range(records):
            feeds[n % sites].put(source[n % len(source)])
        recording.flush()
        done = time.perf_counter()
        summary = recording.close()
        closed = time.perf_counter()
        if summary.records != records:
            message = f"{summary.records} of {records} records were recorded"
            raise RuntimeError(message)
        outfeed.barrier()
        return {"run": done - begun, "close": closed - done, "bytes": path.stat().st_size}


def _raw(source: list[np.ndarray], records: int) -> dict[str, float]:
    nbytes = source[0].nbytes
    per_call = max(1, min(512, _WRITE_BYTES // nbytes))
    with tempfile.TemporaryDirectory(dir=_disk()) as folder:
        descriptor = os.open(Path(folder, "raw"), os.O_WRONLY | os.O_CREAT)
        begun = time.perf_counter()
        for first in range(0, records, per_call):
            views = [source[n % len(source)].data.cast("B") for n in range(first, min(first + per_call, records))]
            while views:
                written = os.writev(descriptor, views)
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if views:
                    views[0] = views[0][written:]
        seconds = time.perf_counter() - begun
        os.close(descriptor)
        return {"run": seconds}


def _h5py(source: list[np.ndarray], records: int, sites: int) -> dict[str, float]:
    shape = source[0].shape
    rows = max(1, min(1024, (64 << 10) // source[0].nbytes))
    with tempfile.TemporaryDirectory(dir=_disk()) as folder, h5py.File(Path(folder, "h5py.h5"), "w") as file:
        begun = time.perf_counter()
        datasets = [
            file.create_dataset(f"{n}", (0, *shape), "float32", maxshape=(None, *shape), chunks=(rows, *shape))
            for n in range(sites)
        ]
        for n in range(records):
            dataset = datasets[n % sites]
            dataset.resize(n // sites + 1, axis=0)
            dataset[n // sites] = source[n % len(source)]
        file.flush()
        return {"run": time.perf_counter() - begun}


def _disk() -> str:
    """Returns the folder whose disk is measured: the working folder, since /tmp may be memory."""
    return str(Path.cwd())
