"""The consumers that come with tracerec: live, replayed, called by hand."""

from __future__ import annotations

import csv
import io
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from jax import lax

import tracerec
from tests.memory_source import MemorySource, make_stream
from tests.support import run_python
from tests.trace.streams import leaf, training
from tracerec.consumers import CSVWriter, Histogram, NaNWatch, Printer, RunningStatistics
from tracerec.errors import ConsumerError, NotFinite
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.statistics import finite_values, moments
from tracerec.structure import PyTreeNode
from tracerec.trace import Trace


def masked() -> MemorySource:
    """Returns a padded tap, four records of which only the first elements count, NaN in the padding."""
    extent = Column("", "int32", (1,), role="extent")
    site = Site("padded", (Leaf("", (3,), "float32"),), (extent,), transforms=(Transform("mask"),))
    values = np.array([[1, np.nan, np.nan], [1, 2, np.nan], [1, 2, 3], [np.nan] * 3], np.float32)
    return MemorySource([make_stream(site, [values], [[[1], [2], [3], [0]]])])


def test_reading_needs_no_jax() -> None:
    """Neither does consuming."""
    done = run_python("import sys, tracerec.consumers, tracerec.trace.replaying; print('jax' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


class TestRunningStatistics:
    def test_those_of_numpy(self) -> None:
        """Over all records of a tap, leaf and chain of transforms."""
        source, statistics = training(), RunningStatistics()
        Trace(source).replay(statistics)
        losses = np.concatenate([leaf(source, 2), leaf(source, 3)]).astype(np.float64)
        found = statistics["loss"]
        assert (found.count, found.min, found.max) == (8, losses.min(), losses.max())
        assert found.mean == pytest.approx(losses.mean(), rel=1e-14)
        assert found.std == pytest.approx(losses.std(), rel=1e-14)
        cotangent = leaf(source, 1).astype(np.float64)
        assert statistics["layer", "['w']", ("jvp", "transpose")].mean == pytest.approx(cotangent.mean(), rel=1e-12)
        assert statistics["layer", "['b']"].nan >= 1
        assert statistics["ragged"].count == 2 * 2 + 3 * 5
        assert next(iter(statistics.results)) == ("layer", "['b']", ())
        assert len(statistics) == 5

    def test_live_is_replayed(self, tmp_path) -> None:
        """With the kwarg tap as the name."""
        live, replayed = RunningStatistics(), RunningStatistics()

        @jax.jit
        def step(x, i):
            x = tracerec.tap({"a": x, "b": (x * 2,)}, "x", step=i)
            return tracerec.id_tap(live, x, tap="x", step=i)

        with tracerec.record(tmp_path / "run.h5"):
            for i in range(5):
                jax.vmap(step, in_axes=(0, None))(jnp.linspace(0, i, 7), i)
            tracerec.barrier_wait()
        with tracerec.open(tmp_path / "run.h5") as trace:
            trace.replay(replayed, order="arrival")
        assert live.results == replayed.results
        assert set(live.results) == {("x", "['a']", ("batch",)), ("x", "['b'][0]", ("batch",))}

    def test_live_without_a_name(self) -> None:
        """The tap is then called as errors call it."""
        statistics = RunningStatistics()
        tracerec.id_tap(statistics, np.float32(1))
        tracerec.barrier_wait()
        assert statistics["id_tap RunningStatistics"].count == 1

    def test_what_does_not_count_is_left_out(self) -> None:
        """Padding; raw has it."""
        statistics, raw = RunningStatistics(), RunningStatistics()
        Trace(masked()).replay(statistics)
        Trace(masked()).raw.replay(raw)
        assert (statistics["padded", "", ("mask",)].count, statistics["padded", "", ("mask",)].nan) == (6, 0)
        assert (raw["padded", "", ("mask",)].count, raw["padded", "", ("mask",)].nan) == (12, 6)

    def test_lanes_of_a_vmapped_cond(self) -> None:
        """Live, those that took the branch."""
        statistics = RunningStatistics()
        branch = lambda x: lax.cond(x > 0, lambda x: tracerec.id_tap(statistics, jnp.log(x), tap="log"), lambda x: x, x)  # noqa: E731
        jax.jit(jax.vmap(branch))(jnp.array([-1.0, 1.0, 0.0, jnp.e]))
        tracerec.barrier_wait()
        (found,) = statistics.results.values()
        assert (found.count, found.nan, found.mean) == (2, 0, pytest.approx(0.5, rel=1e-6))

    def test_table_and_text(self) -> None:
        """One row a key."""
        statistics = RunningStatistics()
        Trace(training()).replay(statistics)
        table = statistics.to_pandas()
        assert isinstance(table, pd.DataFrame)
        assert table["tap"].tolist() == ["layer", "layer", "layer", "loss", "ragged"]
        assert table["transforms"].tolist()[2] == "jvp, transpose"
        assert repr(statistics).splitlines()[4].startswith("  'loss': count 8, mean 2.")
        assert "jvp, transpose: count" in repr(statistics)

    @given(st.lists(npst.arrays(np.float64, st.integers(0, 5), elements=st.floats()), max_size=5))
    def test_in_pieces_is_as_a_whole(self, arrays) -> None:
        """Counts and extremes exactly; mean and deviation up to rounding."""
        statistics = RunningStatistics()
        for array in arrays:
            statistics(array, tap="t")
        if not arrays:
            assert not statistics.results
            return
        found, whole = statistics["t"], moments(np.concatenate(arrays))
        for name in ("count", "finite", "nan", "posinf", "neginf", "zeros", "min", "max"):
            assert getattr(found, name) == getattr(whole, name)
        scale = max(abs(whole.min or 0), abs(whole.max or 0))
        for name in ("mean", "std"):
            value = getattr(whole, name)
            assert getattr(found, name) == (None if value is None else pytest.approx(value, rel=1e-9, abs=scale * 1e-9))


VALUES = st.lists(
    npst.arrays(np.float64, st.integers(0, 20), elements=st.floats(width=64, allow_subnormal=True)),
    min_size=1,
    max_size=4,
)


class TestHistogram:
    @given(VALUES, st.integers(2, 70))
    @settings(deadline=None)
    def test_counts_are_exact(self, arrays, bins) -> None:
        """Every bin has the values between its edges, whatever came first; there are no more bins than allowed."""
        histogram = Histogram(bins)
        for array in arrays:
            histogram(array, tap="t")
        found = histogram["t"]
        values = np.concatenate(arrays)
        finite = values[np.isfinite(values)]
        assert found.not_finite == len(values) - len(finite)
        assert found.counts.sum() == len(finite)
        assert len(found.counts) <= bins
        if len(finite):
            # Only an edge that float64 has no number for is a value that lies in the last bin.
            last = np.inf if found.edges[-1] == np.finfo(float).max else found.edges[-1]
            for low, high, count in zip(found.edges[:-1], [*found.edges[1:-1], last], found.counts, strict=True):
                assert ((finite >= low) & (finite < high)).sum() == count
            assert found.counts[0]
            assert found.counts[-1]

    def test_order_of_records_does_not_matter(self) -> None:
        """The bins are those of the whole range."""
        values = np.random.default_rng(0).normal(size=(50, 10)) * np.logspace(-3, 3, 50)[:, None]
        up, down = Histogram(32), Histogram(32)
        for row, opposite in zip(values, values[::-1], strict=True):
            up(row, tap="t")
            down(opposite, tap="t")
        assert up["t"].edges.tolist() == down["t"].edges.tolist()
        assert up["t"].counts.tolist() == down["t"].counts.tolist() == np.histogram(values, up["t"].edges)[0].tolist()

    def test_given_edges(self) -> None:
        """As numpy's, with what lies outside."""
        source, edges = training(), [-1.0, 0.0, 0.5, 1.0]
        histogram = Histogram(edges=edges)
        Trace(source).replay({"layer": histogram})
        found, values = histogram["layer", "['w']"], leaf(source, 0, 1)
        assert found.counts.tolist() == np.histogram(values, edges)[0].tolist()
        assert (found.below, found.above) == ((values < -1).sum(), (values > 1).sum())

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "bfloat16", "float8_e4m3fn", "int4", "complex64"])
    def test_dtypes(self, dtype) -> None:
        """All of them are counted."""
        array = np.array([0, 1, 1], np.dtype(dtype) if dtype in np.sctypeDict else np.dtype(getattr(ml_dtypes, dtype)))
        histogram = Histogram(8)
        histogram(array, tap="t")
        assert (histogram["t"].counts[0], histogram["t"].counts[-1], histogram["t"].counts.sum()) == (1, 2, 3)
        assert np.concatenate([v for v, _ in finite_values(array)]).tolist() == [0, 1, 1]

    def test_wrong_arguments(self) -> None:
        """They are told at once."""
        with pytest.raises(ValueError, match="2 bins or more, not 1"):
            Histogram(1)
        with pytest.raises(ValueError, match="two or more ascending numbers"):
            Histogram(edges=[1.0, 1.0])


