"""Exports, read back by the programs that they are for."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import duckdb
import h5py
import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

import tracerec
from tests.cli.conftest import HOSTILE, with_faults, with_masks
from tests.formats.test_contract import random_elements
from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.streams import LOSS, RECORDS, STEP, journal, leaf, training
from tests.trace.test_processes import process
from tracerec.cli.export import Form
from tracerec.errors import ExportError, MissingExtra, SelectionError, TraceNotFound
from tracerec.exporting import TARGETS, default_path
from tracerec.exporting.job import escaped
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.protocol import dtypes
from tracerec.trace import Trace

EVENTS: Any = importlib.import_module("tensorboardX.proto.event_pb2")


@pytest.fixture
def source():
    """A run of six steps."""
    return training()


@pytest.fixture
def trace(source):
    """The run, opened."""
    return Trace(source)


def of(*streams):
    """Returns a trace with these streams."""
    return Trace(MemorySource(list(streams)))


def widened(array):
    """Returns values as an export has them."""
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


class TestParquet:
    @pytest.fixture
    def folder(self, trace, tmp_path):
        """The run as Parquet."""
        trace_named = tracerec.export(trace, tmp_path / "out.parquet", "parquet")
        assert trace_named.left_out == ()
        return tmp_path / "out.parquet"

    def test_duckdb(self, folder, source):
        """One table, the tap a column of it."""
        with duckdb.connect() as connection:
            files = connection.read_parquet(f"{folder}/**/*.parquet", hive_partitioning=True)
            rows = files.aggregate("tap, count(*), sum(list_sum(value))", "tap").order("tap").fetchall()
        assert [(tap, count) for tap, count, _ in rows] == [("layer", 3 * RECORDS), ("loss", 8), ("ragged", 5)]
        total = sum(float(leaf(source, 0, n).astype(np.float64).sum()) for n in range(2)) + float(leaf(source, 1).sum())
        np.testing.assert_allclose(rows[0][2], total, rtol=1e-6)

    def test_polars(self, folder, source):
        """Lazily, by partition."""
        frame = pl.scan_parquet(folder / "**/*.parquet", hive_partitioning=True).filter(pl.col("tap") == "layer")
        rows = frame.filter((pl.col("leaf") == "['w']") & (pl.col("transforms") == "")).sort("arrival").collect()
        assert rows["step"].to_list() == [0, 10, 20, 30, 40, 50]
        assert rows["shape"].to_list() == [[2, 3]] * RECORDS
        values = np.array(rows["value"].to_list()).reshape(RECORDS, 2, 3)
        np.testing.assert_array_equal(leaf(source, 0, 1), values)

    # dask itself uses it.
    @pytest.mark.filterwarnings("ignore:The inplace keyword:pandas.errors.Pandas4Warning")
    def test_dask(self, folder, source):
        """As a data frame."""
        frame = dd.read_parquet(folder)
        loss = frame[frame["tap"].astype(str) == "loss"].compute(scheduler="sync").sort_values("arrival")
        train = loss[loss["phase"] == "train"]
        np.testing.assert_array_equal([v[0] for v in train["value"]], leaf(source, 2))

    def test_pandas(self, folder):
        """All columns, in their types."""
        table = pd.read_parquet(folder, dtype_backend="numpy_nullable")
        assert set(table.columns) == {
            *("leaf", "transforms", "dtype", "shape", "value", "arrival", "step", "time", "device", "call"),
            *("lr", "phase", "tap"),
        }
        assert str(table["step"].dtype) == "Int64"
        assert table["time"].min().value == STARTED
        assert table["value"].map(len).tolist() == [int(np.prod(shape)) for shape in table["shape"]]

    @pytest.mark.parametrize(
        ("kinds", "expected"),
        [
            (["float32", "bfloat16"], "float"),
            (["float32", "int8", "bool"], "float"),
            (["float32", "int32"], "double"),
            (["float64", "float32"], "double"),
            (["int8", "uint32"], "int64"),
            (["uint64", "uint8"], "uint64"),
            (["uint64", "int8"], "double"),
            (["complex64"], "float"),
        ],
    )
    def test_one_type_holds_all(self, kinds, expected, tmp_path):
        """The narrowest of a few, the same in all files."""
        streams = [
            make_stream(Site(f"t{n}", (Leaf("", (2,), kind),)), [np.ones((1, 2))], first=n)
            for n, kind in enumerate(kinds)
        ]
        tracerec.export(of(*streams), tmp_path / "p")
        found = {str(pq.read_schema(p).field("value").type) for p in (tmp_path / "p").rglob("*.parquet")}
        assert found == {f"list<element: {expected}>"}

    def test_integers_that_are_rounded_are_counted(self, tmp_path):
        """A form that cannot hold something says how much."""
        big = make_stream(Site("big", (Leaf("", (2,), "int64"),)), [[[1 << 60, 5], [-(1 << 60), 1 << 53]]])
        other = make_stream(Site("f", (Leaf("", (), "float32"),)), [[0.5]], first=9)
        done = tracerec.export(of(big, other), tmp_path / "p")
        (note,) = done.left_out
        assert note.startswith("2 integers beyond 2**53 were rounded")
        assert "'big'" in note
        assert tracerec.export(of(big), tmp_path / "q").left_out == ()


class TestArrow:
    def test_files(self, trace, tmp_path, source):
        """A file a kind, each the table of to_arrow."""
        tracerec.export(trace, tmp_path / "out", "arrow")
        names = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert names == [
            *("layer.jvp-transpose.arrow", "layer.primal.arrow", "loss.arrow"),
            *("ragged.primal-2.arrow", "ragged.primal.arrow"),
        ]
        with pa.memory_map(str(tmp_path / "out" / "loss.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
        assert table.equals(trace["loss"].to_arrow())
        frame = pl.read_ipc(tmp_path / "out" / "loss.arrow")
        assert frame.filter(pl.col("phase") == "eval")["value"].to_list() == leaf(source, 3).tolist()


class TestNpz:
    def test_arrays(self, trace, tmp_path, source):
        """Leaves, steps, times and kwargs, for numpy.load without pickle."""
        tracerec.export(trace, tmp_path / "out.npz", "npz")
        with np.load(tmp_path / "out.npz") as file:
            np.testing.assert_array_equal(leaf(source, 0, 1), file["layer.primal/value['w']"])
            np.testing.assert_array_equal(leaf(source, 0).astype(np.float32), file["layer.primal/value['b']"])
            np.testing.assert_array_equal(trace["loss"].to_numpy(), file["loss/value"])
            assert file["loss/step"].tolist() == trace["loss"].steps.tolist()
            assert file["loss/phase"].tolist()[:4] == ["train", "eval", "train", "eval"]
            assert file["loss/lr"].dtype == np.float64
            assert file["loss/time"].tolist() == trace["loss"].to_arrow()["time"].cast(pa.int64()).to_pylist()
            assert "ragged.primal/step" not in file

    @pytest.mark.parametrize("to", ["npz", "hdf5", "zarr"])
    @pytest.mark.parametrize("dtype", dtypes.NAMES)
    def test_every_dtype_exactly(self, to, dtype, tmp_path):
        """Values come back the same, number for number."""
        values = random_elements(dtype, (3, 2, 2))
        tracerec.export(of(make_stream(Site("x", (Leaf("", (2, 2), dtype),)), [values])), tmp_path / "o", to)
        if to == "npz":
            (tmp_path / "o").rename(tmp_path / "o.npz")
            with np.load(tmp_path / "o.npz") as file:
                found = file["x/value"]
        elif to == "hdf5":
            with h5py.File(tmp_path / "o") as file:
                dataset: Any = file["x/value"]
                found = dataset[()]
        else:
            array: Any = zarr.open_group(str(tmp_path / "o"), mode="r")["x/value"]
            found = array[:]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(values, np.asarray(found).astype(values.dtype))

    def test_kwargs_that_some_records_lack(self, tmp_path):
        """They have zeros there, and say so beside it."""
        with_it = Site("x", (Leaf("", (), "int8"),), (Column("n", "int64", python="int"),), '{"n":{"slot":0}}')
        without = Site("x", (Leaf("", (), "int8"),))
        trace = of(make_stream(with_it, [[1]], [[7]]), make_stream(without, [[2]], first=1, steps=[5]))
        tracerec.export(trace, tmp_path / "o.npz", "npz")
        with np.load(tmp_path / "o.npz") as file:
            assert file["x/n"].tolist() == [7, 0]
            assert file["x/n_valid"].tolist() == [True, False]
            assert file["x/step"].tolist() == [0, 5]
            assert file["x/step_valid"].tolist() == [False, True]


class TestHdf5:
    def test_plain_h5py(self, trace, tmp_path, source):
        """A group a kind, datasets and attributes that need nothing else."""
        tracerec.export(trace, tmp_path / "o.h5", "hdf5")
        with h5py.File(tmp_path / "o.h5") as file:
            group: Any = file["layer.jvp-transpose"]
            np.testing.assert_array_equal(leaf(source, 1), group["value['w']"][()])
            assert group.attrs["tap"] == "layer"
            assert group.attrs["transforms"] == '["jvp", "transpose"]'
            loss: Any = file["loss"]
            assert loss["phase"].asstr()[1] == "eval"
            assert loss["step"][()].tolist() == trace["loss"].steps.tolist()
            assert all(d.compression in (None, "gzip") for d in loss.values())

    def test_nul(self, tmp_path):
        """HDF5 would end a text there: it is an escape in attributes, names and values, and names still differ."""
        leaves = (Leaf(".a\0b", (), "uint32"), Leaf(r".a\x00b", (2,), "uint32", 1, key_impl="rbg\0"))
        phases = ["x\0\ud800", "y"]
        streams = [
            make_stream(Site("n\0", leaves, kwargs=json.dumps({"phase": phase})), [[n], [[n, n]]], first=n)
            for n, phase in enumerate(phases)
        ]
        tracerec.export(of(*streams), tmp_path / "o.h5", "hdf5")
        with h5py.File(tmp_path / "o.h5") as file:
            group: Any = file["n%00"]
            assert group.attrs["tap"] == r"n\x00"
            assert group["phase"].asstr()[()].tolist() == [r"x\x00\ud800", "y"]
            assert group[r"value.a\x00b"][()].tolist() == [0, 1]
            assert group[r"value.a\x00b"].attrs["leaf"] == r".a\x00b"
            assert group[r"value.a\x00b~2"][()].tolist() == [[0, 0], [1, 1]]
            assert group[r"value.a\x00b~2"].attrs["key_impl"] == r"rbg\x00"
        tracerec.export(of(*streams), tmp_path / "o.npz", "npz")
        with np.load(tmp_path / "o.npz") as file:
            assert file[r"n%00/value.a\x00b"].tolist() == [0, 1]
            assert file["n%00/phase"].tolist() == ["x\0\\ud800", "y"]


class TestZarr:
    def test_xarray(self, trace, tmp_path, source):
        """Named dimensions, times and coordinates."""
        batched = Transform("batch", size=4, dims=(0,))
        site = Site("v", (Leaf("", (4, 2), "float32"),), (STEP,), '{"step":{"slot":0}}', transforms=(batched,))
        lanes = make_stream(site, [np.arange(16).reshape(2, 4, 2)], [[3, 4]], first=1000)
        tracerec.export(of(*source.streams, lanes), tmp_path / "o.zarr", "zarr")
        found = xr.open_zarr(tmp_path / "o.zarr", group="v", consolidated=False)
        assert found["value"].dims == ("record", "batch_0", "dim_0")
        assert found["step"].to_numpy().tolist() == [3, 4]
        assert found["time"].dtype == "datetime64[ns]"
        assert found["time"].to_numpy().astype(np.int64)[0] == STARTED + 1_000 * 1_000_000
        loss: Any = zarr.open_group(str(tmp_path / "o.zarr"), mode="r")["loss"]
        categories = loss["phase"].attrs["categories"]
        assert [categories[i] for i in loss["phase"][:4]] == ["train", "eval", "train", "eval"]
        np.testing.assert_array_equal(trace["loss"].to_numpy(), loss["value"][:])

    def test_leaves_of_different_shapes(self, tmp_path):
        """Each has dimensions of its own, so that xarray opens the group, and all groups as a tree."""
        grads = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "v": np.ones(2, np.float32)}
        with tracerec.record(tmp_path / "run.h5"):
            for step in range(4):
                tracerec.tap({name: step * value for name, value in grads.items()}, "grads", step=step)
        tracerec.export(tmp_path / "run.h5", tmp_path / "rz", "zarr")
        found = xr.open_zarr(tmp_path / "rz", group="grads", consolidated=False)
        assert found["value['w']"].dims == ("record", "dim_0['w']", "dim_1['w']")
        assert found["value['v']"].dims == ("record", "dim_0['v']")
        with xr.open_datatree(tmp_path / "rz", engine="zarr", consolidated=False) as tree:
            for name, value in grads.items():
                expected = np.arange(4, dtype=np.float32).reshape(-1, *(1,) * value.ndim) * value
                np.testing.assert_array_equal(expected, found[f"value['{name}']"])
                np.testing.assert_array_equal(expected, tree["grads"].to_dataset()[f"value['{name}']"])

    def test_names_of_axes_that_are_taken(self, tmp_path):
        """Lanes keep the name of their vmap among leaves, unless it is a column's; slashes make no groups."""
        batched = Transform("batch", size=4, dims=(0, 0), axis_name="lr")
        leaves = (Leaf("['a/b']", (4, 2), "float32"), Leaf("['a\\\\b']", (4, 3), "float32", 1))
        lr = Column("lr", "float32", python="float")
        site = Site("v", leaves, (lr,), '{"lr":{"slot":0}}', transforms=(batched,))
        stream = make_stream(site, [np.zeros((2, 4, 2)), np.ones((2, 4, 3))], [[0.5, 0.25]])
        tracerec.export(of(stream), tmp_path / "o", "zarr")
        with xr.open_datatree(tmp_path / "o", engine="zarr", consolidated=False) as tree:
            found = tree["v"].to_dataset()
            assert found["value['a%2Fb']"].dims == ("record", "lr_", "dim_0['a%2Fb']")
            assert found["value['a%5C%5Cb']"].dims == ("record", "lr_", "dim_0['a%5C%5Cb']")
            assert found["lr"].to_numpy().tolist() == [0.5, 0.25]


