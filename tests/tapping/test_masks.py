"""Which lanes count, and how much of a padded leaf: ``where``, ``logical_shapes``, and what JAX runs in vain."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.sharding import Mesh, PartitionSpec

import tracerec
from tests.support import records_of
from tracerec.errors import TapError

X = np.array([1.0, 2.0, 3.0], np.float32)
P = np.array([True, False, True])


def branches(p: Any, x: Any) -> Any:
    """Tap a is in the branch taken by lanes where p, tap b in the other."""
    return lax.cond(p, lambda x: tracerec.tap(x * 2, "a", k=1), lambda x: tracerec.tap(x - 1, "b"), x)


WRAPS = {
    "vmap": jax.vmap(branches),
    "jit(vmap)": jax.jit(jax.vmap(branches)),
    "vmap(grad)": jax.vmap(jax.grad(branches, argnums=1)),
    "grad(vmap)": jax.jit(jax.grad(lambda p, x: jax.vmap(branches)(p, x).sum(), argnums=1)),
    "vmap(checkpoint)": jax.jit(jax.vmap(jax.grad(jax.checkpoint(branches), argnums=1))),
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_vmapped_cond_tells_by_itself_which_lanes_took_the_branch(wrap: str) -> None:
    """Both branches run for all lanes; the mask is the predicate, for primals and cotangents."""
    records = records_of(WRAPS[wrap], P, X)
    assert {r.tap for r in records} == {"a", "b"}
    for record in records:
        assert record.where is not None
        np.testing.assert_array_equal(record.where, P if record.tap == "a" else ~P)
        assert not record.site.lanes_may_be_invalid
        if not record.site.transform_names or record.site.transform_names == ("batch",):
            np.testing.assert_array_equal(record.value, X * 2 if record.tap == "a" else X - 1)
        assert record.kwargs == ({"k": 1} if record.tap == "a" else {})


def test_masks_of_nested_conds_and_the_users_own_are_joined() -> None:
    """A lane counts where every predicate on its way holds."""
    q = np.array([True, True, False])
    w = np.array([True, False, False])

    def function(p: Any, q: Any, w: Any, x: Any) -> Any:
        def inner(x: Any) -> Any:
            return lax.cond(q, lambda x: tracerec.tap(x, "pq", where=w), lambda x: tracerec.tap(x, "p~q"), x)

        return lax.cond(p, inner, lambda x: x, x)

    found = {r.tap: r.where for r in records_of(jax.jit(jax.vmap(function)), P, q, w, X)}
    np.testing.assert_array_equal(found["pq"], P & q & w)
    np.testing.assert_array_equal(found["p~q"], P & ~q)


def test_switch_and_nested_vmaps() -> None:
    """One mask axis for each level whose predicate is batched, the outermost first."""

    def function(i: Any, x: Any) -> Any:
        return lax.switch(i, [lambda x, n=n: tracerec.tap(x, f"s{n}") for n in range(3)], x)

    i = np.array([[0, 1], [2, 2], [1, 0]], np.int32)
    records = records_of(jax.jit(jax.vmap(jax.vmap(function))), i, np.ones((3, 2), np.float32))
    for record in records:
        np.testing.assert_array_equal(record.where, i == int(record.tap[1]))
    outer_only = records_of(jax.jit(jax.vmap(jax.vmap(function, in_axes=(None, 0)))), i[:, 0], np.ones((3, 2)))
    for record in outer_only:
        np.testing.assert_array_equal(record.where, i[:, 0] == int(record.tap[1]))
        assert [t.kwarg_dims for t in record.transforms] == [(None,), (0,)]


def test_an_unbatched_predicate_needs_no_mask() -> None:
    """Only the branch taken runs."""
    (record,) = records_of(jax.jit(jax.vmap(branches, in_axes=(None, 0))), True, X)  # noqa: FBT003
    assert record.where is None
    assert not record.site.lanes_may_be_invalid


def countdown(n: Any, *, masked: bool) -> Any:
    """A loop of n iterations, tapped."""

    def body(c: Any) -> Any:
        i, x = c
        mask = {"where": i < n} if masked else {}
        return i + 1, tracerec.tap(x * 2.0, "w", **mask)

    return lax.while_loop(lambda c: c[0] < n, body, (0, 1.0))[1]


def test_finished_lanes_of_a_vmapped_while_are_marked() -> None:
    """JAX does not say which lanes have finished: the record says that it does not know."""
    records = records_of(jax.jit(jax.vmap(lambda n: countdown(n, masked=False))), jnp.array([1, 3]))
    assert len(records) == 3
    assert all(r.site.lanes_may_be_invalid and r.where is None for r in records)


def loop(body: Any) -> Any:
    """A while whose carry is batched from the start, so that JAX need not batch the body twice."""
    return lambda x: lax.while_loop(lambda c: c < 4.0, body, x)


def add_one(c: Any) -> Any:
    """The tapped step."""
    return tracerec.tap(c + 1.0, "b")


BATCHED_LOOPS = {
    "carry alone": jax.vmap(loop(add_one)),
    "inner jit": jax.vmap(loop(jax.jit(add_one))),
    "fori": jax.vmap(loop(lambda c: lax.fori_loop(0, 2, lambda _, c: tracerec.tap(c + 0.5, "b"), c))),
    "checkpoint": jax.vmap(loop(jax.checkpoint(add_one))),
    "nested while": jax.vmap(
        loop(
            lambda c: lax.while_loop(lambda d: d[0] < 2, lambda d: (d[0] + 1, tracerec.tap(d[1] + 0.5, "b")), (0, c))[1]
        )
    ),
    "grad in the body": jax.vmap(loop(lambda c: c + jax.grad(lambda y: tracerec.tap(y, "b"))(c))),
    "vmap of jvp": jax.vmap(lambda x: jax.jvp(loop(add_one), (x,), (x,))[0]),
    "jvp of vmap": lambda x: jax.jvp(jax.vmap(loop(add_one)), (x,), (x,))[0],
    "second of a pair": jax.vmap(
        lambda x: lax.while_loop(lambda c: c[0] < 4.0, lambda c: (c[0] + 1.0, add_one(c[1])), (x, x))
    ),
    "cond in the body": jax.vmap(loop(lambda c: lax.cond(c > 2.0, add_one, lambda c: c + 1.0, c))),
    "predicate of the outer lanes": jax.vmap(
        lambda x: jax.vmap(
            lambda y: lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1.0, add_one(c[1])), (0.0, y))
        )(jnp.ones(3))
    ),
}


@pytest.mark.parametrize("name", BATCHED_LOOPS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_finished_lanes_are_marked_in_whatever_the_loop_holds(name: str, wrap: Any) -> None:
    """One lane ends at once, the other goes on: every record of the body says that it does not know which count."""
    records = records_of(wrap(BATCHED_LOOPS[name]), jnp.array([0.0, 3.0]))
    assert records
    assert all(r.site.lanes_may_be_invalid for r in records)


def test_finished_lanes_never_reach_statistics(tmp_path: Any) -> None:
    """5 is a value that the program never has; the raw tap has it."""
    with tracerec.record(tmp_path / "run.h5"):
        result = jax.vmap(loop(add_one))(jnp.array([0.0, 3.0]))
    np.testing.assert_array_equal(result, [4.0, 4.0])
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.to_pandas()["max"].isna().all()
        assert trace["b"].raw.to_pandas()["max"].max() == 5.0


def test_a_condition_of_a_vmapped_while_runs_twice_an_iteration() -> None:
    """JAX asks it once for the loop and once, in the body, for which lanes go on; all are marked."""

    def function(x: Any) -> Any:
        return lax.while_loop(lambda c: tracerec.tap(c, "cond") < 4.0, lambda c: c + 1.0, x)

    records = records_of(jax.jit(jax.vmap(function)), jnp.array([0.0, 2.0]))
    assert len(records) == 2 * 4 + 1
    assert all(r.site.lanes_may_be_invalid for r in records)


def test_where_tells_which_lanes_of_a_vmapped_while_are_real() -> None:
    """Trip counts 1, 2, 3: six lanes are real."""
    records = records_of(jax.jit(jax.vmap(lambda n: countdown(n, masked=True))), jnp.array([1, 2, 3]))
    assert [np.asarray(r.where).tolist() for r in records] == [[True] * 3, [False, True, True], [False, False, True]]
    assert not any(r.site.lanes_may_be_invalid for r in records)


def test_a_vmapped_while_with_an_unbatched_condition_is_not_marked() -> None:
    """All lanes finish together."""
    loop = lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, tracerec.tap(c[1], "w")), (0, x))  # noqa: E731
    records = records_of(jax.jit(jax.vmap(loop)), X)
    assert len(records) == 2
    assert not any(r.site.lanes_may_be_invalid for r in records)


def test_a_loop_or_jit_inside_a_batched_branch_is_marked() -> None:
    """The mask does not reach inner functions; the mark does."""
    inner = jax.jit(lambda x: tracerec.tap(x, "j"))

    def scanned(x: Any) -> Any:
        return lax.scan(lambda c, _: (tracerec.tap(c + 1, "s"), None), inner(x), None, length=2)[0]

    records = records_of(jax.jit(jax.vmap(lambda p, x: lax.cond(p, scanned, lambda x: x, x))), P, X)
    assert sorted(r.tap for r in records) == ["j", "s", "s"]
    assert all(r.site.lanes_may_be_invalid and r.where is None for r in records)


def test_the_mark_does_not_depend_on_what_was_traced_before() -> None:
    """One branch, batched under a batched and an unbatched predicate in turn: JAX's caches must not mix them up."""
    double = jax.jit(lambda x: tracerec.tap(x * 2, "u"))
    branch = lambda p, x: lax.cond(p, double, lambda x: x, x)  # noqa: E731
    alike, apart = jax.vmap(branch, in_axes=(None, 0)), jax.vmap(branch)
    for _ in range(2):
        assert [r.site.lanes_may_be_invalid for r in records_of(alike, True, X)] == [False]  # noqa: FBT003
        assert [r.site.lanes_may_be_invalid for r in records_of(apart, P, X)] == [True]


