"""What was kept of a leaf is read as the leaf would be: the same columns, the same numbers, in every form."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracerec
from tracerec.errors import SelectionError
from tracerec.keeping import Histogram, Slice, fingerprint
from tracerec.statistics import COUNTS, MEASURES
from tracerec.trace import tables

NAMES = (*COUNTS, *MEASURES)
EXACT = (*COUNTS, "min", "max")
BOUND = 2e-6  # of the largest magnitude, or of the norm itself: sums are of float32
SAME = ["tap", "leaf", "transforms", "step"]


@jax.jit
def step(w, number):
    """A loss, with taps of several dtypes, in a scan, of a carry, under grad."""

    def body(carry, row):
        carry = tracerec.tap(jnp.tanh(carry * row + w), "layer", step=number)
        return carry, carry.sum()

    _, sums = lax.scan(body, w, jnp.arange(1.0, 4.0))
    loss = tracerec.tap(sums.sum(), "loss", step=number)
    odd = {
        "bf16": w.astype(jnp.bfloat16) * 1e30,
        "bool": w > 0,
        "complex": lax.complex(w, 2 * w),
        "empty": w[:0],
        "int8": (w * 10).astype(jnp.int8),
        "key": jax.random.key(7),
        "nan": jnp.where(w > 0.5, jnp.inf, jnp.sqrt(w)),
    }
    tracerec.tap(odd, "odd", step=number)
    return loss


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, None))
def lanes(x, size, number):
    """A vmapped branch with a mask, padding, a leaf that is the same for all lanes."""
    tracerec.tap((x, jnp.arange(3.0)), "lanes", step=number, where=x[0] > 0, logical_shapes=((size,), None))
    tracerec.tap(x.sum(), "sums", step=number)
    return x


def run():
    """Records."""
    for number in range(3):
        jax.grad(step)(jnp.linspace(-1, 1, 7) * (number + 1), number)
    x = np.array([[1, 2, 3, 4], [-1, 9, 9, 9], [0.5, np.nan, np.inf, 7], [2, 2, 2, 2]], np.float32)
    lanes(x, np.array([4, 4, 3, 0], np.int32), 3)
    lanes(-abs(x) - 1, np.array([1, 1, 1, 1], np.int32), 4)  # no lane counts
    jax.effects_barrier()


def recorded(folder, keep, name="run.h5"):
    """Records the run, keeping something of all taps; returns the path."""
    path = folder / f"{keep if isinstance(keep, str) else 'many'}-{name}"
    with tracerec.record(path, keep={"*": keep}):
        run()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where recordings of this module are."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def full(folder):
    """The table of the run with all of every leaf."""
    with tracerec.open(recorded(folder, "full")) as trace:
        return trace.to_pandas()


@pytest.fixture(scope="module")
def summaries(folder):
    """A recording of summaries."""
    return recorded(folder, "summary")


@pytest.fixture(scope="module")
def many(folder):
    """A recording of several things a leaf."""
    return recorded(folder, ["full", "summary", "fingerprint", Slice(...)])


def alike(found, expected):
    """Holds the rows of a table, and their statistics, to those of whole leaves."""
    found, expected = (
        t.sort_values(["step", "tap", "transforms", "leaf", "call"]).reset_index() for t in (found, expected)
    )
    assert found[SAME].equals(expected[SAME])
    one, other = ({name: t[name].to_numpy(float, na_value=np.nan) for name in NAMES} for t in (found, expected))
    # The magnitude of a complex number is rounded to float32.
    slack = np.where(expected["leaf"] == "['complex']", np.finfo(np.float32).eps, 0)
    for name in EXACT:
        there = ~np.isnan(other[name])
        assert (np.isnan(one[name]) == ~there).all(), name
        assert (np.abs(one[name] - other[name]) <= slack * np.abs(other[name]))[there].all(), name
    largest = np.fmax(np.abs(other["min"]), np.abs(other["max"]))
    for name in ("mean", "std", "l2"):
        there = ~np.isnan(other[name])
        assert (np.isnan(one[name]) == ~there).all(), name
        scale = other["l2"] if name == "l2" else largest
        assert (np.abs(one[name] - other[name]) <= BOUND * scale)[there].all(), name


class TestTable:
    def test_statistics_are_those_of_whole_leaves(self, summaries, full):
        """The same rows and columns, whatever the leaf went through; counts and range exactly."""
        with tracerec.open(summaries) as trace:
            found = trace.to_pandas()
        assert set(found["kept"]) == {"summary"}
        assert set(found.columns) == {*full.columns, "kept"}
        assert {"lanes", "layer", "loss", "odd", "sums"} == set(found["tap"])
        assert len(found) == len(full) == 49
        alike(found, full)

    @pytest.mark.parametrize("name", ["run.arrow"])
    def test_other_forms(self, folder, full, name):
        """Arrow says the same."""
        with tracerec.open(recorded(folder, "summary", name)) as trace:
            alike(trace.to_pandas(), full)

    def test_a_running_recording(self, tmp_path, full):
        """The journal, while the recording goes on, says the same; and so does its overview."""
        with tracerec.record(tmp_path / "run.h5", keep={"*": "summary"}) as recording:
            run()
            recording.flush()
            with tracerec.open(tmp_path / "run.h5") as trace:
                assert trace.info.state == "recording"
                alike(trace.to_pandas(), full)
                journal = trace.overview()["streams"]
        with tracerec.open(tmp_path / "run.h5") as trace:
            sealed = trace.overview()["streams"]
        key = lambda stream: (stream["tap"], str(stream["transforms"]))  # noqa: E731
        for one, other in zip(sorted(journal, key=key), sorted(sealed, key=key), strict=True):
            assert [leaf["summary"] for leaf in one["leaves"]] == [leaf["summary"] for leaf in other["leaves"]]

    def test_a_killed_recording(self, tmp_path):
        """What was written before a kill is read as ever."""
        code = (
            "import numpy as np, os, signal, tracerec\n"
            f"recording = tracerec.record({str(tmp_path / 'run.h5')!r}, keep={{'*': ['summary', 'fingerprint']}})\n"
            "recording.__enter__()\n"
            "tracerec.tap(np.array([1.0, np.nan, -3.0], np.float32), 'x', step=5)\n"
            "recording.flush()\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], check=False, env=os.environ, timeout=120)
        assert done.returncode == -signal.SIGKILL
        with tracerec.open(tmp_path / "run.h5") as trace:
            assert trace.info.state == "killed"
            (row,) = trace.to_pandas().to_dict("records")
        low, high = fingerprint(np.array([1.0, np.nan, -3.0], np.float32)).tolist()
        assert row["digest"] == f"{high:08x}{low:08x}"
        assert (row["kept"], row["count"], row["nan"], row["min"], row["mean"]) == (
            "summary, fingerprint",
            3,
            1,
            -3,
            -1,
        )

    def test_values_of_scalars(self, summaries, full):
        """A summary tells the value of a scalar, bit for bit."""
        with tracerec.open(summaries) as trace:
            found = trace["loss"].to_pandas(stats=False)
        expected = full[full["tap"] == "loss"]
        assert found["value"].tolist() == expected["value"].tolist()
        assert str(found["value"].dtype) == "Float32"

    def test_scalars_that_are_not_finite(self, tmp_path):
        """NaN and infinities are values, too."""
        with tracerec.record(tmp_path / "run.h5"):
            for value in (np.nan, np.inf, -np.inf, -0.0, 2.5):
                tracerec.tap(np.float32(value), "x", keep="summary")
        with tracerec.open(tmp_path / "run.h5") as trace:
            assert list(map(str, trace["x"].to_pandas(stats=False)["value"])) == ["nan", "inf", "-inf", "-0.0", "2.5"]

    def test_several_kinds(self, many, full):
        """One row for what tells statistics, computed of the elements; one for each other array."""
        with tracerec.open(many) as trace:
            found = trace.to_pandas()
            lanes_alone = trace["lanes"].to_pandas(stats=False)
        tapped = found[found["kept"] == "full, summary, fingerprint"]
        others = found[found["kept"] == "slice[...]"]
        assert len(tapped) == len(others) == len(full)
        for name in (*COUNTS, *MEASURES):
            one, other = (
                t.sort_values(["step", "tap", "transforms", "leaf", "call"])[name].to_numpy(float, na_value=np.nan)
                for t in (tapped, full)
            )
            np.testing.assert_array_equal(one, other)
        assert set(others["leaf"][others["tap"] == "lanes"]) == {"[0].slice", "[1].slice"}
        assert others["digest"].isna().all()
        digests = lanes_alone["digest"].dropna().tolist()
        # Of four lanes one does not count; the leaf that is the same for all has one digest.
        assert [text.split(" ")[1:2] for text in digests] == [["-"], []]

    def test_digests(self, many):
        """They are those of the arrays, high word first."""
        with tracerec.open(many) as trace:
            tap = trace["layer"].sel(transforms=())
            found = tap.to_pandas(stats=False)["digest"].dropna().tolist()
            arrays = tap.leaf(".full").to_numpy()
        assert found == [f"{high:08x}{low:08x}" for low, high in (fingerprint(array).tolist() for array in arrays)]

    def test_no_column_without(self, full):
        """Tables of whole leaves have neither column."""
        assert not {"kept", "digest"} & set(full.columns)

    def test_fingerprint_has_counts(self, folder, full):
        """The counts of health, no measures."""
        with tracerec.open(recorded(folder, "fingerprint")) as trace:
            found = trace.to_pandas()
        for name in COUNTS:
            one, other = (
                t.sort_values(["step", "tap", "transforms", "leaf", "call"])[name].tolist() for t in (found, full)
            )
            assert one == other, name
        assert found[list(MEASURES)].isna().all(axis=None)

    def test_histogram_counts(self, tmp_path):
        """By exponent it tells zeros; by value it does not."""
        x = np.array([0.0, 1.0, -8.0, np.nan, np.inf], np.float32)
        with tracerec.record(tmp_path / "run.h5"):
            tracerec.tap(x, "exponent", keep="histogram")
            tracerec.tap(x, "value", keep=Histogram(by="linear"))
        with tracerec.open(tmp_path / "run.h5") as trace:
            found = trace.to_pandas().set_index("tap")
        assert [found[name]["exponent"] for name in COUNTS] == [5, 1, 1, 0, 1]
        assert [found[name]["value"] for name in ("count", "nan", "posinf", "neginf")] == [5, 1, 1, 0]
        assert found["zeros"].isna().tolist() == [False, True]

    def test_sql(self, summaries):
        """Columns of kept leaves can be asked for."""
        pytest.importorskip("duckdb")
        with tracerec.open(summaries) as trace:
            found = trace.sql(
                "select kept, count(*) as n, sum(nan) as bad from records where tap = 'loss' group by kept"
            )
        assert found.to_dict("records") == [{"kept": "summary", "n": 6, "bad": 0}]

    def test_no_elements_are_read(self, summaries, monkeypatch):
        """Statistics come from what was kept alone: no function of elements is called."""

        def refuse(*_):
            raise AssertionError

        monkeypatch.setattr(tables, "_moments", refuse)
        with tracerec.open(summaries) as trace:
            assert len(trace.to_pandas())


class TestTap:
    def test_kept(self, summaries, many):
        """A tap says what was kept."""
        with tracerec.open(summaries) as trace:
            assert trace["odd"].kept == ("summary",)
            assert "odd" in trace["odd"].__repr__()
            assert "['int8'] int8[7] as summary" in repr(trace["odd"])
            assert "as summary" in trace["odd"]._repr_html_()
        with tracerec.open(many) as trace:
            assert trace["loss"].kept == ("full", "summary", "fingerprint", "slice[...]")

    def test_leaf(self, many):
        """One array, one kind, all of a tapped leaf; else the nearest is named."""
        with tracerec.open(many) as trace:
            odd = trace["odd"]
            assert odd.leaf("['int8']").leaves == tuple(
                f"['int8'].{part}"
                for part in (
                    *("full", "summary.counts", "summary.range", "summary.moments"),
                    *("fingerprint.digest", "fingerprint.counts", "slice"),
                )
            )
            assert odd.leaf("['int8'].summary").kept == ("summary",)
            assert odd.leaf("['int8'].full").to_numpy().dtype == np.int8
            assert odd.leaf("['int8'].summary.range").to_numpy().shape == (3, 2)
            with pytest.raises(SelectionError, match=r"no leaf \"\['int9'\]\"; did you mean \"\['int8'\]\""):
                odd.leaf("['int9']")

    def test_arrays_must_be_chosen(self, summaries, many):
        """The error says what was kept, and how to get at it."""
        with tracerec.open(summaries) as trace:
            tap = trace["loss"].sel(transforms=())
            for ask in (tap.to_numpy, tap.to_xarray, lambda: tap.shape):
                with pytest.raises(SelectionError, match="has kept summary, which is more than one array") as caught:
                    ask()
            text = str(caught.value)
            assert ".to_pandas()  # the statistics" in text
            assert ".leaf('.summary.moments')" in text
        with tracerec.open(many) as trace, pytest.raises(SelectionError) as caught:
            trace["loss"].sel(transforms=()).to_numpy()
        assert ".leaf('.full')  # the leaf itself" in str(caught.value).splitlines()[2]

    def test_record(self, summaries):
        """Attributes lead to the arrays; the text reads well."""
        with tracerec.open(summaries) as trace:
            value = trace["sums"][0].value
        assert value.summary.counts.shape == (4, 6)
        assert repr(value).startswith("Kept(summary=Summary(counts=array(")


class TestPicture:
    def test_line(self, summaries, full):
        """Mean and band come from summaries."""
        with tracerec.open(summaries) as trace:
            picture = trace["lanes"].leaf("[0]").picture()
            assert picture.kind == "line"
            loss = trace["loss"].sel(transforms=()).picture()
        expected = full[(full["tap"] == "lanes") & (full["leaf"] == "[0]")]
        assert picture.measures["max"].tolist() == expected["max"].tolist()
        np.testing.assert_allclose(picture.measures["std"], expected["std"].to_numpy(float), rtol=1e-6)
        assert loss.scalar
        assert loss.x.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("by", ["exponent", "linear"])
    def test_histogram(self, tmp_path, by):
        """Shares of all lanes, in bins that all records have; those without elements at the ends are left out."""
        with tracerec.record(tmp_path / "run.h5"):
            for number in range(4):
                x = jnp.array([[1.0, 1.5, 4.0], [4.0, 5.0, 0.0]]) * 2**number
                jax.vmap(lambda x: tracerec.tap(x, "x", step=number, keep=Histogram(by=by)))(x)  # noqa: B023 - called here
        with tracerec.open(tmp_path / "run.h5") as trace:
            picture = trace["x"].picture()
            rough = trace["x"].picture("histogram", columns=2, rows=3)
        assert picture.kind == "histogram"
        np.testing.assert_allclose(picture.values.sum(axis=0), 1)
        assert rough.values.shape[1] == 2
        assert len(rough.values) <= 3
        assert len(rough.y) == len(rough.values) + 1
        if by == "exponent":
            assert picture.y_name == "magnitude"
            assert picture.y.tolist() == [1, 2, 4, 8, 16, 32, 64]
            assert picture.values[:, 0].tolist() == [0.4, 0, 0.6, 0, 0, 0]
            assert picture.values[:, 3].tolist() == [0, 0, 0, 0.4, 0, 0.6]
        else:
            assert (picture.y[0], picture.y[-1]) == (0, 40)

    def test_what_cannot_be_drawn(self, folder):
        """It is said what was kept, and what can be drawn."""
        with tracerec.open(recorded(folder, "fingerprint", "plain.h5")) as trace:
            tap = trace["loss"].sel(transforms=())
            with pytest.raises(SelectionError, match="no line, with its mean of loss: fingerprint is what was kept"):
                tap.picture()
        with tracerec.open(recorded(folder, "summary", "plain.h5")) as trace:
            tap = trace["loss"].sel(transforms=())
            with pytest.raises(SelectionError, match="no heatmap of loss: summary is what was kept of it; kind='line'"):
                tap.picture("heatmap")


class TestOverview:
    def test_rows(self, summaries, folder):
        """A row a tapped leaf with its shape and dtype, and the numbers of a recording of whole leaves."""
        with tracerec.open(summaries) as trace:
            found = {(s["tap"], str(s["transforms"])): s for s in trace.overview()["streams"]}
        with tracerec.open(folder / "full-run.h5") as trace:
            whole = {(s["tap"], str(s["transforms"])): s for s in trace.overview()["streams"]}
        # Axes of what was kept are its own.
        pick = {key[0]: key for key in whole if key[1] == "[]"}
        for name, key in pick.items():
            for one, other in zip(found[key]["leaves"], whole[key]["leaves"], strict=True):
                assert (one["path"], one["shape"], one["dtype"]) == (other["path"], other["shape"], other["dtype"]), (
                    name
                )
                assert one["kept"] == ["summary"]
                for each in ("records", "nan", "posinf", "neginf"):
                    assert one["summary"][each] == other["summary"][each]
                exact = ("count", "finite", "zeros", *(("min", "max") if one["dtype"] != "complex64" else ()))
                for each in exact:
                    assert one["summary"]["last"][each] == other["summary"]["last"][each], (one["path"], each)
                assert len(one["summary"]["spark"]) == len(other["summary"]["spark"])
