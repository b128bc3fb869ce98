"""What is drawn of a tap: against numpy over all values at once."""

from __future__ import annotations

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import BATCH, STEP, leaf, training
from tracerec.errors import SelectionError
from tracerec.model import Column, Leaf, Site
from tracerec.trace import Trace, view

mpl.use("agg")

RNG = np.random.default_rng(5)


def tap_of(values, *, steps=None, dtype="float32", where=None, **fields):
    """Returns the tap of one stream of these values."""
    values = np.asarray(values)
    columns = [] if steps is None else [STEP]
    numbers = [] if steps is None else [steps]
    if where is not None:
        columns.append(Column("where", "bool", (values.shape[1],), role="where"))
        numbers.append(where)
        transforms = (dataclasses.replace(BATCH, size=values.shape[1], kwarg_dims=(None,) * (len(columns) - 1) + (0,)),)
    else:
        transforms = ()
    kwargs = "{}" if steps is None else '{"step":{"slot":0}}'
    site = Site("t", (Leaf("", values.shape[1:], dtype),), tuple(columns), kwargs, transforms=transforms)
    return Trace(MemorySource([make_stream(site, [values], numbers=numbers, **fields)]))["t"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, as large recordings have."""
    monkeypatch.setattr(view, "BLOCK_BYTES", 512)


class TestLine:
    def test_each_record(self):
        """Mean, deviation and extremes over finite values."""
        values = RNG.normal(size=(50, 3, 4)).astype(np.float32)
        values[7, 0, 0], values[8] = np.inf, np.nan
        found = tap_of(values, steps=np.arange(50) * 10).picture()
        assert (found.kind, found.x_name, found.records, found.missing, found.scalar) == ("line", "step", 50, 1, False)
        assert found.x.tolist() == list(range(0, 500, 10))
        flat = np.where(np.isfinite(values), values, np.nan).reshape(50, -1).astype(np.float64)
        keep = np.arange(50) != 8
        for name, function in [("mean", np.nanmean), ("std", np.nanstd), ("min", np.nanmin), ("max", np.nanmax)]:
            np.testing.assert_allclose(found.measures[name][keep], function(flat[keep], axis=1), rtol=1e-12)
            assert np.isnan(found.measures[name][8])

    @pytest.mark.parametrize("columns", [1, 7, 32, 99])
    def test_thinned(self, columns):
        """Each column stands for a stretch of records; none is left out."""
        values = RNG.normal(size=100).astype(np.float32)
        values[90:] = np.nan
        found = tap_of(values).picture(columns=columns)
        stretches = [values[np.arange(100) * columns // 100 == column] for column in range(columns)]
        assert found.x.tolist() == [
            int(np.flatnonzero(np.arange(100) * columns // 100 == column)[0]) for column in range(columns)
        ]
        assert (found.x_name, found.missing) == ("record", 10)
        for name, function in [("mean", np.nanmean), ("min", np.nanmin), ("max", np.nanmax)]:
            expected = np.array(
                [np.nan if np.isnan(part).all() else function(part.astype(float)) for part in stretches]
            )
            np.testing.assert_allclose(found.measures[name], expected, rtol=1e-12)

    def test_lanes_that_do_not_count(self):
        """They are left out."""
        values, where = RNG.normal(size=(20, 4)), RNG.integers(0, 2, (20, 4)).astype(bool)
        where[:, 0] = True
        found = tap_of(values, dtype="float64", where=where).picture("line")
        expected = np.array([row[mask].mean() for row, mask in zip(values, where, strict=True)])
        np.testing.assert_allclose(found.measures["mean"], expected, rtol=1e-12)

    def test_program_order(self):
        """Records are where they are in program order, whatever the order in the file."""
        values = np.arange(30, dtype=np.float32)
        iteration = [*range(15)] * 2
        tap = tap_of(values, arrival=np.arange(30), call=[1] * 15 + [2] * 15, iteration=iteration)
        assert tap.picture().measures["mean"].tolist() == tap.to_numpy().tolist()

    def test_steps_that_go_back(self):
        """Then records are counted."""
        assert tap_of(np.zeros(4), steps=[0, 1, 0, 1]).picture().x_name == "record"

    def test_several_shapes(self):
        """A line takes them all."""
        found = Trace(training())["ragged"].picture()
        source = training()
        assert found.measures["mean"].shape == (5,)
        assert sorted(found.measures["max"]) == sorted(
            [*leaf(source, 4).max(axis=1).astype(float), *leaf(source, 5).max(axis=1).astype(float)]
        )


class TestHeatmap:
    @pytest.mark.parametrize(("columns", "rows"), [(512, 128), (9, 128), (512, 3), (7, 4), (1, 1)])
    def test_means_of_cells(self, columns, rows):
        """Of all finite values whose record and element are in the cell."""
        values = RNG.normal(size=(40, 11)).astype(np.float32)
        values[3, 4], values[20:22] = np.nan, np.inf
        found = tap_of(values).picture(columns=columns, rows=rows)
        columns, rows = min(columns, 40), min(rows, 11)
        assert (found.kind, found.values.shape) == ("heatmap", (rows, columns))
        x, y = np.arange(40) * columns // 40, np.arange(11) * rows // 11
        for row in range(rows):
            for column in range(columns):
                cell = values[x == column][:, y == row].astype(float)
                cell = cell[np.isfinite(cell)]
                got = found.values[row, column]
                assert np.isnan(got) if not len(cell) else got == pytest.approx(cell.mean(), rel=1e-12, abs=1e-12)
        assert found.y.tolist() == [int(np.flatnonzero(y == row)[0]) for row in range(rows)]

    def test_tensors_are_flattened(self):
        """Asked for."""
        values = RNG.integers(0, 99, (5, 2, 3))
        found = tap_of(values, dtype="int32").picture("heatmap")
        assert found.values.T.tolist() == values.reshape(5, 6).astype(float).tolist()

    def test_shapes_that_differ(self):
        """They are told."""
        with pytest.raises(SelectionError, match=r"needs records of one shape; ragged has \(2,\), \(5,\)"):
            Trace(training())["ragged"].picture("heatmap")


class TestHistogram:
    @pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "complex64"])
    def test_shares(self, dtype):
        """Those of numpy's histograms of each stretch, with common edges."""
        values = RNG.normal(size=(30, 40)) * 5
        values = values > 0 if dtype == "bool" else values.astype(dtype)
        found = tap_of(values, dtype=dtype).picture("histogram", columns=6, rows=10)
        plain = np.abs(values) if dtype == "complex64" else values.astype(np.float64)
        assert (found.y[0], found.y[-1]) == (plain.min(), plain.max())
        for column in range(6):
            part = plain[5 * column : 5 * column + 5].astype(np.float64)
            expected = np.histogram(part, found.y)[0] / part.size
            # A value that is an edge may be on either side of it, by a rounding.
            assert np.abs(np.cumsum(found.values[:, column]) - np.cumsum(expected)).max() <= 5 / part.size
            assert found.values[:, column].sum() == pytest.approx(1)

    def test_one_value(self):
        """Bins around it."""
        found = tap_of(np.full((4, 2), 3.0, np.float32)).picture("histogram", rows=4)
        assert (found.y[0], found.y[-1]) == (2.5, 3.5)
        assert found.values.sum(axis=0).tolist() == [1.0] * 4

    def test_nothing_finite(self):
        """No shares."""
        assert np.isnan(tap_of(np.full((4, 2), np.nan)).picture("histogram").values).all()


class TestErrors:
    def test_what_cannot_be_drawn(self):
        """Keys, unknown kinds, nothing, several chains."""
        key = Site("key", (Leaf("", (2,), "uint32", key_impl="threefry2x32"),))
        with pytest.raises(SelectionError, match="key is a PRNG key"):
            Trace(MemorySource([make_stream(key, [[[1, 2]]])]))["key"].picture()
        with pytest.raises(SelectionError, match="kind is one of 'line', 'heatmap', 'histogram', not 'pie'"):
            tap_of(np.zeros(3)).picture("pie")  # type: ignore[arg-type]
        with pytest.raises(SelectionError, match="t has no record that counts"):
            tap_of(np.zeros(0)).picture()
        with pytest.raises(SelectionError, match=r"choose one:\s+trace\['layer'\]\.sel\(transforms=\(\)\)"):
            Trace(training())["layer"].picture()


class TestMatplotlib:
    @pytest.mark.parametrize("kind", ["line", "heatmap", "histogram"])
    def test_files(self, kind, tmp_path):
        """Names with dollar signs are no formula; one record is enough."""
        values = RNG.normal(size=(60, 5)).astype(np.float32)
        values[4] = np.nan
        axes = tap_of(values).plot(kind)
        axes.set_title("$x", parse_math=False)
        axes.figure.savefig(tmp_path / "x.png")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        tap_of(values[:1]).plot(kind).figure.savefig(tmp_path / "y.svg")

    def test_what_is_drawn(self):
        """The line is the mean, the bands are its deviation and the extremes; axes of one's own are used."""
        from matplotlib.figure import Figure

        values = RNG.normal(size=(9, 2, 2)).astype(np.float32)
        mine = Figure().add_subplot()
        axes = tap_of(values, steps=np.arange(9)).plot(axes=mine)
        assert axes is mine
        (line,) = axes.lines
        assert line.get_ydata().tolist() == pytest.approx(values.astype(float).mean(axis=(1, 2)).tolist())
        assert axes.get_xlabel() == "step"
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels == ["mean", "mean ± std", "min to max"]
