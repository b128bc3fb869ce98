"""What fires under each transformation. The expected values are computed with numpy by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import tracerec
from tests.support import arrivals_of, records_of

PRIMAL = ()
TANGENT = ("jvp",)
COTANGENT = ("jvp", "transpose")


def seen(function: Any, *args: Any) -> list[tuple[str, tuple[str, ...], Any]]:
    """Each record as (tap, transforms, value)."""
    return [(r.tap, r.site.transform_names, r.value.tolist()) for r in records_of(function, *args)]


def cube(x: Any) -> Any:
    """Cubes: y = (2x)^3 with a tap at 2x: tangent 2t, cotangent 3 (2x)^2."""
    return tracerec.tap(x * 2.0, "a") ** 3


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
class TestDifferentiation:
    def test_grad_gives_primal_then_cotangent(self, wrap: Any) -> None:
        """Each once."""
        assert seen(wrap(jax.grad(cube)), 1.0) == [("a", PRIMAL, 2.0), ("a", COTANGENT, 12.0)]

    def test_jvp_gives_primal_then_tangent(self, wrap: Any) -> None:
        """Each once."""
        function = wrap(lambda x, t: jax.jvp(cube, (x,), (t,)))
        assert seen(function, 1.0, 3.0) == [("a", PRIMAL, 2.0), ("a", TANGENT, 6.0)]

    def test_scan_under_grad_gives_each_iteration_once(self, wrap: Any) -> None:
        """The carry is multiplied by 1.5, three times: cotangents come in reverse."""

        def function(x: Any) -> Any:
            return lax.scan(lambda c, i: (tracerec.tap(c * 1.5, "c", step=i), None), x, jnp.arange(3))[0]

        records = records_of(wrap(jax.grad(function)), 1.0)
        assert [(r.site.transform_names, r.step, float(r.value)) for r in records] == [
            (PRIMAL, 0, 1.5),
            (PRIMAL, 1, 2.25),
            (PRIMAL, 2, 3.375),
            (COTANGENT, 2, 1.0),
            (COTANGENT, 1, 1.5),
            (COTANGENT, 0, 2.25),
        ]

    @pytest.mark.parametrize(
        "policy",
        [None, jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.nothing_saveable],
        ids=["default", "everything", "nothing"],
    )
    def test_checkpoint_records_once(self, wrap: Any, policy: Any) -> None:
        """The rematerialised pass is silent."""
        function = jax.checkpoint(lambda x: jnp.sin(cube(x)), policy=policy)
        records = seen(wrap(jax.grad(function)), 1.0)
        assert [record[:2] for record in records] == [("a", PRIMAL), ("a", COTANGENT)]
        assert records[1][2] == pytest.approx(12.0 * np.cos(8.0), rel=1e-5)

    def test_custom_vjp_records_its_rules(self, wrap: Any) -> None:
        """Taps in fwd and bwd are taps like others."""

        @jax.custom_vjp
        def f(x: Any) -> Any:
            return x * x

        f.defvjp(lambda x: (tracerec.tap(x * x, "fwd"), x), lambda x, g: (tracerec.tap(g * 2.0 * x, "bwd"),))
        assert seen(wrap(jax.grad(f)), 3.0) == [("fwd", PRIMAL, 9.0), ("bwd", PRIMAL, 6.0)]

    def test_derivatives_false_records_primals_alone(self, wrap: Any) -> None:
        """The gradient is what it was."""
        function = wrap(jax.grad(lambda x: tracerec.tap(x * 2.0, "a", derivatives=False) ** 3))
        assert seen(function, 1.0) == [("a", PRIMAL, 2.0)]
        assert function(1.0) == 24.0

    def test_a_cotangent_record_holds_the_leaves_that_have_one(self, wrap: Any) -> None:
        """Integers have no cotangent; the record's tree has None in their place."""

        def function(x: Any) -> Any:
            out = tracerec.tap({"f": x * 2.0, "i": jnp.arange(2)}, "t")
            return out["f"] * 3.0

        _, cotangent = records_of(wrap(jax.grad(function)), 1.0)
        assert cotangent.value["f"].tolist() == 3.0
        assert cotangent.value["i"] is None
        assert [leaf.path for leaf in cotangent.site.leaves] == ["['f']"]


def test_control_flow_records_what_ran() -> None:
    """while: each iteration; cond and switch: the branch taken."""

    @jax.jit
    def function(x: Any) -> Any:
        x = lax.while_loop(lambda c: c < 3.0, lambda c: tracerec.tap(c + 1.0, "w"), x)
        x = lax.cond(x > 0, lambda c: tracerec.tap(c, "yes"), lambda c: tracerec.tap(c, "no"), x)
        return lax.switch(1, [lambda c: tracerec.tap(c, "s0"), lambda c: tracerec.tap(c, "s1")], x)

    assert seen(function, 1.0) == [
        ("w", PRIMAL, 2.0),
        ("w", PRIMAL, 3.0),
        ("yes", PRIMAL, 3.0),
        ("s1", PRIMAL, 3.0),
    ]


def test_vmap_gives_one_record_with_the_batch_dims() -> None:
    """The array is the whole batch; dims say where the lanes are, also of kwargs."""

    def function(x: Any, y: Any, s: Any) -> Any:
        return tracerec.tap((x * 2.0, y), "t", step=s, n=3)

    x, y, steps = jnp.arange(6.0).reshape(3, 2), jnp.ones(4), jnp.arange(2)
    (record,) = records_of(jax.jit(jax.vmap(function, in_axes=(1, None, 0))), x, y, steps)
    (batch,) = record.transforms
    assert batch == tracerec.Transform("batch", size=2, dims=(1, None), kwarg_dims=(None, 0))
    np.testing.assert_array_equal(record.value[0], np.arange(6.0).reshape(3, 2) * 2)
    np.testing.assert_array_equal(record.step, [0, 1])


