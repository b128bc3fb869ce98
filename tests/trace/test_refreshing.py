"""A trace of a run that goes on: what is there, what is not yet, and what comes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import tracerec
from tests.formats.test_joined import open_files
from tests.formats.test_live import seal_segments
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import LOSS, training
from tests.trace.test_indexing import SITE
from tracerec.errors import SelectionError, TraceError, TraceNotFound
from tracerec.formats import live
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.live import open_part
from tracerec.journal.layout import write_manifest
from tracerec.journal.lock import JournalLock
from tracerec.journal.writing import JournalWriter, SegmentHead
from tracerec.trace import Trace, open_trace


class Running:
    """A recording that goes on, written record by record.

    Attributes:
        path: its path.
        folder: its live folder.
        arrival: the arrival number of the next record.
    """

    def __init__(self, path, run_id="1" * 32, *, first=0):
        self.path, self.folder = path, path.with_name(path.name + ".live")
        self.folder.mkdir(exist_ok=True)
        self.info = RunInfo(run_id, 5, pid=os.getpid())
        write_manifest(self.folder, self.info)
        self.lock = JournalLock(self.folder)
        self.arrival = 0
        self.number = first
        self._begin()

    def _begin(self):
        self.writer = JournalWriter(self.folder, head=SegmentHead(self.info.run_id, 0), first=self.number)

    def add(self, *steps, site=SITE):
        """Records steps; the values are the steps."""
        for step in steps:
            if site is LOSS:
                stream = make_stream(site, [[step]], [[step], [0.1]], first=self.arrival)
            else:
                stream = make_stream(site, [np.full((1, 3), step)], [[step]], first=self.arrival)
            arrays = [stream.rows.view(np.uint8).reshape(1, 64), stream.arrays[0]]
            arrays += [stream.column(1, 0, 1)] if site is LOSS else []
            self.writer.append(site, arrays)
            self.arrival += 1
        self.writer.flush()

    def next_segment(self):
        """Begins a new segment."""
        self.writer.close()
        self.number += 1
        self._begin()

    def kill(self):
        """Ends it as a kill does."""
        self.writer.close()
        self.lock.forget()

    def close(self):
        """Closes and seals it."""
        self.writer.end({"ended": 9})
        self.lock.forget()
        with tracerec.open(self.folder) as trace:
            seal(trace._opened.source, self.path)  # pyright: ignore[reportPrivateUsage]
        shutil.rmtree(self.folder)


@pytest.fixture
def running(tmp_path):
    """A recording that goes on, of steps 0 and 1."""
    run = Running(tmp_path / "run.h5")
    run.add(0, 1)
    yield run
    run.lock.forget()


class TestRefresh:
    def test_what_comes(self, running):
        """Each look finds what is new, new taps among it, and none finds nothing."""
        with open_trace(running.path) as trace:
            old = trace["x"]
            assert trace.refresh() == 0
            for number in range(2, 6):
                running.add(number, number)
                assert trace.refresh() == 2
                assert trace["x"].steps.tolist() == [0, 1, *np.repeat(range(2, number + 1), 2)]
            running.add(7, site=LOSS)
            assert (trace.refresh(), list(trace), trace["loss"].to_numpy().tolist()) == (1, ["x", "loss"], [7])
            assert len(trace.raw) == len(trace) == 11
            assert old.to_numpy()[:, 0].tolist() == [0, 1]
            assert trace.info.state == "recording"

    def test_nothing_new_opens_nothing(self, running, monkeypatch):
        """A look at what has not changed reads no file."""
        with open_trace(running.path) as trace:
            trace.refresh()
            monkeypatch.setattr("tracerec.trace.opening.open_source", None)
            assert trace.refresh() == 0

    def test_segments_are_sealed_meanwhile(self, running, monkeypatch):
        """What is sealed is no new record, and is opened once; taps that were got before can be read."""
        opened = []
        monkeypatch.setattr(live, "open_part", lambda path, pool: opened.append(path.name) or open_part(path, pool))
        with open_trace(running.path) as trace:
            old = trace["x"]
            for number in range(2, 5):
                running.next_segment()
                seal_segments(running.folder, [number - 2])
                running.add(number)
                assert trace.refresh() == 1
                assert trace["x"].to_numpy()[:, 0].tolist() == list(range(number + 1))
            assert old.to_numpy()[:, 0].tolist() == [0, 1]
            assert opened == ["part-000000.h5", "part-000001.h5", "part-000002.h5"]

    def test_it_is_closed_meanwhile(self, running):
        """The trace goes over to the file; then there is nothing new any more."""
        with open_trace(running.path) as trace:
            old = trace["x"]
            running.add(2, 3)
            running.close()
            assert trace.refresh() == 2
            assert (trace.path, trace.info.state) == (str(running.path), "clean")
            assert trace["x"].to_numpy()[:, 0].tolist() == [0, 1, 2, 3]
            assert old.to_numpy()[:, 0].tolist() == [0, 1]
            assert trace.refresh() == 0
        with pytest.raises(TraceError, match="is closed"):
            trace.refresh()
        with pytest.raises(TraceError, match="is closed"):
            old.to_numpy()

    def test_it_is_killed_meanwhile(self, running):
        """The state is then known; what was flushed is there."""
        with open_trace(running.path) as trace:
            running.add(2)
            running.kill()
            assert (trace.refresh(), trace.info.state, trace.refresh()) == (1, "killed", 0)

    def test_it_is_gone_or_another(self, running):
        """The error says so, and the trace stays as it was."""
        with open_trace(running.path) as trace:
            running.kill()
            shutil.rmtree(running.folder)
            with pytest.raises(TraceNotFound, match=r"there is no trace at .*run\.h5$"):
                trace.refresh()
            other = Running(running.path, "2" * 32)
            other.add(0)
            with pytest.raises(TraceError, match=r"another recording, run 2{32}, is there now; open the trace again"):
                trace.refresh()
            assert trace["x"].to_numpy()[:, 0].tolist() == [0, 1]
            other.kill()

    def test_many_looks_leave_no_files_open(self, running):
        """What a look replaced is let go of with the last tap of it."""
        before = open_files()
        with open_trace(running.path) as trace:
            for step in range(2, 22):
                running.add(step)
                assert trace.refresh() == 1
            assert open_files() <= before + 3
        assert open_files() <= before

    def test_a_finished_trace(self):
        """There is nothing new in what has ended."""
        assert Trace(training()).refresh() == 0

    def test_of_several_processes(self, running, tmp_path):
        """Those that go on are looked at; the others stay open."""
        second = Running(tmp_path / "run2.h5", "2" * 32)
        second.add(0)
        with open_trace([running.path, second.path]) as trace:
            running.add(2)
            second.add(1, 2, 3)
            assert trace.refresh() == 4
            second.close()
            running.add(3)
            assert trace.refresh() == 1
            assert [info.state for info in trace.info.processes] == ["recording", "clean"]
            assert [trace["x"].sel(process=p).steps.tolist() for p in (0, 1)] == [[0, 1, 2, 3], [0, 1, 2, 3]]


class TestAvailability:
    def test_a_run_that_goes_on(self, running):
        """A step is behind the program once any tap has a later one."""
        running.add(10, site=LOSS)
        with open_trace(running.path) as trace:
            assert trace.availability("x") == trace.availability("x", 1) == "present"
            assert trace.availability("x", 5) == trace.availability("loss", 9) == "never"
            assert trace.availability("x", 10) == trace.availability("x", 11) == "not yet"
            assert trace.availability("x", slice(5, None)) == trace.availability("x", [5, 12]) == "not yet"
            assert trace.availability("x", slice(5, 8)) == "never"
            assert trace.availability("x", slice(1, 8)) == "present"
            assert trace.availability("new") == trace.availability("new", 11) == "not yet"
            assert trace.availability("new", 3) == "never"
            with pytest.raises(
                SelectionError, match=r"^step=5 of tap 'x' was never recorded: its steps so far are 0\.\.1$"
            ):
                trace["x"].sel(step=5)
            with pytest.raises(
                SelectionError, match=r"^step=12 of tap 'x' is not yet recorded: its steps so far are 0\.\.1$"
            ):
                trace["x"].sel(step=12)
            with pytest.raises(SelectionError, match="has no tap 'new' yet: the run goes on; its taps are 'x', 'loss'"):
                trace["new"]
            running.close()
            trace.refresh()
            assert trace.availability("x", 12) == trace.availability("new") == "never"
            with pytest.raises(SelectionError, match=r"^step=12 of tap 'x' was never recorded: its steps are 0\.\.1$"):
                trace["x"].sel(step=12)
            with pytest.raises(SelectionError, match="has no tap 'new'; its taps are"):
                trace["new"]

    def test_a_killed_run(self, running):
        """It brings nothing any more."""
        running.kill()
        with open_trace(running.path) as trace:
            assert trace.availability("x", 12) == trace.availability("new") == "never"

    def test_a_continued_run(self, running):
        """An attempt that begins before the last one's end has its own progress."""
        running.add(50, 8, 9)
        attempts = ({"first_arrival": 0}, {"first_arrival": 3})
        write_manifest(running.folder, RunInfo("1" * 32, 5, pid=os.getpid(), attempts=attempts))
        with open_trace(running.path) as trace:
            assert trace.availability("x", 50) == "present"
            assert trace.availability("x", 20) == "not yet"
            assert trace.availability("x", 3) == "never"

    def test_a_tap_without_steps(self):
        """A finished one never has one."""
        trace = Trace(training())
        assert trace.availability("ragged", 1) == "never"
        assert trace.availability("ragged") == trace.availability("loss", 10) == "present"
        assert trace.availability("loss", 11) == "never"


