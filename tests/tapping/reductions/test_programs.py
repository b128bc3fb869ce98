"""Reductions wherever a tap can stand: eager, jitted, in scan, cond, shard_map, sharded; what they compile to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.tapping.reductions import checks
from tracerec.errors import TapError
from tracerec.keeping import (
    Cast,
    Fingerprint,
    Full,
    Histogram,
    Keep,
    Norms,
    Quantiles,
    Sample,
    Slice,
    Summary,
    TopK,
)
from tracerec.tapping.reductions import reduce

KINDS: list[Keep] = [
    Full(),
    Summary(),
    Fingerprint(),
    Histogram(),
    Histogram(by="linear", bins=5),
    Histogram(by="linear", bins=5, range=(-1, 1)),
    Slice(0, slice(4)),
    Sample(9),
    Quantiles((0.1, 0.5)),
    TopK(4),
    Cast("bfloat16"),
    Norms(-1),
]
LEAF = np.random.default_rng(5).normal(size=(8, 16, 12)).astype(np.float32)
LEAF[0, 0, :4] = [np.nan, -np.inf, 0.0, 1e-40]
MASK = np.random.default_rng(6).random((8, 16, 12)) < 0.6


def same(found: Any, expected: Any, *, rtol: float = 0) -> None:
    """Equal arrays, in dtype and shape too; floats to a tolerance."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if rtol and a.dtype == np.float32:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
        else:
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("keep", KINDS, ids=str)
def test_sharded_equals_whole(keep: Keep) -> None:
    """Four devices, in no natural order: counts, ranges and digests bit for bit, sums to rounding."""
    mesh = Mesh(np.array(jax.devices())[[2, 0, 3, 1]].reshape(2, 2), ("a", "b"))
    function = jax.jit(lambda x: reduce(keep, x))
    expected = function(jnp.asarray(LEAF))
    for spec in (P("a", "b"), P(None, None, ("b", "a"))):
        same(function(jax.device_put(LEAF, NamedSharding(mesh, spec))), expected, rtol=1e-6)


def test_a_sharded_leaf_is_not_gathered() -> None:
    """What goes between devices are results, never the leaf."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    shape = (64, 128, 32)
    leaf = jax.device_put(np.zeros(shape, np.float32), NamedSharding(mesh, P("a", "b")))
    for keep in (Summary(), Fingerprint(), Norms(-1), Sample(9)):
        text = jax.jit(lambda x, keep=keep: reduce(keep, x)).lower(leaf).compile().as_text() or ""
        for line in text.splitlines():
            if " all-gather(" in line or " all-to-all(" in line:
                assert "[64,128,32]" not in line
                assert "[64,64,32]" not in line
                assert "[32,128,32]" not in line


@pytest.mark.parametrize("keep", KINDS, ids=str)
def test_no_effects_and_no_64_bit_types(keep: Keep) -> None:
    """Whatever the device is asked to make, with x64 off nothing of 64 bits is in the program."""
    for lanes, mask in ((0, None), (1, MASK)):
        closed = jax.make_jaxpr(lambda x, valid, lanes=lanes: reduce(keep, x, lanes, valid))(LEAF, mask)
        assert not closed.effects
        text = str(closed)
        assert not any(name in text for name in ("i64[", "u64[", "f64[", "c128[", "callback"))


def test_one_branch_for_all_lanes() -> None:
    """A branch for each lane would compute both."""
    text = jax.jit(lambda x: reduce(Summary(), x, 2)).lower(LEAF).compile().as_text() or ""
    assert text.count(" conditional(") == 1


def test_eager_equals_jitted() -> None:
    """With and without lanes and masks, and masks that broadcast."""
    x = jnp.asarray(LEAF)
    for keep in (Summary(), Fingerprint(), TopK(2)):
        for lanes, mask in ((0, None), (1, jnp.asarray(MASK[:, :1])), (1, jnp.asarray(MASK[:1, :1, :1]))):
            jitted = jax.jit(lambda x, valid, lanes=lanes, keep=keep: reduce(keep, x, lanes, valid))
            same(reduce(keep, x, lanes, mask), jitted(x, mask))
            if keep == Summary():
                parts = [np.asarray(part) for part in jitted(x, mask)]
                checks.check_summary(LEAF, lanes, None if mask is None else np.asarray(mask), parts)


def test_inside_scan_cond_and_shard_map() -> None:
    """The same numbers as outside."""
    keeps = (Summary(), Fingerprint())

    def both(x: Any, valid: Any = None) -> Any:
        return [part for keep in keeps for part in reduce(keep, x, 0, valid)]

    expected = [both(jnp.asarray(row)) for row in LEAF]

    @jax.jit
    def scanned(x: Any) -> Any:
        return lax.scan(lambda c, row: (c, lax.cond(c > 0, both, both, row)), jnp.int32(1), x)[1]

    found = scanned(jnp.asarray(LEAF))
    for number, parts in enumerate(expected):
        same([part[number] for part in found], parts, rtol=1e-6)

    mesh = Mesh(np.array(jax.devices()), ("d",))
    mapped = jax.jit(
        jax.shard_map(
            lambda x: [part[None] for part in both(x[0])], mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False
        )
    )
    for number, parts in enumerate(expected[:4]):
        same([part[number] for part in mapped(jnp.asarray(LEAF[:4]))], parts, rtol=1e-6)


def test_each_lane_is_as_if_alone() -> None:
    """The values and the mask of each."""
    for keep in (Summary(), Fingerprint(), Histogram(by="linear", bins=5), TopK(4), Quantiles((0.1, 0.5))):
        found = jax.jit(lambda x, valid, keep=keep: reduce(keep, x, 1, valid))(LEAF, MASK)
        alone = jax.jit(lambda x, valid, keep=keep: reduce(keep, x, 0, valid))
        for lane in (0, 5):
            same([part[lane] for part in found], alone(LEAF[lane], MASK[lane]), rtol=1e-6)


def test_what_cannot_be_kept() -> None:
    """The message says what and of which leaf."""
    x = jnp.zeros((3, 4))
    for keep, text in (
        (Slice(3), r"shape \(3, 4\)"),
        (Slice(0, 0, 0), "indices"),
        (Norms((0, 5)), "axes"),
        (Norms((0, -2)), "twice"),
        (Cast("float64"), "x64"),
        (Histogram(bins=500), "254 powers of two"),
        (Histogram(bins=50, by="linear", range=(1, 1 + 1e-7)), "cannot hold"),
    ):
        with pytest.raises(TapError, match=text):
            reduce(keep, x)
    with pytest.raises(TapError, match="imaginary"):
        reduce(Cast("float32"), x.astype(np.complex64))
    with pytest.raises(TapError, match="2\\*\\*32"):
        jax.eval_shape(lambda x: reduce(Summary(), x), jax.ShapeDtypeStruct((1 << 16, 1 << 16), np.int8))
