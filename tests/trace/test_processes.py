"""Recordings of many processes as one trace."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.test_joined import open_files
from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import LOSS, STEP, journal, training
from tests.trace.test_shards import LAYOUTS, WHOLES, sharded
from tracerec.errors import SelectionError, TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.contract import RECORDING_NOTE
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.trace import Trace, open_trace
from tracerec.trace.processes import ProcessesSource, numbered

ACT = Site("act", (Leaf("", (2,), "float32"),), (STEP,), '{"step":{"slot":0}}')


def process(number, *, records=6, **info):
    """Returns the recording of a process, whose clock is 0.1 ms a number behind the first's."""
    steps = np.arange(records)
    values = np.stack([steps, np.full(records, number)], axis=1)
    times = STARTED + 1_000_000 * steps + 100_000 * number
    streams = [make_stream(ACT, [values], [steps], time=times, device=4 * number)]
    if number == 1:
        streams.append(make_stream(LOSS, [[0.5]], [[3], [0.1]], first=100, time=times[-1] + 1))
    source = MemorySource(streams, path=f"run.{number}.h5")
    fields = {"run_id": f"{number:032x}", "pid": 100 + number, "dropped": {"act": number}, **info}
    return dataclasses.replace(source, info=dataclasses.replace(source.info, **fields))


def joined(*sources, numbers=None):
    """Returns the trace of these."""
    return Trace(ProcessesSource("run.*.h5", sources, numbers or range(len(sources))))


@pytest.fixture
def folder(tmp_path):
    """Three sealed recordings of one run."""
    for number in range(3):
        seal(process(number), tmp_path / f"run.{number}.h5")
    return tmp_path


