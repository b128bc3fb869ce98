"""When a tap fires: ``when``, ``every``, ``first``, ``steps``, and the triggers; what is not recorded is not copied."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tracerec
from tests.support import records_of
from tracerec.errors import TapError

X = np.array([1.0, 2.0, 3.0], np.float32)


def steps_of(function: Any, *args: Any) -> list[int]:
    """Returns the steps of the records that a call makes."""
    return [record.step for record in records_of(function, *args)]


def loop(**options: Any) -> Any:
    """Returns a jitted scan over twelve steps with one tap."""

    @jax.jit
    def run(x: Any) -> Any:
        def body(carry: Any, step: Any) -> Any:
            return tracerec.tap(carry + 1, "t", step=step, **options), None

        return lax.scan(body, x, jnp.arange(12))[0]

    return run


CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "every": ({"every": 5}, [0, 5, 10]),
    "every 1": ({"every": 1}, list(range(12))),
    "first": ({"first": 2}, [0, 1]),
    "first 0": ({"first": 0}, []),
    "slice": ({"steps": slice(3, 8, 2)}, [3, 5, 7]),
    "open slice": ({"steps": slice(10, None)}, [10, 11]),
    "slice to": ({"steps": slice(2)}, [0, 1]),
    "slice by": ({"steps": slice(None, None, 6)}, [0, 6]),
    "list": ({"steps": [7, 1, 99]}, [1, 7]),
    "empty list": ({"steps": []}, []),
    "array": ({"steps": np.array([4])}, [4]),
    "range": ({"steps": range(2, 4)}, [2, 3]),
    "all of them": ({"every": 2, "first": 7, "steps": slice(1, None)}, [2, 4, 6]),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_steps_asked_for_are_recorded_traced_and_eagerly(case: str) -> None:
    """A scan and a Python loop give the same steps."""
    options, expected = CASES[case]
    assert steps_of(loop(**options), 0.0) == expected

    def eager() -> None:
        for step in range(12):
            tracerec.tap(1.0, "t", step=step, **options)

    assert sorted(steps_of(eager)) == expected


def test_values_are_those_of_the_steps_recorded_and_the_result_is_that_of_no_tap() -> None:
    """Nothing else changes."""
    run = loop(every=4)
    records = records_of(run, 0.0)
    assert [float(record.value) for record in records] == [1.0, 5.0, 9.0]
    with tracerec.disabled():
        expected = run(0.0)
    assert run(0.0) == expected


def test_numbers_that_change_do_not_compile_again() -> None:
    """All numbers may be operands."""
    traced = 0

    @jax.jit
    def f(x: Any, step: Any, n: Any, first: Any, steps: Any) -> Any:
        nonlocal traced
        traced += 1
        return tracerec.tap(x, "t", step=step, every=n, first=first, steps=steps)

    def run() -> None:
        for step in range(6):
            f(X, step, 2, 100, jnp.array([2, 3, 4]))
        for step in range(6):
            f(X, step, 3, 4, jnp.array([0, 3, 5]))

    assert sorted(steps_of(run)) == [0, 2, 3, 4]
    assert traced == 1


@pytest.mark.parametrize("outer", ["jit", "none"])
def test_when_may_be_traced_or_known(outer: str) -> None:
    """A bool of Python, numpy and JAX, inside jit and not."""

    def f(x: Any, go: Any) -> Any:
        return tracerec.tap(x, "t", when=go)

    run = jax.jit(f) if outer == "jit" else f
    assert len(records_of(run, X, True)) == 1  # noqa: FBT003
    assert records_of(run, X, np.bool_(0)) == []
    assert len(records_of(run, X, jnp.array(1, bool))) == 1
    assert records_of(run, X, jnp.array(0, bool)) == []


def test_under_vmap_the_record_says_which_lanes_wanted_it() -> None:
    """One wish is enough for a record."""

    def f(x: Any) -> Any:
        return tracerec.tap(x * 2, "t", when=x > 1.5)

    for run in (jax.vmap(f), jax.jit(jax.vmap(f))):
        (record,) = records_of(run, X)
        np.testing.assert_array_equal(record.value, X * 2)
        np.testing.assert_array_equal(record.where, [False, True, True])
        assert records_of(run, X * 0) == []


def test_under_nested_vmaps_the_mask_has_the_axes_of_the_decision_and_of_where() -> None:
    """Whichever levels they are batched at."""
    a = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    w = np.array([True, False, True])

    def f(x: Any, keep: Any, big: Any) -> Any:
        return tracerec.tap(x, "t", when=big, where=keep)

    inner = jax.vmap(f, in_axes=(0, 0, None))
    both = jax.jit(jax.vmap(inner, in_axes=(0, None, 0)))
    (record,) = records_of(both, a, w, np.array([False, True]))
    np.testing.assert_array_equal(record.value, a)
    np.testing.assert_array_equal(record.where, np.array([False, True])[:, None] & w)
    assert records_of(both, a, w, np.array([False, False])) == []
    # the decision is of the inner vmap alone, the mask of the outer
    inner = jax.vmap(f, in_axes=(0, None, 0))
    both = jax.jit(jax.vmap(inner, in_axes=(0, 0, None)))
    (record,) = records_of(both, a, np.array([True, False]), np.array([False, True, True]))
    np.testing.assert_array_equal(record.where, np.array([True, False])[:, None] & np.array([False, True, True]))


DERIVATIVES = {
    "grad": jax.grad,
    "jit(grad)": lambda f: jax.jit(jax.grad(f)),
    "grad(jit)": lambda f: jax.grad(jax.jit(f)),
    "grad(checkpoint)": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
}


@pytest.mark.parametrize("mode", DERIVATIVES)
def test_a_cotangent_follows_the_decision_of_its_primal(mode: str) -> None:
    """In each way to a gradient."""

    def f(x: Any, step: Any) -> Any:
        y = tracerec.tap(x * x, "t", step=step, when=tracerec.above(x, 2.5))
        return (y**2).sum()

    run = DERIVATIVES[mode](f)
    assert records_of(run, X * 0.5, 0) == []
    primal, cotangent = sorted(records_of(run, X, 1), key=lambda r: len(r.transforms))
    np.testing.assert_array_equal(primal.value, X * X)
    assert cotangent.site.transform_names == ("jvp", "transpose")
    np.testing.assert_allclose(cotangent.value, 2 * X * X)


def test_in_a_scan_under_grad_the_cotangents_are_of_the_steps_that_were_recorded() -> None:
    """With their values."""

    def f(x: Any) -> Any:
        def body(carry: Any, step: Any) -> Any:
            return tracerec.tap(carry * 2, "t", step=step, every=3), None

        return lax.scan(body, x, jnp.arange(7))[0]

    records = records_of(jax.jit(jax.grad(f)), 1.0)
    assert sorted(r.step for r in records if not r.transforms) == [0, 3, 6]
    back = {r.step: float(r.value) for r in records if r.transforms}
    assert back == {step: 2.0 ** (6 - step) for step in (0, 3, 6)}


def test_in_while_and_cond_and_custom_rules() -> None:
    """Nested decisions are all needed."""

    @jax.custom_vjp
    def g(x: Any) -> Any:
        return x

    g.defvjp(lambda x: (x, None), lambda _, ct: (tracerec.tap(ct, "back", when=tracerec.above(ct, 1)),))

    @jax.jit
    def f(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, x = state
            return i + 1, lax.cond(i % 2 == 0, lambda x: tracerec.tap(x + 1, "t", step=i, every=4), lambda x: x, x)

        return lax.while_loop(lambda state: state[0] < 9, body, (0, x))[1]

    assert steps_of(f, 0.0) == [0, 4, 8]
    (record,) = records_of(jax.jit(jax.grad(lambda x: 3 * g(x))), 1.0)
    assert (record.tap, float(record.value)) == ("back", 3.0)
    assert records_of(jax.jit(jax.grad(g)), 1.0) == []


def test_ordered_taps_that_decide_stay_in_order() -> None:
    """The token goes through the branch."""

    @jax.jit
    def f(x: Any) -> Any:
        def body(carry: Any, step: Any) -> Any:
            carry = tracerec.tap(carry + 1, "a", step=step, ordered=True)
            carry = tracerec.tap(carry + 1, "b", step=step, ordered=True, every=2)
            return carry, None

        return lax.scan(body, x, jnp.arange(4))[0]

    from tests.support import arrivals_of

    assert [(r.tap, r.step) for r in arrivals_of(f, 0.0)] == [
        ("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 2), ("a", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("shards", ["gather", "local"])
def test_sharded_by_xla(shards: Any) -> None:
    """One decision for all shards."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d")))

    @jax.jit
    def f(x: Any, step: Any) -> Any:
        return tracerec.tap(x * 2, "t", step=step, every=2, shards=shards)

    assert records_of(f, x, 1) == []
    records = records_of(f, x, 2)
    assert len(records) == (1 if shards == "gather" else 4)
    parts = sorted((np.asarray(r.value) for r in records), key=lambda part: float(part[0]))
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(8) * 2)


