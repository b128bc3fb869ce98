"""Appending frames to a journal: large ``writev`` calls, and nothing half-written left behind."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.journal.layout import segment_path
from tracerec.protocol import frames
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracerec.model import Site

__all__ = ["JournalWriter"]

SEGMENT_BYTES = 64 << 20
# Linux accepts at most IOV_MAX = 1024 buffers a call (limits.h).
_MAX_BUFFERS = 1024
_PENDING_BYTES = 1 << 20


class JournalWriter:
    """Writes a journal's segments. Not thread-safe: one thread writes.

    Args:
        folder: an existing live folder without segments.
        segment_bytes: a new segment begins once one is larger.

    Attributes:
        nbytes: bytes written.
        written: records written, by tap name.
        lost: records whose write failed, by tap name.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._number = 0
        self._fd = self._open_segment()
        self._offset = 0
        self._defined: set[int] = set()
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self._pending_records: Counter[str] = Counter()
        self.nbytes = 0
        self.written: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def append(self, site: Site, arrays: Sequence[np.ndarray]) -> None:
        """Appends one frame of records of a site, and the site's definition where the segment lacks it.

        Args:
            site: the site.
            arrays: the index rows as uint8 ``(n, 64)``, then each leaf and stored column as ``(n, *shape)``.

        Raises:
            OSError: the write failed; the segment ends with its last whole frame.
        """
        try:
            if self._offset + self._pending_bytes >= self._segment_bytes:
                self._rotate()
        except OSError:
            self.lost[site.name] += len(arrays[0])
            raise
        self._pending_records[site.name] += len(arrays[0])
        if site.id not in self._defined:
            text = canonical(site.to_json()).encode("ascii")
            self._add(frames.encode(frames.DEFINE, [np.frombuffer(text, np.uint8)]))
            self._defined.add(site.id)
        self._add(frames.encode(site.id, arrays))
        if self._pending_bytes >= _PENDING_BYTES or len(self._pending) >= _MAX_BUFFERS // 2:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending; it then survives the end of the process. Raises OSError as `append` does."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        records, self._pending_records = self._pending_records, Counter()
        start = self._offset
        try:
            for first in range(0, len(pending), _MAX_BUFFERS):
                self._write(pending[first : first + _MAX_BUFFERS])
        except OSError:
            os.ftruncate(self._fd, start)
            os.lseek(self._fd, start, os.SEEK_SET)
            self.nbytes -= self._offset - start
            self._offset = start
            # a definition that was cut off is written again
            self._defined.clear()
            self.lost += records
            raise
        self.written += records

    def end(self, summary: dict[str, Any]) -> None:
        """Appends the end frame with a JSON summary, and closes the journal."""
        text = json.dumps(summary).encode("ascii")
        self._add(frames.encode(frames.END, [np.frombuffer(text, np.uint8)]))
        try:
            self.flush()
            os.fsync(self._fd)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the file without an end frame: a reader will say that the run did not end cleanly."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add(self, buffers: list[Any]) -> None:
        self._pending.extend(buffers)
        self._pending_bytes += sum(map(_nbytes, buffers))

    def _write(self, buffers: list[Any]) -> None:
        views = [memoryview(b) for b in buffers]
        while views:
            written = os.writev(self._fd, views)
            self._offset += written
            self.nbytes += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if views and written:
                views[0] = views[0][written:]

    def _rotate(self) -> None:
        self.flush()
        os.close(self._fd)
        self._number += 1
        self._fd = self._open_segment()
        self._offset = 0
        self._defined.clear()

    def _open_segment(self) -> int:
        path = segment_path(self._folder, self._number)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _nbytes(buffer: Any) -> int:
    return memoryview(buffer).nbytes