def test_the_mark_of_a_loop_does_not_depend_on_what_was_traced_before() -> None:
    """One body, under a condition that is the same for all lanes and one that is not."""
    body = lambda c: (c[0] + 1, tracerec.tap(c[1] * 2.0, "w"), c[2])  # noqa: E731
    loop = lambda condition: jax.vmap(lambda n, x: lax.while_loop(condition, body, (jnp.int32(0), x, n))[1])  # noqa: E731
    n = jnp.array([1, 2, 2])
    for _ in range(2):
        alike = records_of(loop(lambda c: c[0] < 2), n, X)
        apart = records_of(loop(lambda c: c[0] < c[2]), n, X)
        assert {r.site.lanes_may_be_invalid for r in alike} == {False}
        assert {r.site.lanes_may_be_invalid for r in apart} == {True}


@jax.custom_vjp
def backward(x: Any) -> Any:
    """x^2. Its rules have the only taps, so nothing is to be seen of them until something differentiates it."""
    return x * x


backward.defvjp(lambda x: (tracerec.tap(x * x, "fwd"), x), lambda x, ct: (tracerec.tap(ct * x * 2.0, "bwd"),))


@jax.custom_jvp
def forward(x: Any) -> Any:
    """x^2, the same by a forward rule."""
    return x * x


