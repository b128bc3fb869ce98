"""The measures against a plain reference, and the traps that other tools fall into."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.comparing import reference
from tracerec.comparing import measures
from tracerec.comparing.distances import lower_precision
from tracerec.comparing.measures import cosine, measure, rel_l2, snr_db, value_of
from tracerec.comparing.tolerances import Tolerance
from tracerec.protocol import dtypes

REAL = [name for name in dtypes.NAMES if not name.startswith("complex")]


def bits_of(name, count):
    """Arrays of a dtype with any bits at all, small exponents and equal values as likely as the rest."""
    dtype = dtypes.from_name(name)
    if name == "bool":
        return st.lists(st.booleans(), min_size=count, max_size=count).map(lambda x: np.array(x, bool))
    width = 8 * dtype.itemsize
    low = 4 if name in {"int4", "uint4", "float4_e2m1fn"} else 2 if name in {"int2", "uint2"} else width
    words = st.one_of(st.integers(0, (1 << low) - 1), st.sampled_from([0, 1, (1 << low) - 1, 1 << (low - 1)]))

    def made(items):
        raw = b"".join(i.to_bytes(dtype.itemsize, "little") for i in items)
        array = np.frombuffer(raw, np.uint8).copy()
        if low < width and name.startswith("int"):
            # As ml_dtypes holds them: sign-extended in their byte.
            array = np.where(array >> (low - 1), array | (0xFF << low & 0xFF), array).astype(np.uint8)
        return array.view(dtype)

    return st.lists(words, min_size=count, max_size=count).map(made)


@st.composite
def pairs(draw):
    """Two arrays of one size, of the same or of two dtypes, partly equal."""
    name = draw(st.sampled_from(dtypes.NAMES))
    other = draw(st.one_of(st.just(name), st.sampled_from(dtypes.NAMES)))
    count = draw(st.integers(0, 5))

    def array(name):
        if name.startswith("complex"):
            part = "float32" if name == "complex64" else "float64"
            return bits_of(part, 2 * count).map(lambda x: x.view(name))
        return bits_of(name, count)

    a, b = draw(array(name)), draw(array(other))
    if name == other and count:
        same = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        b[same] = a[same]
    return a, b


def close(got, want):
    """Whether two numbers agree but for the rounding of one float64 operation or two."""
    return (
        got == want or (math.isnan(got) and math.isnan(want)) or math.isclose(got, want, rel_tol=1e-12, abs_tol=1e-300)
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs())
def test_every_measure_is_that_of_the_plain_reference(pair):
    """Any dtype against any, any bits: counts are exact, and so are distances of integers."""
    a, b = pair
    with np.errstate(all="ignore"):
        want = reference.measure(a, b)
    got = measure(a[None], b[None])[0]
    for name in ("size", "nan", "posinf", "neginf"):
        assert got[name] == want[name], name
    overflow = math.isinf(want["sum_abs"]) or math.isinf(want["max_abs"]) or want["max_abs"] > 1e300
    assert got["differing"] == want["differing"]
    assert close(float(got["max_abs"]), want["max_abs"])
    if want["max_abs"] == 0:
        assert got["abs_at"] == -1
    elif not overflow:
        at = int(got["abs_at"])
        x, y = reference.parts(a)[at], reference.parts(b)[at]
        x, y = (p + [0.0] * (2 - len(p)) for p in (x, y))
        assert close(max(reference.apart(u, v)[0] for u, v in zip(x, y, strict=True)), want["max_abs"])
        assert close(float(got["max_rel"]), want["max_rel"])
    if "max_ulp" in want:
        assert close(float(got["max_ulp"]), float(want["max_ulp"]))
    if want["differing"] and not overflow:
        assert close(float(got["sum_abs"]), want["sum_abs"])
        assert got["count"] == want["count"]


@settings(max_examples=80, deadline=None)
@given(pairs())
def test_both_ways_are_the_same(pair):
    """Which run is first changes no distance."""
    a, b = pair
    one, other = measure(a[None], b[None])[0], measure(b[None], a[None])[0]
    for name in ("differing", "bits", "max_abs", "max_rel", "max_ulp", "sum_abs", "nan"):
        assert close(float(one[name]), float(other[name])), name


def test_the_lower_precision_of_two_is_the_same_either_way():
    """Two of the same precision included, such as float8_e4m3 and float8_e4m3b11fnuz."""
    floats = [dtypes.from_name(name) for name in dtypes.NAMES]
    for one in floats:
        for other in floats:
            assert lower_precision(one, other) == lower_precision(other, one), (one, other)
    like = dtypes.from_name("float8_e4m3"), dtypes.from_name("float8_e4m3b11fnuz")
    assert lower_precision(*like) == like[0]


@settings(max_examples=150, deadline=None)
@given(pairs(), st.sampled_from([0.0, 1e-6, 0.5]), st.sampled_from([0.0, 1e-3, 10.0]))
def test_the_smallest_tolerance_passes_and_a_smaller_one_does_not(pair, rtol, atol):
    """The least rtol, the least atol and the least ulp: with each of them nothing is beyond."""
    a, b = pair
    row = measure(a[None], b[None], Tolerance(rtol, atol))[0]
    special = row["nan"] + row["posinf"] + row["neginf"]
    if special:
        assert row["beyond"] > 0
        assert np.isinf(row["need_atol"])
        return
    if not math.isfinite(row["max_abs"]) or row["max_abs"] > 1e300:
        return
    assert measure(a[None], b[None], Tolerance(rtol, float(row["need_atol"])))[0]["beyond"] == 0
    assert measure(a[None], b[None], Tolerance(float(row["need_rtol"]), atol))[0]["beyond"] == 0
    if row["need_atol"] > 0:
        less = float(np.nextafter(row["need_atol"], 0))
        assert measure(a[None], b[None], Tolerance(rtol, less))[0]["beyond"] > 0
    if row["need_rtol"] > 1e-12 and row["max_abs"] > 1e-290:
        assert measure(a[None], b[None], Tolerance(float(row["need_rtol"]) * (1 - 1e-9), atol))[0]["beyond"] > 0
    if 0 < row["max_ulp"] < 2**50:
        assert measure(a[None], b[None], Tolerance(0.0, 0.0, float(row["max_ulp"])))[0]["beyond"] == 0


@pytest.mark.parametrize(
    ("dtype", "x", "y", "apart"),
    [
        ("uint8", 0, 1, 1),
        ("uint8", 255, 0, 255),
        ("int8", -128, 127, 255),
        ("bool", True, False, 1),
        ("uint32", 0, 2**32 - 1, 2**32 - 1),
        ("uint64", 0, 2**64 - 1, 2.0**64),
        ("int64", -(2**63), 2**63 - 1, 2.0**64),
        ("int64", 2**53 + 1, 2**53, 1),
        ("int4", -8, 7, 15),
    ],
)
def test_differences_of_integers_do_not_wrap(dtype, x, y, apart):
    """Both ways round, with the values themselves."""
    a, b = (np.array([[v]]).astype(dtypes.from_name(dtype)) for v in (x, y))
    for one, other in ((a, b), (b, a)):
        row = measure(one, other)[0]
        assert row["max_abs"] == apart
        assert value_of(row["abs_a"], one.dtype) == one.astype(object)[0, 0]
    assert value_of(measure(a, b)[0]["abs_b"], b.dtype) == y


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "bfloat16", "float8_e5m2", "float8_e3m4", "float8_e4m3"]
)
def test_what_is_not_finite_is_matched_by_place(dtype):
    """The same place is equal in every dtype; one side only is a difference no tolerance allows."""
    values = np.array([[1, np.nan, np.inf, -np.inf]], np.float64).astype(dtypes.from_name(dtype))
    loose = Tolerance(1e9, 1e9, 1e9)
    row = measure(values, values.copy(), loose)[0]
    assert (row["differing"], row["bits"], row["beyond"]) == (0, 0, 0)
    other = np.array([[1, 2, 3, np.inf]], np.float64).astype(values.dtype)
    row = measure(values, other, loose)[0]
    assert (row["differing"], row["beyond"]) == (3, 3)
    assert (row["nan"], row["posinf"], row["neginf"]) == (1, 2, 1)
    assert np.isinf([row["max_abs"], row["max_rel"], row["need_atol"], row["need_rtol"]]).all()


def test_shared_zeros_have_no_relative_difference():
    """0 / 0 is 0, and subnormals are ranked."""
    a, b = np.array([[0, 0, 1e-310, 1]]), np.array([[0, -0.0, 2e-310, 1]])
    row = measure(a, b)[0]
    assert row["max_rel"] == 0.5
    assert row["rel_at"] == 2
    assert (row["differing"], row["bits"]) == (1, 2)


def test_nan_with_another_payload_is_equal():
    """By value and by bit: hardware chooses payloads."""
    a = np.array([[0x7FC00001, 0x3F800000]], np.uint32).view(np.float32)
    b = np.array([[0x7FC00002, 0x3F800000]], np.uint32).view(np.float32)
    row = measure(a, b)[0]
    assert (row["differing"], row["bits"]) == (0, 0)


def test_complex_numbers_differ_part_by_part():
    """The largest difference is that of a part; counts are of whole numbers."""
    a = np.array([[1 + 1j, 2 + 2j, 3]], np.complex64)
    b = np.array([[1 + 4j, 3 + 2.5j, 3]], np.complex64)
    row = measure(a, b)[0]
    assert (row["differing"], row["max_abs"], row["abs_at"]) == (2, 3.0, 0)
    assert value_of(row["abs_b"], b.dtype) == 1 + 4j
    assert (row["sum_abs"], row["count"]) == (4.5, 6)


def test_keys_are_compared_by_bits_alone():
    """How far two random keys are apart means nothing."""
    a = np.array([[[1, 2], [3, 4]]], np.uint32)
    b = np.array([[[1, 2], [3, 5]]], np.uint32)
    row = measure(a, b, Tolerance(1e9, 1e9), key=True)[0]
    assert (row["differing"], row["beyond"]) == (1, 1)
    assert np.isnan([row["max_abs"], row["need_rtol"]]).all()


def test_what_does_not_count_is_left_out():
    """Padding with other values is equal; an element that counts on one side only is told."""
    a, b = np.array([[1.0, 2, 3, np.nan]]), np.array([[1.0, 2, 9, 4]])
    mask = np.array([[True, True, False, False]])
    row = measure(a, b, valid=(mask, mask))[0]
    assert (row["size"], row["differing"], row["lanes"]) == (2, 0, 0)
    row = measure(a, b, valid=(mask, None))[0]
    assert (row["size"], row["differing"], row["lanes"]) == (2, 0, 2)


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0,), (2,)])
def test_empty_records_and_scalars(shape):
    """They are equal, and rows stay rows."""
    rows = measure(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    assert rows.shape == shape[:1]
    assert not rows["differing"].any()


def test_pieces_add_up_to_what_one_pass_finds():
    """Rows larger than a piece, and many rows in one: the same as numpy over the whole."""
    rng = np.random.default_rng(0)
    for shape in ((3, 20_001), (1000, 7), (5, 8192), (40_000, 1)):
        a = rng.normal(size=shape).astype(np.float32)
        b = a.copy()
        change = rng.random(shape) < 0.4
        b[change] += rng.normal(size=change.sum()).astype(np.float32) * 1e-3
        rows = measure(a, b, Tolerance(1e-3, 1e-4))
        d = np.abs(a.astype(float) - b)
        larger = np.maximum(np.abs(a.astype(float)), np.abs(b.astype(float)))
        touched = rows["differing"] > 0
        assert (rows["differing"] == (a != b).sum(axis=1)).all()
        assert (rows["max_abs"] == d.max(axis=1)).all()
        assert (rows["abs_at"][touched] == d.argmax(axis=1)[touched]).all()
        assert (rows["max_rel"] == (d / np.where(larger, larger, 1)).max(axis=1)).all()
        assert (rows["beyond"] == (d - 1e-3 * larger > 1e-4).sum(axis=1)).all()
        np.testing.assert_allclose(rows["sum_abs"][touched], d.sum(axis=1)[touched], rtol=1e-12)
        norm = np.linalg.norm(a.astype(float), axis=1) * np.linalg.norm(b.astype(float), axis=1)
        np.testing.assert_allclose(
            cosine(rows)[touched], ((a.astype(float) * b).sum(axis=1) / norm)[touched], rtol=1e-9
        )
        relative = np.linalg.norm(d, axis=1) / np.linalg.norm(a.astype(float), axis=1)
        np.testing.assert_allclose(rel_l2(rows)[touched], relative[touched], rtol=1e-9)
        with np.errstate(divide="ignore"):
            decibels = -20 * np.log10(relative)
        np.testing.assert_allclose(snr_db(rows)[touched], decibels[touched], rtol=1e-9)
        assert np.isinf(snr_db(rows)[~touched]).all()


def long_rows(dtype, seed, size=70_001):
    """Two rows a side: small and large differences, shared zeros, zeros of both signs, signs that change."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(2, size)).astype(np.float32)
    a[rng.random(a.shape) < 0.2] = 0
    b = a.copy()
    some = rng.random(a.shape) < 0.5
    b[some] *= np.float32(1 + 1e-3)
    crossing = rng.random(a.shape) < 1e-3
    b[crossing] *= -1
    a[:, 5], b[:, 5], b[:, 6] = 0.0, -0.0, -0.0
    b[1, 1000:] = a[1, 1000:]
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "tolerance", [None, Tolerance(1e-5, 1e-7), Tolerance(0.0, 1e-4), Tolerance(2.0, 0.0), Tolerance(0.0, 0.0, 40)]
)
@pytest.mark.parametrize("special", [False, True])
def test_long_rows_are_measured_as_any_others(monkeypatch, dtype, tolerance, special):
    """The quick way and the plain one: every count, distance and place; sums but for their rounding."""
    a, b = long_rows(dtypes.from_name(dtype), 3)
    if special:
        a[0, 66_000], b[0, 66_001], a[1, 9], b[1, 9] = np.nan, -np.inf, np.inf, np.inf
    quick = measure(a, b, tolerance)
    monkeypatch.setattr(measures, "fits", lambda *_: False)
    plain = measure(a, b, tolerance)
    for name in quick.dtype.names or ():
        if name in {"sum_abs", "aa", "bb", "ab", "dd"}:
            np.testing.assert_allclose(quick[name], plain[name], rtol=1e-11)
        else:
            assert (quick[name] == plain[name]).all(), name


