"""The process's outfeed: one queue, one receiver thread, and the consumers it serves.

The receiver starts with the first consumer and then stays. Consumers are recorders, which get batches, and functions,
which get one record at a time, in the order of arrival.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracerec.errors import ConsumerError, ReceiverTimeout
from tracerec.outfeed import signals
from tracerec.outfeed.batch import UNKNOWN_DEVICE, Batch, Batcher
from tracerec.outfeed.queue import Emitter, QueueOptions, RecordQueue

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np


__all__ = [
    "Consumer",
    "Farewell",
    "add_consumer",
    "barrier",
    "drain",
    "listening",
    "lost",
    "next_arrival",
    "put",
    "raise_at_next_tap",
    "raise_at_tap",
    "raise_failures",
    "remove_consumer",
    "start",
]

_log = logging.getLogger("tracerec")


class Consumer(Protocol):
    """Whoever is handed batches of records, on the receiver's thread."""

    def consume(self, batch: Batch) -> None:
        """Takes a batch. An exception is logged once, counted, and raised when the consumer is removed."""
        ...


class Farewell(NamedTuple):
    """What a consumer is told when it is removed.

    Attributes:
        dropped: how many records the queue dropped while it listened, by tap name.
        high_water_bytes: the most bytes that waited in the queue at once.
        error: what the consumer had raised, or None.
    """

    dropped: dict[str, int]
    high_water_bytes: int
    error: ConsumerError | None


class _Listener(NamedTuple):
    """A consumer, the first record that it is to get, and what had been dropped before it came."""

    consumer: Consumer
    first_arrival: int
    dropped_before: dict[str, int]


class _Failures:
    """What went wrong in one consumer."""

    def __init__(self, who: str, error: BaseException, tap: str) -> None:
        self.who = who
        self.error = error
        self.tap = tap
        self.records = 0
        self.devices: set[int] = set()

    def to_error(self) -> ConsumerError:
        message = (
            f"{self.who} failed on {_records(self.records)}, first on one of tap {self.tap!r}: {_text(self.error)}"
        )
        error = ConsumerError(message, tap=self.tap, failures=self.records)
        error.__cause__ = self.error
        return error


