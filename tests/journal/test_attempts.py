from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.journal.folders import ROOT, A, ids_of, make_folder, segment
from tracerec.errors import TraceFormatError
from tracerec.formats.contract import RECORDING_NOTE
from tracerec.journal.lock import JournalLock
from tracerec.journal.reading import JournalSource

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = {"first_arrival": 0, "started": 1}, {"first_arrival": 2, "started": 5}


def opened(folder: Path, *ends: dict[str, Any] | None, **run: Any) -> JournalSource:
    """A journal with one segment an attempt, and the end frames of those that have one."""
    data = {n: segment(n, [(A, [2 * n, 2 * n + 1])], attempt=n, end=end) for n, end in enumerate(ends)}
    return JournalSource(make_folder(folder, data, **run))


def test_the_newest_attempt_says_how_the_run_ended(tmp_path: Path) -> None:
    """An end frame of an earlier attempt does not end the trace; counts add up; an unclean end is told."""
    with opened(
        tmp_path,
        {"ended": 3, "dropped": {"a": 1}, "lost": {"b": 2}, "over_budget": {"c": 4}, "high_water_bytes": 50},
        {"ended": 9, "dropped": {"a": 10}, "over_budget": {"c": 1, "d": 1}, "high_water_bytes": 20},
        attempts=(FIRST, SECOND),
        started=5,
    ) as source:
        info = source.info
        assert ids_of(source.streams[0]) == [0, 1, 2, 3]
    assert (info.clean, info.ended, info.state, info.started) == (True, 9, "clean", 5)
    assert info.dropped == {"a": 11, "b": 2}
    assert info.over_budget == {"c": 5, "d": 1}
    assert info.high_water_bytes == 50
    assert info.attempts == ({**FIRST, "ended": 3, "clean": True}, {**SECOND, "ended": 9, "clean": True})
    assert info.notes == ("13 records are missing: they were dropped or could not be written",)


def test_an_earlier_attempt_that_was_killed_is_told(tmp_path: Path) -> None:
    """And one that stopped early; the run as a whole is clean when the newest attempt is."""
    with opened(tmp_path, None, {"failure": "OSError: full"}, {}, attempts=(FIRST, SECOND, {"started": 7})) as source:
        assert source.info.clean
        assert source.info.notes == (
            "attempt 0 did not end cleanly",
            "attempt 1 stopped early: OSError: full",
        )


def test_the_newest_attempt_may_have_been_killed(tmp_path: Path) -> None:
    """Whatever became of those before."""
    with opened(tmp_path, {}, None, attempts=(FIRST, SECOND)) as source:
        assert (source.info.clean, source.info.ended, source.info.state) == (False, None, "killed")
        assert source.info.notes == ("the run did not end cleanly",)
        killed = {**SECOND, "ended": None, "clean": False}
        assert source.info.attempts == ({**FIRST, "ended": 2, "clean": True}, killed)


def test_an_attempt_that_left_no_segment_is_the_newest_all_the_same(tmp_path: Path) -> None:
    """The manifest knows it."""
    with opened(tmp_path, {}, attempts=(FIRST, SECOND)) as source:
        assert source.info.state == "killed"


def test_attempts_that_were_sealed_are_as_the_manifest_says(tmp_path: Path) -> None:
    """Their end frames are in parts."""
    data = {n: segment(n, [(A, [n])], attempt=n, end={}) for n in range(3)}
    attempts = ({"clean": True}, {"clean": False}, {})
    with JournalSource(make_folder(tmp_path, data, attempts=attempts), skip={0, 1}) as source:
        assert source.info.notes == ("attempt 1 did not end cleanly",)


def test_retired_records_are_counted_once(tmp_path: Path) -> None:
    """The manifest has the sum of all attempts at any moment; end frames repeat it."""
    with opened(tmp_path, {"retired": {"a": 3}}, {"retired": {"a": 5}}, retired={"a": 5, "b": 1}) as source:
        assert source.info.retired == {"a": 5, "b": 1}
        assert source.info.notes == ()


def test_an_end_that_could_not_be_written_is_given(tmp_path: Path) -> None:
    """It is that of the newest attempt, where there is none."""
    data = {0: segment(0, [(A, [0])], end={"dropped": {"a": 1}}), 1: segment(1, [(A, [1])], attempt=1)}
    folder = make_folder(tmp_path, data, attempts=(FIRST, SECOND))
    end = {"ended": 8, "dropped": {"a": 2}, "failure": "OSError: full"}
    with JournalSource(folder, end=end) as source:
        assert (source.info.state, source.info.ended, source.info.dropped) == ("stopped early", 8, {"a": 3})
    with JournalSource(folder) as source:
        assert source.info.state == "killed"


def test_who_holds_the_lock_tells_whether_the_run_goes_on(tmp_path: Path) -> None:
    """The process that began it: it is recorded. Another one: it seals or repairs what that process left."""
    torn = segment(0, [(A, [0]), (A, [1])])[:-5]
    folder = make_folder(tmp_path, {0: torn}, pid=os.getpid())
    lock = JournalLock(folder)
    try:
        with JournalSource(folder) as source:
            assert source.info.notes == (RECORDING_NOTE,)
            assert source.info.state == "recording"
            assert source.damage == ()
        make_folder(folder, pid=os.getpid() + 1)
        with JournalSource(folder) as source:
            assert source.info.state == "killed"
            assert source.damage[0].torn
        with JournalSource(folder, running=True) as source:
            assert source.info.state == "recording"
    finally:
        lock.forget()
    make_folder(folder, pid=os.getpid())
    with JournalSource(folder) as source:
        assert source.info.state == "killed"


@pytest.mark.parametrize(
    "run", [{"attempts": [1]}, {"retired": {"a": "x"}}, {"retired": [3]}, {"pid": "x"}, {"started": None}]
)
def test_a_manifest_of_the_wrong_types_is_damaged(tmp_path: Path, run: dict[str, Any]) -> None:
    """It is said, and nothing crashes on it later."""
    folder = make_folder(tmp_path, {0: segment(0, [(A, [0])], end={})})
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    data["run"] |= run
    path.write_text(json.dumps(data))
    with pytest.raises(TraceFormatError, match=r"manifest\.json: damaged manifest: .*" + next(iter(run))):
        JournalSource(folder)


@pytest.mark.slow
def test_reading_a_journal_imports_no_jax(tmp_path: Path) -> None:
    """A laptop reads what a cluster wrote."""
    folder = make_folder(tmp_path, {0: segment(0, [(A, [0])], end={})})
    code = (
        "import sys\n"
        "from tracerec.journal.reading import JournalSource\n"
        "from tracerec.journal.tail import JournalTail\n"
        "assert JournalSource(sys.argv[1]).info.records == 1\n"
        "assert len(JournalTail(sys.argv[1]).poll()) == 1\n"
        "assert not {'jax', 'h5py', 'pyarrow'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT)
