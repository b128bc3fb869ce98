"""Which file of a live folder is which segment: renamed, copied and missing ones are noticed.

A segment says its number in its first frame (since version 1.2); the file's name only repeats it.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import FrameError
from tracerec.journal import contents, layout
from tracerec.journal.access import open_regular
from tracerec.journal.recovery import Damage
from tracerec.protocol import frames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tracerec.journal.contents import SegmentHead

__all__ = ["CUT_OFF", "PlacedSegment", "Places", "place"]

# Room for the first frame; a head is the 128 bytes of a header and about 80 of JSON.
_HEAD_BYTES = 4096

CUT_OFF = "it was cut off"
"""Why bytes are missing of a segment that is shorter than the next one says."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment in its place.

    Attributes:
        number: which segment it is.
        path: its file.
        head: what it says of itself; None before version 1.2, or where its first frame is damaged.
        nbytes: the length of the file.
        attempt: which process's turn at the recording wrote it, from 0.
        last: no other of that attempt has anything behind it.
        newest: it is the last of all.
    """

    number: int
    path: Path
    head: SegmentHead | None
    nbytes: int
    attempt: int = 0
    last: bool = False
    newest: bool = False

    @property
    def said(self) -> int:
        """The number that it says, else that of its name."""
        return self.number if self.head is None else self.head.segment


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """The segments of a journal.

    Attributes:
        segments: those to be read, in order.
        damage: what is wrong with the names and numbers.
        sealed: numbers that have no segment, and are not to be skipped, but have a part.
        attempts: the attempts that have segments, also among those to skip.
    """

    segments: list[PlacedSegment]
    damage: list[Damage]
    sealed: frozenset[int]
    attempts: frozenset[int]


def place(folder: Path, run_id: str, skip: Collection[int], only: int | None = None) -> Places:
    """Returns the segments of a journal in order, without those to skip.

    Args:
        folder: the live folder.
        run_id: the run that they must be of.
        skip: numbers of segments that are not to be read.
        only: the number of the one that is to be read.

    Raises:
        FileNotFoundError: the folder is gone.
        TraceFormatError: a segment, or the manifest, cannot be read.
    """
    # in this order: a part is there before its segment goes, and the manifest disowns what is then retired
    found = _looked_at(layout.segments(folder))
    parts = layout.parts(folder)
    first = layout.read_journal(folder).first_segment
    ours = [segment for segment in found if segment.head is None or segment.head.run_id == run_id]
    placed, copies, moved = _by_number(ours, skip)
    there = sorted(number for number in {*placed, *skip} if number >= first)
    gaps = list(_gaps(first, there))
    sealed = frozenset(number for number in parts if number >= first and number not in {*placed, *skip})
    segments = _in_attempts([placed.get(number) for number in there])
    attempts = frozenset(segment.attempt for segment in segments)
    segments = [segment for segment in segments if segment.number not in skip]
    strangers = [segment for segment in found if segment not in ours]
    if only is not None:
        segments, gaps = [s for s in segments if s.number == only], [] if only in placed else [range(only, only + 1)]
        sealed &= {only}
        strangers, copies, moved = (
            [s for s in some if only in (s.said, layout.segment_number(s.path))] for some in (strangers, copies, moved)
        )
    damage = [*_misplaced(strangers, copies, moved), *_missing(gaps, sealed), *_shortened(segments, placed)]
    return Places(segments, damage, sealed, attempts)


def _looked_at(paths: Iterable[Path]) -> list[PlacedSegment]:
    found: list[PlacedSegment] = []
    for path in paths:
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            # sealed or retired since the folder was listed
            continue
        try:
            found.append(PlacedSegment(layout.segment_number(path), path, _head(fd), os.fstat(fd).st_size))
        finally:
            os.close(fd)
    return found


def _head(fd: int) -> SegmentHead | None:
    """Returns what a segment says of itself in its first frame; None where that is another frame, or damaged."""
    try:
        frame = frames.decode(os.pread(fd, _HEAD_BYTES, 0))
        if frame.consumer_id != frames.DEFINE:
            return None
        defined = contents.parse_definition(bytes(frame.arrays[0]))
    except (FrameError, ValueError, IndexError):
        # not whole, or no head: recovery reads the frame again, and says what is wrong with it
        return None
    return defined if isinstance(defined, contents.SegmentHead) else None


def _by_number(
    found: list[PlacedSegment], skip: Collection[int]
) -> tuple[dict[int, PlacedSegment], list[PlacedSegment], list[PlacedSegment]]:
    """Returns the segments by number, those that are copies, and those that have another's name."""
    placed: dict[int, PlacedSegment] = {}
    copies: list[PlacedSegment] = []
    moved: list[PlacedSegment] = []
    # those first that have the right name
    for segment in sorted(found, key=lambda s: (s.said != s.number, s.number)):
        said = segment.said
        if said in placed or (said != segment.number and said in skip):
            copies.append(segment)
            continue
        if said != segment.number:
            moved.append(segment)
        placed[said] = dataclasses.replace(segment, number=said)
    return placed, copies, moved


