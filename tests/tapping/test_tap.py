from __future__ import annotations

import dataclasses
import enum
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracerec
from tests.support import listening, records_of
from tracerec.errors import TapError


def names(record: tracerec.Record) -> tuple[str, ...]:
    """The transforms' names."""
    return record.site.transform_names


class Point(NamedTuple):
    """As optax's states are."""

    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A user's own pytree."""

    w: Any
    b: Any


class Color(enum.Enum):
    """An enum as users pass it."""

    RED = "r"


class Level(enum.IntEnum):
    """An enum that is an int as well."""

    HIGH = 3


TREES = {
    "array": lambda x: x,
    "dict": lambda x: {"b": x, "a": [x + 1, None]},
    "tuple": lambda x: (x, (x * 2,), []),
    "namedtuple": lambda x: Point(x, {"k": x}),
    "dataclass": lambda x: Layer(w=x, b=None),
    "int keys": lambda x: {3: x, 1: x},
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("compiled", [False, True])
def test_tap_returns_its_value_and_records_every_leaf_with_its_key_path(tree: str, compiled: bool) -> None:  # noqa: FBT001
    """The result is the value; the record has JAX's leaves in JAX's order, named by JAX's key paths."""
    make = TREES[tree]

    def function(x: Any) -> Any:
        return tracerec.tap(make(x), "t")

    x = jnp.arange(3.0)
    value = make(x)
    with listening() as keeper:
        result = (jax.jit(function) if compiled else function)(x)
    assert jax.tree.structure(result) == jax.tree.structure(value)
    jax.tree.map(np.testing.assert_array_equal, result, value)
    (record,) = keeper.records
    paths, leaves = zip(*jax.tree_util.tree_flatten_with_path(value)[0], strict=True)
    assert [leaf.path for leaf in record.site.leaves] == [jax.tree_util.keystr(p) for p in paths]
    for array, leaf in zip(record.arrays, leaves, strict=True):
        np.testing.assert_array_equal(array, leaf, strict=True)


def test_record_value_has_the_structure_that_was_tapped() -> None:
    """Dicts, lists, tuples and None come back as such; other nodes by attribute."""
    (record,) = records_of(lambda: tracerec.tap({"p": Point(jnp.ones(2), None), "l": [jnp.zeros(1), ()]}, "t"))
    assert list(record.value) == ["l", "p"]
    assert record.value["l"][1] == ()
    np.testing.assert_array_equal(record.value["p"].x, [1, 1])
    assert record.value["p"].y is None


@pytest.mark.parametrize("value", [(), {}, [], None, {"a": None}])
def test_trees_without_leaves_pass_and_record_nothing(value: Any) -> None:
    """There is nothing to record, and nothing hangs."""
    with listening() as keeper:
        assert tracerec.tap(value, "empty") == value
    assert keeper.records == []


KWARGS: dict[str, Any] = {
    "text": "héllo\0\ud800",
    "none": None,
    "yes": True,
    "np_bool": np.bool_(False),  # noqa: FBT003
    "raw": b"\x00\xff",
    "step": 2**40,
    "negative": -(2**63),
    "huge": 2**64 - 1,
    "lr": 0.1,
    "nan": float("nan"),
    "z": 1 + 2j,
    "i8": np.int8(-3),
    "f64": np.float64(0.1),
    "i64": np.int64(2**53 + 1),
    "mixed": [1, "a", 2.5, (None, True)],
    "nested": {"a": {"b": 7}, 3: "x"},
    "path": PurePath("/a/b"),
    "dtype": np.dtype("float32"),
}


@pytest.mark.parametrize("compiled", [False, True])
def test_kwargs_come_back_exactly_with_x64_off(compiled: bool) -> None:  # noqa: FBT001
    """Python and numpy values keep their type and every bit, eagerly and jitted."""
    assert jnp.asarray(1.0).dtype == jnp.float32

    def function(x: Any) -> Any:
        return tracerec.tap(x, "t", **KWARGS)

    (record,) = records_of(jax.jit(function) if compiled else function, jnp.ones(2))
    for name, value in KWARGS.items():
        back = record.kwargs[name]
        value = bool(value) if isinstance(value, np.bool_) else value  # noqa: PLW2901 - static, as Python's bool
        assert type(back) is type(value), name
        assert repr(back) == repr(value) or (back != back and value != value), name  # noqa: PLR0124 - NaN
    assert record.step == 2**40


@pytest.mark.parametrize(("member", "text"), [(Color.RED, "Color.RED"), (Level.HIGH, "Level.HIGH")])
def test_enum_members_are_static_and_come_back_by_name(member: enum.Enum, text: str) -> None:
    """The reader does not import the user's class; an IntEnum is an enum, not a number."""
    (record,) = records_of(lambda: tracerec.tap(jnp.ones(1), "t", mode=member))
    assert str(record.kwargs["mode"]) == text
    assert record.site.columns == ()


def test_traced_and_numpy_kwargs_keep_their_dtype() -> None:
    """A traced step is what JAX computed it as."""
    function = jax.jit(lambda x, s: tracerec.tap(x, "t", step=s, loss=x.sum(), v=np.arange(2, dtype=np.int64)))
    (record,) = records_of(function, jnp.ones(2), 7)
    assert record.step == 7
    assert type(record.kwargs["step"]) is np.int32
    assert record.kwargs["loss"] == np.float32(2)
    assert record.kwargs["v"].dtype == np.int64


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bad": object()}, r"tap 't': kwarg 'bad' is <object .* of type builtins:object"),
        ({"bad": {1, 2}}, r"kwarg 'bad' is \{1, 2\} of type builtins:set"),
        ({"a": [1, {"x": object()}]}, r"kwarg \"a\[1\]\['x'\]\""),
        ({"big": 2**64}, r"kwarg 'big' is 18446744073709551616, which does not fit into 64 bits"),
        ({"d": {1.5: 1}}, r"kwarg 'd' has a dict key 1.5"),
        ({"k": np.array(["a"])}, r"kwarg 'k' is array\(\['a'\]"),
    ],
)
def test_kwargs_that_a_trace_cannot_give_back_are_refused_by_name(kwargs: dict[str, Any], message: str) -> None:
    """The error is raised at the tap and names the kwarg."""
    with pytest.raises(TapError, match=message):
        tracerec.tap(jnp.ones(1), "t", **kwargs)


