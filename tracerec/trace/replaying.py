"""Replaying: consumers called with what was recorded, as if the program ran again. Free of JAX.

A function is called as `tracerec.id_tap` would have called it, by the same code (`tracerec.consuming.call`). Steps that
a later attempt has superseded are left out, and so are records whose ``where`` was False outside a vmap. A batch of
which no lane counts is there, as it is live: the function is told by ``where``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import consuming
from tracerec.errors import ConsumerError, SelectionError
from tracerec.trace import records, selection
from tracerec.trace.view import StreamView

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from tracerec.model import Record
    from tracerec.trace.order import Order

__all__ = ["Clock", "Consumers", "as_seen", "replay"]

Consumers = (
    Callable[..., Any]
    | Mapping[str, Callable[..., Any]]
    | Mapping["re.Pattern[str]", Callable[..., Any]]
    | Mapping["str | re.Pattern[str]", Callable[..., Any]]
)
"""One function for all taps, or one for each pattern."""


class Clock:
    """The time, and waiting for it; tests have one of their own."""

    def now(self) -> float:
        """Returns seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)


def replay(
    views: Sequence[StreamView],
    consumers: Consumers,
    *,
    where: str,
    order: Order = "program",
    realtime: bool | float = False,
    clock: Clock | None = None,
) -> int:
    """Calls consumers with the records of some streams; `tracerec.Trace.replay` says how.

    Args:
        views: the streams.
        consumers: one function, or a mapping of patterns to functions.
        where: the path of the trace, for messages.
        order: as `tracerec.trace.order.in_order`.
        realtime: whether to wait as long between records as the program took, or how many times as fast to go.
        clock: for tests.

    Returns:
        How many records consumers were called with.

    Raises:
        ConsumerError: a consumer raised.
        SelectionError: a pattern matches no tap, or ``order`` or ``realtime`` is none.
    """
    names = list(dict.fromkeys(view.tap for view in views))
    wanted = _by_tap(consumers, names, where)
    pace = _Pace(_speed(realtime), clock or Clock())
    chosen = [view for view in views if view.tap in wanted]
    raw = any(view.raw for view in chosen)
    count = 0
    for record in records.iterate(chosen, order):
        pace.wait(int(record.row["time"]))
        for function in wanted[record.tap]:
            _call(function, record, raw=raw)
        count += 1
    return count


def as_seen(view: StreamView) -> StreamView:
    """Returns a stream's view with the records that a live function is called with: batches without lanes, too."""
    if view.raw or not view.site.transforms or view.site.column("where") is None:
        return view
    whole = StreamView.of(view.source, raw=True, attempts=view.attempts, process=view.process, progress=view.progress)
    if view.attempts is None:
        return whole
    newest = [view.attempts.counts(whole.index(*block)) for block in whole.blocks(whole.site.record_nbytes)]
    seen = np.concatenate(newest) if newest else np.zeros(0, bool)
    seen[slice(None) if view.rows is None else view.rows] = True
    return whole.take(seen)


def _by_tap(consumers: Consumers, names: list[str], where: str) -> dict[str, list[Callable[..., Any]]]:
    """Returns each tap's consumers, in the order in which they were given."""
    if not isinstance(consumers, Mapping):
        _check(consumers)
        return {name: [consumers] for name in names}
    wanted: dict[str, list[Callable[..., Any]]] = {}
    for pattern, function in consumers.items():
        _check(function)
        for name in selection.names_like(pattern, names, where):
            wanted.setdefault(name, []).append(function)
    return wanted


def _check(function: Any) -> None:
    if not callable(function):
        message = f"replay: {function!r:.80} cannot be called; give a function, or a mapping of patterns to functions"
        raise SelectionError(message)


def _call(function: Callable[..., Any], record: Record, *, raw: bool) -> None:
    try:
        consuming.call(function, (record.value,), record, tap=record.tap, raw=raw)
    except Exception as error:
        step = "" if record.step is None else f"step {record.step}, "
        who = getattr(function, "__qualname__", type(function).__name__)
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        message = f"{who!r} failed on a record of tap {record.tap!r} ({step}arrival {record.arrival}): {text}"
        raise ConsumerError(message, tap=record.tap) from error


def _speed(realtime: Any) -> float | None:
    """Returns how many times as fast as the program to go; None: without waiting."""
    if isinstance(realtime, bool):
        return 1.0 if realtime else None
    if not isinstance(realtime, (int, float)) or not (realtime > 0 and math.isfinite(realtime)):
        message = f"realtime is True, False or a positive factor such as 10 for ten times as fast, not {realtime!r}"
        raise SelectionError(message)
    return float(realtime)


class _Pace:
    """Waits so that records come as far apart as they did."""

    def __init__(self, speed: float | None, clock: Clock) -> None:
        self._speed = speed
        self._clock = clock
        self._started: tuple[float, int] | None = None

    def wait(self, recorded: int) -> None:
        """Waits for the moment of a record, recorded at so many nanoseconds; in program order it may have passed."""
        if self._speed is None:
            return
        if self._started is None:
            self._started = self._clock.now(), recorded
        began, first = self._started
        left = began + (recorded - first) / 1e9 / self._speed - self._clock.now()
        if left > 0:
            self._clock.sleep(left)