class TestTaps:
    @pytest.mark.parametrize(
        ("patterns", "expected"),
        [
            (("encoder/*",), ["encoder/act", "encoder/mlp/act"]),
            (("*/act",), ["encoder/act", "encoder/mlp/act", "decoder/act"]),
            (("loss", "decoder/*"), ["decoder/act", "loss"]),
            ((re.compile(r"^\w+/act$"),), ["encoder/act", "decoder/act"]),
            ((re.compile("mlp|loss"),), ["encoder/mlp/act", "loss"]),
            (("w[0]",), ["w[0]"]),
            (("w[[]0]",), ["w[0]"]),
            (("w?0]", "*oss"), ["loss", "w[0]"]),
            ((), []),
        ],
    )
    def test_patterns(self, patterns, expected):
        """Globs, whose star matches a slash, too; regular expressions; names that look like patterns."""
        taps = self.taps()(*patterns)
        assert list(taps) == expected
        assert all(taps[name] is self.taps()[name] or len(taps[name]) == 1 for name in expected)
        assert list(taps(*patterns)) == expected

    @staticmethod
    def taps():
        """Returns the taps of a trace."""
        names = ("encoder/act", "encoder/mlp/act", "decoder/act", "loss", "w[0]")
        sites = [tracerec.Site(name, SITE.leaves) for name in names]
        return Trace(MemorySource([make_stream(site, [np.zeros((1, 3))]) for site in sites])).taps

    def test_nothing_matches(self):
        """The error has the nearest names."""
        with pytest.raises(
            SelectionError, match=r"<memory> has no tap that matches 'encodr/act'; did you mean 'encoder/act'"
        ):
            self.taps()("encodr/act")
        with pytest.raises(SelectionError, match=r"no tap that matches 'zz\+'; its taps are 'encoder/act'"):
            self.taps()("loss", re.compile("zz+"))


