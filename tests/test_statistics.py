"""Statistics against numpy in float64, and where numpy itself would overflow, against exact arithmetic."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tracerec.protocol import dtypes
from tracerec.statistics import SPARK_POINTS, LeafSummary, Moments, Summarizer, moments, summarize

NO_NUMBERS = {"min": None, "max": None, "mean": None, "std": None, "l2": None}


def as_float64(array):
    """Returns the numbers that count: bools as 0 and 1, magnitudes of complex numbers, anything as float64."""
    if array.dtype.kind == "c":
        with np.errstate(all="ignore"):
            wide = array.astype(np.complex128)
            magnitudes = np.hypot(wide.real, wide.imag)
        magnitudes[np.isnan(wide.real) | np.isnan(wide.imag)] = np.nan
        return magnitudes
    with np.errstate(all="ignore"):
        if array.dtype.kind in "iub":
            return array.astype(np.float64)
        return array.astype(np.float32 if array.dtype.itemsize < 4 else array.dtype).astype(np.float64)


def expected(array):
    """Returns the moments by the textbook, of all elements at once."""
    wide = as_float64(array).ravel()
    finite = wide[np.isfinite(wide)]
    numbers = dict(NO_NUMBERS)
    if finite.size:
        numbers = {
            "min": finite.min(),
            "max": finite.max(),
            "mean": finite.mean(),
            "std": finite.std(),
            "l2": math.sqrt(np.square(finite).sum()),
        }
    return {
        "count": wide.size,
        "finite": finite.size,
        "nan": np.isnan(wide).sum(),
        "posinf": np.isposinf(wide).sum(),
        "neginf": np.isneginf(wide).sum(),
        "zeros": (wide == 0).sum(),
        **numbers,
    }


def assert_moments(array):
    """Asserts that the moments are the textbook's; exact but for the last digits of sums."""
    got, want = moments(array).to_json(), expected(array)
    for name in ("count", "finite", "nan", "posinf", "neginf", "zeros"):
        assert got[name] == want[name], name
    # numpy has two ways to a magnitude, which differ in the last digit.
    tolerance = 1e-15 if array.dtype.kind == "c" else 0
    for name in ("min", "max"):
        assert got[name] == (want[name] and pytest.approx(want[name], rel=tolerance, abs=0)), name
    scale = max(abs(want["min"] or 0), abs(want["max"] or 0))
    for name in ("mean", "std", "l2"):
        assert got[name] == pytest.approx(want[name], rel=1e-12, abs=1e-12 * scale), name


def elements(name, size, seed=0):
    """Returns ordinary numbers of a dtype: some negative, some zero."""
    random = np.random.default_rng(seed)
    dtype = dtypes.from_name(name)
    if name == "bool":
        return random.integers(0, 2, size).astype(bool)
    if "int" in name:
        info = ml_dtypes.iinfo(dtype)
        return random.integers(int(info.min), int(info.max), size, np.int64 if info.min else np.uint64).astype(dtype)
    numbers = random.standard_normal(size) * 2
    numbers[::7] = 0
    if "complex" in name:
        return (numbers + 1j * random.standard_normal(size)).astype(dtype)
    return (np.abs(numbers) + 0.1 if name == "float8_e8m0fnu" else numbers).astype(dtype)


@pytest.mark.parametrize("name", dtypes.NAMES)
@pytest.mark.parametrize("size", [1, 5, 1000, 200_000])
def test_every_dtype(name, size):
    """Moments of every dtype are those of its numbers in float64, in one block and in several."""
    assert_moments(elements(name, size))


@pytest.mark.parametrize("name", [n for n in dtypes.NAMES if dtypes.from_name(n).itemsize == 1 and n != "bool"])
def test_every_code_of_small_types(name):
    """All 256 bytes of a one-byte type: NaNs, infinities, pad bits and all."""
    assert_moments(np.arange(256, dtype=np.uint8).view(dtypes.from_name(name)))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_code_of_two_byte_floats(name):
    """All 65,536 patterns: sums of squares far beyond the type's own range, NaN payloads."""
    assert_moments(np.arange(65536, dtype=np.uint16).view(dtypes.from_name(name)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "complex64"])
def test_non_finite_elements_are_counted_and_left_out(name):
    """NaN and infinities have counts of their own; the rest is over what is finite."""
    array = np.array([1, np.nan, -3, np.inf, -np.inf, 0, -0.0, np.inf]).astype(dtypes.from_name(name))
    assert_moments(array)
    assert moments(array).finite == 4


def test_complex_parts():
    """A NaN part makes a complex number NaN, an infinite part otherwise a positive infinity."""
    array = np.array([complex(np.nan, np.inf), complex(0, -np.inf), complex(-np.inf, 1), 3 + 4j, 0], np.complex128)
    assert moments(array) == Moments(5, 2, 1, 2, 0, 1, 0.0, 5.0, 2.5, 2.5, 5.0)