class TestNaNWatch:
    def source(self) -> MemorySource:
        source = training()
        stream = source.streams[2]
        stream.arrays[0][3:5] = np.nan, np.inf  # type: ignore[attr-defined]
        return source

    def test_first(self) -> None:
        """The first of all, and the first of each tap; how many there were."""
        watch = NaNWatch()
        Trace(self.source()).replay({"loss": watch})
        assert watch.first is not None
        assert (watch.first.tap, watch.first.step, watch.first.nan, watch.first.arrival) == ("loss", 30, 1, 32)
        assert (watch.records, len(watch.by_leaf)) == (2, 1)
        assert str(watch.first) == "tap 'loss' at step 30: 1 NaN of 1 elements"
        assert repr(watch) == f"<NaNWatch: {watch.first}>"

    def test_raising_ends_a_replay(self) -> None:
        """With the finding as the cause."""
        watch = NaNWatch(raises=True)
        with pytest.raises(ConsumerError, match=r"NaNWatch' failed on a record of tap 'loss' \(step 30,") as caught:
            Trace(self.source()).replay({"loss": watch})
        cause = caught.value.__cause__
        assert isinstance(cause, NotFinite)
        assert isinstance(cause, FloatingPointError)
        assert (cause.tap, cause.step, watch.records) == ("loss", 30, 1)

    def test_raising_live(self) -> None:
        """barrier_wait raises it, once."""
        watch = NaNWatch(raises=True)
        jax.jit(lambda x: tracerec.id_tap(watch, x, tap="x", step=3))(jnp.array([jnp.nan, jnp.inf, 1.0]))
        with pytest.raises(ConsumerError, match="tap 'x' at step 3: 1 NaN, 1 \\+Inf of 3 elements"):
            tracerec.barrier_wait()
        jax.jit(lambda x: tracerec.id_tap(watch, x, tap="x", step=4))(jnp.nan)
        tracerec.barrier_wait()
        assert watch.records == 2

    def test_padding_is_no_news(self) -> None:
        """NaN in what does not count."""
        watch = NaNWatch()
        Trace(masked()).replay(watch)
        assert watch.first is None
        assert repr(watch) == "<NaNWatch: all is finite>"

    def test_small_floats(self) -> None:
        """Types that numpy lacks."""
        watch = NaNWatch()
        watch(np.array([1, np.nan], ml_dtypes.float8_e5m2), tap="t")
        watch(np.array([1, 2], ml_dtypes.int4), tap="u")
        assert [key.tap for key in watch.by_leaf] == ["t"]

    def test_lanes_of_which_nothing_is_known(self) -> None:
        """The finding says so."""
        batch = Transform("batch", size=2, dims=(0,), kwarg_dims=(), lanes_may_be_invalid=True)
        site = Site("branch", (Leaf("", (2,), "float32"),), transforms=(batch,))
        watch = NaNWatch()
        Trace(MemorySource([make_stream(site, [[[np.nan, 1.0]]])])).replay(watch)
        assert str(watch.first).endswith("lanes that never took its branch may be meant")


