"""A disk that is full, or a file that may not grow: training goes on, what was flushed stays, and it is told once."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tracerec
from tests.outfeed.watched import run_watched

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

STEPS = 400
# Noise, which does not compress: 16 KB a record, 6.4 MB in all.
TRAIN = f"""
STEPS = {STEPS}
noise = np.random.default_rng(0).random((STEPS, 4096)).astype(np.float32)
@jax.jit
def update(x, n, i):
    return tracerec.tap(x + n, "x", step=i)
def train(rec):
    x = jnp.zeros(4096)
    for i in range(STEPS):
        x = update(x, noise[i], i)
        if i % 10 == 0:
            try:
                rec.flush()
            except RecordingIncomplete:
                pass
    print(bool((np.asarray(x) == np.add.accumulate(noise, axis=0, dtype=np.float32)[-1]).all()), flush=True)
def close(rec):
    try:
        summary = rec.close()
        print("closed", summary.records, dict(summary.lost), flush=True)
    except TracerecError as error:
        print(type(error).__name__, str(error).replace(chr(10), " "), flush=True)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        [str(shutil.which("mount")), "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run([str(shutil.which("umount")), "-l", str(folder)], check=True)


def check_prefix(path: Path, *, least: int = 0) -> tracerec.Trace:
    """What is there are the first records, bit for bit; returns the open trace."""
    noise = np.random.default_rng(0).random((STEPS, 4096)).astype(np.float32)
    truth = np.add.accumulate(noise, axis=0, dtype=np.float32)
    trace = tracerec.open(path)
    values = trace["x"].to_numpy()
    assert len(values) >= least
    np.testing.assert_array_equal(values, truth[: len(values)])
    assert [record.step for record in trace["x"]] == list(range(len(values)))
    return trace


@pytest.mark.parametrize("segment_bytes", [64 << 20, 256 << 10], ids=["one segment", "parts"])
def test_the_disk_fills_while_recording(small_disk: Path, segment_bytes: int) -> None:
    """The journal ends with its end frame, for which there is ballast; counts add up."""
    filler = 4 << 20
    done = run_watched(
        small_disk,
        TRAIN
        + f"""
(__import__("pathlib").Path(path).parent / "filler").write_bytes(b"x" * {filler})
rec = tracerec.record(path, segment_bytes={segment_bytes})
train(rec)
close(rec)
""",
    )
    assert done.returncode == 0, done.stderr
    right, end = done.stdout.splitlines()
    assert right == "True"
    assert end.split()[0] in ("RecordingIncomplete", "SealingError")
    assert done.stderr.count("recording has stopped, the computation goes on") == 1
    with check_prefix(small_disk / "run.h5", least=100) as trace:
        assert trace.info.state == "stopped early"
        assert len(trace["x"]) + trace.info.dropped["x"] == STEPS
        assert any("No space left" in note for note in trace.info.notes)


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
def test_the_disk_has_no_room_for_the_sealed_file(small_disk: Path, name: str) -> None:
    """The journal stays as it is, whole; with room it is sealed."""
    done = run_watched(
        small_disk,
        TRAIN
        + f"""
rec = tracerec.record(path.replace("run.h5", "{name}"))
train(rec)
close(rec)
""",
    )
    assert done.returncode == 0, done.stderr
    right, end = done.stdout.splitlines()
    assert right == "True"
    assert end.split()[0] == "SealingError"
    assert "readers open it" in end
    with check_prefix(small_disk / name, least=STEPS) as trace:
        assert trace.info.records == STEPS
        assert trace.info.state == "clean"
    assert sorted(p.name for p in small_disk.iterdir()) == sorted(["program.py", f"{name}.live"])


def test_a_file_may_not_grow_while_recording(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the end frame goes into a segment of its own."""
    done = run_watched(
        tmp_path,
        TRAIN
        + """
import resource
rec = tracerec.record(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
train(rec)
close(rec)
""",
    )
    assert done.returncode == 0, done.stderr
    right, end = done.stdout.splitlines()
    assert right == "True"
    assert end.split()[0] in ("RecordingIncomplete", "SealingError")
    with check_prefix(tmp_path / "run.h5", least=100) as trace:
        assert trace.info.state == "stopped early"
        assert len(trace["x"]) + trace.info.dropped["x"] == STEPS


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
@pytest.mark.parametrize("limit", [1_000, 100_000, 3_000_000])
def test_a_file_may_not_grow_while_sealing(tmp_path: Path, name: str, limit: int) -> None:
    """HDF5 may crash on it: in a process of its own. The journal is whole."""
    done = run_watched(
        tmp_path,
        TRAIN
        + f"""
import resource
rec = tracerec.record(path.replace("run.h5", "{name}"))
train(rec)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
close(rec)
""",
    )
    assert done.returncode == 0, done.stderr
    right, end = done.stdout.splitlines()
    assert right == "True"
    assert end.split()[0] == "SealingError"
    with check_prefix(tmp_path / name, least=STEPS):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["program.py", f"{name}.live"])
