"""A sound folder of parts and segments, made of a damaged one.

It has links to what is intact, and copies of what is damaged without the damage: parts with their intact records,
segments with their intact frames. The damaged folder is not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from tracerec.errors import SealingError, TraceError
from tracerec.formats.contract import RunInfo
from tracerec.journal import layout
from tracerec.journal.placing import CUT_OFF
from tracerec.journal.reading import JournalSource
from tracerec.salvaging.rows import SalvagedSource, repaired_info, salvaged
from tracerec.salvaging.segments import copy_intact, defined_sites, first_arrival, head_of
from tracerec.salvaging.writing import write
from tracerec.verifying.arrivals import Seen, check_arrivals
from tracerec.verifying.live import is_loss, open_sealed, report_damage
from tracerec.verifying.report import Findings
from tracerec.verifying.sealed import Before, attempts_of, check_opened
from tracerec.verifying.segments import SegmentOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tracerec.formats.contract import StreamSource
    from tracerec.salvaging.opened import Opened
    from tracerec.salvaging.orders import Order
    from tracerec.verifying.live import Folder
    from tracerec.verifying.streams import StreamCheck

__all__ = ["SoundFolder"]


class SoundFolder:
    """Makes a sound folder.

    Args:
        order: what is to be repaired.
        folder: the damaged folder.
        findings: takes the faults.

    Attributes:
        path: the folder that is made.
        info: the run.
        lost: records left out, by tap name.
        losses: sentences about what is lost of which not even the number of records is known.
        notes: sentences about what else should be known.
        seen: the arrival numbers in its parts.
        last: the arrival number of each site's last record in its parts, by the site's id.
        compressions: what the parts are compressed with, as far as that can be told.

    Raises:
        SealingError: it cannot be written.
    """

    def __init__(self, order: Order, folder: Folder, findings: Findings) -> None:
        self.path = order.work
        self.lost: Counter[str] = Counter()
        self.losses: list[str] = []
        self.notes: list[str] = []
        self.seen = Seen()
        self.last: dict[int, int] = {}
        self.compressions: list[str] = []
        self._order, self._folder, self._findings = order, folder, findings
        self._left_out: set[int] = set()
        try:
            self.path.mkdir()
            self.info = self._described()
            self._take_parts()
            self._take_segments()
        except OSError as error:
            message = f"{self.path} cannot be written: {error.strerror or error}"
            raise SealingError(message, path=str(order.target)) from error

    @property
    def compression(self) -> str | None:
        """The compression to use: that of the parts unless told otherwise."""
        if self._order.compression != "same":
            return self._order.compression
        return self.compressions[0] if self.compressions else "default"

    def _described(self) -> RunInfo:
        """Returns the run: by the manifest, else by a part, else by the head of a segment."""
        if self._folder.info is not None:
            return self._folder.info
        self.losses.append("the manifest was damaged: what was known of the run is lost, as far as no part says it")
        for part in self._folder.parts.values():
            with contextlib.suppress(TraceError), contextlib.closing(_Closing(part)) as opened:
                if opened.info is not None:
                    return opened.info
        for segment in self._folder.segments.values():
            with contextlib.suppress(TraceError):
                if (head := head_of(segment)) is not None:
                    return RunInfo(head.run_id, 0, clean=False)
        return RunInfo(uuid.uuid4().hex, 0, clean=False)

    def _take_parts(self) -> None:
        """Takes the parts, in the order of their records."""
        first = self._folder.journal.first_segment
        parts = {number: part for number, part in self._folder.parts.items() if number >= first}
        kept: list[_Kept] = []
        for number, arrival in self._in_order(parts):
            # Under another name first: a copy of an earlier part may stand at the place of a later one.
            target = self.path / f"kept-{number:06}{parts[number].suffix}"
            if self._take_part(number, parts[number], target):
                kept.append(_Kept(number, arrival, target))
        self._place(kept, first)

    def _in_order(self, parts: Mapping[int, Path]) -> list[tuple[int, int]]:
        """Returns the parts' numbers and first arrival numbers, by these; a part that has none stays in its place.

        Of two that begin with the same record one is a copy: an intact one comes first.
        """
        begins: dict[int, int] = {}
        before = 0
        for number, part in parts.items():
            begins[number] = before = _first_arrival(part, before)
        alike = Counter(begins.values())
        copies = {number for number, arrival in begins.items() if alike[arrival] > 1}
        damaged = {number for number in copies if _is_damaged(parts[number], self._findings.tick)}
        return sorted(begins.items(), key=lambda item: (item[1], item[0] in damaged, item[0]))

    def _place(self, kept: Sequence[_Kept], first: int) -> None:
        """Gives the parts numbers in the order of their records, also with regard to segments that have no part."""
        waiting = self._segments_before(first, {each.number for each in kept})
        place = first
        for at, each in enumerate(kept):
            # A segment that begins alike is the one of which the part was made.
            low = [number + (arrival < each.arrival) for number, arrival in waiting.items() if arrival <= each.arrival]
            place = max([place, *low])
            stop = min((number for number, arrival in waiting.items() if arrival > each.arrival), default=None)
            own = each.number <= min(later.number for later in kept[at:]) and (stop is None or each.number < stop)
            place = max(place, each.number) if own else place
            name = f"part-{each.number:06}{each.path.suffix}"
            if stop is not None and place >= stop:
                self.losses.append(f"{name}: its records come before those of segment {stop}, where no place is left")
                _remove(each.path)
                continue
            if place != each.number:
                self._findings.add("segment-sequence", name, f"its records come where those of part {place} should")
            each.path.rename(layout.part_path(self.path, place, each.path.suffix))
            place += 1

    def _segments_before(self, first: int, parts: set[int]) -> dict[int, int]:
        """Returns the first arrival numbers of the segments that have no part, though a later one has."""
        found: dict[int, int] = {}
        newest = max(parts, default=-1)
        for segment in layout.segments(self._folder.path):
            number = layout.segment_number(segment)
            if first <= number < newest and number not in parts:
                with contextlib.suppress(TraceError, OSError):
                    if (arrival := first_arrival(segment)) is not None:
                        found[number] = arrival
        return found

    def _take_part(self, number: int, part: Path, target: Path) -> bool:
        """Links a part that is intact; of another makes one with its intact records, if it has any."""
        found = Findings(self._findings.tick)
        try:
            opened = open_sealed(part, found, deep=True, part=True)
        except TraceError as error:
            self._findings.add("readable", part.name, str(error))
            self.losses.append(f"{part.name} cannot be read: its records are lost")
            self._left_out.add(number)
            return False
        try:
            checks = check_opened(opened, part.name, found, Before(dict(self.last)))
            self._findings.absorb(found)
            if opened.info is not None and opened.info.run_id != self.info.run_id:
                self._findings.add("part-manifest", part.name, f"it is of another run, {opened.info.run_id:.40}")
                self.losses.append(f"{part.name} is of another run, and is left out")
                self._left_out.add(number)
                return False
            if opened.compression is not None and opened.compression != "default":
                self.compressions.append(opened.compression)
            if found.counts:
                return self._salvage_part(number, part, target, opened, checks)
            _link(part, target)
            self._remember([check.opened.stream for check in checks])
        finally:
            opened.close()
        return True

    def _salvage_part(self, number: int, part: Path, target: Path, opened: Opened, checks: list[StreamCheck]) -> bool:
        found = salvaged(
            checks,
            keep_suspect=self._order.keep_suspect,
            tick=self._findings.tick,
            attempts=None if opened.unchecked is None else attempts_of(self.info, layout.MANIFEST, Findings()),
            seen=self.seen,
            last=self.last,
        )
        self.lost += found.lost + opened.lost
        self.losses += [_of(part, loss) for loss in opened.losses]
        self.notes += [_of(part, note) for note in found.notes]
        if opened.unchecked is not None:
            self.notes.append(_of(part, opened.unchecked))
        if not found.streams:
            # Its segment may still be there, and is then read instead.
            self._left_out.add(number)
            return False
        info = repaired_info(opened.info or dataclasses.replace(self.info, notes=()), found.streams, Counter(), [])
        write(SalvagedSource(str(part), info, found.streams), target, part.suffix, self.compression)
        self._remember(found.streams)
        return True

    def _remember(self, streams: Sequence[StreamSource]) -> None:
        """Notes what is in a part, so that nothing is taken twice."""
        check_arrivals(streams, "", Findings(self._findings.tick), seen=self.seen)
        for stream in streams:
            if stream.records:
                arrival = int(stream.index(stream.records - 1, stream.records)["arrival"][0])
                self.last[stream.site.id] = max(arrival, self.last.get(stream.site.id, -1))

    def _take_segments(self) -> None:
        """Takes the segments that have no part, and replaces those in which frames are damaged."""
        first = self._folder.journal.first_segment
        parts = layout.parts(self.path)
        for segment in layout.segments(self._folder.path):
            number = layout.segment_number(segment)
            if number < first or number in parts:
                continue
            if segment.is_symlink() or not segment.is_file():
                self._findings.add("stays-inside", segment.name, "it is not a regular file; its records are lost")
                self.losses.append(f"{segment.name} is not a regular file, and is left out")
                self._left_out.add(number)
                continue
            _link(segment, self.path / segment.name)
        layout.write_manifest(self.path, self.info, self._folder.journal)
        order = SegmentOrder(self._findings, self.info.format_version)
        for segment in layout.segments(self.path):
            order.check(segment)
        with contextlib.closing(JournalSource(self.path, skip=frozenset(parts))) as source:
            report_damage(source.damage, self._findings)
            self.notes += [str(damage) for damage in source.damage if damage.torn]
            damaged = {damage.file for damage in source.damage if damage.nbytes and not damage.torn}
            shortened = [damage for damage in source.damage if damage.reason == CUT_OFF]
        self._clean(damaged)
        with contextlib.closing(JournalSource(self.path, skip=frozenset(parts))) as source:
            # What is left are whole frames that fit nowhere, and whole files; of parts it was said already.
            known = {layout.segment_path(self.path, number).name for number in self._left_out}
            # Copies without what is damaged are shorter than the next segment says: that is no further loss.
            left = [*shortened, *(damage for damage in source.damage if damage.reason != CUT_OFF)]
            self.losses += [str(damage) for damage in left if is_loss(damage) and damage.file not in known]

    def _clean(self, damaged: set[str]) -> None:
        """Replaces segments by copies without what is damaged."""
        segments = layout.segments(self.path) if damaged else []
        sites = {key: site for path in segments for key, site in defined_sites(path).items()}
        attempts = [None if (head := head_of(path)) is None else head.attempt for path in segments]
        for number, path in enumerate(segments):
            if path.name in damaged:
                copy = path.with_name(f"{path.name}.tmp-copy")
                last = attempts[number + 1 :][:1] != attempts[number : number + 1]
                lost, notes = copy_intact(path, copy, sites, last=last)
                self.lost += lost
                self.losses += notes
                copy.replace(path)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A part that was taken.

    Attributes:
        number: the one it had.
        arrival: the arrival number of its first record.
        path: where it is until it has its place.
    """

    number: int
    arrival: int
    path: Path


