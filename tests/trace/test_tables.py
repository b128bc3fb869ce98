from __future__ import annotations

import os
import sys

import numpy as np
import pandas as pd
import pytest

from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import RECORDS, leaf, training
from tracerec.errors import MissingExtra
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.seal import seal
from tracerec.journal.layout import write_manifest
from tracerec.journal.writing import JournalWriter
from tracerec.model import Column, Leaf, Site
from tracerec.trace import Trace, open_trace


@pytest.fixture
def table():
    """The table of a run of six steps."""
    return Trace(training()).to_pandas()


def table_of(*streams):
    """Returns the table of these streams."""
    return Trace(MemorySource(list(streams))).to_pandas()


def scalar(name, dtype, values, **fields):
    """Returns a stream of scalars."""
    return make_stream(Site(name, leaves=(Leaf("", (), dtype),)), [values], **fields)


def test_one_row_a_record_and_leaf(table):
    """Rows are in program order, the leaves of a record in theirs."""
    assert len(table) == 2 * RECORDS + RECORDS + RECORDS + 2 + 5
    first = table[table["call"] == 1]
    expected = [
        ("layer", "['b']", ""),
        ("layer", "['w']", ""),
        ("layer", "['w']", "jvp, transpose"),
        ("loss", "", ""),
        ("loss", "", ""),
        ("ragged", "", ""),
        ("ragged", "", ""),
    ]
    assert list(first[["tap", "leaf", "transforms"]].itertuples(index=False, name=None)) == expected


def test_dtypes(table):
    """Nullable where a value can be missing; no integer is a float for want of one."""
    expected = {
        "tap": "str",
        "leaf": "str",
        "transforms": "str",
        "step": "Int64",
        "time": "datetime64[ns, UTC]",
        "device": "int64",
        "call": "int64",
        "lr": "Float64",
        "phase": "str",
        "value": "Float32",
        "count": "int64",
        "nan": "int64",
        "posinf": "int64",
        "neginf": "int64",
        "zeros": "int64",
        "min": "Float64",
        "max": "Float64",
        "mean": "Float64",
        "std": "Float64",
        "l2": "Float64",
    }
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == expected


def test_statistics_are_numpys(table):
    """Count, extremes, mean, standard deviation and norm in float64, NaN left out."""
    source = training()
    w = leaf(source, 0, 1).astype(np.float64).reshape(RECORDS, -1)
    rows = table[(table["leaf"] == "['w']") & (table["transforms"] == "")]
    np.testing.assert_array_equal(np.full(RECORDS, 6), rows["count"])
    np.testing.assert_allclose(rows["min"].to_numpy(float), w.min(axis=1), rtol=0)
    np.testing.assert_allclose(rows["max"].to_numpy(float), w.max(axis=1), rtol=0)
    np.testing.assert_allclose(rows["mean"].to_numpy(float), w.mean(axis=1), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(rows["std"].to_numpy(float), w.std(axis=1), rtol=1e-12)
    np.testing.assert_allclose(rows["l2"].to_numpy(float), np.linalg.norm(w, axis=1), rtol=1e-12)
    b = leaf(source, 0).astype(np.float64)
    rows = table[table["leaf"] == "['b']"]
    np.testing.assert_array_equal(np.isnan(b).sum(axis=1), rows["nan"])


def test_kwargs_are_columns(table):
    """Static and dynamic kwargs, missing where a tap has none."""
    loss = table[table["tap"] == "loss"].reset_index()
    assert loss["phase"].tolist()[:4] == ["train", "eval", "train", "eval"]
    assert loss["lr"][0] == 0.1
    assert loss["step"].tolist() == [0, 0, 10, 10, 20, 30, 40, 50]
    layer = table[table["tap"] == "layer"]
    assert layer["lr"].isna().all()
    assert layer["phase"].isna().all()
    assert table[table["tap"] == "ragged"]["step"].isna().all()


def test_scalars_have_their_value(table):
    """A leaf of shape () has it in ``value``; others have none."""
    source = training()
    loss = table[(table["tap"] == "loss") & (table["phase"] == "train")]
    np.testing.assert_array_equal(leaf(source, 2), loss["value"].to_numpy(np.float32))
    assert table[table["tap"] == "layer"]["value"].isna().all()


def test_time_device_and_call(table):
    """Time is UTC, to the nanosecond."""
    row = table[(table["transforms"] == "jvp, transpose") & (table["call"] == 3)].iloc[0]
    assert row["time"].value == STARTED + 2_000_000
    assert row["device"] == 1


def test_nan_is_a_value_and_not_a_gap():
    """A recorded NaN stays NaN; a measure without a finite value is missing."""
    table = table_of(scalar("x", "float32", [np.nan, 1.0]))
    values = table["value"].array
    assert np.isnan(values._data[0])
    assert not values._mask.any()
    assert table["mean"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("int32", [1, -2], "Int64"),
        ("uint64", [1, (1 << 64) - 1], "UInt64"),
        ("bool", [True, False], "boolean"),
        ("float64", [0.1, 2.0], "Float64"),
        ("bfloat16", [0.5, 2.0], "Float32"),
        ("float8_e4m3fn", [0.5, 2.0], "Float32"),
        ("int4", [-8, 7], "Int64"),
        ("complex64", [1 + 2j, 3j], "object"),
    ],
)
def test_value_dtypes(dtype, values, expected):
    """Each kind of scalar has the pandas type that holds it, beside a tap that has no scalar."""
    other = make_stream(Site("other", leaves=(Leaf("", (2,), "float32"),)), [np.zeros((1, 2))], first=9)
    table = table_of(scalar("x", dtype, values), other)
    assert str(table["value"].dtype) == expected
    assert table["value"].tolist()[:2] == values
    assert pd.isna(table["value"][2])


