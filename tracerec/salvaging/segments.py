"""Segments of a journal without what is damaged in them."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import FrameError
from tracerec.journal import contents
from tracerec.journal.access import Maps, SegmentBytes, open_regular
from tracerec.model import INDEX_DTYPE
from tracerec.protocol import frames
from tracerec.protocol.stream import Gap, scan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracerec.model import Site

__all__ = ["copy_intact", "defined_sites", "first_arrival", "head_of"]


def copy_intact(source: Path, target: Path, sites: Mapping[int, Site], *, last: bool) -> tuple[Counter[str], list[str]]:
    """Writes the intact frames of a segment, also those behind damage, to a new one.

    Args:
        source: the segment.
        target: the file to make.
        sites: the sites of the journal, by id, so that what is lost can be counted.
        last: it is the last of its attempt: nothing came behind a frame that is cut off there.

    Returns:
        Records lost by tap name, as far as they can be known, and sentences about what cannot.
    """
    maps = Maps()
    lost: Counter[str] = Counter()
    notes: list[str] = []
    try:
        segment = SegmentBytes(source, maps)
        view, _ = segment.window(0)
        with target.open("xb") as file:
            for item in scan(view):
                if not isinstance(item, Gap):
                    file.write(view[item.head.start : item.head.end])
                    continue
                nbytes = item.end - item.start
                found = _records_in(view, item, sites)
                if found is None:
                    notes.append(
                        f"{source.name}: {nbytes} bytes at {item.start} were damaged ({item.reason}); "
                        "how many records they held is not known"
                    )
                else:
                    lost += found
                if item.torn and not last:
                    notes.append(f"{source.name}: it was cut off at {item.end} bytes; what came behind is lost")
            file.flush()
            os.fsync(file.fileno())
        segment.close()
        del view
    finally:
        maps.close()
    return lost, notes


def defined_sites(path: Path) -> dict[int, Site]:
    """Returns the sites that the intact frames of a segment define, by id."""
    maps = Maps()
    found: dict[int, Site] = {}
    try:
        segment = SegmentBytes(path, maps)
        view, _ = segment.window(0)
        for item in scan(view):
            if isinstance(item, Gap) or item.consumer_id != frames.DEFINE or len(item.arrays) != 1:
                continue
            try:
                defined = contents.parse_definition(bytes(item.arrays[0]))
            except ValueError:
                # It is left where it is: whoever reads the journal says what is wrong with it.
                continue
            if not isinstance(defined, contents.SegmentHead):
                found[defined.id] = defined
    finally:
        maps.close()
    return found


def first_arrival(path: Path) -> int | None:
    """Returns the arrival number of the first record in the intact frames of a segment; None if there is none."""
    maps = Maps()
    try:
        view, _ = SegmentBytes(path, maps).window(0)
        for item in scan(view):
            if isinstance(item, Gap) or item.consumer_id in (frames.END, frames.DEFINE) or not item.arrays:
                continue
            table = bytes(item.arrays[0].ravel()[: INDEX_DTYPE.itemsize])
            if len(table) >= INDEX_DTYPE.itemsize:
                return int(np.frombuffer(table, INDEX_DTYPE, count=1)["arrival"][0])
    finally:
        maps.close()
    return None


def head_of(path: Path) -> contents.SegmentHead | None:
    """Returns what a segment says of itself in its first frame; None where it does not."""
    fd = open_regular(path)
    try:
        frame = frames.decode(os.pread(fd, _HEAD_BYTES, 0))
        defined = contents.parse_definition(bytes(frame.arrays[0])) if frame.consumer_id == frames.DEFINE else None
    except (FrameError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)
    return defined if isinstance(defined, contents.SegmentHead) else None


_HEAD_BYTES = 4096


def _records_in(view: memoryview, gap: Gap, sites: Mapping[int, Site]) -> Counter[str] | None:
    """Returns how many records of which taps a gap held, if frames fill it by their heads; else None."""
    lost: Counter[str] = Counter()
    at = gap.start
    while at < gap.end:
        try:
            head = frames.head_at(view, at)
        except FrameError:
            return None
        if head.consumer_id not in (frames.END, frames.DEFINE):
            site = sites.get(head.consumer_id)
            if site is None or not contents.specs_fit(site, head.specs):
                return None
            lost[site.name] += contents.count_rows(head.specs) or 0
        at = head.end
    return lost if at == gap.end or (at > len(view) and gap.end == len(view)) else None
