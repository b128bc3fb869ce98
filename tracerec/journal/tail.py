"""Following a recording while it goes on: each look costs what is new, and nothing is locked.

A tail reads the segments one after the other, each from where it last stopped. Segments that were sealed before it came
to them are read from their parts, and when the recording is closed and its journal gone, the rest from the file that it
became.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.journal import contents, layout
from tracerec.journal.batches import Gathered, TailBatch
from tracerec.journal.following import SegmentFollower
from tracerec.journal.outcome import is_recording
from tracerec.journal.recovery import Damage
from tracerec.journal.sealed import SealedCursor, open_sealed, rows_after
from tracerec.protocol import frames
from tracerec.protocol.stream import MAX_FRAME_BYTES

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from tracerec.formats.contract import StreamSource, TraceSource
    from tracerec.model import Site
    from tracerec.protocol.frames import Frame

__all__ = ["JournalTail", "TailBatch"]

POLL_BYTES = 16 << 20
_READ_BYTES = 4 << 20

# How often files that were just there are looked for again, since they are being sealed, retired or deleted.
_LOOKS = 10


class JournalTail:
    """Follows the recording in a live folder. One thread uses it.

    Args:
        folder: the live folder, such as ``run.h5.live``.
        from_start: whether records that are there already are given out too.
        max_frame_bytes: a frame that says it is longer is taken for damage.

    Attributes:
        ended: whether nothing more is to come, as it seems; a recording that is continued goes on.
        reason: ``"closed"``, ``"killed"``: its process ended without closing it, or ``"deleted"``: the folder is gone
            and there is no sealed file; None while it runs.
        end: what the newest end frame says: ``dropped``, ``lost``, ``failure`` and so on; None before there is one.
        skipped: segments that were deleted on purpose (``retain_steps=``, ``retain_bytes=``) before they were read.
        damage: the places that could not be read, so far.

    Raises:
        TraceNotFound, TraceFormatError: as `tracerec.journal.layout.read_manifest`.

    Example:
        >>> with JournalTail("run.h5.live") as tail:  # doctest: +SKIP
        ...     while not tail.ended:
        ...         for batch in tail.poll():
        ...             print(batch.site.name, batch.rows["step"], batch.leaves[0])
        ...         time.sleep(0.1)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        from_start: bool = True,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._folder = Path(folder).absolute()
        self.ended = False
        self.reason: Literal["closed", "killed", "deleted"] | None = None
        self.end: dict[str, Any] | None = None
        self.skipped = 0
        self._damage: list[Damage] = []
        self._max_frame_bytes = max_frame_bytes
        self._run_id = layout.read_manifest(self._folder).run_id
        journal = layout.read_journal(self._folder)
        self._first = journal.first_segment
        # a recording that is a folder of parts has a journal's layout, and is closed
        self._finished = journal.target == self._folder.name
        self._target = _target_of(self._folder, journal.target)
        self._number = journal.first_segment
        self._sites: dict[int, Site] = {}
        self._gathered = Gathered()
        # Records up to this arrival number, and those in the segment before this place, were there before.
        self._floor = -1
        self._new_from = 0
        self._segment: SegmentFollower | None = None
        self._sealed: SealedCursor | None = None
        self._defined: set[bytes] = set()
        self._manifest_state: tuple[int, int, int] | None = None
        self._pid = 0
        self._gone = 0
        self._end_seen = self._at_target = self._deleting = self._closed = False
        if not from_start:
            self._skip_what_is_there()

    @property
    def folder(self) -> Path:
        """The live folder; of a recording that became a folder of parts, that."""
        return self._folder

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The places that could not be read, so far."""
        if self._segment is None:
            return tuple(self._damage)
        torn = self._segment.torn() if self.reason == "killed" else None
        return (*self._damage, *self._segment.damage, *([torn] if torn else ()))

    def poll(self, max_bytes: int = POLL_BYTES) -> list[TailBatch]:
        """Returns the records that have come since the last call.

        Args:
            max_bytes: about how many bytes to read at most. A frame that is larger is read all the same; what is over
                is left to the next call.

        Returns:
            Batches, one a site, in the order in which their first records were found; none when there is nothing new.
            The arrays are copies. The rows of different sites are not in the order of arrival: sort them by it.

        Raises:
            TraceError: a file cannot be read, or the tail is closed.
        """
        if self._closed:
            message = f"{self._folder}: the tail is closed"
            raise TraceError(message, path=str(self._folder))
        left = max(1, max_bytes)
        # kept by the tail, so that nothing is lost when a later step raises
        while left > 0 or not self._gathered:
            used = self._step(min(_READ_BYTES, left) if left > 0 else _READ_BYTES)
            if used is None:
                break
            left -= used
        return self._gathered.batches()

    def close(self) -> None:
        """Lets go of the files."""
        self._closed = True
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, limit: int) -> int | None:
        """Reads some of what is new; returns how many bytes, or None when there is nothing new."""
        if self._sealed is not None:
            return self._read_sealed(self._sealed, limit)
        if self._segment is None:
            return 0 if self._open_next() else None
        found, nbytes = self._segment.read(limit)
        self._give_out(found)
        if nbytes or self._segment.is_behind:
            return nbytes
        return 0 if self._leave_segment(self._segment) else None

    def _read_sealed(self, sealed: SealedCursor, limit: int) -> int:
        try:
            nbytes = sealed.read(self._gathered, limit)
        except TraceError:
            if self._at_target or self._is_there():
                raise
            # The folder went while its part was read: the recording's file has the rest.
            self._let_go()
            return 0
        if not nbytes:
            self._let_go()
            self._end_seen = self._end_seen or self._at_target
            self._number += 1
        return nbytes

    def _leave_segment(self, segment: SegmentFollower) -> bool:
        """Leaves a segment that is read to its end, if nothing more is written to it; returns whether there is more."""
        # both asked first: what was written before is then read
        over = self._end_seen or self._is_left_behind()
        recorded = over or self._is_recorded()
        if segment.is_behind or ((over or not recorded) and segment.refresh()):
            return True
        if not over:
            # Where locks do not work, it may still be written.
            self._say_end(recorded=recorded)
            return False
        self._give_out(segment.finish())
        self._damage += segment.damage
        self._let_go()
        self._number += 1
        self._new_from = 0
        return True

    def _is_left_behind(self) -> bool:
        """Returns whether the segment that is open is no longer the one that is written."""
        if not self._is_there():
            return True
        numbers = self._numbers()
        # one that was sealed or retired is whole
        return numbers.get(self._number) != self._segment_path() or max(numbers) > self._number

    def _open_next(self) -> bool:
        """Goes to what comes next; returns False when there is nothing yet, or nothing any more."""
        if self._at_target or not self._is_there():
            return self._open_target()
        # asked first: what a process that ends meanwhile wrote is then all there
        recorded = self._is_recorded()
        numbers = self._numbers()
        if self._number in numbers:
            self._open(numbers[self._number])
            return True
        if self._go_to_next(numbers):
            return True
        self._say_end(recorded=recorded)
        return False

    def _open(self, path: Path) -> None:
        """Opens a segment or a part, or passes it over where it cannot be read."""
        try:
            if path == self._segment_path():
                self._segment = SegmentFollower(path, self._max_frame_bytes)
            else:
                self._sealed = SealedCursor(open_sealed(path), lambda _: 0)
        except FileNotFoundError as error:
            # sealed, retired or deleted since the folder was listed
            self._gone += 1
            if self._gone > _LOOKS:
                self._pass_over(path, f"it is listed, and cannot be opened: {error}")
        except TraceFormatError as error:
            self._pass_over(path, str(error))
        else:
            self._gone = 0
            self.ended, self.reason, self._end_seen = False, None, False

    def _pass_over(self, path: Path, reason: str) -> None:
        self._damage.append(Damage(path.name, 0, 0, reason))
        self._number += 1
        self._gone = 0

    def _go_to_next(self, numbers: dict[int, Path]) -> bool:
        """Passes over segments that are not there; returns False when there is none behind them."""
        if not self._is_there():
            return True
        if self._first > self._number:
            self.skipped += self._first - self._number
            self._number = self._first
            return True
        behind = [number for number in numbers if number > self._number]
        if not behind:
            return False
        if self._number in self._numbers():
            # a folder is not listed at one moment
            return True
        if self._target is not None and self._target.exists():
            # the recording is closed, and its journal is being deleted, in any order
            self._deleting = True
            return True
        reason = f"it is missing; the next is segment {min(behind)}"
        self._damage.append(Damage(self._segment_path().name, 0, 0, reason))
        self._number = min(behind)
        return True

    def _open_target(self) -> bool:
        """Opens the file that the recording became, for what was not read of its journal; returns False without any."""
        if self._end_seen or self._at_target:
            self.ended, self.reason = True, "closed"
            return False
        if self._target is not None and (self._target / layout.MANIFEST).is_file():
            # a folder of parts, numbered as before
            self._folder, self._target = self._target, None
            self._finished, self._deleting = True, False
            return True
        if (source := self._sealed_target()) is None:
            self.ended, self.reason = True, "deleted"
            return False
        self._at_target = True
        self.ended, self.reason = False, None
        self._sealed = SealedCursor(source, self._first_unseen)
        return True

    def _sealed_target(self) -> TraceSource | None:
        """Returns the file that this recording became, opened; None where there is none, or that of another."""
        if self._target is None:
            return None
        try:
            source = open_sealed(self._target)
        except TraceNotFound:
            return None
        if source.info.run_id == self._run_id:
            return source
        source.close()
        return None

    def _first_unseen(self, stream: StreamSource) -> int:
        last = self._gathered.last_arrival(stream.site)
        if last is not None:
            return rows_after(stream, last, exact=True)
        return rows_after(stream, self._floor, exact=False) if self._floor >= 0 else 0

    def _say_end(self, *, recorded: bool) -> None:
        """Says whether more is to come, where there is nothing left to read."""
        if self._end_seen or self._finished:
            self.ended, self.reason = True, "closed"
        else:
            self.ended, self.reason = (False, None) if recorded else (True, "killed")

    def _skip_what_is_there(self) -> None:
        """Begins behind the records that are there."""
        numbers = self._numbers()
        self._number = max(numbers, default=self._number)
        if self._number in numbers:
            self._open(numbers[self._number])
        if self._segment is not None:
            self._new_from = self._segment.size
        elif self._sealed is not None:
            self._floor = self._sealed.newest_arrival()
            self._let_go()
            self._number += 1

    def _give_out(self, found: list[tuple[int, Frame]]) -> None:
        for start, frame in found:
            try:
                if frame.consumer_id == frames.END:
                    self._end_seen = True
                    self.end = contents.parse_end(bytes(frame.arrays[0]))
                elif frame.consumer_id == frames.DEFINE:
                    self._define(bytes(frame.arrays[0]))
                else:
                    self._give_out_records(start, frame)
            except (ValueError, IndexError) as error:
                name, nbytes = self._segment_path().name, frame.end - frame.head.start
                self._damage.append(Damage(name, start, nbytes, f"the frame there is intact, but {error}"))

    def _define(self, text: bytes) -> None:
        if text in self._defined:
            return
        defined = contents.parse_definition(text)
        if not isinstance(defined, contents.SegmentHead):
            self._sites[defined.id] = defined
            self._defined.add(text)
        elif (defined.segment, defined.run_id) != (self._number, self._run_id):
            message = f"it is the head of segment {defined.segment} of run {defined.run_id:.40}"
            raise ValueError(message)

    def _give_out_records(self, start: int, frame: Frame) -> None:
        site = self._sites.get(frame.consumer_id)
        if site is None:
            message = f"site {frame.consumer_id:#018x} is not defined"
            raise ValueError(message)
        if not contents.specs_fit(site, frame.head.specs):
            message = f"its arrays are not those of tap {site.name!r}"
            raise ValueError(message)
        if not len(frame.arrays[0]):
            return
        if start + (frame.end - frame.head.start) <= self._new_from:
            self._floor = max(self._floor, self._gathered.pass_over(site, frame.arrays[0]))
        else:
            self._gathered.add(site, frame.arrays)

    def _is_there(self) -> bool:
        """Returns whether the folder is still that of this recording."""
        try:
            status = (self._folder / layout.MANIFEST).stat()
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if state != self._manifest_state:
                manifest = layout.read_manifest(self._folder)
                self._first = layout.read_journal(self._folder).first_segment
                self._manifest_state, self._pid = state, manifest.pid
                self._deleting = self._deleting or manifest.run_id != self._run_id
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not self._deleting

    def _is_recorded(self) -> bool:
        return is_recording(self._folder, self._pid)

    def _numbers(self) -> dict[int, Path]:
        """Returns the segments and parts that there are; a part stands for its segment."""
        try:
            # in this order: a part is there before its segment goes
            found = {layout.segment_number(path): path for path in layout.segments(self._folder)}
            return found | layout.parts(self._folder)
        except FileNotFoundError:
            return {}

    def _segment_path(self) -> Path:
        return layout.segment_path(self._folder, self._number)

    def _let_go(self) -> None:
        for reader in (self._segment, self._sealed):
            if reader is not None:
                reader.close()
        self._segment = self._sealed = None


def _target_of(folder: Path, name: str | None) -> Path | None:
    """Returns what closing makes of a live folder; None for what is that already, and where it is not known."""
    if name is None and folder.name.endswith(".live"):
        name = folder.name.removesuffix(".live")
    return None if name in (None, "", folder.name) else folder.parent / name
