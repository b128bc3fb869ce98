"""Taps as xarray arrays."""

from __future__ import annotations

import json
import sys

import ml_dtypes
import numpy as np
import pytest

from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import BATCH, COTANGENT, RECORDS, leaf, training
from tests.trace.test_shards import sharded
from tracerec.errors import MissingExtra, SelectionError
from tracerec.model import Column, Leaf, Site, Transform
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


def test_values_and_coordinates(trace, source):
    """Values in program order; step, time, device and call along ``record``."""
    array = trace["layer"].sel(transforms=COTANGENT).to_xarray()
    assert array.dims == ("record", "dim_0", "dim_1")
    np.testing.assert_array_equal(leaf(source, 1), array.values)
    assert array.step.values.tolist() == [0, 10, 20, 30, 40, 50]
    assert array.time.dtype == "datetime64[ns]"
    assert array.time.values.astype(np.int64)[2] == STARTED + 2_000_000
    assert array.device.values.tolist() == [1] * RECORDS
    assert array.call.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert array.name == "layer"
    assert array.attrs == {"tap": "layer", "leaf": "['w']", "transforms": ["jvp", "transpose"]}


def test_selection_by_step(trace, source):
    """The steps have an index."""
    array = trace["layer"].sel(transforms=COTANGENT).to_xarray()
    np.testing.assert_array_equal(leaf(source, 1)[2], array.sel(step=20).values)
    assert array.sel(step=slice(10, 30)).sizes["record"] == 3


def test_kwargs(trace):
    """What changes is a coordinate, what does not an attribute; both are JSON values or arrays."""
    array = trace["loss"].to_xarray()
    assert array.phase.values.tolist()[:4] == ["train", "eval", "train", "eval"]
    assert array.lr.dtype == np.float64
    evaluation = trace["loss"].sel(phase="eval").to_xarray()
    assert "phase" not in evaluation.coords
    assert evaluation.attrs["phase"] == "eval"
    assert json.loads(json.dumps(evaluation.attrs)) == evaluation.attrs


def test_kwargs_that_some_records_lack():
    """They are no coordinate."""
    with_it = Site("x", (Leaf("", (), "int8"),), (Column("n", "int64", python="int"),), '{"n":{"slot":0}}')
    array = only(make_stream(with_it, [[1]], [[5]]), make_stream(Site("x", (Leaf("", (), "int8"),)), [[2]], first=1))
    assert set(array.to_xarray().coords) == {"time", "device", "call"}


def test_kwarg_with_the_name_of_a_dimension():
    """It gets a prefix."""
    site = Site("x", (Leaf("", (2,), "int8"),), (Column("dim_0", "int64", python="int"),), '{"dim_0":{"slot":0}}')
    array = only(make_stream(site, [[[1, 2]]], [[5]])).to_xarray()
    assert array.coords["kwargs.dim_0"].values.tolist() == [5]


def test_lanes_have_names():
    """Axes of vmap are named where the leaf has them, the outermost 0; ``axis_name`` wins."""
    inner = Transform("batch", size=2, dims=(1,), axis_name="pair")
    outer = Transform("batch", size=4, dims=(1,))
    site = Site("x", (Leaf("", (3, 4, 2), "int16"),), transforms=(inner, outer))
    array = only(make_stream(site, [np.arange(48).reshape(2, 3, 4, 2)])).to_xarray()
    assert array.dims == ("record", "dim_0", "batch_0", "pair")
    assert array.attrs["transforms"] == ["batch(2)", "batch(4)"]
    unbatched = Site("x", (Leaf("", (3,), "int16"),), transforms=(Transform("batch", size=4, dims=(None,)),))
    assert only(make_stream(unbatched, [np.zeros((1, 3))])).to_xarray().dims == ("record", "dim_0")
    assert only(
        make_stream(Site("x", (Leaf("", (4,), "int8"),), transforms=(BATCH,)), [np.zeros((1, 4))])
    ).to_xarray().dims == ("record", "batch_0")


def test_small_floats_stay(trace, source):
    """Elements of ml_dtypes are carried, bit for bit."""
    array = trace["layer"].sel(transforms=()).leaf("['b']").to_xarray()
    assert array.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(leaf(source, 0).view(np.uint16), array.values.view(np.uint16))
    assert array.astype("float32").sel(step=10).values.tolist() == leaf(source, 0)[1].astype(np.float32).tolist()


def on_mesh(shards, calls, **fields):
    """Returns the stream of records of single devices on a mesh of 2 x 2."""
    site = Site("m", (Leaf("", (3,), "float32"),), mesh=(("x", 2), ("y", 2)))
    values = np.arange(3 * len(shards), dtype=np.float32).reshape(-1, 3)
    return make_stream(site, [values], shard=shards, device=shards, call=calls, **fields)


def test_mesh_positions():
    """Of records of single devices each row has its place on the mesh."""
    array = only(on_mesh([0, 1, 2, 3], [1, 1, 1, 1])).to_xarray()
    assert array.dims == ("record", "dim_0")
    assert array.x.values.tolist() == [0, 0, 1, 1]
    assert array.y.values.tolist() == [0, 1, 0, 1]


def test_mesh_axes():
    """Put together, the mesh's axes are dimensions, whatever the order of arrival."""
    shards = [3, 0, 2, 1, 0, 1, 2, 3]
    stream = on_mesh(shards, [1] * 4 + [2] * 4)
    array = only(stream).to_xarray(assemble=True)
    assert array.dims == ("record", "x", "y", "dim_0")
    assert array.call.values.tolist() == [1, 2]
    for row, shard in enumerate(shards):
        x, y = divmod(shard, 2)
        np.testing.assert_array_equal(stream.arrays[0][row], array.values[row // 4, x, y])


def test_mesh_that_lacks_a_device():
    """A missing record is an error that says so."""
    with pytest.raises(SelectionError, match="firings with 3 to 4 records for a mesh of 4 devices"):
        only(on_mesh([0, 1, 2, 3, 0, 1, 2], [1] * 4 + [2] * 3)).to_xarray(assemble=True)


def test_shards_are_put_together():
    """The whole array, a firing a record."""
    wholes = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    pieces = [(slice(0, 2), slice(0, 4)), (slice(2, 4), slice(0, 4))]
    tap = only(*sharded(wholes, pieces, order=[1, 0]))
    array = tap.to_xarray(assemble=True)
    assert array.dims == ("record", "dim_0", "dim_1")
    np.testing.assert_array_equal(wholes, array.values)
    assert array.call.values.tolist() == [1, 2]


def test_several_kinds(trace):
    """The error is that of to_numpy."""
    with pytest.raises(SelectionError, match="different chains of transforms"):
        trace["layer"].to_xarray()


def test_missing_xarray(trace, monkeypatch):
    """The error is one line that names the extra."""
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tracerec\[xarray\]'"):
        trace["loss"].to_xarray()