@pytest.mark.parametrize("name", dtypes.NAMES)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 5)])
def test_nothing(name, shape):
    """An empty array has no numbers, only counts of zero."""
    assert moments(np.empty(shape, dtypes.from_name(name))) == Moments(0, 0, 0, 0, 0, 0, **NO_NUMBERS)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "complex64", "float8_e8m0fnu"])
def test_only_nan(name):
    """An array of NaN alone has no numbers."""
    array = np.full(100_000, np.nan).astype(dtypes.from_name(name))
    assert moments(array) == Moments(100_000, 0, 100_000, 0, 0, 0, **NO_NUMBERS)


def test_a_scalar():
    """A 0-d array is one element."""
    assert moments(np.array(-2.0, np.float32)) == Moments(1, 1, 0, 0, 0, 0, -2.0, -2.0, -2.0, 0.0, 2.0)


def test_integers_beyond_float64():
    """64-bit integers are rounded to float64, never wrapped."""
    array = np.array([2**64 - 1, 2**64 - 1], np.uint64)
    assert moments(array) == Moments(2, 2, 0, 0, 0, 0, 2.0**64, 2.0**64, 2.0**64, 0.0, 2.0**64 * math.sqrt(2))
    assert moments(np.array([-(2**63)], np.int64)).min == -(2.0**63)


@pytest.mark.parametrize(
    "values",
    [
        [1e300, -1e300, 3e300],
        [1e-300, 2e-300, -5e-300],
        [5e-324, 5e-324],
        [9e307, -9e307],
        [1e200, 1.0, 1e-200],
        [0.0, 0.0],
    ],
)
def test_squares_beyond_float64(values):
    """Where squares overflow or underflow float64, the results are those of exact arithmetic."""
    exact = [Fraction(x) for x in values]
    n, mean = len(exact), sum(exact) / len(exact)
    got = moments(np.array(values))
    assert got.mean == pytest.approx(float(mean), rel=1e-14)
    assert got.l2 == pytest.approx(root(sum(x * x for x in exact)), rel=1e-14)
    assert got.std == pytest.approx(root(sum((x - mean) ** 2 for x in exact) / n), rel=1e-14)


def root(square):
    """Returns the square root of a fraction, as float64."""
    scaled = square * 2**2200
    return float(Fraction(math.isqrt(int(scaled)), 2**1100))


def test_blocks_of_very_different_size_are_merged():
    """Blocks of zeros, of tiny, of ordinary and of huge numbers merge without loss, in any order."""
    block = 1 << 16
    parts = [np.zeros(block), np.full(block, 1e-300), np.full(block, 1.5), np.full(block, 1e300)]
    root_n = math.sqrt(block)
    assert moments(np.concatenate(parts)).l2 == pytest.approx(1e300 * root_n, rel=1e-14)
    assert moments(np.concatenate(parts[::-1])).l2 == pytest.approx(1e300 * root_n, rel=1e-14)
    assert moments(np.concatenate(parts[:2])).l2 == pytest.approx(1e-300 * root_n, rel=1e-14)
    assert moments(np.concatenate(parts[1::-1])).l2 == pytest.approx(1e-300 * root_n, rel=1e-14)
    assert moments(np.concatenate(parts[:3])).mean == pytest.approx(0.5, rel=1e-14)


def test_an_l2_norm_beyond_float64():
    """A norm that float64 cannot hold is None; the rest is there."""
    got = moments(np.array([1.7e308, 1.7e308]))
    assert (got.l2, got.mean, got.std) == (None, 1.7e308, 0.0)


def test_a_small_deviation_beside_a_large_mean():
    """The variance does not cancel: it is not the difference of two large sums."""
    array = 1e9 + np.array([-1.0, 0.0, 1.0] * 100_000)
    assert moments(array).std == pytest.approx(math.sqrt(2 / 3), rel=1e-9)


def test_any_memory_layout():
    """Transposed, strided and reversed arrays have the moments of a copy."""
    array = np.arange(600_000, dtype=np.float32).reshape(200, 50, 60)
    for view in (array.T, array[::2, ::3], array[:, ::-1], array[..., 7], array.ravel()[::-7]):
        assert_moments(view)


