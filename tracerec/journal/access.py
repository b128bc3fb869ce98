"""Bytes of segments: mapped into memory, or, of the one that is still written, read.

A recording whose disk is full cuts its newest segment back, and a process that touches mapped bytes behind a file's
end is killed. So that segment alone is never mapped.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from tracerec.errors import TraceError, TraceFormatError
from tracerec.formats.resident import RESIDENT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Maps", "SegmentBytes", "open_regular"]

MAX_MAPS = 128
"""Segments mapped at once: each takes a file descriptor, and a process may have 1,024 as a rule."""

_WINDOW_BYTES = 4 << 20


def open_regular(path: Path) -> int:
    """Returns a descriptor of a file; raises FileNotFoundError, and TraceFormatError for what is no readable file."""
    try:
        # not blocking, since opening a pipe waits for ever
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise TraceFormatError(message, path=str(path.parent)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        message = f"{path.parent} is no intact recording: {path.name} is not a regular file"
        raise TraceFormatError(message, path=str(path.parent))
    return fd


class Maps:
    """Maps of segments, of which a bounded number is kept; the least recently used goes first."""

    def __init__(self) -> None:
        self._views: OrderedDict[Path, memoryview] | None = OrderedDict()
        self._lock = threading.Lock()

    def view(self, path: Path, size: int, fd: int | None = None) -> memoryview:
        """Returns the first ``size`` bytes of a file.

        Args:
            path: the file.
            size: how many bytes it has at least.
            fd: a descriptor of it; None: it is opened where it is not mapped.

        Raises:
            TraceError: the file is shorter now or gone, or the maps are closed.
        """
        with self._lock:
            if self._views is None:
                raise _closed(path)
            view = self._views.pop(path, None)
            if view is None:
                view = memoryview(_mapped(path, size, fd)) if size else memoryview(b"")
            self._views[path] = view
            while len(self._views) > MAX_MAPS:
                self._views.popitem(last=False)
            return view

    def close(self) -> None:
        """Lets go of all maps; each goes once the arrays read from it are gone."""
        with self._lock:
            self._views = None


class SegmentBytes:
    """The bytes that a segment had when it was opened.

    Args:
        path: the file.
        maps: where it is mapped.
        growing: it is still written: it is read instead, and kept open.

    Attributes:
        path: the file.
        growing: as given.
        size: how many bytes there are; less once `window` finds that there are less.
        identity: which file it is, whatever its name.

    Raises:
        FileNotFoundError: it is gone.
        TraceError: it cannot be read.
    """

    def __init__(self, path: Path, maps: Maps, *, growing: bool = False) -> None:
        self.path = path
        self.growing = growing
        self._maps = maps
        self._fd = open_regular(path)
        self._close = weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        self.size, self.identity = status.st_size, (status.st_dev, status.st_ino)
        if not growing:
            try:
                maps.view(path, self.size, self._fd)
            finally:
                self._close()

    def window(self, position: int, need: int = 1) -> tuple[memoryview, int]:
        """Returns bytes of the segment, and the position of the first of them.

        Args:
            position: one that is among them, if there are any from there on.
            need: how many bytes from there on are wanted at least, if there are so many.
        """
        if not self.growing:
            view = self._maps.view(self.path, self.size)
            # All of it is read as a rule, where it is looked through.
            _note(view, len(view))
            return view, 0
        stop = min(position + max(need, _WINDOW_BYTES), self.size)
        data = self._pread(position, stop)
        if len(data) < stop - position:
            # cut back since it was opened
            self.size = position + len(data)
        return memoryview(data), position

    def read(self, starts: Iterable[int], stops: Iterable[int]) -> list[Any]:
        """Returns the bytes of ranges, as buffers.

        Raises:
            TraceError: the file is shorter now or gone, or the trace is closed.
        """
        if self.growing:
            return [self._whole(start, stop) for start, stop in zip(starts, stops, strict=True)]
        view = self._maps.view(self.path, self.size)
        pieces = [view[start:stop] for start, stop in zip(starts, stops, strict=True)]
        _note(view, sum(map(len, pieces)))
        return pieces

    def close(self) -> None:
        """Closes the file, if it is open; reading then raises TraceError."""
        self._close()

    def _whole(self, start: int, stop: int) -> bytes:
        data = self._pread(start, stop)
        if len(data) < stop - start:
            raise _changed(self.path, "it was cut back, as a full disk makes a recording do")
        return data

    def _pread(self, start: int, stop: int) -> bytes:
        if not self._close.alive:
            raise _closed(self.path)
        parts: list[bytes] = []
        while start < stop:
            try:
                part = os.pread(self._fd, stop - start, start)
            except OSError as error:
                message = f"{self.path}: cannot be read: {error.strerror or error}"
                raise TraceError(message, path=str(self.path.parent)) from error
            if not part:
                break
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _note(view: memoryview, nbytes: int) -> None:
    """Notes that bytes of a mapping are read: the pages of others go back to the system."""
    if isinstance(view.obj, mmap.mmap):
        RESIDENT.read(view.obj, nbytes)


def _mapped(path: Path, size: int, fd: int | None) -> mmap.mmap:
    if fd is None:
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            raise _changed(path, "it was sealed or deleted") from None
        try:
            return _mapped(path, size, fd)
        finally:
            os.close(fd)
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise _changed(path, "it was cut back") from error
    except OSError as error:
        message = f"{path}: cannot be mapped into memory: {error.strerror or error}"
        raise TraceError(message, path=str(path.parent)) from error


def _changed(path: Path, how: str) -> TraceError:
    message = f"{path}: since the trace was opened {how}; open the trace again"
    return TraceError(message, path=str(path.parent))


def _closed(path: Path) -> TraceError:
    message = f"{path.parent}: the trace is closed"
    return TraceError(message, path=str(path.parent))
