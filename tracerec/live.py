"""The live folder of a recording that runs: its lock, its manifest, its writer, and what becomes of full segments."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracerec.continuing import make_room, open_piece
from tracerec.journal.layout import Journal, live_folder, write_manifest
from tracerec.journal.writing import SEGMENT_BYTES, JournalWriter, Segment, SegmentHead
from tracerec.model import FLAG_STEP
from tracerec.sealer import Sealer
from tracerec.sealing import MAX_FILE_BYTES, Order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracerec.formats.contract import RunInfo

__all__ = ["Limits", "LiveJournal"]

_RETAINED_SEGMENTS = 8
"""With ``retain_bytes`` a segment is at most this part of them, so that about as much as asked for is kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How a recording is kept on the disk; see `tracerec.record`."""

    segment_bytes: int = SEGMENT_BYTES
    durable: bool = False
    retain_steps: int | None = None
    retain_bytes: int | None = None
    max_file_bytes: int = MAX_FILE_BYTES

    @property
    def largest_segment(self) -> int:
        """The bytes after which a new segment begins."""
        if self.retain_bytes is None:
            return self.segment_bytes
        return max(1, min(self.segment_bytes, self.retain_bytes // _RETAINED_SEGMENTS))


class LiveJournal:
    """The live folder of one recording, made or taken up again.

    Args:
        target: the file that closing makes.
        mode: ``"x"``, ``"w"`` or ``"a"``.
        info: what is known of this process's turn.
        compression: of the sealed file.
        limits: how it is kept.

    Attributes:
        target, folder: the file, and the live folder.
        info: the run information that the manifest has.
        previous: the turns before this one.
        writer: what appends to it.

    Raises:
        RecordingExists: there is a recording at the path, or one that runs.
        TracerecError: a recording that is to be continued cannot be read.
        OSError: the folder cannot be made.
    """

    def __init__(self, target: Path, mode: str, info: RunInfo, compression: str | None, limits: Limits) -> None:
        self.target = target
        self.folder = live_folder(target)
        self._limits = limits
        self.previous, self._lock = make_room(target, self.folder, mode, info)
        try:
            self._begin(info, compression, limits)
        except BaseException:
            self._lock.forget()
            raise

    @property
    def retired(self) -> dict[str, int]:
        """How many records were deleted to keep the newest alone, by tap name."""
        return dict(self._retired)

    def add_devices(self, devices: Sequence[dict[str, Any]]) -> None:
        """Completes the manifest: starting a recording must not start JAX's backends, so this is done later."""
        *before, mine = self.info.attempts
        self.info = dataclasses.replace(
            self.info, devices=tuple(devices), attempts=(*before, {**mine, "devices": list(devices)})
        )
        write_manifest(self.folder, self.info, self._journal)

    def seal(self, end: dict[str, Any] | None) -> None:
        """Makes the file of the journal.

        Args:
            end: what the end frame should have said, where it could not be written.

        Raises:
            SealingError: the file could not be made; the journal is intact.
        """
        try:
            self._sealer.finish(dataclasses.replace(self._order, end=end))
        finally:
            self._lock.forget()

    def forget(self) -> None:
        """In a forked child: the journal is the parent's alone."""
        self.writer.close()
        self._sealer.forget()
        self._lock.forget()

    def _begin(self, info: RunInfo, compression: str | None, limits: Limits) -> None:
        self.info = self.previous.continued_by(info)
        self._retains = limits.retain_bytes is not None or limits.retain_steps is not None
        self._segments: list[Segment] = []
        if self._retains:
            self._segments = [_measured(self.folder, segment) for segment in self.previous.segments]
        self._retired: Counter[str] = Counter(self.previous.retired)
        self._journal = Journal(self.previous.first_segment, self.target.name)
        write_manifest(self.folder, self.info, self._journal)
        self._order = Order(
            self.folder, self.target, compression, self.info.run_id, max_file_bytes=limits.max_file_bytes
        )
        self._sealer = Sealer(self._order)
        self.writer = JournalWriter(
            self.folder,
            limits.largest_segment,
            head=SegmentHead(self.info.run_id, len(self.previous.attempts)),
            first=self.previous.next_segment,
            durable=limits.durable,
            on_full=self._full,
            watch_steps=limits.retain_steps is not None,
        )

    def _full(self, segment: Segment) -> None:
        if self._retains:
            self._segments.append(segment)
            self._retire()
        if segment.number >= self._journal.first_segment:
            self._sealer.part(segment.number)

    def _retire(self) -> None:
        old = self._too_old()
        if not old:
            return
        for segment in old:
            self._retired += segment.records
        del self._segments[: len(old)]
        self._journal = dataclasses.replace(self._journal, first_segment=old[-1].number + 1)
        self.info = dataclasses.replace(self.info, retired=dict(self._retired))
        # A crash in between leaves segments that the manifest disowns: readers leave them out.
        write_manifest(self.folder, self.info, self._journal)
        self._sealer.retire([segment.number for segment in old])

    def _too_old(self) -> list[Segment]:
        keep_bytes, keep_steps = self._limits.retain_bytes, self._limits.retain_steps
        total = sum(segment.nbytes for segment in self._segments)
        newest = max((s.last_step for s in self._segments if s.last_step is not None), default=None)
        old: list[Segment] = []
        for segment in self._segments:
            total -= segment.nbytes
            over = keep_bytes is not None and total >= keep_bytes
            # records without a step are as old as the segment they are in
            past = (
                keep_steps is not None
                and newest is not None
                and (segment.last_step is None or segment.last_step <= newest - keep_steps)
            )
            if not (over or past):
                break
            old.append(segment)
        return old


def _measured(folder: Path, segment: Segment) -> Segment:
    """Returns a segment of an earlier attempt with its counts, from the file."""
    with contextlib.closing(open_piece(folder, segment.number)) as source:
        for stream in source.streams:
            segment.records[stream.site.name] += stream.records
            rows = stream.index(0, stream.records)
            steps = rows["step"][(rows["flags"] & FLAG_STEP) != 0]
            if len(steps):
                segment.last_step = max(int(steps.max()), segment.last_step or int(steps.max()))
    return segment
