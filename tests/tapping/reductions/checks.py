"""Checks of one dtype that tests run here, and in a process with x64 on."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.tapping.reductions import reference
from tracerec.keeping import Fingerprint, Keep, Summary, fingerprint, summary_columns
from tracerec.protocol import dtypes
from tracerec.tapping.reductions import reduce

BOUNDS = {np.float32: 1e-5, np.float64: 1e-12}
"""Relative errors that the moments keep to."""


@cache
def jitted(keep: Keep, lanes: int, *, masked: bool) -> Any:
    """One compiled function for all arrays of a shape and dtype."""
    if masked:
        return jax.jit(lambda x, valid: reduce(keep, x, lanes, valid))
    return jax.jit(lambda x: reduce(keep, x, lanes))


def parts_of(keep: Keep, leaf: np.ndarray, lanes: int, mask: np.ndarray | None = None) -> list[np.ndarray]:
    """The parts that the device makes of a numpy array."""
    # Masks of one shape share a compiled function; other tests have masks that broadcast.
    masks = () if mask is None else (jnp.asarray(np.broadcast_to(mask, leaf.shape)),)
    arguments = (jnp.asarray(leaf), *masks)
    found = jitted(keep, lanes, masked=mask is not None)(*arguments)
    return [np.asarray(part) for part in found]


def check_summary(leaf: Any, lanes: int, mask: np.ndarray | None = None, parts: Any = None) -> None:
    """Counts and range exactly, moments within their bounds, lane by lane."""
    counts, ends, moments = parts or parts_of(Summary(), leaf, lanes, mask)
    wide = leaf.dtype.name in reference.WIDE
    assert counts.dtype == np.uint32
    assert moments.dtype == (np.float64 if wide else np.float32)
    assert ends.dtype == (leaf.real.dtype if leaf.dtype.kind == "c" else leaf.dtype)
    columns = summary_columns(counts[None], ends[None], moments[None])
    whole = np.ones(leaf.shape, bool) if mask is None else np.broadcast_to(mask, leaf.shape)
    for lane in np.ndindex(leaf.shape[:lanes]):
        one, valid = np.asarray(leaf[lane]), whole[lane]
        expected = reference.counts(one, valid)
        assert counts[lane].tolist() == expected
        values = reference.finite(one, valid)
        check_range(ends[lane], one, values)
        check_measures({name: column[(0, *lane)] for name, column in columns.items()}, values, wide=wide)
        assert (moments[lane][4] != 0) <= (reference.kind_of(leaf.dtype.name) in "fc")


def check_range(ends: np.ndarray, leaf: np.ndarray, values: np.ndarray) -> None:
    """Exact, but for magnitudes, which are rounded."""
    found = reference.plain(ends)
    if not values.size:
        assert np.isnan(found).all() or (not has_nan(ends.dtype) and (found == 0).all())
    elif leaf.dtype.kind == "c":
        unit = np.longdouble(np.finfo(ends.dtype).smallest_subnormal)
        for end, expected in zip(found, (values.min(), values.max()), strict=True):
            assert abs(end - expected) <= max(unit, expected * 4 * np.finfo(ends.dtype).eps)
    else:
        assert found.tolist() == [values.min(), values.max()]


def has_nan(dtype: np.dtype) -> bool:
    """Whether a dtype has NaN."""
    if reference.kind_of(dtype.name) in "bi":
        return False
    return dtype.name != "float4_e2m1fn"


def check_measures(found: dict[str, Any], values: np.ndarray, *, wide: bool) -> None:
    """The mean against the mean magnitude, the others against themselves."""
    expected = reference.measures(values)
    bound = BOUNDS[np.float64 if wide else np.float32]
    if not values.size:
        assert all(np.isnan(found[name]) for name in expected)
        return
    size = expected["l1"] / values.size
    unit = np.finfo(np.float64).smallest_subnormal
    for name in ("l1", "l2"):
        if expected[name] < np.finfo(np.float64).max:
            assert abs(found[name] - expected[name]) <= bound * expected[name] + unit, name
    assert abs(found["mean"] - expected["mean"]) <= bound / 5 * size + unit
    assert abs(found["std"] - expected["std"]) <= bound * expected["std"] + bound / 5 * size + unit
    if expected["std"] == 0:
        assert found["std"] == 0


def check_fingerprint(leaf: np.ndarray, lanes: int, mask: np.ndarray | None = None) -> None:
    """As numpy's twin, with the counts."""
    digest, counts = parts_of(Fingerprint(), leaf, lanes, mask)
    np.testing.assert_array_equal(digest, fingerprint(leaf, lanes, mask), strict=True)
    whole = np.ones(leaf.shape, bool) if mask is None else np.broadcast_to(mask, leaf.shape)
    for lane in np.ndindex(leaf.shape[:lanes]):
        assert counts[lane].tolist() == reference.counts(np.asarray(leaf[lane]), whole[lane])


def check_dtype(name: str, check: Any, combinations: Any = ((0, False), (1, True), (2, False))) -> None:
    """All arrays of a dtype, with the numbers of lane axes and masks that are named."""
    for what, leaf in reference.leaves(name).items():
        for lanes, masked in combinations:
            for mask in reference.lane_masks(leaf.shape, lanes) if masked else [None]:
                try:
                    check(leaf, lanes, mask)
                except AssertionError as error:
                    message = f"{name}, {what}, {lanes} lane axes, {'a' if masked else 'no'} mask"
                    raise AssertionError(message) from error


def check_small(name: str, check: Any) -> None:
    """Scalars, empty leaves, and lanes of either."""
    for shape, lanes in (((), 0), ((0,), 0), ((3, 0), 1), ((3,), 1)):
        leaf = reference.random_bits(name, shape, 5)
        check(leaf, lanes)
    scalar = reference.random_bits(name, (), 6)
    check(scalar, 0, np.zeros((), bool))


def wide_dtypes() -> None:
    """The 64-bit dtypes, and one that must not change, in a process with x64 on."""
    for name in (*reference.WIDE, "float32"):
        check_dtype(name, check_summary, [(1, True)] if name == "complex128" else [(0, False), (1, True)])
        check_dtype(name, check_fingerprint, [(1, True)])
    for name in ("float64", "uint64"):
        check_small(name, check_summary)
    assert dtypes.from_name("float64") == jnp.zeros(1).dtype
