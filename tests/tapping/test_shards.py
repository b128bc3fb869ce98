"""Values that XLA shards by itself: gathered, or each device's shard with its place in the whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tracerec
from tests.support import records_of
from tracerec.tapping import shards

WHOLE = np.arange(32, dtype=np.float32).reshape(4, 8)
SPECS = [P("x", "y"), P("y", "x"), P("x"), P("y"), P(None, "x"), P(("x", "y")), P(("y", "x")), P(None, ("x", "y")), P()]


def odd_mesh() -> Mesh:
    """Two by two devices, in no natural order."""
    return Mesh(np.array(jax.devices())[[2, 0, 3, 1]].reshape(2, 2), ("x", "y"))


def placed(array: Any, spec: P, mesh: Mesh | None = None) -> Any:
    """An array with a sharding."""
    return jax.device_put(array, NamedSharding(mesh or odd_mesh(), spec))


def offset_of(record: tracerec.Record, leaf: int = 0) -> list[int]:
    """Where a record's shard begins in the whole."""
    number = record.site.column("offset", record.site.leaves[leaf].path)
    assert number is not None
    return record.numbers[number].tolist()


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_each_device_gives_its_shard_where_jax_says_it_is(spec: P, compiled: bool) -> None:  # noqa: FBT001
    """Against JAX's own map from devices to indices: values, offsets, devices, one call."""
    array = placed(WHOLE, spec)
    function = lambda x: tracerec.tap(x, "t", shards="local", step=2**40)  # noqa: E731
    records = records_of(jax.jit(function) if compiled else function, array)
    indices = array.sharding.devices_indices_map(WHOLE.shape)
    assert sorted(r.device for r in records) == [0, 1, 2, 3]
    assert len({r.call for r in records}) == 1
    for record in records:
        index = indices[jax.devices()[record.device]]
        np.testing.assert_array_equal(record.value, WHOLE[index], strict=True)
        assert offset_of(record) == [piece.start or 0 for piece in index]
        assert record.site.leaves[0].global_shape == (4, 8)
        assert record.step == 2**40


def test_eager_and_jitted_shards_have_the_same_sites() -> None:
    """On disk they cannot be told apart but by their program's number."""
    array = placed(WHOLE, P("x"))
    function = lambda x: tracerec.tap({"a": x}, "t", shards="local", step=1)  # noqa: E731
    eager, jitted = records_of(function, array), records_of(jax.jit(function), array)
    assert {r.site for r in eager} == {r.site for r in jitted}


@pytest.mark.parametrize(("slices", "axis"), [((slice(0, 5),), 0), ((slice(None), slice(0, 5)), 1)], ids=str)
def test_padding_of_uneven_shards_is_cut_off(slices: Any, axis: int) -> None:
    """Five of eight over four devices: 2, 2, 1 and none."""
    mesh = Mesh(np.array(jax.devices()), ("z",))
    shape = (8,) if axis == 0 else (2, 8)
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    spec = P("z") if axis == 0 else P(None, "z")
    records = records_of(jax.jit(lambda x: tracerec.tap(x[slices], "t", shards="local")), placed(whole, spec, mesh))
    expected = whole[slices]
    found = np.full(expected.shape, np.nan, np.float32)
    for record in records:
        at = tuple(slice(o, o + n) for o, n in zip(offset_of(record), record.value.shape, strict=True))
        assert np.isnan(found[at]).all()
        found[at] = record.value
    np.testing.assert_array_equal(found, expected)
    assert len(records) == 4


