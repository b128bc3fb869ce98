"""Batches, lazy arrays, tables of some taps, statistics, SQL."""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.test_contract import random_elements
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import COTANGENT, LOSS, STEP, CountingStream, leaf, training
from tracerec.errors import MissingExtra, SelectionError, TraceError
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site
from tracerec.progress import Progress
from tracerec.protocol import dtypes
from tracerec.statistics import COUNTS, MEASURES, moments, moments_by_row
from tracerec.trace import Trace, open_trace


@pytest.fixture
def source():
    """A run of six steps."""
    return training()


@pytest.fixture
def trace(source):
    """The run, opened."""
    return Trace(source)


def only(*streams):
    """Returns the tap of a trace with these streams."""
    return Trace(MemorySource(list(streams)))[streams[0].site.name]


def shuffled(seed=0, streams=3, records=40):
    """Returns streams of one shape whose records alternate at random, and the values in program order."""
    rng = np.random.default_rng(seed)
    arrivals = np.array_split(rng.permutation(streams * records), streams)
    made = []
    for number, drawn in enumerate(arrivals):
        site = Site("x", (Leaf("", (4,), "float32"),), (STEP,), f'{{"k":"{number}","step":{{"slot":0}}}}')
        arrival = np.sort(drawn)
        values = np.repeat(arrival[:, None], 4, axis=1).astype(np.float32)
        made.append(make_stream(site, [values], [arrival * 2], arrival=arrival, call=arrival + 1))
    return made, np.repeat(np.arange(streams * records)[:, None], 4, axis=1).astype(np.float32)


class TestBatches:
    @settings(deadline=None, max_examples=30)
    @given(nbytes=st.integers(1, 3000), seed=st.integers(0, 9))
    def test_they_make_up_the_whole(self, nbytes, seed):
        """Whatever their size, batches follow each other in program order and stay within it."""
        streams, expected = shuffled(seed)
        tap = only(*streams)
        batches = list(tap.iter_batches(bytes=nbytes))
        np.testing.assert_array_equal(expected, np.concatenate([np.asarray(batch.values) for batch in batches]))
        assert [step for b in batches for step in np.asarray(b.steps).tolist()] == tap.steps.tolist()
        assert [b.start for b in batches] == [0, *(b.stop for b in batches[:-1])]
        assert all(len(b) == 1 or np.asarray(b.values).nbytes <= nbytes for b in batches)

    def test_records_without_steps(self, trace):
        """They have no steps to give."""
        (batch,) = trace["ragged"].streams[0].iter_batches()
        assert batch.steps is None
        assert len(batch) == 2

    def test_reads_a_batch_at_a_time(self):
        """Nothing is read before it is asked for."""
        stream = CountingStream(make_stream(Site("x", (Leaf("", (1 << 18,), "float32"),)), [np.zeros((9, 1 << 18))]))
        batches = only(stream).iter_batches(bytes=2 << 20)
        assert stream.leaf_rows == 0
        next(batches)
        assert stream.leaf_rows == 2

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8"])
    def test_wrong_sizes(self, trace, wrong):
        """They are refused at the call."""
        with pytest.raises(ValueError, match="positive number of bytes"):
            trace["loss"].iter_batches(bytes=wrong)

    def test_several_kinds(self, trace):
        """The error comes at the call, not at the first batch."""
        with pytest.raises(SelectionError, match="different chains of transforms"):
            trace["layer"].iter_batches()


