"""From the intact frames of segments to streams: each site's frames in order, none twice."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec.protocol import frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.journal.access import SegmentBytes
    from tracerec.journal.placing import PlacedSegment
    from tracerec.journal.recovery import Recovery, SiteFrames
    from tracerec.model import Site

__all__ = ["StreamFrames", "assemble"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class StreamFrames:
    """Where the frames of a stream are; n of them.

    Attributes:
        segments: the number of the segment among those read, ``(n,)``.
        payloads: where the arrays begin in it, ``(n,)``.
        firsts: the number of the first record in the stream, ``(n + 1,)``; the last item is how many there are.
        nbytes: the bytes of all frames.
    """

    segments: np.ndarray
    payloads: np.ndarray
    firsts: np.ndarray
    nbytes: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """The frames of a site: the arrays of `SiteFrames`, and those of their layouts, ``(n,)`` each."""

    segments: np.ndarray
    starts: np.ndarray
    layouts: np.ndarray
    arrivals: np.ndarray
    records: np.ndarray
    nbytes: np.ndarray

    def take(self, which: np.ndarray) -> _Found:
        return _Found(*(getattr(self, field.name)[which] for field in dataclasses.fields(self)))


def assemble(
    recovery: Recovery, segments: Sequence[SegmentBytes], placed: Sequence[PlacedSegment]
) -> list[tuple[Site, StreamFrames]]:
    """Returns the streams, in first-seen order; adds what is wrong with their frames to ``recovery.places``.

    Args:
        recovery: what was found in the segments.
        segments: the segments, in order.
        placed: what is known of each.
    """
    found: dict[int, _Found] = {}
    for site_id, taken in recovery.frames.items():
        fitting = _fitting(recovery, site_id, _arrays(recovery, taken))
        fitting = _without_repeats(recovery, fitting, segments)
        if len(fitting.starts):
            found[site_id] = fitting
    ranks = _ranks(recovery, list(found.values()), placed)
    if ranks is not None:
        found = {key: value.take(np.argsort(ranks[value.segments], kind="stable")) for key, value in found.items()}
    else:
        ranks = np.arange(len(placed))
    order = sorted(found, key=lambda site_id: _first_seen(found[site_id], ranks))
    return [(recovery.sites[site_id], _stream(recovery, found[site_id])) for site_id in order]


def _arrays(recovery: Recovery, taken: SiteFrames) -> _Found:
    layouts = np.array(taken.layouts, np.int32)
    # only the layouts of this site, however many a journal has
    numbers, places = np.unique(layouts, return_inverse=True)
    used = [recovery.layouts[number] for number in numbers.tolist()]
    return _Found(
        segments=np.array(taken.segments, np.int32),
        starts=np.array(taken.starts, np.int64),
        layouts=layouts,
        arrivals=np.array(taken.arrivals, np.uint64),
        records=np.array([layout.records for layout in used], np.int64)[places],
        nbytes=np.array([layout.nbytes for layout in used], np.int64)[places],
    )


def _fitting(recovery: Recovery, site_id: int, found: _Found) -> _Found:
    """Returns the frames whose arrays are those of the site."""
    site = recovery.sites.get(site_id)
    if site is None:
        _report(recovery, found, f"frames of site {site_id:#018x}, which is not defined", lost=True)
        return found.take(np.zeros(len(found.starts), bool))
    bad = [n for n in np.unique(found.layouts).tolist() if not recovery.layouts[n].fits(site)]
    fits = ~np.isin(found.layouts, bad)
    _report(recovery, found.take(~fits), f"frames whose arrays are not those of tap {site.name!r}", lost=True)
    return found.take(fits)


def _without_repeats(recovery: Recovery, found: _Found, segments: Sequence[SegmentBytes]) -> _Found:
    """Returns the frames without those that are there twice, as they are in a copy of a segment.

    An arrival number is given once. Two different frames with the same one are both kept, and reported.
    """
    order = np.argsort(found.arrivals, kind="stable")
    sorted_arrivals = found.arrivals[order]
    same = np.flatnonzero(sorted_arrivals[1:] == sorted_arrivals[:-1])
    if not len(same):
        return found
    keep = np.ones(len(found.starts), bool)
    alike = np.ones(len(found.starts), bool)
    for earlier, later in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        equal = _bytes(found, earlier, segments) == _bytes(found, later, segments)
        keep[later] = not equal
        alike[later] = equal
    _report(recovery, found.take(~keep), "frames that repeat others, and are left out", lost=False)
    _report(recovery, found.take(~alike), "frames with arrival numbers that others have", lost=None)
    return found.take(keep)


def _bytes(found: _Found, number: int, segments: Sequence[SegmentBytes]) -> tuple[int, bytes]:
    """Returns the length of a frame and its checksum."""
    stop = int(found.starts[number] + found.nbytes[number])
    (crc,) = segments[int(found.segments[number])].read([stop - frames.CRC_BYTES], [stop])
    return int(found.nbytes[number]), bytes(crc)


def _report(recovery: Recovery, found: _Found, what: str, *, lost: bool | None) -> None:
    """Adds the frames to the damaged places, together for each segment; None: they are read all the same."""
    for segment in np.unique(found.segments).tolist():
        mine = found.take(found.segments == segment)
        nbytes = 0 if lost is None else int(mine.nbytes.sum())
        records = int(mine.records.sum()) if lost else 0
        recovery.places[segment].add(int(mine.starts[0]), nbytes, f"{len(mine.starts)} {what}", records)


def _ranks(recovery: Recovery, found: Sequence[_Found], placed: Sequence[PlacedSegment]) -> np.ndarray | None:
    """Returns the place of each segment in the order of arrival, where segments without heads are not in it; or None.

    Records of one batch are written site by site, so that only a segment that is older as a whole is out of order.
    """
    n = len(placed)
    low, high = np.full(n, np.iinfo(np.uint64).max, np.uint64), np.zeros(n, np.uint64)
    for frames_of_site in found:
        last = frames_of_site.arrivals + (frames_of_site.records - 1).astype(np.uint64)
        np.minimum.at(low, frames_of_site.segments, frames_of_site.arrivals)
        np.maximum.at(high, frames_of_site.segments, last)
    slots = np.array([i for i in range(n) if placed[i].head is None and low[i] <= high[i]], np.intp)
    if not (high[slots[1:]] < low[slots[:-1]]).any():
        return None
    ordered = slots[np.argsort(low[slots], kind="stable")]
    ranks = np.arange(n)
    ranks[ordered] = slots
    for segment in ordered[ordered != slots].tolist():
        recovery.places[segment].add(0, 0, "its records did not arrive in the order of the segments' names", 0)
    return ranks


def _first_seen(found: _Found, ranks: np.ndarray) -> tuple[int, int]:
    return int(ranks[found.segments[0]]), int(found.starts[0])


def _stream(recovery: Recovery, found: _Found) -> StreamFrames:
    firsts = np.zeros(len(found.starts) + 1, np.int64)
    np.cumsum(found.records, out=firsts[1:])
    numbers, places = np.unique(found.layouts, return_inverse=True)
    heads = np.array([recovery.layouts[number].payload for number in numbers.tolist()], np.int64)[places]
    return StreamFrames(found.segments, found.starts + heads, firsts, int(found.nbytes.sum()))
