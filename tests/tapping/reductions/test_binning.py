"""Histograms against counting in numpy, one element at a time."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tapping.reductions import checks, reference
from tracerec.keeping import OUTSIDE, Histogram, histogram_edges
from tracerec.tapping.reductions import reduce

NAMES = ["float32", "bfloat16", "float8_e5m2", "int8", "uint32", "complex64", "bool"]


def expected(
    edges: np.ndarray, leaf: np.ndarray, mask: np.ndarray, *, by_exponent: bool
) -> tuple[list[int], list[int]]:
    """Bins and what lies outside, of one lane."""
    values = reference.plain(leaf)[mask]
    bins, outside = [0] * (len(edges) - 1), dict.fromkeys(OUTSIDE, 0)
    for value in values.tolist():
        number = abs(value) if by_exponent else value
        if math.isnan(value):
            outside["nan"] += 1
        elif math.isinf(value):
            outside["posinf" if value > 0 else "neginf"] += 1
        elif by_exponent and value == 0:
            outside["zeros"] += 1
        elif number < edges[0]:
            outside["under"] += 1
        elif number > edges[-1] or (by_exponent and number == edges[-1]):
            outside["over"] += 1
        else:
            place = int(np.searchsorted(edges, number, side="right")) - 1
            bins[min(place, len(bins) - 1)] += 1
    return bins, list(outside.values())


def check(keep: Histogram, leaf: np.ndarray, lanes: int, mask: np.ndarray | None) -> None:
    """Every lane's counts, exactly."""
    bins, outside, *more = checks.parts_of(keep, leaf, lanes, mask)
    whole = np.ones(leaf.shape, bool) if mask is None else np.broadcast_to(mask, leaf.shape)
    for lane in np.ndindex(leaf.shape[:lanes]):
        one = np.asarray(leaf[lane])
        if more:
            edges = more[0][lane].astype(np.float64)
            values = reference.finite(one, whole[lane]).astype(np.float32)
            if values.size and values.min() < values.max():
                assert (edges[0], edges[-1]) == (values.min(), values.max())
            elif not values.size:
                assert (edges[0], edges[-1]) == (0, 1)
            assert (np.diff(edges) >= 0).all()
        else:
            edges = histogram_edges(keep, leaf.dtype.name)
        rounded = one
        if reference.kind_of(leaf.dtype.name) == "i" and keep.by == "linear":
            rounded = one.astype(np.float32)
        found = expected(edges, rounded, whole[lane], by_exponent=keep.by == "exponent")
        assert (bins[lane].tolist(), outside[lane].tolist()) == found
        assert int(bins[lane].sum() + outside[lane].sum()) == whole[lane].sum()


@pytest.mark.parametrize("name", NAMES)
def test_by_exponent(name: str) -> None:
    """A bin a power of two of the dtype, all kinds of values."""
    checks.check_dtype(name, lambda *args: check(Histogram(), *args), [(1, True)])


def test_by_exponent_in_wider_bins() -> None:
    """Ten bins; ranges that leave most out, or reach the subnormal numbers."""
    for keep in (Histogram(bins=10), Histogram(bins=3, range=(-2, 4)), Histogram(range=(-149, -120))):
        checks.check_dtype("float32", lambda *args, keep=keep: check(keep, *args), [(1, False)])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "complex64"])
def test_linear_over_what_there_is(name: str) -> None:
    """Edges from the smallest to the largest finite element; they come with the counts."""
    checks.check_dtype(name, lambda *args: check(Histogram(bins=7, by="linear"), *args), [(1, True)])


@pytest.mark.parametrize("range", [(-1, 1), (0, 1e-44), (-3e38, 3e38), (0.1, 0.7)], ids=str)
def test_linear_over_a_range(range: tuple[float, float]) -> None:  # noqa: A002 - the argument's name
    """Edges that are known beforehand, to the bit, subnormal ones too."""
    keep = Histogram(bins=6, by="linear", range=range)
    for name in ("float32", "int8"):
        checks.check_dtype(name, lambda *args: check(keep, *args), [(0, False)])


def test_empty_and_scalar() -> None:
    """A histogram of nothing, and of one element."""
    for keep in (Histogram(), Histogram(by="linear"), Histogram(by="linear", range=(0, 1))):
        for shape, lanes in (((), 0), ((0,), 0), ((3, 0), 1)):
            check(keep, np.full(shape, 0.5, np.float32), lanes, None)


def test_equal_elements_without_a_range() -> None:
    """As numpy: half to each side."""
    parts: Any = jax.jit(lambda x: reduce(Histogram(bins=2, by="linear"), x))(jnp.full(5, 3.0, np.float32))
    bins, _, edges = (np.asarray(part) for part in parts)
    assert edges.tolist() == [2.5, 3.0, 3.5]
    assert bins.tolist() == np.histogram(np.full(5, 3.0), 2)[0].tolist()
