"""The process's outfeed: which consumers listen, the queue before them, the thread that serves them."""

from __future__ import annotations

import _thread
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracerec.errors import ConsumerError, ReceiverTimeout
from tracerec.outfeed.batch import Batch, Batcher
from tracerec.outfeed.queue import DEFAULT_BLOCK_TIMEOUT, DEFAULT_MAX_BYTES, Emitter, RecordQueue

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Consumer", "add_consumer", "barrier", "high_water_bytes", "listening", "lost", "put", "remove_consumer"]

_log = logging.getLogger("tracerec")


class Consumer(Protocol):
    """Whoever is handed batches of records, on the receiver's thread."""

    def consume(self, batch: Batch) -> None:
        """Takes a batch. An exception is logged once, counted, and raised when the consumer is removed."""
        ...


class _Listener(NamedTuple):
    """A consumer, and the first record that it is to get: those queued before it came are not for it."""

    consumer: Consumer
    first_arrival: int


class _Failures:
    """What went wrong in one consumer."""

    def __init__(self, error: BaseException, tap: str) -> None:
        self.error = error
        self.tap = tap
        self.records = 0

    def to_error(self, consumer: Consumer) -> ConsumerError:
        message = (
            f"{type(consumer).__name__} failed on {self.records} records, first on one of tap {self.tap!r}: "
            f"{type(self.error).__name__}: {self.error}"
        )
        error = ConsumerError(message, tap=self.tap, failures=self.records)
        error.__cause__ = self.error
        return error


class _Hub:
    """A queue, its receiver thread, and the consumers it serves. Lives while there is a consumer."""

    def __init__(self, max_bytes: int, block_timeout: float | None) -> None:
        self.queue = RecordQueue(max_bytes, block_timeout)
        self.consumers: tuple[_Listener, ...] = ()
        self.failures: dict[int, _Failures] = {}
        self._batcher = Batcher()
        # A daemon: at exit, recordings are closed by atexit, which runs while daemon threads still live.
        self._thread = threading.Thread(target=self._run, name="tracerec-receiver", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.queue.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def is_receiver(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while (items := self.queue.take()) is not None:
            try:
                self._hand_out(items)
            finally:
                self.queue.done(items)

    def _hand_out(self, items: list[Any]) -> None:
        batch = self._batcher.batch(items)
        for listener in self.consumers:
            wanted = batch.since(listener.first_arrival)
            if not wanted.count:
                continue
            try:
                listener.consumer.consume(wanted)
            except Exception as error:  # noqa: BLE001 - whatever a consumer does, the receiver goes on
                self._note(listener.consumer, wanted, error)

    def _note(self, consumer: Consumer, batch: Batch, error: Exception) -> None:
        known = self.failures.get(id(consumer))
        if known is None:
            known = self.failures[id(consumer)] = _Failures(error, batch.groups[0].site.name)
            _log.error("%s failed; the computation goes on", type(consumer).__name__, exc_info=error)
        known.records += batch.count


_hub: _Hub | None = None
_lock = threading.Lock()


def put(emitter: Emitter, arrays: tuple[np.ndarray, ...], device: int | None, shard: int) -> None:
    """Enqueues one record for all consumers; does nothing when there are none. Never raises.

    Runs inside XLA's host callback, where an exception would end the user's computation.
    """
    try:
        if _hub is not None:
            _hub.queue.put(emitter, arrays, device, shard)
    except KeyboardInterrupt:
        # The signal came while the callback ran on the main thread: hand it on once the callback has returned.
        _thread.interrupt_main()
    except BaseException as error:  # noqa: BLE001 - see above
        lost(emitter.site.name, error)


def lost(tap: str, error: BaseException) -> None:
    """Counts a record that could not be enqueued; the first of each tap is logged. Never raises."""
    hub = _hub
    if hub is None:
        return
    if not hub.queue.dropped[tap]:
        _log.error("records of tap %r are lost; they are counted as dropped", tap, exc_info=error)
    hub.queue.dropped[tap] += 1


def listening() -> bool:
    """Returns whether any consumer would get a record now."""
    return _hub is not None


def add_consumer(
    consumer: Consumer,
    *,
    max_queue_bytes: int = DEFAULT_MAX_BYTES,
    block_timeout: float | None = DEFAULT_BLOCK_TIMEOUT,
) -> None:
    """Hands every record from now on to a consumer; starts the receiver for the first one.

    Args:
        consumer: gets batches on the receiver's thread.
        max_queue_bytes: the queue's bound; that of the first consumer holds.
        block_timeout: seconds that a full queue makes a computation wait; that of the first consumer holds.
    """
    global _hub  # noqa: PLW0603 - one outfeed a process
    with _lock:
        if _hub is None:
            _hub = _Hub(max_queue_bytes, block_timeout)
        _hub.consumers = (*_hub.consumers, _Listener(consumer, _hub.queue.next_arrival))


def remove_consumer(consumer: Consumer) -> dict[str, int]:
    """Takes a consumer off the outfeed; call `barrier` before. The receiver ends with its last consumer.

    Returns:
        How many records the queue dropped, by tap name.

    Raises:
        ConsumerError: the consumer had raised.
    """
    global _hub  # noqa: PLW0603
    with _lock:
        hub = _hub
        if hub is None:
            return {}
        hub.consumers = tuple(listener for listener in hub.consumers if listener.consumer is not consumer)
        if not hub.consumers:
            _hub = None
    if not hub.consumers:
        hub.end()
    failures = hub.failures.pop(id(consumer), None)
    if failures is not None:
        raise failures.to_error(consumer)
    return dict(hub.queue.dropped)


def barrier(timeout: float | None = None) -> None:
    """Waits until every record put before has been consumed.

    Args:
        timeout: seconds to wait at most; None for ever.

    Raises:
        ReceiverTimeout: the time was up.
        RuntimeError: called by a consumer, which would wait for itself.
    """
    hub = _hub
    if hub is None:
        return
    if hub.is_receiver():
        message = "barrier: called by a consumer, on the receiver's own thread; it would wait for itself"
        raise RuntimeError(message)
    pending = hub.queue.wait_consumed(timeout)
    if pending:
        message = f"{pending} records were not consumed within {timeout} s; a consumer is slow or stuck"
        raise ReceiverTimeout(message, pending=pending)


def high_water_bytes() -> int:
    """Returns the most bytes that waited in the queue at once."""
    return 0 if _hub is None else _hub.queue.high_water_bytes


def _forget_in_child() -> None:
    # After a fork the child has no receiver thread, and the parent's consumers are not its own.
    global _hub, _lock  # noqa: PLW0603
    _hub = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
