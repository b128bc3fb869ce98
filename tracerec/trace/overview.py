"""What a trace holds, at a glance: the run, and each stream's shape, health and course. Reads no tensors."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import TraceFormatError
from tracerec.formats.joined import tap_name
from tracerec.keeping.reading import rows
from tracerec.model import FLAG_STEP, INDEX_DTYPE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracerec.formats.contract import RunInfo, StreamSource, TraceSource

__all__ = ["SCHEMA_VERSION", "overview"]

SCHEMA_VERSION = "1.4"
"""The version of ``schemas/inspect.schema.json``."""


def overview(source: TraceSource, *, raw: bool = False, taps: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the run's information and one entry a stream, as JSON values by ``schemas/inspect.schema.json``.

    Args:
        source: the trace.
        raw: whether leaves of streams whose lanes may be invalid have their summaries, too, over all lanes.
        taps: the names of the taps whose streams are wanted; None: all.

    Numbers that JSON lacks (NaN and infinities, in a user's metadata) are the strings ``"nan"``, ``"inf"`` and
    ``"-inf"``. Times are ISO 8601 in UTC with nanoseconds.

    Raises:
        TraceFormatError: the trace says things of the run that no recording would.
    """
    try:
        run = _strict(_run(source))
        wanted = [stream for stream in source.streams if taps is None or tap_name(stream) in taps]
        streams = [_stream(stream, raw=raw) for stream in wanted]
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        # A form of recording checks what it needs itself; the rest is believed only here.
        message = f"{source.path} is no intact trace: what it says of the run or of a stream is wrong: {error!r}"
        raise TraceFormatError(message, path=source.path) from error
    return {
        "schema": SCHEMA_VERSION,
        "path": source.path,
        "bytes": _size(Path(source.path)),
        "format_version": list(source.info.format_version),
        "run": run,
        "streams_in_all": len(source.streams),
        "streams": streams,
    }


def _run(source: TraceSource) -> dict[str, Any]:
    info = source.info
    last = _last_time(source.streams) if info.ended is None else None
    end = last if info.ended is None else info.ended
    return {
        "run_id": info.run_id,
        "started": _time(info.started),
        "ended": None if info.ended is None else _time(info.ended),
        "last_record": None if last is None else _time(last),
        "duration_s": None if end is None else (end - info.started) / 1e9,
        "records_per_s": _rate(info, end),
        "clean": info.clean,
        "state": info.state,
        "host": info.host,
        "pid": info.pid,
        "command": [str(word) for word in info.command],
        "versions": {str(name): str(version) for name, version in info.versions.items()},
        "devices": [dict(device) for device in info.devices],
        "metadata": dict(info.metadata),
        "records": info.records,
        "dropped": {str(tap): int(count) for tap, count in info.dropped.items()},
        "over_budget": {str(tap): int(count) for tap, count in info.over_budget.items()},
        "retired": {str(tap): int(count) for tap, count in info.retired.items()},
        "attempts": [_attempt(attempt) for attempt in info.attempts],
        "processes": [_process(process) for process in info.processes],
        "high_water_bytes": info.high_water_bytes,
        "notes": [str(note) for note in info.notes],
    }


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    ended = attempt.get("ended")
    return {
        "first_arrival": int(attempt["first_arrival"]),
        "started": _time(int(attempt["started"])),
        "ended": None if ended is None else _time(int(ended)),
        "clean": bool(attempt["clean"]),
        "host": str(attempt["host"]),
        "pid": int(attempt["pid"]),
        "command": [str(word) for word in attempt["command"]],
    }


def _process(info: RunInfo) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "host": info.host,
        "pid": info.pid,
        "started": _time(info.started),
        "ended": None if info.ended is None else _time(info.ended),
        "state": info.state,
        "records": info.records,
    }


def _rate(info: RunInfo, end: int | None) -> float | None:
    """Returns how many records a second there were, over the time of all attempts."""
    spans = [(attempt["started"], attempt.get("ended")) for attempt in info.attempts[:-1]]
    spans.append((info.attempts[-1]["started"] if info.attempts else info.started, end))
    known = [int(ended) - int(started) for started, ended in spans if ended is not None]
    seconds = sum(known) / 1e9 if len(known) == len(spans) else 0
    return info.records / seconds if seconds > 0 else None


def _stream(stream: StreamSource, *, raw: bool) -> dict[str, Any]:
    site = stream.site
    shown = raw or not site.lanes_may_be_invalid
    # A form that keeps the range of the steps need not be asked for its index table.
    steps: tuple[int, int] | None = stream.steps if hasattr(stream, "steps") else _step_range(stream)  # type: ignore[attr-defined]
    return {
        "tap": site.name,
        "transforms": [_strict(t.to_json()) for t in site.transforms],
        "kwargs": _strict(dict(json.loads(site.kwargs))),
        "ordered": site.ordered,
        "lanes_may_be_invalid": site.lanes_may_be_invalid,
        "records": stream.records,
        "bytes": stream.nbytes,
        "raw_bytes": stream.records * (site.record_nbytes + INDEX_DTYPE.itemsize),
        "steps": None if steps is None else {"first": steps[0], "last": steps[1]},
        "leaves": _leaves(stream, shown=shown),
    }


def _leaves(stream: StreamSource, *, shown: bool) -> list[dict[str, Any]]:
    """Returns an entry for each tapped leaf, and for each array that does not tell the statistics of one."""
    summaries = stream.summaries()
    entries: list[dict[str, Any]] = []
    for row in rows(stream.site):
        entry = dataclasses.replace(row.leaf, kept=None).to_json()
        if row.kinds:
            entry["kept"] = list(row.kept)
        entry["bytes"] = sum(map(stream.leaf_nbytes, row.places))
        summary = summaries[row.summary_place].to_json()
        if not row.zeros_known:
            summary["last"]["zeros"] = None
        entries.append(entry | {"summary": summary if shown else None})
    return entries


def _step_range(stream: StreamSource) -> tuple[int, int] | None:
    ranges: list[tuple[int, int]] = []
    for start in range(0, stream.records, _ROWS):
        rows = stream.index(start, min(start + _ROWS, stream.records))
        steps = rows["step"][(rows["flags"] & FLAG_STEP) != 0]
        if len(steps):
            ranges.append((int(steps.min()), int(steps.max())))
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def _last_time(streams: Sequence[StreamSource]) -> int | None:
    """Returns the time of the latest record; rows are in recorded order."""
    ends = [stream.index(stream.records - 1, stream.records) for stream in streams if stream.records]
    return max((int(rows["time"][0]) for rows in ends), default=None)


_ROWS = 1 << 16


def _time(nanoseconds: int) -> str:
    return f"{np.datetime64(nanoseconds, 'ns')}Z"


def _size(path: Path) -> int | None:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.iterdir())
        return path.stat().st_size
    except OSError:
        return None  # in memory, or gone meanwhile: a journal goes when its run closes


def _strict(value: Any) -> Any:
    """Returns JSON values with no number that RFC 8259 lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        items: Mapping[Any, Any] = value
        return {str(key): _strict(item) for key, item in items.items()}
    if isinstance(value, (list, tuple)):
        sequence: Sequence[Any] = value
        return [_strict(item) for item in sequence]
    return value