class TestDask:
    def test_values_and_chunks(self):
        """The array is that of to_numpy, in blocks of 8 MiB."""
        values = np.arange(20 << 18, dtype=np.float32).reshape(20, 1 << 18)
        stream = CountingStream(make_stream(Site("x", (Leaf("", (1 << 18,), "float32"),)), [values]))
        array = only(stream).to_dask()
        assert stream.leaf_rows == 0
        assert array.chunks == ((8, 8, 4), (1 << 18,))
        assert array.dtype == np.float32
        assert float(array[:, 0].sum()) == values[:, 0].sum()
        np.testing.assert_array_equal(values, array.compute())

    def test_slices_read_their_blocks(self):
        """Of a few records only the blocks that hold them are read."""
        stream = CountingStream(make_stream(Site("x", (Leaf("", (1 << 18,), "float32"),)), [np.zeros((20, 1 << 18))]))
        array = only(stream).to_dask()
        assert array[3:5].compute().shape == (2, 1 << 18)
        assert stream.leaf_rows <= 8
        assert array[17, 5].compute() == 0
        assert stream.leaf_rows <= 8 + 4

    def test_from_a_file_in_threads(self, tmp_path, source):
        """Threads read one file at once; steps of slices and negative ones are numpy's."""
        seal(source, tmp_path / "run.h5")
        with open_trace(tmp_path / "run.h5") as trace:
            array = trace["layer"].sel(transforms=COTANGENT).to_dask()
            expected = leaf(source, 1)
            np.testing.assert_array_equal(expected[::-2, 1], array[::-2, 1].compute(scheduler="threads"))
            np.testing.assert_allclose(array.mean().compute(), expected.mean(), rtol=1e-6)
            bits = trace["layer"].sel(transforms=()).leaf("['b']").to_dask().compute()
        np.testing.assert_array_equal(leaf(source, 0).view(np.uint16), bits.view(np.uint16))

    def test_order_and_no_records(self):
        """Several streams are in program order; a tap without records has an empty array."""
        streams, expected = shuffled()
        tap = only(*streams)
        np.testing.assert_array_equal(expected, tap.to_dask().compute())
        assert tap[:0].to_dask().compute().shape == (0, 4)

    def test_other_processes(self, trace):
        """The array cannot be pickled, and says what to do."""
        with pytest.raises(TraceError, match="use threads"):
            pickle.dumps(trace["loss"].to_dask())

    def test_missing(self, trace, monkeypatch):
        """The error is one line that names the extra."""
        monkeypatch.setitem(sys.modules, "dask.array", None)
        with pytest.raises(MissingExtra, match=r"pip install 'tracerec\[dask\]'"):
            trace["loss"].to_dask()


class TestPandas:
    def test_taps(self, trace):
        """A glob, a name, several; the rest of the table is as without."""
        assert set(trace.to_pandas("l*")["tap"]) == {"layer", "loss"}
        assert set(trace.to_pandas(["loss", "rag*"])["tap"]) == {"loss", "ragged"}
        whole = trace.to_pandas()
        expected = whole[whole["tap"] == "loss"].reset_index(drop=True)
        pd.testing.assert_frame_equal(expected, trace.to_pandas("loss"))
        with pytest.raises(SelectionError, match="did you mean 'loss'"):
            trace.to_pandas("los")

    def test_some_statistics(self, trace):
        """Those named, in the usual order, with the values that they have among all."""
        whole = trace.to_pandas()
        some = trace.to_pandas(stats=["l2", "nan"])
        assert list(some.columns[-3:]) == ["value", "nan", "l2"]
        pd.testing.assert_frame_equal(whole[["tap", "nan", "l2"]], some[["tap", "nan", "l2"]])
        with pytest.raises(SelectionError, match="no statistic 'men'; did you mean 'mean'"):
            trace["loss"].to_pandas(stats="men")

    @pytest.mark.parametrize("stats", [False, "count"])
    def test_no_tensor_is_read(self, stats):
        """Without statistics, and for the count of elements."""
        stream = CountingStream(make_stream(Site("x", (Leaf("", (3, 4), "float32"),)), [np.zeros((9, 3, 4))]))
        table = only(stream).to_pandas(stats=stats)
        assert stream.leaf_rows == 0
        assert "mean" not in table
        assert stats is False or table["count"].tolist() == [12] * 9

    def test_progress(self, capsys):
        """A bar on standard error, where it is asked for."""
        tap = only(make_stream(Site("x", (Leaf("", (4,), "float32"),)), [np.zeros((9, 4))]))
        tap.to_pandas(progress=True)
        assert "statistics" in capsys.readouterr().err
        tap.to_pandas()
        assert capsys.readouterr().err == ""


