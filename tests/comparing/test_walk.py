"""Which records are compared with which, and what comes out."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import tracerec
from tests.comparing.runs import LAYER, STEP, chain, compare, site
from tests.memory_source import make_stream
from tracerec.errors import ComparisonError
from tracerec.model import Column, Leaf, Transform

RNG = np.random.default_rng(3)


def values(taps=3, steps=8, shape=(4,)):
    """Random float32."""
    return RNG.normal(size=(taps, steps, *shape)).astype(np.float32)


def test_equal_runs_are_equal(written):
    """Everything is compared, nothing is left; status 0."""
    x = values()
    found = compare(written(*chain(x)), written(*chain(x)))
    assert (found.ok, found.verdict, found.status, found.compared) == (True, "equal", 0, 24)
    assert found.kinds["equal"] == 24
    assert found.first_divergence is found.culprit is None
    assert found.unmatched == ()


def test_the_first_divergence_is_the_first_in_order_of_execution(written):
    """A later tap of an earlier step comes before an earlier tap of a later step; the worst is another."""
    x = values()
    y = x.copy()
    y[0, 5] += 100
    y[2, 4, 1] += 1
    found = compare(written(*chain(x)), written(*chain(y)))
    first = found.first_divergence
    assert (found.status, first.tap, first.step, first.index, found.different) == (1, "third", 4, (1,), 2)
    assert (first.a, first.b) == (float(x[2, 4, 1]), float(y[2, 4, 1]))
    assert first.measures["max_abs"] == abs(float(x[2, 4, 1]) - float(y[2, 4, 1]))
    assert [index for index, _, _ in first.around] == [(0,), (1,), (2,), (3,)]
    assert found.rows("worst")[0]["tap"] == "first"
    assert found.culprit.record == first.record


def test_the_culprit_may_be_within_tolerance(written):
    """The first value that differs at all, before the first beyond tolerance."""
    x = values()
    y = x.copy()
    y[1, 2, 0] = np.nextafter(y[1, 2, 0], np.float32(9))
    y[2, 6] += 1
    found = compare(written(*chain(x)), written(*chain(y)))
    assert found.first_divergence.record == "third step=6"
    assert found.culprit.record == "second step=2"
    exact = compare(written(*chain(x)), written(*chain(y)), exact=True)
    assert exact.first_divergence.record == "second step=2"


def test_first_stops_early(written):
    """The first divergence is the same; what comes later is not compared."""
    x = values(3, 4000, ())
    y = x.copy()
    y[1, 10:] += 1
    a, b = written(*chain(x)), written(*chain(y))
    whole, first = compare(a, b), compare(a, b, first=True)
    assert first.stopped
    assert first.compared < whole.compared == 12_000
    assert first.first_divergence.to_json() == whole.first_divergence.to_json()
    same = compare(a, a, first=True)
    assert (same.compared, same.stopped, same.ok) == (12_000, False, True)


def test_records_are_matched_by_what_they_are_not_by_place(written):
    """Another order of layers, of steps and of streams in the file is no difference."""
    columns = (STEP, LAYER)
    steps, layers = np.repeat(np.arange(5), 3), np.tile(np.arange(3), 5)
    x = values(1, 15)[0]
    loss = make_stream(site("loss"), [np.arange(5)], numbers=[np.arange(5)], first=100)
    mixed = RNG.permutation(15)
    a = written(make_stream(site("act", (4,), columns=columns), [x], numbers=[steps, layers]), loss)
    b = written(
        loss,
        make_stream(site("act", (4,), columns=columns), [x[mixed]], numbers=[steps[mixed], layers[mixed]], first=200),
    )
    found = compare(a, b)
    assert (found.ok, found.compared) == (True, 20)
    y = x.copy()
    y[mixed[7]] += 1
    c = written(
        loss, make_stream(site("act", (4,), columns=columns), [y[mixed]], numbers=[steps[mixed], layers[mixed]])
    )
    first = compare(a, c).first_divergence
    assert first.key == {"step": steps[mixed[7]], "layer": layers[mixed[7]]}


def test_occurrence_tells_records_without_a_step_apart(written):
    """The n-th with the n-th, in order of arrival; the others are left."""
    x = values(1, 6)[0]
    a = written(make_stream(site("act", (4,), columns=()), [x]))
    b = written(make_stream(site("act", (4,), columns=()), [x[:4]]))
    found = compare(a, b)
    assert (found.compared, found.status) == (4, 1)
    assert [(each.what, each.records) for each in found.unmatched] == [("only in a", 2)]
    y = x.copy()
    y[3] += 1
    found = compare(a, written(make_stream(site("act", (4,), columns=()), [y])))
    assert found.first_divergence.occurrence == 3


def test_float_kwargs_are_compared_and_not_matched(written):
    """A learning rate that differs is a difference of its own."""
    columns = (STEP, Column("lr", "float64", python="float"))
    a, b = (
        written(make_stream(site("loss", columns=columns), [np.ones(3)], numbers=[np.arange(3), rates]))
        for rates in ([0.1, 0.2, 0.3], [0.1, 0.2, 0.4])
    )
    found = compare(a, b)
    assert (found.compared, found.different) == (6, 1)
    assert found.first_divergence.record == "loss kwargs.lr step=2"


def test_key_names_another_choice(written):
    """Without the layer among the keys, occurrence tells the records apart."""
    columns = (STEP, LAYER)
    x = values(1, 4)[0]
    a = written(make_stream(site("act", (4,), columns=columns), [x], numbers=[[0, 0, 1, 1], [0, 1, 0, 1]]))
    b = written(make_stream(site("act", (4,), columns=columns), [x], numbers=[[0, 0, 1, 1], [5, 6, 5, 6]]))
    assert compare(a, b).compared == 0
    assert compare(a, b).status == 2
    assert compare(a, b, key=["step"]).ok
    with pytest.raises(ComparisonError, match="no tap has a kwarg 'stepp'; there are layer, step"):
        compare(a, b, key="stepp")


def test_taps_are_renamed(written, tmp_path):
    """By a pattern whose star carries over, or by a file; what matches nothing is refused with what was meant."""
    x = values()
    a = written(*chain(x, ("old/0/act", "old/1/act", "loss")))
    b = written(*chain(x, ("new.0.out", "new.1.out", "loss")))
    assert compare(a, b).status == 1
    assert compare(a, b, rename={"old/*/act": "new.*.out"}).ok
    (tmp_path / "names.json").write_text(json.dumps({"old/*/act": "new.*.out"}))
    assert compare(a, b, rename=tmp_path / "names.json").ok
    with pytest.raises(ComparisonError, match=r"no tap of .*run1.h5 matches 'Old/0/act'; did you mean 'old/0/act'"):
        compare(a, b, rename={"Old/0/act": "x"})
    with pytest.raises(ComparisonError, match="both become 'one'"):
        compare(a, b, rename={"old/*": "one"})
    with pytest.raises(ComparisonError, match=r"more \* than"):
        compare(a, b, rename={"old/0/act": "*"})
    with pytest.raises(ComparisonError, match="cannot be read"):
        compare(a, b, rename="none.json")


def test_ignored_taps_are_left_out(written):
    """By pattern, in either run."""
    x = values()
    y = x.copy()
    y[1] += 1
    a, b = written(*chain(x)), written(*chain(y, ("first", "second", "other")))
    assert compare(a, b, ignore=["second", "third", "oth*"]).ok


def test_what_only_one_run_has_is_named_with_what_is_near(written):
    """A like name, another static kwarg, another chain of transforms, steps that are shifted."""
    x = values()
    a = written(*chain(x, ("layer0/act", "b", "loss")))
    b = written(*chain(x, ("layers.0/act", "b", "loss")))
    found = compare(a, b)
    near = {each.what: each.near for each in found.unmatched}
    assert near == {"only in a": "'layers.0/act'", "only in b": "'layer0/act'"}
    assert compare(a, b, missing="ignore").status == 0
    with pytest.warns(UserWarning, match="not everything was compared: only in a: layer0/act"):
        warned = compare(a, b, missing="warn")
    assert (warned.ok, warned.status) == (True, 3)

    one, other = (make_stream(site("x", static=f'"phase":"{p}"'), [[1]], numbers=[[0]]) for p in ("train", "eval"))
    found = compare(written(one), written(other))
    assert 'the same tap with kwargs {"phase":"eval"}' in found.unmatched[0].near
    one, other = (make_stream(site("x", transforms=t), [[1]], numbers=[[0]]) for t in ((), (Transform("jvp"),)))
    assert compare(written(one), written(other)).unmatched[0].near == "the same tap with transforms (jvp)"
    one, other = (make_stream(site("x"), [[1, 2]], numbers=[steps]) for steps in ([0, 1], [10, 11]))
    assert "10 steps later" in compare(written(one), written(other)).unmatched[0].near


def test_steps_that_nearly_agree_are_not_joined(written):
    """0.1 + 0.2 is another step than 0.3, and is named as near."""
    column = Column("step", "float64", python="float")
    one, other = (
        make_stream(site("x", columns=(column,)), [[1, 1]], numbers=[[0.1, step]]) for step in (0.1 + 0.2, 0.3)
    )
    found = compare(written(one), written(other))
    assert found.compared == 1
    assert found.unmatched[0].near == "x step=0.3 beside 0.30000000000000004: steps must be the same number"


@pytest.mark.parametrize(
    ("shape_a", "shape_b"), [((3, 1), (1, 3)), ((0,), (1,)), ((0, 3), (1, 3)), ((), (1,)), ((2,), (2, 2))]
)
def test_shapes_are_not_broadcast(written, shape_a, shape_b):
    """A difference of shape is a difference, whatever the values."""
    a, b = (
        written(make_stream(site("x", shape), [np.zeros((2, *shape))], numbers=[[0, 1]]))
        for shape in (shape_a, shape_b)
    )
    found = compare(a, b, rtol=1e9, atol=1e9)
    assert (found.different, found.first_divergence.kind) == (2, "shape differs")
    assert found.first_divergence.reason == f"shape {shape_a} against {shape_b}"


def test_dtypes_are_not_promoted(written):
    """The same values in another dtype differ; compared in the lower precision they do not."""
    x = np.array([[1.0, 1.001, 3.0]])
    a = written(make_stream(site("x", (3,), "float32"), [x], numbers=[[0]]))
    b = written(make_stream(site("x", (3,), "bfloat16"), [x], numbers=[[0]]))
    found = compare(a, b)
    assert (found.status, found.first_divergence.reason) == (1, "dtype float32 against bfloat16")
    assert found.first_divergence.measures["differing"] == 1
    cast = compare(a, b, cast=True)
    assert (cast.ok, cast.kinds["equal values"]) == (True, 1)
    c = written(make_stream(site("x", (3,), "float32"), [x + 1e-3], numbers=[[0]]))
    assert not compare(a, c).ok
    assert compare(a, c, cast="bfloat16").ok
    with pytest.raises(ComparisonError, match="name of a dtype, not 'float99'"):
        compare(a, b, cast="float99")


def test_devices(written):
    """A run on another device is the same; on a mesh each place is compared with its own."""
    x = values(1, 4)[0]
    one, other = (
        written(make_stream(site("x", (4,)), [x], numbers=[np.arange(4)], device=device)) for device in (0, 3)
    )
    assert compare(one, other).ok
    shard = np.array([0, 1, 0, 1])
    steps = np.array([0, 0, 1, 1])
    a = written(make_stream(site("x", (4,)), [x], numbers=[steps], device=shard, shard=shard))
    b = written(make_stream(site("x", (4,)), [x[[1, 0, 3, 2]]], numbers=[steps], device=1 - shard, shard=1 - shard))
    assert compare(a, b).ok
    y = x.copy()
    y[3] += 1
    c = written(make_stream(site("x", (4,)), [y], numbers=[steps], device=shard, shard=shard))
    first = compare(a, c).first_divergence
    assert (first.step, first.shard) == (1, 1)


def sharded(array, parts):
    """A stream of the shards of ``w``: of arrays ``(3, 8, 2)``, by their first axis."""
    size = 8 // parts
    local = dataclasses.replace(
        site("w", columns=(STEP, Column("", "int64", (2,), role="offset"))),
        leaves=(Leaf("", (size, 2), "float32", global_shape=(8, 2)),),
    )
    steps, devices = np.repeat(np.arange(3), parts), np.tile(np.arange(parts), 3)
    pieces = array.reshape(3, parts, size, 2).reshape(-1, size, 2)
    offsets = np.stack([devices * size, np.zeros_like(devices)], axis=1)
    return make_stream(local, [pieces], numbers=[steps, offsets], device=devices, shard=devices, call=steps + 1)


def test_sharding_does_not_matter(written):
    """Two, four and one shard of the same array are compared once they are put together."""
    whole = values(1, 3, (8, 2))[0]
    gathered = make_stream(site("w", (8, 2)), [whole], numbers=[np.arange(3)])
    runs = [written(sharded(whole, 2)), written(sharded(whole, 4)), written(gathered)]
    for a in runs:
        for b in runs:
            found = compare(a, b)
            assert (found.ok, found.compared) == (True, 3), str(found)
    other = whole.copy()
    other[2, 5, 1] += 1
    found = compare(runs[0], written(sharded(other, 4)))
    assert (found.first_divergence.step, found.first_divergence.index) == (2, (5, 1))


def test_padding_and_lanes_do_not_count(written):
    """Of lanes that are ruled out, other values are no difference; another mask is."""
    batch = Transform("batch", size=3, dims=(0,), kwarg_dims=(None, 0))
    masked = site("x", (3,), columns=(STEP, Column("where", "bool", (3,), role="where")), transforms=(batch,))
    masked = dataclasses.replace(masked, kwargs='{"step":{"slot":0}}')
    mask = np.array([[True, False, True]] * 2)

    def run(array, mask=mask):
        return written(make_stream(masked, [array], numbers=[[0, 1], mask]))

    a = run([[1, 2, 3], [4, 5, 6]])
    assert compare(a, run([[1, 9, 3], [4, np.nan, 6]])).ok
    assert compare(a, run([[1, 9, 3], [4, 5, 7]])).first_divergence.step == 1
    found = compare(a, run([[1, 2, 3], [4, 5, 6]], np.array([[True, False, True], [True, True, True]])))
    assert found.first_divergence.kind == "valid lanes differ"


def test_lanes_that_nobody_knows_of_cannot_be_compared(written):
    """Equal bits are equal; anything else is listed apart, status 2."""
    batch = Transform("batch", size=2, dims=(0,), kwarg_dims=(None,), lanes_may_be_invalid=True)
    unknown = site("x", (2,), transforms=(batch,))
    a, b = (written(make_stream(unknown, [x], numbers=[[0, 1]])) for x in ([[1, 2], [3, 4]], [[1, 2], [3, 5]]))
    found = compare(a, b)
    assert (found.kinds["equal"], found.kinds["not comparable"], found.status) == (1, 1, 2)
    assert "lanes that never took" in found.unmatched[0].detail
    assert compare(a, a).ok


def test_losses_are_listed_apart(written):
    """What a run dropped itself is not only in the other; all else equal the status is 3."""
    x = values()
    a = written(*chain(x))
    streams = chain(x)
    cut = make_stream(streams[2].site, [x[2, :6]], numbers=[np.arange(6)], arrival=np.arange(6) * 3 + 2)
    b = written(*streams[:2], cut, dropped={"third": 2})
    found = compare(a, b)
    assert (found.verdict, found.status, found.ok) == ("incomplete", 3, False)
    assert [(each.what, each.records) for each in found.unmatched] == [("dropped", 2)]
    assert compare(a, written(*streams[:2], cut)).status == 1
    assert compare(a, written(*chain(x), retired={"first": 5})).status == 3


def test_losses_are_those_of_the_taps_compared(written):
    """Not of one that is ignored; of one that was renamed under its new name."""
    x = values()
    a = written(*chain(x))
    assert compare(a, written(*chain(x), dropped={"third": 2}), ignore="thi*").status == 0
    new = ("first", "second", "last")
    streams = chain(x)
    half = make_stream(streams[2].site, [x[2, :6]], numbers=[np.arange(6)], arrival=np.arange(6) * 3 + 2)
    found = compare(
        written(*streams[:2], half, dropped={"third": 2}), written(*chain(x, new)), rename={"third": "last"}
    )
    assert [(each.what, each.tap, each.records) for each in found.unmatched] == [("dropped", "last", 2)]
    assert found.status == 3


def test_the_verdict_in_a_line(written):
    """What is equal but for records in one run alone says so; noise is not called tolerance."""
    x = values()
    a = written(*chain(x))
    text = compare(a, written(*chain(x[:2], ("first", "second")))).summary
    assert text.startswith("different: all 16 of 16 compared are equal, but 8 records are in one run alone, ")
    zeros = np.zeros((3, 2, 4), np.float32)
    found = compare(written(*chain(zeros)), written(*chain(-zeros)))
    assert found.summary.startswith("equal: 0 of 6 compared are equal, 6 equal in value, not in bits, ")
    found = compare(a, written(*chain(x * np.float32(1 + 1e-6))))
    assert found.summary.startswith("equal: 0 of 24 compared are equal, 24 within tolerance, ")
    noisy = written(*chain(x * np.float32(1 + 1e-3)))
    assert compare(a, noisy, noise=noisy).summary.startswith("equal: 0 of 24 compared are equal, 24 within noise, ")


def test_noise_excuses_what_a_repeated_run_shows(written):
    """Within twice the spread nothing is a regression; beyond it, or where the noise run is silent, it is."""
    x = values(3, 8)
    wobble = x + np.float32(1e-3) * RNG.choice([-1, 1], size=x.shape).astype(np.float32)
    wobble[0] = x[0]
    near = x + np.float32(1.5e-3)
    near[0] = x[0]
    a, noise, b = written(*chain(x)), written(*chain(wobble)), written(*chain(near))
    assert not compare(a, b).ok
    found = compare(a, b, noise=noise)
    assert (found.ok, found.kinds["within noise"]) == (True, 16)
    assert not compare(a, b, noise=noise, noise_factor=1.2).ok
    far = near.copy()
    far[1, 5, 2] += 0.1
    assert compare(a, written(*chain(far)), noise=noise).first_divergence.record == "second step=5"
    far = near.copy()
    far[0, 3] += 1e-3
    assert compare(a, written(*chain(far)), noise=noise).first_divergence.record == "first step=3"


def mesh_run(written, *, steps=3, size=8, lr=0.1, leaves=("['w']", "['b']")):
    """A run of arrays on two devices, half on each, with a float kwarg; the last step's are half as large."""
    streams = []
    for length, some in ((size, np.arange(steps - 1)), (size // 2, np.array([steps - 1]))):
        half = length // 2
        columns = (STEP, Column("lr", "float64"), *(Column(p, "int64", (1,), role="offset") for p in leaves))
        parts = tuple(Leaf(path, (half,), "float32", n, global_shape=(length,)) for n, path in enumerate(leaves))
        number, device = np.repeat(some, 2), np.tile([0, 1], len(some))
        pieces = (number[:, None] * 100 + device[:, None] * half + np.arange(half)).astype(np.float32)
        numbers = [number, np.full(len(number), lr), *([device[:, None] * half] * len(leaves))]
        local = site("p", columns=columns, leaves=parts)
        arrival = number * 2 + device
        streams.append(
            make_stream(
                local,
                [pieces] * len(leaves),
                numbers=numbers,
                device=device,
                shard=device,
                call=number + 1,
                arrival=arrival,
            )
        )
    return written(*streams)


def test_sharded_arrays_among_other_taps(written):
    """Their places in the trace are larger than their number."""
    others = chain(values(3, 40, (2,)))
    x = values(1, 3, (8, 2))[0]

    def whole():
        return make_stream(
            site("w", (8, 2)), [x], numbers=[np.arange(3)], arrival=200 + np.arange(3), call=[50, 51, 52]
        )

    def shards():
        stream = sharded(x, 2)
        stream.rows["arrival"] += 200
        stream.rows["call"] += 49
        return stream

    for a in (whole, shards):
        for b in (whole, shards):
            found = compare(written(*others, a()), written(*others, b()))
            assert (found.status, found.compared) == (0, 123), str(found)


def test_sharded_arrays_of_several_shapes_leaves_and_kwargs(written):
    """A last batch that is smaller, a leaf of one run alone, a float kwarg: as where nothing is sharded."""
    a = mesh_run(written)
    found = compare(a, mesh_run(written))
    assert (found.status, found.compared, found.kinds["equal"]) == (0, 9, 9)
    found = compare(a, mesh_run(written, lr=0.2))
    assert (found.different, found.first_divergence.leaf, found.first_divergence.a) == (3, "kwargs.lr", 0.1)
    found = compare(a, mesh_run(written, leaves=("['w']", "['bias']")))
    assert (found.different, found.compared) == (0, 6)
    whole = {(each.what, each.leaf) for each in found.unmatched}
    assert whole == {("only in a", "['b']"), ("only in b", "['bias']")}
    assert sum(each.records for each in found.unmatched) == 6
    found = compare(a, mesh_run(written, size=16))
    assert found.kinds["shape differs"] == 6


def test_noise_of_sharded_arrays(written):
    """Each of the three runs may be sharded in its own way; a firing that the noise run lacks excuses nothing."""
    x = values(1, 3, (8, 2))[0]
    wobble, near = x + np.float32(1e-3), x + np.float32(1.5e-3)

    def plain(array, steps=3):
        return make_stream(site("w", (8, 2)), [array[:steps]], numbers=[np.arange(steps)])

    for a, b, noise in (
        (sharded(x, 2), sharded(near, 2), sharded(wobble, 4)),
        (sharded(x, 2), sharded(near, 4), plain(wobble)),
        (plain(x), plain(near), sharded(wobble, 2)),
    ):
        paths = written(a), written(b), written(noise)
        assert compare(*paths[:2]).different == 3
        found = compare(*paths[:2], noise=paths[2])
        assert (found.ok, found.kinds["within noise"]) == (True, 3), str(found)
        assert not compare(*paths[:2], noise=paths[2], noise_factor=1.2).ok
    shorter = written(plain(wobble, 2))
    found = compare(written(sharded(x, 2)), written(sharded(near, 2)), noise=shorter)
    assert (found.kinds["within noise"], found.first_divergence.step) == (2, 2)


def test_noise_of_float_kwargs(written):
    """They are compared like leaves, and excused like them."""

    def run(scale):
        lr = dataclasses.replace(site("x", (2,), columns=(STEP, Column("lr", "float64"))))
        return written(make_stream(lr, [np.ones((3, 2))], numbers=[np.arange(3), np.arange(1, 4) * scale]))

    a, b, noise = run(1.0), run(1 + 1e-3), run(1 + 0.8e-3)
    assert compare(a, b).first_divergence.leaf == "kwargs.lr"
    assert compare(a, b, noise=noise).kinds["within noise"] == 3
    assert not compare(a, b, noise=noise, noise_factor=1.1).ok


def test_several_leaves(written):
    """Each leaf by its path; one that the other run lacks is named."""
    leaves = (Leaf("['w']", (2,), "float32", 0), Leaf("['biases']", (), "float32", 1))
    fewer = (Leaf("['w']", (2,), "float32", 0), Leaf("['bias']", (), "float32", 1))
    a, b = (written(make_stream(site("p", leaves=each), [[[1, 2]], [3]], numbers=[[0]])) for each in (leaves, fewer))
    found = compare(a, b)
    assert (found.compared, found.different) == (1, 0)
    assert [(each.what, each.leaf, each.near) for each in found.unmatched] == [
        ("only in a", "['biases']", "['bias']"),
        ("only in b", "['bias']", "['biases']"),
    ]


def test_keys_are_equal_or_not(written):
    """A random key with another bit is beyond any tolerance; a key and its bare data have different dtypes."""
    key, data = (site("k", leaves=(Leaf("", (2,), "uint32", 0, impl),)) for impl in ("threefry2x32", None))
    a = written(make_stream(key, [[[1, 2]]], numbers=[[0]]))
    found = compare(a, written(make_stream(key, [[[1, 3]]], numbers=[[0]])), rtol=1e9, atol=1e9)
    assert (found.different, found.first_divergence.kind) == (1, "beyond tolerance")
    assert found.first_divergence.around[-1] == ((1,), 2, 3)
    found = compare(a, written(make_stream(data, [[[1, 2]]], numbers=[[0]])))
    assert found.first_divergence.reason == "dtype key<threefry2x32> against uint32"


def test_empty_runs_and_runs_without_anything_in_common(written):
    """Two empty runs are equal; two strangers are not comparable."""
    x = values()
    assert compare(written(), written()).status == 0
    found = compare(written(*chain(x)), written(*chain(x, ("u", "v", "w"))))
    assert (found.verdict, found.status, found.compared) == ("not comparable", 2, 0)


def test_open_traces_stay_open(written):
    """A trace that was given is not closed; a comparison outlives both."""
    x = values()
    a, b = written.trace(*chain(x)), written.trace(*chain(x + 1))
    found = compare(a, b)
    assert a["first"].to_numpy().shape == (8, 4)
    a.close()
    b.close()
    assert found.growth.along_taps(0)[0][0] == "first"
    assert len(found.to_pandas()) == 24
    assert found.pictures[0].difference.shape == (1, 4)


def test_a_live_recording_is_compared(tmp_path):
    """Through the recorder, a scan and a gradient: the cotangent of the changed layer is not before the layer."""
    import jax
    import jax.numpy as jnp

    def loss(x, step, scale):
        def body(c, i):
            c = tracerec.tap(jnp.sin(c) * jnp.where(i == 1, scale, 1.0), "act", step=step, layer=i)
            return c, None

        return tracerec.tap(jax.lax.scan(body, x, jnp.arange(3))[0].sum(), "loss", step=step)

    step_of = jax.jit(jax.grad(loss))
    for name, scale in (("a.h5", 1.0), ("b.h5", 1.001)):
        with tracerec.record(tmp_path / name):
            for step in range(3):
                step_of(jnp.arange(4.0), step, scale if step else 1.0)
    found = compare(tmp_path / "a.h5", tmp_path / "b.h5")
    first = found.first_divergence
    assert (first.tap, first.key, first.transforms) == ("act", {"step": 1, "layer": 1}, "")
    assert first.call > 0
    taps = [name for name, error in found.growth.along_taps(1) if error > 0]
    assert taps[0] == "act"
    assert set(taps) == {"act", "act (jvp, transpose)", "loss"}


def test_bad_arguments(written):
    """What is no tolerance or no choice is refused by name."""
    a = written(*chain(values()))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rtol": -1}, "rtol is a number of at least 0"),
        ({"atol": {"first": "x"}}, "not 'x'"),
        ({"missing": "no"}, "missing is 'fail', 'warn' or 'ignore'"),
        ({"rename": 3}, "rename is a mapping"),
    ]
    for options, words in cases:
        with pytest.raises(ComparisonError, match=words):
            compare(a, a, **options)


def test_tolerances_by_tap_and_dtype(written):
    """A pattern before a dtype, the first pattern that matches; ulp alone counts alone."""
    x = values()
    y = x * np.float32(1.001)
    a, b = written(*chain(x)), written(*chain(y))
    assert compare(a, b, rtol={"float32": 0.01}).ok
    found = compare(a, b, rtol={"sec*": 1e-6, "*": 0.01, "float32": 1e-9})
    assert {row["tap"] for row in found.rows() if row["different"]} == {"second"}
    least = max(row["max_ulp"] for row in found.rows())
    assert compare(a, b, ulp=least).ok
    assert not compare(a, b, ulp=least / 2).ok
    rows = compare(a, b).rows()
    assert compare(a, b, rtol=max(row["need_rtol"] for row in rows)).ok
    assert compare(a, b, atol=max(row["need_atol"] for row in rows)).ok


def test_a_comparison_of_which_everything_is_ignored_says_so(tmp_path):
    """It is no success, unless both are empty."""
    for name in "ab":
        with tracerec.record(tmp_path / f"{name}.h5"):
            tracerec.tap(np.float32(1), "x", step=0)
        with tracerec.record(tmp_path / f"{name}0.h5"):
            pass
    found = compare(tmp_path / "a.h5", tmp_path / "b.h5", ignore="*")
    assert (found.verdict, found.status, found.ok) == ("not comparable", 2, False)
    assert "nothing was compared" in found.summary
    assert compare(tmp_path / "a0.h5", tmp_path / "b0.h5").ok


@pytest.mark.parametrize("option", [{"atol": np.inf}, {"rtol": float("inf")}, {"atol": np.nan}])
def test_a_tolerance_is_finite(tmp_path, option):
    """With another everything would pass, NaN beside a number too."""
    with pytest.raises(ComparisonError, match="is a number of at least 0"):
        compare(tmp_path / "a.h5", tmp_path / "b.h5", **option)