def test_a_key_as_kwarg_and_a_string_as_leaf_are_refused() -> None:
    """Each has its place, and the message says which."""
    with pytest.raises(TapError, match="kwarg 'k' is a PRNG key; tap it as a value"):
        tracerec.tap(jnp.ones(1), "t", k=jax.random.key(0))
    with pytest.raises(TapError, match=r"a leaf is str 'x'.*pass strings and the like as kwargs"):
        tracerec.tap({"a": "x"}, "t")


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_that_are_no_text_are_refused(name: Any) -> None:
    """A tap needs a name."""
    with pytest.raises(TapError, match="must be a string that is not empty"):
        tracerec.tap(jnp.ones(1), name)


def test_a_hundred_jitted_steps_trace_once() -> None:
    """A traced step does not retrace, and each record has its own step."""
    traces = []

    @jax.jit
    def train(x: jax.Array, step: int) -> jax.Array:
        traces.append(1)
        return tracerec.tap(x * 2, "x", step=step, lr=0.1)

    with listening() as keeper:
        x = jnp.ones(2)
        for i in range(100):
            train(x, step=i)
    assert len(traces) == 1
    assert [r.step for r in keeper.records] == list(range(100))


def test_a_changing_python_step_compiles_nothing_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it make another site: the number is an operand."""
    x = jnp.arange(3.0)
    with jax.log_compiles(), listening() as keeper:
        for i in range(5):
            tracerec.tap(x, "x", step=i, lr=0.1 * i)
    assert [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()] == []
    assert [r.step for r in keeper.records] == list(range(5))
    assert len({r.site for r in keeper.records}) == 1


def test_result_is_returned_in_place_of_the_value() -> None:
    """The value is recorded although nothing uses it."""
    (record,) = records_of(jax.jit(lambda x: tracerec.tap(x + 1, "t", result=x)), jnp.zeros(2))
    np.testing.assert_array_equal(record.value, [1, 1])
    assert tracerec.tap(jnp.ones(1), "t", result="anything") == "anything"


def test_scopes_nest_and_the_innermost_kwarg_wins() -> None:
    """Names are joined, kwargs merged, also for a tap in an inner jit."""

    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return tracerec.tap(x, "act", layer=2)

    @jax.jit
    def outer(x: jax.Array, step: int) -> jax.Array:
        with tracerec.scope("net", step=step, layer=0, phase="train"):
            x = tracerec.tap(x, "in")
            with tracerec.scope("enc", layer=1):
                return inner(x)

    first, second = records_of(outer, jnp.ones(2), 5)
    assert (first.tap, first.kwargs) == ("net/in", {"step": 5, "layer": 0, "phase": "train"})
    assert (second.tap, second.kwargs) == ("net/enc/act", {"step": 5, "layer": 2, "phase": "train"})


def test_a_jitted_function_is_traced_anew_in_another_scope() -> None:
    """A cached trace never carries another scope's name or numbers."""
    function = jax.jit(lambda x: tracerec.tap(x, "x"))
    with listening() as keeper:
        for scope, step in [("a", 1), ("b", 1), ("a", 2), ("a", 1)]:
            with tracerec.scope(scope, step=step):
                function(jnp.ones(1))
        function(jnp.ones(1))
    assert [(r.tap, r.step) for r in keeper.records] == [("a/x", 1), ("b/x", 1), ("a/x", 2), ("a/x", 1), ("x", None)]


