"""The consumer that writes a journal: batches of records in, frames out."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.outfeed.batch import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.budget import Budget
    from tracerec.gating import Gate
    from tracerec.journal.writing import JournalWriter
    from tracerec.model import Site
    from tracerec.outfeed.batch import Batch, Group

__all__ = ["Recorder"]

_log = logging.getLogger("tracerec")

# Records of one site are joined into frames of about this size; a larger record has a frame of its own.
_FRAME_BYTES = 256 << 10


class Recorder:
    """Writes batches to a journal, many small records to a frame.

    A failure (a full disk, a bug) ends the recording, not the run: it is logged once, and what is not recorded from
    then on is counted.

    Args:
        writer: the journal.
        name: the recording's path, for messages.
        on_first_batch: called before the first batch from a device is written.
        on_failure: called with the first failure.
        budget: how much may be written.
        gate: what is taken of what arrives; None: all.
        first_arrival, first_call: added to arrival and call numbers, which an earlier attempt has begun.
    """

    def __init__(
        self,
        writer: JournalWriter,
        name: str,
        on_first_batch: Callable[[], None],
        on_failure: Callable[[Exception], None],
        budget: Budget,
        *,
        gate: Gate | None = None,
        first_arrival: int = 0,
        first_call: int = 0,
    ) -> None:
        self.failure: Exception | None = None
        self._writer = writer
        self._name = name
        self._on_first_batch: Callable[[], None] = on_first_batch
        self._on_failure = on_failure
        self._budget = budget
        self._gate = gate
        self._first_arrival, self._first_call = first_arrival, first_call
        self._began = False
        self._refused: Counter[str] = Counter()

    @property
    def records(self) -> int:
        """How many records have been written."""
        return self._writer.written.total()

    @property
    def nbytes(self) -> int:
        """How many bytes have been written."""
        return self._writer.nbytes

    @property
    def lost(self) -> dict[str, int]:
        """How many records could not be written, by tap name."""
        return dict(self._writer.lost + self._refused)

    @property
    def over_budget(self) -> dict[str, int]:
        """How many records were not written because a budget was reached, by tap name."""
        return dict(self._budget.refused)

    def consume(self, batch: Batch) -> None:
        """Writes a batch."""
        if not self._began and any((group.rows["device"] >= 0).any() for group in batch.groups):
            self._began = True
            self._try(self._on_first_batch)
        groups = self._admitted(batch.groups)
        counts = [len(group.arrays) for group in groups]
        if self.failure is None:
            self._try(self._allow, groups, counts)
        for group, count in zip(groups, counts, strict=True):
            if self.failure is None:
                self._try(self._append, group, count)
            else:
                self._refused[group.site.name] += count
        if self.failure is None:
            self._try(self._writer.flush)

    def _admitted(self, groups: list[Group]) -> list[Group]:
        if self._gate is None:
            return groups
        admitted = [group for group in map(self._gate.admit, groups) if group is not None]
        return joined(admitted) if any(group.choice is not None for group in admitted) else admitted

    def end(self, summary: dict[str, Any]) -> bool:
        """Ends the journal; returns whether its end frame could be written."""
        try:
            self._writer.end(summary)
        except OSError as error:
            _log.warning("%s: the end of the journal could not be written: %s", self._name, error)
            return False
        return True

    def _try(self, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001 - a recorder's failure never reaches the computation
            self.failure = error
            _log.error(
                "%s: recording has stopped, the computation goes on: %s: %s", self._name, type(error).__name__, error
            )
            self._on_failure(error)

    def _allow(self, groups: list[Group], counts: list[int]) -> None:
        """Replaces the numbers of records by those that the budget allows."""
        counts[:] = self._budget.take([(group.site, group.rows) for group in groups])

    def _append(self, group: Group, count: int) -> None:
        """Writes the first records of a group."""
        site = group.site
        rows = self._numbered(group.rows)
        stored = _stored_arrays(site)
        per_frame = max(1, _FRAME_BYTES // max(1, site.record_nbytes))
        done = 0
        try:
            for first in range(0, count, per_frame):
                part = slice(first, min(first + per_frame, count))
                index = rows[part].view(np.uint8).reshape(-1, rows.dtype.itemsize)
                members = group.arrays[part]
                arrays = [index, *(_stack([record[k] for record in members]) for k in stored)]
                # from here on the writer counts these records, written or lost
                done = first + len(members)
                self._writer.append(site, arrays)
        finally:
            self._refused[site.name] += count - done

    def _numbered(self, rows: np.ndarray) -> np.ndarray:
        """Returns index rows whose numbers go on from those of earlier attempts."""
        if not self._first_arrival and not self._first_call:
            return rows
        rows = rows.copy()
        rows["arrival"] += np.uint64(self._first_arrival)
        rows["call"] += np.uint64(self._first_call)
        return rows


def _stored_arrays(site: Site) -> list[int]:
    n = len(site.leaves)
    return [*range(n), *(n + i for i, column in enumerate(site.columns) if not column.in_index)]


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    first = arrays[0]
    if len(arrays) == 1:
        return first[None]
    if not first.nbytes:
        return np.empty((len(arrays), *first.shape), first.dtype)
    # 3 to 5 times as fast as np.stack for many small arrays
    data = b"".join([a.tobytes() for a in arrays])
    return np.frombuffer(data, np.uint8).view(first.dtype).reshape(len(arrays), *first.shape)