def test_of_equal_largest_differences_the_first_is_told():
    """In a row of several pieces, the one with NaN measured apart, and up as well as down."""
    a = np.zeros((1, 200_000), np.float32)
    a += 1
    b = a.copy()
    b[0, [150_000, 70_000, 199_999]] = np.nextafter(np.float32(1), np.float32(2))
    for special in (False, True):
        if special:
            a[0, 70_001] = b[0, 70_001] = np.nan
        row = measure(a, b)[0]
        assert (row["abs_at"], row["rel_at"], row["ulp_at"], row["max_ulp"]) == (70_000, 70_000, 70_000, 1)
    b[0, 69_999] = 2 * a[0, 70_000] - b[0, 70_000]
    assert measure(a, b)[0]["abs_at"] == 69_999


def test_numbers_too_large_for_their_squares(monkeypatch):
    """Differences of float64 that overflow are infinite without being special."""
    a, b = np.full((1, 10_000), 1e308), np.full((1, 10_000), -1e308)
    quick = measure(a, b)[0]
    monkeypatch.setattr(measures, "fits", lambda *_: False)
    plain = measure(a, b)[0]
    for name in ("differing", "beyond", "max_abs", "max_ulp", "nan", "posinf", "abs_at", "sum_abs", "need_atol"):
        assert quick[name] == plain[name], name
