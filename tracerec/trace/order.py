"""The order of records across streams, with bounded memory: arrival order, and program order per device.

Records of one execution of one program (a call) can arrive out of program order: XLA runs callbacks that do
not depend on each other from several threads, and only those of one block are chained by a token. What holds:
calls of one device arrive in order, iterations of a rolled loop arrive in order, and taps of one program have
static positions that ascend in program order. Program order is rebuilt from these:

* calls come in order of their first record;
* in a call, positions whose firings do not overlap in time come by position;
* positions that overlap are in one loop (or are one inner function called twice). They come by iteration, then
  position, if their iterations arrived in order; else, in nested loops and untaken branches, by arrival;
* devices of one call run the same program: their n-th records stand together, by device id.

Eager records are in program order as they arrive. Numbers of arrival, calls and devices are a process's own: of several
processes each is put in order by itself, and `tracerec.trace.interleaving` merges them by time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracerec.model import INDEX_DTYPE
from tracerec.trace.batch import Batch
from tracerec.trace.interleaving import by_process, by_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.trace.view import StreamView

__all__ = ["Batch", "Order", "in_order", "places"]

Order = Literal["program", "arrival"]

_WINDOW = 1 << 14
"""Rows that are looked ahead for the rest of a call; a longer call is ordered in pieces of this or more."""

_INDEX_BYTES = 16 << 20
"""Bytes of index rows held, over all streams."""


def in_order(views: Sequence[StreamView], order: Order = "program") -> Iterator[Batch]:
    """Yields all records of the views, batch by batch, in the order asked for.

    Views whose records a user has put in an order of their own (``tap[::-1]``) have that order for the program's.
    """
    if order == "arrival":
        return by_process(views, _by_arrival)
    if order == "program":
        return by_rank(views) if any(view.ranks is not None for view in views) else by_process(views, _by_program)
    message = f"order is 'program' or 'arrival', not {order!r}"
    raise ValueError(message)


def places(views: Sequence[StreamView]) -> list[np.ndarray]:
    """Returns, a view, each row's place in program order over all views: ``(records,)`` of int64."""
    out = [np.empty(view.records, np.int64) for view in views]
    done = 0
    for batch in in_order(views):
        place = np.arange(done, done + len(batch))
        done += len(batch)
        for stream in np.unique(batch.stream):
            mine = batch.stream == stream
            out[stream][batch.number[mine]] = place[mine]
    return out


class _Cursor:
    """A view's next index rows. ``keys`` never fall, even if two rows were written out of order."""

    def __init__(self, view: StreamView, stream: int, size: int) -> None:
        self._view, self._stream, self._size = view, stream, size
        self._read = self._taken = 0
        self._rows = np.empty(0, INDEX_DTYPE)
        self._keys = np.empty(0, np.uint64)

    @property
    def more(self) -> bool:
        return self._read < self._view.records

    @property
    def empty(self) -> bool:
        return self._taken == self._read

    @property
    def last(self) -> np.uint64:
        return self._keys[-1]

    def fill(self) -> None:
        # Not only when it is empty: of many streams that take turns the others would then hold a row or two each,
        # and every round would end at the least of these.
        if self.more and 2 * len(self._keys) <= self._size:
            stop = min(self._read + self._size, self._view.records)
            rows = self._view.index(self._read, stop)
            self._rows = np.concatenate([self._rows, rows]) if len(self._rows) else rows
            keys = np.concatenate([self._keys, rows["arrival"]])
            self._keys = np.maximum.accumulate(keys)
            self._read = stop

    def take(self, cutoff: np.uint64 | None) -> Batch | None:
        count = len(self._keys) if cutoff is None else int(np.searchsorted(self._keys, cutoff, side="right"))
        if not count:
            return None
        number = np.arange(self._taken, self._taken + count)
        batch = Batch(self._rows[:count], np.full(count, self._stream, np.int32), number)
        self._rows, self._keys = self._rows[count:], self._keys[count:]
        self._taken += count
        return batch


