"""The lanes of a record under ``jax.vmap``, and which of its elements count. Free of JAX.

A record of a batch holds all lanes in one array. The mask ``where`` says which lanes took the tap's branch or loop;
an extent says how much of each lane is no padding. `LeafLanes` joins both for one leaf.

Batch levels are counted from the outside: level 0 is the outermost vmap, as in ``out[i, j]`` of a vmap of a vmap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.model import Record, Site, Transform

    Read = Callable[[int], np.ndarray]
    """Returns a column of ``site.columns``, by number, of the records at hand: ``(n, *shape)``."""

__all__ = [
    "LeafLanes",
    "check",
    "columns_of",
    "counted",
    "is_batched",
    "lane_counts",
    "trim_record",
    "valid_in_column",
]


class LeafLanes:
    """Where the lanes of one leaf lie in its array, and which elements count.

    Args:
        site: the site.
        leaf: the leaf's place in ``site.leaves``.

    Attributes:
        axes: for each batch level the axis of the recorded array on which its lanes are; None where the leaf is
            the same for all lanes.
        rank: how many axes a single lane has, the trailing axes of PRNG key data included.
        partial: whether the site can say of an element that it does not count.

    Raises:
        ValueError: shapes and batch axes of the site contradict each other.

    Example:
        >>> from tracerec.model import Leaf, Site, Transform
        >>> inner, outer = Transform("batch", size=3, dims=(1,)), Transform("batch", size=2, dims=(0,))
        >>> lanes = LeafLanes(Site("act", (Leaf("", (2, 5, 3), "float32"),), transforms=(inner, outer)), 0)
        >>> lanes.axes, lanes.rank
        ((0, 2), 1)
    """

    def __init__(self, site: Site, leaf: int) -> None:
        self._name, self._shape = site.name, site.leaves[leaf].shape
        batches = _batches(site)
        self._placed = _placed([_dim(batch, leaf, site) for batch in batches], len(self._shape))
        levels = [(~level in self._placed) for level in range(len(batches))]
        self.axes = tuple(self._placed.index(~k) if there else None for k, there in enumerate(levels))
        self.rank = len(self._shape) - sum(levels)
        path = site.leaves[leaf].path
        self._where = _Column.of(site, "where", None, 0)
        self._extent = _Column.of(site, "extent", path, 1)
        self._offset = site.column("offset", path)
        self.partial = self._where is not None or self._extent is not None
        self._whole = self._checked(site, leaf)

    def valid(self, read: Read) -> np.ndarray | None:
        """Returns which elements of some records count.

        An element of a leaf that is the same for all lanes counts if it does in any lane.

        Args:
            read: returns a column of the records.

        Returns:
            Bools that broadcast to ``(n, *shape)``; None when all elements of all records count.

        Raises:
            TraceFormatError: a shard lies outside its whole.
        """
        if not self.partial:
            return None
        where, extent = self._read(read)
        if where is None:
            count = 0 if extent is None else len(extent)
            where = np.ones((count, *(1 for _ in self.axes)), bool)
        starts = self._starts(read, len(where))
        if starts is None:
            return self._mask(where, extent, (0,) * len(self._shape))
        out = np.zeros((len(where), *(1 for _ in self._shape)), bool)
        for start in np.unique(starts, axis=0):
            rows = np.flatnonzero((starts == start).all(axis=1))
            mask = self._mask(where[rows], None if extent is None else extent[rows], tuple(map(int, start)))
            if out.shape[1:] != mask.shape[1:]:
                out = np.zeros((len(where), *mask.shape[1:]), bool)
            out[rows] = mask
        return out

    def split(self, array: np.ndarray, read: Read) -> list[np.ndarray]:
        """Returns the lanes of one record that count, each trimmed to its logical shape.

        Lanes are in the order of ``out[i, j]``, the innermost vmap's index running fastest. A leaf that is the
        same for all lanes is there once for each lane that `where` or an extent tells apart.

        Args:
            array: the record's array, of the leaf's shape.
            read: returns a column of this one record, ``(1, *shape)``.

        Raises:
            TraceFormatError: a shard lies outside its whole.
        """
        where, extent = self._read(read)
        starts = self._starts(read, 1)
        start = [0] * array.ndim if starts is None else list(map(int, starts[0]))
        told = [column.sizes for column in (self._where, self._extent) if column is not None]
        apart = np.broadcast_shapes((1,) * len(self.axes), *told)
        sizes = [size if axis is None else array.shape[axis] for size, axis in zip(apart, self.axes, strict=True)]
        lanes: list[np.ndarray] = []
        for local in np.ndindex(*sizes):
            whole = [i if a is None else i + start[a] for i, a in zip(local, self.axes, strict=True)]
            if where is None or _at(where, whole):
                lane = array[self._index(dict(enumerate(local)))]
                limits = [] if extent is None else _at(extent, whole)
                lanes.append(self._trimmed(lane, limits, start))
        return lanes

    def _trimmed(self, lane: np.ndarray, limits: Sequence[int] | np.ndarray, start: Sequence[int]) -> np.ndarray:
        stops = [max(0, int(n) - start[self._placed.index(axis)]) for axis, n in enumerate(limits)]
        # A copy: it must not keep the padding in memory.
        return np.array(lane[tuple(slice(stop) for stop in stops)])

    def _index(self, lanes: dict[int, int]) -> tuple[int | slice, ...]:
        return tuple(lanes[~axis] if axis < 0 else slice(None) for axis in self._placed)

    def _read(self, read: Read) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Returns the mask as ``(n, *levels)`` and the extent as ``(n, *levels, rank)``; a level without lanes is 1."""
        where = None if self._where is None else self._where.spread(read)
        return where, None if self._extent is None else self._extent.spread(read)

    def _starts(self, read: Read, count: int) -> np.ndarray | None:
        if self._offset is None:
            return None
        starts = np.zeros((count, len(self._shape)), np.int64)
        offset = read(self._offset)
        # Key data have trailing axes that no device splits.
        starts[:, : offset.shape[1]] = offset
        room = np.array(self._whole, np.int64) - np.array(self._shape, np.int64)
        if ((starts < 0) | (starts > room)).any():
            message = f"tap {self._name!r} has a shard of {self._shape} that lies outside its whole of {self._whole}"
            raise TraceFormatError(message)
        return starts

    def _mask(self, where: np.ndarray, extent: np.ndarray | None, start: tuple[int, ...]) -> np.ndarray:
        """Returns `valid` of records whose arrays begin at the same place of the whole."""
        shared = [level for level, axis in enumerate(self.axes) if axis is None]
        loose = [level for level in shared if extent is None or extent.shape[1 + level] == 1]
        # any(w & e) over lanes of one extent is any(w) & e.
        where = np.any(where, axis=tuple(1 + level for level in loose), keepdims=True)
        looped = [1 if extent is None or level in loose else extent.shape[1 + level] for level in shared]
        out: np.ndarray | None = None
        for lane in np.ndindex(*looped):
            picks = dict(zip(shared, lane, strict=True))
            mask = self._lane_mask(where, extent, picks, start)
            out = mask if out is None else out | mask
        if out is None:
            # No lanes at all, so that none counts.
            return np.zeros((len(where), *(1 for _ in self._shape)), bool)
        return out.transpose(0, *(1 + self._normal.index(axis) for axis in self._placed))

    @property
    def _normal(self) -> list[int]:
        """The axes of the array in another order: levels from the outside, then those of a lane."""
        return [~level for level, axis in enumerate(self.axes) if axis is not None] + list(range(self.rank))

    def _lane_mask(
        self, where: np.ndarray, extent: np.ndarray | None, picks: dict[int, int], start: tuple[int, ...]
    ) -> np.ndarray:
        """Returns the mask with axes in normal order, at one lane of each level that the leaf lacks."""
        mask = self._picked(where, picks, start)[(..., *(None for _ in range(self.rank)))]
        if extent is not None:
            limits = self._picked(extent, picks, start)
            for axis in range(limits.shape[-1]):
                at = self._placed.index(axis)
                place = np.arange(start[at], start[at] + self._shape[at])
                limit = limits[(..., axis, *(None for _ in range(self.rank)))]
                mask = mask & (place.reshape(-1, *(1 for _ in range(self.rank - axis - 1))) < limit)
        return mask

    def _picked(self, column: np.ndarray, picks: dict[int, int], start: tuple[int, ...]) -> np.ndarray:
        """Returns the lanes of a column that the leaf's array has."""
        index: list[int | slice] = [slice(None)]
        for level, axis in enumerate(self.axes):
            single = column.shape[1 + level] == 1
            if axis is None:
                index.append(0 if single else picks[level])
            else:
                index.append(slice(None) if single else slice(start[axis], start[axis] + self._shape[axis]))
        return column[tuple(index)]

    def _checked(self, site: Site, leaf: int) -> tuple[int, ...]:
        """Returns the shape of the array that the leaf is a shard of, if it is one."""
        whole = self._shape
        if self._offset is not None:
            column, given = site.columns[self._offset], site.leaves[leaf].global_shape
            if given is None or len(given) > len(whole) or len(column.shape) != 1 or column.shape[0] > len(whole):
                message = f"leaf {leaf} of shape {whole}: offset of shape {column.shape}, global shape {given}"
                raise ValueError(message)
            whole = (*given, *whole[len(given) :])
        told = [column.sizes for column in (self._where, self._extent) if column is not None]
        for axis, *sizes in zip(self.axes, *told, strict=True):
            if axis is not None:
                sizes.append(whole[axis])
            if len({size for size in sizes if size != 1}) > 1:
                message = f"leaf {leaf} of shape {whole}: {sizes} lanes at one batch level"
                raise ValueError(message)
        if self._extent is not None and self._extent.own[0] > self.rank:
            message = f"leaf {leaf}: an extent of {self._extent.own[0]} axes, a lane has {self.rank}"
            raise ValueError(message)
        return whole