@forward.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return tracerec.tap(x * x, "p"), tracerec.tap(t * x * 2.0, "t")


def chosen(function: Any) -> Any:
    """The function for positive lanes."""
    return lambda x: lax.cond(x > 0, function, lambda x: x, x)


def twice(function: Any) -> Any:
    """The function in a loop."""
    return lambda x: lax.scan(lambda c, _: (function(c), None), x, None, length=2)[0]


SIGNS = np.array([1.0, -2.0, 3.0], np.float32)

AROUND_RULES = {
    "cond": chosen,
    "switch": lambda f: lambda x: lax.switch(jnp.int32(x > 0), [lambda x: x, f], x),
    "cond of jit": lambda f: chosen(jax.jit(f)),
    "cond of checkpoint": lambda f: chosen(jax.checkpoint(f)),
    "cond of scan": lambda f: chosen(twice(f)),
    "cond of cond": lambda f: chosen(chosen(f)),
    "cond of vmap": lambda f: chosen(lambda x: jax.vmap(f)(jnp.stack([x, x])).sum()),
    "jit of cond": lambda f: jax.jit(chosen(f)),
    "checkpoint of cond": lambda f: jax.checkpoint(chosen(f)),
    "scan of cond": lambda f: twice(chosen(f)),
    "vmap of cond": lambda f: lambda x: jax.vmap(chosen(f))(jnp.stack([x, x])).sum(),
}

