"""Readers drop what does not count: records, lanes, padding. `raw` has it all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import CountingStream
from tracerec.errors import SelectionError, TraceError
from tracerec.formats.hdf5.seal import seal
from tracerec.model import FLAG_CALL_GUESSED, Column, Leaf, Site, Transform
from tracerec.trace import Trace, open_trace, trim_record

STEP = Column("step", "int64", python="int")
WHERE = Column("where", "bool", (), role="where")
KWARGS = '{"step":{"slot":0}}'


def only(*streams):
    """Returns the tap of a trace with these streams of one tap."""
    return Trace(MemorySource(list(streams)))[streams[0].site.name]


def scalar_stream():
    """Six records of one element, of which those of even steps count; the others are NaN."""
    site = Site("x", (Leaf("", (), "float32"),), (STEP, WHERE), KWARGS)
    values = [0.0, np.nan, 2.0, np.nan, 4.0, np.nan]
    return make_stream(site, [values], [range(6), [True, False] * 3])


def lanes_stream(**fields):
    """Three records of four lanes on the last axis; of lanes 1, 3 and none, one has rows of padding.

    Of record r, row i and lane l the value is 100 r + 10 i + l.
    """
    batch = Transform("batch", size=4, dims=(1,), kwarg_dims=(None, 0, 0, 0))
    site = Site(
        "x",
        (Leaf("", (3, 4), "float32"),),
        (
            STEP,
            Column("lr", "float32", (4,)),
            Column("where", "bool", (4,), role="where"),
            Column("", "int32", (4, 1), role="extent"),
        ),
        '{"lr":{"slot":1},"step":{"slot":0}}',
        transforms=(batch,),
    )
    values = np.arange(3)[:, None, None] * 100 + np.arange(3)[:, None] * 10 + np.arange(4)
    where = [[False, True, False, False], [True, False, True, True], [False] * 4]
    extents = [[[3], [2], [3], [3]], [[1], [3], [0], [3]], [[3]] * 4]
    rates = [[0.0, 1.0, 2.0, 3.0]] * 3
    return make_stream(site, [values], [range(3), rates, where, extents], **fields)


def unmasked_stream(**fields):
    """Two records of a vmapped branch of which nothing says which lanes took it."""
    batch = Transform("batch", size=2, dims=(0,), kwarg_dims=(), lanes_may_be_invalid=True)
    site = Site("free", (Leaf("", (2,), "float32"),), transforms=(batch,))
    return make_stream(site, [[[1.0, 2.0], [3.0, np.nan]]], **fields)


class UnreadColumns(CountingStream):
    """A stream whose columns must not be read."""

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        raise AssertionError(number, start, stop)


class TestScalarMask:
    def test_records_that_do_not_count_are_not_there(self):
        """Length, arrays, records, numbers, steps, selections."""
        tap = only(scalar_stream())
        assert (len(tap), tap.shape) == (3, (3,))
        assert tap.to_numpy().tolist() == [0, 2, 4]
        assert [float(r.value) for r in tap] == [0, 2, 4]
        assert float(tap[1].value) == 2
        assert tap.steps.tolist() == [0, 2, 4]
        assert tap.sel(step=slice(1, 4)).to_numpy().tolist() == [2]
        assert tap.leaf("").streams[0].to_numpy().tolist() == [0, 2, 4]
        with pytest.raises(
            SelectionError,
            match=r"step=3 of tap 'x' is recorded, but no record of it counts and is selected here: its steps are 0",
        ):
            tap.sel(step=3)

    def test_a_trace_counts_what_counts(self):
        """Its length, its records and its table; `raw` has all."""
        trace = Trace(MemorySource([scalar_stream()]))
        assert (len(trace), len(list(trace.records())), len(trace.to_pandas())) == (3, 3, 3)
        assert (len(trace.raw), len(list(trace.raw.records())), len(trace.raw.to_pandas())) == (6, 6, 6)
        assert [r.arrival for r in trace.records(order="arrival")] == [0, 2, 4]

    def test_raw_tap(self):
        """It has all records, and so have the same selections of it."""
        tap = only(scalar_stream())
        assert len(tap.raw) == len(tap.raw.raw) == len(tap.leaf("").raw) == len(tap.streams[0].raw) == 6
        assert np.isnan(tap.sel(step=slice(1, 4)).raw.to_numpy()).tolist() == [True, False, True]
        assert len(tap.sel(step=iter([0, 2])).raw) == 2
        assert [bool(r.where) for r in tap.raw] == [True, False] * 3

    def test_kwargs_and_tables_have_no_mask(self):
        """A mask is no kwarg of the user's."""
        tap = only(scalar_stream())
        assert tap[0].kwargs == {"step": 0}
        assert "where" not in tap.to_pandas()
        assert "valid_lanes" not in tap.to_pandas()
        assert tap.raw.to_pandas()["valid_lanes"].tolist() == ["1/1", "0/1"] * 3
        with pytest.raises(SelectionError, match="no kwarg 'where'; it has step"):
            tap.sel(where=True)

    def test_masks_are_read_late(self):
        """Opening and naming taps reads no column."""
        trace = Trace(MemorySource([UnreadColumns(scalar_stream())]))
        assert list(trace.taps) == ["x"]
        assert trace["x"].dtype == np.float32

    def test_nothing_counts(self):
        """A branch that was never taken."""
        site = Site("x", (Leaf("", (2,), "int8"),), (WHERE,))
        tap = only(make_stream(site, [[[1, 2]]], [[False]]))
        assert (len(tap), tap.to_numpy().shape, list(tap), tap.to_numpy(trim=True)) == (0, (0, 2), [], [])

    def test_streams_are_joined_in_program_order(self):
        """Two branches of one shape, each with its mask."""
        site = Site("x", (Leaf("", (), "int8"),), (WHERE,))
        other = Site("x", (Leaf("", (), "int8"),), (WHERE,), '{"branch":"b"}')
        one = make_stream(site, [[1, 2, 3]], [[True, False, True]], arrival=[0, 2, 4], call=[1, 2, 3], position=1)
        two = make_stream(other, [[10, 20, 30]], [[False, True, True]], arrival=[1, 3, 5], call=[1, 2, 3], position=2)
        tap = only(one, two)
        assert tap.to_numpy().tolist() == [1, 20, 3, 30]
        assert [int(tap[i].value) for i in range(-4, 0)] == [1, 20, 3, 30]
        assert tap.sel(branch="b").raw.to_numpy().tolist() == [10, 20, 30]


