"""All index rows of a trace, and the place of each record in its process's order of execution."""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from tracerec.model import INDEX_DTYPE
from tracerec.trace.order import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.trace import Trace
    from tracerec.trace.view import StreamView

__all__ = ["TraceIndex", "streams_of"]

_ROWS = 1 << 16

_IN_MEMORY = 16 << 20
"""Bytes of index rows held in memory; more are in a file that goes with the object."""


def streams_of(trace: Trace) -> Sequence[StreamView]:
    """Returns the records of a trace that count, a view a stream, in first-seen order."""
    # `Trace` shows its streams by tap alone.
    return trace._views  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class TraceIndex:
    """The index rows of some views, read once.

    Args:
        views: the views.

    Attributes:
        views: as given.
        processes: the number of each view's process.
    """

    def __init__(self, views: Sequence[StreamView]) -> None:
        self.views = tuple(views)
        counts = [view.records for view in views]
        self.processes = np.array([view.process for view in views], np.int32)
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it goes with this object
        weakref.finalize(self, self._file.close)
        for view in views:
            for start, stop in view.blocks(INDEX_DTYPE.itemsize):
                self._file.write(view.index(start, stop).tobytes())

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, view: int) -> np.ndarray:
        """Returns the index rows of a view."""
        return self._read(int(self._starts[view]), int(self._starts[view + 1]))

    def places(self, view: int) -> np.ndarray:
        """Returns the place of each record of a view in execution order: ``(records,)`` of int64."""
        return self._places[self._starts[view] : self._starts[view + 1]]

    def _read(self, start: int, stop: int) -> np.ndarray:
        self._file.seek(start * INDEX_DTYPE.itemsize)
        return np.frombuffer(self._file.read((stop - start) * INDEX_DTYPE.itemsize), INDEX_DTYPE)

    @cached_property
    def _places(self) -> np.ndarray:
        """Found from one stream a process, with all its records as they arrived: many streams take long to merge."""
        numbers: dict[int, list[np.ndarray]] = {}
        for i, view in enumerate(self.views):
            numbers.setdefault(view.process, []).append(np.arange(self._starts[i], self._starts[i + 1]))
        # Mapped while they are put in order, and not longer: what is mapped counts as memory.
        with tempfile.TemporaryFile() as file:
            for start in range(0, len(self), _ROWS):
                file.write(self._read(start, min(start + _ROWS, len(self))).tobytes())
            file.flush()
            table = np.memmap(file, INDEX_DTYPE, "r").view(np.ndarray) if len(self) else np.empty(0, INDEX_DTYPE)
        processes = [_Arrived(table, np.concatenate(parts), process) for process, parts in numbers.items()]
        places = np.empty(len(self), np.int64)
        done = 0
        for batch in in_order(cast("list[StreamView]", processes)):
            for number in np.unique(batch.stream):
                mine = np.flatnonzero(batch.stream == number)
                places[processes[number].numbers[batch.number[mine]]] = done + mine
            done += len(batch)
        return places


@dataclasses.dataclass(eq=False)
class _Arrived:
    """All records of a process as they arrived: what `in_order` needs of a view.

    Attributes:
        table: index rows.
        numbers: which of them are the process's, made to ascend by arrival.
        process: the process's number.
        ranks: as `StreamView.ranks`.
    """

    table: np.ndarray
    numbers: np.ndarray
    process: int
    ranks: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.numbers = self.numbers[np.argsort(self.table["arrival"][self.numbers], kind="stable")]

    @property
    def records(self) -> int:
        return len(self.numbers)

    def index(self, start: int, stop: int) -> np.ndarray:
        return self.table[self.numbers[start:stop]]
