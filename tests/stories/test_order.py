"""Readers give program order per device, whatever order the records arrived in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracerec

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 20


def in_order(path: Path, function: Any, *args: Any, runs: int = RUNS) -> list[list[tuple[str, Any]]]:
    """Runs a jitted function many times; returns each call's records as the reader orders them."""
    with tracerec.record(path, compression=None):
        for run in range(runs):
            function(*args, run)
    calls: dict[int, list[tuple[str, Any]]] = {}
    with tracerec.open(path) as trace:
        for record in trace.records():
            calls.setdefault(record.call, []).append((record.tap, record.kwargs.get("i")))
    assert len(calls) == runs
    return list(calls.values())


def test_a_slow_tap_before_a_fast_one(tmp_path: Path) -> None:
    """The copy of the first takes long; the second does not depend on it."""

    @jax.jit
    def function(x: Any, run: Any) -> Any:
        big = tracerec.tap(x * 2.0, "slow", run=run)
        return tracerec.tap(x[0] + 1.0, "fast", run=run) + big.sum()

    for call in in_order(tmp_path / "run.h5", function, jnp.ones(1 << 20)):
        assert [tap for tap, _ in call] == ["slow", "fast"]


@pytest.mark.parametrize("dependent", [True, False])
def test_twenty_scalars(dependent: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A chain, and taps that do not depend on each other."""

    @jax.jit
    def function(x: Any, run: Any) -> Any:
        total = x
        for i in range(20):
            y = tracerec.tap((total if dependent else x) + 1.0, f"t{i:02}", run=run)
            total = y if dependent else total + y
        return total

    for call in in_order(tmp_path / "run.h5", function, 1.0):
        assert [tap for tap, _ in call] == [f"t{i:02}" for i in range(20)]


def test_independent_megabytes(tmp_path: Path) -> None:
    """Ten taps of 1 MB each."""

    @jax.jit
    def function(x: Any, run: Any) -> Any:
        return sum(tracerec.tap(x + i, f"t{i}", run=run).sum() for i in range(10))

    for call in in_order(tmp_path / "run.h5", function, jnp.ones(1 << 18), runs=5):
        assert [tap for tap, _ in call] == [f"t{i}" for i in range(10)]


@pytest.mark.parametrize("unroll", [1, 4, 12])
def test_scans_unrolled_or_not(unroll: int, tmp_path: Path) -> None:
    """Two taps in the body, one before and one after: iteration by iteration."""

    @jax.jit
    def function(x: Any, run: Any) -> Any:
        x = tracerec.tap(x, "before", run=run)

        def body(c: Any, i: Any) -> Any:
            c = tracerec.tap(c + 1.0, "a", i=i)
            return tracerec.tap(c * 0.5, "b", i=i), None

        x, _ = lax.scan(body, x, jnp.arange(12), unroll=unroll)
        return tracerec.tap(x, "after", run=run)

    expected = [("before", None), *((tap, i) for i in range(12) for tap in ("a", "b")), ("after", None)]
    for call in in_order(tmp_path / "run.h5", function, 1.0):
        assert call == expected


def test_taps_in_inner_functions_between_outer_ones(tmp_path: Path) -> None:
    """An inner jit, a checkpoint and a branch are blocks of their own, which XLA may run out of order."""
    inner = jax.jit(lambda x: tracerec.tap(x * 2.0, "inner"))

    @jax.jit
    def function(x: Any, run: Any) -> Any:
        x = tracerec.tap(x, "first", run=run)
        x = inner(x)
        x = tracerec.tap(x, "second", run=run)
        x = jax.checkpoint(lambda x: tracerec.tap(x + 1.0, "checkpoint"))(x)
        x = lax.cond(x > 0, lambda x: tracerec.tap(x, "branch"), lambda x: x, x)
        return tracerec.tap(x, "third", run=run)

    for call in in_order(tmp_path / "run.h5", function, 1.0):
        assert [tap for tap, _ in call] == ["first", "inner", "second", "checkpoint", "branch", "third"]


def test_primals_come_before_cotangents(tmp_path: Path) -> None:
    """Forward, then backward, also when the primal is in a checkpoint."""

    @jax.jit
    @jax.grad
    def function(x: Any, run: Any) -> Any:
        x = tracerec.tap(x * 2.0, "a")
        return jax.checkpoint(lambda x: jnp.sin(tracerec.tap(x * 3.0, "b")))(x) + 0.0 * run

    with tracerec.record(tmp_path / "run.h5"):
        for run in range(RUNS):
            function(1.0, np.float32(run))
    with tracerec.open(tmp_path / "run.h5") as trace:
        found = [(r.tap, bool(r.transforms)) for r in trace.records()]
    assert found == [("a", False), ("b", False), ("b", True), ("a", True)] * RUNS


def test_each_device_has_its_program_order(tmp_path: Path) -> None:
    """Four devices of a shard_map; a call's number is shared."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")

    def body(x: Any, run: Any) -> Any:
        for i in range(5):
            x = tracerec.tap(x + 1.0, f"t{i}", run=run)
        return x

    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec, jax.sharding.PartitionSpec()), out_specs=spec))
    with tracerec.record(tmp_path / "run.h5"):
        for run in range(RUNS):
            function(jnp.arange(4.0), run)
    seen: dict[tuple[int, int], list[str]] = {}
    runs: dict[int, set[int]] = {}
    with tracerec.open(tmp_path / "run.h5") as trace:
        for record in trace.records():
            seen.setdefault((record.call, record.device), []).append(record.tap)
            runs.setdefault(record.call, set()).add(int(record.kwargs["run"]))
    assert len(seen) == 4 * RUNS
    assert all(taps == [f"t{i}" for i in range(5)] for taps in seen.values())
    assert sorted(runs.values(), key=min) == [{run} for run in range(RUNS)]


def test_a_loop_alone_is_split_into_calls(tmp_path: Path) -> None:
    """A program whose only tap is in a loop: each call has its own number."""
    function = jax.jit(
        lambda x, run: lax.scan(lambda c, i: (tracerec.tap(c, "c", i=i, run=run), None), x, jnp.arange(3))
    )
    for call in in_order(tmp_path / "run.h5", function, 1.0):
        assert call == [("c", 0), ("c", 1), ("c", 2)]
