"""What is at a path when a recording begins there: to be refused, deleted, or continued. Free of JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from typing import TYPE_CHECKING, Any

from tracerec.errors import RecordingExists
from tracerec.journal import layout
from tracerec.journal.lock import JournalLock, is_locked
from tracerec.journal.writing import Segment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracerec.formats.contract import RunInfo, TraceSource

__all__ = ["Previous", "attempt_of", "make_room", "open_piece"]

_BLOCK_ROWS = 1 << 16

_OF_ATTEMPT = ("started", "ended", "clean", "host", "pid", "command", "versions", "devices", "metadata")
"""What a run's information and that of an attempt have in common."""


@dataclasses.dataclass(frozen=True, slots=True)
class Previous:
    """The attempts before the one that begins.

    Attributes:
        run_id: theirs; None when there are none.
        attempts: as `tracerec.formats.contract.RunInfo` has them.
        first_arrival, first_call: numbers that are greater than those of all their records.
        first_segment, next_segment: of the journal.
        segments: what is there of it.
        retired: records deleted before, by tap name.
    """

    run_id: str | None = None
    attempts: tuple[Mapping[str, Any], ...] = ()
    first_arrival: int = 0
    first_call: int = 0
    first_segment: int = 0
    next_segment: int = 0
    segments: tuple[Segment, ...] = ()
    retired: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])

    def continued_by(self, info: RunInfo) -> RunInfo:
        """Returns the information of the run with one attempt more."""
        mine = attempt_of(info, self.first_arrival)
        return dataclasses.replace(
            info, run_id=self.run_id or info.run_id, attempts=(*self.attempts, mine), retired=self.retired
        )


def attempt_of(info: RunInfo, first_arrival: int) -> dict[str, Any]:
    """Returns what is known of an attempt, as JSON values."""
    known = info.to_json()
    return {"first_arrival": first_arrival, **{name: known[name] for name in _OF_ATTEMPT}}


def make_room(target: Path, folder: Path, mode: str, info: RunInfo) -> tuple[Previous, JournalLock]:
    """Makes the live folder, or takes it up again, and locks it.

    Args:
        target: the file that closing makes.
        folder: its live folder.
        mode: ``"x"``, ``"w"`` or ``"a"``.
        info: what is known of the attempt that begins.

    Returns:
        The attempts before, and the lock.

    Raises:
        RecordingExists: there is a recording, or one that runs.
        TracerecError: the recording that is to be continued cannot be read.
        OSError: the folder cannot be made.
    """
    _refuse_running(target, folder)
    if mode == "w":
        _refuse_foreign(target, folder)
        _delete(target)
        shutil.rmtree(folder, ignore_errors=True)
    if mode == "a":
        _refuse_merged(target)
        _remove_leftover(target, folder)
        if folder.exists():
            return _continue_journal(target, folder)
        if _is_parts(target):
            target.rename(folder)
            return _continue_journal(target, folder)
        if target.exists():
            return _continue_sealed(target, folder, info)
    for existing in (target, folder):
        if existing.exists():
            message = f"{existing} exists: choose another path, mode='a' to continue it, or mode='w' to delete it first"
            raise RecordingExists(message, path=str(target))
    folder.mkdir(parents=True)
    return Previous(), _lock(target, folder)


def open_piece(folder: Path, number: int) -> TraceSource:
    """Returns one segment of a journal, sealed or not, opened."""
    part = layout.parts(folder).get(number)
    if part is not None:
        return _opened(part)
    from tracerec.journal.reading import JournalSource

    return JournalSource(folder, only=number)


def _refuse_running(target: Path, folder: Path) -> None:
    if is_locked(folder):
        message = f"{target} is being recorded to: {folder} is in use; choose another path"
        raise RecordingExists(message, path=str(target))


def _refuse_merged(target: Path) -> None:
    """Raises RecordingExists for a merged recording: a process cannot go on with the numbers of several."""
    if not target.exists():
        return
    if target.is_dir():
        from tracerec.formats.arrow.processes import is_merged

        merged = is_merged(target)
    else:
        from tracerec.formats.hdf5.processes import listed_processes

        merged = listed_processes(target) is not None
    if merged:
        message = f"{target} is merged of several processes and cannot be continued; choose another path"
        raise RecordingExists(message, path=str(target))


def _refuse_foreign(target: Path, folder: Path) -> None:
    if folder.is_dir() and not (folder / layout.MANIFEST).is_file() and not _only_ours(folder):
        message = (
            f"{folder} is no recording: it has other files and no {layout.MANIFEST}; "
            "move it away or choose another path"
        )
        raise RecordingExists(message, path=str(target))


def _only_ours(folder: Path) -> bool:
    """Returns whether all that is in a folder are files that a journal has, which was being deleted."""
    ours = {path.name for path in (*layout.segments(folder), *layout.parts(folder).values())}
    ours |= {"lock", "ballast", "control.json", layout.MANIFEST + ".tmp"}
    return all(entry.name in ours or ".tmp-" in entry.name for entry in folder.iterdir())


def _lock(target: Path, folder: Path) -> JournalLock:
    try:
        return JournalLock(folder)
    except BlockingIOError:
        message = f"{target} is being recorded to: {folder} is in use; choose another path"
        raise RecordingExists(message, path=str(target)) from None