class TestProgress:
    def test_only_on_a_terminal_and_after_a_second(self, monkeypatch):
        """Nothing shows on a pipe, nor of what is quick."""

        class Terminal(io.StringIO):
            def isatty(self):
                return True

        now = [0.0]
        monkeypatch.setattr("tracerec.progress.time.monotonic", lambda: now[0])
        for stream, seconds, shown in ((Terminal(), 0.5, False), (Terminal(), 1.5, True), (io.StringIO(), 9.0, False)):
            monkeypatch.setattr(sys, "stderr", stream)
            now[0] = 0.0
            with Progress("work", 10) as progress:
                now[0] = seconds
                progress.advance(5)
                assert progress.done == 5
            assert ("work" in stream.getvalue()) is shown

    def test_closed_standard_error(self, monkeypatch):
        """Nothing to show anything on."""
        monkeypatch.setattr(sys, "stderr", None)
        with Progress("work", 10) as progress:
            progress.advance(5)


class TestMomentsByRow:
    @pytest.mark.parametrize("dtype", dtypes.NAMES)
    @pytest.mark.parametrize("shape", [(50,), (50, 7), (3, 2, 300), (2, 20_000), (3, 0), (0, 4)])
    def test_they_are_those_of_each_row(self, dtype, shape):
        """For random bits of every type: NaN, infinities, extremes, zeros."""
        rows = random_elements(dtype, shape)
        found = moments_by_row(rows)
        expected = [moments(rows[i, ...]) for i in range(len(rows))]
        for name in COUNTS:
            assert found[name].tolist() == [getattr(m, name) for m in expected]
        for name in MEASURES:
            wanted = np.array([getattr(m, name) for m in expected], np.float64)
            np.testing.assert_allclose(found[name], wanted, rtol=1e-15 if name == "l2" else 0)

    def test_extremes_beside_ordinary_rows(self):
        """Rows whose squares overflow or vanish, or that are zero, are among others."""
        rows = np.array([[1e300, -1e300], [1e-300, 2e-300], [0.0, -0.0], [1.0, 2.0], [np.nan, np.inf]])
        found = moments_by_row(rows)
        expected = [moments(row) for row in rows]
        np.testing.assert_array_equal(found["l2"], np.array([m.l2 for m in expected], np.float64))
        assert found["zeros"].tolist() == [0, 0, 2, 0, 0]
        assert np.isnan(found["mean"][4])