def events_of(folder):
    """Returns the events of the one file in a folder."""
    (path,) = folder.iterdir()
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(EVENTS.Event.FromString(data[at + 12 : at + 12 + size]))
        at += 16 + size
    return found


class TestTensorboard:
    def test_scalars_and_histograms(self, trace, tmp_path, source):
        """Leaves with one element are scalars, others histograms, at their steps and times."""
        tracerec.export(trace, tmp_path / "o", "tensorboard")
        values = [(e.step, e.wall_time, v) for e in events_of(tmp_path / "o") for v in e.summary.value]
        scalars = [(step, v.simple_value) for step, _, v in values if v.tag == "loss"]
        expected = [*zip(range(0, 60, 10), leaf(source, 2), strict=True), *zip((0, 10), leaf(source, 3), strict=True)]
        assert sorted(scalars) == sorted((step, float(value)) for step, value in expected)
        histograms = [v.histo for _, _, v in values if v.tag == "layer['w']"]
        w = leaf(source, 0, 1)
        np.testing.assert_allclose([h.min for h in histograms], w.reshape(RECORDS, -1).min(axis=1))
        assert [h.num for h in histograms] == [6] * RECORDS
        assert {v.tag for _, _, v in values} == {
            *("loss", "layer['b']", "layer['w']", "layer['w'] (jvp, transpose)", "ragged")
        }
        np.testing.assert_allclose(values[0][1], STARTED / 1e9)

    def test_what_cannot_be_shown_is_said(self, tmp_path):
        """Keys, and records without a finite element."""
        key = make_stream(Site("key", (Leaf("", (2,), "uint32", key_impl="threefry2x32"),)), [[[1, 2]]])
        nan = make_stream(Site("bad", (Leaf("", (2,), "float32"),)), [[[np.nan, np.inf], [1, np.nan]]], first=5)
        done = tracerec.export(of(key, nan), tmp_path / "o", "tensorboard")
        assert done.left_out == (
            "key: PRNG keys are no numbers that TensorBoard shows",
            "bad: 1 records have no finite element to make a histogram of",
        )


