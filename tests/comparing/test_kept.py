"""Traces of which something smaller than the leaves was kept: what is compared then, and what is said of it."""

from __future__ import annotations

import itertools
import json
from functools import partial

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

import tracerec
from tests.comparing.runs import compare, site
from tests.memory_source import make_stream
from tests.support import ROOT
from tracerec.keeping import Histogram, Quantiles, Slice, TopK, fingerprint, fingerprint_seed
from tracerec.model import Kept, Leaf

SCHEMA = json.loads((ROOT / "schemas/compare.schema.json").read_text())
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
X[:, 0] = 1, -1, 2, 3  # the second lane does not count
NUDGED = X.copy()
NUDGED[2, 5] = np.nextafter(X[2, 5], np.float32(9))
UNSEEN = X.copy()
UNSEEN[1, 4] = 100
KEEPS = {
    "full": "full",
    "fingerprint": "fingerprint",
    "summary": "summary",
    "many": ["summary", "fingerprint", "histogram", TopK(3), Quantiles()],
    "top": TopK(3),
    "slice": Slice(slice(0, 2)),
    "coarse": Histogram(bins=4),
    "fine": Histogram(),
}


@jax.jit
def step(x, number):
    """Taps without lanes and with them, of several dtypes; with lanes last, and all put together."""
    odd = {
        "bf16": x.astype(jnp.bfloat16),
        "complex": jax.lax.complex(x, 2 * x),
        "empty": x[:0],
        "int": (x * 1000).astype(jnp.int32),
        "key": jax.random.key(3),
    }
    tracerec.tap({"x": x, **odd}, "plain", step=number)

    @partial(jax.vmap, in_axes=1, out_axes=1)
    def last(column):
        return tracerec.tap(jnp.stack([column, -column]), "last", step=number)

    def lane(row, size):
        there = row[0] > 0
        tracerec.tap(row, "lanes", step=number, where=there, logical_shapes=(size,))
        tracerec.tap(row, "together", step=number, where=there, over="batch")
        return row

    last(x)
    return jax.vmap(lane)(x, jnp.array([6, 6, 6, 5]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Records taps of the run with an input of the second of two steps, keeping something; returns the path."""
    folder = tmp_path_factory.mktemp("kept")
    made = {}

    def record(keep, x=X, taps="*"):
        name = keep, x.tobytes(), taps
        if name not in made:
            made[name] = folder / f"{len(made)}.h5"
            with tracerec.record(made[name], keep={"*": KEEPS[keep]}, taps=taps):
                step(X, 0)
                step(x, 1)
                jax.effects_barrier()
        return made[name]

    return record


@pytest.fixture(scope="module")
def lanes(recorded):
    """Records the tap that has lanes and a mask alone: there is less to compile."""
    return partial(recorded, taps="lanes")


def found_in(found):
    """Returns the taps and leaves that differ, and by what they were compared."""
    return {(row["tap"], row["leaf"], row["by"]) for row in found.rows() if row["different"]}


@pytest.mark.parametrize(
    ("one", "other"), [("fingerprint", "fingerprint"), ("full", "fingerprint"), ("fingerprint", "full")]
)
def test_fingerprints_tell_the_leaves_whose_bits_differ(recorded, one, other):
    """One ulp, whatever the tolerances; the leaf is the tapped one; no measure, and nothing would have passed."""
    assert compare(recorded(one), recorded(other)).ok
    sides = {"full": "a", "fingerprint": "b"}
    by = "fingerprint" if one == other else f"fingerprint (of the full leaf in {sides[one]})"
    found = compare(recorded(one), recorded(other, NUDGED), rtol=1e9, atol=1e9)
    assert found.status == 1
    assert found.kinds["bits differ"] == found.different == len(found_in(found))
    taps = {("plain", "['x']"), ("plain", "['complex']"), ("last", ""), ("lanes", "")}
    assert found_in(found) >= {(*each, by) for each in taps}
    first = found.first_divergence
    assert (first.tap, first.step, first.kind, first.by) == ("plain", 1, "bits differ", by)
    row = next(row for row in found.rows() if (row["tap"], row["leaf"]) == ("plain", "['x']"))
    assert (row["dtype_a"], row["shape_a"], row["different"], row["compared"]) == ("float32", (4, 6), 1, 2)
    assert [row[name] for name in ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol")] == [None] * 5
    assert (row["tolerance"], f" by {by})" in found.summary) == ("equal bits", True)
    assert not any("would pass" in line for line in str(found).splitlines())


def test_a_fingerprint_says_which_lane_differs_with_its_counts(lanes, recorded):
    """The digests are those of the lane; a lane that does not count differs as it likes."""
    x = X.copy()
    x[2, 3] = np.nan
    found = compare(lanes("fingerprint"), lanes("full", x))
    first = found.first_divergence
    assert (first.tap, first.index, first.lanes, first.differing) == ("lanes", (2,), (1, 4), ("digest",))
    said = {name: pair for name, *pair in first.statistics}
    words = [fingerprint(of[2]) for of in (X, x)]
    assert said["digest"] == [f"{int(high):08x}{int(low):08x}" for low, high in words]
    assert (said["count"], said["nan"]) == ([6, 6], [0, 1])
    assert "bits differ: float32 (4, 6) in 1 of 4 lanes, the first [2]; compared by fingerprint" in first.reason
    for one, other in itertools.product(("fingerprint", "summary", "full"), repeat=2):
        if {one, other} != {"fingerprint", "summary"}:
            found = compare(recorded(one, taps="*e*"), recorded(other, UNSEEN, taps="*e*"))
            assert (found.ok, {row["tap"] for row in found.rows()}) == (True, {"lanes", "together"})


@pytest.mark.parametrize("keep", ["fingerprint", "summary"])
def test_other_lanes_that_count_are_a_difference_of_their_own(lanes, keep):
    """Not of bits."""
    x = X.copy()
    x[3, 0] = -3
    found = compare(lanes(keep), lanes(keep, x))
    assert (found.first_divergence.kind, found.different) == ("valid lanes differ", 1)
    assert "count" in found.first_divergence.differing


@pytest.mark.parametrize(("one", "other"), [("summary", "summary"), ("full", "summary"), ("summary", "full")])
def test_summaries_name_the_statistic(lanes, one, other):
    """Means within tolerance pass, and are named beyond it; the smallest and the largest of floats are, too."""
    same = compare(lanes(one), lanes(other))
    assert same.ok
    assert same.culprit is None
    x = X.copy()
    middle = np.argsort(X[2])[2:4]
    x[2, middle] *= np.float32(1.001)
    a, b = lanes(one), lanes(other, x)
    assert compare(a, b, rtol=1e-2).ok
    found = compare(a, b)
    first = found.first_divergence
    assert (first.tap, first.index, first.kind) == ("lanes", (2,), "beyond tolerance")
    assert {"mean", "l2"} <= set(first.differing) <= {"mean", "std", "l1", "l2"}
    said = {name: pair for name, *pair in first.statistics}
    for place, lane in enumerate((X[2], x[2])):
        wide = lane.astype(np.float64)
        exact = {"mean": wide.mean(), "std": wide.std(), "min": wide.min(), "max": wide.max(), "count": 6}
        for name, value in exact.items():
            assert said[name][place] == pytest.approx(value, rel=1e-5, abs=1e-7)
    assert " in mean" in str(found) or ", mean" in str(found)
    (row,) = found.rows()
    assert row["statistics"] == dict.fromkeys(first.differing, 1)
    assert compare(a, b, rtol=row["need_rtol"]).ok
    assert compare(a, b, atol=row["need_atol"]).ok
    assert not compare(a, b, rtol=row["need_rtol"] * 0.99).ok
    x[2, np.argmax(X[2])] *= np.float32(1.001)
    b = lanes(other, x)
    assert compare(a, b, rtol=1e-2).ok
    assert "max" in compare(a, b).first_divergence.differing


def test_elements_within_tolerance_have_summaries_within_it(lanes):
    """What full traces pass, summaries pass."""
    rng = np.random.default_rng(1)
    for rtol in (1e-5, 0.1):
        x = X * (1 + rtol * rng.uniform(-1, 1, X.shape)).astype(np.float32)
        for keep in ("full", "summary"):
            assert compare(lanes(keep), lanes(keep, x), rtol=rtol * 1.01).ok


def test_exact_summaries(lanes):
    """Equal bits of what was kept; where a side is computed, rounding does not count."""
    assert compare(lanes("summary"), lanes("summary"), exact=True).ok
    assert compare(lanes("summary"), lanes("full"), exact=True).ok
    x = X.copy()
    x[2, np.argsort(X[2])[2]] *= np.float32(1.00001)
    assert compare(lanes("summary"), lanes("summary", x)).ok
    assert not compare(lanes("summary"), lanes("summary", x), exact=True).ok


def test_all_that_both_have_is_compared(lanes):
    """A row of each kind; of histograms and the places of the largest elements no tolerance counts."""
    x = X.copy()
    x[2, np.argsort(X[2])[3]] *= np.float32(-2)
    found = compare(lanes("many"), lanes("many", x), rtol=10, atol=10)
    assert {row["by"] for row in found.rows()} == {"fingerprint", "summary", "histogram", ""}
    assert {(leaf, by) for _, leaf, by in found_in(found)} >= {("", "fingerprint"), ("", "histogram")}
    full = compare(lanes("full"), lanes("many"), rtol=1e-3)
    assert full.ok
    assert {row["by"].partition(" ")[0] for row in full.rows()} == {"fingerprint", "summary"}
    swapped = X.copy()
    largest = 1 + np.argsort(-np.abs(X[2, 1:]))[:2]
    swapped[2, largest] = X[2, largest[::-1]]
    top = compare(lanes("top"), lanes("top", swapped), rtol=1e9)
    rows = {row["leaf"]: row for row in top.rows() if row["different"]}
    assert set(rows) >= {".topk.positions"}
    assert (rows[".topk.positions"]["max_abs"], rows[".topk.positions"]["tolerance"]) == (None, "equal bits")


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        ("summary", "fingerprint", "kept as summary and as fingerprint"),
        ("full", "slice", "kept as full and as slice[0:2]"),
        ("coarse", "fine", "kept as histogram(bins=4) and as histogram"),
        ("slice", "top", "kept as slice[0:2] and as topk(k=3)"),
    ],
)
def test_nothing_in_common_is_said(lanes, one, other, texts):
    """Such leaves are not comparable: nobody lacks anything."""
    found = compare(lanes(one), lanes(other))
    assert (found.status, found.verdict) == (2, "not comparable")
    (each,) = found.unmatched
    assert (each.what, each.tap, each.leaf, each.records, each.detail) == ("not comparable", "lanes", "", 2, texts)


def test_other_dtypes_and_shapes_are_told_as_of_whole_leaves(tmp_path):
    """A digest of another dtype is no difference of bits."""

    def record(name, keep, x):
        path = tmp_path / name
        with tracerec.record(path, keep=keep):
            tracerec.tap(x, "x", step=0)
        return path

    x = np.arange(1, 5, dtype=np.float32) / 4
    for keep in ("fingerprint", "summary"):
        a = record(f"a{keep}.h5", keep, x)
        half, long = record(f"h{keep}.h5", keep, x.astype(jnp.bfloat16)), record(f"l{keep}.h5", keep, x[:3])
        assert compare(a, half).first_divergence.reason == "dtype float32 against bfloat16"
        assert compare(a, long).first_divergence.reason == "shape (4,) against (3,)"
        cast = compare(a, half, cast=True)
        assert cast.ok if keep == "summary" else cast.unmatched[0].detail.startswith("a fingerprint of float32")


def test_noise_excuses_summaries_and_no_bits(lanes):
    """What a repeated run does, too, is no regression; of fingerprints nothing says how far they are apart."""
    x, y = X.copy(), X.copy()
    x[2, 1:] *= np.float32(1.01)
    y[2, 1:] *= np.float32(1.012)
    for keep, kind in (("summary", "within noise"), ("full", "within noise"), ("fingerprint", "bits differ")):
        found = compare(lanes(keep), lanes(keep, y), noise=lanes(keep, x))
        assert found.kinds[kind] == 1
        assert found.ok == (kind == "within noise")


def test_first_tables_and_reports(lanes, tmp_path):
    """They say by what was compared, and hold what they say of whole leaves."""
    a, b = lanes("many"), lanes("fingerprint", NUDGED)
    found = compare(a, b)
    quick = compare(a, b, first=True)
    assert quick.first_divergence.to_json() == found.first_divergence.to_json()
    jsonschema.validate(found.to_json(), SCHEMA)
    jsonschema.validate(compare(a, lanes("summary", NUDGED), exact=True).to_json(), SCHEMA)
    table = found.to_pandas()
    assert set(table["by"]) == {"fingerprint"}
    assert (table["kind"] == "bits differ").sum() == found.different
    assert table.loc[table["kind"] == "bits differ", "max_abs"].isna().all()
    for end in ("html", "md", "jsonl", "xml"):
        found.report(tmp_path / f"report.{end}")
        text = (tmp_path / f"report.{end}").read_text()
        assert "bits differ" in text or end == "xml"
        assert "by fingerprint" in text or end == "jsonl"
    steps, errors = found.growth.along_steps("lanes", "", found.rows()[0]["transforms"])
    assert (steps.tolist(), errors.tolist()) == ([0, 1], [0.0, 1 / 3])


def test_shards_are_put_together_before_a_fingerprint_is_made_of_them(tmp_path):
    """A run that recorded shards where they lie, and one that recorded a digest of the whole."""
    place = jax.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:4]), ("i",)), jax.P("i"))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    y = x.copy()
    y[7, 3] += 1

    def record(name, x, **options):
        with tracerec.record(tmp_path / name, **options):
            jax.jit(lambda z: tracerec.tap(z * 2, "x", step=0, shards="local"))(jax.device_put(x, place))
            jax.effects_barrier()
        return tmp_path / name

    a, b = record("a.h5", x), record("b.h5", x, keep="fingerprint")
    assert compare(a, b).ok
    assert compare(a, b).compared == 1
    found = compare(a, record("c.h5", y, keep="fingerprint"))
    assert found.first_divergence.kind == "bits differ"


def test_leaves_without_elements_and_of_every_dtype_are_equal(recorded):
    """What is computed of whole leaves is what a device makes of them."""
    found = compare(recorded("full"), recorded("summary"))
    assert (found.ok, found.compared, found.culprit) == (True, 18, None)
    (row,) = [row for row in compare(recorded("full"), recorded("fingerprint")).rows() if row["leaf"] == "['empty']"]
    assert row["kinds"] == {"equal": 2}
    assert fingerprint(X[:0]).tolist() == list(fingerprint_seed("float32", (0, 6)))


def test_large_integers_are_compared_as_such(written):
    """The largest element of two runs is one number in float64; a whole leaf tells it exactly, too."""
    parts = {"counts": ((6,), "uint32"), "range": ((2,), "int64"), "moments": ((5,), "float64")}
    leaves = [
        Leaf(f".summary.{part}", shape, dtype, number, kept=Kept('{"kind":"summary"}', part, "", (3,), "int64"))
        for number, (part, (shape, dtype)) in enumerate(parts.items())
    ]

    def kept(x):
        wide = x.astype(np.float64)
        moments = [wide.mean(), wide.std(), np.abs(wide).sum(), np.sqrt((wide**2).sum()), 0]
        arrays = [np.array([[3, 0, 0, 0, 0, 0]], np.uint32), np.array([[x.min(), x.max()]]), np.array([moments])]
        return written(make_stream(site("x", leaves=tuple(leaves)), arrays, numbers=[[0]]))

    def whole(x):
        return written(make_stream(site("x", (3,), "int64"), [x[None]], numbers=[[0]]))

    x, y = np.array([2**60 + 1, -3, 5]), np.array([2**60, -3, 5])
    for one, other in itertools.product((kept, whole), (kept,)):
        assert compare(one(x), other(x)).ok
        first = compare(one(x), other(y), rtol=1).first_divergence
        assert first.differing == ("max",)
        assert ("max", 2**60 + 1, 2**60) in first.statistics
        assert ("min", -3, -3) in first.statistics
