from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest
import typer

from tests.cli.conftest import HOSTILE
from tests.cli.running import COMMAND, tracerec
from tests.formats.test_live import seal_segments
from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import LOSS
from tests.trace.test_processes import process
from tests.trace.test_refreshing import Running
from tracerec.cli.tail import tail
from tracerec.errors import TraceNotFound
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.trace import open_trace

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "tail.schema.json").read_text())


def parsed(line):
    """Returns the object of a line, checked by the schema."""
    value = json.loads(line, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return value


@pytest.fixture
def running(tmp_path):
    """A recording that goes on, of steps 0 and 1."""
    run = Running(tmp_path / "run.h5")
    run.add(0, 1)
    yield run
    run.lock.forget()


class Follower:
    """``tracerec tail -f`` in a process of its own, read line by line."""

    def __init__(self, *args):
        command = [*COMMAND, "tail", "-f", *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines = self.process.stdout

    def steps(self, count):
        """Returns the steps of the next lines."""
        return [parsed(self.lines.readline())["step"] for _ in range(count)]

    def end(self):
        """Returns the status, and what else was printed."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture
def lines_of(capsys):
    """Returns what returns the lines that the command prints, without a process of its own."""

    def run(path, *, follow=False, lines=10, taps=None, as_json=False):
        tail(str(path), follow=follow, lines=lines, taps=taps, as_json=as_json)
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.splitlines()

    return run


class TestLines:
    def test_last_records(self, recording, lines_of):
        """The last ten in order of arrival, or as many as wanted, of some taps or all."""
        with open_trace(recording) as trace:
            expected = [(r.tap, r.step) for r in trace.records(order="arrival")]
            got = [parsed(line) for line in lines_of(recording, as_json=True, lines=99)]
            assert [(line["tap"], line["step"]) for line in got] == expected
            assert len(lines_of(recording)) == 10
            assert lines_of(recording, lines=0) == []
            for line, record in zip(lines_of(recording, lines=4), trace.last(4), strict=True):
                assert line.startswith(f"{np.datetime_as_string(record.time, 'us').replace('T', ' ')}  ")
                assert f"  {record.tap}  " in line
            loss = lines_of(recording, taps=["lo*"], lines=1)
            assert loss[0].endswith("  step 50  loss  lr=0.2 phase='train'  float32 1")

    def test_content(self, tmp_path, lines_of):
        """Small arrays are shown, of larger ones the statistics, over what counts alone."""
        where = Column("where", "bool", (4,), role="where")
        batch = Transform("batch", size=4, dims=(0,), kwarg_dims=(0,))
        lanes = Site("lanes", (Leaf("", (4, 3), "float32"),), (where,), transforms=(batch,))
        unknown = Transform("batch", size=8, dims=(0,), lanes_may_be_invalid=True)
        streams = [
            make_stream(
                Site("small", (Leaf("['a']", (2,), "int4"), Leaf("['b']", (), "bool", 1))), [[[1, -2]], [True]]
            ),
            make_stream(Site("bf", (Leaf("", (2,), "bfloat16"),)), [np.array([[1.5, np.nan]], ml_dtypes.bfloat16)]),
            make_stream(Site("big", (Leaf("", (8,), "float32"),)), [[[0, 1, 2, 3, np.nan, np.nan, np.inf, -np.inf]]]),
            make_stream(Site("nothing", (Leaf("", (0, 3), "float32"),)), [np.zeros((1, 0, 3))]),
            make_stream(Site("allbad", (Leaf("", (7,), "float32"),)), [np.full((1, 7), np.nan)]),
            make_stream(Site("key", (Leaf("", (8,), "uint32", key_impl="threefry2x32"),)), [np.ones((1, 8))]),
            make_stream(lanes, [np.arange(12).reshape(1, 4, 3)], [[[True, False, False, True]]]),
            make_stream(Site("branch", (Leaf("", (8,), "float32"),), transforms=(unknown,)), [np.ones((1, 8))]),
        ]
        seal(MemorySource(streams), tmp_path / "run.h5")
        shown = {line.split("  ")[1]: line.split("  ", 2)[2] for line in lines_of(tmp_path / "run.h5")}
        assert shown == {
            "small": "['a'] int4[2] 1 -2  ['b'] bool True",
            "bf": "bfloat16[2] 1.5 nan",
            "big": "float32[8] mean 1.5, std 1.118, min 0, max 3, 2 NaN, 1 +Inf, 1 -Inf",
            "nothing": "float32[0,3] empty",
            "allbad": "float32[7] no finite value, 7 NaN",
            "key": "key<threefry2x32>[8]",
            "lanes": "batch(4)  float32[4,3] mean 5.5, std 4.573, min 0, max 11",
            "branch": "batch(8)  float32[8] lanes may be invalid",
        }
        got = {(line := parsed(text))["tap"]: line for text in lines_of(tmp_path / "run.h5", as_json=True)}
        assert got["small"]["leaves"][0] == {
            "path": "['a']",
            "dtype": "int4",
            "shape": [2],
            "key_impl": None,
            "value": [1, -2],
            "statistics": got["small"]["leaves"][0]["statistics"],
        }
        assert got["bf"]["leaves"][0]["value"] == [1.5, "nan"]
        assert got["big"]["leaves"][0]["value"] is None
        assert got["big"]["leaves"][0]["statistics"]["nan"] == 2
        assert got["lanes"]["leaves"][0]["statistics"]["count"] == 6
        assert got["branch"]["leaves"][0]["statistics"] is got["key"]["leaves"][0]["statistics"] is None

    def test_hostile_names(self, faulty):
        """No character of a trace reaches the terminal that it would obey."""
        for option, encoding in (((), "ascii"), (("--json",), "utf-8")):
            done = tracerec("tail", faulty, "-n", 999, *option, encoding=encoding)
            assert done.returncode == 0
            assert all(c.isprintable() or c == "\n" for c in done.stdout)
            assert len(done.stdout.splitlines()) == 30
        assert any(parsed(line)["tap"] == HOSTILE for line in done.stdout.splitlines())

    def test_many_processes(self, tmp_path, lines_of):
        """Lines say which process, in order of time."""
        for number in range(2):
            seal(process(number), tmp_path / f"run.{number}.h5")
        lines = lines_of(tmp_path / "run.*.h5", taps=["act"], lines=3)
        assert [line.split("  ")[1:3] for line in lines] == [
            ["process 1", "step 4"],
            ["process 0", "step 5"],
            ["process 1", "step 5"],
        ]

    def test_errors(self, recording, tmp_path):
        """One line, status 2."""
        done = tracerec("tail", recording, "--tap", "lsos")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith("run.h5 has no tap that matches 'lsos'; did you mean 'loss'?\n")
        assert done.stderr.count("\n") == 1
        with pytest.raises(TraceNotFound, match="no recording matches"):
            tail(str(tmp_path / "x.*.h5"))

    def test_reader_of_the_pipe_goes_away(self, recording):
        """It ends quietly."""
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([*COMMAND, "tail", str(recording)], stdout=write, stderr=subprocess.PIPE, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, b"")


class TestFollowing:
    def test_until_it_is_closed(self, running):
        """What is there, what comes, segments sealed meanwhile included, and the end with status 0."""
        follower = Follower(running.path, "--json", "-n", 1)
        assert follower.steps(1) == [1]
        running.add(2, 3)
        assert follower.steps(2) == [2, 3]
        running.next_segment()
        running.add(4)
        seal_segments(running.folder, [0])
        running.next_segment()
        running.add(5)
        assert follower.steps(2) == [4, 5]
        running.add(6)
        running.close()
        assert follower.steps(1) == [6]
        assert follower.end() == (0, "", "")

    def test_a_tap_that_has_not_fired(self, running):
        """A pattern of nothing yet is no error in a run that goes on."""
        follower = Follower(running.path, "--json", "--tap", "lo*")
        time.sleep(0.5)
        for step in range(20):
            running.add(step)
            running.add(step, site=LOSS)
        running.close()
        status, out, err = follower.end()
        assert (status, err) == (0, "")
        assert {json.loads(line)["tap"] for line in out.splitlines()} <= {"loss"}

    def test_killed(self, running, lines_of, capsys):
        """Status 3, and what became of it."""
        follower = Follower(running.path, "--json")
        assert follower.steps(2) == [0, 1]
        running.add(2)
        assert follower.steps(1) == [2]
        running.kill()
        status, out, err = follower.end()
        assert (status, out) == (3, "")
        assert err == f"tracerec: {running.folder}: the run did not end cleanly\n"
        with pytest.raises(typer.Exit) as ended:
            tail(str(running.path), follow=True, lines=1)
        assert ended.value.exit_code == 3
        captured = capsys.readouterr()
        assert (captured.out.count("\n"), captured.err) == (1, "tracerec: the run did not end cleanly\n")
        assert len(lines_of(running.path)) == 3

    def test_ended_cleanly_before(self, recording, lines_of):
        """There is nothing to follow."""
        assert len(lines_of(recording, follow=True, lines=2)) == 2

    def test_interrupt(self, running):
        """Ctrl-C ends it quietly with status 130."""
        follower = Follower(running.path, "--json")
        assert follower.steps(2) == [0, 1]
        follower.process.send_signal(signal.SIGINT)
        assert follower.end() == (130, "", "")

    def test_reader_of_the_pipe_goes_away(self, running):
        """It ends quietly with the next record."""
        follower = Follower(running.path, "--json")
        assert follower.steps(2) == [0, 1]
        follower.lines.close()
        running.add(2)
        assert follower.process.wait(60) == 141
        assert follower.process.stderr is not None
        assert follower.process.stderr.read() == ""
        follower.process.stderr.close()

    def test_several_processes(self, running, tmp_path):
        """Each is followed to its end, a sealed one beside them."""
        seal(process(7, records=1), tmp_path / "run7.h5")
        second = Running(tmp_path / "run2.h5", "2" * 32)
        second.add(10)
        follower = Follower(tmp_path / "run*.h5", "--json")
        assert sorted(follower.steps(4)) == [0, 0, 1, 10]
        second.add(11)
        assert follower.steps(1) == [11]
        second.close()
        running.add(2)
        assert follower.steps(1) == [2]
        running.close()
        assert follower.end() == (0, "", "")


def test_time_is_utc(tmp_path, lines_of, monkeypatch):
    """The time of a line is the record's, whatever the zone."""
    source = MemorySource([make_stream(dataclasses.replace(LOSS, columns=(), kwargs="{}"), [[0.5]])])
    seal(source, tmp_path / "run.h5")
    assert STARTED == 1_700_000_000_000_000_000
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    shown = lines_of(tmp_path / "run.h5")[0]
    monkeypatch.delenv("TZ")
    time.tzset()
    assert shown == "2023-11-14 22:13:20.000000  loss  float32 0.5"