class TestLanes:
    def test_a_batch_keeps_its_shape(self):
        """Lanes that do not count are in the array; a record without any is not there."""
        tap = only(lanes_stream())
        assert tap.to_numpy().shape == (2, 3, 4)
        assert tap.raw.to_numpy().shape == (3, 3, 4)

    def test_trimmed(self):
        """A list a record, of the lanes that count, without padding."""
        first, second = only(lanes_stream()).to_numpy(trim=True)
        assert [lane.tolist() for lane in first] == [[1, 11]]
        assert [lane.tolist() for lane in second] == [[100], [], [103, 113, 123]]
        assert all(lane.dtype == np.float32 for lane in first + second)

    def test_raw_is_not_trimmed(self):
        """With all that was recorded, lanes are told apart and no more."""
        lanes = only(lanes_stream()).raw.to_numpy(trim=True)
        assert np.stack(lanes[2]).T.tolist() == (200 + np.arange(3)[:, None] * 10 + np.arange(4)).tolist()

    def test_trimmed_record(self):
        """A record's own helper gives the same."""
        tap = only(lanes_stream())
        assert [lane.tolist() for lane in trim_record(tap[1])] == [[100], [], [103, 113, 123]]
        assert trim_record(tap.raw[2]) == []
        assert trim_record(only(scalar_stream()).raw[1]) is None

    def test_without_lanes(self):
        """Padded arrays of several shapes: one trimmed array a record, in program order."""
        column = Column("", "int32", (1,), role="extent")
        one = make_stream(
            Site("x", (Leaf("", (4,), "int8"),), (column,)), [[[1, 2, 3, 4]] * 2], [[[4], [0]]], position=1
        )
        two = make_stream(
            Site("x", (Leaf("", (2,), "int8"),), (column,)), [[[5, 6]] * 2], [[[1], [2]]], position=2, arrival=[0, 1]
        )
        arrays = only(one, two).to_numpy(trim=True)
        assert sorted(a.tolist() for a in arrays) == [[], [1, 2, 3, 4], [5], [5, 6]]
        with pytest.raises(SelectionError, match="different shapes"):
            only(one, two).to_numpy()

    def test_lanes_of_a_leaf(self):
        """Choosing a leaf keeps its own axes: the second has its lanes on axis 0."""
        batch = Transform("batch", size=2, dims=(None, 0), kwarg_dims=())
        site = Site(
            "x",
            (Leaf("['a']", (3,), "int8"), Leaf("['b']", (2, 3), "int8", 1)),
            transforms=(batch,),
            structure='{"dict":[["a",{"slot":0}],["b",{"slot":1}]]}',
        )
        tap = only(make_stream(site, [np.zeros((1, 3)), [[[1, 2, 3], [4, 5, 6]]]]))
        (lanes,) = tap.leaf("['b']").to_numpy(trim=True)
        assert [lane.tolist() for lane in lanes] == [[1, 2, 3], [4, 5, 6]]
        assert tap.leaf("['b']").transforms[0][0].dims == (0,)
        (lanes,) = tap.leaf("['a']").to_numpy(trim=True)
        assert [lane.tolist() for lane in lanes] == [[0, 0, 0]]

    def test_batched_kwarg_matches_where_a_lane_counts(self):
        """Rate 1 is that of lane 1, which counts in the first record only."""
        tap = only(lanes_stream())
        assert tap.sel(lr=1.0).steps.tolist() == [0]
        assert tap.sel(lr=2.0).steps.tolist() == [1]
        assert tap.raw.sel(lr=1.0).steps.tolist() == [0, 1, 2]


