"""Slices, samples, the largest elements, quantiles, casts, norms and users' functions, against numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tapping.reductions import checks, reference
from tracerec.errors import TapError
from tracerec.keeping import Cast, Function, Norms, Quantiles, Sample, Slice, TopK, from_json, sample_positions
from tracerec.protocol import dtypes
from tracerec.tapping.reductions import reduce, reduce_parts

NAMES = ["float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn", "int4", "int32", "uint32", "bool", "complex64"]
SHAPE = (3, 4, 30)
MASK = np.random.default_rng(4).random(SHAPE) < 0.5


def bits(array: np.ndarray) -> Any:
    """What two arrays must have in common."""
    return array.shape, array.dtype, array.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_slices_and_samples(name: str) -> None:
    """Bit for bit; what does not count is zero bits; each lane by itself."""
    leaf = reference.random_bits(name, SHAPE, 2)
    cleared = np.where(MASK, leaf, np.zeros((), leaf.dtype))
    for mask, source in ((None, leaf), (MASK, cleared)):
        for keep, lanes in ((Slice(1, slice(None, None, -3)), 1), (Slice(..., slice(-2, None)), 2)):
            (part,) = checks.parts_of(keep, leaf, lanes, mask)
            assert bits(part) == bits(np.ascontiguousarray(source[(slice(None),) * lanes + keep.key]))
        (part,) = checks.parts_of(Sample(7, seed=3), leaf, 1, mask)
        assert bits(part) == bits(source.reshape(3, -1)[:, sample_positions(7, 3, SHAPE[1:])])


def test_samples_of_small_leaves() -> None:
    """Scalars, empty leaves and leaves smaller than the sample are kept whole."""
    for shape in ((), (0,), (2, 2)):
        leaf = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        (part,) = checks.parts_of(Sample(9), leaf, 0)
        np.testing.assert_array_equal(part, leaf.reshape(-1), strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest(name: str) -> None:
    """By magnitude, NaN first, ties in order of position; fewer that count than asked for."""
    leaf = reference.random_bits(name, SHAPE, 3)
    leaf[0, 0, :2] = 0
    for mask in (None, MASK, np.zeros(SHAPE, bool)):
        values, positions = checks.parts_of(TopK(5), leaf, 1, mask)
        assert (values.dtype, positions.dtype) == (leaf.dtype, np.uint32)
        for lane in range(SHAPE[0]):
            one = leaf[lane].reshape(-1)
            size = np.abs(reference.plain(one))
            live = np.flatnonzero(np.ones(one.size, bool) if mask is None else mask[lane].reshape(-1))
            key = np.where(np.isnan(size), np.inf, size)
            order = sorted(live, key=lambda place: (not np.isnan(size[place]), -key[place], place))[:5]
            assert positions[lane].tolist() == [*order, *[2**32 - 1] * (5 - len(order))]
            assert values[lane, : len(order)].tobytes() == one[order].tobytes()
            assert not values[lane, len(order) :].view(np.uint8).any()


def test_the_largest_of_a_small_leaf() -> None:
    """As many as there are."""
    for shape, count in (((), 1), ((0,), 0), ((2, 1), 2)):
        values, positions = checks.parts_of(TopK(5), np.ones(shape, np.float32), 0)
        assert values.shape == positions.shape == (count,)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int32", "bool", "complex64"])
def test_quantiles(name: str) -> None:
    """As numpy's, over what is finite and counts."""
    keep = Quantiles((0, 0.1, 0.25, 0.5, 2 / 3, 1))
    for leaf in (reference.random_bits(name, SHAPE, 4), *reference.leaves(name, SHAPE).values()):
        for mask in (None, MASK, np.zeros(SHAPE, bool)):
            (part,) = checks.parts_of(keep, leaf, 1, mask)
            assert part.dtype == np.float32
            for lane in range(SHAPE[0]):
                values = reference.finite(leaf[lane], np.ones(SHAPE[1:], bool) if mask is None else mask[lane])
                if not values.size:
                    assert np.isnan(part[lane]).all()
                    continue
                with np.errstate(all="ignore"):
                    expected = np.quantile(values.astype(np.float64), keep.q)
                size = np.abs(values).max()
                # What lies between two subnormal numbers may be flushed to zero.
                np.testing.assert_allclose(part[lane], expected, rtol=1e-5, atol=1e-6 * float(size) + 1.2e-38)


