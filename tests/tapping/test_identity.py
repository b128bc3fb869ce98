"""A tap is the identity for the computation: values, types, placement, and the program around it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tracerec
from tests.support import listening, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def layer(x: Any) -> Any:
    """Two taps around something that is not linear."""
    h = tracerec.tap(jnp.sin(x), "h")
    return tracerec.tap(h * h, "y").sum()


def scanned(x: Any) -> Any:
    """A carry, ys, and a tap of each."""

    def body(c: Any, _: Any) -> Any:
        c = tracerec.tap(jnp.sin(c), "c", phase="train")
        return c, tracerec.tap(c * 2.0, "y")

    carry, ys = lax.scan(body, x, None, length=3)
    return (carry.sum() + ys.sum()) / 2.0


def looped(x: Any) -> Any:
    """A while loop."""
    return lax.while_loop(lambda c: c.sum() < 8.0, lambda c: tracerec.tap(c * 2.0, "w"), x)


def branched(x: Any) -> Any:
    """A cond; both branches are in the program."""
    yes = lambda x: tracerec.tap(jnp.sin(x), "yes")  # noqa: E731
    no = lambda x: tracerec.tap(x * 2.0, "no")  # noqa: E731
    return lax.cond(x.sum() > 0, yes, no, x).sum()


def ruled(x: Any) -> Any:
    """A custom_vjp."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return tracerec.tap(x * x, "f")

    f.defvjp(lambda x: (tracerec.tap(x * x, "fwd"), x), lambda x, ct: (tracerec.tap(ct * x * 2.0, "bwd"),))
    return f(x).sum()


def statement(x: Any) -> Any:
    """The tap's result is not used."""
    tracerec.tap(jnp.sin(x), "s")
    return (x * x).sum()


def saving(x: Any) -> Any:
    """Under checkpoint."""
    return jax.checkpoint(lambda x: jnp.sin(layer(x)))(x)


VECTOR = np.array([0.5, 1, 2], np.float32)
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (layer, (VECTOR,)),
    "statement": (statement, (VECTOR,)),
    "jit": (jax.jit(layer), (VECTOR,)),
    "grad": (jax.grad(layer), (VECTOR,)),
    "jvp": (lambda x: jax.jvp(layer, (x,), (x,)), (VECTOR,)),
    "hessian": (jax.hessian(layer), (VECTOR,)),
    "scan": (scanned, (VECTOR,)),
    "grad of scan": (jax.grad(scanned), (VECTOR,)),
    "while": (looped, (VECTOR,)),
    "cond": (branched, (VECTOR,)),
    "grad of cond": (jax.grad(branched), (VECTOR,)),
    "vmap": (jax.vmap(layer), (MATRIX,)),
    "vmap of grad": (jax.vmap(jax.grad(layer)), (MATRIX,)),
    "vmap of grad of scan": (jax.vmap(jax.grad(scanned)), (MATRIX,)),
    "checkpoint": (jax.grad(saving), (VECTOR,)),
    "custom_vjp": (jax.grad(ruled), (VECTOR,)),
}


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter is a jaxpr, open or closed."""
    return isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr))


def without_taps(jaxpr: Any) -> Any:
    """Returns a jaxpr as nested tuples, the taps' equations left out and the variables numbered anew.

    Each equation is (primitive, operands, avals of its results, parameters); functions among the parameters, which
    print as addresses, are left out.
    """
    inner = jaxpr.jaxpr
    names: dict[Any, int] = {}
    same: dict[Any, Any] = {}

    def name(v: Any) -> Any:
        if isinstance(v, jex.Literal):
            return repr(v.val), str(v.aval)
        v = same.get(v, v)
        return names.setdefault(v, len(names)), str(v.aval), v.aval.weak_type

    def parameter(value: Any) -> Any:
        if is_jaxpr(value):
            return without_taps(value if isinstance(value, jex.ClosedJaxpr) else jex.ClosedJaxpr(value, ()))
        if isinstance(value, (tuple, list)):
            return tuple(map(parameter, value))
        return "function" if callable(value) else repr(value)

    inputs = [name(v) for v in (*inner.constvars, *inner.invars)]
    equations: list[Any] = []
    for eqn in inner.eqns:
        if eqn.primitive.name == "tap":
            for out, operand in zip(eqn.outvars, eqn.invars, strict=False):
                same[out] = operand if isinstance(operand, jex.Literal) else same.get(operand, operand)
            continue
        operands = [name(v) for v in eqn.invars]
        params = sorted((key, parameter(value)) for key, value in eqn.params.items())
        equations.append((eqn.primitive.name, operands, [name(v) for v in eqn.outvars], params))
    return inputs, equations, [name(v) for v in inner.outvars]


@pytest.mark.parametrize("case", FUNCTIONS)
def test_the_jaxpr_of_the_rest_is_the_untapped_one(case: str) -> None:
    """With the taps' equations taken out, the program is that of the function without taps."""
    function, args = FUNCTIONS[case]
    tapped = jax.make_jaxpr(function)(*args)
    with tracerec.disabled():
        untapped = jax.make_jaxpr(function)(*args)
    assert "tap[" in str(tapped)
    assert "tap[" not in str(untapped)
    assert without_taps(tapped) == without_taps(untapped)


