"""``record(mode="a")``: a recording is continued, whatever became of the process before."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tracerec
from tests.support import run_python
from tools.feeding import Feed, expected
from tracerec.errors import RecordingError, RecordingExists
from tracerec.formats.hdf5.seal import seal
from tracerec.journal.reading import JournalSource

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.trace.tap import Tap


def feed(path: Path, steps: range, *, mode: str = "a", **options: Any) -> tracerec.RecordingSummary:
    """Records some steps of two streams; the values say the step."""
    with tracerec.record(path, mode=mode, **options) as rec:  # type: ignore[arg-type]
        feeds = [Feed(0, ()), Feed(1, (256,))]
        for step in steps:
            for one in feeds:
                one.sent = step
                one.put()
    return rec.close()


def steps_of(tap: Tap) -> list[tuple[int, int]]:
    """The attempt and the step of each record."""
    return [(record.attempt, record.step) for record in tap]


def check_values(tap: Tap, stream: int) -> None:
    """Every value is that of its step."""
    steps = np.array([record.step for record in tap])
    values = tap.to_numpy()
    np.testing.assert_array_equal(values, expected(stream, steps, values.shape[1:]))


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
def test_a_finished_recording_is_continued_and_the_newest_attempt_wins(tmp_path: Path, name: str) -> None:
    """Steps 6 to 9 are there twice; raw shows both."""
    path = tmp_path / name
    feed(path, range(10))
    feed(path, range(6, 12), metadata={"second": True})
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with tracerec.open(path) as trace:
        expected_steps = [(0, s) for s in range(6)] + [(1, s) for s in range(6, 12)]
        for stream in (0, 1):
            tap = trace[f"stream/{stream}"]
            assert steps_of(tap) == expected_steps
            check_values(tap, stream)
            assert steps_of(tap.raw) == [(0, s) for s in range(10)] + [(1, s) for s in range(6, 12)]
            check_values(tap.raw, stream)
        table = trace.to_pandas()
        assert table["attempt"].tolist() == [a for a, _ in expected_steps for _ in range(2)]
        info = trace.info
        assert info.clean
        assert info.records == 32
        assert [a["metadata"] for a in info.attempts] == [{}, {"second": True}]
        assert [a["clean"] for a in info.attempts] == [True, True]
        assert [a["pid"] for a in info.attempts] == [os.getpid()] * 2
        arrivals = [record.arrival for record in trace.raw.records(order="arrival")]
        assert len(set(arrivals)) == 32
        calls = [record.call for record in trace.raw.records()]
        assert len(set(calls)) == 32


def test_inspect_tells_of_attempts_and_of_what_is_not_there(tmp_path: Path) -> None:
    """Each in a line of its own."""
    path = tmp_path / "run.h5"
    feed(path, range(400), retain_bytes=64_000)
    feed(path, range(400, 410), max_bytes=4_000)
    done = run_python(
        'import runpy; runpy.run_module("tracerec", run_name="__main__")', "inspect", str(path), COLUMNS="200"
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split(maxsplit=1)[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "over budget and not recorded: " in lines["budget"]
    assert "deleted to keep the newest: " in lines["retired"]
    assert f"process {os.getpid()}" in lines["attempts"]


def test_a_third_attempt_supersedes_both(tmp_path: Path) -> None:
    """Each attempt supersedes the steps that it recorded, of all before it."""
    path = tmp_path / "run.h5"
    for steps in (range(10), range(5, 8), range(2, 6)):
        feed(path, steps)
    with tracerec.open(path) as trace:
        steps = [(0, 0), (0, 1), (0, 8), (0, 9), (1, 6), (1, 7), (2, 2), (2, 3), (2, 4), (2, 5)]
        assert sorted(steps_of(trace["stream/0"])) == steps
        assert len(trace.info.attempts) == 3


def test_continuing_nothing_begins(tmp_path: Path) -> None:
    """So that one script serves for the first run and for its restarts."""
    feed(tmp_path / "run.h5", range(3))
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert steps_of(trace["stream/1"]) == [(0, s) for s in range(3)]


KILLED = """
import os, sys, tracerec
from pathlib import Path
from tests.test_continuing import Feed
rec = tracerec.record(Path(sys.argv[1]), mode="a", segment_bytes=int(sys.argv[2]))
feeds = [Feed(0, ()), Feed(1, (256,))]
for step in range(20):
    for one in feeds:
        one.put()
    rec.flush()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