class _Column:
    """A column with a role, its lanes spread over all batch levels.

    Attributes:
        number: its place in ``site.columns``.
        sizes: its lanes, a batch level; 1 where it is the same for all.
        own: its shape without the lanes.
    """

    def __init__(self, site: Site, number: int, own_rank: int) -> None:
        shape = site.columns[number].shape
        self.number = number
        sizes = iter(shape)
        self.sizes = tuple(next(sizes, -1) if _has_lanes(batch, number) else 1 for batch in reversed(_batches(site)))
        self.own = tuple(sizes)
        if -1 in self.sizes or len(self.own) != own_rank:
            message = f"column {number} of shape {shape} does not fit the batch axes of the site"
            raise ValueError(message)

    @classmethod
    def of(cls, site: Site, role: str, name: str | None, own_rank: int) -> _Column | None:
        number = site.column(role, name)
        return None if number is None else cls(site, number, own_rank)

    def spread(self, read: Read) -> np.ndarray:
        """Returns the column of the records as ``(n, *sizes, *own)``."""
        column = read(self.number)
        return column.reshape(len(column), *self.sizes, *self.own)


def check(site: Site) -> None:
    """Raises ValueError when masks, extents and offsets of a site contradict its shapes and batch axes."""
    if any(column.role is not None for column in site.columns):
        for leaf in range(len(site.leaves)):
            LeafLanes(site, leaf)


