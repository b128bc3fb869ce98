"""What readers compute: positions, edges, digests, columns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tapping.reductions import reference
from tracerec.errors import TapError
from tracerec.keeping import (
    Histogram,
    exponent_of,
    fingerprint,
    fingerprint_seed,
    histogram_edges,
    sample_positions,
    summary_columns,
)
from tracerec.protocol import dtypes
from tracerec.statistics import COUNTS, MEASURES, moments

DIGESTS = {
    "float32": [1110573572, 817845243],
    "float64": [2375705027, 719622106],
    "bfloat16": [2824340587, 3532008693],
    "int4": [1633843866, 1118578399],
    "bool": [295308684, 1102109606],
    "complex128": [448274810, 1959637574],
    "empty": [3229595610, 3728168021],
}
SAMPLE = [294, 582, 743, 744, 826]
BITS = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40)


@given(st.integers(1, 50), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 9), max_size=3))
@settings(max_examples=60, deadline=None)
def test_samples_are_distinct_and_inside(n: int, seed: int, shape: list[int]) -> None:
    """Ascending, as many as asked for or as there are."""
    found = sample_positions(n, seed, shape)
    size = int(np.prod(shape))
    assert len(found) == min(n, size)
    assert (np.diff(found) > 0).all()
    assert not len(found) or (found[0] >= 0 and found[-1] < size)


def test_samples_never_change() -> None:
    """Positions are not on disk: a release that gave others would misread every older trace."""
    assert sample_positions(5, 0, (1000,)).tolist() == SAMPLE
    assert sample_positions(5, 1, (1000,)).tolist() != SAMPLE
    assert sample_positions(5, 0, (10, 100)).tolist() == SAMPLE


def test_samples_are_even() -> None:
    """Every element has the same chance: chi-squared over a thousand seeds."""
    counts = np.zeros(100)
    for seed in range(1000):
        counts[sample_positions(10, seed, (100,))] += 1
    assert ((counts - 100) ** 2 / 90).sum() < 150


def test_edges() -> None:
    """Of every dtype: a bin a power of two, fewer when told."""
    for name in dtypes.NAMES:
        edges = histogram_edges(Histogram(), name)
        assert (np.log2(edges) == np.round(np.log2(edges))).all()
        assert (edges[1:] / edges[:-1] == 2).all()
    assert histogram_edges(Histogram(), "float32")[[0, -1]].tolist() == [2.0**-126, 2.0**128]
    assert histogram_edges(Histogram(), "float64")[[0, -1]].tolist() == [2.0**-126, 2.0**128]
    assert histogram_edges(Histogram(), "float8_e4m3fn")[[0, -1]].tolist() == [2.0**-6, 2.0**9]
    assert histogram_edges(Histogram(), "uint4").tolist() == [1, 2, 4, 8, 16]
    assert histogram_edges(Histogram(bins=2, range=(0, 4)), "float32").tolist() == [1, 8, 32]
    assert len(histogram_edges(Histogram(by="linear", range=(0, 1)), "float32")) == 65
    with pytest.raises(TapError, match="in the records"):
        histogram_edges(Histogram(by="linear"), "float32")
    assert [exponent_of(x) for x in (1, 1.9, 2, 0.5, 5e-324, 1.7e308)] == [0, 0, 1, -1, -1074, 1023]


def test_digests_never_change() -> None:
    """They are on disk: a release that gave others would find every older trace different."""
    found = {
        "float32": fingerprint(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "float64": fingerprint(np.arange(6, dtype=np.float64)),
        "bfloat16": fingerprint(np.arange(6).astype(ml_dtypes.bfloat16)),
        "int4": fingerprint(np.arange(-3, 3).astype(ml_dtypes.int4)),
        "bool": fingerprint(np.array([True, False])),
        "complex128": fingerprint(np.array([1 + 2j])),
        "empty": fingerprint(np.zeros((0, 3), np.int8)),
    }
    assert {name: [int(word) for word in digest] for name, digest in found.items()} == DIGESTS
    assert [int(x) for x in found["empty"]] == list(fingerprint_seed("int8", (0, 3)))


@given(BITS, st.data())
@settings(max_examples=150, deadline=None)
def test_any_bit_changes_both_words(words: list[int], data: st.DataObject) -> None:
    """One flipped bit of one element, whatever the others are."""
    array = np.array(words, np.uint32)
    changed = array.copy()
    place = data.draw(st.integers(0, len(words) - 1))
    changed[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    for dtype in (np.uint32, np.float32):
        assert (fingerprint(array.view(dtype)) != fingerprint(changed.view(dtype))).all()


@given(BITS, st.data())
@settings(max_examples=150, deadline=None)
def test_exchanged_elements_change_it(words: list[int], data: st.DataObject) -> None:
    """Two that are not equal; so do shifts of all."""
    array = np.array(words, np.uint32)
    first, second = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, len(words) - 1))
    changed = array.copy()
    changed[[first, second]] = array[[second, first]]
    for dtype in ("<u4", "<u2", "u1"):
        one, other = array.view(dtype), changed.view(dtype)
        assert (fingerprint(one).tolist() == fingerprint(other).tolist()) == (one.tolist() == other.tolist())
        rolled = np.roll(one, 1)
        assert (fingerprint(one).tolist() == fingerprint(rolled).tolist()) == (one.tolist() == rolled.tolist())


def test_no_collisions_among_similar_arrays() -> None:
    """All arrays of seven small integers; one-hot arrays; constant ones: as different as random ones."""
    codes = np.arange(4**7, dtype=np.uint32)
    rows = np.stack([(codes >> np.uint32(2 * place)) & np.uint32(3) for place in range(7)], axis=1)
    found = {tuple(digest) for digest in fingerprint(rows.astype(np.int8), 1).tolist()}
    assert len(found) == 4**7
    hot = fingerprint(np.eye(2000, dtype=np.float32), 1)
    assert len({tuple(digest) for digest in hot.tolist()}) == 2000
    # Each word alone is a hash of 32 bits: two of 16384 arrays share one with a chance of three in a hundred.
    for word in range(2):
        assert len(set(fingerprint(rows.astype(np.int8), 1)[:, word].tolist())) > 4**7 - 3


def test_dtype_shape_and_sign_of_zero_count() -> None:
    """Equal bits of another dtype or shape are another array; so is -0.0."""
    zeros = np.zeros(6, np.float32)
    others = [zeros.view(np.uint32), zeros.reshape(2, 3), zeros.reshape(6, 1), -zeros, zeros[:5]]
    assert len({tuple(fingerprint(array).tolist()) for array in (zeros, *others)}) == 6


def test_strides_lanes_and_masks() -> None:
    """Of the values, not of how they lie; a lane alone; masked elements not at all."""
    rng = np.random.default_rng(1)
    array = rng.normal(size=(4, 30, 50)).astype(np.float32)
    mask = rng.random((4, 30, 1)) < 0.5
    turned = np.ascontiguousarray(array.transpose(2, 0, 1)).transpose(1, 2, 0)
    np.testing.assert_array_equal(fingerprint(turned, 1), fingerprint(array, 1))
    np.testing.assert_array_equal(fingerprint(array, 1)[2], fingerprint(array[2]))
    other = np.where(mask, array, np.float32(7))
    np.testing.assert_array_equal(fingerprint(array, 1, mask), fingerprint(other, 1, mask))
    assert (fingerprint(array, 1) != fingerprint(other, 1)).all()
    assert fingerprint(array, 3).shape == (4, 30, 50, 2)
    large = np.arange(200_000, dtype=np.uint8)
    assert fingerprint(large).tolist() != fingerprint(np.roll(large, 256)).tolist()


def parts_of(leaf: np.ndarray, lanes: int) -> list[np.ndarray]:
    """The parts of a summary, computed in numpy, with an exponent that is not needed."""
    shape = leaf.shape[:lanes]
    counts, ends = np.zeros((*shape, 6), np.uint32), np.zeros((*shape, 2), leaf.dtype)
    numbers = np.full((*shape, 5), np.nan)
    numbers[..., 4] = 0
    for lane in np.ndindex(*shape):
        whole = np.ones(leaf.shape[lanes:], bool)
        counts[lane] = reference.counts(leaf[lane], whole)
        found = reference.measures(reference.finite(leaf[lane], whole))
        ends[lane] = found["min"], found["max"]
        if not np.isnan(found["mean"]):
            exponent = sum(lane) * 3 - 4
            numbers[lane] = [*(float(found[name]) * 2.0**-exponent for name in ("mean", "std", "l1", "l2")), exponent]
    return [counts, ends, numbers]


def test_columns_are_those_of_statistics() -> None:
    """Lanes put together give what the whole leaf has; lanes of NaN alone, and no finite element at all."""
    leaf = np.random.default_rng(1).normal(size=(5, 2, 3, 40)) * np.logspace(-3, 3, 5).reshape(5, 1, 1, 1)
    leaf[0, 0, 0], leaf[1, 1, 2, :4], leaf[3] = np.nan, [np.inf, -np.inf, 0, 5e-324], np.nan
    columns = summary_columns(*parts_of(leaf, 3), lanes=2)
    assert tuple(columns) == (*COUNTS, *MEASURES, "subnormals", "l1", "largest")
    for number, record in enumerate(leaf):
        expected = moments(record)
        values = record[np.isfinite(record)]
        largest = np.abs(values).max(initial=0)
        for name in COUNTS:
            assert columns[name][number] == getattr(expected, name)
        for name in MEASURES:
            value = np.nan if getattr(expected, name) is None else getattr(expected, name)
            np.testing.assert_allclose(columns[name][number], value, rtol=1e-12, atol=1e-12 * largest)
        np.testing.assert_allclose(columns["l1"][number], np.abs(values).sum() if values.size else np.nan, rtol=1e-12)
    assert columns["subnormals"].tolist() == [0, 1, 0, 0, 0]
    apart = summary_columns(*parts_of(leaf, 3))
    assert apart["l2"].shape == (5, 2, 3)


def test_columns_of_no_records() -> None:
    """Empty columns of the same dtypes."""
    columns = summary_columns(np.zeros((0, 6), np.uint32), np.zeros((0, 2), np.int8), np.zeros((0, 5), np.float32))
    assert {(column.shape, column.dtype.kind) for column in columns.values()} == {((0,), "i"), ((0,), "f")}


def test_columns_beyond_float64() -> None:
    """An l2 norm of float64 can be: it is then not there."""
    counts = np.array([[4, 0, 0, 0, 0, 0]], np.uint32)
    numbers = np.array([[1.0, 0.0, 4.0, 2.0, 1023.0]])
    columns = summary_columns(counts, np.full((1, 2), 2.0**1023), numbers)
    assert columns["mean"].tolist() == [2.0**1023]
    assert np.isnan([columns["l1"][0], columns["l2"][0]]).all()
    assert columns["largest"].tolist() == [2.0**1023]