class TestOpening:
    def test_pattern_and_list(self, folder, monkeypatch):
        """By a pattern and by a list, relative and absolute, the trace is the same."""
        monkeypatch.chdir(folder)
        paths = [folder / f"run.{number}.h5" for number in range(3)]
        for given in (
            "run.*.h5",
            folder / "run.*.h5",
            f"{folder}/run.[0-2].h5",
            paths,
            list(map(str, paths)),
            "**/*.h5",
        ):
            with open_trace(given) as trace:
                assert trace.processes == (0, 1, 2)
                assert len(trace) == 19
                assert [info.pid for info in trace.info.processes] == [100, 101, 102]
        with open_trace(["run.[01].h5", "run.2.h5"]) as trace:
            assert trace.path == "run.[01].h5, run.2.h5"
            assert trace.processes == (0, 1, 2)

    def test_numbers_are_those_of_the_names(self, folder):
        """Some of the files have the numbers that they have among all."""
        with open_trace(folder / "run.[12].h5") as trace:
            assert trace.processes == (1, 2)
            assert {record.process for record in trace.records()} == {1, 2}

    @pytest.mark.parametrize(
        ("paths", "ordered", "expected"),
        [
            (["r.10.h5", "r.2.h5"], False, [(2, "r.2.h5"), (10, "r.10.h5")]),
            (["r.10.h5", "r.2.h5"], True, [(2, "r.2.h5"), (10, "r.10.h5")]),
            (["b10.h5", "b9.h5", "a.h5"], False, [(0, "a.h5"), (1, "b9.h5"), (2, "b10.h5")]),
            (["b.h5", "a.h5"], True, [(0, "b.h5"), (1, "a.h5")]),
            (["r1.2.h5", "r2.1.h5"], False, [(0, "r1.2.h5"), (1, "r2.1.h5")]),
            (["20261201.h5", "20261202.h5"], False, [(0, "20261201.h5"), (1, "20261202.h5")]),
            (["1/r.h5", "01/r.h5"], True, [(0, "1/r.h5"), (1, "01/r.h5")]),
            (["r.7.h5"], False, [(0, "r.7.h5")]),
        ],
    )
    def test_numbering(self, paths, ordered, expected):
        """The one number in which names differ, else the place."""
        assert numbered(paths, ordered=ordered) == expected

    def test_killed_and_sealed(self, folder):
        """A recording that is not sealed is found by the name that it will have, once, its parts not at all."""
        (folder / "run.1.h5").unlink()
        live = journal(folder / "run.1.h5")
        (live / "run.9.h5").write_bytes(b"a part")
        journal(folder / "run.2.h5")  # sealed a moment ago: its journal is being deleted
        for pattern in ("run.*.h5", "run.*", "**/run.*.h5", "run.*.h5.live"):
            with open_trace(folder / pattern) as trace:
                expected = (1, 2) if pattern.endswith("live") else (0, 1, 2)
                assert trace.processes == expected
                states = [info.state for info in trace.info.processes]
                assert states == ["clean", "killed", "clean"][-len(expected) :]
                assert trace.info.state == "killed"
                assert trace.info.notes == ("run.1.h5.live: the run did not end cleanly",)

    def test_a_path_that_is_there_is_no_pattern(self, tmp_path):
        """A file whose name has the characters of a pattern is opened as it is."""
        seal(process(0), tmp_path / "run[1].h5")
        seal(process(1), tmp_path / "run1.h5")
        with open_trace(tmp_path / "run[1].h5") as trace:
            assert trace.info.pid == 100
        (tmp_path / "run[1].h5").unlink()
        with open_trace(tmp_path / "run[1].h5") as trace:
            assert trace.info.pid == 101

    def test_nothing_matches(self, folder):
        """The error names the pattern, and a recording that was perhaps meant."""
        with pytest.raises(TraceNotFound, match=r"no recording matches .*/ran\.\*\.h5; did you mean .*/run\.\d\.h5\?"):
            open_trace(folder / "ran.*.h5")
        with pytest.raises(TraceNotFound, match=r"no recording matches .*/x\*/run\.h5$"):
            open_trace(folder / "x*" / "run.h5")
        with pytest.raises(TraceNotFound, match="the list of paths is empty"):
            open_trace([])

    def test_a_bad_file_among_many(self, folder):
        """The error names it, and the others are closed."""
        (folder / "run.1.h5").write_bytes(b"no trace")
        before = open_files()
        with pytest.raises(TraceFormatError, match=r"run\.1\.h5 is not a trace"):
            open_trace(folder / "run.*.h5")
        with pytest.raises(TraceNotFound, match=r"there is no trace at .*run\.7\.h5"):
            open_trace([folder / "run.0.h5", folder / "run.7.h5"])
        assert open_files() == before

    def test_one_recording_twice(self, folder, monkeypatch):
        """The same file, a link to it, and a copy of it are refused."""
        path = folder / "run.0.h5"
        before = open_files()
        with pytest.raises(TraceError, match=r"run\.0\.h5 is given twice; leave one out"):
            open_trace([path, path])
        monkeypatch.chdir(folder)
        # Short paths that are equal are one object.
        for given in (["run.0.h5"] * 2, ["./run.0.h5", "run.0.h5"], ["run.*.h5", "run.0.h5"]):
            with pytest.raises(TraceError, match=r"^run\.0\.h5 is given twice; leave one out$"):
                open_trace(given)
        Path("soft.h5").symlink_to("run.0.h5")
        with pytest.raises(
            TraceError, match=r"^soft\.h5 is given twice, as run\.0\.h5 and as soft\.h5; leave one out$"
        ):
            open_trace(["run.0.h5", "soft.h5"])
        os.link(path, folder / "hard.h5")
        with pytest.raises(TraceError, match=r"hard\.h5 is given twice, as .*run\.0\.h5 and as .*hard\.h5"):
            open_trace([path, folder / "hard.h5"])
        shutil.copy(path, folder / "copy.h5")
        with pytest.raises(TraceError, match=r"run\.0\.h5 and .*copy\.h5 are of one process's recording, run 0{32}"):
            open_trace([path, folder / "copy.h5"])
        assert open_files() == before

    def test_a_killed_recording_twice(self, tmp_path, monkeypatch):
        """By its name, and by that of its folder."""
        journal(tmp_path / "run.h5")
        monkeypatch.chdir(tmp_path)
        for given in (["run.h5"] * 2, ["run.h5", "run.h5.live"]):
            with pytest.raises(TraceError, match=r"^run\.h5\.live is given twice; leave one out$"):
                open_trace(given)

    def test_many_files_are_opened_with_few_handles(self, tmp_path):
        """100 files are one trace with at most 64 of them open."""
        for number in range(100):
            seal(process(number, records=2), tmp_path / f"run.{number}.h5")
        before = open_files()
        with open_trace(tmp_path / "run.*.h5") as trace:
            assert open_files() <= before + 64
            assert len(trace["act"].streams) == 1
            values = trace["act"].to_numpy()
            assert sorted(map(tuple, values.tolist())) == [(step, number) for step in range(2) for number in range(100)]
            assert open_files() <= before + 64
        assert open_files() == before


