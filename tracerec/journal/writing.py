"""Appending frames to a journal: large ``writev`` calls, and nothing half-written left behind."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.journal.layout import Ballast, segment_path
from tracerec.model import FLAG_STEP, INDEX_DTYPE
from tracerec.protocol import frames
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracerec.model import Site

__all__ = ["JournalWriter", "Segment", "SegmentHead"]

SEGMENT_BYTES = 64 << 20
# Linux accepts at most IOV_MAX = 1024 buffers a call (limits.h).
_MAX_BUFFERS = 1024
# Several large frames at once: the checksum of one is ready when the next has been written.
_PENDING_BYTES = 4 << 20
# The checksum of a frame of so many bytes is computed while its bytes are written: a thread's turn costs about 30 us.
_LARGE_BYTES = 512 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentHead:
    """What every segment of one process's turn begins with, so that none is taken for another.

    Attributes:
        run_id: the run's.
        attempt: the number of the turn, from 0.
    """

    run_id: str
    attempt: int = 0

    def frame(self, number: int, before: int | None) -> list[Any]:
        """Returns the frame that begins segment ``number``, behind one of so many bytes."""
        said = {"segment": number, "run_id": self.run_id, "attempt": self.attempt}
        if before is not None:
            # A segment that is cut off between two frames looks whole.
            said["before"] = before
        text = canonical(said).encode("ascii")
        return frames.encode(frames.DEFINE, [np.frombuffer(text, np.uint8)])


@dataclasses.dataclass(slots=True)
class Segment:
    """What has been written to one segment.

    Attributes:
        number: its number.
        nbytes: its size.
        records: how many records it holds, by tap name.
        last_step: the largest step in it; None when no record has one, or nobody watched.
    """

    number: int
    nbytes: int = 0
    records: Counter[str] = dataclasses.field(default_factory=Counter[str])
    last_step: int | None = None


class JournalWriter:
    """Writes a journal's segments. Not thread-safe: one thread writes.

    Args:
        folder: an existing live folder.
        segment_bytes: a new segment begins once one is larger.
        head: what each segment begins with; None for none, as before version 1.2.
        first: the number of the first segment; none of that number or a later one may be there.
        durable: whether what is flushed must survive a power loss too (``fdatasync``).
        on_full: called with each segment that is full: nothing is appended to it any more.
        watch_steps: whether segments know their last step, which costs a little for every frame.

    Attributes:
        nbytes: bytes written.
        written: records written, by tap name.
        lost: records whose write failed, by tap name.

    Raises:
        OSError: the first segment cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        head: SegmentHead | None = None,
        first: int = 0,
        durable: bool = False,
        on_full: Callable[[Segment], None] | None = None,
        watch_steps: bool = False,
    ) -> None:
        self.nbytes = 0
        self.written: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._head = head
        self._durable = durable
        self._on_full = on_full
        self._watch_steps = watch_steps
        self._ballast = Ballast(folder)
        self._pending: list[Any] = []
        self._pending_records: Counter[str] = Counter()
        self._pending_step: int | None = None
        self._before = _size_of(segment_path(folder, first - 1)) if first else None
        self._begin(first)

    @property
    def segment(self) -> Segment:
        """The segment that is appended to; without what is pending."""
        return self._segment

    def append(self, site: Site, arrays: Sequence[np.ndarray]) -> None:
        """Appends one frame of records of a site, and the site's definition where the segment lacks it.

        Args:
            site: the site.
            arrays: the index rows as uint8 ``(n, 64)``, then each leaf and stored column as ``(n, *shape)``.

        Raises:
            OSError: the write failed; the segment ends with its last whole frame.
        """
        try:
            if self._segment.nbytes + self._pending_bytes >= self._segment_bytes:
                self._rotate()
        except OSError:
            self.lost[site.name] += len(arrays[0])
            raise
        self._pending_records[site.name] += len(arrays[0])
        if self._watch_steps:
            self._pending_step = _latest(self._pending_step, _last_step(arrays[0]))
        if site.id not in self._defined:
            text = canonical(site.to_json()).encode("ascii")
            self._add(frames.encode(frames.DEFINE, [np.frombuffer(text, np.uint8)]))
            self._defined.add(site.id)
        self._add_frame(frames.body(site.id, arrays))
        if self._pending_bytes >= _PENDING_BYTES or len(self._pending) >= _MAX_BUFFERS // 2:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending; it then survives the end of the process. Raises OSError as `append` does."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        records, self._pending_records = self._pending_records, Counter()
        step, self._pending_step = self._pending_step, None
        if not pending:
            return
        start = self._segment.nbytes
        try:
            for buffers in _calls(pending):
                self._write(buffers)
            if self._durable:
                os.fdatasync(self._fd)
        except OSError:
            self.lost += records
            self._cut(start)
            raise
        self.written += records
        self._segment.records += records
        self._segment.last_step = _latest(self._segment.last_step, step)

    def end(self, summary: dict[str, Any]) -> None:
        """Appends the end frame with a JSON summary, and closes the journal.

        Where the disk is full it takes the room of the ballast; where the segment may not grow it begins another.

        Raises:
            OSError: not even that worked; the journal is closed without an end frame.
        """
        self._ballast.drop()
        text = json.dumps(summary).encode("ascii")
        frame = frames.encode(frames.END, [np.frombuffer(text, np.uint8)])
        try:
            try:
                self._end_with(frame)
            except OSError:
                os.close(self._fd)
                self._before = self._segment.nbytes
                self._begin(self._segment.number + 1)
                self._end_with(frame)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the file without an end frame: a reader will say that the run did not end cleanly."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _end_with(self, frame: list[Any]) -> None:
        self._add(frame)
        self.flush()
        os.fsync(self._fd)

    def _cut(self, start: int) -> None:
        """Cuts the segment back to its last whole frame."""
        os.ftruncate(self._fd, start)
        os.lseek(self._fd, start, os.SEEK_SET)
        self.nbytes -= self._segment.nbytes - start
        self._segment.nbytes = start
        # what was cut off may hold the head or a definition: they are written again
        self._defined.clear()
        if not start:
            self._add_head()

    def _add_frame(self, body: list[Any]) -> None:
        nbytes = self._pending_bytes
        self._add(body)
        large = self._pending_bytes - nbytes >= _LARGE_BYTES
        self._pending.append(_summing(body) if large else frames.checksum(body))
        self._pending_bytes += frames.CRC_BYTES

    def _add(self, buffers: list[Any]) -> None:
        self._pending.extend(buffers)
        self._pending_bytes += sum(map(len, buffers))  # bytes, and arrays of bytes

    def _add_head(self) -> None:
        if self._head is not None:
            self._add(self._head.frame(self._segment.number, self._before))

    def _write(self, buffers: list[Any]) -> None:
        views = [memoryview(b) for b in buffers]
        while views:
            written = os.writev(self._fd, views)
            self._segment.nbytes += written
            self.nbytes += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if views and written:
                views[0] = views[0][written:]

    def _rotate(self) -> None:
        self.flush()
        full = self._segment
        os.close(self._fd)
        self._before = full.nbytes
        self._begin(full.number + 1)
        if self._on_full is not None:
            self._on_full(full)

    def _begin(self, number: int) -> None:
        """Begins a segment; its head is written with what comes first."""
        self._fd = -1
        self._segment = Segment(number)
        self._defined: set[int] = set()
        self._pending, self._pending_bytes = [], 0
        path = segment_path(self._folder, number)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        if self._durable:
            _sync_folder(self._folder)
        self._add_head()