class _Hub:
    """The queue, its receiver thread, and the consumers."""

    def __init__(self) -> None:
        self.queue = RecordQueue()
        self.listeners: tuple[_Listener, ...] = ()
        self.failures: dict[Any, _Failures] = {}
        self.lock = threading.Lock()
        self._batcher = Batcher()
        # A daemon: at exit, recordings are closed by atexit, which runs while daemon threads still live.
        self._thread = threading.Thread(target=self._run, name="tracerec-receiver", daemon=True)
        self._thread.start()

    def is_receiver(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            while True:
                self._hand_out(self.queue.take())
                self.queue.done()
        except BaseException as error:
            # Not a consumer's exception: the receiver itself is broken or was killed. Nobody may wait for it.
            self.queue.fail(error)
            _log.critical("the receiver has ended; from now on records are dropped and counted", exc_info=error)
            raise

    def _hand_out(self, items: list[Any]) -> None:
        batch = self._batcher.batch(items)
        self._call_functions(batch)
        recorded = batch.recorded()
        for listener in self.listeners:
            wanted = recorded.since(listener.first_arrival)
            if not wanted.count:
                continue
            try:
                listener.consumer.consume(wanted)
            except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the receiver goes on
                self._note(id(listener.consumer), type(listener.consumer).__name__, error, wanted)

    def _call_functions(self, batch: Batch) -> None:
        for function, group in batch.function_calls():
            try:
                function(next(group.records()))
            except BaseException as error:  # noqa: BLE001 - whatever a user's function raises, the receiver goes on
                self._note(function, f"the function {function.name!r}", error, Batch([group], 1))

    def _note(self, key: Any, who: str, error: BaseException, batch: Batch) -> None:
        with self.lock:
            known = self.failures.get(key)
            if known is None:
                known = self.failures[key] = _Failures(who, error, batch.groups[0].site.name)
                _log.error("%s failed; the computation goes on", who, exc_info=error)
            known.records += batch.count
            known.devices.update(int(d) for group in batch.groups for d in group.rows["device"])


_hub: _Hub | None = None
_lock = threading.Lock()
_error_for_tap: Exception | None = None


def start() -> None:
    """Starts the receiver if there is none yet."""
    global _hub  # noqa: PLW0603 - one outfeed a process
    signals.install()
    with _lock:
        if _hub is None:
            _hub = _Hub()


def put(emitter: Emitter, arrays: tuple[np.ndarray, ...], device: int | None, shard: int) -> None:
    """Enqueues one record for all consumers; does nothing when there are none. Never raises.

    Runs inside XLA's host callback, where an exception would end the user's computation.
    """
    try:
        hub = _hub
        if hub is not None and (hub.listeners or emitter.function is not None):
            hub.queue.put(emitter, arrays, device, shard)
    except Exception as error:  # noqa: BLE001 - see above
        lost(emitter.site.name, error)


def lost(tap: str, error: BaseException) -> None:
    """Counts a record that could not be enqueued; the first of each tap is logged. Never raises."""
    hub = _hub
    if hub is not None and hub.queue.count_drop(tap) == 1:
        _log.error("records of tap %r are lost; they are counted as dropped", tap, exc_info=error)


def next_arrival() -> int:
    """Returns the arrival number of the next record."""
    hub = _hub
    return 0 if hub is None else hub.queue.next_arrival


def listening() -> bool:
    """Returns whether any recorder would get a record now."""
    return _hub is not None and bool(_hub.listeners)


def add_consumer(consumer: Consumer, options: QueueOptions | None = None) -> None:
    """Hands every record from now on to a consumer; starts the receiver for the first one.

    Args:
        consumer: gets batches on the receiver's thread.
        options: the queue's bounds; those of the first of several consumers hold.
    """
    start()
    hub = _hub
    assert hub is not None  # noqa: S101 - just started
    with hub.lock:
        if not hub.listeners:
            hub.queue.reset(options or QueueOptions())
        before = dict(hub.queue.dropped)
        hub.listeners = (*hub.listeners, _Listener(consumer, hub.queue.next_arrival, before))


def remove_consumer(consumer: Consumer) -> Farewell:
    """Takes a consumer off the outfeed; call `barrier` before.

    Returns:
        What was dropped and what the consumer had raised meanwhile.
    """
    hub = _hub
    if hub is None:
        return Farewell({}, 0, None)
    with hub.lock:
        gone = [listener for listener in hub.listeners if listener.consumer is consumer]
        hub.listeners = tuple(listener for listener in hub.listeners if listener.consumer is not consumer)
        failures = hub.failures.pop(id(consumer), None)
        high_water_bytes = hub.queue.high_water_bytes
        if not hub.listeners:
            # functions are not bound by what a recording asked for
            hub.queue.reset(QueueOptions())
    before = gone[0].dropped_before if gone else {}
    dropped = {tap: n - before.get(tap, 0) for tap, n in hub.queue.dropped.items() if n > before.get(tap, 0)}
    return Farewell(dropped, high_water_bytes, failures.to_error() if failures else None)


def barrier(timeout: float | None = None) -> None:
    """Waits until every record put before has been consumed.

    Args:
        timeout: seconds to wait at most; None for ever.

    Raises:
        ReceiverTimeout: the time was up, or the receiver has ended; the message says what is missing.
        ConsumerError: called by a consumer, which would wait for itself.
    """
    hub = _hub
    if hub is None:
        return
    if hub.is_receiver():
        message = "barrier: called by a consumer, on the receiver's own thread; it would wait for itself"
        raise ConsumerError(message)
    missing = hub.queue.wait_consumed(timeout)
    if not missing:
        return
    where = ", ".join(f"{n} from device {d}" for d, n in sorted(missing.items()))
    total = sum(missing.values())
    if hub.queue.failure is not None:
        message = f"the receiver has ended ({hub.queue.failure!r}); not consumed: {_records(total)}, {where}"
    else:
        message = f"not consumed within {timeout} s: {_records(total)}, {where}; a consumer is slow or stuck"
    raise ReceiverTimeout(message, pending=total)


def drain(stall_seconds: float) -> None:
    """Waits until every record put before has been consumed, as long as there is progress.

    Args:
        stall_seconds: how long to wait with no record consumed.

    Raises:
        ReceiverTimeout: nothing was consumed for that long, or the receiver has ended.
    """
    hub = _hub
    while hub is not None:
        before = hub.queue.consumed
        try:
            barrier(stall_seconds)
        except ReceiverTimeout:
            if hub.queue.consumed == before or hub.queue.failure is not None:
                raise
        else:
            return


def raise_at_next_tap(error: Exception) -> None:
    """Has the next eager tap, which can raise cleanly, raise an error."""
    global _error_for_tap  # noqa: PLW0603
    _error_for_tap = error


def raise_at_tap() -> None:
    """Raises the error that `raise_at_next_tap` was given, once."""
    global _error_for_tap
    error, _error_for_tap = _error_for_tap, None
    if error is not None:
        raise error


def raise_failures(devices: Collection[int] | None = None) -> None:
    """Raises what functions have raised since this was last asked.

    Args:
        devices: only for records from these devices; None for all.

    Raises:
        ConsumerError: of the function that failed first, or of records that were dropped; others are in its notes.
    """
    hub = _hub
    if hub is None:
        return
    with hub.lock:
        keys = [
            key
            for key, known in hub.failures.items()
            # the failures of recorders, which have a number for a key, are raised when they are removed
            if not isinstance(key, int) and (devices is None or known.devices & {UNKNOWN_DEVICE, *devices})
        ]
        errors = [hub.failures.pop(key).to_error() for key in keys]
    calls, hub.queue.dropped_calls = hub.queue.dropped_calls, Counter()
    if calls:
        message = f"dropped because the queue was full or broken: {_records(calls.total())}, {dict(calls)}"
        errors.append(ConsumerError(message, failures=calls.total()))
    if errors:
        for other in errors[1:]:
            errors[0].add_note(str(other))
        raise errors[0]


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error of the user's whose text is broken is told all the same
        return type(error).__name__


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _forget_in_child() -> None:
    # After a fork the child has no receiver thread, and the parent's consumers are not its own.
    global _hub, _lock  # noqa: PLW0603
    _hub = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
