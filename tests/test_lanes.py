"""Lanes and masks against arrays that are stacked by hand, one vmap after the other."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracerec.errors import TraceFormatError
from tracerec.lanes import LeafLanes, check, counted, lane_counts, trim_record, valid_in_column
from tracerec.model import Column, Leaf, Record, Site, Transform


def unread(number: int) -> np.ndarray:
    """A column that must not be read."""
    raise AssertionError(number)


def spread(mask: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a mask, which must be there, in full."""
    assert mask is not None
    return np.broadcast_to(mask, shape)


@dataclasses.dataclass
class Level:
    """One vmap: its size, and in which of leaf, where and extent it has lanes; the leaf's axis."""

    size: int
    dim: int | None
    in_where: bool
    in_extent: bool


@dataclasses.dataclass
class Case:
    """A site made by nested vmaps, and its records lane by lane.

    Levels are the outermost first. A lane is a tuple with an index for each level; what has no lanes at a level is the
    same for every index there.
    """

    levels: list[Level]
    own: tuple[int, ...]
    extent_rank: int | None
    has_where: bool
    records: int
    seed: int

    def lanes(self) -> list[tuple[int, ...]]:
        """All lanes."""
        return list(itertools.product(*(range(level.size) for level in self.levels)))

    def where(self, record: int, lane: tuple[int, ...]) -> bool:
        """Whether a lane counts."""
        key = [i for i, level in zip(lane, self.levels, strict=True) if level.in_where]
        return not self.has_where or bool(self._random(1, record, *key).integers(0, 3))

    def extent(self, record: int, lane: tuple[int, ...]) -> list[int]:
        """The valid sizes of a lane; none when there is no such column."""
        if self.extent_rank is None:
            return []
        key = [i for i, level in zip(lane, self.levels, strict=True) if level.in_extent]
        random = self._random(2, record, *key)
        return [int(random.integers(0, n + 1)) for n in self.own[: self.extent_rank]]

    def lane_array(self, record: int, lane: tuple[int, ...]) -> np.ndarray:
        """The unbatched value."""
        key = [i for i, level in zip(lane, self.levels, strict=True) if level.dim is not None]
        return self._random(3, record, *key).normal(size=self.own)

    def lane_mask(self, record: int, lane: tuple[int, ...]) -> np.ndarray:
        """Which elements of one lane count."""
        mask = np.zeros(self.own, bool)
        if self.where(record, lane):
            mask[tuple(slice(n) for n in self.extent(record, lane))] = True
        return mask

    def stacked(self, of_lane: Any, *, union: bool, level: int = 0, lane: tuple[int, ...] = ()) -> np.ndarray:
        """What vmaps make of a value a lane; at a level that the leaf lacks, the first lane or any of them."""
        if level == len(self.levels):
            return of_lane(lane)
        here = self.levels[level]
        parts = [self.stacked(of_lane, union=union, level=level + 1, lane=(*lane, i)) for i in range(here.size)]
        if here.dim is not None:
            return np.stack(parts, axis=here.dim)
        return np.logical_or.reduce(parts) if union else parts[0]

    def column(self, of_lane: Any, attribute: str) -> np.ndarray:
        """A column: the lanes that it has on leading axes, the outermost level first."""

        def nested(level: int, lane: tuple[int, ...]) -> Any:
            if level == len(self.levels):
                return of_lane(lane)
            here = self.levels[level]
            if getattr(here, attribute):
                return [nested(level + 1, (*lane, i)) for i in range(here.size)]
            return nested(level + 1, (*lane, 0))

        return np.array(nested(0, ()))

    def site(self) -> tuple[Site, list[np.ndarray], np.ndarray]:
        """The site, its columns and the array of its second leaf, for all records."""
        records = range(self.records)
        array = np.stack([self.stacked(lambda lane, r=r: self.lane_array(r, lane), union=False) for r in records])
        roles = [("kwarg", None)] + [("where", "where")] * self.has_where
        roles += [("x", "extent")] * (self.extent_rank is not None)
        values: list[np.ndarray] = [np.zeros(self.records)]
        if self.has_where:
            values += [np.stack([self.column(lambda lane, r=r: self.where(r, lane), "in_where") for r in records])]
        if self.extent_rank is not None:
            extents = [self.column(lambda lane, r=r: self.extent(r, lane), "in_extent") for r in records]
            values += [np.stack(extents).astype(np.int32)]
        names = {None: "float64", "where": "bool", "extent": "int32"}
        columns = tuple(
            Column(name, names[role], value.shape[1:], role=role)
            for (name, role), value in zip(roles, values, strict=True)
        )
        transforms = [Transform("jvp")]
        for level in reversed(self.levels):
            kwarg_dims = [None, *[0 if level.in_where else None] * self.has_where]
            kwarg_dims += [0 if level.in_extent else None] * (self.extent_rank is not None)
            transforms.append(Transform("batch", size=level.size, dims=(None, level.dim), kwarg_dims=tuple(kwarg_dims)))
        leaves = (Leaf("other", (), "int8"), Leaf("x", array.shape[1:], "float64", number=1))
        site = Site("t", leaves, columns, structure='{"list":[{"slot":0},{"slot":1}]}', transforms=tuple(transforms))
        return site, values, array

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])