@pytest.mark.parametrize("segment_bytes", [64 << 20, 4096])
def test_a_killed_recording_is_continued_and_then_whole(tmp_path: Path, name: str, segment_bytes: int) -> None:
    """Also one whose last frame is torn; what was cut off is told."""
    path = tmp_path / name
    done = run_python(KILLED, str(path), str(segment_bytes))
    assert done.returncode == -signal.SIGKILL, done.stderr
    live = tmp_path / f"{name}.live"
    last = max(live.glob("segment-*"))
    with last.open("ab") as file:
        file.write(b"\x82\x08\0\0torn")
    with tracerec.open(path) as trace:
        assert trace.info.state == "killed"
    # In a container the next process often has the same number.
    manifest = json.loads((live / "manifest.json").read_text())
    manifest["run"]["pid"] = os.getpid()
    (live / "manifest.json").write_text(json.dumps(manifest))
    feed(path, range(15, 25))
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with tracerec.open(path) as trace:
        assert trace.info.clean
        for stream in (0, 1):
            tap = trace[f"stream/{stream}"]
            assert steps_of(tap) == [(0, s) for s in range(15)] + [(1, s) for s in range(15, 25)]
            check_values(tap.raw, stream)
        first, second = trace.info.attempts
        assert not first["clean"]
        assert first["cut_bytes"] == 8
        assert second["clean"]


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
def test_a_killed_attempt_stays_one_when_it_was_repaired_before_it_was_continued(tmp_path: Path, name: str) -> None:
    """What is said of it is what is said without the repair; attempts are counted from 0, in notes too."""
    path = tmp_path / name
    assert run_python(KILLED, str(path), str(64 << 20)).returncode == -signal.SIGKILL
    shutil.copytree(tmp_path / f"{name}.live", tmp_path / f"other-{name}.live")
    assert tracerec.repair(path).action == "sealed"
    with tracerec.open(path) as trace:
        assert [a["clean"] for a in trace.info.attempts] == [False]
    for each in (path, tmp_path / f"other-{name}"):
        feed(each, range(20, 25))
        with tracerec.open(each) as trace:
            assert [a["clean"] for a in trace.info.attempts] == [False, True]
            assert [a["ended"] is None for a in trace.info.attempts] == [True, False]
            assert trace.info.clean
            assert trace.info.notes == ("attempt 0 did not end cleanly",)
            assert steps_of(trace["stream/0"]) == [(0, s) for s in range(20)] + [(1, s) for s in range(20, 25)]
        feed(each, range(25, 26))
        with tracerec.open(each) as trace:
            assert [a["clean"] for a in trace.info.attempts] == [False, True, True]


def test_a_repaired_recording_that_says_its_attempt_was_clean_is_not_believed(tmp_path: Path) -> None:
    """Repair once left the attempt's word as it was when it began; what the run says of its end is right."""
    path = tmp_path / "run.h5"
    assert run_python(KILLED, str(path), str(64 << 20)).returncode == -signal.SIGKILL
    live = tmp_path / "run.h5.live"
    with contextlib.closing(JournalSource(live)) as source:
        source.info = dataclasses.replace(source.info, attempts=({**source.info.attempts[0], "clean": True},))
        seal(source, path)
    shutil.rmtree(live)
    feed(path, range(20, 25))
    with tracerec.open(path) as trace:
        assert [a["clean"] for a in trace.info.attempts] == [False, True]


def test_a_journal_beside_an_old_copy_of_its_recording_is_not_deleted(tmp_path: Path) -> None:
    """It has records that the copy lacks."""
    path = tmp_path / "run.h5"
    feed(path, range(5))
    copy = path.read_bytes()
    assert run_python(KILLED, str(path), str(64 << 20)).returncode == -signal.SIGKILL
    path.write_bytes(copy)
    with pytest.raises(RecordingExists, match=r"run\.h5\.live has records that .* does not have"):
        tracerec.record(path, mode="a")
    path.unlink()
    feed(path, range(30, 31))
    with tracerec.open(path) as trace:
        assert len(trace["stream/0"].raw) == 5 + 20 + 1


def test_a_journal_whose_recording_was_already_made_is_deleted(tmp_path: Path) -> None:
    """A kill between the last rename and the end of the journal leaves both."""
    path = tmp_path / "run.h5"
    assert run_python(KILLED, str(path), str(64 << 20)).returncode == -signal.SIGKILL
    shutil.copytree(tmp_path / "run.h5.live", tmp_path / "kept")
    feed(path, range(20, 21))
    (tmp_path / "kept").rename(tmp_path / "run.h5.live")
    feed(path, range(21, 22))
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    with tracerec.open(path) as trace:
        assert [s for _, s in steps_of(trace["stream/0"])] == [*range(22)]


def test_a_recording_that_cannot_begin_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same process can try again."""
    with monkeypatch.context() as patch:
        patch.setattr("tracerec.live.write_manifest", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(RecordingError, match=r"cannot be recorded to: .*full"):
            tracerec.record(tmp_path / "run.h5")
    feed(tmp_path / "run.h5", range(3), mode="w")


def test_a_recording_that_runs_is_not_continued(tmp_path: Path) -> None:
    """Two processes, one path: the second is told."""
    with tracerec.record(tmp_path / "run.h5"), pytest.raises(RecordingExists, match="is being recorded to"):
        tracerec.record(tmp_path / "run.h5", mode="a")


def test_a_folder_of_parts_is_continued(tmp_path: Path) -> None:
    """A recording larger than max_file_bytes stays parts, attempt after attempt."""
    path = tmp_path / "run.h5"
    feed(path, range(100), segment_bytes=20_000, max_file_bytes=1000)
    assert path.is_dir()
    feed(path, range(90, 120), segment_bytes=20_000, max_file_bytes=1000)
    assert path.is_dir()
    with tracerec.open(path) as trace:
        for stream in (0, 1):
            tap = trace[f"stream/{stream}"]
            assert steps_of(tap) == [(0, s) for s in range(90)] + [(1, s) for s in range(90, 120)]
            check_values(tap.raw, stream)
        assert trace.info.clean
    feed(path, range(120, 121))
    assert path.is_file()
    with tracerec.open(path) as trace:
        assert len(trace["stream/0"].raw) == 131
        assert len(trace.info.attempts) == 3