def _size_of(path: Path) -> int | None:
    """Returns the length of the segment that an earlier turn ended with; None where it was sealed or dropped."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _calls(pending: list[Any]) -> Iterator[list[Any]]:
    """Yields the buffers of one ``writev`` after the other; what a checksum is of comes before it is waited for."""
    buffers: list[Any] = []
    for buffer in pending:
        summing = isinstance(buffer, Future)
        if buffers and (len(buffers) == _MAX_BUFFERS or (summing and not buffer.done())):
            yield buffers
            buffers = []
        buffers.append(buffer.result() if summing else buffer)
    yield buffers


_threads = ThreadPoolExecutor(1, "tracerec-checksum")


def _summing(body: list[Any]) -> Any:
    """Returns the checksum of a frame, or the promise of it."""
    try:
        return _threads.submit(frames.checksum, body)
    except RuntimeError:
        # The interpreter is ending, and starts no threads.
        return frames.checksum(body)


def _forget_threads() -> None:
    global _threads  # noqa: PLW0603 - a forked child has none of its parent's threads
    _threads = ThreadPoolExecutor(1, "tracerec-checksum")


os.register_at_fork(after_in_child=_forget_threads)


def _last_step(rows: np.ndarray) -> int | None:
    table = rows.view(INDEX_DTYPE)
    steps = table["step"][(table["flags"] & FLAG_STEP) != 0]
    return int(steps.max()) if steps.size else None


def _latest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