@st.composite
def cases(draw) -> Case:
    """Draws nested vmaps with any axes, of values of any small shape."""
    own = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    rank = len(own)
    levels: list[Level] = []
    for _ in range(draw(st.integers(0, 3))):  # the innermost first, since axes depend on it
        dim = draw(st.one_of(st.none(), st.integers(0, rank)))
        rank += dim is not None
        levels.insert(0, Level(draw(st.integers(1, 3)), dim, draw(st.booleans()), draw(st.booleans())))
    has_where = draw(st.booleans())
    extent_rank = draw(st.one_of(st.none() if has_where else st.nothing(), st.integers(0, len(own))))
    for level in levels:
        level.in_where &= has_where
        level.in_extent &= extent_rank is not None
    return Case(levels, own, extent_rank, has_where, draw(st.integers(1, 3)), draw(st.integers(0, 99)))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_masks_are_those_of_lanes_stacked_by_hand(case):
    """Whatever the nest and the axes, an element counts if it does in its lane, or in any if it is the same in all."""
    site, columns, array = case.site()
    check(site)
    mask = LeafLanes(site, 1).valid(lambda number: columns[number])
    expected = [case.stacked(lambda lane, r=r: case.lane_mask(r, lane), union=True) for r in range(case.records)]
    np.testing.assert_array_equal(spread(mask, array.shape), np.stack(expected))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_lanes_are_those_that_were_stacked(case):
    """The lanes that count come back, in order, trimmed; a record of the same by `trim_record`."""
    site, columns, array = case.site()
    lanes = LeafLanes(site, 1)
    apart = [level.dim is not None or level.in_where or level.in_extent for level in case.levels]
    for r in range(case.records):
        expected = [
            case.lane_array(r, lane)[tuple(slice(n) for n in case.extent(r, lane))]
            for lane in case.lanes()
            if case.where(r, lane) and not any(i for i, a in zip(lane, apart, strict=True) if not a)
        ]
        got = lanes.split(array[r], lambda number, r=r: columns[number][r : r + 1])
        assert [part.shape for part in got] == [part.shape for part in expected]
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        record = Record(site, None, (np.zeros((), np.int8), array[r, ...]), tuple(column[r] for column in columns))
        trimmed = trim_record(record)[1]
        trimmed = trimmed if case.levels else [] if trimmed is None else [trimmed]
        assert [part.tobytes() for part in trimmed] == [part.tobytes() for part in expected]


@settings(max_examples=500, deadline=None)
@given(cases(), st.data())
def test_masks_and_lanes_of_shards(case, data):
    """A shard's mask is that part of the whole's, and the shard's lanes are that part of the whole's lanes."""
    site, columns, array = case.site()
    whole = spread(LeafLanes(site, 1).valid(lambda number: columns[number]), array.shape)
    sizes = [data.draw(st.integers(0, n)) for n in array.shape[1:]]
    starts = [[data.draw(st.integers(0, n - k)) for n, k in zip(array.shape[1:], sizes, strict=True)] for _ in array]
    leaf = dataclasses.replace(site.leaves[1], shape=tuple(sizes), global_shape=array.shape[1:])
    offset = Column("x", "int64", (len(sizes),), role="offset")
    shard = dataclasses.replace(site, leaves=(site.leaves[0], leaf), columns=(*site.columns, offset))
    check(shard)
    columns = [*columns, np.array(starts, np.int64).reshape(len(array), len(sizes))]
    lanes = LeafLanes(shard, 1)
    mask = spread(lanes.valid(lambda number: columns[number]), (len(array), *sizes))
    for r, start in enumerate(starts):
        part = tuple(slice(at, at + n) for at, n in zip(start, sizes, strict=True))
        np.testing.assert_array_equal(mask[r], whole[r][part])
        split = lanes.split(array[r][part], lambda number, r=r: columns[number][r : r + 1])
        if all(level.dim is not None for level in case.levels):
            values = np.concatenate([np.zeros(0), *(lane.reshape(-1) for lane in split)])
            np.testing.assert_array_equal(np.sort(values), np.sort(array[r][part][whole[r][part]]))


def test_key_data_have_axes_that_no_extent_speaks_of():
    """Two keys of four: the extent has one axis, the key data two."""
    site = Site("k", (Leaf("", (4, 2), "uint32", key_impl="rbg"),), (Column("", "int32", (1,), role="extent"),))
    mask = LeafLanes(site, 0).valid(lambda _: np.array([[2]], np.int32))
    assert spread(mask, (1, 4, 2)).tolist() == [[[True, True]] * 2 + [[False, False]] * 2]


