"""Which lanes count, and how much of a padded leaf: ``where``, ``logical_shapes``, and what JAX runs in vain."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

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
