"""The bounded queue of records between the computation and the receiver.

Bounded in bytes. A full queue makes the computation wait, at most `block_timeout` seconds, since XLA ends a process
whose collective waits for 40 s; then the newest record is dropped and counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from tracerec.model import Site
    from tracerec.outfeed.functions import HostFunction
    from tracerec.outfeed.programs import Program
    from tracerec.plans import Choice

__all__ = ["Emitter", "Item", "QueueOptions", "RecordQueue"]

_log = logging.getLogger("tracerec")

# What a queued record costs beside its payload: the tuple, and for each array numpy's header and its allocation.
_RECORD_OVERHEAD = 200
_ARRAY_OVERHEAD = 200

# The receiver lets small records gather, so that many go into one frame.
_GATHER_SECONDS = 0.02
_URGENT_BYTES = 4 << 20
_BATCH_BYTES = 32 << 20
_BATCH_RECORDS = 4096

# A computation that waits this long is worth a warning.
_WARN_SECONDS = 1.0


class Emitter(Protocol):
    """Who put a record on the queue: one site at one place of one program."""

    site: Site
    program: Program
    position: int
    once: bool
    is_mark: bool
    function: HostFunction | None
    choice: Choice | None
    words: tuple[tuple[int, np.dtype[Any]], ...]
    nbytes: int


Item = tuple[Emitter, "tuple[np.ndarray, ...]", int | None, int, int, int]
"""emitter, arrays, device, shard, time in ns, arrival number."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueOptions:
    """How far records may pile up before the receiver, and what happens then.

    Attributes:
        max_bytes: how many bytes may wait, overhead of Python objects included.
        on_full: ``"block"``: the computation waits, at most ``block_timeout``; ``"drop"``: it does not wait. What finds
            no room is dropped and counted.
        block_timeout: seconds; None for ever.
    """

    max_bytes: int = 256 << 20
    on_full: Literal["block", "drop"] = "block"
    block_timeout: float | None = 10.0