def test_a_site_without_masks():
    """All counts, and nothing is read."""
    lanes = LeafLanes(Site("t", (Leaf("", (3,), "int8"),)), 0)
    assert lanes.valid(unread) is None
    assert lanes.split(np.arange(3), unread)[0].tolist() == [0, 1, 2]


def test_traced_extents_beyond_the_array():
    """A program can compute sizes that do not fit: they are cut."""
    site = Site("t", (Leaf("", (3, 2), "int8"),), (Column("", "int32", (2,), role="extent"),))
    lanes, array = LeafLanes(site, 0), np.arange(6).reshape(3, 2)
    for extent, expected in (([9, 1], [[0], [2], [4]]), ([-1, 2], [])):
        read = lambda _, e=extent: np.array([e], np.int32)  # noqa: E731
        assert lanes.split(array, read)[0].tolist() == expected
        assert spread(lanes.valid(read), (1, 3, 2)).sum() == np.size(expected)


@pytest.mark.parametrize("start", [-1, 1, 2, (1 << 63) - 1, -(1 << 63)])
def test_a_shard_outside_its_whole(start):
    """A damaged file's offset is refused, and does not reach numpy."""
    columns = (Column("", "int32", (1,), role="extent"), Column("", "int64", (1,), role="offset"))
    lanes = LeafLanes(Site("t", (Leaf("", (2,), "int8", global_shape=(2,)),), columns), 0)
    read = lambda number: [np.array([[1]], np.int32), np.array([[start]])][number]  # noqa: E731
    with pytest.raises(TraceFormatError, match=r"tap 't' has a shard of \(2,\) that lies outside its whole of \(2,\)"):
        lanes.valid(read)
    with pytest.raises(TraceFormatError, match="outside"):
        lanes.split(np.zeros(2), read)


def test_counts_of_lanes():
    """A record counts if a lane does."""
    where = np.array([[[True, False], [True, True]], [[False, False], [False, False]]])
    assert counted(where).tolist() == [True, False]
    assert lane_counts(where)[0].tolist() == [3, 0]
    assert lane_counts(where)[1] == 4
    assert counted(np.array([True, False])).tolist() == [True, False]
    assert counted(np.ones((2, 0), bool)).tolist() == [False, False]


def test_lanes_of_a_kwarg():
    """A kwarg with lanes of the inner vmap, a mask with lanes of both: it counts if it does in any outer one."""
    inner = Transform("batch", size=3, dims=(0,), kwarg_dims=(0, 0))
    outer = Transform("batch", size=2, dims=(0,), kwarg_dims=(None, 0))
    columns = (Column("lr", "float32", (3, 2)), Column("where", "bool", (2, 3), role="where"))
    site = Site("t", (Leaf("", (2, 3), "int8"),), columns, transforms=(inner, outer))
    where = np.array([[[True, False, False], [True, True, False]]])
    mask = valid_in_column(site, 0, lambda _: where)
    assert spread(mask, (1, 3, 2)).tolist() == [[[True, True], [True, True], [False, False]]]
    assert valid_in_column(dataclasses.replace(site, columns=columns[:1]), 0, unread) is None


BATCH = Transform("batch", size=4, dims=(0,), kwarg_dims=(0,))
LEAF = Leaf("", (4, 5), "float32")
WHERE = Column("where", "bool", (4,), role="where")


@pytest.mark.parametrize(
    "site",
    [
        Site("t", (LEAF,), (WHERE,), transforms=(dataclasses.replace(BATCH, dims=(2,)),)),
        Site("t", (LEAF,), (WHERE,), transforms=(dataclasses.replace(BATCH, dims=(-1,)),)),
        Site("t", (LEAF,), (WHERE,), transforms=(dataclasses.replace(BATCH, dims=None),)),
        Site("t", (LEAF,), (WHERE,), transforms=(dataclasses.replace(BATCH, dims=(0, 0)),)),
        Site("t", (LEAF,), (WHERE,), transforms=(BATCH, BATCH, BATCH)),
        Site("t", (LEAF,), (WHERE,)),
        Site("t", (LEAF,), (dataclasses.replace(WHERE, shape=(3,)),), transforms=(BATCH,)),
        Site("t", (LEAF,), (dataclasses.replace(WHERE, shape=()),), transforms=(BATCH,)),
        Site("t", (LEAF,), (Column("", "int32", (4, 2), role="extent"),), transforms=(BATCH,)),
        Site("t", (LEAF,), (Column("", "int32", (), role="extent"),)),
        Site("t", (LEAF,), (Column("", "int64", (2,), role="offset"),)),
        Site("t", (dataclasses.replace(LEAF, global_shape=(8, 5)),), (Column("", "int64", (3,), role="offset"),)),
    ],
    ids=range(12),
)
def test_sites_that_contradict_themselves(site):
    """A damaged file's site is refused before an array is looked at."""
    with pytest.raises(ValueError, match=r"axes|lanes|offset|fit"):
        check(site)
