from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import jsonschema
import numpy as np
import pytest

from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import BATCH, RECORDS, CountingStream, journal, leaf, training
from tracerec.errors import SelectionError, TraceFormatError
from tracerec.formats.hdf5.seal import seal
from tracerec.journal.lock import JournalLock
from tracerec.model import Column, Leaf, Site
from tracerec.trace import Trace, open_trace

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "inspect.schema.json").read_text())


def checked(trace):
    """Returns the overview after a round trip through strict JSON, by the schema."""
    overview = trace.overview()
    parsed = json.loads(json.dumps(overview, allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    assert parsed == overview
    return parsed


def test_schema_is_one():
    """The schema is valid itself."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", ["memory", "sealed"])
def test_overview(kind, tmp_path):
    """One entry a stream with what its index and its leaves hold; a sealed file says the same."""
    trace = Trace(training())
    expected_sizes = [RECORDS * 3 * 2, RECORDS * 6 * 4]
    if kind == "sealed":
        seal(training(), tmp_path / "run.h5")
        with h5py.File(tmp_path / "run.h5") as file:
            expected_sizes = [file[f"streams/000000/data_{n}"].id.get_storage_size() for n in range(2)]
        trace = open_trace(tmp_path / "run.h5")
    got = checked(trace)
    source = training()
    assert [s["tap"] for s in got["streams"]] == ["layer", "layer", "loss", "loss", "ragged", "ragged"]
    assert [s["records"] for s in got["streams"]] == [RECORDS, RECORDS, RECORDS, 2, 2, 3]
    assert got["streams"][0]["steps"] == {"first": 0, "last": 50}
    assert got["streams"][4]["steps"] is None
    assert [t["name"] for t in got["streams"][1]["transforms"]] == ["jvp", "transpose"]
    b, w = got["streams"][0]["leaves"]
    assert (b["dtype"], w["shape"], w["path"]) == ("bfloat16", [2, 3], "['w']")
    assert [leaf["bytes"] for leaf in got["streams"][0]["leaves"]] == expected_sizes
    assert b["summary"]["nan"] == int(np.isnan(leaf(source, 0).astype(np.float32)).sum()) > 0
    assert w["summary"]["last"]["max"] == float(leaf(source, 0, 1)[-1].max())
    assert got["run"]["duration_s"] == 60.0
    assert got["run"]["started"] == "2023-11-14T22:13:20.000000000Z"
    assert got["run"]["last_record"] is None


def test_run_that_was_not_closed():
    """The time of the last record stands for the end."""
    source = training()
    source.info = dataclasses.replace(source.info, ended=None, clean=False, notes=("killed",), dropped={"x": 2})
    got = checked(Trace(source))
    assert got["run"]["ended"] is None
    assert got["run"]["last_record"] == f"{np.datetime64(STARTED + (RECORDS - 1) * 1_000_000, 'ns')}Z"
    assert got["run"]["duration_s"] == 0.005
    assert got["run"]["dropped"] == {"x": 2}


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "clean"),
        ({"clean": False, "ended": None, "notes": ("the run did not end cleanly",)}, "killed"),
        ({"clean": False, "ended": None, "notes": ("x", "the run is still being recorded")}, "recording"),
        ({"clean": False, "notes": ("recording stopped early: OSError: full",)}, "stopped early"),
    ],
)
def test_state(fields, state):
    """What became of the recording is one word, and in the first line of the trace's text."""
    source = training()
    source.info = dataclasses.replace(source.info, **fields)
    trace = Trace(source)
    assert checked(trace)["run"]["state"] == state
    words = {"killed": "did not end cleanly", "recording": "still being recorded"}
    assert repr(trace).splitlines()[0].endswith(f"{words.get(state, state)}>")


@pytest.mark.parametrize("locked", [False, True])
def test_state_of_a_journal(tmp_path, locked):
    """A journal without an end is being written, or of a killed run: its lock tells."""
    folder = journal(tmp_path / "run.h5")
    lock = JournalLock(folder) if locked else None
    with open_trace(folder) as trace:
        got = checked(trace)
    if lock is not None:
        lock.forget()
    assert (got["run"]["state"], got["run"]["clean"]) == ("recording" if locked else "killed", False)
    assert got["streams"][0]["leaves"][0]["bytes"] == 2 * 4


def test_journal_that_goes_while_it_is_looked_at(tmp_path):
    """The run closes between opening and looking: its folder has no size any more, which is no error."""
    folder = journal(tmp_path / "run.h5")
    with open_trace(folder) as trace:
        shutil.rmtree(folder)
        assert checked(trace)["bytes"] is None


def test_numbers_that_json_lacks():
    """NaN and infinities of the user's metadata are strings."""
    source = training()
    source.info = dataclasses.replace(source.info, metadata={"a": [float("nan"), {"b": float("-inf")}], "c": 0.1})
    assert checked(Trace(source))["run"]["metadata"] == {"a": ["nan", {"b": "-inf"}], "c": 0.1}


@pytest.mark.parametrize(
    "fields",
    [{"started": 10**30}, {"devices": (1,)}, {"dropped": {"x": "many"}}, {"versions": ["jax"]}, {"metadata": [1]}],
)
def test_wrong_information(fields):
    """A file that says nonsense of the run is damaged, and no reason for a traceback."""
    source = training()
    source.info = dataclasses.replace(source.info, **fields)
    with pytest.raises(TraceFormatError, match="<memory> is no intact trace"):
        Trace(source).overview()


def test_batch_transform_and_key():
    """The parameters of a transform and the kind of a key are there."""
    site = Site("x", leaves=(Leaf("", (4, 2), "uint32", key_impl="rbg"),), transforms=(BATCH,))
    (stream,) = checked(Trace(MemorySource([make_stream(site, [np.zeros((1, 4, 2))])])))["streams"]
    assert stream["transforms"] == [{"name": "batch", "size": 4, "dims": [0]}]
    assert stream["leaves"][0]["key_impl"] == "rbg"


def test_trace_without_streams():
    """Nothing recorded is no error."""
    assert checked(Trace(MemorySource([])))["streams"] == []


def test_tensors_are_not_read(tmp_path, monkeypatch):
    """What is shown of a sealed file comes from its index: nothing of a stream is read, not even its rows."""
    from tracerec.formats.hdf5.reading import Hdf5Stream

    seal(training(), tmp_path / "run.h5")
    for name in ("index", "leaf", "column"):
        monkeypatch.setattr(Hdf5Stream, name, None)
    with open_trace(tmp_path / "run.h5") as trace:
        assert len(trace.overview()["streams"]) == 6


def test_index_is_read_once_for_the_steps():
    """A form that keeps no range of steps has its index read, a leaf never."""
    stream = CountingStream(training().streams[0])
    Trace(MemorySource([stream])).overview()  # type: ignore[list-item]
    assert (stream.index_rows, stream.leaf_rows) == (RECORDS, 0)


class TestMasks:
    def test_lanes_that_may_be_invalid(self):
        """The stream is marked and its leaves have no summary, unless the raw trace is asked."""
        batch = dataclasses.replace(BATCH, lanes_may_be_invalid=True)
        site = Site("x", leaves=(Leaf("", (4,), "float32"),), transforms=(batch,))
        trace = Trace(MemorySource([make_stream(site, [[[1, 2, 3, 6]]])]))
        (stream,) = checked(trace)["streams"]
        assert stream["lanes_may_be_invalid"]
        assert stream["transforms"] == [{"name": "batch", "size": 4, "dims": [0], "lanes_may_be_invalid": True}]
        assert stream["leaves"][0]["summary"] is None
        (stream,) = checked(trace.raw)["streams"]
        assert stream["lanes_may_be_invalid"]
        assert stream["leaves"][0]["summary"]["last"]["mean"] == 3.0

    def test_only_what_counts(self):
        """A summary counts the records that count; the stream has all that were written."""
        where = Column("where", "bool", (), role="where")
        site = Site("x", leaves=(Leaf("", (), "float32"),), columns=(where,))
        trace = Trace(MemorySource([make_stream(site, [[1, np.nan, 3]], [[True, False, True]])]))
        (stream,) = checked(trace)["streams"]
        assert stream["records"] == 3
        assert stream["kwargs"] == {}
        assert not stream["lanes_may_be_invalid"]
        summary = stream["leaves"][0]["summary"]
        assert (summary["records"], summary["nan"], summary["spark"]) == (2, 0, [1.0, 3.0])

    def test_shards(self):
        """A shard's leaf has the shape of the whole beside its own."""
        offset = Column("", "int64", (1,), role="offset")
        site = Site("x", leaves=(Leaf("", (2,), "int8", global_shape=(4,)),), columns=(offset,))
        trace = Trace(MemorySource([make_stream(site, [[[1, 2], [3, 4]]], [[[0], [2]]])]))
        (stream,) = checked(trace)["streams"]
        assert (stream["leaves"][0]["shape"], stream["leaves"][0]["global_shape"]) == ([2], [4])


def test_rate_and_sizes():
    """Records a second over the time of all attempts; bytes before compression; one process."""
    source = training()
    second = 1_000_000_000
    attempts = [
        {"first_arrival": 0, "started": STARTED, "ended": STARTED + 4 * second, "clean": True},
        {"first_arrival": 30, "started": STARTED + 50 * second, "ended": STARTED + 51 * second, "clean": True},
    ]
    attempts: list[dict[str, Any]] = [attempt | {"host": "h", "pid": 1, "command": ()} for attempt in attempts]
    assert checked(Trace(source))["run"]["records_per_s"] == pytest.approx(25 / 60)
    source.info = dataclasses.replace(source.info, ended=STARTED + 51 * second, attempts=attempts)
    got = checked(Trace(source))
    assert got["run"]["records_per_s"] == pytest.approx(25 / 5)
    assert got["streams"][0]["raw_bytes"] == RECORDS * (3 * 2 + 6 * 4 + 64)
    assert [process["records"] for process in got["run"]["processes"]] == [25]
    attempts[0]["ended"] = None
    assert checked(Trace(source))["run"]["records_per_s"] is None


def test_some_taps():
    """Patterns select streams; how many there are is told."""
    got = Trace(training()).overview("lo*", "layer")
    assert [stream["tap"] for stream in got["streams"]] == ["layer", "layer", "loss", "loss"]
    assert (got["streams_in_all"], got["run"]["records"]) == (6, 25)
    with pytest.raises(SelectionError, match="did you mean 'loss'"):
        Trace(training()).overview("los")
