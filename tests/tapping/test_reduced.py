"""What is kept of a leaf on the device: of primals, tangents and cotangents, of lanes, shards and valid elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tracerec
from tests.support import records_of
from tracerec.errors import TapError
from tracerec.keeping import Cast, Norms, Sample, Slice, TopK, fingerprint, summary_columns
from tracerec.model import Record, Site
from tracerec.statistics import COUNTS, MEASURES, moments

X = np.array([1.0, -2.0, 3.0, np.nan, 0.0], np.float32)


def part(record: Record, path: str) -> np.ndarray:
    """Returns an array of a record by its key path."""
    (array,) = [a for leaf, a in zip(record.site.leaves, record.arrays, strict=True) if leaf.path == path]
    return array


def columns(record: Record, path: str = "") -> dict[str, Any]:
    """Returns the statistics of the summary of one leaf, an entry a lane."""
    return summary_columns(*(part(record, f"{path}.summary.{name}") for name in ("counts", "range", "moments")))


def agrees(found: dict[str, Any], lane: Any, array: np.ndarray) -> None:
    """Holds the summary of a lane to the statistics of its elements."""
    expected = moments(np.asarray(array))
    for name in COUNTS:
        assert found[name][lane] == getattr(expected, name), name
    for name in MEASURES:
        value = getattr(expected, name)
        np.testing.assert_allclose(found[name][lane], np.nan if value is None else value, rtol=2e-6, atol=1e-6)


def test_a_record_says_what_was_kept_and_of_what() -> None:
    """Eagerly and compiled."""
    tree = {"w": jnp.asarray(X, jnp.bfloat16), "n": jnp.arange(6).reshape(2, 3), "key": jax.random.key(3)}
    for run in (
        lambda t: tracerec.tap(t, "t", keep="summary", step=4),
        jax.jit(lambda t: tracerec.tap(t, "t", keep="summary", step=4)),
    ):
        (record,) = records_of(run, tree)
        assert Site.from_json(record.site.to_json()) == record.site
        assert [leaf.path for leaf in record.site.leaves] == [
            f"['{name}'].summary.{p}" for name in ("key", "n", "w") for p in ("counts", "range", "moments")
        ]
        kept = record.site.leaves[-1].kept
        assert kept is not None
        assert (kept.keep, kept.part, kept.path, kept.shape, kept.dtype) == (
            '{"kind":"summary"}', "moments", "['w']", (5,), "bfloat16",
        )  # fmt: skip
        assert record.step == 4
        agrees(columns(record, "['w']"), (), np.asarray(tree["w"]))
        agrees(columns(record, "['n']"), (), np.asarray(tree["n"]))
        assert set(record.value) == {"w", "n", "key"}


def test_several_things_can_be_kept_of_a_leaf() -> None:
    """Each has a name of its own; all of a leaf alone is the leaf."""
    keep = [
        "full",
        "fingerprint",
        Slice(0),
        Slice(slice(1, 3)),
        Cast("bfloat16"),
        lambda x: {"double": x * 2, "sum": x.sum()},
    ]
    (record,) = records_of(jax.jit(lambda x: tracerec.tap(x, "t", keep=keep)), X)
    np.testing.assert_array_equal(part(record, ".full"), X)
    np.testing.assert_array_equal(part(record, ".fingerprint.digest"), fingerprint(X))
    np.testing.assert_array_equal(part(record, ".slice"), X[0])
    np.testing.assert_array_equal(part(record, ".slice_2"), X[1:3])
    np.testing.assert_array_equal(part(record, ".cast"), X.astype(ml_dtypes.bfloat16))
    doubled = [leaf.path for leaf in record.site.leaves if leaf.path.endswith(".double")]
    np.testing.assert_array_equal(part(record, doubled[0]), X * 2)
    (alone,) = records_of(lambda: tracerec.tap(X, "t", keep="full"))
    assert [leaf.path for leaf in alone.site.leaves] == [""]


def test_primals_and_cotangents_are_kept_alike() -> None:
    """Tangents too."""

    def f(x: Any) -> Any:
        return (tracerec.tap(x * 3, "t", keep="summary") ** 2).sum()

    x = np.array([1.0, 2.0, -4.0], np.float32)
    for run in (jax.grad(f), jax.jit(jax.grad(f)), jax.jit(jax.grad(jax.checkpoint(f)))):
        primal, back = sorted(records_of(run, x), key=lambda r: len(r.transforms))
        agrees(columns(primal), (), x * 3)
        agrees(columns(back), (), x * 6)
    (_, tangent) = records_of(jax.jit(lambda x: jax.jvp(f, (x,), (x,))), x)
    assert tangent.site.transform_names == ("jvp",)
    agrees(columns(tangent), (), x * 3)


def test_a_cotangent_of_some_leaves_holds_those() -> None:
    """An integer has none."""

    def f(x: Any, n: Any) -> Any:
        y = tracerec.tap({"n": n, "x": x * 2}, "t", keep=["summary", "fingerprint"])
        return (y["x"] * y["n"]).sum()

    _, back = sorted(records_of(jax.jit(jax.grad(f)), np.ones(3, np.float32), 5), key=lambda r: len(r.transforms))
    assert {leaf.kept.path for leaf in back.site.leaves if leaf.kept} == {"['x']"}
    assert back.value["n"] is None
    agrees(columns(back, "['x']"), (), np.full(3, 5, np.float32))


LANES = np.arange(24, dtype=np.float32).reshape(2, 3, 4) ** 2


def test_under_vmap_one_row_a_lane_or_one_for_all() -> None:
    """With lanes on different axes at each level."""

    def f(over: Any) -> Any:
        return lambda x: tracerec.tap(x + 1, "t", keep=["summary", "full"], over=over)

    inner_second = jax.vmap(jax.vmap(f("lanes"), in_axes=1), in_axes=0)
    for run in (inner_second, jax.jit(inner_second)):
        (record,) = records_of(run, LANES)
        found = columns(record)
        assert found["count"].shape == (2, 4)
        for i in range(2):
            for j in range(4):
                agrees(found, (i, j), LANES[i, :, j] + 1)
        assert [t.dims for t in record.transforms] == [(0, 0, 0, 1), (0, 0, 0, 0)]
        whole = part(record, ".full")
        np.testing.assert_array_equal(whole, LANES + 1)
    (record,) = records_of(jax.jit(jax.vmap(f("batch"))), LANES)
    agrees(columns(record), (), LANES + 1)
    assert [t.dims for t in record.transforms] == [(None, None, None, 0)]


def test_lanes_and_padding_that_do_not_count_are_left_out() -> None:
    """By where and by logical shapes."""
    sizes = np.array([1, 3, 0], np.int32)
    w = np.array([True, False, True])
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    def f(over: Any) -> Any:
        def g(x: Any, n: Any, where: Any) -> Any:
            return tracerec.tap(x, "t", keep=["summary", "fingerprint"], over=over, where=where, logical_shapes=(n,))

        return jax.jit(jax.vmap(g))

    (record,) = records_of(f("lanes"), x, sizes, w)
    found = columns(record)
    for lane, n in enumerate(np.where(w, sizes, 0)):
        agrees(found, lane, x[lane, :n])
    np.testing.assert_array_equal(record.where, w)
    np.testing.assert_array_equal(part(record, ".fingerprint.counts")[:, 0], [1, 0, 0])
    (record,) = records_of(f("batch"), x, sizes, w)
    agrees(columns(record), (), np.concatenate([x[0, :1], x[2, :0]]))


def test_a_leaf_that_is_the_same_for_all_lanes_is_reduced_once() -> None:
    """It counts if a lane does."""

    def f(x: Any, y: Any, where: Any) -> Any:
        return tracerec.tap((x, y), "t", keep="summary", where=where)

    (record,) = records_of(jax.jit(jax.vmap(f, in_axes=(0, None, 0))), LANES[0], X, np.array([False, True, False]))
    found = columns(record, "[1]")
    assert found["count"].shape == ()
    agrees(found, (), X)
    assert columns(record, "[0]")["count"].tolist() == [0, 4, 0]


def test_padding_goes_with_what_is_kept_whole() -> None:
    """The extent is then that of the whole."""

    def f(x: Any, n: Any) -> Any:
        return tracerec.tap(x, "t", keep=["full", "summary"], logical_shapes=(n, None))

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    (record,) = records_of(jax.jit(f), x, 2)
    agrees(columns(record), (), x[:2])
    place = [leaf.path for leaf in record.site.leaves].index(".full")
    np.testing.assert_array_equal(record.logical_shape(place), [2, 2])


def test_in_scans_conds_and_loops() -> None:
    """With decisions."""

    @jax.jit
    def f(x: Any) -> Any:
        def body(carry: Any, step: Any) -> Any:
            carry = tracerec.tap(carry * 2, "scan", step=step, keep="summary", every=2)
            return lax.cond(step > 1, lambda c: tracerec.tap(c, "cond", keep="fingerprint"), lambda c: c, carry), None

        return lax.scan(body, x, jnp.arange(4))[0]

    x = np.array([1.0, 3.0], np.float32)
    records = records_of(f, x)
    scanned = {r.step: r for r in records if r.tap == "scan"}
    assert set(scanned) == {0, 2}
    agrees(columns(scanned[2]), (), x * 8)
    digests = {tuple(part(r, ".fingerprint.digest").tolist()) for r in records if r.tap == "cond"}
    assert digests == {tuple(fingerprint(x * n).tolist()) for n in (8, 16)}


def test_sharded_by_xla_it_is_of_the_whole() -> None:
    """Whatever the sharding; eagerly too."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("d", None)))

    def f(x: Any) -> Any:
        return tracerec.tap(x * 2, "t", keep=["summary", "fingerprint"], shards="local")

    for run, given in ((jax.jit(f), sharded), (f, sharded)):
        (record,) = records_of(run, given)
        agrees(columns(record), (), x * 2)
        np.testing.assert_array_equal(part(record, ".fingerprint.digest"), fingerprint(x * 2))


