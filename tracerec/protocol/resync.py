"""Resynchronisation: the good frames of a stream of bytes, whatever was done to it.

Behind a bad frame the search is for the magic number, and for a frame there whose checksum is right. Two things need
care:

* Arrays may hold the bytes of frames, for example when somebody records a recording. A damaged frame whose header can
  be believed is therefore passed over whole. A header is believed when another stands where it says its frame
  ends, or when the stream ends there, and no intact frame lies across that place. Only frames that follow one another
  up to exactly that end are still taken out of it: then the header was damaged, and they are frames of the stream.
* Bytes made to look like headers could make the search check the same bytes over and over. All work that turns out
  to be in vain is counted, and when it exceeds `_WORK_PER_BYTE` bytes of checksum for each byte of the stream,
  the search leaves bytes out. It is thus linear in the length of the stream, for any input.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from tracerec.errors import FrameError
from tracerec.protocol import frames
from tracerec.protocol.frames import Frame

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tracerec.protocol.frames import FrameHead

__all__ = ["Gap", "Window", "walk"]

# What begins a frame, as far as single bytes show: the magic number, any consumer id, a metadata length of at most
# 2**20, and the first byte of a msgpack array.
_CANDIDATE = re.compile(rb"\x82\x08\0\0.{10}[\0-\x10]\0[\x90-\x9f\xdc\xdd]", re.DOTALL)
_CANDIDATE_BYTES = 17
_MAGIC_BYTES = 4

# Work is counted in bytes of checksum, at about 0.2 ns each. Looking at a header costs 3 us; metadata costs 15 ns a
# byte to parse, and up to 400 ns where it is refused late; an array costs 1.5 us.
_WORK_PER_BYTE = 64
_HEADER_WORK = 16 << 10
_METADATA_WORK = 128
_ARRAY_WORK = 8 << 10
# Honest damage costs a few checksums in vain. So many of the largest frame are free.
_FREE_FRAMES = 4
_FREE_WORK = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a stream that are no frame.

    Attributes:
        start: the position of the first byte.
        end: the position after the last byte.
        reason: what is wrong with the first frame that was expected here.
        torn: True when the stream ends before a frame does whose header is right; what is there was not damaged.
    """

    start: int
    end: int
    reason: str
    torn: bool = False


