"""Moments and spans of time as people write them, as nanoseconds since the Unix epoch in UTC."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from tracerec.errors import SelectionError

__all__ = ["ranges"]

Range = tuple[int, int]

_EVER = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ZONE = re.compile(r"(?<=\d)(?:Z|([+-])(\d\d):?(\d\d))$")
_NANOSECONDS = {
    "D": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1000,
    "ns": 1,
}


def ranges(wanted: Any) -> list[Range]:
    """Returns half-open ranges of nanoseconds that a selection by time means.

    Args:
        wanted: a `datetime.datetime`, a `numpy.datetime64`, an ISO 8601 text, which mean all times within their own
            precision (``"2026-05-01"`` is that day, ``"2026-05-01T12:30"`` that minute, a datetime its microsecond);
            a half-open slice of them; or an iterable of them. A time without a zone is UTC.

    Raises:
        SelectionError: it is none of these.

    Example:
        >>> ranges("1970-01-01T00:00:01"), ranges(slice("1970-01-01T01:00+01:00", None))[0][0]
        ([(1000000000, 2000000000)], 0)
    """
    if isinstance(wanted, slice):
        if wanted.step is not None:
            message = f"a slice of times has no step, not {wanted.step!r}"
            raise SelectionError(message)
        first = _EVER[0] if wanted.start is None else _span(wanted.start)[0]
        return [(first, _EVER[1] if wanted.stop is None else _span(wanted.stop)[0])]
    if isinstance(wanted, np.ndarray) or (isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes))):
        return [_span(each) for each in wanted]
    return [_span(wanted)]


def _span(time: Any) -> Range:
    """Returns the first nanosecond of a time, and the first behind it."""
    if isinstance(time, str):
        return _of_text(time)
    if hasattr(time, "to_datetime64"):
        # pandas.Timestamp: a datetime with nanoseconds
        return _of_numpy(time.to_datetime64(), time)
    if isinstance(time, dt.datetime):
        aware = time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
        start = (aware - _EPOCH) // dt.timedelta(microseconds=1) * 1000
        return start, start + 1000
    if isinstance(time, dt.date):
        return _of_numpy(np.datetime64(time, "D"), time)
    if isinstance(time, np.datetime64):
        return _of_numpy(time, time)
    raise _no_time(time)


def _of_text(text: str) -> Range:
    if not text[:1].isdecimal():
        # numpy takes "now" and "NaT", too
        raise _no_time(text)
    zone = _ZONE.search(text) if "T" in text or " " in text else None
    try:
        time = np.datetime64(text[: zone.start()] if zone else text)
    except ValueError:
        raise _no_time(text) from None
    start, stop = _of_numpy(time, text)
    if zone is not None and zone[1]:
        ahead = (int(zone[2]) * 60 + int(zone[3])) * _NANOSECONDS["m"] * (1 if zone[1] == "+" else -1)
        return start - ahead, stop - ahead
    return start, stop


def _of_numpy(time: np.datetime64, given: Any) -> Range:
    if np.isnat(time):
        raise _no_time(given)
    unit, count = np.datetime_data(time.dtype)
    if unit in {"Y", "M", "W"}:
        # months differ in length
        behind = time + np.timedelta64(1, (unit, count))
        return _days(time), _days(behind)
    scale = _NANOSECONDS.get(unit)
    if scale is None:
        # a picosecond and less lies within one nanosecond
        start = int(time.astype("datetime64[ns]").astype(np.int64))
        return start, start + 1
    # in Python's integers, since numpy's nanoseconds overflow outside the years 1678 to 2262
    start = int(time.astype(np.int64)) * count * scale
    return start, start + count * scale


def _days(time: np.datetime64) -> int:
    return int(time.astype("datetime64[D]").astype(np.int64)) * _NANOSECONDS["D"]


def _no_time(given: Any) -> SelectionError:
    message = (
        f"a time is a datetime, a numpy.datetime64, an ISO 8601 text such as '2026-05-01T12:30', or a slice of them, "
        f"not {given!r}"
    )
    return SelectionError(message)