class TestSelection:
    def test_taps_steps_transforms(self, trace, tmp_path):
        """What matches all that is given; taps with nothing of it are left out."""
        done = tracerec.export(trace, tmp_path / "a", "npz", taps=["l*"], steps=slice(10, 30), transforms=())
        assert (done.taps, done.records) == (2, 5)
        assert done.nbytes == (tmp_path / "a").stat().st_size
        assert tracerec.export(trace, tmp_path / "b", "npz", steps=10).records == 4
        assert tracerec.export(trace, tmp_path / "c", "npz", taps="loss", steps=iter([0, 50])).records == 3

    def test_nothing_matches(self, trace, tmp_path):
        """The error says what was asked for, and nothing is written."""
        with pytest.raises(SelectionError, match="no records with steps=7"):
            tracerec.export(trace, tmp_path / "a", "npz", steps=7)
        with pytest.raises(SelectionError, match="did you mean 'loss'"):
            tracerec.export(trace, tmp_path / "a", "npz", taps="los")
        assert list(tmp_path.iterdir()) == []

    def test_what_does_not_count_is_left_out(self, tmp_path):
        """Unless the raw trace is exported."""
        trace = Trace(with_masks())
        assert tracerec.export(trace, tmp_path / "a", "npz", taps="some").records == 3
        assert tracerec.export(trace.raw, tmp_path / "b", "npz", taps="some").records == 9