@settings(max_examples=200, deadline=None)
@given(npst.arrays(st.sampled_from(["f4", "f8", "i8", "u8", "c8"]), npst.array_shapes(max_dims=3)))
def test_any_array_of_json(array):
    """Whatever the array, the moments become strict JSON and come back exactly."""
    got = moments(array)
    text = json.dumps(got.to_json(), allow_nan=False)
    assert Moments.from_json(json.loads(text)) == got
    assert got.finite + got.nan + got.posinf + got.neginf == got.count == array.size


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_summaries_of_every_dtype(name):
    """Totals, the last record and the means are those of the records one by one."""
    array = elements(name, 60 * 12).reshape(60, 3, 4)
    summary = summarize([array[:13], array[13:14], array[14:]], 60)
    assert summary.records == 60
    assert summary.last == moments(array[-1])
    assert summary.nan == expected(array)["nan"]
    picks = [n * 59 // 47 for n in range(48)]
    means = [as_float64(array[n]).mean() for n in picks]
    assert summary.spark == pytest.approx(means, rel=1e-12, abs=1e-12 * max(map(abs, means)))


@pytest.mark.parametrize("records", [0, 1, 2, 47, 48, 49, 50, 97, 1000, 12345])
def test_spark_points(records):
    """At most 48 records are picked, evenly, first and last among them; all of them while they are few."""
    spark = summarize([np.arange(records, dtype=np.float64)], records).spark
    assert len(spark) == min(records, SPARK_POINTS)
    if records:
        assert (spark[0], spark[-1]) == (0, records - 1)
    gaps = np.diff(np.array(spark, float))
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "complex64"])
def test_non_finite_records(name):
    """Totals count every record; a record without a finite element has no mean."""
    array = np.ones((100, 4), np.float32)
    array[3] = np.nan
    array[50, 1:] = np.inf
    array[99, 0] = -np.inf
    summary = summarize([array.astype(dtypes.from_name(name))], 100)
    negative = 0 if name == "complex64" else 1
    assert (summary.nan, summary.posinf, summary.neginf) == (4, 4 - negative, negative)
    assert summary.last.finite == 3
    assert set(summary.spark) <= {1.0, None}


def test_huge_numbers_in_a_spark():
    """A mean whose sum would overflow is still right."""
    array = np.full((3, 8), 1.7e308)
    assert summarize([array], 3).spark == pytest.approx([1.7e308] * 3, rel=1e-15)


def test_large_records():
    """Records larger than a block have the same means."""
    array = np.random.default_rng(0).standard_normal((3, 100_000)).astype(np.float32)
    assert summarize([array], 3).spark == pytest.approx(array.astype(float).mean(axis=1).tolist(), rel=1e-9)


def test_empty_records():
    """Records of no elements have a summary; so has a stream without records."""
    summary = summarize([np.zeros((5, 0), np.float32)], 5)
    assert (summary.last.count, summary.spark) == (0, (None,) * 5)
    nothing = summarize([], 0)
    assert (nothing.records, nothing.last.count, nothing.spark) == (0, 0, ())


def test_keys_are_counted_only():
    """PRNG key data have a count and no statistics."""
    summary = summarize([np.ones((5, 3, 2), np.uint32)], 5, key=True)
    assert summary == LeafSummary(5, 0, 0, 0, Moments(6, 6, 0, 0, 0, 0, **NO_NUMBERS), ())


def test_a_wrong_number_of_records():
    """Blocks that hold more or fewer records than announced raise ValueError."""
    for blocks in ([], [np.zeros((2, 3))], [np.zeros((2, 3)), np.zeros((2, 3))]):
        with pytest.raises(ValueError, match="records for a summary of 3"):
            summarize(blocks, 3)


def test_summaries_are_strict_json():
    """A summary with every kind of gap becomes JSON without NaN and comes back exactly."""
    array = np.array([[0.1, np.nan], [np.nan, np.nan], [np.inf, 1e-310], [1 / 3, -0.0]])
    summary = summarize([array], 4)
    text = json.dumps(summary.to_json(), allow_nan=False)
    assert LeafSummary.from_json(json.loads(text)) == summary


@pytest.mark.parametrize("damage", [{"mean": "x"}, {"mean": float("nan")}, {"count": None}, {"count": [1]}])
def test_json_that_is_none(damage):
    """Moments do not take what is no number."""
    data = {**moments(np.ones(3)).to_json(), **damage}
    with pytest.raises((TypeError, ValueError)):
        Moments.from_json(data)
    with pytest.raises(KeyError):
        Moments.from_json({})


def test_memory_is_bounded():
    """Sixteen million elements take a few blocks of memory, not a float64 copy."""
    import tracemalloc

    array = np.ones(1 << 24, np.float16)
    tracemalloc.start()
    try:
        summarizer = Summarizer(1)
        summarizer.add(array[None])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert summarizer.summary().last.mean == 1.0
    assert peak < 8 << 20


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "float8_e4m3fn", "complex64", "int16", "bool"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 9, 100, 1000, 70_000])
def test_the_mean_of_a_record_does_not_depend_on_the_block_that_it_is_in(name, size):
    """Whatever blocks records come in, beside NaN, infinities, huge and tiny numbers, their means are the same bits."""
    random = np.random.default_rng(size)
    values = random.normal(size=(12, size)) * 10.0 ** random.integers(-310, 308, (12, 1))
    values[2:5] = random.normal(size=(3, size))
    values[3, :1], values[4, :1] = np.nan, np.inf
    with np.errstate(all="ignore"):
        array = values.astype(dtypes.from_name(name))
    whole = summarize([array], 12).spark
    assert repr(summarize([array[n : n + 1] for n in range(12)], 12).spark) == repr(whole)
    assert repr(summarize([array[:3], array[3:4], array[4:]], 12).spark) == repr(whole)
