"""Streams of frames that may be damaged or cut off: decoding piece by piece, or a whole buffer.

A frame is given out only when its checksum is right. `tracerec.protocol.resync` says how the next good frame is found.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tracerec.protocol.resync import Gap, Window, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.protocol.frames import Frame

__all__ = ["MAX_FRAME_BYTES", "Counts", "FrameStream", "Gap", "scan"]

MAX_FRAME_BYTES = 1 << 30
"""The longest frame that a `FrameStream` waits for unless told."""


@dataclasses.dataclass(slots=True)
class Counts:
    """What a `FrameStream` has seen. Once it is closed, all bytes fed are in frames, skipped or torn.

    Attributes:
        frames: whole, intact frames.
        corrupt: stretches of damage; frames that were next to each other make one.
        skipped_bytes: the bytes of all such stretches.
        torn: the bytes of a frame that the end of the stream cut off.
    """

    frames: int = 0
    corrupt: int = 0
    skipped_bytes: int = 0
    torn: int = 0


class FrameStream:
    """Decodes a stream of frames that arrives in pieces cut anywhere.

    It holds a few frames of the largest size at most, whatever the stream says.

    Args:
        max_frame_bytes: a frame that says it is longer is taken for damage. This bounds the memory, and how long a
            damaged size can keep the frames behind it waiting.

    Attributes:
        counts: what has been seen so far.
        last_gap: the newest stretch that is no frame, or None; its reason is for a message.

    Example:
        >>> import numpy as np
        >>> from tracerec.protocol import frames
        >>> one = b"".join(frames.encode(7, [np.arange(3)]))
        >>> stream = FrameStream()
        >>> [len(stream.feed(piece)) for piece in (one[:100], one[100:] + one + b"noise" + one, one[:99])]
        [0, 3, 0]
        >>> stream.close()
        []
        >>> stream.counts
        Counts(frames=3, corrupt=1, skipped_bytes=5, torn=99)
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.counts = Counts()
        self.last_gap: Gap | None = None
        self._window = Window(max_frame_bytes=max_frame_bytes)
        self._items = walk(self._window, 0)
        # Joined to the window only when there is enough to go on with, so that small pieces cost no more than large.
        self._waiting = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Takes the next bytes of the stream, and returns the frames that are now whole.

        Args:
            data: bytes of any number.

        Returns:
            Frames whose positions count from the first byte fed. Their arrays are read-only views of ``data``, or of a
            copy of it: keep copies of those that are to outlive many others.

        Raises:
            ValueError: the stream is closed.
        """
        window = self._window
        if window.final:
            message = "the stream of frames is closed"
            raise ValueError(message)
        if window.end + len(self._waiting) + len(data) < window.need:
            self._waiting += data
            return []
        return self._go_on(data)

    def close(self) -> list[Frame]:
        """Ends the stream: what is left is searched for frames, and the rest counted as torn or skipped.

        Returns:
            Frames found behind one that never became whole. Closing again returns none.
        """
        if self._window.final:
            return []
        self._window.final = True
        return self._go_on(b"")

    def _go_on(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        self._window.extend(self._waiting, data)
        self._waiting = bytearray()
        found: list[Frame] = []
        for item in self._items:
            if item is None:
                break
            if isinstance(item, Gap):
                self._count(item)
            else:
                found.append(item)
        self.counts.frames += len(found)
        return found

    def _count(self, gap: Gap) -> None:
        self.last_gap = gap
        if gap.torn:
            self.counts.torn += gap.end - gap.start
        else:
            self.counts.corrupt += 1
            self.counts.skipped_bytes += gap.end - gap.start


def scan(buffer: Any, offset: int = 0) -> Iterator[Frame | Gap]:
    """Yields all frames of a buffer that are intact, and what lies between them.

    Args:
        buffer: bytes, memoryview or mmap.
        offset: where to begin, as a rule at a frame.

    Yields:
        Frames and gaps in order, without holes: each begins where the one before ended. Arrays are read-only views of
        the buffer.

    Example:
        >>> import numpy as np
        >>> from tracerec.protocol import frames
        >>> one = b"".join(frames.encode(7, [np.arange(3)]))
        >>> for item in scan(one + b"noise" + one + one[:99]):
        ...     print(item if isinstance(item, Gap) else item.arrays)
        (array([0, 1, 2]),)
        Gap(start=156, end=161, reason='no frame at byte 156: magic number 1936289646, expected 2178', torn=False)
        (array([0, 1, 2]),)
        Gap(start=317, end=416, reason='frame at byte 317: the header is cut off', torn=True)
    """
    view = memoryview(buffer)
    window = Window(view, final=True)
    for item in walk(window, offset):
        # Nothing is waited for in a final window.
        if item is not None:
            yield item