def test_integers_and_floats_in_one_column():
    """They are floats together if all integers are exact as such, objects otherwise."""
    floats = scalar("f", "float32", [0.5], first=0)
    assert table_of(floats, scalar("i", "int64", [3], first=1))["value"].tolist() == [0.5, 3.0]
    table = table_of(floats, scalar("i", "int64", [(1 << 53) + 1], first=1))
    assert table["value"].tolist() == [0.5, (1 << 53) + 1]


def test_large_integers_stay_exact():
    """A missing step elsewhere does not turn a 60-bit step into a float."""
    step = (1 << 60) + 1
    column = Column("step", "int64", python="int")
    site = Site("z", leaves=(Leaf("", (), "int8"),), columns=(column,), kwargs='{"step":{"slot":0}}')
    table = table_of(make_stream(site, [[1]], numbers=[[step]]), scalar("y", "int8", [1], first=1))
    assert table["step"].tolist() == [step, pd.NA]


def test_kwarg_with_the_name_of_a_column():
    """It has a name of its own."""
    site = Site("x", leaves=(Leaf("", (), "int8"),), kwargs='{"device":"left","mean":null}')
    table = table_of(make_stream(site, [[1]]))
    assert table["kwargs.device"].tolist() == ["left"]
    assert table["device"].tolist() == [0]
    assert table["kwargs.mean"].isna().all()


def test_kwargs_that_are_no_scalars():
    """Batched numbers and containers are objects, as the user passed them."""
    columns = (Column("lr['body']", "float64", python="float"), Column("lanes", "int32", (2,)))
    site = Site(
        "x",
        leaves=(Leaf("", (), "int8"),),
        columns=columns,
        kwargs='{"lanes":{"slot":1},"lr":{"dict":[["body",{"slot":0}]]},"where":{"tuple":["a",null]}}',
    )
    table = table_of(make_stream(site, [[1, 2]], numbers=[[0.5, 0.25], [[1, 2], [3, 4]]]))
    assert table["lr"].tolist() == [{"body": 0.5}, {"body": 0.25}]
    assert table["lanes"][1].tolist() == [3, 4]
    assert table["where"].tolist() == [("a", None), ("a", None)]


def test_keys_have_no_statistics():
    """The bits of a PRNG key have no mean."""
    site = Site("key", leaves=(Leaf("", (2,), "uint32", key_impl="threefry2x32"),))
    table = table_of(make_stream(site, [[[1, 2]]]))
    assert table["count"].tolist() == [2]
    assert table["mean"].isna().all()
    assert table["value"].isna().all()


def test_table_of_a_selection():
    """A tap's table has the rows selected, and the columns that it has."""
    table = Trace(training())["layer"].sel(step=slice(20, 40)).leaf("['w']").to_pandas()
    assert table["step"].tolist() == [20, 20, 30, 30]
    assert "phase" not in table


def test_empty_trace():
    """A trace without records gives a table without rows, with the fixed columns."""
    table = table_of()
    assert len(table) == 0
    assert str(table["step"].dtype) == "Int64"


def test_missing_pandas(monkeypatch):
    """The error is one line that names the extra."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tracerec\[pandas\]'") as caught:
        Trace(training()).to_pandas()
    assert caught.value.extra == "pandas"


@pytest.mark.parametrize("form", ["h5", "arrow", "live"])
def test_lone_surrogates(tmp_path, form):
    """Tables hold UTF-8: they are escaped in names, key paths and kwargs, and found by the names that they had."""
    kwargs = r'{"phase":"\ud801","k\ud802":"v"}'
    site = Site("\ud800lone", (Leaf("['\udfff']", (), "float32"),), kwargs=kwargs)
    other = Site("other", (Leaf("", (), "float32"),))
    streams = [make_stream(site, [[0.5, 0.25]]), make_stream(other, [[1.0]], first=2)]
    path = tmp_path / f"run.{form}"
    if form == "live":
        path = tmp_path / "run.h5"
        folder = tmp_path / "run.h5.live"
        folder.mkdir()
        write_manifest(folder, RunInfo(run_id="1" * 32, started=5, pid=os.getpid()))
        writer = JournalWriter(folder)
        for stream in streams:
            rows = stream.rows.view(np.uint8).reshape(stream.records, 64)
            writer.append(stream.site, [rows, stream.arrays[0]])
        writer.flush()
        writer.close()
    else:
        (seal_arrow if form == "arrow" else seal)(MemorySource(streams), path)
    with open_trace(path) as trace:
        table = trace.to_pandas("\ud800lone")
        assert table["tap"].tolist() == [r"\ud800lone"] * 2
        assert table["leaf"].tolist() == [r"['\udfff']"] * 2
        assert table["phase"].tolist() == [r"\ud801"] * 2
        assert table[r"k\ud802"].tolist() == ["v"] * 2
        assert table["value"].tolist() == [0.5, 0.25]
        assert len(trace.to_pandas()) == 3
        assert len(trace.to_pandas("*lone")) == 2
        pd.testing.assert_frame_equal(trace["\ud800lone"].to_pandas(), table)
        for name in ("\ud800lone", r"\ud800lone"):
            found = trace.sql(f"select sum(value) as total, max(\"k\ud802\") as k from records where tap = '{name}'")  # noqa: S608
            assert found.to_dict("records") == [{"total": 0.75, "k": "v"}]


def test_kwargs_whose_escaped_names_are_one():
    """Each has its column."""
    site = Site("x", (Leaf("", (), "int8"),), kwargs=r'{"\ud800":"a","\\ud800":"b"}')
    table = table_of(make_stream(site, [[1]]))
    assert table[r"\ud800"].tolist() == ["a"]
    assert table[r"kwargs.\ud800"].tolist() == ["b"]