class TestPlace:
    @pytest.mark.parametrize("to", TARGETS)
    def test_refuses_to_overwrite(self, trace, tmp_path, to):
        """Until it is forced to; what is there stays until the new one is whole."""
        out = tmp_path / "out"
        tracerec.export(trace, out, to, taps="loss")
        with pytest.raises(ExportError, match="exists already") as caught:
            tracerec.export(trace, out, to)
        assert caught.value.path == str(out)
        assert tracerec.export(trace, out, to, force=True).taps == 3
        assert list(tmp_path.iterdir()) == [out]

    @pytest.mark.parametrize("to", TARGETS)
    def test_never_replaces_a_folder_of_others(self, trace, tmp_path, to):
        """Not even when forced."""
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("years of work")
        with pytest.raises(ExportError, match="never replaced"):
            tracerec.export(trace, tmp_path / "out", to, force=True)
        assert (tmp_path / "out" / "thesis.tex").exists()

    def test_never_replaces_a_recording(self, trace, tmp_path):
        """A sealed Arrow recording is a folder of Arrow files, too."""
        from tracerec.formats.arrow.seal import seal as seal_arrow

        seal_arrow(training(), tmp_path / "run.arrow")
        with pytest.raises(ExportError, match="never replaced"):
            tracerec.export(trace, tmp_path / "run.arrow", "arrow", force=True)

    @pytest.mark.parametrize("to", TARGETS)
    def test_an_error_leaves_nothing(self, tmp_path, to, source):
        """A stream that cannot be read, after some that can."""

        class Broken:
            def __init__(self, stream):
                self.stream = stream

            def __getattr__(self, name):
                return getattr(self.stream, name)

            def leaf(self, number, start, stop):
                if start < stop:
                    message = f"leaf {number} is gone"
                    raise TraceNotFound(message)
                return self.stream.leaf(number, start, stop)

        streams = [source.streams[2], Broken(source.streams[4])]
        with pytest.raises(TraceNotFound, match="leaf 0 is gone"):
            tracerec.export(of(*streams), tmp_path / "out", to)
        assert list(tmp_path.iterdir()) == []

    def test_no_such_folder(self, trace, tmp_path):
        """One line that says so."""
        with pytest.raises(ExportError, match="cannot be written: there is no folder"):
            tracerec.export(trace, tmp_path / "no" / "out", "npz")

    @pytest.fixture
    def run(self, source, tmp_path, monkeypatch):
        """A sealed recording in the current folder, and links to it."""
        seal(source, tmp_path / "run.h5")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "link.h5").symlink_to("run.h5")
        os.link("run.h5", "hard.h5")
        (tmp_path / "here").symlink_to(".")
        return tmp_path / "run.h5"

    @pytest.mark.parametrize("to", TARGETS)
    @pytest.mark.parametrize("out", ["run.h5", "./here/run.h5", "link.h5", "hard.h5"])
    @pytest.mark.parametrize("opened", ["run.h5", "link.h5"])
    def test_never_replaces_what_it_reads(self, run, to, out, opened):
        """Not under another name, and not when forced; the error names it and the cure."""
        before, names = run.read_bytes(), sorted(run.parent.iterdir())
        for force in (False, True):
            with pytest.raises(ExportError, match=r"(?s)\.h5 is .*read.*; choose another place") as caught:
                tracerec.export(opened, out, to, force=force)
            assert "\n" not in str(caught.value)
            assert Path(caught.value.path) == Path(out)
        assert (run.read_bytes(), sorted(run.parent.iterdir())) == (before, names)

    @pytest.mark.parametrize("to", TARGETS)
    def test_never_writes_into_what_it_reads(self, tmp_path, monkeypatch, to):
        """Folders of recordings and their parts; also of several; and no folder of recordings is replaced."""
        from tracerec.formats.arrow.seal import seal as seal_arrow

        monkeypatch.chdir(tmp_path)
        Path("runs").mkdir()
        for number in range(2):
            seal_arrow(process(number), Path("runs", f"run.{number}.arrow"))
        tracerec.merge("runs/run.*.arrow", "all.arrow")
        before = sorted(Path().rglob("*"))
        streams = next(path for path in Path("all.arrow").rglob("*.arrow") if path.is_file())
        for opened, out in (
            ("runs/run.*.arrow", "runs/run.1.arrow"),
            ("runs/run.*.arrow", "runs/run.1.arrow/streams.arrow"),
            ("runs/run.*.arrow", "runs/run.1.arrow/new"),
            ("runs/run.0.arrow", "runs"),
            ("all.arrow", streams),
        ):
            with pytest.raises(ExportError, match=r"read.*; choose another place"):
                tracerec.export(opened, out, to, force=True)
        with pytest.raises(ExportError, match=r"never replaced"):
            tracerec.export("all.arrow", "runs", to, force=True)
        assert sorted(Path().rglob("*")) == before

    @pytest.mark.parametrize("to", TARGETS)
    @pytest.mark.parametrize("out", ["run.h5", "run.h5.live", "run.h5.live/part"])
    def test_never_hides_a_killed_recording(self, tmp_path, to, out):
        """What is at the name of a recording is opened before its live folder."""
        folder = journal(tmp_path / "run.h5")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ExportError, match="choose another place"):
            tracerec.export(folder.with_suffix(""), tmp_path / out, to, force=True)
        assert sorted(tmp_path.rglob("*")) == before
        assert tracerec.export(folder, tmp_path / "out", to).records == 2

    @pytest.mark.parametrize("to", ["parquet", "arrow", "zarr", "tensorboard"])
    def test_a_folder_replaces_no_file(self, trace, tmp_path, to):
        """The error says what to do."""
        (tmp_path / "notes").write_text("mine")
        (tmp_path / "link").symlink_to("notes")
        for name, what in (("notes", "file"), ("link", "link")):
            with pytest.raises(ExportError, match=f"{name} is a {what}, .* is a folder; remove it, or choose another"):
                tracerec.export(trace, tmp_path / name, to, force=True)
        assert (tmp_path / "notes").read_text() == "mine"

    def test_unknown_form(self, trace):
        """The nearest ones."""
        with pytest.raises(ExportError, match="did you mean 'parquet'"):
            tracerec.export(trace, "x", "paquet")  # type: ignore[arg-type]

    @pytest.mark.parametrize(("to", "module"), [("zarr", "zarr"), ("tensorboard", "tensorboardX")])
    def test_missing(self, trace, monkeypatch, tmp_path, to, module):
        """The error is one line that names the extra."""
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=rf"pip install 'tracerec\[{to}\]'"):
            tracerec.export(trace, tmp_path / "o", to)
        assert list(tmp_path.iterdir()) == []

    def test_by_path_into_this_folder(self, source, tmp_path, monkeypatch):
        """A recording's name gives the export's."""
        seal(source, tmp_path / "run.h5")
        monkeypatch.chdir(tmp_path)
        assert tracerec.export("run.h5").path == "run.parquet"
        assert default_path("a/run.*.h5", "zarr") == "run.all.zarr"