@pytest.mark.parametrize("case", FUNCTIONS)
def test_results_are_those_without_taps(case: str) -> None:
    """Eagerly to the bit; jitted to rounding, since XLA fuses what no callback reads."""
    function, args = FUNCTIONS[case]
    # new functions: JAX keeps what it traced
    with tracerec.disabled():
        eager = function(*args)
        jitted = jax.jit(function)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), function(*args), eager)
    for got, want in zip(jax.tree.leaves(jax.jit(function)(*args)), jax.tree.leaves(jitted), strict=True):
        assert (got.dtype, got.weak_type, got.sharding) == (want.dtype, want.weak_type, want.sharding)
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint4", "int32", "float16", "bfloat16", "float8_e5m2", "float4_e2m1fn", "float32", "complex64"],
)
def test_dtypes_and_bits_pass_through(dtype: str) -> None:
    """The result is the value, and so is the record."""
    value = jnp.asarray(np.arange(2), dtype)
    (record,) = records_of(jax.jit(lambda x: tracerec.tap(x, "x")), value)
    result = jax.jit(lambda x: tracerec.tap(x, "x"))(value)
    assert result.dtype == value.dtype == record.value.dtype
    assert np.asarray(result).tobytes() == np.asarray(value).tobytes() == record.value.tobytes()


@pytest.mark.parametrize("weak", [True, False])
@pytest.mark.parametrize("wrap", [jax.jit, jax.grad, jax.vmap, jax.checkpoint], ids=lambda w: w.__name__)
def test_weak_types_stay(wrap: Any, weak: bool) -> None:  # noqa: FBT001
    """A tap neither makes a type weak nor strong, in its result and in gradients."""
    value = jnp.asarray(2.0) if weak else jnp.float32(2)
    if wrap is jax.vmap:
        value = lax.broadcast(value, (3,))
    assert value.weak_type == weak
    function = wrap(lambda x: tracerec.tap(x * 2.0, "x"))
    assert jax.eval_shape(function, value).weak_type == weak


def test_nan_payloads_and_signed_zeros_pass_through() -> None:
    """Every bit of every float, in the result and in the record."""
    bits = np.array([0x7FC12345, 0xFFC00001, 0x80000000, 0x00000001], np.uint32)
    value = jnp.asarray(bits.view(np.float32))
    function = jax.jit(lambda x: tracerec.tap(x, "x"))
    (record,) = records_of(function, value)
    assert record.value.view(np.uint32).tolist() == bits.tolist()
    assert np.asarray(function(value)).view(np.uint32).tolist() == bits.tolist()


@pytest.mark.parametrize("spec", [P(), P("x"), P("y"), P("x", "y"), P(("x", "y"))], ids=str)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_shardings_stay(axis_type: AxisType, spec: P) -> None:
    """The result of a tap lies where its operand lay, under jit and eagerly."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2)
    value = jax.device_put(jnp.arange(16.0).reshape(4, 4), NamedSharding(mesh, spec))
    compiled = jax.jit(lambda x: tracerec.tap(x, "x"))(value)
    assert compiled.sharding.is_equivalent_to(value.sharding, 2)
    assert tracerec.tap(value, "x") is value


def test_donation_stays() -> None:
    """A donated argument is taken, and its buffer becomes the result's."""
    function = jax.jit(lambda x: tracerec.tap(x + 1.0, "x"), donate_argnums=0)
    text = function.lower(jnp.ones(1000)).as_text()
    assert "tf.aliasing_output" in text
    value = jnp.ones(1000)
    (record,) = records_of(function, value)
    assert value.is_deleted()
    np.testing.assert_array_equal(record.value, np.full(1000, 2, np.float32))


def residuals(function: Any, *args: Any) -> list[str]:
    """The types of all arrays that the backward pass keeps."""
    _, pullback = jax.vjp(function, *args)
    return sorted(str(jnp.asarray(leaf).aval) for leaf in jax.tree.leaves(pullback))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("tapped_policy", [None, jax.checkpoint_policies.dots_saveable], ids=["default", "dots"])
def test_a_tap_under_checkpoint_saves_nothing(tapped_policy: Any) -> None:
    """What the backward pass keeps is what it keeps without taps."""

    def deep(x: Any) -> Any:
        for i in range(3):
            x = tracerec.tap(jnp.sin(x @ x), f"x{i}")
        return x.sum()

    def of_scan(x: Any) -> Any:
        return lax.scan(lambda c, _: (tracerec.tap(jnp.sin(c), "c"), None), x, None, length=3)[0].sum()

    for body in (deep, of_scan):
        function = jax.checkpoint(body, policy=tapped_policy)
        tapped = residuals(function, jnp.ones((2, 2)))
        with tracerec.disabled():
            assert tapped == residuals(function, jnp.ones((2, 2)))