AROUND_RULES_OF_ALL = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "cond, one predicate": lambda f: lambda x: lax.cond(SIGNS[0] > 0, f, lambda x: x, x),
    "beside a cond": lambda f: lambda x: chosen(lambda x: x * 3.0)(x) + f(x),
    "behind a cond": lambda f: lambda x: f(chosen(lambda x: x * 3.0)(x)),
}

RULES = pytest.mark.parametrize("function", [backward, forward], ids=["vjp", "jvp"])
EAGER_AND_JIT = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


def marks_of_grad(function: Any) -> set[bool]:
    """Whether the records of a vmapped function, differentiated from outside, are marked; none has a mask."""
    records = records_of(jax.jit(jax.grad(lambda x: jax.vmap(function)(x).sum())), SIGNS)
    assert len({record.tap for record in records}) == 2
    assert all(record.where is None for record in records)
    return {record.site.lanes_may_be_invalid for record in records}


@RULES
@pytest.mark.parametrize("around", AROUND_RULES)
def test_rules_that_are_batched_late_are_marked(around: str, function: Any) -> None:
    """JAX batches them when the vmapped function is differentiated, long after the branch they are in."""
    assert marks_of_grad(AROUND_RULES[around](function)) == {True}


@RULES
@pytest.mark.parametrize("around", AROUND_RULES_OF_ALL)
def test_rules_that_run_for_all_lanes_are_not_marked(around: str, function: Any) -> None:
    """The mark is that of the branch, not of the vmap."""
    assert marks_of_grad(AROUND_RULES_OF_ALL[around](function)) == {False}


@pytest.mark.parametrize(("limit", "marked"), [(jnp.abs, True), (lambda _: 2.0, False)], ids=["apart", "alike"])
def test_rules_in_a_vmapped_while(limit: Any, *, marked: bool) -> None:
    """Differentiated forward: a while has no other way."""

    def function(x: Any) -> Any:
        condition = lambda c: c[0] < limit(c[2])  # noqa: E731
        return lax.while_loop(condition, lambda c: (c[0] + 1.0, forward(c[1]), c[2]), (0.0, x, x))[1]

    records = records_of(lambda x: jax.jvp(jax.vmap(function), (x,), (x,)), SIGNS)
    assert {r.tap for r in records} == {"p", "t"}
    assert {r.site.lanes_may_be_invalid for r in records} == {marked}


def between_levels(function: Any) -> Any:
    """An inner vmap with a mask of its own, under something that knows of no mask."""
    return function(jax.vmap(chosen(lambda x: tracerec.tap(x, "u"))))


LEVELS = {
    "jit": between_levels(lambda f: lambda p, xs: lax.cond(p, jax.jit(f), lambda xs: xs, xs)),
    "scan": between_levels(lambda f: lambda p, xs: lax.cond(p, twice(f), lambda xs: xs, xs)),
    "while": between_levels(
        lambda f: lambda p, xs: lax.while_loop(lambda c: c[0] < p, lambda c: (c[0] + 1, f(c[1])), (0, xs))[1]
    ),
    "sequential_vmap": between_levels(lambda f: lambda p, xs: lax.cond(p, sequential_vmap(f), lambda xs: xs, xs)),
}


@pytest.mark.parametrize("name", LEVELS)
def test_the_mask_of_an_inner_level_does_not_hide_that_of_an_outer_one(name: str) -> None:
    """The outer lanes are not known, although the record has a mask for the inner ones."""
    records = records_of(jax.vmap(LEVELS[name]), jnp.array([1, 0]), jnp.stack([SIGNS, SIGNS]))
    assert records
    assert all(r.where is not None and r.site.lanes_may_be_invalid for r in records)


def seen(x: Any) -> Any:
    """The simplest tap."""
    return tracerec.tap(x * 2.0, "seq")


@custom_vmap
def batched_by_hand(x: Any) -> Any:
    """A function with a rule of its own for vmap, which calls one that has rules for grad."""
    return x * x


@batched_by_hand.def_vmap
def _(_size: int, in_batched: list[bool], x: Any) -> Any:
    return backward(x), in_batched[0]