class RecordQueue:
    """A FIFO of records, many producers and one receiver.

    Attributes:
        dropped: how many records for recorders were dropped, by tap name.
        dropped_calls: how many records for functions were dropped, by the function's name.
        high_water_bytes: the most bytes that waited at once.
        next_arrival: the arrival number of the next record.
        consumed: how many records have been consumed.
        failure: why the receiver has ended, or None while it lives.
    """

    def __init__(self, options: QueueOptions | None = None) -> None:
        self.dropped: Counter[str] = Counter()
        self.dropped_calls: Counter[str] = Counter()
        self.high_water_bytes = 0
        self.next_arrival = 0
        self.failure: BaseException | None = None
        self._options = options or QueueOptions()
        self._items: deque[tuple[Item, int]] = deque()
        self._taken: list[Item] = []
        self._taken_bytes = 0
        self._bytes = 0
        self._sent = 0
        self.consumed = 0
        self._unconsumed: dict[int, int] = {}
        self._hurried = 0
        self._receiver_waits = False
        self._warned_of_blocking = False
        lock = threading.Lock()
        self._lock = lock
        self._filled = threading.Condition(lock)
        self._freed = threading.Condition(lock)
        self._done = threading.Condition(lock)

    def reset(self, options: QueueOptions) -> None:
        """Takes other bounds, and forgets the high-water mark."""
        with self._lock:
            self._options = options
            self.high_water_bytes = self._bytes
            self._warned_of_blocking = False

    def put(self, emitter: Emitter, arrays: tuple[np.ndarray, ...], device: int | None, shard: int) -> bool:
        """Appends one record; returns False when it was dropped. Waits while the queue is full."""
        size = emitter.nbytes + _RECORD_OVERHEAD + _ARRAY_OVERHEAD * len(arrays)
        now = time.time_ns()
        with self._lock:
            # Without its mark the records of a call could not be told from those of the one before.
            full = self._bytes + size > self._options.max_bytes and self._bytes and not emitter.is_mark
            if self.failure is not None or (full and not (emitter.program.may_wait and self._wait_for_room(size))):
                self._count_drop(emitter)
                return False
            self._items.append(((emitter, arrays, device, shard, now, self.next_arrival), size))
            # a mark is no record: it takes no arrival number
            self.next_arrival += not emitter.is_mark
            self._sent += 1
            self._bytes += size
            self.high_water_bytes = max(self.high_water_bytes, self._bytes)
            if self._receiver_waits and (self._sent - self.consumed == 1 or self._bytes >= _URGENT_BYTES):
                self._filled.notify()
        return True

    def count_drop(self, tap: str) -> int:
        """Counts a record that never got here; returns how many of the tap there are now."""
        with self._lock:
            self.dropped[tap] += 1
            return self.dropped[tap]

    def take(self) -> list[Item]:
        """Returns the next records, for the receiver; waits for some."""
        with self._lock:
            self._receiver_waits = True
            self._filled.wait_for(lambda: self._items)
            if not self._is_urgent():
                self._filled.wait_for(self._is_urgent, timeout=_GATHER_SECONDS)
            self._receiver_waits = False
            return self._take_batch()

    def done(self) -> None:
        """Says that what was taken is consumed: its bytes are free, and barriers may pass."""
        with self._lock:
            self._bytes -= self._taken_bytes
            self.consumed += len(self._taken)
            self._taken, self._taken_bytes = [], 0
            self._freed.notify_all()
            self._done.notify_all()

    def fail(self, error: BaseException) -> None:
        """Says that the receiver has ended: nobody waits for it, and what it had not consumed counts as dropped."""
        with self._lock:
            self.failure = error
            self._unconsumed = self._pending()
            for item in [*self._taken, *(item for item, _ in self._items)]:
                self._count_drop(item[0])
            self._items.clear()
            self._taken, self._taken_bytes, self._bytes = [], 0, 0
            self._freed.notify_all()
            self._done.notify_all()

    def wait_consumed(self, timeout: float | None = None) -> dict[int, int]:
        """Waits until every record put before is consumed.

        Returns:
            Empty when they are; else how many records are not, by device (-1: not known).
        """
        with self._lock:
            target = self._sent
            self._hurried += 1
            self._filled.notify()
            try:
                self._done.wait_for(lambda: self.consumed >= target or self.failure is not None, timeout)
            finally:
                self._hurried -= 1
            if self.consumed >= target:
                return {}
            return self._pending() if self.failure is None else self._unconsumed

    def _count_drop(self, emitter: Emitter) -> None:
        if not emitter.is_mark:
            kept = self.dropped if emitter.function is None else self.dropped_calls
            kept[emitter.site.name] += 1

    def _pending(self) -> dict[int, int]:
        waiting = itertools.chain(self._taken, (item for item, _ in self._items))
        return dict(Counter(-1 if item[2] is None else item[2] for item in waiting if not item[0].is_mark))

    def _take_batch(self) -> list[Item]:
        size = 0
        while self._items and size < _BATCH_BYTES and len(self._taken) < _BATCH_RECORDS:
            item, item_bytes = self._items.popleft()
            self._taken.append(item)
            size += item_bytes
        self._taken_bytes = size
        return self._taken

    def _is_urgent(self) -> bool:
        return self._bytes >= _URGENT_BYTES or self._hurried > 0

    def _wait_for_room(self, size: int) -> bool:
        if self._options.on_full == "drop":
            return False
        self._filled.notify()
        limit = self._options.block_timeout
        deadline = None if limit is None else time.monotonic() + limit
        first = _WARN_SECONDS if limit is None else min(_WARN_SECONDS, limit)
        if self._freed.wait_for(lambda: self._has_room(size), first):
            return self.failure is None
        self._warn_of_blocking()
        rest = None if deadline is None else max(0.0, deadline - time.monotonic())
        return self._freed.wait_for(lambda: self._has_room(size), rest) and self.failure is None

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._options.max_bytes or self.failure is not None

    def _warn_of_blocking(self) -> None:
        if not self._warned_of_blocking:
            self._warned_of_blocking = True
            _log.warning(
                "the outfeed's queue (%d MiB) is full: consumers are slower than the computation, which waits for them",
                self._options.max_bytes >> 20,
            )