class TestSql:
    def test_answers(self, trace, source):
        """Aggregates, joins with itself, nullable types."""
        found = trace.sql("select tap, count(*) as n, max(value) as most from records group by tap order by tap")
        assert found["tap"].tolist() == ["layer", "loss", "ragged"]
        assert found["n"].tolist() == [18, 8, 5]
        assert found["most"].tolist() == [pd.NA, leaf(source, 3).max(), pd.NA]
        assert {name: str(dtype) for name, dtype in found.dtypes.items()} == {
            "tap": "str",
            "n": "Int64",
            "most": "Float32",
        }

    def test_a_missing_integer_stays_an_integer(self):
        """Steps beyond 2**53 beside a record without one."""
        big = (1 << 60) + 1
        site = Site("z", (Leaf("", (), "int8"),), (Column("step", "int64", python="int"),), '{"step":{"slot":0}}')
        other = make_stream(Site("y", (Leaf("", (), "int8"),)), [[1]], first=1)
        found = Trace(MemorySource([make_stream(site, [[1]], [[big]]), other])).sql("select step from records")
        assert found["step"].tolist() == [big, pd.NA]

    def test_times_keep_nanoseconds(self, trace):
        """As UTC without a zone."""
        found = trace.sql("select time from records order by time limit 1")
        assert found["time"][0].tz_localize("UTC") == trace.to_pandas(stats=False)["time"].min()

    @pytest.mark.parametrize(
        ("query", "read"),
        [
            ("select tap, count(*) from records group by tap", False),
            ("select max(step) - min(step) as mean_time from records", False),
            ("select 'mean' from records", False),
            ("select max(r.L2) from records r", True),
            ("from records", True),
            ("select * from records", True),
            ("select columns('m.*') from records", True),
            ("summarize records", True),
            ("with a as (select std from records) select 1 from a", True),
        ],
    )
    def test_statistics_where_they_are_mentioned(self, query, read):
        """Else no tensor is read."""
        site = Site("x", (Leaf("", (3,), "float32"),), (STEP,), '{"step":{"slot":0}}')
        stream = CountingStream(make_stream(site, [np.ones((4, 3))], [[1, 2, 3, 4]]))
        Trace(MemorySource([stream])).sql(query)
        assert (stream.leaf_rows > 0) is read

    def test_statistics(self, trace):
        """They are those of to_pandas."""
        found = trace.sql("select l2, nan from records where tap = 'layer'")
        table = trace.to_pandas("layer")
        assert found["l2"].tolist() == table["l2"].tolist()
        assert found["nan"].tolist() == table["nan"].tolist()

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("selec 1", "syntax error"),
            ("select nosuch from records", "nosuch.*columns tap, leaf"),
            ("select * from other", "other does not exist"),
            ("select * from read_csv('/etc/passwd')", "file system operations are disabled"),
            ("select * from '/etc/passwd'", "disabled|does not exist"),
            ("copy records to 'out.csv'", "file system operations are disabled"),
            ("attach 'out.db' as o", "disabled"),
            ("set enable_external_access=true", "locked|Cannot change"),
            ("install httpfs", "disabled"),
            ("", "gives no rows|no rows"),
        ],
    )
    def test_what_is_refused(self, trace, query, message, tmp_path, monkeypatch):
        """One line that says why; nothing outside of the trace is read or written."""
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SelectionError, match=message) as caught:
            trace.sql(query)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_objects_are_json(self):
        """Containers and arrays are JSON text, to be taken apart with DuckDB's functions."""
        columns = (Column("lr['body']", "float64", python="float"),)
        site = Site("x", (Leaf("", (), "int8"),), columns, '{"lr":{"dict":[["body",{"slot":0}]]}}')
        trace = Trace(MemorySource([make_stream(site, [[1]], [[0.5]])]))
        assert trace.sql("select (lr->>'body')::double as body from records")["body"].tolist() == [0.5]

    def test_missing(self, trace, monkeypatch):
        """The error is one line that names the extra."""
        monkeypatch.setitem(sys.modules, "duckdb", None)
        with pytest.raises(MissingExtra, match=r"pip install 'tracerec\[sql\]'"):
            trace.sql("select 1")


def test_processes_are_a_column(tmp_path):
    """In a trace of several files each record says of which process it is."""
    for number in range(2):
        made = MemorySource([make_stream(LOSS, [[0.5, 0.25]], [[0, 1], [0.1, 0.2]])])
        made.info = dataclasses.replace(made.info, run_id=f"{number}" * 32)
        seal(made, tmp_path / f"run.{number}.h5")
    with open_trace(str(tmp_path / "run.*.h5")) as trace:
        assert sorted(trace.to_pandas()["process"].tolist()) == [0, 0, 1, 1]
        assert sorted(trace["loss"].to_arrow()["process"].to_pylist()) == [0, 0, 1, 1]
        assert sorted(trace["loss"].to_xarray().process.to_numpy().tolist()) == [0, 0, 1, 1]
        assert trace.sql("select process, count(*) n from records group by process")["n"].tolist() == [2, 2]