def _by_arrival(views: Sequence[StreamView], processes: int) -> Iterator[Batch]:
    """Merges the views block by block: all rows up to the first end of a block are there, and go out sorted."""
    if not views:
        return
    size = max(64, min(1 << 14, _INDEX_BYTES // INDEX_DTYPE.itemsize // (len(views) * processes)))
    cursors = [_Cursor(view, stream, size) for stream, view in enumerate(views)]
    while cursors:
        for cursor in cursors:
            cursor.fill()
        cursors = [cursor for cursor in cursors if not cursor.empty]
        cutoff = min((cursor.last for cursor in cursors if cursor.more), default=None)
        parts = [part for cursor in cursors if (part := cursor.take(cutoff)) is not None]
        batch = Batch.join(parts)
        if len(batch):
            arrival = batch.rows["arrival"]
            ascending = bool((arrival[1:] >= arrival[:-1]).all())
            yield batch if ascending else batch.take(np.argsort(arrival, kind="stable"))


def _by_program(views: Sequence[StreamView], processes: int) -> Iterator[Batch]:
    waiting: list[Batch] = []
    count = 0
    for batch in _by_arrival(views, processes):
        waiting.append(batch)
        count += len(batch)
        if count >= 2 * _WINDOW:
            ready, rest = _split(Batch.join(waiting))
            yield ready
            waiting, count = [rest], len(rest)
    if count:
        last = Batch.join(waiting)
        yield _arranged(last, _first_arrivals(last.rows))


def _split(batch: Batch) -> tuple[Batch, Batch]:
    """Returns the calls that have begun `_WINDOW` rows or more before the end, arranged, and the rest."""
    first = _first_arrivals(batch.rows)
    begun = first <= batch.rows["arrival"][len(batch) - _WINDOW]
    return _arranged(batch.take(np.flatnonzero(begun)), first[begun]), batch.take(np.flatnonzero(~begun))


def _arranged(batch: Batch, first: np.ndarray) -> Batch:
    """Returns a batch, given in arrival order with `_first_arrivals`, in program order."""
    rows = batch.rows
    rank = _ranks(rows, first)
    return batch.take(np.lexsort((rows["device"], rank, first)))


def _first_arrivals(rows: np.ndarray) -> np.ndarray:
    """Returns the arrival of the first record of each row's call. An eager record is a call of its own."""
    arrival = rows["arrival"]
    compiled = rows["program"] != 0
    first = arrival.copy()
    if not compiled.any():
        return first
    calls = rows["call"][compiled]
    if (calls[1:] >= calls[:-1]).all():
        # One call after the other, as mostly.
        where, stops = _groups(calls)
        call = np.repeat(np.arange(len(where)), stops - where)
    else:
        _, where, call = np.unique(calls, return_index=True, return_inverse=True)
    first[compiled] = arrival[compiled][where][call]
    return first


def _ranks(rows: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Returns each row's place among those of its call and device."""
    order = np.lexsort((rows["arrival"], rows["position"], rows["device"], first))
    starts, stops = _groups(first[order], rows["device"][order])
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - np.repeat(starts, stops - starts)
    loops = np.maximum.reduceat(rows["iteration"][order], starts) > 0 if len(rows) else []
    for number in np.flatnonzero(loops):
        members = np.sort(order[starts[number] : stops[number]])
        pattern = rows[["position", "iteration"]][members]
        rank[members] = _loop_ranks(pattern["position"].tobytes(), pattern["iteration"].tobytes())
    return rank


def _groups(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and stops of runs in which all keys are equal."""
    changes = np.zeros(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        changes |= key[1:] != key[:-1]
    breaks = np.flatnonzero(changes) + 1
    edge = [0] if len(keys[0]) else []
    return np.concatenate([edge, breaks]).astype(np.intp), np.append(breaks, [len(keys[0])] * len(edge)).astype(np.intp)


# Calls of one program mostly arrive alike, so that a few patterns serve a whole training run.
@lru_cache(maxsize=128)
def _loop_ranks(positions: bytes, iterations: bytes) -> np.ndarray:
    """Returns the program order of one call's firings on one device, which are given in arrival order."""
    position, iteration = np.frombuffer(positions, "<u4"), np.frombuffer(iterations, "<u4")
    units: list[np.ndarray] = []
    for firings in _by_value(position):
        low, merged = len(units), firings
        while (found := next((k for k in range(low) if _overlap(units[k], merged)), None)) is not None:
            merged = np.sort(np.concatenate([*units[found:low], merged]))
            low = found
        units[low:] = [merged]
    rank = np.empty(len(position), np.int64)
    rank[np.concatenate([_unit_order(u, position, iteration) for u in units])] = np.arange(len(position))
    return rank


def _by_value(values: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(values, kind="stable")
    starts, stops = _groups(values[order])
    return [order[start:stop] for start, stop in zip(starts, stops, strict=True)]


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(one[0] <= other[-1] and other[0] <= one[-1])


def _unit_order(unit: np.ndarray, position: np.ndarray, iteration: np.ndarray) -> np.ndarray:
    if np.any(np.diff(iteration[unit].astype(np.int64)) < 0):
        return unit
    return unit[np.lexsort((position[unit], iteration[unit]))]