def test_a_scope_with_a_tracer_never_leaks_it_into_another_trace() -> None:
    """An inner jit that reads a scope's traced step is traced anew for each outer trace."""
    inner = jax.jit(lambda x: tracerec.tap(x, "x"))

    def outer(x: jax.Array, step: jax.Array) -> jax.Array:
        with tracerec.scope("s", step=step):
            return inner(x)

    with listening() as keeper:
        jax.jit(outer)(jnp.ones(1), jnp.int32(1))
        jax.jit(lambda x, s: outer(x, s + 1))(jnp.ones(1), jnp.int32(2))
    assert [r.step for r in keeper.records] == [1, 3]


def two_layers(x: jax.Array, w: jax.Array, *, tapped: bool) -> jax.Array:
    """A small net, with or without taps."""
    tap = tracerec.tap if tapped else lambda value, *_, **__: value
    h = tap(jnp.tanh(x @ w), "h", step=1)
    return tap((h * h).sum(), "loss")


def test_disabled_compiles_the_untapped_program() -> None:
    """Under disabled() the HLO text is that of the function without taps, and outside taps are there again."""

    def text(*, tapped: bool) -> str:
        def f(x: jax.Array, w: jax.Array) -> jax.Array:
            return two_layers(x, w, tapped=tapped)

        return jax.jit(jax.grad(f)).lower(jnp.ones((2, 3)), jnp.ones((3, 4))).as_text()

    untapped = text(tapped=False)
    assert "custom_call" not in untapped
    with tracerec.disabled():
        assert text(tapped=True) == untapped
    assert text(tapped=True) != untapped


def test_disabled_acts_on_a_function_that_was_traced_before() -> None:
    """The context is part of JAX's cache key."""
    function = jax.jit(lambda x: tracerec.tap(x, "x"))
    with listening() as keeper:
        function(jnp.ones(1))
        with tracerec.disabled():
            function(jnp.ones(1))
            tracerec.tap(jnp.ones(1), "x")
        function(jnp.ones(1))
    assert len(keeper.records) == 2


def test_an_eager_tap_records_the_values_of_that_moment() -> None:
    """A numpy array that is overwritten after the tap, and a JAX array that is donated, stay as they were."""
    array = np.arange(100_000, dtype=np.float32)
    donated = jnp.arange(100_000.0)
    with listening() as keeper:
        tracerec.tap(array, "numpy")
        array[:] = -1
        tracerec.tap(donated, "jax")
        jax.jit(lambda x: x * 0, donate_argnums=0)(donated)
    for record in keeper.records:
        np.testing.assert_array_equal(record.value, np.arange(100_000, dtype=np.float32))


@pytest.mark.parametrize("value", [1, 2.5, True, 1 + 2j, np.float32(3), np.arange(2)])
def test_python_and_numpy_values_pass_through_as_they_are(value: Any) -> None:
    """Eagerly the identity is the same object's value and type; the record has JAX's dtype."""
    with listening() as keeper:
        result = tracerec.tap(value, "v")
    assert type(result) is type(value)
    np.testing.assert_array_equal(result, value)
    np.testing.assert_array_equal(keeper.records[0].value, np.asarray(jnp.asarray(value)))


def test_weak_types_survive() -> None:
    """A weakly typed value stays weak, so promotion does not change."""
    plain = jax.make_jaxpr(lambda x: x * 2)(1.0)
    tapped = jax.make_jaxpr(lambda x: tracerec.tap(x, "t") * 2)(1.0)
    assert [v.aval for v in tapped.jaxpr.outvars] == [v.aval for v in plain.jaxpr.outvars]
    assert tapped.jaxpr.outvars[0].aval.weak_type