class TestRecords:
    def test_order(self):
        """Each process has its order, and they are merged by time, wherever the blocks of one end."""
        trace = joined(process(0), process(1), process(2, records=3))
        got = [(r.step, r.process) for r in trace.records() if r.tap == "act"]
        assert got == [(s, p) for s in range(6) for p in range(3) if s < 3 or p < 2]
        assert [r.process for r in trace.records()][-1] == 1
        assert [(r.step, r.process) for r in trace.records(order="arrival") if r.tap == "act"] == got
        assert len(trace) == len(list(trace.records())) == 16

    @pytest.mark.parametrize("rows", [1, 2, 3, 64])
    def test_merging_in_blocks(self, monkeypatch, rows):
        """Against sorting at once: clocks that jump back, records of one time, processes that end early."""
        from tracerec.trace import interleaving, order

        rng = np.random.default_rng(rows)
        sources = []
        for number, count in enumerate((40, 0, 25, 60)):
            times = STARTED + np.sort(rng.integers(0, 30, count)) + rng.integers(-2, 3, count)
            stream = make_stream(ACT, [np.zeros((count, 2))], [range(count)], time=times)
            sources.append(dataclasses.replace(process(number), streams=[stream]))
        read = order._by_arrival  # pyright: ignore[reportPrivateUsage]

        def pieces(views, processes):
            for batch in read(views, processes):
                for start in range(0, len(batch), rows):
                    yield batch.take(np.arange(start, min(start + rows, len(batch))))

        monkeypatch.setattr(order, "_by_arrival", pieces)
        monkeypatch.setattr(interleaving, "_ROWS", rows)
        trace = joined(*sources)
        expected = []
        for number, source in enumerate(sources):
            reached = np.maximum.accumulate(source.streams[0].rows["time"])
            expected += [(int(time), number, step) for step, time in enumerate(reached)]
        expected = [(number, step) for _, number, step in sorted(expected)]
        for each in ("arrival", "program"):
            assert [(r.process, r.step) for r in trace.records(order=each)] == expected
        backwards = trace["act"][::-1]
        assert [(r.process, r.step) for r in backwards] == expected[::-1]

    def test_a_site_of_several_processes_is_one_stream(self):
        """Its values are one array in the order of records, and each process's can be had."""
        trace = joined(process(0), process(1), process(2))
        act = trace["act"]
        assert list(trace.taps) == ["act", "loss"]
        assert (len(act.streams), len(act.sites), act.shape, act.processes) == (1, 1, (18, 2), (0, 1, 2))
        expected = [[step, number] for step in range(6) for number in range(3)]
        assert act.to_numpy().tolist() == act.streams[0].to_numpy().tolist() == expected
        assert act.steps.tolist() == [step for step, _ in expected]
        assert act.sel(process=1).to_numpy()[:, 1].tolist() == [1] * 6
        assert act.sel(process=[0, 2], step=4).to_numpy().tolist() == [[4, 0], [4, 2]]
        assert act.sel(process=slice(1, None)).processes == (1, 2)
        assert act[-1].process == 2
        assert act.sel(device=4).processes == (1,)
        assert act.streams[0].raw.to_numpy().tolist() == act.raw.to_numpy().tolist() == expected
        with pytest.raises(SelectionError, match="no record with process=7; they go from 0 to 2"):
            act.sel(process=7)

    def test_process_of_a_trace_of_one(self):
        """A single recording is process 0."""
        trace = Trace(training())
        assert trace.processes == (0,)
        assert {record.process for record in trace.records()} == {0}
        assert len(trace["loss"].sel(process=0)) == len(trace["loss"])
        assert trace.info.processes == (trace.info,)

    def test_attempts_are_a_process_s_own(self):
        """What a later attempt of one process recorded again is hidden in that process alone."""
        attempts = ({"first_arrival": 0}, {"first_arrival": 4})
        continued = process(0)
        continued.streams[0].rows["step"] = [0, 1, 2, 3, 2, 3]  # type: ignore[attr-defined]
        continued = dataclasses.replace(continued, info=dataclasses.replace(continued.info, attempts=attempts))
        act = joined(continued, process(1))["act"]
        assert act.sel(process=0).steps.tolist() == [0, 1, 2, 3]
        assert [r.attempt for r in act.sel(process=0)] == [0, 0, 1, 1]
        assert act.sel(process=1).steps.tolist() == [*range(6)]
        assert act.sel(process=0, attempt=0).steps.tolist() == [0, 1, 2, 3]
        assert len(act.sel(attempt=1)) == 2

    def test_table(self):
        """The table tells processes apart, where there are several."""
        pytest.importorskip("pandas")
        table = joined(process(0), process(2), numbers=[0, 2])["act"].to_pandas()
        assert table["process"].tolist() == [0, 2] * 6
        assert "process" not in process_table(process(0)).columns