def test_shards_in_a_scan_under_grad_with_trees_keys_and_kwargs() -> None:
    """Each iteration, primal and cotangent, once a device; scalars and kwargs are whole on each."""

    def loss(x: Any, step: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            out = tracerec.tap({"c": c * 2.0, "s": c.sum()}, "t", shards="local", step=step, i=i)
            return out["c"], None

        return lax.scan(body, x, jnp.arange(2))[0].sum()

    records = records_of(jax.jit(jax.grad(loss)), placed(WHOLE, P("x", "y")), 7)
    primals = [r for r in records if not r.transforms]
    cotangents = [r for r in records if r.site.transform_names == ("jvp", "transpose")]
    assert (len(primals), len(cotangents)) == (8, 8)
    for record in primals:
        i = int(record.kwargs["i"])
        at = tuple(slice(o, o + n) for o, n in zip(offset_of(record), (2, 4), strict=True))
        np.testing.assert_array_equal(record.value["c"], (WHOLE * 2 ** (i + 1))[at])
        assert record.value["s"] == WHOLE.sum() * 2**i
        assert offset_of(record, 1) == []
        assert record.step == 7
    for record in cotangents:
        # the partitioner is free to shard a cotangent in another way than its primal
        expected = np.full(record.value["c"].shape, 2.0 ** (1 - int(record.kwargs["i"])))
        np.testing.assert_array_equal(record.value["c"], expected)


def test_keys_are_sharded_as_key_data() -> None:
    """The trailing axis of the key data is whole."""
    keys = jax.random.split(jax.random.key(0), 4)
    records = records_of(jax.jit(lambda k: tracerec.tap(k, "k", shards="local")), placed(keys, P(("x", "y"))))
    data = np.asarray(jax.random.key_data(keys))
    for record in records:
        (row, column) = offset_of(record)
        assert column == 0
        np.testing.assert_array_equal(record.value, data[row : row + 1])


def test_numbers_of_very_large_arrays_are_64_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 2**31 elements the numbering widens, also with x64 off."""
    monkeypatch.setattr(shards, "_INT32_MAX", 1)
    records = records_of(jax.jit(lambda x: tracerec.tap(x + 1, "t", shards="local")), placed(WHOLE, P("x", "y")))
    assert sorted(map(tuple, map(offset_of, records))) == [(0, 0), (0, 4), (2, 0), (2, 4)]


def test_auto_gathers_small_values_and_shards_large_ones() -> None:
    """The limit is 64 KiB for the whole tap."""
    function = jax.jit(lambda x: tracerec.tap(x, "t"))
    small, large = np.zeros((128, 128), np.float32), np.zeros((128, 129), np.float32)
    assert len(records_of(function, placed(small, P("x")))) == 1
    assert len(records_of(function, placed(large, P("x")))) == 4
    assert len(records_of(lambda x: tracerec.tap(x, "t"), placed(small, P("x")))) == 1
    assert len(records_of(lambda x: tracerec.tap(x, "t"), placed(large, P("x")))) == 4


def test_gather_gives_the_logical_array_on_the_first_device() -> None:
    """One record; its device is where XLA gathered it."""
    (record,) = records_of(jax.jit(lambda x: tracerec.tap(x, "t", shards="gather")), placed(WHOLE, P("x", "y")))
    np.testing.assert_array_equal(record.value, WHOLE)
    assert record.device == odd_mesh().devices.flat[0].id


def test_a_program_on_another_device_says_so() -> None:
    """The record's device is where the data lived."""
    function = jax.jit(lambda x: tracerec.tap(x, "t"))
    for device in (jax.devices()[2], jax.devices()[0]):
        (record,) = records_of(function, jax.device_put(1.0, device))
        assert record.device == device.id


def test_shards_takes_three_words() -> None:
    """Anything else is refused at the tap."""
    with pytest.raises(tracerec.errors.TapError, match="shards='all'; use 'auto', 'gather' or 'local'"):
        tracerec.tap(jnp.ones(1), "t", shards="all")  # type: ignore[call-overload]


def test_the_result_of_a_sharded_tap_keeps_its_sharding() -> None:
    """The tap is the identity for shardings too."""
    array = placed(WHOLE, P("x", "y"))
    gather = jax.jit(lambda x: tracerec.tap(x, "t", shards="gather") + 1)
    local = jax.jit(lambda x: tracerec.tap(x, "t", shards="local") + 1)
    for function in (gather, local):
        result = function(array)
        assert result.sharding.is_equivalent_to(array.sharding, 2)


@pytest.mark.parametrize("shards", ["auto", "local", "gather"])
def test_an_eager_tap_of_leaves_on_different_devices_is_gathered(shards: Any) -> None:
    """They have no shards in common; the record has all of each."""
    devices = jax.devices()
    meshes = [jax.sharding.Mesh(np.array(devices[n : n + 2]), ("a",)) for n in (0, 2)]
    tree = {
        name: jax.device_put(np.arange(40_000.0) + n, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a")))
        for n, (name, mesh) in enumerate(zip("pq", meshes, strict=True))
    }
    (record,) = records_of(lambda: tracerec.tap(tree, "x", shards=shards))
    for n, name in enumerate("pq"):
        np.testing.assert_array_equal(record.value[name], np.arange(40_000.0) + n)