class Window:
    """The part of a stream that is in memory, and an account of the work done in vain on it.

    Positions count from the start of the stream.

    Attributes:
        view: the bytes in memory.
        base: the position of the first of them.
        keep: the first position that is still needed.
        need: the end of the bytes that are wanted before it is worth going on.
        final: True when no more bytes come.

    Args:
        data: the first bytes.
        max_frame_bytes: refuse longer frames; None where all bytes are there already.
        final: as the attribute.
    """

    def __init__(
        self, data: bytes | memoryview = b"", *, max_frame_bytes: int | None = None, final: bool = False
    ) -> None:
        self.view = memoryview(data)
        self.base = 0
        self.keep = 0
        self.need = frames.HEADER_BYTES
        self.final = final
        self._max_frame_bytes = max_frame_bytes
        largest = len(self.view) if max_frame_bytes is None else max_frame_bytes
        self._spent = -_FREE_WORK - _FREE_FRAMES * largest

    @property
    def end(self) -> int:
        """The position behind the last byte in memory."""
        return self.base + len(self.view)

    def extend(self, *pieces: bytes | bytearray | memoryview) -> None:
        """Adds bytes at the end, and lets go of those that are no longer needed."""
        drop = min(self.keep - self.base, len(self.view))
        self.base += drop
        parts = [part for part in (self.view[drop:], *pieces) if len(part)]
        alone = parts[0] if len(parts) == 1 else None
        # What is not bytes may change after the call, so it is copied.
        self.view = memoryview(alone if isinstance(alone, bytes) else b"".join(parts))

    def head(self, position: int) -> FrameHead:
        """Returns the head at a position; raises FrameError as `frames.head_at`, and for one that is too long."""
        need = position + frames.HEADER_BYTES
        if self.end < need and not self.final:
            self.need = need
            message = f"frame at byte {position}: the header is still to come"
            raise FrameError(message, torn=True)
        try:
            head = frames.head_at(self.view, position, self.base)
        except FrameError as error:
            if error.torn:
                self.need = position + frames.head_bytes_at(self.view, position - self.base)
                self.spend()
            else:
                self._spend_on_head(position)
            raise
        size = head.end - position
        if self._max_frame_bytes is not None and size > self._max_frame_bytes:
            self._spend_on_head(position)
            limit = self._max_frame_bytes
            message = f"frame at byte {position}: it has {size} bytes by its header, at most {limit} are allowed"
            raise FrameError(message)
        return head

    def check(self, head: FrameHead) -> Frame:
        """Returns the frame of a head; raises FrameError as `frames.check`."""
        try:
            return frames.check(self.view, head, self.base)
        except FrameError:
            self.spend(head.end - head.start + _ARRAY_WORK * len(head.specs))
            raise

    def find(self, position: int, end: int) -> int:
        """Returns the first position from one on where a frame may begin; -1 if there is none before ``end``.

        Positions are left out while more work was done in vain than the stream before them is worth.
        """
        position = max(position, -(-self._spent // _WORK_PER_BYTE))
        match = _CANDIDATE.search(self.view, position - self.base, max(end - self.base, 0))
        return -1 if match is None else self.base + match.start()

    def spend(self, work: int = 0) -> None:
        """Counts work done in vain: a look at a header, and more if it was more."""
        self._spent += _HEADER_WORK + work

    def _spend_on_head(self, position: int) -> None:
        self.spend(_METADATA_WORK * frames.head_bytes_at(self.view, position - self.base))


def walk(window: Window, at: int) -> Iterator[Frame | Gap | None]:
    """Yields the frames and gaps from a position on; None when it needs more bytes or the end."""
    damage, start = None, at
    while True:
        window.keep = at
        found = yield from _read(window, at)
        if found is None:
            break
        if isinstance(found, _Damage):
            if damage is None:
                damage, start = found, at
            resume = at + 1 if found.end is None else (yield from _resume(window, at + 1, found.end))
            at = yield from _search(window, resume)
            continue
        if damage is not None:
            yield Gap(start, at, damage.reason)
            damage = None
        yield found
        at = found.end
    if damage is not None:
        yield Gap(start, window.end, damage.reason, torn=damage.torn)


@dataclasses.dataclass(slots=True)
class _Damage:
    """Why there is no frame; ``end`` is where it says that it ends, when all but its checksum is right."""

    reason: str
    torn: bool = False
    end: int | None = None


def _read(window: Window, at: int) -> Generator[None, None, Frame | _Damage | None]:
    """Returns what is at a position, once all of it has come; None at the end of the stream."""
    head = None
    while head is None:
        if window.final and at >= window.end:
            return None
        try:
            head = window.head(at)
        except FrameError as error:
            if window.final or not error.torn:
                return _Damage(str(error), torn=error.torn)
            yield None
    while head.end > window.end:
        if window.final:
            window.spend()
            return _Damage(f"frame at byte {at}: {head.end - window.end} bytes are cut off", torn=True)
        window.need = head.end
        yield None
    try:
        return window.check(head)
    except FrameError as error:
        return _Damage(str(error), end=head.end)


def _search(window: Window, at: int) -> Generator[None, None, int]:
    """Returns the first position from one on where a frame may begin, else the end of the stream."""
    while True:
        window.keep = at
        found = window.find(at, window.end)
        if found >= 0:
            return found
        if window.final:
            return window.end
        at = max(at, window.end - _CANDIDATE_BYTES + 1)
        window.need = at + _CANDIDATE_BYTES
        yield None


def _resume(window: Window, at: int, end: int) -> Generator[None, None, int]:
    """Returns where to go on behind the start of a damaged frame that says it ends at ``end``."""
    if not (yield from _is_boundary(window, end)):
        return at
    first = last = -1
    here = window.find(at, end)
    while here >= 0:
        found = yield from _read(window, here)
        if not isinstance(found, Frame):
            here = window.find(here + 1, end)
            continue
        if found.end > end:
            return at
        first = first if here == last else here
        last = found.end
        here = window.find(last, end)
    return first if last == end else end


def _is_boundary(window: Window, at: int) -> Generator[None, None, bool]:
    """Returns whether another frame's header stands at a position, or the stream ends there."""
    while True:
        if window.final and at >= window.end:
            return True
        try:
            window.head(at)
        except FrameError as error:
            if window.final or not error.torn:
                return error.torn and window.end - at >= _MAGIC_BYTES
            yield None
        else:
            return True