@pytest.mark.parametrize("to", TARGETS)
def test_names_of_any_kind(to, tmp_path):
    """Slashes, dots, control characters, a name too long for a file, a lone surrogate."""
    names = [
        HOSTILE,
        "..",
        ".hidden",
        "a/b",
        "a%2Fb",
        "x" * 300,
        "x" * 299,
        "\ud800",
        "a\0b",
        "tap=1",
        "\N{GREEK SMALL LETTER BETA}",
    ]
    sites = [dataclasses.replace(LOSS, name=name) for name in names]
    streams = [make_stream(site, [[1.0]], [[1], [0.1]], first=n) for n, site in enumerate(sites)]
    done = tracerec.export(of(*streams), tmp_path / "out", to)
    assert done.taps == len(names)
    if to in ("parquet", "arrow", "zarr"):
        assert len([p for p in (tmp_path / "out").iterdir() if p.name != "zarr.json"]) == len(names)
    assert len({escaped(name) for name in names}) == len(names)


@pytest.mark.parametrize("to", TARGETS)
def test_hostile_recording_and_streams_without_arrays(to, tmp_path):
    """Faults, empty pytrees, leaves without elements."""
    empty = make_stream(Site("none", (), structure='{"tuple":[]}'), [], steps=[1, 2], first=5000)
    hollow = make_stream(Site("hollow", (Leaf("", (0, 3), "float32"),)), [np.zeros((2, 0, 3))], first=6000)
    done = tracerec.export(of(*with_faults().streams, empty, hollow), tmp_path / "out", to)
    assert done.taps == 7


def test_forms_of_the_command():
    """The command line has the same forms."""
    assert tuple(form.value for form in Form) == TARGETS


@pytest.mark.parametrize("to", ["npz", "arrow", "parquet"])
def test_attempts_are_a_column(to, tmp_path):
    """Of a recording that was continued each record says whose turn it is of."""
    source = MemorySource([make_stream(LOSS, [[3.0, 2.0, 1.0]], [[0, 1, 2], [0.1, 0.1, 0.1]])])
    first = {"first_arrival": 0}
    source.info = dataclasses.replace(source.info, attempts=(first, {"first_arrival": 2}))
    tracerec.export(Trace(source), tmp_path / "out", to)
    if to == "npz":
        (tmp_path / "out").rename(tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz") as file:
            found = file["loss/attempt"].tolist()
    elif to == "arrow":
        found = pl.read_ipc(tmp_path / "out" / "loss.arrow")["attempt"].to_list()
    else:
        found = pq.read_table(tmp_path / "out")["attempt"].to_pylist()
    assert found == [0, 0, 1]
