"""The sealing process: when it starts, when it is gone, and what its death changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import tracerec
from tests.outfeed.watched import run_watched
from tools.feeding import Feed, expected
from tools.trials import sealing_processes
from tracerec import sealer as sealer_module
from tracerec.errors import SealingError

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENT = 16_384


def sealers(parent: int | None = None) -> list[int]:
    """The sealing processes of a process, this one unless told."""
    return sealing_processes(os.getpid() if parent is None else parent)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for a condition; fails when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def put(feed: Feed, count: int, rec: tracerec.Recording) -> None:
    """Puts records of 1 KB, flushed every ten, so that segments fill."""
    for _ in range(count // 10):
        for _ in range(10):
            feed.put()
        rec.flush()


def check_whole(path: Path, count: int) -> None:
    """All records are there with their values, and the run is clean."""
    with tracerec.open(path) as trace:
        np.testing.assert_array_equal(trace["stream/0"].to_numpy(), expected(0, np.arange(count), (256,)))
        assert trace.info.state == "clean"
        assert trace.info.records == count


def parts(path: Path) -> list[str]:
    """The sealed parts of a recording that runs."""
    return sorted(p.name for p in Path(f"{path}.live").iterdir() if p.name.startswith("part-") and "tmp" not in p.name)


def segments(path: Path) -> list[str]:
    """Its segments."""
    return sorted(p.name for p in Path(f"{path}.live").iterdir() if p.name.startswith("segment-"))


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
def test_full_segments_become_parts_while_the_recording_goes_on(tmp_path: Path, name: str) -> None:
    """By one process, that starts with the first and is gone at the end; readers see everything all the while."""
    path = tmp_path / name
    feed = Feed(0, (256,))
    rec = tracerec.record(path, segment_bytes=SEGMENT)
    put(feed, 10, rec)
    assert not sealers()
    put(feed, 90, rec)
    (process,) = sealers()
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, process) > os.getpriority(os.PRIO_PROCESS, 0))
    full = len(parts(path)) + len(segments(path)) - 1
    wait_until(lambda: len(parts(path)) >= full >= 4 and len(segments(path)) == 1)
    with tracerec.open(path) as trace:
        np.testing.assert_array_equal(trace["stream/0"].to_numpy(), expected(0, np.arange(100), (256,)))
        assert trace.info.state == "recording"
        assert trace.info.records == 100
    put(feed, 100, rec)
    assert sealers() == [process]
    rec.close()
    assert not sealers()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    check_whole(path, 200)


def test_a_sealing_process_that_is_killed_is_reported_once_and_sealing_is_done_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Recording goes on in segments."""
    path = tmp_path / "run.h5"
    feed = Feed(0, (256,))
    rec = tracerec.record(path, segment_bytes=SEGMENT)
    put(feed, 50, rec)
    (process,) = sealers()
    os.kill(process, signal.SIGKILL)
    # On a busy machine it takes its time to die.
    wait_until(lambda: process not in sealers())
    put(feed, 150, rec)
    assert len(segments(path)) > 5
    assert caplog.text.count("sealing has stopped, and is tried again at the end") == 1
    rec.close()
    check_whole(path, 200)


def test_the_sealing_process_is_gone_when_the_program_is_killed(tmp_path: Path) -> None:
    """Also in the middle of its work, and although a forked child holds its pipe."""
    program = f"""
import os, sys, time
import tracerec
from pathlib import Path
from tools.feeding import Feed
rec = tracerec.record(Path(sys.argv[1]), segment_bytes={SEGMENT})
feed = Feed(0, (256,))
for _ in range(20):
    for _ in range(10):
        feed.put()
    rec.flush()
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
    root = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run.h5")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    (mine,) = sealers(process.pid)
    process.kill()
    process.wait()
    try:
        wait_until(lambda: not Path(f"/proc/{mine}").exists(), 20)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
    with tracerec.open(tmp_path / "run.h5") as trace:
        np.testing.assert_array_equal(trace["stream/0"].to_numpy(), expected(0, np.arange(200), (256,)))
        assert trace.info.state == "killed"


def test_ctrl_c_in_the_terminal_is_for_the_program_alone(tmp_path: Path) -> None:
    """The whole group of processes gets it; the recording is sealed all the same."""
    done = run_watched(
        tmp_path,
        f"""
from tools.feeding import Feed
rec = tracerec.record(path, segment_bytes={SEGMENT})
feed = Feed(0, (256,))
try:
    for _ in range(20):
        for _ in range(10):
            feed.put()
        rec.flush()
    os.killpg(0, signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    rec.close()
    print("closed")
""",
    )
    assert done.returncode == 0, done.stderr
    assert "closed" in done.stdout
    assert "sealing" not in done.stderr
    check_whole(tmp_path / "run.h5", 200)


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
@pytest.mark.parametrize("executable", ["", "/nowhere/python", "/usr/bin/blender"])
def test_where_no_process_can_be_started_the_recording_is_sealed_in_this_one(
    tmp_path: Path, name: str, executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedded interpreter, a sandbox. HDF5 does not touch the disk: its file is made in memory."""
    path = tmp_path / name
    monkeypatch.setattr(sys, "executable", executable)
    opened: list[Any] = []
    create = h5py.h5f.create
    monkeypatch.setattr(h5py.h5f, "create", lambda *a, **k: opened.append(a[3].get_driver()) or create(*a, **k))
    feed = Feed(0, (256,))
    rec = tracerec.record(path, segment_bytes=SEGMENT)
    put(feed, 100, rec)
    rec.close()
    check_whole(path, 100)
    assert set(opened) <= {h5py.h5fd.CORE}


def test_a_sealing_process_that_stands_still_never_makes_the_recording_wait(tmp_path: Path) -> None:
    """However many segments fill meanwhile: far more than a pipe holds the orders for."""
    path = tmp_path / "run.h5"
    feed = Feed(0, (256,))
    rec = tracerec.record(path, segment_bytes=1)
    put(feed, 20, rec)
    (process,) = sealers()
    os.kill(process, signal.SIGSTOP)
    for _ in range(400):
        feed.put()
        rec.flush(timeout=60)
    os.kill(process, signal.SIGCONT)
    rec.close()
    check_whole(path, 420)


def test_a_failure_to_seal_leaves_the_journal_and_says_where(tmp_path: Path) -> None:
    """Somebody made the file meanwhile: it is not touched."""
    path = tmp_path / "run.h5"
    rec = tracerec.record(path)
    feed = Feed(0, (256,))
    put(feed, 50, rec)
    path.write_text("mine")
    with pytest.raises(SealingError, match=r"run\.h5 exists.*the records are in .*run\.h5\.live, and readers"):
        rec.close()
    assert path.read_text() == "mine"
    path.unlink()
    with tracerec.open(path) as trace:
        assert len(trace["stream/0"]) == 50
    assert not sealers()


def test_a_sealing_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 can hang on a full disk; close does not."""
    monkeypatch.setattr(sealer_module, "_STALL_SECONDS", 1.0)
    environment = sealer_module._environment()
    (tmp_path / "sitecustomize.py").write_text(
        "import time, sys\nif 'tracerec.sealing' in sys.orig_argv: time.sleep(60)"
    )
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    monkeypatch.setattr(sealer_module, "_environment", lambda: environment)
    path = tmp_path / "run.h5"
    rec = tracerec.record(path)
    put(Feed(0, (256,)), 10, rec)
    with pytest.raises(SealingError, match="wrote nothing for 1 s and was ended"):
        rec.close()
    with tracerec.open(path) as trace:
        assert len(trace["stream/0"]) == 10
