"""What became of a run, from its manifest and from the end frames of its attempts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracerec.formats.contract import RECORDING_NOTE
from tracerec.journal.lock import is_locked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from tracerec.formats.contract import RunInfo

__all__ = ["Found", "is_recording", "run_info"]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What was found in the segments of a journal.

    Attributes:
        ends: the summary in the end frame, by attempt, from 0.
        attempts: the attempts that have segments.
        records: how many records are read.
        notes: what is wrong.
    """

    ends: Mapping[int, Mapping[str, Any]]
    attempts: Collection[int]
    records: int
    notes: Sequence[str]


def is_recording(folder: Path, pid: int) -> bool:
    """Returns whether the process that began the newest attempt still holds the folder's lock.

    Another that holds it seals what that process left, or is about to continue it.

    Args:
        folder: the live folder.
        pid: the process that its manifest names.
    """
    if not is_locked(folder):
        return False
    try:
        holder = (folder / "lock").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        holder = ""
    return holder in ("", str(pid))


def run_info(manifest: RunInfo, found: Found, *, end: Mapping[str, Any] | None, running: bool) -> RunInfo:
    """Returns the run information of a journal.

    Args:
        manifest: what its manifest says; that describes the newest attempt.
        found: what was found.
        end: what the newest attempt's end frame should have said, where it could not be written.
        running: its process was still recording when the segments were read.
    """
    known = {*range(len(manifest.attempts)), *found.attempts} or {0}
    newest = max(known)
    ends = dict(found.ends)
    if end is not None:
        ends.setdefault(newest, end)
    last = ends.get(newest, {})
    earlier = _earlier(manifest.attempts, sorted(known - {newest}), ends)
    state = _state(ends.get(newest), running=running)
    dropped = _total(ends.values(), "dropped", "lost")
    # The manifest has the number over all attempts, as soon as there is one; an end frame repeats it.
    retired = Counter(manifest.retired)
    for summary in ends.values():
        retired |= Counter(summary.get("retired", {}))
    return dataclasses.replace(
        manifest,
        clean=newest in ends and not last.get("failure"),
        ended=last.get("ended"),
        records=found.records,
        dropped=dropped,
        over_budget=_total(ends.values(), "over_budget"),
        retired=dict(retired),
        high_water_bytes=max((e.get("high_water_bytes", 0) for e in ends.values()), default=0),
        attempts=_attempts(manifest.attempts, ends, newest),
        notes=(*state, *earlier, *found.notes, *_incomplete(dropped)),
    )


def _state(end: Mapping[str, Any] | None, *, running: bool) -> list[str]:
    if end is None:
        return [RECORDING_NOTE if running else "the run did not end cleanly"]
    return [f"recording stopped early: {end['failure']}"] if end.get("failure") else []


def _earlier(
    attempts: Sequence[Mapping[str, Any]], numbers: Sequence[int], ends: Mapping[int, Mapping[str, Any]]
) -> Iterable[str]:
    """Yields a note for each earlier attempt that did not end cleanly."""
    for number in numbers:
        end = ends.get(number)
        if end is not None and end.get("failure"):
            yield f"attempt {number} stopped early: {end['failure']}"
        elif end is None and not (number < len(attempts) and attempts[number].get("clean")):
            yield f"attempt {number} did not end cleanly"


def _attempts(
    attempts: Sequence[Mapping[str, Any]], ends: Mapping[int, Mapping[str, Any]], newest: int
) -> tuple[Mapping[str, Any], ...]:
    """Returns the attempts, those whose end is known with it; the newest without one did not end cleanly."""
    found: list[Mapping[str, Any]] = []
    for number, attempt in enumerate(attempts):
        if number in ends:
            end = ends[number]
            found.append({**attempt, "ended": end.get("ended"), "clean": not end.get("failure")})
        else:
            # the manifest says of an attempt how it ended only when the next one begins
            found.append({**attempt, "ended": None, "clean": False} if number == newest else attempt)
    return tuple(found)


def _incomplete(missing: Mapping[str, int]) -> list[str]:
    count = sum(missing.values())
    if not count:
        return []
    are = "1 record is missing: it was" if count == 1 else f"{count} records are missing: they were"
    return [f"{are} dropped or could not be written"]


def _total(ends: Iterable[Mapping[str, Any]], *names: str) -> dict[str, int]:
    """Returns the counts of these members of all end frames, added up by tap name."""
    total = Counter[str]()
    for end in ends:
        for name in names:
            total.update(end.get(name, {}))
    return dict(total)
