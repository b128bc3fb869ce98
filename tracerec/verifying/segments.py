"""The order of frames in one segment. Checksums are `tracerec.journal.recovery`'s; here only heads are looked at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracerec.errors import FrameError
from tracerec.journal import contents
from tracerec.journal.access import open_regular
from tracerec.journal.contents import SegmentHead
from tracerec.protocol import frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracerec.protocol.frames import FrameHead
    from tracerec.verifying.report import Findings

__all__ = ["SegmentOrder"]

_WINDOW = 4096
_MAX_TEXT = 1 << 20
"""A definition that is longer is not read here."""

HEADED_VERSION = (1, 2)
"""Since this version a segment begins by saying which one it is."""


class SegmentOrder:
    """Checks segments, one after the other.

    Args:
        findings: takes the faults.
        version: of the journal.
    """

    def __init__(self, findings: Findings, version: tuple[int, int]) -> None:
        self._findings, self._version = findings, version
        self._ended: int | None = None

    def check(self, path: Path) -> None:
        """Checks one segment; raises FileNotFoundError when it is gone, TraceFormatError when it may not be read."""
        fd = open_regular(path)
        try:
            self._check(fd, path.name)
        finally:
            os.close(fd)

    def _check(self, fd: int, name: str) -> None:
        size = os.fstat(fd).st_size
        defined: set[int] = set()
        reported: set[int] = set()
        ended = headed = False
        for head in _heads(fd, size):
            if head.start == 0:
                headed = self._first(fd, head, name)
            if ended:
                message = "there are frames behind the one that ends the attempt"
                self._findings.add("frame-order", name, message, offset=head.start)
                ended = False
            if head.consumer_id == frames.END:
                ended = True
            elif head.consumer_id == frames.DEFINE:
                site_id = _defined(fd, head)
                if site_id is not None:
                    defined.add(site_id)
            elif head.consumer_id not in defined | reported:
                reported.add(head.consumer_id)
                message = f"frames of site {head.consumer_id:#018x} are not behind its definition in this segment"
                self._findings.add("site-defined", name, message, offset=head.start)
        del headed

    def _first(self, fd: int, head: FrameHead, name: str) -> bool:
        """Checks what a segment begins with, and that its attempt had not ended."""
        text = _text(fd, head) if head.consumer_id == frames.DEFINE else None
        found = None
        try:
            found = None if text is None else contents.parse_definition(text)
        except ValueError:
            # recovery says what is wrong with it
            return False
        if isinstance(found, SegmentHead):
            if self._ended is not None and found.attempt <= self._ended:
                message = f"it is of attempt {found.attempt}, which an earlier segment ends"
                self._findings.add("frame-order", name, message, offset=0)
            return True
        if self._version >= HEADED_VERSION:
            self._findings.add("frame-order", name, "its first frame does not say which segment it is", offset=0)
        return False


def _heads(fd: int, size: int) -> Iterator[FrameHead]:
    """Yields the heads of the frames up to the first that is none; what is wrong there others say."""
    at = 0
    while at < size:
        view = memoryview(os.pread(fd, _WINDOW, at))
        try:
            if len(view) >= frames.HEADER_BYTES and (need := frames.head_bytes_at(view, 0)) > len(view):
                view = memoryview(os.pread(fd, need, at))
            head = frames.head_at(view, at, at)
        except FrameError:
            return
        if head.end > size:
            return
        yield head
        at = head.end


def _text(fd: int, head: FrameHead) -> bytes | None:
    nbytes = head.end - frames.CRC_BYTES - head.payload
    return os.pread(fd, nbytes, head.payload) if nbytes <= _MAX_TEXT else None


def _defined(fd: int, head: FrameHead) -> int | None:
    """Returns the id of the site that a frame defines."""
    text = _text(fd, head)
    try:
        found = None if text is None else contents.parse_definition(text)
    except ValueError:
        return None
    return None if found is None or isinstance(found, SegmentHead) else found.id
