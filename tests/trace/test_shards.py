"""Shards of one firing: put together exactly, or compared."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.formats.test_contract import random_elements
from tests.memory_source import MemorySource, make_stream
from tracerec.errors import SelectionError, TraceError
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.trace import Trace

OFFSET = Column("", "int64", (2,), role="offset")


def tap_of(*streams):
    """Returns the tap of these streams."""
    return Trace(MemorySource(list(streams)))[streams[0].site.name]


def sharded(wholes, pieces, *, calls=None, dtype="float32", order=None, **site):
    """Returns the streams of shards of some firings, one stream a shape of shards.

    Args:
        wholes: ``(firings, *shape)``.
        pieces: for each device its part of the whole, as slices.
        calls: the call of each firing.
        dtype: of the leaf.
        order: the devices in order of arrival.
        **site: further fields of the site.
    """
    wholes = np.asarray(wholes)
    calls = range(1, len(wholes) + 1) if calls is None else calls
    rows: dict[tuple[int, ...], list] = {}
    arrival = 0
    for whole, call in zip(wholes, calls, strict=True):
        for device in order or range(len(pieces)):
            part = whole[pieces[device]]
            start = [piece.start or 0 for piece in pieces[device]]
            rows.setdefault(part.shape, []).append((part, start, device, call, arrival))
            arrival += 1
    streams = []
    for shape, members in rows.items():
        parts, starts, devices, call, arrived = (list(x) for x in zip(*members, strict=True))
        leaf = Leaf("", shape, dtype, global_shape=wholes.shape[1:])
        column = dataclasses.replace(OFFSET, shape=(wholes.ndim - 1,))
        made = Site("t", (leaf,), (column,), **site)
        offsets = np.array(starts).reshape(len(parts), wholes.ndim - 1)
        streams.append(
            make_stream(made, [np.stack(parts)], [offsets], device=devices, shard=devices, call=call, arrival=arrived)
        )
    return streams


def grid(rows, columns):
    """Returns the parts of a mesh of these boundaries on each axis, row-major."""
    return [(slice(a, b), slice(c, d)) for a, b in itertools.pairwise(rows) for c, d in itertools.pairwise(columns)]


WHOLES = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
ALL = slice(None)

LAYOUTS = {
    "2x2": grid([0, 2, 4], [0, 3, 6]),
    "rows on one axis, replicated on the other": [p for p in grid([0, 2, 4], [0, 6]) for _ in range(2)],
    "columns, replicated": grid([0, 4], [0, 3, 6]) * 2,
    "replicated": [(ALL, ALL)] * 4,
    "uneven": grid([0, 3, 4], [0, 4, 6]),
    "empty shards": grid([0, 2, 4, 4], [0, 6]),
    "rows over four": grid([0, 1, 2, 3, 4], [0, 6]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["row-major", "odd"])
def test_the_whole_is_put_together(layout, order):
    """Each layout, devices in any order of arrival; one record a firing, in the order of the calls."""
    pieces = LAYOUTS[layout]
    devices = list(range(len(pieces)))
    devices = devices if order == "row-major" else devices[::-1][1:] + devices[-1:]
    tap = tap_of(*sharded(WHOLES, pieces, order=devices))
    assert len(tap) == 3 * len(pieces)
    whole = tap.to_numpy(assemble=True)
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole, WHOLES)


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "float8_e4m3fn", "complex64", "bool", "float64", "uint8"])
def test_bits_are_kept(dtype):
    """Random bits of any dtype, NaN payloads in replicas included."""
    wholes = random_elements(dtype, (5, 4, 6))
    pieces = LAYOUTS["rows on one axis, replicated on the other"]
    whole = tap_of(*sharded(wholes, pieces, dtype=dtype)).to_numpy(assemble=True)
    assert whole.dtype == wholes.dtype
    assert whole.tobytes() == wholes.tobytes()


def test_scalars_and_key_data():
    """A replicated scalar; keys whose trailing axis no offset speaks of."""
    scalar = np.array([1.5, 2.5], np.float32)
    assert tap_of(*sharded(scalar, [()] * 2)).to_numpy(assemble=True).tolist() == [1.5, 2.5]
    leaf = Leaf("", (1, 2), "uint32", key_impl="threefry2x32", global_shape=(2,))
    site = Site("t", (leaf,), (dataclasses.replace(OFFSET, shape=(1,)),))
    tap = tap_of(make_stream(site, [[[[1, 2]], [[3, 4]]]], [[[1], [0]]], call=7, device=[0, 1], shard=[0, 1]))
    assert tap.to_numpy(assemble=True).tolist() == [[[3, 4], [1, 2]]]


def test_iterations_are_firings_of_their_own():
    """Two iterations in one call, whose shards arrive mixed."""
    (stream,) = sharded(WHOLES[:2], LAYOUTS["2x2"], calls=[1, 1])
    stream.rows["iteration"] = [0] * 4 + [1] * 4
    stream.rows["arrival"] = [0, 1, 4, 5, 2, 3, 6, 7]
    np.testing.assert_array_equal(tap_of(stream).to_numpy(assemble=True), WHOLES[:2])


def test_a_missing_shard_is_said():
    """A selection of some devices does not hold the whole."""
    tap = tap_of(*sharded(WHOLES, LAYOUTS["2x2"]))
    message = r"tap 't', call 1: no shard holds element \(0, 3\) of \(4, 6\); there are shards at \(0, 0\), \(2, 0\)"
    with pytest.raises(SelectionError, match=message):
        tap.sel(device=[0, 2]).to_numpy(assemble=True)
    np.testing.assert_array_equal(tap.sel(call=2).to_numpy(assemble=True), WHOLES[1:2])


@pytest.mark.parametrize(("dtype", "value"), [("float32", -0.0), ("float32", np.nan), ("int8", 1)])
def test_replicas_that_differ_are_an_error(dtype, value):
    """By a bit: -0.0 is not 0.0."""
    streams = sharded(np.zeros((2, 4, 6)), LAYOUTS["replicated"], dtype=dtype)
    streams[0].arrays[0][6, 3, 3] = value
    with pytest.raises(TraceError, match=r"tap 't', call 2: the copy at offset \(0, 0\) on device 2 differs"):
        tap_of(*streams).to_numpy(assemble=True)


def test_replicas_with_one_nan_are_equal():
    """NaN is compared by its bits."""
    whole = np.full((1, 4, 6), np.nan, np.float32)
    assert np.isnan(tap_of(*sharded(whole, LAYOUTS["replicated"])).to_numpy(assemble=True)).all()


def test_overlapping_shards_that_differ():
    """Where two shards overlap in part, the part they share is compared."""
    whole = np.zeros((1, 4, 6))
    streams = sharded(whole, [(slice(0, 3), ALL), (slice(1, 4), ALL)])
    assert tap_of(*streams).to_numpy(assemble=True).shape == (1, 4, 6)
    streams[0].arrays[0][1, 1, 5] = 1
    with pytest.raises(TraceError, match=r"the copy at offset \(1, 0\) on device 1 differs"):
        tap_of(*streams).to_numpy(assemble=True)


def test_an_offset_outside_the_whole():
    """A damaged file is refused."""
    streams = sharded(WHOLES[:1], LAYOUTS["2x2"])
    streams[0].columns[0][3] = [-1, 3]
    with pytest.raises(TraceError, match=r"call 1: a shard of shape \(2, 3\) begins at \(-1, 3\)"):
        tap_of(*streams).to_numpy(assemble=True)
    streams[0].columns[0][3] = [1 << 62, 1 << 62]
    with pytest.raises(SelectionError, match=r"no shard holds element \(2, 3\)"):
        tap_of(*streams).to_numpy(assemble=True)


def test_records_of_shard_map_do_not_join():
    """Their values are each device's own."""
    site = Site("t", (Leaf("", (2,), "float32"),), mesh=(("x", 2),))
    tap = tap_of(make_stream(site, [np.zeros((2, 2))], shard=[0, 1], device=[0, 1], call=1))
    with pytest.raises(SelectionError, match=r"records of shard_map or pmap: .* assemble=True is for"):
        tap.to_numpy(assemble=True)


