"""Summaries and fingerprints of every dtype against numpy in float64 or wider: random bits, subnormal, huge, NaN."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import run_python
from tests.tapping.reductions import checks, reference
from tracerec.keeping import Fingerprint, Summary, fingerprint
from tracerec.protocol import dtypes
from tracerec.tapping.reductions import reduce

SMALL = [name for name in dtypes.NAMES if name not in reference.WIDE]
ALL_WAYS = [(lanes, masked) for lanes in (0, 1, 2) for masked in (False, True)]


def ways(name: str) -> Any:
    """Every number of lane axes with and without a mask for some dtypes; each of both for the others."""
    if name in {"float32", "int32"}:
        return ALL_WAYS
    number = SMALL.index(name)
    return [(number % 3, False), ((number + 1) % 3, True)]


@pytest.mark.parametrize("name", SMALL)
def test_summaries(name: str) -> None:
    """Counts and range exactly, moments to 1e-5."""
    checks.check_dtype(name, checks.check_summary, ways(name))


@pytest.mark.parametrize("name", SMALL)
def test_fingerprints(name: str) -> None:
    """The digest is that of numpy's twin, the counts are a summary's."""
    checks.check_dtype(name, checks.check_fingerprint, ways(name)[-1:])


@pytest.mark.parametrize("name", ["float32", "int8", "bool", "float4_e2m1fn", "complex64"])
def test_scalars_and_empty_leaves(name: str) -> None:
    """Where nothing is finite, the counts say so; min and max are NaN, or zero where there is no NaN."""
    checks.check_small(name, checks.check_summary)
    checks.check_small(name, checks.check_fingerprint)


def test_64_bit_dtypes() -> None:
    """In a process of its own: x64 is a switch for all. Others give the same there."""
    source = "from tests.tapping.reductions import checks\nchecks.wide_dtypes()\nprint('equal')"
    done = run_python(source, JAX_ENABLE_X64="1", JAX_ENABLE_CHECKS="0")
    assert done.stdout == "equal\n", done.stderr


def test_every_value_of_16_bits() -> None:
    """All bfloat16 and float16 there are: what becomes of each alone is what numpy says."""
    for name in ("bfloat16", "float16"):
        leaf = np.arange(1 << 16, dtype=np.uint16).view(dtypes.from_name(name)).reshape(1 << 16, 1)
        counts, ends, _ = (np.asarray(part) for part in jax.jit(lambda x: reduce(Summary(), x, 1))(jnp.asarray(leaf)))
        values = leaf[:, 0].astype(np.float32)
        finite = np.isfinite(values)
        assert ends[finite].view(np.uint16).tolist() == np.repeat(leaf[finite], 2, axis=1).view(np.uint16).tolist()
        assert np.isnan(ends[~finite].astype(np.float32)).all()
        smallest = float(reference.facts(name).smallest_normal)
        assert counts[:, 5].tolist() == ((values != 0) & (np.abs(values) < smallest)).tolist()
        assert counts[:, 4].tolist() == (values == 0).tolist()


@pytest.mark.parametrize("shape", [(50_000,), (300, 200)], ids=str)
def test_large_leaves(shape: tuple[int, ...]) -> None:
    """Reductions of more elements are taken in two steps."""
    rng = np.random.default_rng(1)
    leaf = rng.normal(size=shape).astype(np.float32)
    leaf.reshape(-1)[[3, 5, 7]] = [np.nan, 0.0, 1e-40]
    whole = np.ones(shape, bool)
    counts, ends, _ = checks.parts_of(Summary(), leaf, 0)
    assert counts.tolist() == reference.counts(leaf, whole)
    assert ends.tolist() == [np.nanmin(leaf), np.nanmax(leaf)]
    checks.check_summary(leaf, 0)
    np.testing.assert_array_equal(checks.parts_of(Fingerprint(), leaf, 0)[0], fingerprint(leaf))


def test_long_sums_lose_nothing() -> None:
    """More ones than float32 can count; a mean far above the spread; squares beyond float32, and below it."""
    count = 17_000_000
    summary = jax.jit(lambda x: reduce(Summary(), x))

    def moments(leaf: Any) -> list[float]:
        return np.asarray(summary(leaf)[2]).tolist()

    assert moments(jnp.ones(count, np.float32)) == [1.0, 0.0, count, pytest.approx(count**0.5, rel=1e-6), 0.0]
    assert moments(jnp.ones(count, jnp.bfloat16))[:3] == [1.0, 0.0, count]
    far = (1e4 + np.random.default_rng(2).normal(size=1_000_000)).astype(np.float32)
    mean, std, *_ = moments(far)
    assert mean == pytest.approx(far.astype(np.float64).mean(), rel=1e-6)
    assert std == pytest.approx(far.astype(np.float64).std(), rel=1e-4)
    for size in (1e30, 1e-30):
        _, _, l1, l2, exponent = moments(jnp.full(1000, size, np.float32))
        assert l2 * 2.0**exponent == pytest.approx(np.float64(np.float32(size)) * 1000**0.5, rel=1e-6)
        assert l1 * 2.0**exponent == pytest.approx(np.float64(np.float32(size)) * 1000, rel=1e-6)
