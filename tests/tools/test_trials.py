"""tools/trials.py, tools/cut_journals.py, tools/soak.py: short forms of them, and that they tell what they look for."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import tracerec
from tools import cut_journals, soak, trials
from tools.feeding import Feed
from tracerec.journal import layout


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "count"), [("h5", 8), ("arrow", 4)])
def test_kills_leave_every_flushed_record(suffix, count):
    """A recording killed at moments of chance, or its sealing process, or both; repaired, or continued."""
    command = [sys.executable, "-m", "tools.trials", "--count", str(count), "--seed", "7", "--format", suffix]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[0] in trials.KINDS]
    assert [(kind, int(number), int(faults)) for kind, number, faults, *_ in rows] == [
        (kind, count // len(trials.KINDS), 0) for kind in trials.KINDS
    ]
    assert all(int(row[3].replace(",", "")) > 0 for row in rows)


def test_a_trial_tells_what_is_missing_and_what_is_wrong(tmp_path):
    """Were records lost or changed, it would say so."""
    path = tmp_path / "run.h5"
    with tracerec.record(path):
        feed, other = Feed(0, (3,)), Feed(1, (3,))
        for _ in range(4):
            feed.put()
        other.put(values := trials.expected(0, trials.np.array([9]), (3,))[0])
    faults: list[str] = []
    assert trials._check(path, {"stream/0": 5, "stream/2": 1}, faults) == ("clean", 5)
    assert len(values) == 3
    assert sorted(faults) == [
        "stream/0: 4 records, 5 were flushed",
        "stream/1: values are wrong",
        "stream/2: 1 flushed records are missing",
    ]


def test_the_summary_counts_by_kind():
    """A line each."""
    outcome = trials.Outcome("sealer", "clean", 5, 6, "sealed", ("lost",))
    assert trials.summary([outcome]).splitlines()[3].split() == ["sealer", "1", "1", "5", "1", "sealed", "(clean)"]


@pytest.mark.slow
def test_a_journal_cut_at_and_inside_each_write_is_read(tmp_path, capsys, monkeypatch):
    """Every cut is readable, and what was flushed by then is there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert cut_journals.main(["--records", "150", "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    assert "1 clean" in shown
    assert shown.endswith("; 0 with faults\n")
    assert int(shown.partition("writes, ")[2].split()[0]) > 50


def test_a_cut_that_loses_more_than_it_may_is_told(tmp_path):
    """A flushed record that is gone is a fault."""
    journal = cut_journals.write(tmp_path / "run.h5", 100, 1)
    segment, size = journal.writes[-1]
    assert layout.segment_path(tmp_path / "run.h5.live", segment).stat().st_size == size
    flushed = {f"stream/{number}": 1_000 for number in range(1)}
    _, found = cut_journals.check(journal.path, flushed)
    assert found == [found[0]]
    assert found[0].startswith("stream/0: ")
    assert found[0].endswith("records, 1000 were flushed")
    assert max(cut_journals.cuts(journal, random.Random(0)))[:2] <= (segment, size)  # noqa: S311 - no secret


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["h5", "arrow"])
def test_a_soak_stays_flat(tmp_path, suffix):
    """Every record is there, few files are open; what it costs is not for a test."""
    seen = soak.soak(tmp_path / f"run.{suffix}", 50_000)
    assert len(seen) == soak.TENTHS
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert max(max(tenth.descriptors, tenth.files) for tenth in seen) <= soak.MOST_FILES + before
    assert max(tenth.resident for tenth in seen) - seen[0].resident < soak.MOST_GROWN_BYTES


def test_what_is_not_flat_is_told():
    """Each measure has its own sentence."""
    flat = soak.Tenth(1.0, 1.0, 100 << 20, 10, 5)
    assert soak.faults([flat] * 10) == []
    assert len(soak.faults([flat, soak.Tenth(1.0, 1.4, 200 << 20, 99, 5)])) == 3