class _Closing:
    """A part, opened to see what it says of the run."""

    def __init__(self, part: Path) -> None:
        self._opened = open_sealed(part, Findings(), part=True)
        self.info = self._opened.info

    def close(self) -> None:
        """Closes it."""
        self._opened.close()


def _first_arrival(part: Path, otherwise: int) -> int:
    """Returns the smallest arrival number in a part, by the first record of each stream."""
    firsts: list[int] = []
    with contextlib.suppress(TraceError):
        opened = open_sealed(part, Findings(), deep=True, part=True)
        try:
            for each in opened.streams:
                with contextlib.suppress(TraceError):
                    if each.stream.records:
                        firsts.append(int(each.stream.index(0, 1)["arrival"][0]))
        finally:
            opened.close()
    return min(firsts, default=otherwise)


def _is_damaged(part: Path, tick: Callable[[], None]) -> bool:
    found = Findings(tick)
    try:
        opened = open_sealed(part, found, deep=True, part=True)
        try:
            check_opened(opened, part.name, found, Before({}))
        finally:
            opened.close()
    except TraceError:
        return True
    return bool(found.counts)


def _remove(path: Path) -> None:
    """Deletes a part."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _of(part: Path, sentence: str) -> str:
    return sentence if part.name in sentence else f"{part.name}: {sentence}"


def _link(source: Path, target: Path) -> None:
    """Makes a file, or a folder of files, appear under another name; copies it where it cannot be linked."""
    if source.is_symlink() or not (source.is_file() or source.is_dir()):
        message = "it is not a regular file"
        raise OSError(message)
    if source.is_dir():
        target.mkdir()
        for file in source.iterdir():
            _link(file, target / file.name)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