def process_table(source):
    """Returns the table of a trace of one."""
    return Trace(source).to_pandas()


class TestInfo:
    def test_sums(self):
        """Counts are added up, times span, devices are each there once."""
        device = {"id": 0, "kind": "cpu", "platform": "cpu", "process": 0}
        first = process(0, started=STARTED - 5, high_water_bytes=7, devices=(device,))
        second = process(1, ended=STARTED + 10**12, high_water_bytes=9, devices=(device, {**device, "id": 1}))
        info = joined(first, second).info
        assert (info.clean, info.state, info.started, info.ended) == (True, "clean", STARTED - 5, STARTED + 10**12)
        assert (info.records, info.dropped, info.high_water_bytes) == (13, {"act": 1}, 9)
        assert info.devices == (device, {**device, "id": 1})
        assert info.processes == (first.info, second.info)
        assert len(info.run_id) == 32
        assert info.run_id == joined(second, first).info.run_id
        assert info.to_json()["processes"] == [first.info.to_json(), second.info.to_json()]

    @pytest.mark.parametrize(
        ("states", "expected"),
        [
            (["clean", "killed"], "killed"),
            (["recording", "killed"], "recording"),
            (["clean", "recording"], "recording"),
            (["clean", "stopped early"], "stopped early"),
            (["killed", "stopped early"], "killed"),
        ],
    )
    def test_states(self, states, expected):
        """It is clean only if all are, and goes on if one does."""
        kinds: dict[str, dict[str, Any]] = {
            "clean": {},
            "killed": {"clean": False, "ended": None, "notes": ("killed",)},
            "recording": {"clean": False, "ended": None, "notes": (RECORDING_NOTE,)},
            "stopped early": {"clean": False, "notes": ("stopped",)},
        }
        sources = [process(number, **kinds[state]) for number, state in enumerate(states)]
        info = joined(*sources).info
        assert info.state == expected
        for number, source in enumerate(sources):
            assert all(f"run.{number}.h5: {note}" in info.notes for note in source.info.notes)

    def test_overview_and_reprs(self):
        """What inspect shows has each site once; reprs say how many processes there are."""
        trace = joined(process(0), process(1))
        overview = trace.overview()
        assert [(s["tap"], s["records"]) for s in overview["streams"]] == [("act", 12), ("loss", 1)]
        assert overview["streams"][0]["leaves"][0]["summary"]["last"]["mean"] == 3.0
        assert overview["run"]["records"] == 13
        assert repr(trace).splitlines()[0] == "<tracerec.Trace 'run.*.h5': 13 records of 2 processes, 2 taps, clean>"
        assert repr(trace["act"]).splitlines() == [
            "<tracerec.Tap 'act': 12 records, 1 stream, 2 processes>",
            "  primal: 12 x array float32[2]",
        ]
        assert "is closed" in closed(trace)

    def test_raw(self):
        """The raw trace has the same processes."""
        trace = joined(process(0), process(1))
        assert len(trace.raw) == len(list(trace.raw.records())) == 13
        assert trace.raw.processes == (0, 1)


def closed(trace):
    """Returns what reading a closed trace says."""
    trace.close()
    with pytest.raises(TraceError) as caught:
        list(trace.records())
    return str(caught.value)


