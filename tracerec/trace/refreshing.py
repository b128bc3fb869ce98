"""What a trace and its raw form share: the source that is open, and the looking again while the run goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import TraceError, TraceNotFound
from tracerec.formats.joined import site_id
from tracerec.formats.live import open_live
from tracerec.formats.pool import Pool
from tracerec.journal.outcome import is_recording
from tracerec.journal.sealed import rows_after
from tracerec.trace.finding import LIVE_SUFFIX
from tracerec.trace.processes import ProcessesSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.contract import StreamSource, TraceSource

__all__ = ["Opened", "known_records"]


class Opened:
    """A source that is open. Sources that `refresh` replaced are open too, as long as a tap is of them.

    Args:
        source: the source; it is closed with this.

    Attributes:
        source: the newest.
        closed: whether it was closed.
    """

    def __init__(self, source: TraceSource) -> None:
        self.source = source
        self.closed = False
        self._pool = Pool()
        self._earlier: weakref.WeakSet[TraceSource] = weakref.WeakSet()
        # None yet: a look after the opening would have seen more than was opened.
        self._looks: dict[int, _Look | None] = {}

    @property
    def parts(self) -> Sequence[TraceSource]:
        """The source of each process."""
        return _parts_of(self.source)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each process."""
        return self.source.numbers if isinstance(self.source, ProcessesSource) else (0,)

    def refresh(self) -> int:
        """Opens again what has changed of runs that go on; returns how many records are new.

        Raises:
            TraceError: a recording is gone, was replaced by another, or cannot be read. What was open stays so.
        """
        before = self.parts
        looks: dict[int, _Look | None] = {}
        after: list[TraceSource] = []
        for part in before:
            look = _look(part)
            changed = look is not None and look != self._looks.get(id(part))
            after.append(_again(part, self._pool) if changed else part)
            # of what is new the look from before counts: what has come since is then seen the next time
            looks[id(after[-1])] = look
        if all(new is old for new, old in zip(after, before, strict=True)):
            return 0
        source = after[0]
        if isinstance(self.source, ProcessesSource):
            # Those of a merged recording have ended, so that they are not among these.
            source = ProcessesSource(self.source.path, after, self.source.numbers)
        self._earlier.update([self.source, *before])
        self.source, self._looks = source, looks
        return sum(_new_records(old, new) for old, new in zip(before, after, strict=True) if new is not old)

    def close(self) -> None:
        """Closes all sources; closing twice is harmless."""
        if not self.closed:
            self.closed = True
            for source in [*self._earlier, self.source]:
                source.close()


@dataclasses.dataclass(frozen=True)
class _Look:
    """What a live folder looked like: the names and sizes of its files, and whether a process holds its lock."""

    files: frozenset[tuple[str, int, int]]
    recorded: bool


def _look(source: TraceSource) -> _Look | None:
    """Looks at a live folder, without opening a file; None for a recording that has ended."""
    if source.info.state != "recording":
        return None
    # asked first: what a process that ends meanwhile wrote is then all there
    recorded = is_recording(Path(source.path), source.info.pid)
    files: set[tuple[str, int, int]] = set()
    try:
        with os.scandir(source.path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                files.add((entry.name, status.st_size, status.st_mtime_ns if entry.name.endswith(".json") else 0))
    except OSError:
        # gone, or going: it is sealed
        return _Look(frozenset(), recorded=False)
    return _Look(frozenset(files), recorded)


def _again(source: TraceSource, pool: Pool) -> TraceSource:
    """Returns a recording opened again, by then perhaps sealed; parts that are open are taken over."""
    from tracerec.trace.opening import open_source

    name = source.path.removesuffix(LIVE_SUFFIX)
    found: TraceSource | None = None
    if name == source.path or not Path(name).exists():
        with contextlib.suppress(TraceNotFound):
            found = open_live(source.path, pool=pool, earlier=source)
    if found is None:
        found = open_source(name, pool)
    if found.info.run_id != source.info.run_id:
        found.close()
        message = f"{source.path}: another recording, run {found.info.run_id}, is there now; open the trace again"
        raise TraceError(message, path=source.path)
    return found


def _new_records(old: TraceSource, new: TraceSource) -> int:
    before = {site_id(stream): stream for stream in old.streams}
    return sum(stream.records - known_records(before.get(site_id(stream)), stream) for stream in new.streams)


def known_records(old: StreamSource | None, new: StreamSource) -> int:
    """Returns how many records of a stream, from its first, are none that came since."""
    if old is None or not old.records:
        return 0
    last = int(old.index(old.records - 1, old.records)["arrival"][0])
    return rows_after(new, last, exact=True)


def _parts_of(source: TraceSource) -> Sequence[TraceSource]:
    return source.sources if isinstance(source, ProcessesSource) else (source,)
