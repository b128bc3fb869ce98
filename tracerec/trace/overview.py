"""What a trace holds, at a glance: the run, and each stream's shape, health and course. Reads no tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from tracerec.errors import TraceFormatError
from tracerec.model import FLAG_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracerec.formats.contract import StreamSource, TraceSource

__all__ = ["SCHEMA_VERSION", "overview"]

SCHEMA_VERSION = "1.2"
"""The version of ``schemas/inspect.schema.json``."""


def overview(source: TraceSource, *, raw: bool = False) -> dict[str, Any]:
    """Returns the run's information and one entry a stream, as JSON values by ``schemas/inspect.schema.json``.

    Args:
        source: the trace.
        raw: whether leaves of streams whose lanes may be invalid have their summaries, too, over all lanes.

    Numbers that JSON lacks (NaN and infinities, in a user's metadata) are the strings ``"nan"``, ``"inf"`` and
    ``"-inf"``. Times are ISO 8601 in UTC with nanoseconds.

    Raises:
        TraceFormatError: the trace says things of the run that no recording would.
    """
    try:
        run, streams = _run(source), [_stream(stream, raw=raw) for stream in source.streams]
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        # A form of recording checks what it needs itself; the rest is believed only here.
        message = f"{source.path} is no intact trace: what it says of the run or of a stream is wrong: {error!r}"
        raise TraceFormatError(message, path=source.path) from error
    return _strict(
        {
            "schema": SCHEMA_VERSION,
            "path": source.path,
            "bytes": _size(Path(source.path)),
            "format_version": list(source.info.format_version),
            "run": run,
            "streams": streams,
        }
    )


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


@runtime_checkable
class _KnowsSteps(Protocol):
    """A stream whose form keeps the range of its steps, so that the index table need not be read for it."""

    @property
    def steps(self) -> tuple[int, int] | None: ...


def _stream(stream: StreamSource, *, raw: bool) -> dict[str, Any]:
    site = stream.site
    shown = raw or not site.lanes_may_be_invalid
    steps = stream.steps if isinstance(stream, _KnowsSteps) else _step_range(stream)
    return {
        "tap": site.name,
        "transforms": [t.to_json() for t in site.transforms],
        "kwargs": dict(json.loads(site.kwargs)),
        "ordered": site.ordered,
        "lanes_may_be_invalid": site.lanes_may_be_invalid,
        "records": stream.records,
        "bytes": stream.nbytes,
        "steps": None if steps is None else {"first": steps[0], "last": steps[1]},
        "leaves": [
            leaf.to_json() | {"bytes": stream.leaf_nbytes(number), "summary": summary.to_json() if shown else None}
            for number, (leaf, summary) in enumerate(zip(site.leaves, stream.summaries(), strict=True))
        ],
    }


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
