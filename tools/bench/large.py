"""Every command on a recording that is larger than memory has to be: seconds, and the most memory that it takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.bench.harness import Report

__all__ = ["measured", "run"]

NBYTES, QUICK_NBYTES = 5_000_000_000, 60_000_000
"""Bytes of the records, uncompressed."""

FORMS = (("h5", None), ("h5", "lz4"), ("arrow", None))
"""The recordings: suffix and compression."""

INSPECT_S, PEAK_MB = 1.0, 400.0
"""The bars: seconds of inspect, and megabytes of any command."""

_PROGRAM = """
import sys
import numpy as np
import tracerec

path, nbytes, compression = sys.argv[1], int(sys.argv[2]), sys.argv[3]
shapes = {"weights": (4096, 1024), "encoder/act": (8, 128, 1024), "decoder/act": (256, 1024)}
rng = np.random.default_rng(1)
# As activations kept in float32 from bfloat16 are: half of their bits compress.
noise = (rng.normal(size=1 << 23).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
steps = max(2, nbytes // sum(4 * int(np.prod(shape)) for shape in shapes.values()))
with tracerec.record(path, compression=None if compression == "None" else compression, on_full="block") as recording:
    for step in range(steps):
        for number, (name, shape) in enumerate(shapes.items()):
            size = int(np.prod(shape))
            start = (step * 7919 + number * 104729) % (len(noise) - size)
            tracerec.tap(noise[start : start + size].reshape(shape), name, step=step)
        tracerec.tap(np.float32(1 / (1 + step)), "loss", step=step)
        if step % 20 == 0:
            recording.flush()
"""
"""What is recorded: tensors of 16, 4 and 1 MB a step, and a scalar."""


def run(quick: bool) -> Report:  # noqa: FBT001 - the one switch of every benchmark
    """Every command on a recording of 5 GB, as HDF5, uncompressed and LZ4, and as Arrow: seconds and peak memory.

    Args:
        quick: a small recording: shows that all commands run.
    """
    rows: list[dict[str, Any]] = []
    for form, compression in FORMS:
        rows += measured(QUICK_NBYTES if quick else NBYTES, form, compression)
    columns = {"recording": "recording", "what": "command", "seconds": "s", "cpu": "CPU s", "peak": "peak MB"}
    columns["bar"] = "bars"
    notes = (
        (
            "Each command is a process of its own, start included; of inspect the best of three. CPU: of it and of the "
            "processes that it started. Peak: the largest resident set (ru_maxrss) of one of them; pages of files that "
            "are mapped count, although the system can take them back."
        ),
        "The recording was just written and lies in the page cache as far as that goes.",
        "replay --json is of one tap: text of all values is many times as long.",
    )
    return Report("large", "Every command on a large recording", columns, rows, notes)


def measured(nbytes: int, form: str, compression: str | None, folder: str | None = None) -> list[dict[str, Any]]:
    """Returns a row for every command, on a recording of so many bytes.

    Args:
        nbytes: of the records, uncompressed.
        form: the recording's suffix, ``"h5"`` or ``"arrow"``.
        compression: of the recording.
        folder: where to write; three times the bytes must be free. None: where temporary files go.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tracerec-bench-", dir=folder) as name:
        inside = Path(name)
        path = inside / f"run.{form}"
        command = [sys.executable, "-c", _PROGRAM, str(path), str(nbytes), str(compression)]
        found = _measured(command, inside)
        rows.append({"what": f"record, {_size(path) / 1e9:.2f} GB", **found, "bar": ""})
        # What the disk still has to write would slow the commands down.
        os.sync()
        for words in _commands(path):
            rounds = 3 if words[0] == "inspect" else 1
            runs = [_measured([sys.executable, "-m", "tracerec", *words], inside) for _ in range(rounds)]
            shown = " ".join(word.replace(str(inside) + "/", "") for word in words)
            bar = f"{PEAK_MB:g} MB" if rounds == 1 else f"{INSPECT_S:g} s, {PEAK_MB:g} MB"
            rows.append({"what": shown, **min(runs, key=lambda run: run["seconds"]), "bar": bar})
            for made in inside.glob("out*"):
                shutil.rmtree(made) if made.is_dir() else made.unlink()
    return [{"recording": f"{form} {compression}", **row} for row in rows]


def _commands(path: Path) -> list[list[str]]:
    """Returns the commands; what they write has a name that begins with ``out``."""
    run, out = str(path), str(path.with_name("out"))
    exports = [
        [run, "--to", form, "-o", f"{out}.{form}", *chosen]
        for form in ("parquet", "arrow", "zarr", "hdf5", "npz", "tensorboard")
        for chosen in (["--tap", "encoder/*", "--step", "0:10"], [])
    ]
    return [
        ["inspect", run],
        ["inspect", run, "--json"],
        ["show", run, "weights", "--step", "1"],
        ["show", run, "encoder/act", "--record", "-1", "--json"],
        *(["plot", run, "weights", "--kind", kind] for kind in ("line", "heatmap", "histogram")),
        ["plot", run, "encoder/act", "-o", f"{out}.png"],
        ["tail", run, "-n", "20"],
        ["stats", run, "-o", f"{out}.csv"],
        *(["export", *words] for words in exports),
        ["replay", run, "--print"],
        ["replay", run, "--tap", "loss", "--json"],
        ["compare", run, run],
        ["verify", run],
        ["merge", run, "-o", f"{out}.h5"],
        ["merge", run, "-o", f"{out}.arrow"],
        ["repair", run],
    ]


def _measured(command: list[str], folder: Path) -> dict[str, float]:
    """Runs a command; returns its seconds, those of the processor, and its peak in megabytes.

    Raises:
        RuntimeError: it failed.
    """
    with (folder / "errors").open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=Path.cwd(),
            check=True,
        )
    status, seconds, cpu, peak = json.loads(done.stdout)
    if status not in (0, _LOSS):
        message = f"{command} ended with {status}: {(folder / 'errors').read_text()[-2000:]}"
        raise RuntimeError(message)
    return {"seconds": seconds, "cpu": cpu, "peak": peak * 1024 / 1e6}


# A process's peak begins with what the one had that it was forked from: a small one stands between.
_LAUNCHER = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
cpu = usage.ru_utime + usage.ru_stime
print(json.dumps([process.returncode, time.perf_counter() - start, cpu, usage.ru_maxrss]))
"""

_LOSS = 3


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.iterdir())
