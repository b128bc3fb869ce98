"""Reading what belongs together, a block at a time; equal chunks are passed over as they lie in the files."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracerec.errors import SelectionError, TraceError
from tracerec.lanes import LeafLanes, columns_of
from tracerec.protocol import dtypes
from tracerec.trace import shards
from tracerec.trace.view import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.formats.contract import StreamSource
    from tracerec.model import Column, Leaf, Record, Site
    from tracerec.trace.view import StreamView

__all__ = [
    "ColumnSide",
    "LeafSide",
    "NotComparable",
    "Side",
    "Whole",
    "WholeColumnSide",
    "WholeSide",
    "blocks",
    "raw_chunks",
]


class NotComparable(Exception):
    """Records cannot be read as what they should be compared as; the text says why."""


class Side(Protocol):
    """One leaf of some records of one trace.

    Attributes:
        shape: the shape of one record.
        dtype: its dtype.
        key_impl: of a PRNG key: the implementation.
        unknown: whether lanes that never took the tap's branch may be in the records, unmarked.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key_impl: str | None
    unknown: bool

    @property
    def nbytes(self) -> int:
        """Bytes of one record that are read."""
        ...

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns records by number, ``(n, *shape)``, and which elements of them count; None: all."""
        ...


class _Array:
    """An array of each record; see `Side`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of one record."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class LeafSide(_Array):
    """A leaf of a stream; see `Side`. Numbers are rows of the view."""

    def __init__(self, view: StreamView, number: int) -> None:
        leaf: Leaf = view.site.leaves[number]
        self.view, self.number = view, number
        self.shape, self.dtype, self.key_impl = leaf.shape, dtypes.from_name(leaf.dtype), leaf.key_impl
        self.unknown = view.site.lanes_may_be_invalid and not view.raw

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns records by number; see `Side.read`."""
        if _contiguous(numbers):
            span = int(numbers[0]), int(numbers[-1]) + 1
            return self.view.leaf(self.number, *span), self.view.valid(self.number, *span)
        picked, back = _picked(self.view, numbers)
        array, valid = picked.leaf(self.number, 0, len(back)), picked.valid(self.number, 0, len(back))
        return array[back], valid if valid is None or len(valid) != len(back) else valid[back]


class ColumnSide(_Array):
    """A float kwarg of a stream, compared as a leaf is; see `Side`."""

    def __init__(self, view: StreamView, number: int) -> None:
        column: Column = view.site.columns[number]
        self.view, self.number = view, number
        self.shape, self.dtype = column.shape, dtypes.from_name(column.dtype)
        self.key_impl: str | None = None
        self.unknown = view.site.lanes_may_be_invalid and not view.raw and bool(column.shape)

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns values by row; see `Side.read`."""
        if _contiguous(numbers):
            return self.view.column(self.number, int(numbers[0]), int(numbers[-1]) + 1), None
        picked, back = _picked(self.view, numbers)
        return picked.column(self.number, 0, len(back))[back], None


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Whole:
    """Records that are put together from shards.

    Attributes:
        views: their streams.
        firings: the records that belong together, by stream.
        first: the number of the stream of which the first record of each firing meant is.
    """

    views: Sequence[StreamView]
    firings: shards.Firings
    first: int

    @property
    def site(self) -> Site:
        """The site of the first records."""
        return self.views[self.first].site

    def one(self, number: int) -> tuple[list[StreamView], shards.Firings]:
        """Returns one firing, and the streams that have records of it."""
        rows = self.firings
        span = slice(int(rows.starts[number]), int(rows.starts[number + 1]))
        streams, stream = np.unique(rows.stream[span], return_inverse=True)
        starts = np.array([0, len(stream)])
        found = shards.Firings(stream.reshape(-1), rows.number[span], rows.place[span], starts, rows.shard[span])
        return [self.views[each] for each in streams.tolist()], found


class WholeSide(_Array):
    """A leaf put together from the shards of a firing; see `Side`. Numbers are firings."""

    def __init__(self, whole: Whole, path: str) -> None:
        self._whole, self._path = whole, path
        view = whole.views[whole.first].with_leaf(path)
        site = shards.whole_site(view.site)
        leaf = site.leaves[0]
        self.shape, self.dtype, self.key_impl = leaf.shape, dtypes.from_name(leaf.dtype), leaf.key_impl
        self.unknown = site.lanes_may_be_invalid and not view.raw

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns whole arrays by firing; raises NotComparable where a shard is missing or copies disagree."""
        out = np.empty((len(numbers), *self.shape), self.dtype)
        valid: list[np.ndarray] = []
        for place, number in enumerate(numbers.tolist()):
            views, firing = self._whole.one(number)
            record, out[place] = self._assembled(views, firing)
            lanes = LeafLanes(shards.whole_site(record.site), 0)
            if lanes.partial and not views[0].raw:
                found = lanes.valid(columns_of(record))
                valid.append(np.broadcast_to(True if found is None else found, (1, *self.shape)))
        return out, np.concatenate(valid) if valid else None

    def _assembled(self, views: Sequence[StreamView], firing: shards.Firings) -> tuple[Record, np.ndarray]:
        name = record_tap(views[0])
        if any(self._path not in [leaf.path for leaf in view.site.leaves] for view in views):
            message = f"the shards of tap {name!r} do not all have the leaf {self._path}"
            raise NotComparable(message)
        if len(_dtypes(views, self._path)) > 1:
            message = f"the shards of tap {name!r} are of arrays of different shapes or dtypes"
            raise NotComparable(message)
        try:
            ((record, array),) = shards.assembled([view.with_leaf(self._path) for view in views], firing, name)
        except (SelectionError, TraceError) as error:
            raise NotComparable(str(error)) from error
        return record, array


class WholeColumnSide(_Array):
    """A float kwarg of arrays that are put together from shards; see `Side`. Numbers are firings."""

    def __init__(self, whole: Whole, name: str) -> None:
        self._whole = whole
        names = [column.name if column.role is None else None for column in whole.site.columns]
        self._side = ColumnSide(whole.views[whole.first], names.index(name))
        self.shape, self.dtype, self.key_impl = self._side.shape, self._side.dtype, self._side.key_impl
        self.unknown = self._side.unknown

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns values by firing, those of its first record; see `Side.read`."""
        rows = self._whole.firings
        return self._side.read(rows.number[rows.starts[numbers]])