def _in_attempts(segments: list[PlacedSegment | None]) -> list[PlacedSegment]:
    """Returns the segments that are there with their attempts; None stands for one that was sealed."""
    attempt = 0
    known: list[PlacedSegment | None] = []
    for segment in segments:
        if segment is None:
            known.append(None)
            continue
        attempt = segment.head.attempt if segment.head else attempt
        known.append(dataclasses.replace(segment, attempt=attempt))
    done: list[PlacedSegment] = []
    # The attempt of what comes behind. None: nothing does; -1: what was sealed does, of which it is not known.
    behind: int | None = None
    for segment in reversed(known):
        if segment is None:
            behind = -1
            continue
        last = behind is None or behind not in (-1, segment.attempt)
        done.append(dataclasses.replace(segment, last=last, newest=not done and segment is known[-1]))
        # one that is empty may have been made by an attempt that died before it wrote
        behind = segment.attempt if segment.nbytes else behind
    return done[::-1]


def _gaps(first: int, there: Iterable[int]) -> Iterator[range]:
    """Yields the stretches of numbers, from the first on, that are not there."""
    for number in there:
        if number > first:
            yield range(first, number)
        first = number + 1


def _misplaced(
    strangers: Iterable[PlacedSegment], copies: Iterable[PlacedSegment], moved: Iterable[PlacedSegment]
) -> Iterator[Damage]:
    for segment in strangers:
        of = "" if segment.head is None else f", {segment.head.run_id:.40}"
        yield Damage(segment.path.name, 0, segment.nbytes, f"it is of another run{of}, and is left out", records=0)
    for segment in copies:
        reason = f"there is another segment {segment.said}, and this one is left out"
        yield Damage(segment.path.name, 0, segment.nbytes, reason, records=0)
    for segment in moved:
        reason = f"it is segment {segment.said} by its first frame, and is read as that"
        yield Damage(segment.path.name, 0, 0, reason, records=0)


def _missing(gaps: Iterable[range], sealed: frozenset[int]) -> Iterator[Damage]:
    """Yields one entry for each stretch of numbers that have neither a segment nor a part."""
    for gap in gaps:
        there = sorted(number for number in sealed if number in gap)
        for lost in _gaps(gap.start, [*there, gap.stop]):
            to = "" if len(lost) == 1 else f", and so are those up to {_name(lost[-1])}"
            yield Damage(_name(lost[0]), 0, 0, f"it is missing{to}")


def _shortened(segments: Iterable[PlacedSegment], placed: Mapping[int, PlacedSegment]) -> Iterator[Damage]:
    """Yields the segments that are shorter than the next one says."""
    for segment in segments:
        following = placed.get(segment.number + 1)
        if following is None or following.head is None:
            continue
        missing = (following.head.before or 0) - segment.nbytes
        if missing > 0:
            yield Damage(segment.path.name, segment.nbytes, missing, CUT_OFF)


def _name(number: int) -> str:
    return layout.segment_path(Path(), number).name