class TestFollow:
    def test_each_record_once(self, running):
        """What came before the trace had looked again is in it, what comes later is given, once."""
        with open_trace(running.path) as trace:
            running.add(2)
            with trace.follow() as coming:
                assert trace["x"].steps.tolist() == [0, 1, 2]
                assert coming.poll() == []
                running.add(3, 4)
                running.add(0, site=LOSS)
                got = coming.poll()
                assert [(r.tap, r.step, r.arrival) for r in got] == [("x", 3, 3), ("x", 4, 4), ("loss", 0, 5)]
                assert got[1].value.tolist() == [4, 4, 4]
                assert got[2].kwargs == {"lr": 0.1, "phase": "train", "step": 0}
                assert not coming.ended
                running.add(5)
                running.close()
                assert [r.step for r in coming.poll()] == [5]
                assert coming.poll() == []
                assert (coming.ended, coming.notes) == (True, ())

    def test_records_between_the_looks(self, running, monkeypatch):
        """A record that comes when the follower has begun, and the trace has not looked again, is given once."""
        with open_trace(running.path) as trace:
            refresh = type(trace._opened).refresh  # pyright: ignore[reportPrivateUsage]

            def late(opened):
                running.add(2, 3)
                return refresh(opened)

            monkeypatch.setattr(type(trace._opened), "refresh", late)  # pyright: ignore[reportPrivateUsage]
            with trace.follow("x") as coming:
                assert trace["x"].steps.tolist() == [0, 1, 2, 3]
                running.add(4)
                running.add(9, site=LOSS)
                assert [r.step for r in coming.poll()] == [4]

    def test_killed(self, running):
        """The notes say what became of it."""
        with open_trace(running.path) as trace, trace.follow() as coming:
            running.add(2)
            running.kill()
            assert [r.step for r in coming.poll()] == [2]
            coming.poll()
            assert coming.ended
            assert [note.split(": ")[1] for note in coming.notes] == ["the run did not end cleanly"]

    def test_ended_before(self, running):
        """Of what has ended nothing comes."""
        running.close()
        with open_trace(running.path) as trace, trace.follow() as coming:
            assert (coming.ended, coming.poll()) == (True, [])

    def test_last(self, running):
        """The last records, by arrival; of some taps."""
        running.add(7, site=LOSS)
        running.add(2)
        with open_trace(running.path) as trace:
            assert [(r.tap, r.step) for r in trace.last(3)] == [("x", 1), ("loss", 7), ("x", 2)]
            assert [r.step for r in trace.last(2, "x")] == [1, 2]
            assert len(trace.last(99)) == 4
            assert trace.last(0) == []
            with pytest.raises(SelectionError):
                trace.last(1, "y")