def _dtypes(views: Sequence[StreamView], path: str) -> set[tuple[str, str | None, tuple[int, ...]]]:
    found = (leaf for view in views for leaf in view.site.leaves if leaf.path == path)
    return {(leaf.dtype, leaf.key_impl, shards.whole_shape(leaf)) for leaf in found}


def record_tap(view: StreamView) -> str:
    """Returns the name of a view's tap."""
    return view.site.name


def blocks(a: Side, b: Side, count: int, raw: RawChunks | None) -> Iterator[tuple[int, int]]:
    """Yields ranges of pairs of about `BLOCK_BYTES` a side; they end where chunks of the files do."""
    size = max(1, min(BLOCK_BYTES // max(a.nbytes, b.nbytes, 1), 1 << 18))
    start = 0
    while start < count:
        stop = min(start + size, count)
        if raw is not None and stop < count:
            stop = max(raw.boundary(stop), min(start + raw.rows, count))
        yield start, stop
        start = stop


class RawChunks:
    """The chunks of one leaf in two files that cut it alike: whether they are equal, not decoded.

    Attributes:
        rows: the records of a chunk.
    """

    def __init__(self, a: Any, b: Any, table: int, grid: Any, shape: tuple[int, ...]) -> None:
        self._sides, self._table, self._shape = (a, b), table, shape
        self.rows, self._rest, self._lead = int(grid.chunk[0]), grid.chunk[1:], int(grid.lead)
        self._missed = self._turn = 0

    def boundary(self, row: int) -> int:
        """Returns the last end of a chunk at or before a row."""
        return (row + self._lead) // self.rows * self.rows - self._lead

    def equal(self, start: int, stop: int) -> np.ndarray:
        """Returns which of some rows are known to be equal: those of equal chunks, ``(stop - start,)`` of bool."""
        out = np.zeros(stop - start, bool)
        first = max(0, start + self._lead) // self.rows * self.rows
        for corner in range(first, stop + self._lead, self.rows):
            low = max(corner - self._lead, start)
            out[low - start : max(corner + self.rows - self._lead, start) - start] = self._same(corner)
        return out

    def _same(self, corner: int) -> bool:
        self._turn += 1
        # Where all differs, reading twice does not pay; now and then it is tried again.
        if self._missed >= _PATIENCE and self._turn % _AGAIN:
            return False
        one, other = self._sides
        rest = [range(0, size, step) for size, step in zip(self._shape, self._rest, strict=True)]
        places = ((corner, *place) for place in itertools.product(*rest))
        same = all(one.stored(self._table, place) == other.stored(self._table, place) for place in places)
        self._missed = 0 if same else self._missed + 1
        return same


_PATIENCE, _AGAIN = 2, 16

_WORTH = 1 << 16
"""Bytes of a leaf from which on its chunks are compared as they lie in the files; fewer are decoded in less time."""


def raw_chunks(a: Side, b: Side, numbers_a: np.ndarray, numbers_b: np.ndarray) -> RawChunks | None:
    """Returns the chunks of two leaves, if both lie in sealed HDF5 files, alike, and pairs are of the same rows."""
    if not (isinstance(a, LeafSide) and isinstance(b, LeafSide)) or not _alike(a, b, len(numbers_a)):
        return None
    if not (np.array_equal(numbers_a, numbers_b) and _contiguous(numbers_a) and numbers_a[0] == 0):
        return None
    from tracerec.formats.hdf5 import layout
    from tracerec.formats.hdf5.reading import Hdf5Stream

    one, other = _source(a), _source(b)
    if not (isinstance(one, Hdf5Stream) and isinstance(other, Hdf5Stream)):
        return None
    tables = [[table.name for table in layout.tables(stream.site)] for stream in (one, other)]
    places = [names.index(f"data_{side.number}") for names, side in zip(tables, (a, b), strict=True)]
    if places[0] != places[1]:
        return None
    grid = one.grid(places[0])
    if grid is None or grid != other.grid(places[0]):
        return None
    shape = layout.stored_shape(1, one.site.leaves[a.number].shape)[1:]
    return RawChunks(one, other, places[0], grid, shape)


def _alike(a: LeafSide, b: LeafSide, records: int) -> bool:
    """Returns whether two leaves are of one dtype and shape, large, and all their rows and elements count."""
    if records * int(np.prod(a.shape, dtype=np.int64)) * a.dtype.itemsize < _WORTH:
        return False
    whole = all(side.view.rows is None and side.view.valid(side.number, 0, 1) is None for side in (a, b))
    return whole and a.dtype == b.dtype and a.shape == b.shape


def _source(side: LeafSide) -> StreamSource:
    return side.view.source


def _contiguous(numbers: np.ndarray) -> bool:
    return len(numbers) == 1 or (
        bool(len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1) and bool((np.diff(numbers) == 1).all())
    )


def _picked(view: StreamView, numbers: np.ndarray) -> tuple[StreamView, np.ndarray]:
    """Returns the view of some rows, and where each of them is in it."""
    order = np.argsort(numbers, kind="stable")
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return view.pick(numbers[order]), back
