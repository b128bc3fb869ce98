"""A folder of parts and segments, checked: of a run that goes on or was killed, or one that was closed as parts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import stat
from typing import TYPE_CHECKING, Any

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.headers import JSON_ERRORS, parse_run
from tracerec.journal import layout
from tracerec.journal.lock import is_locked
from tracerec.journal.reading import JournalSource
from tracerec.salvaging.arrow import open_arrow
from tracerec.salvaging.hdf5 import open_hdf5
from tracerec.salvaging.opened import OpenedStream, all_readable
from tracerec.verifying.arrivals import Seen
from tracerec.verifying.report import Findings
from tracerec.verifying.sealed import Before, attempts_of, check_opened, check_streams
from tracerec.verifying.segments import SegmentOrder

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.formats.contract import RunInfo
    from tracerec.journal.reading import Damage
    from tracerec.salvaging.opened import Opened

__all__ = ["Folder", "check_folder", "is_loss", "open_sealed", "read_folder", "report_damage"]


_MANIFEST_BYTES = 64 << 20
_SEALED = "were sealed while the journal was opened"
_UNCHECKED = "without the manifest the segments were not checked; repair reads them all the same"


@dataclasses.dataclass
class Folder:
    """What the names in a folder, and its manifest, say.

    Attributes:
        path: the folder.
        info: the run of the manifest; None where that cannot be read.
        journal: what the manifest says of the folder; what it says by default where that cannot be read.
        parts: sealed parts by number.
        segments: segments by number, those that have a part left out.
        running: whether a process is recording into it.
    """

    path: Path
    info: RunInfo | None
    journal: layout.Journal
    parts: dict[int, Path]
    segments: dict[int, Path]
    running: bool


def read_folder(path: Path, findings: Findings) -> Folder:
    """Returns what a folder says of itself; reports a manifest that says nothing.

    Raises:
        TraceNotFound: the folder is gone.
        TraceFormatError: it is of a newer major version, or may not be read.
    """
    # asked first: what a process that ends meanwhile wrote is then all there
    running = is_locked(path)
    info, journal = None, layout.Journal()
    try:
        _check_manifest(path)
        journal = layout.read_journal(path)
        info = _described(path)
    except TraceNotFound:
        if not path.is_dir():
            raise
        findings.add("readable", layout.MANIFEST, "it is missing: nothing says whose records these are")
        findings.note(_UNCHECKED)
    except TraceFormatError as error:
        if "is newer" in str(error):
            raise
        findings.add("run-described", layout.MANIFEST, _after(error, path / layout.MANIFEST))
        findings.note(_UNCHECKED)
    parts = layout.parts(path)
    segments = {layout.segment_number(segment): segment for segment in layout.segments(path)}
    kept = {number: segment for number, segment in segments.items() if number not in parts}
    return Folder(path, info, journal, parts, kept, running)


def check_folder(path: Path, form: str, findings: Findings) -> RunInfo | None:
    """Checks a folder; returns what is known of its run.

    Args:
        path: the folder.
        form: ``"live"`` or ``"parts"``.
        findings: takes the faults.

    Raises:
        TraceNotFound, TraceFormatError: as `read_folder`.
    """
    folder = read_folder(path, findings)
    before = Before(seen=Seen())
    for number, part in folder.parts.items():
        _check_part(folder, number, part, findings, before)
    info = _check_segments(folder, findings, before) if folder.segments or form == "live" else None
    if form == "live":
        return info or folder.info
    for note in () if folder.info is None else folder.info.notes:
        findings.note(note)
    attempts_of(folder.info, layout.MANIFEST, findings)
    _check_sequence(folder, findings)
    if folder.info is not None and folder.info.records != findings.records:
        message = f"the run says that it has {folder.info.records} records; there are {findings.records}"
        findings.add("counts-true", layout.MANIFEST, message)
    return folder.info


def open_sealed(path: Path, findings: Findings, *, deep: bool = False, part: bool = False) -> Opened:
    """Opens a sealed recording, or a part of one, as far as it can be; see `open_hdf5` and `open_arrow`."""
    if part and (path.is_symlink() or not (path.is_dir() or path.is_file())):
        # A link leads out of the recording, and opening a pipe waits for ever.
        message = f"{path} is not a regular file"
        raise TraceFormatError(message, path=str(path))
    if path.is_dir():
        return open_arrow(str(path), findings, prefix=f"{path.name}/" if part else "")
    return open_hdf5(str(path), findings, deep=deep)


def _check_manifest(path: Path) -> None:
    """Raises TraceFormatError for a manifest that would be waited for, or have no end."""
    with contextlib.suppress(FileNotFoundError):
        status = (path / layout.MANIFEST).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MANIFEST_BYTES:
            message = f"{path / layout.MANIFEST}: it is no regular file of at most {_MANIFEST_BYTES} bytes"
            raise TraceFormatError(message, path=str(path))


def _described(path: Path) -> RunInfo:
    """Returns the run of a manifest whose form is right; raises TraceFormatError where its run is not."""
    info = layout.read_manifest(path)
    version: Any = info.format_version
    numbers = [number for number in version if type(number) is int] if isinstance(version, tuple) else []
    try:
        return parse_run(json.dumps(info.to_json()), (numbers[0], numbers[1]))
    except (IndexError, ValueError, *JSON_ERRORS) as error:
        message = f"{path}: {' '.join(str(error).split())}"
        raise TraceFormatError(message, path=str(path)) from error


def _check_part(folder: Folder, number: int, part: Path, findings: Findings, before: Before) -> None:
    found = Findings(findings.tick)
    try:
        opened = open_sealed(part, found, part=True)
    except TraceFormatError as error:
        found.add("readable", part.name, f"{_after(error, folder.path)}: its records are lost")
    except TraceNotFound:
        found.add("readable", part.name, "the part is gone")
    else:
        try:
            _check_belongs(folder, part, opened, found)
            check_opened(opened, part.name, found, before)
        finally:
            opened.close()
    if not (found.counts and folder.running and _is_retired(folder, number, part)):
        findings.absorb(found)


def _is_retired(folder: Folder, number: int, part: Path) -> bool:
    """Returns whether a part of a run that goes on was deleted meanwhile: to keep the newest alone, or as it ended."""
    try:
        return number < layout.read_journal(folder.path).first_segment or not part.exists()
    except TraceError:
        return True


def _check_belongs(folder: Folder, part: Path, opened: Opened, findings: Findings) -> None:
    if folder.info is None or opened.info is None:
        return
    if opened.info.run_id != folder.info.run_id:
        message = f"it is of run {opened.info.run_id:.40}, the manifest is of {folder.info.run_id}"
        findings.add("part-manifest", part.name, message)
    target = folder.journal.target
    if target is not None and (part.suffix == ".arrow") != target.lower().endswith(".arrow"):
        findings.add("part-manifest", part.name, f"it is of another form than {target}, which it is a part of")


def _check_sequence(folder: Folder, findings: Findings) -> None:
    """Reports numbers that have neither a part nor a segment."""
    there = sorted({*folder.parts, *folder.segments})
    expected = folder.journal.first_segment
    for number in there:
        if number > expected:
            which = f"part {expected} is" if number == expected + 1 else f"parts {expected} to {number - 1} are"
            findings.add("segment-sequence", folder.path.name, f"{which} missing: the records there are lost")
        expected = max(expected, number + 1)


def _check_segments(folder: Folder, findings: Findings, before: Before) -> RunInfo | None:
    """Checks what is not sealed, and that no number is missing."""
    if folder.info is None:
        return None
    try:
        source = JournalSource(folder.path, skip=frozenset(folder.parts))
    except TraceNotFound:
        raise
    except TraceError as error:
        findings.add("readable", folder.path.name, _after(error, folder.path))
        return None
    try:
        report_damage(source.damage, findings)
        for note in source.info.notes:
            # Of faults it is said elsewhere; what was sealed meanwhile is read below.
            if note not in {str(damage) for damage in source.damage if not damage.torn} and _SEALED not in note:
                findings.note(note)
        order = SegmentOrder(findings, folder.info.format_version)
        for number in sorted(folder.segments):
            if number >= folder.journal.first_segment:
                _check_order(order, folder.segments[number], findings)
        if folder.segments and min(folder.segments) < max(folder.parts, default=-1):
            # Parts between them hold records of the same streams.
            before.last.clear()
        streams = [OpenedStream(stream, folder.path.name, all_readable, stored=False) for stream in source.streams]
        check_streams(streams, folder.path.name, findings, source.info, before)
    finally:
        source.close()
    for number in sorted(source.sealed):
        # The run goes on: they were sealed a moment ago.
        suffix = ".arrow" if str(folder.journal.target).lower().endswith(".arrow") else ".h5"
        before.last.clear()
        _check_part(folder, number, layout.part_path(folder.path, number, suffix), findings, before)
    return source.info


def _check_order(order: SegmentOrder, segment: Path, findings: Findings) -> None:
    try:
        findings.nbytes += segment.stat().st_size
        order.check(segment)
    except FileNotFoundError:
        # sealed or retired meanwhile; the journal was read as it was when it was opened
        return


_DAMAGE = (
    (re.compile("is missing|another segment |by its first frame|not in the order"), "segment-sequence"),
    (re.compile("of another run"), "part-manifest"),
    (re.compile("head of another segment"), "frame-order"),
    (re.compile("is not defined|defines a site"), "site-defined"),
    (re.compile("arrays are not those|no index table"), "frame-arrays"),
    (re.compile("repeat others|that others have"), "arrival-unique"),
    (re.compile("the frame there is intact, but"), "run-described"),
)
"""Invariants by what a journal's reader says of a damaged place; all else are bytes that are no frames."""


def is_loss(damage: Damage) -> bool:
    """Returns whether records were lost, or may have been, at a damaged place of a journal."""
    return not damage.torn and damage.records != 0


def report_damage(damage: tuple[Damage, ...], findings: Findings) -> None:
    """Reports the damaged places of a journal; the end that a kill tore is none."""
    for place in damage:
        if place.torn:
            continue
        invariant = next((name for pattern, name in _DAMAGE if pattern.search(place.reason)), "frame-checksum")
        lost = "" if not place.records else f"; {place.records} records are lost"
        where = {"offset": place.offset, "nbytes": place.nbytes} if place.nbytes else {}
        findings.add(invariant, place.file, f"{place.reason}{lost}", **where)


def _after(error: BaseException, path: Path) -> str:
    return " ".join(str(error).removeprefix(f"{path}").lstrip("/:").split())
