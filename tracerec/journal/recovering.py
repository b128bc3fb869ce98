"""What was found in the segments of a recording that goes on, kept for the next look: that reads what is new alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Self

from tracerec.journal.recovery import Recovery
from tracerec.protocol import frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.journal.access import SegmentBytes
    from tracerec.journal.placing import PlacedSegment
    from tracerec.journal.recovery import DamagedPlaces

__all__ = ["Kept", "recovered"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A segment that was read: which file it is, how long it was, and what it is among the others."""

    identity: tuple[int, int]
    size: int
    attempt: int
    last: bool

    @classmethod
    def of(cls, placed: PlacedSegment, segment: SegmentBytes) -> Self:
        return cls(segment.identity, segment.size, placed.attempt, placed.last)


@dataclasses.dataclass(slots=True)
class Kept:
    """What was found, and in which files. It can be taken once: whoever goes on changes it.

    Attributes:
        recovery: what was found; None once it was taken.
        places: the damaged places, as they were before streams were made of what was found.
        seen: the segments that were read.
        checksum: the last bytes that were read: the checksum of a frame.
    """

    recovery: Recovery | None
    places: list[DamagedPlaces]
    seen: list[_Seen]
    checksum: bytes

    @classmethod
    def of(cls, recovery: Recovery, placed: Sequence[PlacedSegment], segments: Sequence[SegmentBytes]) -> Self | None:
        """Returns what is to be kept; None where no segment grows, or nobody can tell where its next frame begins."""
        if not segments or not segments[-1].growing or recovery.stopped or not recovery.read_to:
            return None
        places = [each.copied() for each in recovery.places]
        seen = [_Seen.of(*each) for each in zip(placed, segments, strict=True)]
        return cls(recovery, places, seen, _checksum(segments[-1], recovery.read_to))


def recovered(placed: Sequence[PlacedSegment], segments: Sequence[SegmentBytes], kept: Kept | None = None) -> Recovery:
    """Returns what is in some segments.

    Args:
        placed: what is known of each segment.
        segments: the segments, in order.
        kept: what was found earlier. It is used where the segments are the same, and have only grown.
    """
    recovery = None if kept is None else _taken(kept, placed, segments)
    done = 0 if recovery is None else len(recovery.places)
    if recovery is None:
        recovery = Recovery()
    else:
        recovery.go_on(segments[done - 1], last=placed[done - 1].last)
    for each, segment in zip(placed[done:], segments[done:], strict=True):
        recovery.read(segment, last=each.last)
    return recovery


def _taken(kept: Kept, placed: Sequence[PlacedSegment], segments: Sequence[SegmentBytes]) -> Recovery | None:
    """Returns what was found earlier in the first of these segments; None where they are not as they were."""
    recovery, kept.recovery = kept.recovery, None
    if recovery is None or not segments:
        return None
    now = [_Seen.of(*each) for each in zip(placed, segments, strict=True)]
    # The oldest may have been sealed since.
    gone = next((n for n, seen in enumerate(kept.seen) if seen.identity == now[0].identity), None)
    if gone is None:
        return None
    *before, grown = kept.seen[gone:]
    count = len(before)
    if now[:count] != before or len(now) <= count:
        return None
    same = (now[count].identity, now[count].attempt) == (grown.identity, grown.attempt)
    # A full disk makes a recording cut its segment back, and write other frames there.
    if not same or now[count].size < recovery.read_to:
        return None
    if _checksum(segments[count], recovery.read_to) != kept.checksum:
        return None
    recovery.places = kept.places
    recovery.forget(gone)
    return recovery


def _checksum(segment: SegmentBytes, end: int) -> bytes:
    """Returns the checksum of the frame that ends at a place."""
    (data,) = segment.read([end - frames.CRC_BYTES], [end])
    return bytes(data)