CUSTOM_BATCHING = {
    "sequential": jax.vmap(chosen(sequential_vmap(seen))),
    "of jit": jax.vmap(chosen(sequential_vmap(jax.jit(seen)))),
    "in jit": jax.vmap(chosen(jax.jit(sequential_vmap(seen)))),
    "in scan": jax.vmap(chosen(twice(sequential_vmap(seen)))),
    "in while": jax.vmap(
        lambda x: lax.while_loop(lambda c: c < x, lambda c: c + 1.0 + 0 * sequential_vmap(seen)(c), 0.0)
    ),
    "no lanes": jax.vmap(chosen(lambda x: x + sequential_vmap(seen)(jnp.float32(3.0)))),
    "predicates of both levels": lambda x: jax.vmap(jax.vmap(chosen(sequential_vmap(seen))))(jnp.stack([x, x])),
    "predicates of outer lanes": jax.vmap(
        lambda p: jax.vmap(lambda x: lax.cond(p > 0, sequential_vmap(seen), lambda x: x, x))(SIGNS)
    ),
    "vmap of jvp": jax.vmap(lambda x: jax.jvp(chosen(sequential_vmap(seen)), (x,), (x,))),
    "jvp of vmap": lambda x: jax.jvp(jax.vmap(chosen(sequential_vmap(seen))), (x,), (x,)),
    "jvp of vmap, custom_jvp": lambda x: jax.jvp(jax.vmap(chosen(sequential_vmap(forward))), (x,), (x,)),
    "grad of vmap, custom_vjp": jax.grad(lambda x: jax.vmap(chosen(batched_by_hand))(x).sum()),
}


@EAGER_AND_JIT
@pytest.mark.parametrize("name", CUSTOM_BATCHING)
def test_rules_of_custom_batching_are_marked(name: str, wrap: Any) -> None:
    """They run for lanes that do not count, and have no batch that could say so."""
    records = records_of(wrap(CUSTOM_BATCHING[name]), SIGNS)
    assert records
    assert all(r.site.lanes_may_be_invalid for r in records)


def test_rules_of_custom_batching_are_plain_elsewhere() -> None:
    """Outside of branches, in one that all lanes take, and where the user says which lanes count."""
    everywhere = lambda x: sequential_vmap(seen)(x) + lax.cond(SIGNS[0] > 0, sequential_vmap(seen), lambda x: x, x)  # noqa: E731
    assert {r.site.transform_names for r in records_of(jax.vmap(everywhere), SIGNS)} == {()}
    told = sequential_vmap(lambda p, x: tracerec.tap(x, "told", where=p))
    records = records_of(jax.vmap(lambda x: lax.cond(x > 0, told, lambda _, x: x, x > 0, x)), SIGNS)
    assert [bool(r.where) for r in records] == [True, False, True]
    assert not any(r.site.lanes_may_be_invalid for r in records)


def test_marked_records_without_a_batch_never_reach_statistics(tmp_path: Any) -> None:
    """-4 is a value that the program never has; the raw tap has it."""
    with tracerec.record(tmp_path / "run.h5"):
        jax.vmap(chosen(sequential_vmap(seen)))(SIGNS)
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.to_pandas()["min"].isna().all()
        assert trace["seq"].raw.to_pandas()["min"].min() == -4.0