def test_nested_vmap_and_grad_keep_every_level() -> None:
    """Innermost first; a level keeps its own parameters."""
    function = jax.vmap(jax.vmap(jax.grad(lambda x: cube(x).sum())))
    primal, cotangent = records_of(jax.jit(function), jnp.ones((3, 2)))
    assert [str(t) for t in primal.transforms] == ["batch(2)", "batch(3)"]
    assert [str(t) for t in cotangent.transforms] == ["jvp", "transpose", "batch(2)", "batch(3)"]
    np.testing.assert_array_equal(cotangent.value, np.full((3, 2), 12.0))
    assert hash(cotangent.transforms) == hash(tuple(cotangent.transforms))


def test_a_kwarg_that_depends_on_a_tangent_is_refused_by_name() -> None:
    """It has no value in the backward pass."""

    @jax.custom_jvp
    def f(x: Any) -> Any:
        return x

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return x, tracerec.tap(t, "t", size=t * 2)

    with pytest.raises(tracerec.errors.TapError, match="tap 't': kwarg 'size' depends on a tangent"):
        jax.grad(f)(1.0)


def test_shard_map_gives_a_record_a_device_with_its_coordinates() -> None:
    """Values, mesh coordinates and device ids agree with the sharding."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = PartitionSpec("x", "y")
    array = jax.device_put(jnp.arange(16.0).reshape(4, 4), NamedSharding(mesh, spec))
    function = jax.jit(jax.shard_map(lambda x: tracerec.tap(x, "s"), mesh=mesh, in_specs=spec, out_specs=spec))
    records = records_of(function, array)
    assert len(records) == 4
    for record in records:
        where = record.mesh_position
        assert where is not None
        i, j = where["x"], where["y"]
        np.testing.assert_array_equal(record.value, np.arange(16.0).reshape(4, 4)[2 * i : 2 * i + 2, 2 * j : 2 * j + 2])
        assert record.device == mesh.devices[i, j].id
    assert len({record.call for record in records}) == 1


def test_auto_sharded_jit_gives_the_logical_array_once() -> None:
    """One record of the whole value."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    array = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("x")))
    (record,) = records_of(jax.jit(lambda x: tracerec.tap(x + 1, "s")), array)
    np.testing.assert_array_equal(record.value, np.arange(8.0) + 1)


def test_partly_manual_shard_map_gives_a_record_a_manual_coordinate() -> None:
    """The value is gathered over the axes left to XLA."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    array = jax.device_put(jnp.arange(8.0).reshape(4, 2), NamedSharding(mesh, PartitionSpec("x", "y")))
    function = jax.shard_map(
        lambda x: tracerec.tap(x * 1.0, "s"),
        mesh=mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec("x"),
        axis_names={"x"},
    )
    records = records_of(jax.jit(function), array)
    assert sorted(r.value.tolist() for r in records) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_calls_and_iterations_are_numbered() -> None:
    """Records of one execution share a call; a loop's firings count up."""

    @jax.jit
    def function(x: Any) -> Any:
        x = tracerec.tap(x, "in")
        return lax.scan(lambda c, _: (tracerec.tap(c + 1.0, "c"), None), x, None, length=3)[0]

    def twice() -> Any:
        function(0.0)
        return function(1.0)

    records = records_of(twice)
    assert [(r.tap, r.call - records[0].call, int(r.row["iteration"])) for r in records] == [
        ("in", 0, 0),
        ("c", 0, 0),
        ("c", 0, 1),
        ("c", 0, 2),
        ("in", 1, 0),
        ("c", 1, 0),
        ("c", 1, 1),
        ("c", 1, 2),
    ]


@pytest.mark.parametrize("dependent", [True, False])
def test_taps_of_a_block_arrive_in_program_order(dependent: bool) -> None:  # noqa: FBT001
    """XLA may run independent callbacks in any order; the token chain does not let it."""

    @jax.jit
    def function(x: Any) -> Any:
        total = x
        for i in range(20):
            y = tracerec.tap((total if dependent else x) + 1.0, f"t{i}")
            total = y if dependent else total + y
        return total

    for _ in range(20):
        assert [r.tap for r in arrivals_of(function, 1.0)] == [f"t{i}" for i in range(20)]


def test_ordered_taps_keep_order_across_blocks_and_are_refused_on_several_devices() -> None:
    """Total order on one device; a clear error, at trace time, on more."""

    @jax.jit
    def inner(x: Any) -> Any:
        return tracerec.tap(x + 1.0, "inner", ordered=True)

    @jax.jit
    def function(x: Any) -> Any:
        x = tracerec.tap(x, "before", ordered=True)
        x = inner(x)
        return tracerec.tap(x, "after", ordered=True)

    assert [r.tap for r in arrivals_of(function, 1.0)] == ["before", "inner", "after"]
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec("x")))
    with pytest.raises((tracerec.errors.TapError, ValueError), match="ordered"):
        function(sharded)


def test_prng_keys_are_recorded_as_key_data_with_their_implementation() -> None:
    """Eager equals jitted; the values are those of jax.random.key_data."""
    keys = jax.random.split(jax.random.key(3), 4)
    function = lambda k: tracerec.tap({"k": k}, "keys")  # noqa: E731
    for wrap in (lambda f: f, jax.jit):
        (record,) = records_of(wrap(function), keys)
        (leaf,) = record.site.leaves
        assert (leaf.key_impl, leaf.dtype, leaf.shape) == ("threefry2x32", "uint32", (4, 2))
        np.testing.assert_array_equal(record.value["k"], jax.random.key_data(keys))
