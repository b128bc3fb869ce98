"""Taps as Arrow tables and streams: read by pyarrow, polars and DuckDB."""

from __future__ import annotations

import dataclasses

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.formats.test_contract import random_elements
from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import COTANGENT, LOSS, RECORDS, CountingStream, leaf, training
from tracerec.errors import SelectionError
from tracerec.model import Column, Leaf, Site
from tracerec.protocol import dtypes
from tracerec.trace import Trace


def only(*streams):
    """Returns the tap of a trace with these streams."""
    return Trace(MemorySource(list(streams)))[streams[0].site.name]


@pytest.fixture
def source():
    """A run of six steps."""
    return training()


@pytest.fixture
def trace(source):
    """The run, opened."""
    return Trace(source)


class TestTable:
    def test_columns(self, trace, source):
        """Head and leaves, in program order, in the types that they have."""
        table = trace["layer"].sel(transforms=()).to_arrow()
        assert [(f.name, str(f.type)) for f in table.schema][:4] == [
            ("step", "int64"),
            ("time", "timestamp[ns, tz=UTC]"),
            ("device", "int32"),
            ("call", "uint64"),
        ]
        assert table.column_names[4:] == ["value['b']", "value['w']"]
        w = table["value['w']"].combine_chunks()
        np.testing.assert_array_equal(leaf(source, 0, 1), w.to_numpy_ndarray())
        b = table["value['b']"].combine_chunks().to_numpy_ndarray()
        np.testing.assert_array_equal(leaf(source, 0, 0).astype(np.float32), b)
        assert table.schema.field("value['b']").metadata == {b"dtype": b"bfloat16", b"leaf": b"['b']"}
        assert table["step"].to_pylist() == [0, 10, 20, 30, 40, 50]
        assert table["call"].to_pylist() == [1, 2, 3, 4, 5, 6]
        assert table["time"].cast(pa.int64()).to_pylist()[1] == STARTED + 1_000_000

    def test_kwargs(self, trace, source):
        """Static and dynamic ones, a row each, streams alternating in program order."""
        table = trace["loss"].to_arrow()
        assert table["phase"].to_pylist()[:5] == ["train", "eval", "train", "eval", "train"]
        assert table["lr"].to_pylist()[:3] == [0.1, 0.1, 0.12000000000000001]
        train, evaluation = leaf(source, 2), leaf(source, 3)
        expected = np.array([train[0], evaluation[0], train[1], evaluation[1], *train[2:]])
        np.testing.assert_array_equal(expected, table["value"].to_numpy())
        assert table["value"].type == pa.float32()

    def test_records_without_a_step(self, trace):
        """They have a null."""
        assert trace["ragged"].streams[0].to_arrow()["step"].to_pylist() == [None, None]

    def test_missing_kwargs_are_null(self):
        """Of two calls of a tap one has a kwarg; integers stay integers."""
        with_it = Site("x", (Leaf("", (), "int8"),), (Column("n", "int64", python="int"),), '{"n":{"slot":0}}')
        without = Site("x", (Leaf("", (), "int8"),))
        big = (1 << 60) + 1
        table = only(make_stream(with_it, [[1]], [[big]]), make_stream(without, [[2]], first=1)).to_arrow()
        assert table["n"].to_pylist() == [big, None]

    def test_kwargs_of_other_kinds(self):
        """Integers and floats together are floats, all else is JSON text; a name that is taken gets a prefix."""
        column = Column("a", "float32", python=None)
        first = Site(
            "x", (Leaf("", (), "int8"),), (column,), '{"a":{"slot":0},"device":"left","t":{"tuple":["a",null]}}'
        )
        second = Site("x", (Leaf("", (), "int8"),), (Column("a", "int16"),), '{"a":{"slot":0},"t":"plain"}')
        table = only(make_stream(first, [[1]], [[0.5]]), make_stream(second, [[2]], [[3]], first=1)).to_arrow()
        assert table["a"].to_pylist() == [0.5, 3.0]
        assert table["kwargs.device"].to_pylist() == ["left", None]
        assert table["t"].to_pylist() == ['["a", null]', "plain"]

    def test_batched_number(self):
        """A number that vmap batched is a list in JSON."""
        site = Site("x", (Leaf("", (2,), "int8"),), (Column("n", "int32", (2,)),), '{"n":{"slot":0}}')
        table = only(make_stream(site, [[[1, 2]]], [[[3, 4]]])).to_arrow()
        assert table["n"].to_pylist() == ["[3, 4]"]

    @pytest.mark.parametrize("dtype", dtypes.NAMES)
    @pytest.mark.parametrize("shape", [(), (2, 3)])
    def test_every_dtype_exactly(self, dtype, shape):
        """Values come back the same number, for number."""
        values = random_elements(dtype, (4, *shape))
        table = only(make_stream(Site("x", (Leaf("", shape, dtype),)), [values])).to_arrow()
        column = table["value"].combine_chunks()
        stored = (
            column.to_numpy_ndarray()
            if isinstance(column, pa.ExtensionArray)
            else column.to_numpy(zero_copy_only=False)
        )
        if values.dtype.kind == "c":
            stored = np.ascontiguousarray(stored).view(values.dtype)[..., 0]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(values, stored.astype(values.dtype))
        assert table.schema.field("value").metadata[b"dtype"] == dtype.encode()

    def test_leaf_without_elements(self):
        """It has no column; polars would crash on one."""
        table = only(make_stream(Site("x", (Leaf("", (0, 3), "float32"),)), [np.zeros((2, 0, 3))])).to_arrow()
        assert table.column_names == ["step", "time", "device", "call"]
        assert len(table) == 2

    def test_several_kinds(self, trace):
        """The error is that of to_numpy, and for different leaves names the streams."""
        with pytest.raises(SelectionError, match="different chains of transforms"):
            trace["layer"].to_arrow()
        with pytest.raises(SelectionError, match=r"different leaves, shapes or dtypes.*\n.*streams\[0\]"):
            trace["ragged"].to_arrow()

    def test_empty_selection_keeps_the_types(self, trace):
        """No record, the same schema."""
        tap = trace["loss"]
        assert tap[:0].to_arrow().schema.names[:4] == ["step", "time", "device", "call"]