PROGRAM = """
import sys, time, numpy as np, tracerec
rec = tracerec.record(sys.argv[1], mode="w")
for step in range(10**6):
    tracerec.tap(np.full(4, step, np.float32), "act", step=step)
    if step % 50 == 0:
        rec.flush()
        if step == 100: print("go", flush=True)
        if step > 100: time.sleep(0.02)
    if step == int(sys.argv[2]):
        rec.close()
        break
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_real_run(tmp_path, killed):
    """A trace and a follower of a program that goes on until it is closed or killed: every step once, in order."""
    path = tmp_path / "run.h5"
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), str(10**6 if killed else 600)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        with open_trace(path) as trace, trace.follow() as coming:
            steps = trace["act"].steps.tolist()
            deadline = time.monotonic() + 60
            while not coming.ended and time.monotonic() < deadline:
                steps += [record.step for record in coming.poll()]
                if killed and len(steps) > 250:
                    process.send_signal(signal.SIGKILL)
                trace.refresh()
                count = len(trace)
                assert trace["act"].steps.tolist() == list(range(count))
                time.sleep(0.01)
            steps += [record.step for record in coming.poll()]
            process.wait(60)
            trace.refresh()
            assert steps == trace["act"].steps.tolist() == list(range(len(steps)))
            assert trace.info.state == ("killed" if killed else "clean")
            assert len(steps) == 601 or killed
