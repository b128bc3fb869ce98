"""What is intact in a journal's segments, and what is not.

Every frame's checksum is verified. The last segment of an attempt is where a kill shows: what stands behind its first
bad frame is left alone. In an older segment a bad frame is damage, and the search goes on behind it.
"""

from __future__ import annotations

import dataclasses
import struct
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from tracerec.errors import FrameError
from tracerec.journal import contents
from tracerec.protocol import frames
from tracerec.protocol.stream import Gap, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.journal.access import SegmentBytes
    from tracerec.model import Site

__all__ = ["Damage", "DamagedPlaces", "Layout", "Recovery", "SiteFrames"]

MAX_PLACES = 100
"""Places of damage listed for a segment; further ones are added up."""

# Layouts known by the bytes of their heads. A journal has one for each site and number of records in a frame.
_MAX_KNOWN = 1 << 16

_SHORT_METADATA = frames.HEADER_BYTES - 16
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """A place of a journal that could not be read as it was written.

    Attributes:
        file: the segment's name in the live folder.
        offset: where it begins.
        nbytes: how many bytes were not read; 0 where a whole file is missing or has another's name.
        reason: what is wrong.
        torn: it is what a kill leaves: the end of the last segment of an attempt. Everything else is damage.
        records: how many records were lost, as far as that can be known, else None.
    """

    file: str
    offset: int
    nbytes: int
    reason: str
    torn: bool = False
    records: int | None = None

    def __str__(self) -> str:
        if not self.nbytes:
            return f"{self.file}: {self.reason}"
        where = "at the end" if self.torn else f"from byte {self.offset} on"
        match self.records:
            case None:
                lost = "how many records they held is not known"
            case 0:
                lost = "no record was lost"
            case 1:
                lost = "1 record was lost"
            case _:
                lost = f"{self.records} records were lost"
        return f"{self.file}: {self.nbytes} bytes {where} were not read: {self.reason}; {lost}"


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """What frames with the same head have in common.

    Attributes:
        head: the bytes of the head.
        consumer_id: whom the frames are for.
        records: how many records each holds; None where its first array is no index table.
        payload: where the arrays begin, from the start of the frame.
        nbytes: the length of the frame.
    """

    head: bytes
    consumer_id: int
    records: int | None
    payload: int
    nbytes: int

    def fits(self, site: Site) -> bool:
        """Returns whether the arrays are those of a site."""
        return contents.specs_fit(site, frames.head_at(memoryview(self.head), 0).specs)


class SiteFrames:
    """The intact frames of one site, in the order they were found; four numbers each.

    Attributes:
        segments: the number of the segment among those read.
        starts: where the frame begins.
        layouts: the number of its layout.
        arrivals: the arrival number of its first record.
    """

    def __init__(self) -> None:
        self.segments = array("i")
        self.starts = array("q")
        self.layouts = array("i")
        self.arrivals = array("Q")

    def forget(self, count: int) -> None:
        """Forgets the frames of the first so many segments. The arrays stay the same ones."""
        numbers = np.array(self.segments, np.int32)
        kept = numbers >= count
        self.segments[:] = array("i", (numbers[kept] - np.int32(count)).tobytes())
        for values in (self.starts, self.layouts, self.arrivals):
            values[:] = array(values.typecode, np.array(values)[kept].tobytes())


class _Known:
    """A layout, and where frames of it go.

    Attributes:
        layout: the layout.
        number: its number; -1 until a frame of it was intact.
        ready: frames of it are records, and go to `segments`, `starts`, `layouts`, `arrivals`.
    """

    __slots__ = ("arrivals", "layout", "layouts", "number", "ready", "segments", "starts")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.number = -1
        self.ready = False

    def bind(self, number: int, found: SiteFrames) -> None:
        """Says where the frames go."""
        self.number = number
        self.segments, self.starts = found.segments.append, found.starts.append
        self.layouts, self.arrivals = found.layouts.append, found.arrivals.append
        self.ready = True


