"""Following one segment while it is written: only what is new is read, and a frame's rest is waited for.

A recording whose disk is full cuts its segment back. Bytes read before that may then be stale, also those of whole
frames. That shows as a shorter file, or as bytes that make no frame: those are read again before they count as damage.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import FrameError, TraceError
from tracerec.journal import contents
from tracerec.journal.access import open_regular
from tracerec.journal.recovery import Damage
from tracerec.model import INDEX_DTYPE
from tracerec.protocol import frames
from tracerec.protocol.stream import FrameStream

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.protocol.frames import Frame

__all__ = ["SegmentFollower"]

_HEAD_BYTES = 1024


class SegmentFollower:
    """A segment, read from where the last read ended.

    The file stays open, so that it can be read to its end after it was sealed or deleted.

    Args:
        path: the segment.
        max_frame_bytes: a frame that says it is longer is taken for damage.

    Attributes:
        damage: the places that are no frames, so far.

    Raises:
        FileNotFoundError: it is gone.
        TraceFormatError: it cannot be read.
    """

    def __init__(self, path: Path, max_frame_bytes: int) -> None:
        self.damage: list[Damage] = []
        self._path = path
        self._max_frame_bytes = max_frame_bytes
        self._fd = open_regular(path)
        self._newest_arrival = -1
        self._end_given = False
        # Where it was read again, since there was no frame: once is enough.
        self._doubted = -1
        self._refreshed = -1
        self._restart(0)

    @property
    def size(self) -> int:
        """The length of the file now."""
        return os.fstat(self._fd).st_size

    @property
    def is_behind(self) -> bool:
        """Whether there are bytes that were not read."""
        return self.size != self._read_to

    def read(self, limit: int) -> tuple[list[tuple[int, Frame]], int]:
        """Reads what is new.

        Args:
            limit: how many bytes to read at most.

        Returns:
            The frames that are whole now, each with its place in the segment, and how many bytes were read. The frames
            are views of memory that is shared: copy what is to be kept.

        Raises:
            TraceError: the file cannot be read.
        """
        size = self.size
        if size < self._read_to:
            self._restart(self._found_again(size))
        left_over = self._read_to > self._whole_to
        try:
            data = os.pread(self._fd, max(0, min(limit, size - self._read_to)), self._read_to)
        except OSError as error:
            message = f"{self._path}: cannot be read: {error.strerror or error}"
            raise TraceError(message, path=str(self._path.parent)) from error
        before = self._stream.counts.corrupt
        found = self._stream.feed(data)
        self._read_to += len(data)
        if self._stream.counts.corrupt > before:
            again = self._found_again(size)
            if again != self._doubted and (left_over or again != self._whole_to):
                self._doubted = again
                self._restart(again)
                return [], len(data)
        return self._taken(found), len(data)

    def refresh(self) -> bool:
        """Has bytes that make no whole frame read again, in case they are stale; returns False when that was done."""
        if self._read_to in (self._whole_to, self._refreshed):
            return False
        self._refreshed = self._read_to
        self._restart(self._found_again(self.size))
        return True

    def torn(self) -> Damage | None:
        """Returns the end of the segment that makes no whole frame, as the place that it is if nothing more comes."""
        nbytes = self._read_to - self._whole_to
        if not nbytes:
            return None
        return Damage(
            self._path.name, self._whole_to, nbytes, f"the frame at byte {self._whole_to} is cut off", torn=True
        )

    def finish(self) -> list[tuple[int, Frame]]:
        """Ends the reading of a segment that is complete; returns frames behind one that never became whole."""
        found = self._taken(self._stream.close())
        if self._read_to > self._whole_to:
            self._add_damage(self._whole_to, self._read_to)
            self._whole_to = self._read_to
        return found

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _restart(self, position: int) -> None:
        """Reads on from a position, and forgets what was read behind it."""
        self._stream = FrameStream(max_frame_bytes=self._max_frame_bytes)
        self._base = self._read_to = self._whole_to = position

    def _taken(self, found: list[Frame]) -> list[tuple[int, Frame]]:
        placed: list[tuple[int, Frame]] = []
        tables: list[np.ndarray] = []
        for frame in found:
            start = self._base + frame.head.start
            if start > self._whole_to:
                self._add_damage(self._whole_to, start)
            self._whole_to = self._base + frame.end
            placed.append((start, frame))
            if frame.consumer_id == frames.END:
                self._end_given = True
            elif frame.consumer_id != frames.DEFINE and contents.count_rows(frame.head.specs):
                tables.append(frame.arrays[0])
        if tables:
            arrivals: np.ndarray = np.concatenate(tables).view(INDEX_DTYPE)["arrival"]
            self._newest_arrival = max(self._newest_arrival, int(arrivals.max()))
        return placed

    def _add_damage(self, start: int, stop: int) -> None:
        gap = self._stream.last_gap
        if gap is None or self._base + gap.start != start:
            self.damage.append(Damage(self._path.name, start, stop - start, f"no frame is at byte {start}"))
            return
        reason = gap.reason if not self._base else f"counted from byte {self._base}, {gap.reason}"
        self.damage.append(Damage(self._path.name, start, stop - start, reason, gap.torn))

    def _found_again(self, size: int) -> int:
        """Returns where to go on in a segment that may have been cut back and written again.

        That is at the first frame that was not given out, looking at heads alone. In one that was not cut back it is
        where the last one ended.
        """
        at, stop = 0, min(size, self._whole_to)
        while at < stop:
            try:
                head = self._head(at)
            except FrameError:
                return stop
            if self._is_new(head):
                return at
            at = head.end
        return at

    def _head(self, at: int) -> frames.FrameHead:
        view = memoryview(os.pread(self._fd, _HEAD_BYTES, at))
        need = frames.head_bytes_at(view, 0)
        if need > len(view):
            view = memoryview(os.pread(self._fd, need, at))
        return frames.head_at(view, at, at)

    def _is_new(self, head: frames.FrameHead) -> bool:
        if head.consumer_id == frames.END:
            return not self._end_given
        if head.consumer_id == frames.DEFINE or not contents.count_rows(head.specs):
            return False
        first = os.pread(self._fd, INDEX_DTYPE.itemsize, head.payload)
        if len(first) < INDEX_DTYPE.itemsize:
            return False
        return int(np.frombuffer(first, INDEX_DTYPE)["arrival"][0]) > self._newest_arrival
