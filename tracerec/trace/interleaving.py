"""The order of records where the program does not give it: of several processes by time, of a user's own choice.

Processes share no clock but the wall clock. So each process keeps its own order, whatever its clock says, and they are
merged by the latest time that each has reached: a record comes once no other process has an earlier one left. Records
of one time come in the order of the processes' numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracerec.model import INDEX_DTYPE
from tracerec.trace.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.trace.view import StreamView

__all__ = ["by_process", "by_rank"]

_ROWS = 1 << 12


def by_process(
    views: Sequence[StreamView], order: Callable[[Sequence[StreamView], int], Iterator[Batch]]
) -> Iterator[Batch]:
    """Yields the records of each process in an order, those of several processes merged by time.

    Args:
        views: the views.
        order: gives the order of the views of one process, given how many there are to share the memory.
    """
    groups: dict[int, list[int]] = {}
    for number, view in enumerate(views):
        groups.setdefault(view.process, []).append(number)
    if len(groups) <= 1:
        return order(views, 1)
    ordered = (
        _numbered(order([views[i] for i in members], len(groups)), members) for _, members in sorted(groups.items())
    )
    return _merged(list(ordered))


def by_rank(views: Sequence[StreamView]) -> Iterator[Batch]:
    """Yields the records of views in the order of their `StreamView.ranks`."""
    ranks = np.concatenate([np.arange(view.records) if view.ranks is None else view.ranks for view in views])
    stream = np.repeat(np.arange(len(views), dtype=np.int32), [view.records for view in views])
    number = np.concatenate([np.arange(view.records) for view in views])
    order = np.argsort(ranks, kind="stable")
    for start in range(0, len(order), _ROWS):
        chosen = order[start : start + _ROWS]
        rows = np.empty(len(chosen), INDEX_DTYPE)
        for each in np.unique(stream[chosen]).tolist():
            mine = stream[chosen] == each
            wanted, inverse = np.unique(number[chosen][mine], return_inverse=True)
            rows[mine] = views[each].pick(wanted).index(0, len(wanted))[inverse]
        yield Batch(rows, stream[chosen], number[chosen])


def _numbered(batches: Iterator[Batch], members: Sequence[int]) -> Iterator[Batch]:
    """Yields batches of some views with the numbers that these have among all."""
    numbers = np.array(members, np.int32)
    for batch in batches:
        yield Batch(batch.rows, numbers[batch.stream], batch.number)


def _merged(processes: Sequence[Iterator[Batch]]) -> Iterator[Batch]:
    heads = [_Head(batches) for batches in processes]
    while heads := [head for head in heads if head.filled()]:
        cutoff = min((head.last for head in heads if head.more), default=None)
        parts = [part for head in heads if len((part := head.take(cutoff))[1])]
        if not parts:
            # all that is there is of one moment, of which a process may have more
            for head in heads:
                if head.last == cutoff:
                    head.extend()
            continue
        times = np.concatenate([time for _, time in parts])
        yield Batch.join([batch for batch, _ in parts]).take(np.argsort(times, kind="stable"))


class _Head:
    """The next records of one process. Attributes: whether there may be ``more`` behind them."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._batch = Batch.join([])
        self._times = np.empty(0, np.int64)
        self._reached = np.iinfo(np.int64).min
        self.more = True

    @property
    def last(self) -> int:
        return int(self._times[-1])

    def filled(self) -> bool:
        """Reads records, if there are none; returns whether there are some."""
        while not len(self._batch) and self.more:
            self.extend()
        return bool(len(self._batch))

    def extend(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self.more = False
        elif len(batch):
            times = np.maximum(np.maximum.accumulate(batch.rows["time"]), self._reached)
            self._reached = int(times[-1])
            self._batch = Batch.join([self._batch, batch] if len(self._batch) else [batch])
            self._times = np.concatenate([self._times, times])

    def take(self, cutoff: int | None) -> tuple[Batch, np.ndarray]:
        """Returns the records before a time, and their times; all of them for None."""
        count = len(self._times) if cutoff is None else int(np.searchsorted(self._times, cutoff))
        taken = self._batch.take(np.arange(count)), self._times[:count]
        self._batch = self._batch.take(np.arange(count, len(self._times)))
        self._times = self._times[count:]
        return taken