def test_in_shard_map_and_pmap_it_is_of_the_shard() -> None:
    """One record a device."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    x = np.arange(8, dtype=np.float32)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
    def f(x: Any) -> Any:
        return tracerec.tap(x, "t", keep="summary")

    records = {int(r.row["shard"]): r for r in records_of(f, x)}
    assert set(records) == {0, 1, 2, 3}
    for shard, record in records.items():
        agrees(columns(record), (), x[2 * shard : 2 * shard + 2])
    records = {
        int(r.row["shard"]): r
        for r in records_of(jax.pmap(lambda x: tracerec.tap(x, "t", keep=[Sample(2), TopK(1)])), x.reshape(4, 2))
    }
    assert set(records) == {0, 1, 2, 3}


def test_the_result_and_the_gradient_are_those_of_no_tap() -> None:
    """Bit for bit."""

    def f(x: Any) -> Any:
        return (tracerec.tap(jnp.sin(x), "t", keep=["summary", "histogram", Norms(axis=0)]) ** 2).sum()

    with tracerec.disabled():
        expected = jax.jit(jax.value_and_grad(f))(X)
    found = jax.jit(jax.value_and_grad(f))(X)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_nothing_is_reduced_while_nobody_listens() -> None:
    """The tap is the identity."""
    f = jax.jit(lambda x: tracerec.tap(x, "t", keep="summary"))
    np.testing.assert_array_equal(f(X), X)
    np.testing.assert_array_equal(tracerec.tap(X, "t", keep="summary"), X)


@pytest.mark.parametrize(
    ("keep", "message"),
    [("all", "keep='all'"), ([], "keeps nothing"), (Slice(9), "t"), (Norms(axis=4), "t"), (3, "keep=3")],
)
def test_what_cannot_be_kept_is_refused_by_name(keep: Any, message: str) -> None:
    """Where it is lowered, or fires."""
    with pytest.raises(TapError, match=message):
        records_of(jax.jit(lambda x: tracerec.tap(x, "t", keep=keep)), X)
    with pytest.raises(TapError, match=message):
        records_of(lambda x: tracerec.tap(x, "t", keep=keep), X)
