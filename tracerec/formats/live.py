"""A folder of parts and segments as one trace: of a run that goes on, was killed, or was too large for one file.

::

    part-000000.h5, part-000001.h5, ...   segments that were sealed; a part wins over a segment of its number
    segment-000002.frames, ...            what is not sealed yet, as `tracerec.journal` has it
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.contract import RECORDING_NOTE, RunInfo
from tracerec.formats.joined import JoinedSource
from tracerec.formats.pool import Pool
from tracerec.journal import layout
from tracerec.journal.outcome import Found, run_info
from tracerec.journal.reading import JournalSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from tracerec.formats.contract import TraceSource

__all__ = ["open_live", "open_part"]

_LOOKS = 20
_PAUSE = 0.02
"""How often, and after how many seconds, a folder is looked at again whose files are being sealed meanwhile."""

_STATES = (RECORDING_NOTE, "the run did not end cleanly")
_STOPPED = "recording stopped early: "
_ATTEMPT = "attempt "


def open_live(
    folder: str | os.PathLike[str],
    *,
    end: Mapping[str, Any] | None = None,
    running: bool | None = None,
    pool: Pool | None = None,
    earlier: TraceSource | None = None,
) -> JournalSource | JoinedSource:
    """Returns all records of a folder of parts and segments. Of the parts only the lists of streams are read.

    Args:
        folder: the live folder, such as ``run.h5.live``, or a finished recording that is a folder of parts.
        end: what the end frame should have said, where it could not be written.
        running: whether a process is still recording to the folder; None: the lock tells.
        pool: what its parts share with the files of others; None: it is a trace of its own.
        earlier: what was opened before, of the same recording: its parts are taken over, as they are open.

    Returns:
        A source; `damage` has what could not be read of the segments.

    Raises:
        TraceNotFound: there is no recording, or no longer.
        TraceFormatError: the manifest or a part is damaged, or of a newer major version.
        TraceError: files go faster than they can be opened.

    Example:
        >>> with open_live("run.h5.live") as source:  # doctest: +SKIP
        ...     source.info.state, len(source.streams)
    """
    path = Path(folder)
    with contextlib.ExitStack() as stack:
        opening = _Folder(path, stack, running=running, pool=pool, earlier=earlier)
        for look in range(_LOOKS):
            found = opening.opened(end)
            if found is not None:
                stack.pop_all()
                return found
            time.sleep(_PAUSE * min(look, 5))
    layout.read_manifest(path)
    message = f"{path}: its files are sealed or deleted faster than they can be opened; try again"
    raise TraceError(message, path=str(path))


def open_part(path: Path, pool: Pool | None = None) -> TraceSource:
    """Returns a sealed part; raises as the reader of its form does."""
    if path.suffix == ".arrow":
        from tracerec.formats.arrow.reading import ArrowSource

        return ArrowSource(path, pool=pool)
    from tracerec.formats.hdf5.reading import Hdf5Source

    return Hdf5Source(path, pool=pool)


@dataclasses.dataclass(frozen=True)
class _Look:
    """What is in a folder at a moment.

    Attributes:
        manifest: the run.
        segments: the numbers of segments that have no part.
        parts: the paths of parts by number.
    """

    manifest: RunInfo
    segments: Sequence[int]
    parts: Mapping[int, Path]

    @classmethod
    def at(cls, folder: Path) -> _Look:
        """Looks; raises TraceNotFound when the folder is gone."""
        manifest = layout.read_manifest(folder)
        try:
            # Segments first: one that is sealed then is among the parts a moment later.
            segments = [layout.segment_number(path) for path in layout.segments(folder)]
            parts = layout.parts(folder)
        except FileNotFoundError as error:
            message = f"{folder} is gone: its recording was sealed, moved or deleted"
            raise TraceNotFound(message, path=str(folder)) from error
        # What the manifest disowns was to be deleted.
        first = layout.read_journal(folder).first_segment
        parts = {number: path for number, path in parts.items() if number >= first}
        return cls(manifest, sorted(n for n in segments if n >= first and n not in parts), parts)

    @property
    def newest(self) -> int:
        """The largest number there is."""
        return max([*self.segments, *self.parts], default=-1)


class _Folder:
    """A folder that is looked at until nothing changes meanwhile. Parts once opened stay so.

    The sealing process renames a part into place before it deletes the segment, and the whole recording before the
    folder: whatever is gone is there in another form a moment later, or the manifest is gone, too.
    """

    def __init__(
        self,
        path: Path,
        stack: contextlib.ExitStack,
        *,
        running: bool | None,
        pool: Pool | None = None,
        earlier: TraceSource | None = None,
    ) -> None:
        self._running = running
        self.path = path
        self._parts: dict[int, TraceSource] = {}
        self._pool = pool or Pool()
        # Parts do not change; those that others have open are not closed here.
        sources = earlier.sources if isinstance(earlier, JoinedSource) else ()
        self._earlier = {source.path: source for source in sources if Path(source.path) != path}
        journals = [source for source in (earlier, *sources) if isinstance(source, JournalSource)]
        self._journal = journals[-1] if journals else None
        stack.callback(self._close)

    def opened(self, end: Mapping[str, Any] | None) -> JournalSource | JoinedSource | None:
        """Returns the source, or None where something was sealed or deleted meanwhile."""
        look = _Look.at(self.path)
        try:
            self._open_parts(look)
            with contextlib.ExitStack() as stack:
                source = self._source(look, end, stack)
                if source is not None and _Look.at(self.path).parts.keys() == look.parts.keys():
                    stack.pop_all()
                    return source
        except FileNotFoundError:
            pass
        except TraceFormatError:
            # Half of a part that is being deleted looks damaged, too.
            files = _inside(look)
            time.sleep(_PAUSE)
            later = _Look.at(self.path)
            if (later.segments, later.parts, _inside(later)) == (look.segments, look.parts, files):
                raise
        return None

    def _close(self) -> None:
        for number in list(self._parts):
            self._let_go(number)

    def _let_go(self, number: int) -> None:
        part = self._parts.pop(number)
        if self._earlier.get(part.path) is not part:
            part.close()

    def _open_parts(self, look: _Look) -> None:
        for number in self._parts.keys() - look.parts.keys():
            self._let_go(number)
        for number in sorted(look.parts.keys() - self._parts.keys()):
            path = look.parts[number]
            known = self._earlier.get(str(path))
            part = self._parts[number] = open_part(path, self._pool) if known is None else known
            if part.info.run_id != look.manifest.run_id:
                message = f"{path} is of another run, {part.info.run_id}, than its folder, {look.manifest.run_id}"
                raise TraceFormatError(message, path=str(self.path))
        self._parts = {number: self._parts[number] for number in look.parts}

    def _source(
        self, look: _Look, end: Mapping[str, Any] | None, stack: contextlib.ExitStack
    ) -> JournalSource | JoinedSource | None:
        """Returns the source; None where a segment was sealed meanwhile."""
        if end is None and look.newest in look.parts:
            end = _end_of(look.manifest, self._parts[look.newest].info)
        journal = JournalSource(
            self.path,
            skip=look.parts.keys(),
            end=dict(end) if end else None,
            running=self._running,
            earlier=self._journal,
        )
        stack.callback(journal.close)
        if journal.sealed:
            return None
        if not look.parts:
            return journal
        pieces = self._in_order(look, journal, stack)
        if pieces is None:
            return None
        info = _joined_info(look, journal.info, [part.info for part in self._parts.values()])
        source = JoinedSource(str(self.path), info, pieces, closing=journal.close, damage=journal.damage)
        source.info = dataclasses.replace(info, records=sum(stream.records for stream in source.streams))
        return source

    def _in_order(self, look: _Look, journal: JournalSource, stack: contextlib.ExitStack) -> list[TraceSource] | None:
        """Returns the pieces by number; None where one was sealed meanwhile."""
        if not look.segments or look.segments[0] > max(look.parts):
            return [*self._parts.values(), journal]
        # Segments between parts: sealing them failed. Those are read one by one, to stand at their places.
        pieces: dict[int, TraceSource] = dict(self._parts)
        for number in look.segments:
            segment = JournalSource(self.path, only=number, running=self._running)
            stack.callback(segment.close)
            if segment.sealed:
                return None
            pieces[number] = segment
        return [pieces[number] for number in sorted(pieces)]


def _end_of(manifest: RunInfo, last: RunInfo) -> dict[str, Any] | None:
    """Returns what the end frame of the newest attempt says, where it was sealed into the last part."""
    if last.ended is None or len(manifest.attempts) > max(1, len(last.attempts)):
        return None
    failures = [note.removeprefix(_STOPPED) for note in last.notes if note.startswith(_STOPPED)]
    return {"ended": last.ended, "failure": None if last.clean else next(iter(failures), "an unknown failure")}


def _joined_info(look: _Look, journal: RunInfo, parts: Sequence[RunInfo]) -> RunInfo:
    """Returns the information of the whole: the journal's, with what end frames said that are in parts."""
    if look.manifest.ended is not None and not look.segments:
        # A finished recording: its manifest was written with all that was known.
        return look.manifest
    dropped = _sum(journal.dropped, *(part.dropped for part in parts))
    replaced = {*_missing(journal.dropped)}
    notes = [note for note in journal.notes if note not in replaced]
    for part in parts:
        about_run = {*_STATES, *_missing(part.dropped)}
        notes += [n for n in part.notes if n not in about_run and not n.startswith((_STOPPED, _ATTEMPT))]
    return dataclasses.replace(
        journal,
        dropped=dropped,
        over_budget=_sum(journal.over_budget, *(part.over_budget for part in parts)),
        retired=_largest(look.manifest.retired, journal.retired, *(part.retired for part in parts)),
        high_water_bytes=max(journal.high_water_bytes, *(part.high_water_bytes for part in parts)),
        notes=tuple(dict.fromkeys([*notes, *_missing(dropped)])),
    )


def _inside(look: _Look) -> set[Path]:
    """Returns the files of parts that are folders."""
    found: set[Path] = set()
    for part in look.parts.values():
        if part.suffix == ".arrow":
            with contextlib.suppress(OSError):
                found |= set(part.iterdir())
    return found


def _missing(dropped: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the note of a journal that lacks so many records, if any."""
    ended = Found(ends={0: {"dropped": dropped}}, attempts=(0,), records=0, notes=())
    return run_info(RunInfo("", 0), ended, end=None, running=False).notes


def _sum(*counts: Mapping[str, int]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)


def _largest(*counts: Mapping[str, int]) -> dict[str, int]:
    """Returns the largest count by name: each counts from the beginning of the recording."""
    names: Iterable[str] = dict.fromkeys(name for each in counts for name in each)
    return {name: max(each.get(name, 0) for each in counts) for name in names}