class TestShards:
    """The shards of one firing, in the files of several processes, whose calls have other numbers."""

    @staticmethod
    def processes(calls, *, steps=None, layout="2x2", skip=()):
        """Returns two processes with two devices each; the second ran other programs between."""
        streams = sharded(WHOLES, LAYOUTS[layout])
        sources = []
        for number in range(2):
            mine = []
            for stream in streams:
                chosen = np.isin(stream.rows["device"], [2 * number, 2 * number + 1])
                chosen &= ~np.isin(stream.rows["call"], skip[number] if skip else [])
                rows = stream.rows[chosen].copy()
                if steps is not None:
                    rows["step"], rows["flags"] = np.array(steps)[rows["call"].astype(int) - 1], 1
                rows["call"] = np.array(calls[number])[rows["call"].astype(int) - 1]
                columns = tuple(None if c is None else c[chosen] for c in stream.columns)
                mine.append(dataclasses.replace(stream, rows=rows, arrays=(stream.arrays[0][chosen],), columns=columns))
            sources.append(dataclasses.replace(process(number), streams=[s for s in mine if s.records]))
        return joined(*sources)["t"]

    @pytest.mark.parametrize("layout", ["2x2", "replicated", "uneven", "rows over four"])
    @pytest.mark.parametrize("steps", [None, [5, 5, 6], [7, 3, 5]])
    def test_the_whole_is_put_together(self, layout, steps):
        """Bit for bit, with steps, with a step recorded twice, and without steps."""
        tap = self.processes([[1, 2, 3], [4, 9, 11]], steps=steps, layout=layout)
        assert len(tap) == 12
        np.testing.assert_array_equal(tap.to_numpy(assemble=True), WHOLES)

    def test_a_lost_record_with_steps(self):
        """Steps tell which firing lacks a shard; the others are whole."""
        tap = self.processes([[1, 2, 3], [1, 2, 3]], steps=[0, 1, 2], skip=([], [2]))
        np.testing.assert_array_equal(tap.sel(call=[1, 3]).to_numpy(assemble=True), WHOLES[[0, 2]])
        with pytest.raises(SelectionError, match="no shard holds element"):
            tap.to_numpy(assemble=True)

    def test_a_lost_record_without_steps(self):
        """Nothing tells which belong together, so that nothing is put together wrongly."""
        tap = self.processes([[1, 2, 3], [1, 2, 3]], skip=([], [2]))
        with pytest.raises(SelectionError, match="they have no step, and process 0 has 3, process 1 has 2"):
            tap.to_numpy(assemble=True)

    def test_replicas_are_compared_across_processes(self):
        """A copy that differs in another process is found."""
        assert self.processes([[1, 2, 3], [4, 9, 11]], layout="replicated").replicated.all()
        tap = self.processes([[1, 2, 3], [4, 9, 11]], layout="replicated")
        tap._views[-1].source.arrays[0][0, 0, 0] += 1  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
        assert int((~tap.replicated).sum()) == 4
        with pytest.raises(TraceError, match="differs from that of another device"):
            tap.to_numpy(assemble=True)


def test_a_running_process_among_many(tmp_path):
    """While one process goes on, so does the trace; what is not there of it is not yet."""
    from tracerec.journal.lock import JournalLock

    seal(process(0), tmp_path / "run.0.h5")
    live = journal(tmp_path / "run.1.h5")
    lock = JournalLock(live)
    try:
        with open_trace(tmp_path / "run.*.h5") as trace:
            assert trace.info.state == "recording"
            assert trace.availability("act", 5) == "present"
            assert trace.availability("act", 99) == "not yet"
            assert trace.availability("loss", 0) == "present"
            assert trace.availability("nothing") == "not yet"
    finally:
        lock.forget()


def test_forms_of_recordings_mix(tmp_path):
    """A list of a sealed file, a folder of Arrow files and a live folder."""
    seal(process(0), tmp_path / "a.h5")
    pytest.importorskip("pyarrow")
    from tracerec.formats.arrow.seal import seal as seal_arrow

    seal_arrow(process(2), tmp_path / "b.arrow")
    with open_trace([tmp_path / "a.h5", tmp_path / "b.arrow", journal(tmp_path / "c.h5")]) as trace:
        assert trace.processes == (0, 1, 2)
        assert trace["act"].sel(process=1).to_numpy()[:, 1].tolist() == [2] * 6
        assert trace["loss"].processes == (2,)