def test_whole_records_stay_as_they_are():
    """A tap that ran on one device as well: its record is whole already."""
    whole = make_stream(Site("t", (Leaf("", (4, 6), "float32"),)), [WHOLES[:1]], call=9, first=100)
    tap = tap_of(*sharded(WHOLES, LAYOUTS["2x2"]), whole)
    np.testing.assert_array_equal(tap.to_numpy(assemble=True), [*WHOLES, WHOLES[0]])
    with pytest.raises(SelectionError, match=r"to_numpy\(assemble=True\)  # the shards put together"):
        tap.to_numpy()


def test_no_firings():
    """Nothing was recorded: no records of the whole's shape."""
    site = Site("t", (Leaf("", (2, 3), "int8", global_shape=(4, 6)),), (OFFSET,))
    tap = tap_of(make_stream(site, [np.zeros((0, 2, 3))], [np.zeros((0, 2))]))
    assert tap.to_numpy(assemble=True).shape == (0, 4, 6)


def test_put_together_and_trimmed():
    """Lanes over the devices, of which three count, each with padding: the mask is that of the whole."""
    batch = Transform("batch", size=4, dims=(0,), kwarg_dims=(0, 0, None))
    columns = (
        Column("where", "bool", (4,), role="where"),
        Column("", "int32", (4, 1), role="extent"),
        OFFSET,
    )
    site = Site("t", (Leaf("", (2, 3), "float32", global_shape=(4, 6)),), columns, transforms=(batch,))
    parts = np.stack([WHOLES[0][piece] for piece in LAYOUTS["2x2"]])
    where = [[False, True, True, True]] * 4
    extents = [[[6], [5], [1], [2]]] * 4
    offsets = [[0, 0], [0, 3], [2, 0], [2, 3]]
    tap = tap_of(make_stream(site, [parts], [where, extents, offsets], call=1, device=[0, 1, 2, 3], shard=[0, 1, 2, 3]))
    (lanes,) = tap.to_numpy(assemble=True, trim=True)
    assert [lane.tolist() for lane in lanes] == [
        WHOLES[0, 1, :5].tolist(),
        WHOLES[0, 2, :1].tolist(),
        WHOLES[0, 3, :2].tolist(),
    ]
    (lanes,) = tap.raw.to_numpy(assemble=True, trim=True)
    assert np.stack(lanes).tolist() == WHOLES[0].tolist()
    # Each shard by itself: its lanes are those of its rows, its columns those of its place.
    table = tap.to_pandas()
    assert table["count"].tolist() == [3, 2, 3, 0]
    assert [[x.tolist() for x in lanes] for lanes in tap.to_numpy(trim=True)] == [
        [WHOLES[0, 1, :3].tolist()],
        [WHOLES[0, 1, 3:5].tolist()],
        [WHOLES[0, 2, :1].tolist(), WHOLES[0, 3, :2].tolist()],
        [[], []],
    ]