class TestTables:
    def test_statistics_leave_out_what_does_not_count(self):
        """Against the trimmed lanes, worked out by hand; `raw` counts all twelve elements."""
        table = only(lanes_stream()).to_pandas()
        assert table["valid_lanes"].tolist() == ["1/4", "3/4"]
        assert table["count"].tolist() == [2, 4]
        assert table["mean"].tolist() == pytest.approx([6.0, (100 + 103 + 113 + 123) / 4])
        assert (table["min"].tolist(), table["max"].tolist()) == ([1.0, 100.0], [11.0, 123.0])
        assert only(lanes_stream()).raw.to_pandas()["count"].tolist() == [12, 12, 12]

    def test_lanes_of_which_nothing_is_known(self):
        """Their statistics are missing unless asked for, and a column says which they are."""
        trace = Trace(MemorySource([scalar_stream(), unmasked_stream(first=10)]))
        table = trace.to_pandas()
        assert table["lanes_may_be_invalid"].tolist() == [False] * 3 + [True] * 2
        assert table["count"].tolist() == [1, 1, 1, pd.NA, pd.NA]
        assert str(table["count"].dtype) == "Int64"
        assert table[["min", "max", "mean", "std", "l2", "nan"]].isna().all(axis=1).tolist() == [False] * 3 + [True] * 2
        raw = trace.raw.to_pandas()
        assert raw["mean"].tolist()[-2:] == [1.5, 3.0]
        assert raw["nan"].tolist()[-2:] == [0, 1]
        assert raw["lanes_may_be_invalid"].tolist()[-2:] == [True, True]
        assert str(raw["count"].dtype) == "int64"

    def test_values_without_statistics_are_not_read(self):
        """What is not shown costs nothing."""
        stream = CountingStream(unmasked_stream())
        only(stream).to_pandas()
        assert stream.leaf_rows == 0

    def test_columns_that_say_nothing_are_left_out(self):
        """A plain trace has none of them; a guessed call is marked."""
        plain = make_stream(Site("x", (Leaf("", (), "int8"),)), [[1, 2]])
        assert not {"valid_lanes", "lanes_may_be_invalid", "call_sure"} & set(only(plain).to_pandas())
        guessed = make_stream(plain.site, [[1, 2]], flags=[0, FLAG_CALL_GUESSED])
        assert only(guessed).to_pandas()["call_sure"].tolist() == [True, False]

    def test_keys_that_count(self):
        """Elements of key data are counted lane by lane."""
        site = Site(
            "k",
            (Leaf("", (3, 2), "uint32", key_impl="threefry2x32"),),
            (Column("where", "bool", (3,), role="where"),),
            transforms=(Transform("batch", size=3, dims=(0,), kwarg_dims=(0,)),),
        )
        table = only(make_stream(site, [np.ones((2, 3, 2))], [[[True] * 3, [False, False, True]]])).to_pandas()
        assert table["count"].tolist() == [6, 2]
        assert table["mean"].isna().all()

    def test_shape_and_offset_columns_are_no_kwargs(self):
        """Nothing of a leaf's extent or offset is in a table or in a record's kwargs."""
        columns = (Column("", "int32", (1,), role="extent"), Column("", "int64", (1,), role="offset"))
        site = Site("x", (Leaf("", (2,), "float32", global_shape=(4,)),), columns)
        tap = only(make_stream(site, [[[1, 2], [3, 4]]], [[[3], [3]], [[0], [2]]]))
        table = tap.to_pandas()
        assert "" not in table.columns
        assert tap[0].kwargs == {}
        # Of the whole's four elements three count: two in the first shard, one in the second.
        assert table["count"].tolist() == [2, 1]
        assert table["mean"].tolist() == [1.5, 3.0]
        assert [a.tolist() for a in tap.to_numpy(trim=True)] == [[1, 2], [3]]


def test_reprs(tmp_path):
    """They count what counts, and do not raise when the file is closed; lanes of which nothing is known are said."""
    seal(MemorySource([scalar_stream(), unmasked_stream(first=10)]), tmp_path / "run.h5")
    with open_trace(tmp_path / "run.h5") as trace:
        assert repr(trace).splitlines()[1:] == ["  'x': 3 records", "  'free': 2 records"]
        assert repr(trace["x"]).splitlines()[1] == "  primal: 3 x array float32[]"
        assert repr(trace["free"]).splitlines()[1] == "  batch(2): 2 x array float32[2], lanes may be invalid"
    with open_trace(tmp_path / "run.h5") as trace:
        pass
    assert "8 records" in repr(trace)
    assert "6 records" in repr(trace["x"])


def test_raw_trace_is_closed_with_the_trace():
    """They share the file, whichever is closed."""
    source = MemorySource([scalar_stream()])
    trace = Trace(source)
    raw = trace.raw
    assert raw.raw is raw
    raw.close()
    assert source.closed
    for closed in (trace, raw):
        with pytest.raises(TraceError, match="is closed"):
            closed.records()