def test_casts() -> None:
    """Rounded as numpy and ml_dtypes round."""
    leaf = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    for name in ("bfloat16", "float16", "float8_e4m3fn", "complex64", "float32"):
        (part,) = checks.parts_of(Cast(name), leaf, 1)
        np.testing.assert_array_equal(part, leaf.astype(dtypes.from_name(name)), strict=True)
    (part,) = checks.parts_of(Cast("bfloat16"), leaf, 1, MASK)
    expected = np.where(MASK, leaf.astype(dtypes.from_name("bfloat16")), dtypes.from_name("bfloat16").type(0))
    np.testing.assert_array_equal(part, expected, strict=True)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "complex64"])
@pytest.mark.parametrize("axis", [None, 0, (-1,), (0, 1)], ids=str)
def test_norms(name: str, axis: Any) -> None:
    """Sums in float64; huge and subnormal elements; NaN and infinities show."""
    keep = Norms(axis)
    own = None if axis is None else tuple(np.atleast_1d(axis).tolist())
    for leaf in reference.leaves(name, SHAPE).values():
        for mask in (None, MASK):
            (part,) = checks.parts_of(keep, leaf, 1, mask)
            values = reference.plain(leaf)
            values = values if mask is None else np.where(mask, values, 0)
            axes = (1, 2) if own is None else tuple(1 + x if x >= 0 else 3 + x for x in own)
            with np.errstate(all="ignore"):
                expected = np.sqrt(np.square(values).sum(axis=axes))
                expected = np.where(expected > np.finfo(np.float32).max, np.inf, expected.astype(np.float64))
            unit = float(np.finfo(np.float32).smallest_subnormal)
            np.testing.assert_allclose(part, expected, rtol=1e-5, atol=unit)


def test_functions() -> None:
    """One array or several, lane by lane; with the mask if they take it."""
    leaf = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)

    def extremes(x: Any) -> Any:
        return {"low": x.min(), "high": {"value": x.max(), "all": (x.sum(axis=0), 1)}}

    found = reduce_parts(Function(extremes), jnp.asarray(leaf), 1)
    assert {name: part.shape for name, part in found.items()} == {
        "high.all.0": (3, 30),
        "high.all.1": (3,),
        "high.value": (3,),
        "low": (3,),
    }
    np.testing.assert_array_equal(found["low"], leaf.min(axis=(1, 2)))
    (one,) = reduce_parts(Function(jnp.max), jnp.asarray(leaf), 2).items()
    assert one[0] == "value"
    np.testing.assert_array_equal(one[1], leaf.max(axis=2))

    def counted(x: Any, where: Any) -> Any:
        return jnp.float32(x.size) if where is None else where.sum().astype(np.float32)

    for mask, expected in ((None, [120.0] * 3), (MASK, MASK.sum(axis=(1, 2)).tolist())):
        valid = None if mask is None else jnp.asarray(mask)
        assert reduce(Function(counted, where=True), jnp.asarray(leaf), 1, valid)[0].tolist() == expected


def test_functions_that_cannot_be_called() -> None:
    """One that was read from a recording; one that returns nothing."""
    for keep, text in ((from_json(Function(abs).to_json()), "name alone"), (Function(lambda _: None), "no array")):
        with pytest.raises(TapError, match=text):
            reduce(keep, jnp.ones(3))


def test_large_positions() -> None:
    """Quantiles of more elements than float32 has integers: the place between two is exact."""
    leaf = jnp.arange(1 << 21, dtype=np.int32)
    (part,) = jax.jit(lambda x: reduce(Quantiles((0.5, 0.999999)), x))(leaf)
    np.testing.assert_allclose(part, np.quantile(np.arange(1 << 21), (0.5, 0.999999)), rtol=1e-7)