def test_a_tap_without_checkpoint_saves_nothing_more() -> None:
    """Nor does it outside checkpoint."""
    for function in (layer, scanned, branched):
        tapped = residuals(function, VECTOR)
        with tracerec.disabled():
            assert tapped == residuals(function, VECTOR), function.__name__


def test_a_tap_whose_result_is_unused_keeps_what_its_tangent_needs() -> None:
    """Its tangent is recorded in forward mode, so JAX keeps it until it knows; ``derivatives=False`` is the cure."""

    def function(x: Any, *, derivatives: bool) -> Any:
        tracerec.tap(jnp.sin(x), "s", derivatives=derivatives)
        return (x * x).sum()

    with tracerec.disabled():
        untapped = residuals(functools.partial(function, derivatives=True), VECTOR)
    assert residuals(functools.partial(function, derivatives=False), VECTOR) == untapped
    assert residuals(functools.partial(function, derivatives=True), VECTOR) == sorted([*untapped, "float32[3]"])


def test_a_number_is_kept_for_the_cotangents_alone() -> None:
    """A kwarg that labels the record of the backward pass has to live until then: one number an iteration."""

    def function(x: Any, *, derivatives: bool) -> Any:
        def body(c: Any, i: Any) -> Any:
            return tracerec.tap(jnp.sin(c), "c", step=i, derivatives=derivatives), None

        return lax.scan(body, x, jnp.arange(3, dtype=jnp.int32))[0].sum()

    with tracerec.disabled():
        untapped = residuals(functools.partial(function, derivatives=True), VECTOR)
    assert residuals(functools.partial(function, derivatives=False), VECTOR) == untapped
    assert residuals(functools.partial(function, derivatives=True), VECTOR) == sorted([*untapped, "int32[3]"])


@contextlib.contextmanager
def no_compiling(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Fails when JAX compiles anything inside."""
    caplog.clear()
    with jax.log_compiles():
        yield
    compiled = [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]
    assert compiled == []


def test_calls_hit_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    """A jitted function with taps is traced and compiled once; a listener's coming and going changes nothing."""
    traces: list[int] = []

    @jax.jit
    def function(x: Any, step: Any) -> Any:
        traces.append(1)
        return tracerec.tap(layer(x), "out", step=step, phase="train")

    x = jnp.ones(3)
    function(x, 0)
    with no_compiling(caplog):
        function(x, 1)
        with listening() as keeper:
            function(x, 2)
            function(x, 3)
        function(x, 4)
    assert traces == [1]
    assert [r.step for r in keeper.records if r.tap == "out"] == [2, 3]


def test_the_same_code_traced_again_does_not_compile_again(caplog: pytest.LogCaptureFixture) -> None:
    """Sites are equal by value: an inner jit traced for an outer one is found again, and so is a whole program."""
    inner_traces: list[int] = []

    @jax.jit
    def inner(x: Any) -> Any:
        inner_traces.append(1)
        return tracerec.tap({"a": x, "b": [x]}, "t", phase="train", sizes=(1, 2))["a"]

    x = jnp.ones(3)
    jax.jit(lambda x: inner(x) + inner(x))(x)
    jax.jit(lambda x: inner(x) * inner(x))(x)
    assert inner_traces == [1]

    def again(x: Any) -> Any:
        return tracerec.tap({"a": x, "b": [x]}, "t", phase="train", sizes=(1, 2))["a"]

    first, second = (jax.make_jaxpr(again)(x) for _ in range(2))
    assert str(first) == str(second)
    params = [jaxpr.jaxpr.eqns[0].params for jaxpr in (first, second)]
    assert params[0] == params[1]
    # eagerly, a scan over a new function of the same code: JAX compares the jaxprs' taps by value
    jax.block_until_ready(jax.jit(again)(x))
    with no_compiling(caplog):
        jax.block_until_ready(jax.jit(again)(x))


def test_a_tree_of_2000_leaves() -> None:
    """One trace, one record of all leaves, each with its own value, forward and backward."""
    traces: list[int] = []

    @jax.jit
    def function(tree: Any) -> Any:
        traces.append(1)
        return jax.grad(lambda t: sum(x * x for x in jax.tree.leaves(tracerec.tap(t, "tree"))))(tree)

    tree = {f"layer{i}": [np.float32(i), np.float32(-i)] for i in range(1000)}
    primal, cotangent = records_of(function, tree)
    records_of(function, tree)
    assert traces == [1]
    assert len(primal.site.leaves) == len(cotangent.site.leaves) == 2000
    for i in range(1000):
        assert [float(x) for x in primal.value[f"layer{i}"]] == [i, -i]
        assert [float(x) for x in cotangent.value[f"layer{i}"]] == [2 * i, -2 * i]


def test_two_equal_taps_of_one_value_are_two_records() -> None:
    """No pass of JAX or XLA takes them for one."""

    @jax.jit
    def function(x: Any) -> Any:
        return tracerec.tap(x, "x") + tracerec.tap(x, "x")

    first, second = records_of(function, jnp.ones(2))
    assert first.site == second.site
    assert first.row["position"] != second.row["position"]