def _delete(target: Path) -> None:
    """Deletes a sealed recording: a file, or a folder that is one."""
    from tracerec.formats.arrow.layout import is_trace
    from tracerec.formats.arrow.processes import is_merged

    if target.is_dir() and (is_trace(target) or _is_parts(target) or is_merged(target)):
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _is_parts(target: Path) -> bool:
    """Returns whether a recording is a folder of parts."""
    return target.is_dir() and (target / layout.MANIFEST).is_file()


def _remove_leftover(target: Path, folder: Path) -> None:
    """Removes a live folder that a process killed at a bad moment left beside the whole recording.

    It had sealed the recording and was deleting the journal, or had not yet moved the recording in.
    """
    if not (target.exists() and folder.is_dir()):
        return
    if (folder / layout.MANIFEST).is_file():
        with contextlib.closing(_opened(target)) as source:
            whole = source.info
        live = layout.read_manifest(folder)
        has_records = bool(layout.segments(folder) or layout.parts(folder))
        # An old copy of the recording may have been put beside a journal that holds more.
        if live.run_id != whole.run_id or (has_records and len(live.attempts) > max(1, len(whole.attempts))):
            message = f"{folder} has records that {target} does not have: move one of them away"
            raise RecordingExists(message, path=str(target))
    else:
        _refuse_foreign(target, folder)
    shutil.rmtree(folder)


def _continue_journal(target: Path, folder: Path) -> tuple[Previous, JournalLock]:
    """Takes up the journal of an attempt that was killed, or a folder of parts."""
    lock = _lock(target, folder)
    try:
        return _taken_up(folder), lock
    except BaseException:
        lock.forget()
        raise


def _taken_up(folder: Path) -> Previous:
    from tracerec.formats.live import open_live

    info, journal = layout.read_manifest(folder), layout.read_journal(folder)
    with contextlib.closing(open_live(folder, running=False)) as source:
        found = source.info
        previous = _after(source)
        torn = [damage for damage in source.damage if damage.torn]
    for damage in torn:
        # Bytes that are no whole frame; the next attempt's segments come behind this one.
        os.truncate(folder / damage.file, damage.offset)
    sizes = {layout.segment_number(path): path.stat().st_size for path in layout.segments(folder)}
    sizes |= {number: _size(path) for number, path in layout.parts(folder).items()}
    ended = dataclasses.replace(info, ended=found.ended, clean=found.clean)
    *before, last = _attempts_of(ended)
    if torn:
        last = {**last, "cut_bytes": sum(damage.nbytes for damage in torn)}
    return dataclasses.replace(
        previous,
        run_id=info.run_id,
        attempts=(*before, last),
        first_segment=journal.first_segment,
        next_segment=max(sizes, default=journal.first_segment - 1) + 1,
        segments=tuple(Segment(number, size) for number, size in sorted(sizes.items())),
        retired=info.retired,
    )


def _continue_sealed(target: Path, folder: Path, info: RunInfo) -> tuple[Previous, JournalLock]:
    """Makes a finished recording the first part of a journal."""
    with contextlib.closing(_opened(target)) as source:
        old = source.info
        previous = _after(source)
    previous = dataclasses.replace(
        previous,
        run_id=old.run_id,
        attempts=_attempts_of(old),
        next_segment=1,
        segments=(Segment(0, _size(target)),),
        retired=old.retired,
    )
    folder.mkdir()
    lock = _lock(target, folder)
    try:
        # In this order: a crash leaves the recording whole, with a live folder that holds nothing.
        layout.write_manifest(folder, previous.continued_by(info), layout.Journal(0, target.name))
        suffix = ".arrow" if target.is_dir() else ".h5"
        target.rename(layout.part_path(folder, 0, suffix))
    except BaseException:
        lock.forget()
        raise
    return previous, lock


def _attempts_of(info: RunInfo) -> tuple[Mapping[str, Any], ...]:
    """Returns the attempts of a run that is over: what is said of the run's end is said of the newest one's."""
    *before, last = info.attempts or (attempt_of(info, 0),)
    return (*before, {**last, "ended": info.ended, "clean": info.clean})


def _opened(target: Path) -> TraceSource:
    from tracerec.formats.arrow.layout import is_trace

    if target.is_dir() and is_trace(target):
        from tracerec.formats.arrow.reading import ArrowSource

        return ArrowSource(target)
    if target.is_dir():
        from tracerec.formats.live import open_live

        return open_live(target)
    from tracerec.formats.hdf5.reading import Hdf5Source

    return Hdf5Source(target)


def _after(source: TraceSource) -> Previous:
    """Returns the numbers that come after those of all records."""
    arrival = call = 0
    for stream in source.streams:
        for start in range(0, stream.records, _BLOCK_ROWS):
            rows = stream.index(start, min(start + _BLOCK_ROWS, stream.records))
            arrival = max(arrival, int(rows["arrival"].max()) + 1)
            call = max(call, int(rows["call"].max()) + 1)
    return Previous(first_arrival=arrival, first_call=call)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(entry.stat().st_size for entry in path.iterdir())
    return path.stat().st_size