def test_in_shard_map_each_device_decides() -> None:
    """Each from its own shard."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
    def f(x: Any) -> Any:
        return tracerec.tap(x, "t", when=tracerec.above(x, 4.5))

    records = records_of(f, np.arange(8, dtype=np.float32))
    assert sorted(int(r.row["shard"]) for r in records) == [2, 3]
    assert {tuple(np.asarray(r.value).tolist()) for r in records} == {(4.0, 5.0), (6.0, 7.0)}


def test_pytrees_keys_and_pmap() -> None:
    """Whatever is tapped goes into the branch."""

    def f(x: Any, go: Any) -> Any:
        return tracerec.tap({"x": x, "key": jax.random.key(1)}, "t", when=go)["x"]

    (record,) = records_of(jax.jit(f), X, True)  # noqa: FBT003
    np.testing.assert_array_equal(record.value["key"], jax.random.key_data(jax.random.key(1)))
    records = records_of(jax.pmap(f), np.stack([X, X]), np.array([False, True]))
    assert len(records) == 1


FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.complex64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_triggers_see_what_is_not_finite_or_large(dtype: Any) -> None:
    """In every kind of float."""
    fine = np.array([1, -2, 0], np.float32).astype(dtype)
    assert not tracerec.nonfinite(fine)
    assert not tracerec.nonfinite({"a": fine, "n": 3, "key": jax.random.key(0)})
    assert tracerec.nonfinite([fine, np.array(np.nan).astype(dtype)])
    assert tracerec.above(fine, 1.5)
    assert not tracerec.above(fine, 2)
    assert tracerec.above(np.array(np.nan).astype(dtype), 1e30)
    assert not tracerec.above(fine[:0], 0)


def test_triggers_of_integers_bools_and_bits() -> None:
    """Limits beyond the dtype, the smallest integer, and -0.0."""
    assert tracerec.above(np.array([-128], np.int8), 100)
    assert not tracerec.above(np.array([-100], np.int8), 100)
    assert not tracerec.above(np.array([True, False]), 1)
    assert not tracerec.above(np.array([7], np.uint8), 300)
    assert tracerec.above(np.array([7], np.uint8), -1)
    assert tracerec.above(np.array([-128], np.int8), 127)
    assert not tracerec.above(np.array([-128], np.int8), 128)
    assert jax.jit(tracerec.above)(np.array([200], np.uint8), 199)
    assert not tracerec.nonfinite(np.array([1, 2]))
    assert tracerec.changed(jnp.array([0.0]), jnp.array([-0.0]))
    assert not tracerec.changed(jnp.array([np.nan]), jnp.array([np.nan]))
    assert tracerec.changed({"w": X}, {"w": X + 1})
    assert tracerec.changed(jax.random.key(0), jax.random.key(1))
    assert not tracerec.changed(jnp.array([1 + 2j]), jnp.array([1 + 2j]))
    assert tracerec.changed(np.array([1], ml_dtypes.float8_e4m3fn), np.array([2], ml_dtypes.float8_e4m3fn))
    with pytest.raises(TapError, match="float32 of"):
        tracerec.changed(X, X[:1])
    with pytest.raises(TapError, match="the one before"):
        tracerec.changed([X], X)


def test_a_trigger_finds_the_step_at_which_things_went_wrong() -> None:
    """The first record is the one looked for."""

    @jax.jit
    def f(x: Any) -> Any:
        def body(carry: Any, step: Any) -> Any:
            after = carry * 1e10
            return tracerec.tap(after, "t", step=step, when=tracerec.nonfinite(after)), None

        return lax.scan(body, x, jnp.arange(6))[0]

    assert steps_of(f, np.float32(1)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"when": 1}, "when must be a bool scalar"),
        ({"when": np.array([True])}, "when must be a bool scalar"),
        ({"every": 0, "step": 1}, "every=0"),
        ({"every": 2.5, "step": 1}, "every=2.5"),
        ({"every": True, "step": 1}, "every=True"),
        ({"every": 2}, "need the kwarg step"),
        ({"first": 2, "step": 0.5}, "need the kwarg step"),
        ({"first": -1, "step": 0}, "first=-1"),
        ({"steps": "abc", "step": 0}, "steps='abc'"),
        ({"steps": 3, "step": 0}, "steps=3"),
        ({"steps": slice(0, 10, 0), "step": 0}, "steps.step=0"),
        ({"over": "rows"}, "over='rows'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    """At the call, traced and not."""
    with pytest.raises(TapError, match=message):
        tracerec.tap(X, "t", **options)
    with pytest.raises(TapError, match=message):
        jax.jit(lambda x: tracerec.tap(x, "t", **options))(X)


def test_a_tap_that_does_not_fire_costs_no_copy() -> None:
    """The callback is in a branch of the compiled program, so that XLA hands it nothing."""
    f = jax.jit(lambda x, go: tracerec.tap(x, "t", when=go))
    text = f.lower(X, True).as_text()  # noqa: FBT003
    assert text.count("custom_call") == 1
    before, branch = text.split("custom_call")[0], "stablehlo.case"
    assert branch in before or "stablehlo.if" in before


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int32])
def test_steps_of_every_integer_dtype_meet_numbers_of_every_other(dtype: Any) -> None:
    """Also where JAX promotes nothing, and where a number is beyond the step's dtype."""

    @jax.jit
    def f(x: Any, step: Any, n: Any, many: Any) -> Any:
        x = tracerec.tap(x, "n", step=step, every=n)
        x = tracerec.tap(x, "many", step=step, steps=many)
        x = tracerec.tap(x, "some", step=step, steps=[2, n])
        return tracerec.tap(x, "first", step=step, first=10**12, steps=slice(-(10**12), 10**12, 2))

    def run() -> None:
        for step in range(6):
            f(X, dtype(step), np.int16(3), np.array([1, 400], np.int32))

    taken: dict[str, list[int]] = {}
    for record in records_of(run):
        taken.setdefault(record.tap, []).append(int(record.step))
    assert {tap: sorted(steps) for tap, steps in taken.items()} == {
        "n": [0, 3], "many": [1], "some": [2, 3], "first": [0, 2, 4],
    }  # fmt: skip
