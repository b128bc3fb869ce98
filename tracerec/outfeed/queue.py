"""The bounded queue of records between the computation and the receiver.

Bounded in bytes. A full queue makes the computation wait, at most `block_timeout` seconds, since XLA ends a process
whose collective waits for 40 s; then the newest record is dropped and counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from tracerec.model import Site
    from tracerec.outfeed.programs import Program

__all__ = ["Emitter", "Item", "RecordQueue"]

DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_BLOCK_TIMEOUT = 10.0

# What a queued record costs beside its payload: the tuple, and for each array numpy's header and its allocation.
_RECORD_OVERHEAD = 200
_ARRAY_OVERHEAD = 200

# The receiver lets small records gather, so that many go into one frame.
_GATHER_SECONDS = 0.02
_URGENT_BYTES = 4 << 20
_BATCH_BYTES = 32 << 20


class Emitter(Protocol):
    """Who put a record on the queue: one site at one place of one program."""

    site: Site
    program: Program
    position: int
    once: bool
    is_mark: bool
    words: tuple[tuple[int, np.dtype[Any]], ...]
    nbytes: int


Item = tuple[Emitter, "tuple[np.ndarray, ...]", int | None, int, int, int]
"""emitter, arrays, device, shard, time in ns, arrival number."""


class RecordQueue:
    """A FIFO of records, many producers and one receiver.

    Args:
        max_bytes: how many bytes may wait, overhead of Python objects included.
        block_timeout: seconds that `put` waits for room before it drops; None for ever.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES, block_timeout: float | None = DEFAULT_BLOCK_TIMEOUT) -> None:
        self.max_bytes = max_bytes
        self.block_timeout = block_timeout
        self.high_water_bytes = 0
        self.dropped: Counter[str] = Counter()
        self.next_arrival = 0
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._sent = 0
        self._consumed = 0
        self._taken_bytes = 0
        self._hurry = False
        self._closed = False
        self._receiver_waits = False
        lock = threading.Lock()
        self._lock = lock
        self._filled = threading.Condition(lock)
        self._freed = threading.Condition(lock)
        self._done = threading.Condition(lock)

    def put(self, emitter: Emitter, arrays: tuple[np.ndarray, ...], device: int | None, shard: int) -> bool:
        """Appends one record; returns False when it was dropped. Waits while the queue is full."""
        size = emitter.nbytes + _RECORD_OVERHEAD + _ARRAY_OVERHEAD * len(arrays)
        now = time.time_ns()
        with self._lock:
            if self._bytes + size > self.max_bytes and self._bytes and not self._wait_for_room(size):
                self.dropped[emitter.site.name] += 1
                return False
            self._items.append(((emitter, arrays, device, shard, now, self.next_arrival), size))
            # a mark is no record: it takes no arrival number
            self.next_arrival += not emitter.is_mark
            self._sent += 1
            self._bytes += size
            self.high_water_bytes = max(self.high_water_bytes, self._bytes)
            if self._receiver_waits and (self._sent - self._consumed == 1 or self._bytes >= _URGENT_BYTES):
                self._filled.notify()
        return True

    def take(self) -> list[Item] | None:
        """Returns the next records, for the receiver; waits for some. None when the queue is closed and empty."""
        with self._lock:
            self._receiver_waits = True
            self._filled.wait_for(lambda: self._items or self._closed)
            if self._bytes < _URGENT_BYTES and not self._hurry and not self._closed:
                self._filled.wait_for(self._is_urgent, timeout=_GATHER_SECONDS)
            self._receiver_waits = False
            if not self._items:
                return None
            return self._take_batch()

    def done(self, items: list[Item]) -> None:
        """Says that these records are consumed: their bytes are free, and barriers may pass."""
        with self._lock:
            self._bytes -= self._taken_bytes
            self._consumed += len(items)
            self._freed.notify_all()
            self._done.notify_all()

    def wait_consumed(self, timeout: float | None = None) -> int:
        """Waits until every record put before is consumed; returns how many are not when the time is up."""
        with self._lock:
            target = self._sent
            self._hurry = True
            self._filled.notify()
            self._done.wait_for(lambda: self._consumed >= target, timeout)
            self._hurry = False
            return max(0, target - self._consumed)

    def close(self) -> None:
        """Lets the receiver end once the queue is empty."""
        with self._lock:
            self._closed = True
            self._filled.notify()

    def _take_batch(self) -> list[Item]:
        batch: list[Item] = []
        size = 0
        while self._items and size < _BATCH_BYTES:
            item, item_bytes = self._items.popleft()
            batch.append(item)
            size += item_bytes
        self._taken_bytes = size
        return batch

    def _is_urgent(self) -> bool:
        return self._bytes >= _URGENT_BYTES or self._hurry or self._closed

    def _wait_for_room(self, size: int) -> bool:
        self._filled.notify()
        return self._freed.wait_for(lambda: not self._bytes or self._bytes + size <= self.max_bytes, self.block_timeout)