def columns_of(record: Record) -> Read:
    """Returns what reads the columns of one record, as `LeafLanes` takes it."""
    return lambda number: np.asarray(record.numbers[number])[None]


def counted(where: np.ndarray) -> np.ndarray:
    """Returns which records count: those of which a lane does.

    Args:
        where: the column with this role, ``(n, *shape)``.

    Example:
        >>> counted(np.array([[True, False], [False, False]])).tolist()
        [True, False]
    """
    return np.asarray(where.reshape(len(where), _size(where)).any(axis=1))


def lane_counts(where: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns how many lanes of each record count, ``(n,)``, and how many there are."""
    size = _size(where)
    return where.reshape(len(where), size).sum(axis=1), size


def valid_in_column(site: Site, number: int, read: Read) -> np.ndarray | None:
    """Returns which elements of a column lie in lanes that count: bools that broadcast to ``(n, *shape)``, or None."""
    where = _Column.of(site, "where", None, 0)
    if where is None:
        return None
    batches = [*reversed(_batches(site))]
    there = [_has_lanes(batch, number) for batch in batches]
    shared = tuple(1 + level for level, lanes in enumerate(there) if not lanes)
    mask = where.spread(read).any(axis=shared)
    return mask.reshape(*mask.shape, *(1 for _ in site.columns[number].shape[sum(there) :]))


def trim_record(record: Record) -> Any:
    """Returns a record's pytree without padding and without lanes that do not count.

    Args:
        record: a record, live or read from a trace.

    Returns:
        The tapped pytree. A leaf is an array trimmed to its logical shape; under vmap it is a list of such arrays, one
        a lane that counts (see `LeafLanes.split`). A leaf that the record does not hold is None, as is every leaf of a
        record that does not count.

    Example:
        >>> import numpy as np
        >>> from tracerec.model import Column, Leaf, Record, Site
        >>> site = Site("act", (Leaf("", (4,), "float32"),), (Column("", "int32", (1,), role="extent"),))
        >>> trim_record(Record(site, None, (np.arange(4, dtype=np.float32),), (np.array([3], np.int32),)))
        array([0., 1., 2.], dtype=float32)
    """
    import json

    from tracerec import structure

    site, read = record.site, columns_of(record)
    leaves: dict[int, Any] = {}
    for number, (leaf, array) in enumerate(zip(site.leaves, record.arrays, strict=True)):
        lanes = LeafLanes(site, number).split(array, read)
        leaves[leaf.number] = lanes if is_batched(site) else lanes[0] if lanes else None
    return structure.build(json.loads(site.structure), leaves.get)


def is_batched(site: Site) -> bool:
    """Returns whether the site's records hold lanes."""
    return bool(_batches(site))


def _batches(site: Site) -> list[Transform]:
    """Returns the batch levels, the innermost first, as their axes were inserted."""
    return [transform for transform in site.transforms if transform.name == "batch"]


def _dim(batch: Transform, leaf: int, site: Site) -> int | None:
    if batch.dims is None or len(batch.dims) != len(site.leaves):
        message = f"{batch} has axes {batch.dims} for {len(site.leaves)} leaves"
        raise ValueError(message)
    return batch.dims[leaf]


def _placed(dims: list[int | None], ndim: int) -> list[int]:
    """Returns what each axis of an array is: number k of a lane's own axes, or ~k for the lanes of level k."""
    placed = list(range(ndim - sum(dim is not None for dim in dims)))
    for level, dim in zip(reversed(range(len(dims))), dims, strict=True):
        if dim is not None:
            if not 0 <= dim <= len(placed):
                message = f"batch axes {dims} do not fit an array of {ndim} axes"
                raise ValueError(message)
            placed.insert(dim, ~level)
    if len(placed) != ndim:
        message = f"batch axes {dims} do not fit an array of {ndim} axes"
        raise ValueError(message)
    return placed


def _has_lanes(batch: Transform, column: int) -> bool:
    dims = batch.kwarg_dims or ()
    return column < len(dims) and dims[column] is not None


def _at(column: np.ndarray, lane: Sequence[int]) -> Any:
    sizes = column.shape[1:]
    return column[(0, *(0 if size == 1 else i for i, size in zip(lane, sizes, strict=False)))]


def _size(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64))