class TestCSVWriter:
    def test_rows(self) -> None:
        """A row a record and leaf; numbers read back exactly."""
        source, stream = training(), io.StringIO()
        with CSVWriter(stream) as writer:
            Trace(source).replay(writer)
        rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
        assert len(rows) == 6 * 3 + 8 + 5
        losses = [row for row in rows if row["tap"] == "loss" and "train" in row["kwargs"]]
        assert [np.float32(row["value"]) for row in losses] == leaf(source, 2).tolist()
        assert [int(row["step"]) for row in losses] == [0, 10, 20, 30, 40, 50]
        assert json.loads(losses[1]["kwargs"]) == {"lr": 0.12000000000000001, "phase": "train"}
        weights = [row for row in rows if row["leaf"] == "['w']" and not row["transforms"]]
        for row, value in zip(weights, leaf(source, 0, 1), strict=True):
            found = moments(value)
            assert [float(row[name]) for name in ("min", "max", "mean", "std", "l2")] == [
                found.min, found.max, found.mean, found.std, found.l2
            ]  # fmt: skip
            assert row["value"] == ""

    def test_file(self, tmp_path) -> None:
        """It is closed at the end; what comes later is told."""
        with CSVWriter(tmp_path / "x.csv") as writer:
            writer(np.array(1, ml_dtypes.bfloat16), tap="a,b", what='say "x"', bad=float("nan"), many=np.arange(2))
        table = pd.read_csv(tmp_path / "x.csv")
        assert table["tap"].tolist() == ["a,b"]
        assert json.loads(table["kwargs"][0]) == {"bad": "nan", "many": [0, 1], "what": 'say "x"'}
        assert table["value"].tolist() == [1.0]
        with pytest.raises(ConsumerError, match=r"x\.csv is closed"):
            writer(np.float32(1), tap="late")

    def test_live(self, tmp_path) -> None:
        """The same file as replayed."""
        path = tmp_path / "run.h5"
        with CSVWriter(tmp_path / "live.csv") as writer, tracerec.record(path):

            def function(x):
                return tracerec.id_tap(writer, tracerec.tap(x, "x", step=1), tap="x", step=1)

            jax.grad(lambda x: function(x) ** 2)(3.0)
            tracerec.barrier_wait()
        with CSVWriter(tmp_path / "replayed.csv") as writer, tracerec.open(path) as trace:
            trace.replay(writer)
        assert (tmp_path / "live.csv").read_text() == (tmp_path / "replayed.csv").read_text()
        assert len((tmp_path / "live.csv").read_text().splitlines()) == 3


class TestPrinter:
    def test_names(self) -> None:
        """Asked for, the tap's name comes first, once."""
        stream = io.StringIO()
        printer = Printer(stream, names=True)
        printer(np.arange(2), tap="act", step=1)
        Trace(masked()).replay({"padded": Printer(stream, names=True)})
        assert stream.getvalue().startswith("tap: act  step: 1\n[0 1]\ntap: padded  ")

    def test_kwargs_with_names_of_its_own(self, capsys) -> None:
        """Any kwarg can be printed."""
        tracerec.id_print(np.float32(1), stream="s")
        tracerec.barrier_wait()
        assert capsys.readouterr().out == "stream: s\n1.\n"

    def test_nodes_of_classes_that_are_not_imported(self, capsys) -> None:
        """Named tuples of a program are printed, leaf by leaf."""
        Printer()(PyTreeNode("optax:State", {".mu": np.float32(1), ".nu": (np.arange(2), None)}))
        assert capsys.readouterr().out == "1.\n[0 1]\n"
