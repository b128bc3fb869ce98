"""What a recording says of its run, beyond what opening it checks: members that only some readers need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tracerec.formats.headers import JSON_ERRORS, parse_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracerec.formats.contract import RunInfo

__all__ = ["attempts_fault", "run_fault"]

_MOST = 1 << 63
_COUNTS = ("dropped", "retired", "over_budget")


def run_fault(info: RunInfo) -> str | None:
    """Returns what is wrong with the description of a run, its attempts left aside; None where nothing is."""
    times = {"started": info.started, "ended": info.ended}
    for name, time in times.items():
        if time is not None and not -_MOST <= time < _MOST:
            return f"{name} is {time}, which is no time"
    for name in _COUNTS:
        counts: Mapping[str, int] = getattr(info, name)
        wrong = {tap: count for tap, count in counts.items() if count < 0}
        if wrong:
            return f"{name} is {wrong!r:.80}"
    for name in ("records", "high_water_bytes", "pid"):
        if getattr(info, name) < 0:
            return f"{name} is {getattr(info, name)}"
    return None


def attempts_fault(info: RunInfo) -> str | None:
    """Returns what is wrong with the attempts of a run, their order left aside; None where nothing is."""
    for number, attempt in enumerate(info.attempts):
        first: Any = attempt.get("first_arrival")
        if type(first) is not int or not 0 <= first < 2 * _MOST:
            return f"attempt {number}: first_arrival is {first!r:.40}"
        missing = [name for name in _MEMBERS if name not in attempt]
        if missing:
            return f"attempt {number} lacks {', '.join(missing)}"
        try:
            text = json.dumps({**attempt, "run_id": info.run_id})
            fault = run_fault(parse_run(text, info.format_version))
        except JSON_ERRORS as error:
            return f"attempt {number}: {error}"
        if fault is not None:
            return f"attempt {number}: {fault}"
    return None


_MEMBERS = ("started", "ended", "clean", "host", "pid", "command", "versions", "devices", "metadata")