class TestStream:
    def test_batches_are_bounded(self):
        """A block is read when it is asked for, and not more than 8 MiB at once."""
        site = Site("x", (Leaf("", (1 << 18,), "float32"),))
        stream = CountingStream(make_stream(site, [np.zeros((40, 1 << 18), np.float32)]))
        reader = pa.RecordBatchReader.from_stream(only(stream))
        assert stream.leaf_rows == 0
        batch = reader.read_next_batch()
        assert (len(batch), stream.leaf_rows) == (8, 8)
        assert len(batch) + sum(len(b) for b in reader) == 40

    def test_pyarrow_polars_duckdb(self, trace, source):
        """Each takes the tap itself."""
        tap = trace["layer"].sel(transforms=COTANGENT)
        w = leaf(source, 1)
        assert pa.table(tap).equals(tap.to_arrow())
        frame = pl.DataFrame(tap)
        assert frame["step"].to_list() == [0, 10, 20, 30, 40, 50]
        scalars = pl.DataFrame(trace["loss"])
        assert scalars.filter(pl.col("phase") == "eval")["value"].to_list() == leaf(source, 3).tolist()
        with duckdb.connect() as connection:
            relation = connection.from_arrow(tap)
            rows = relation.project("step, list_sum(\"value['w']\"::float[]) as total").fetchall()
        np.testing.assert_allclose([total for _, total in rows], w.reshape(RECORDS, -1).sum(axis=1), rtol=1e-5)

    def test_requested_schema(self, trace):
        """A consumer that asks for wider numbers gets them."""
        stream = trace["loss"].sel(phase="eval")
        wanted = pa.schema([(f.name, pa.float64() if f.name == "value" else f.type) for f in stream.to_arrow().schema])
        table = pa.RecordBatchReader.from_stream(stream, schema=wanted).read_all()
        assert table["value"].type == pa.float64()

    def test_lone_surrogates(self):
        """Text that is no UTF-8 is escaped, not refused."""
        site = dataclasses.replace(LOSS, name="l\ud800", kwargs='{"phase":"\\ud800"}', columns=())
        table = only(make_stream(site, [[1.0]])).to_arrow()
        assert table["phase"].to_pylist() == ["\\ud800"]
        assert table.schema.metadata[b"tap"] == b"l\\ud800"