class Recovery:
    """Reads segments, one after the other, and keeps what was found.

    Attributes:
        sites: the sites defined, by id.
        frames: the frames of records, by site id, whether the site was defined or not.
        layouts: the layouts of those frames.
        ends: the number of a segment and the summary in it, for each end frame.
        places: the damaged places of each segment.
        stopped: whether the segment that was read last has a bad frame at which reading it ended.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.sites: dict[int, Site] = {}
        self.frames: dict[int, SiteFrames] = {}
        self.layouts: list[Layout] = []
        self.ends: list[tuple[int, dict[str, Any]]] = []
        self.places: list[DamagedPlaces] = []
        self._known: dict[bytes, _Known] = {}
        self._defined: set[bytes] = set()
        self._number = -1
        self._at = 0

    def read(self, segment: SegmentBytes, *, last: bool) -> None:
        """Reads a segment.

        Args:
            segment: the segment; its number is how many were read before.
            last: it is the last of its attempt, and ends at the first bad frame.
        """
        self._number += 1
        self._at = 0
        self.places.append(DamagedPlaces(segment.path.name))
        self.go_on(segment, last=last)

    @property
    def read_to(self) -> int:
        """Up to where the segment that was read last was read."""
        return self._at

    def go_on(self, segment: SegmentBytes, *, last: bool) -> None:
        """Reads what the segment that was read last has got since; arguments as `read`."""
        places = self.places[-1]
        try:
            self._take_all(segment, places)
        except FrameError as error:
            if not last:
                self._take_rest(segment, places)
            elif not (segment.growing and error.torn):
                # of a segment that is still written, the rest is to come
                self._leave_rest(segment, error, places)

    def forget(self, count: int) -> None:
        """Forgets what was found in the first so many segments; the next one has the number 0 then."""
        for found in self.frames.values():
            found.forget(count)
        self.ends = [(number - count, end) for number, end in self.ends if number >= count]
        del self.places[:count]
        self._number -= count

    def damage(self, segments: Sequence[SegmentBytes]) -> list[Damage]:
        """Returns all damaged places of the segments that were read, in order."""
        return [
            damage
            for segment, places in zip(segments, self.places, strict=True)
            for damage in places.listed(partial(self._count_lost, segment))
        ]

    def _count_lost(self, segment: SegmentBytes, damage: Damage) -> int | None:
        """Returns how many records a damaged place held, if frames of known sites fill it by their headers."""
        at, end = damage.offset, damage.offset + damage.nbytes
        lost, view, base = 0, memoryview(b""), at
        while at < end:
            if base + len(view) < min(at + frames.HEADER_BYTES + frames.MAX_METADATA_BYTES, segment.size):
                view, base = segment.window(at)
            try:
                head = frames.head_at(view, at, base)
            except FrameError:
                return None
            if head.consumer_id not in (frames.END, frames.DEFINE):
                site = self.sites.get(head.consumer_id)
                if site is None or not contents.specs_fit(site, head.specs):
                    return None
                lost += contents.count_rows(head.specs) or 0
            at = head.end
        return lost if damage.nbytes and end in (at, segment.size) else None

    def _take_all(self, segment: SegmentBytes, places: DamagedPlaces) -> None:
        """Takes the frames up to the end; raises FrameError at the first bad one, whose place is `_at`."""
        need = frames.HEADER_BYTES
        while self._at < segment.size:
            view, base = segment.window(self._at, need)
            if base + len(view) < self._at + need and base + len(view) >= segment.size:
                # the head or the arrays are cut off: this says which
                frames.peek(view, self._at - base)
            self._take_whole(view, base, places)
            if self._at < segment.size:
                need = self._need(view, base)

    def _need(self, view: memoryview, base: int) -> int:
        """Returns how long the frame is that is not whole in the view."""
        here = self._at - base
        if len(view) - here < (size := frames.head_bytes_at(view, here)):
            return size
        return frames.head_at(view, self._at, base).end - self._at

    def _take_whole(self, view: memoryview, base: int, places: DamagedPlaces) -> None:
        """Takes the frames that are whole in the view; raises FrameError as `_take_all`."""
        here, end = self._at - base, len(view)
        checksum = crc32c.crc32c
        known_heads = self._known
        number = self._number
        try:
            while end - here >= frames.HEADER_BYTES:
                (length,) = _U32(view, here + 12)
                size = frames.HEADER_BYTES
                if length > _SHORT_METADATA:
                    size = frames.head_bytes_at(view, here)
                    if end - here < size:
                        break
                head = bytes(view[here : here + size])
                known = known_heads.get(head) or self._learn(head, base + here)
                stop = here + known.layout.nbytes
                if stop > end:
                    break
                (expected,) = _U32(view, stop - 4)
                if (found := checksum(view[here : stop - 4])) != expected:
                    message = f"frame at byte {base + here}: checksum {found:#010x}, expected {expected:#010x}"
                    raise FrameError(message)
                if known.ready:
                    # the common case, without a call
                    known.segments(number)
                    known.starts(base + here)
                    known.layouts(known.number)
                    known.arrivals(_U64(view, here + size)[0])
                else:
                    self._take(known, view[here:stop], base + here, places)
                here = stop
        finally:
            self._at = base + here

    def _learn(self, head: bytes, start: int) -> _Known:
        """Returns what is to be known of frames with this head; raises FrameError where it is none."""
        parsed = frames.head_at(memoryview(head), start, start)
        consumer_id = parsed.consumer_id
        records = contents.count_rows(parsed.specs)
        layout = Layout(head, consumer_id, records, parsed.payload - start, parsed.end - start)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        known = self._known[head] = _Known(layout)
        return known

    def _take(self, known: _Known, frame: memoryview, start: int, places: DamagedPlaces) -> None:
        """Takes an intact frame."""
        layout = known.layout
        if layout.consumer_id in (frames.END, frames.DEFINE):
            self._take_text(layout, frame, start, places)
        elif layout.records is None:
            places.add(start, layout.nbytes, f"the frame of site {layout.consumer_id:#018x} there has no index table")
        elif layout.records:
            if not known.ready:
                known.bind(len(self.layouts), self.frames.setdefault(layout.consumer_id, SiteFrames()))
                self.layouts.append(layout)
            known.segments(self._number)
            known.starts(start)
            known.layouts(known.number)
            known.arrivals(_U64(frame, layout.payload)[0])

    def _take_text(self, layout: Layout, frame: memoryview, start: int, places: DamagedPlaces) -> None:
        text = bytes(frame[layout.payload : layout.nbytes - frames.CRC_BYTES])
        try:
            if layout.consumer_id == frames.END:
                self.ends.append((self._number, contents.parse_end(text)))
            elif text not in self._defined:
                defined = contents.parse_definition(text)
                if isinstance(defined, contents.SegmentHead):
                    # read before, where segments were placed
                    if start:
                        places.add(start, layout.nbytes, "there is the head of another segment", 0)
                    return
                self.sites[defined.id] = defined
                self._defined.add(text)
        except ValueError as error:
            places.add(start, layout.nbytes, f"the frame there is intact, but {error}", 0)

    def _take_rest(self, segment: SegmentBytes, places: DamagedPlaces) -> None:
        """Goes on behind a bad frame of an older segment."""
        view, _ = segment.window(0)
        for item in scan(view, self._at):
            if isinstance(item, Gap):
                # Of a segment that was cut off nobody knows what came behind.
                places.add(item.start, item.end - item.start, item.reason, countable=not item.torn)
                continue
            start, payload, end = item.head.start, item.head.payload, item.head.end
            head = bytes(view[start:payload])
            self._take(self._known.get(head) or self._learn(head, start), view[start:end], start, places)

    def _leave_rest(self, segment: SegmentBytes, error: FrameError, places: DamagedPlaces) -> None:
        """Leaves what is behind the first bad frame of the last segment, and counts what is intact there."""
        self.stopped = True
        intact = records = 0
        # a segment that is still written may be cut back, and is not mapped
        if not segment.growing:
            view, _ = segment.window(0)
            for item in scan(view, self._at):
                if not isinstance(item, Gap) and item.consumer_id not in (frames.END, frames.DEFINE):
                    intact += 1
                    records += contents.count_rows(item.head.specs) or 0
        reason = str(error)
        if intact:
            reason += f"; behind it are {intact} intact frames with {records} records"
        places.add(self._at, segment.size - self._at, reason, torn=not intact)


class DamagedPlaces:
    """Damaged places of one segment.

    Args:
        file: the segment's name.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._listed: list[Damage] = []
        self._uncountable: set[int] = set()
        self._more = self._more_bytes = 0

    def add(
        self,
        offset: int,
        nbytes: int,
        reason: str,
        records: int | None = None,
        *,
        torn: bool = False,
        countable: bool = True,
    ) -> None:
        """Adds a place; of too many only their number and their bytes are kept."""
        if not countable:
            self._uncountable.add(offset)
        if torn or len(self._listed) < MAX_PLACES:
            self._listed.append(Damage(self._file, offset, nbytes, reason, torn, records))
        else:
            self._more += 1
            self._more_bytes += nbytes

    def copied(self) -> DamagedPlaces:
        """Returns the same places, to which others can be added."""
        copied = DamagedPlaces(self._file)
        copied._listed, copied._uncountable = [*self._listed], {*self._uncountable}
        copied._more, copied._more_bytes = self._more, self._more_bytes
        return copied

    def listed(self, count: Callable[[Damage], int | None]) -> list[Damage]:
        """Returns the places in order; ``count`` says how many records one held of which nothing is known yet."""
        known = [d.records is not None or d.offset in self._uncountable for d in self._listed]
        listed = [
            damage if said else dataclasses.replace(damage, records=count(damage))
            for damage, said in zip(self._listed, known, strict=True)
        ]
        listed.sort(key=lambda damage: damage.offset)
        if self._more:
            behind = listed[-1].offset + listed[-1].nbytes
            listed.append(Damage(self._file, behind, self._more_bytes, f"{self._more} more places are damaged"))
        return listed