def test_lanes_that_shard_map_spreads_over_devices_are_marked() -> None:
    """shard_map makes an axis of its own for the lanes of one device."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    spread = jax.shard_map(add_one, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    for function in (chosen(spread), lambda x: lax.while_loop(lambda c: c < x, spread, 0.0)):
        records = records_of(jax.jit(jax.vmap(function, spmd_axis_name="x")), jnp.array([1.0, 2.0]))
        assert records
        assert all(r.site.lanes_may_be_invalid for r in records)
    (plain,) = {r.site.lanes_may_be_invalid for r in records_of(jax.jit(jax.vmap(spread, spmd_axis_name="x")), X[:2])}
    assert not plain


LEAK_CHECKED = {
    "vmap": jax.vmap(seen),
    "vmap of vmap": lambda x: jax.vmap(jax.vmap(seen))(x[None]),
    "cond": jax.vmap(chosen(seen)),
    "cond of cond": jax.vmap(chosen(chosen(seen))),
    "cond of jit": jax.vmap(chosen(jax.jit(seen))),
    "switch": jax.vmap(lambda x: lax.switch(jnp.int32(x > 0), [seen, lambda x: x], x)),
    "while, together": jax.vmap(lambda x: lax.fori_loop(0, 2, lambda _, c: seen(c), x)),
    "while": jax.vmap(lambda x: lax.while_loop(lambda c: c < x, add_one, 0.0)),
    "scan": lambda x: lax.scan(lambda c, _: (jax.vmap(seen)(c), None), x, None, length=2)[0],
    "sequential_vmap": jax.vmap(chosen(sequential_vmap(seen))),
    "grad": jax.grad(lambda x: jax.vmap(chosen(seen))(x).sum()),
    "custom_vjp": jax.grad(lambda x: jax.vmap(chosen(backward))(x).sum()),
}


@EAGER_AND_JIT
@pytest.mark.parametrize("name", LEAK_CHECKED)
def test_taps_keep_no_tracer_alive(name: str, wrap: Any) -> None:
    """JAX's own check, which looks at all that refers to a tracer when its trace is over."""
    with jax.checking_leaks():
        assert records_of(wrap(LEAK_CHECKED[name]), SIGNS)


@pytest.mark.parametrize("where", [1, "yes", np.array([True, False]), np.float32(1)])
def test_a_mask_must_be_a_bool_scalar(where: Any) -> None:
    """The message says what came."""
    with pytest.raises(TapError, match="tap 't': where must be a bool scalar"):
        tracerec.tap(jnp.ones(2), "t", where=where)


def test_where_works_without_vmap_and_is_no_kwarg() -> None:
    """A scalar mask: whether the record counts."""
    for value in (True, np.bool_(False), jnp.array(True)):  # noqa: FBT003
        (record,) = records_of(lambda value=value: tracerec.tap(jnp.ones(2), "t", where=value))
        assert bool(record.where) == bool(value)
        assert record.kwargs == {}


def test_logical_shapes_are_recorded_static_traced_and_batched() -> None:
    """Per leaf, per lane; None is the whole axis."""

    def function(x: Any, n: Any) -> Any:
        tree = {"x": x, "y": jnp.ones((2, 3)), "z": jnp.zeros(4)}
        return tracerec.tap(tree, "t", logical_shapes={"x": (n,), "y": (1, None), "z": None})["x"]

    (record,) = records_of(jax.jit(jax.vmap(function)), np.ones((2, 4), np.float32), np.array([3, 1]))
    assert record.site.transform_names == ("mask", "batch")
    np.testing.assert_array_equal(record.logical_shape(0), [[3], [1]])
    np.testing.assert_array_equal(record.logical_shape(1), [1, 3])
    assert record.logical_shape(2) is None
    assert record.kwargs == {}


def test_cotangents_carry_the_logical_shape_of_their_primal() -> None:
    """Each leaf finds its own, also when a record holds some leaves only."""

    def function(x: Any) -> Any:
        out = tracerec.tap([jnp.arange(3), x], "t", logical_shapes=[(1,), (2,)])
        return out[1].sum()

    _, cotangent = records_of(jax.jit(jax.grad(function)), jnp.ones(4))
    assert cotangent.site.transform_names == ("mask", "jvp", "transpose")
    np.testing.assert_array_equal(cotangent.logical_shape(0), [2])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ((5,), r"logical_shapes of leaf 'the value' is \(5,\), which does not fit into \(4,\)"),
        ((-1,), "does not fit into"),
        ((1, 2), r"is \(1, 2\); give a tuple with one size for each axis of \(4,\)"),
        (3, r"is 3; give a tuple"),
        ((1.5,), "has 1.5 for a size; use ints, traced ints or None"),
    ],
)
def test_logical_shapes_that_do_not_fit_are_refused(shapes: Any, message: str) -> None:
    """At the tap, naming the leaf."""
    with pytest.raises(TapError, match=message):
        tracerec.tap(jnp.ones(4), "t", logical_shapes=shapes)


def test_logical_shapes_of_another_tree_are_refused() -> None:
    """The structure must be that of the value."""
    with pytest.raises(TapError, match="logical_shapes does not have the structure of the value"):
        tracerec.tap({"a": jnp.ones(4)}, "t", logical_shapes={"b": (1,)})
