"""Sharded arrays, from the mesh through the file and back to one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tracerec

if TYPE_CHECKING:
    from pathlib import Path

SPECS = [P("x", "y"), P("y", "x"), P("x"), P("y"), P(None, "x"), P(("x", "y")), P(None, ("y", "x")), P()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shards_are_put_together_exactly(spec: P, tmp_path: Path) -> None:
    """Two by two devices in odd order: each step's array, primal and cotangent, bit for bit."""
    mesh = Mesh(np.array(jax.devices())[[3, 1, 0, 2]].reshape(2, 2), ("x", "y"))
    wholes = np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32)

    def loss(x: Any, step: Any) -> Any:
        x = tracerec.tap(x * 2.0, "act", step=step, shards="local")
        return (x * x).sum()

    step_fn = jax.jit(jax.grad(loss))
    with tracerec.record(tmp_path / "run.h5"):
        for step, whole in enumerate(wholes):
            step_fn(jax.device_put(whole, NamedSharding(mesh, spec)), step)
    with tracerec.open(tmp_path / "run.h5") as trace:
        tap = trace["act"]
        primal = tap.sel(transforms=()).to_numpy(assemble=True)
        cotangent = tap.sel(transforms=("jvp", "transpose")).to_numpy(assemble=True)
        devices = {record.device for record in tap}
        calls = {record.call for record in tap}
    np.testing.assert_array_equal(primal, wholes * 2, strict=True)
    np.testing.assert_array_equal(cotangent, wholes * 4, strict=True)
    assert devices == {0, 1, 2, 3}
    assert len(calls) == 3


def test_padded_lanes_come_back_ragged(tmp_path: Path) -> None:
    """A padded batch under vmap, with lanes that did not take a branch: only what is real comes back."""
    lengths = np.array([3, 1, 4], np.int32)
    batch = np.arange(12, dtype=np.float32).reshape(3, 4)

    def row(x: Any, n: Any) -> Any:
        return jax.lax.cond(n > 1, lambda x: tracerec.tap(x, "long", logical_shapes=(n,)), lambda x: x, x)

    with tracerec.record(tmp_path / "run.h5"):
        jax.jit(jax.vmap(row))(batch, lengths)
    with tracerec.open(tmp_path / "run.h5") as trace:
        (lanes,) = trace["long"].to_numpy(trim=True)
    assert [lane.tolist() for lane in lanes] == [[0, 1, 2], [8, 9, 10, 11]]


def test_replicated_shards_are_told(tmp_path: Path) -> None:
    """A shard_map of a value that is the same everywhere: one record a device, marked equal."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def body(x: Any) -> Any:
        tracerec.tap(x, "own", result=x)
        return tracerec.tap(jax.lax.psum(x, "x"), "sum")

    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P()))
    with tracerec.record(tmp_path / "run.h5"):
        function(jnp.arange(4.0))
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert list(trace["sum"].replicated) == [True] * 4
        assert list(trace["own"].replicated) == [False] * 4
        assert [float(r.value[0]) for r in trace["sum"]] == [6.0] * 4
