"""Masks, lanes and shards from a JAX program through the file to the reader."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tracerec
from tracerec.errors import SelectionError
from tracerec.trace import trim_record


@pytest.fixture
def mesh():
    """Two by two devices, in no natural order."""
    return Mesh(np.array(jax.devices())[[2, 0, 3, 1]].reshape(2, 2), ("x", "y"))


def test_finished_lanes_are_dropped(tmp_path):
    """Trip counts 1, 2 and 3: six values of nine, each lane's own powers of two."""

    def body(state):
        n, value = state
        value = tracerec.tap(value * 2, "loop", where=n > 0, left=n)
        return n - 1, value

    with tracerec.record(tmp_path / "run.h5"):
        loop = jax.vmap(lambda n, x: lax.while_loop(lambda s: s[0] > 0, body, (n, x)))
        jax.block_until_ready(jax.jit(loop)(jnp.array([1, 2, 3]), jnp.array([1.0, 10.0, 100.0])))
    with tracerec.open(tmp_path / "run.h5") as trace:
        lanes = [[float(x) for x in record] for record in trace["loop"].to_numpy(trim=True)]
        assert lanes == [[2, 20, 200], [40, 400], [800]]
        assert [[float(x) for x in trim_record(record)] for record in trace["loop"]] == lanes
        table = trace.to_pandas()
        assert table["valid_lanes"].tolist() == ["3/3", "2/3", "1/3"]
        assert table["mean"].tolist() == [74.0, 220.0, 800.0]
        # Finished lanes have none left, and do not count: one is left first to lane 0, then 1, then 2.
        assert len(trace["loop"].sel(left=1)) == 3
        with pytest.raises(SelectionError, match="no record with left=0; they go from 1 to 3"):
            trace["loop"].sel(left=0)


def test_nested_batches_with_padding(tmp_path):
    """Two vmaps over odd axes, lengths by the inner lane: each lane as an unbatched call would have recorded it."""
    values = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)  # own axis, inner, outer
    lengths, wanted = np.array([4, 1]), np.array([[True, False, True], [True, True, False]])

    def one(x, n, p):
        return tracerec.tap({"x": x, "n": n}, "t", logical_shapes={"x": (n,), "n": None}, where=p)

    with tracerec.record(tmp_path / "run.h5"):
        both = jax.vmap(jax.vmap(one, in_axes=(1, 0, 0)), in_axes=(2, None, 1))
        jax.block_until_ready(jax.jit(both)(values, jnp.array(lengths), jnp.array(wanted)))
    with tracerec.open(tmp_path / "run.h5") as trace:
        (lanes,) = trace["t"].leaf("['x']").to_numpy(trim=True)
        expected = [values[: lengths[i], i, o] for o in range(3) for i in range(2) if wanted[i, o]]
        assert [lane.tolist() for lane in lanes] == [lane.tolist() for lane in expected]
        row = trace.to_pandas().query("leaf == \"['x']\"").iloc[0]
        flat = np.concatenate(expected).astype(np.float64)
        assert (row["count"], row["valid_lanes"]) == (len(flat), "4/6")
        assert row["mean"] == pytest.approx(flat.mean(), rel=1e-12)
        assert row["std"] == pytest.approx(flat.std(), rel=1e-12)


@pytest.mark.parametrize("spec", [P("x", "y"), P("y"), P(None, ("y", "x")), P()], ids=str)
def test_shards_are_put_together(tmp_path, mesh, spec):
    """Two calls on four devices: the arrays that the program had."""
    whole = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    function = jax.jit(lambda x: tracerec.tap(x, "t", shards="local"))
    with tracerec.record(tmp_path / "run.h5"):
        for values in (whole, -whole):
            jax.block_until_ready(function(jax.device_put(values, NamedSharding(mesh, spec))))
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert len(trace["t"]) == 8
        assert trace["t"].to_numpy(assemble=True).tobytes() == np.stack([whole, -whole]).tobytes()
        assert trace["t"].replicated.all() == (spec == P())


def test_replicated_values(tmp_path, mesh):
    """Under shard_map a sum over the mesh is the same on all devices, a part is not."""

    def f(x):
        return tracerec.tap(lax.psum(x.sum(), ("x", "y")), "sum") + tracerec.tap(x, "part")

    with tracerec.record(tmp_path / "run.h5"):
        mapped = jax.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
        jax.block_until_ready(jax.jit(mapped)(jnp.arange(32.0).reshape(4, 8)))
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace["sum"].to_numpy().tolist() == [496.0] * 4
        assert trace["sum"].replicated.tolist() == [True] * 4
        assert trace["part"].replicated.tolist() == [False] * 4
