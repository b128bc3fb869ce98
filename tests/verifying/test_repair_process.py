"""The process that repairs: its death, its hanging, and a full disk are clean errors, and leave all as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.verifying.breaking import flip, flipped_chunk, intact
from tracerec.errors import SealingError, TraceFormatError
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.repairing import repair
from tracerec.salvaging import process
from tracerec.verifying import verify


def test_the_process_does_it(tmp_path):
    """Order in, answer out; nothing is left behind."""
    path = flipped_chunk(tmp_path)
    done = repair(path)
    assert done.action == "salvaged"
    assert [fault.invariant for fault in done.faults] == ["chunk-checksum"]
    assert done.faults[0].records is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "run.repaired.h5"]


def test_its_errors_are_raised_here(tmp_path):
    """With their class, and without a traceback."""
    (tmp_path / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(500))
    with pytest.raises(TraceFormatError, match="is no trace, or is damaged"):
        repair(tmp_path / "run.h5")


START = subprocess.Popen


def replaced(monkeypatch, program):
    """Has another program run in place of the one that repairs."""

    def instead(command, **options):
        del command
        return START([sys.executable, "-c", program], **options)

    monkeypatch.setattr(subprocess, "Popen", instead)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("import os; os._exit(3)", "ended with status 3"),
        ("raise ValueError('a bug')", "ended with status 1: ValueError: a bug"),
        ("print('.')", "ended with status 0"),
        ("print('{\"made\"')", "ended with status 0"),
    ],
)
def test_its_death(tmp_path, monkeypatch, program, message):
    """However it ends without an answer, the recording is as it was."""
    path = flipped_chunk(tmp_path)
    before = path.read_bytes()
    replaced(monkeypatch, program)
    with pytest.raises(SealingError, match=message):
        repair(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_its_hanging(tmp_path, monkeypatch):
    """Without a sign of life it is ended; one that works slowly is not."""
    path = flipped_chunk(tmp_path)
    monkeypatch.setattr(process, "STALL_SECONDS", 1.5)
    replaced(monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(SealingError, match=r"did nothing for [12] s and was ended"):
        repair(path)
    slow = (
        "import sys, time\n"
        "for n in range(8):\n"
        "    time.sleep(0.5); print('.', flush=True)\n"
        "from tracerec.salvaging.worker import main\n"
        "main()"
    )
    replaced(monkeypatch, slow)
    monkeypatch.setattr(process, "STALL_SECONDS", 30)
    assert repair(path).action == "salvaged"


def test_a_process_that_cannot_be_started(tmp_path, monkeypatch):
    """One clear error."""
    path = flipped_chunk(tmp_path)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(SealingError, match="the repairing process could not be started"):
        repair(path)


def noise(folder, nbytes):
    """A damaged recording that does not compress."""
    values = np.random.default_rng(0).random((nbytes // 8000, 1000))
    streams = [make_stream(Site("x", (Leaf("", (1000,), "float64"),)), [values])]
    streams.append(make_stream(Site("y", (Leaf("", (), "int8"),)), [[1, 2]], first=10**6))
    seal(MemorySource(streams), folder / "run.h5")
    flip(folder / "run.h5", 0.999)
    return folder / "run.h5"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = [str(shutil.which("mount")), "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run([str(shutil.which("umount")), "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["h5", "live"])
def test_a_full_disk(tmp_path, small_disk, form):
    """One clear error, in good time; the source is as it was, and the room is given back."""
    if form == "h5":
        path = noise(tmp_path, 6 << 20)
        out = small_disk / "out.h5"
    else:
        path, out = intact("killed", tmp_path), small_disk / "run.h5"
        (small_disk / "ballast").write_bytes(os.urandom((4 << 20) - 20_000))
    free = shutil.disk_usage(small_disk).free
    with pytest.raises(SealingError, match=r"(?i)space|cannot be sealed|ended by signal"):
        repair(path, out)
    assert path.exists()
    assert shutil.disk_usage(small_disk).free == free
    assert not out.exists()


@pytest.mark.slow
def test_a_file_that_may_not_grow(tmp_path):
    """A limit of the shell (ulimit -f) is the same."""
    path = noise(tmp_path, 6 << 20)
    program = f"""
import resource, sys, tracerec
from tracerec.errors import SealingError
from tracerec.repairing import repair
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
try:
    repair({str(path)!r})
except SealingError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "run.repaired.h5' cannot be sealed" in done.stdout
    assert "too large" in done.stdout
    assert ".tmp-" not in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_memory_is_bounded(tmp_path):
    """A recording of 160 MB is verified and repaired in a process that may have 120 MB more than it starts with."""
    path = tmp_path / "run.h5"
    values = np.zeros((20_000, 1000))
    values[:, 0] = np.arange(20_000)
    seal(MemorySource([make_stream(Site("x", (Leaf("", (1000,), "float64"),)), [values])]), path)
    flip(path, 0.5)
    program = f"""
import resource, h5py, numcodecs, tracerec
from tracerec.repairing import repair
from tracerec.salvaging.worker import work
from tracerec.verifying import verify
import tracerec.formats.hdf5.seal, tracerec.repairing
tracerec.repairing.run_order = lambda order: work(order, lambda: None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
verify({str(path)!r})
done = repair({str(path)!r})
print(done.action, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    action, more = done.stdout.split()
    assert action == "salvaged"
    assert int(more) < 120
    assert verify(tmp_path / "run.repaired.h5").ok
    assert Path(tmp_path / "run.repaired.h5").stat().st_size > 0