class TestReplicated:
    def mesh(self, values, **fields):
        """Returns the tap of a shard_map on two devices."""
        site = Site("t", (Leaf("", (2,), "float32"),), mesh=(("x", 2),))
        of_pairs: dict[str, Any] = {"shard": [0, 1] * (len(values) // 2), "call": np.arange(len(values)) // 2}
        of_pairs |= fields
        return tap_of(make_stream(site, [values], device=of_pairs["shard"], **of_pairs))

    def test_firings_with_equal_bits(self):
        """By firing: equal NaN bits are equal, -0.0 and 0.0 are not."""
        values = [[1, 2], [1, 2], [1, 2], [1, 3], [np.nan, 0], [np.nan, 0], [0, 0], [-0.0, 0]]
        assert self.mesh(values).replicated.tolist() == [True, True, False, False, True, True, False, False]

    def test_in_the_order_of_the_values(self):
        """Records that arrived out of order have their answer in program order."""
        values = [[1, 1], [2, 2], [3, 0], [2, 2], [1, 1], [3, 3]]
        tap = self.mesh(values, call=[1, 2, 3, 2, 1, 3], shard=[0, 0, 0, 1, 1, 1])
        assert dict(zip(tap.to_numpy()[:, 0].tolist(), tap.replicated.tolist(), strict=True)) == {
            1: True,
            2: True,
            3: False,
        }

    def test_all_leaves_are_compared(self):
        """Records differ if one leaf does; a single leaf is compared by itself."""
        site = Site("t", (Leaf("['a']", (), "int8"), Leaf("['b']", (), "int8", 1)), mesh=(("x", 2),))
        tap = tap_of(make_stream(site, [[1, 1], [2, 3]], shard=[0, 1], device=[0, 1], call=1))
        assert tap.replicated.tolist() == [False, False]
        assert tap.leaf("['a']").replicated.tolist() == [True, True]

    def test_shards_at_different_places(self):
        """Shards are no replicas of each other, though their values be equal."""
        zeros = np.zeros((1, 4, 6))
        assert not tap_of(*sharded(zeros, LAYOUTS["2x2"])).replicated.any()
        assert tap_of(*sharded(zeros, LAYOUTS["replicated"])).replicated.all()

    def test_records_of_no_mesh(self):
        """There is nothing to compare."""
        tap = tap_of(make_stream(Site("t", (Leaf("", (), "int8"),)), [[1, 2]]))
        with pytest.raises(SelectionError, match="no records of single devices"):
            tap.replicated  # noqa: B018 - reading is the point
