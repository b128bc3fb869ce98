"""Sealing: what a journal holds becomes immutable files, in a process of its own.

``python -m tracerec.sealing`` is that process: `tracerec.sealer` starts it and sends it jobs, a JSON object a line, by
standard input; it answers by standard output. It is spawned, never forked, low in priority, and the only one that calls
HDF5: a full disk makes HDF5 crash or hang the process it is in. It ends with whoever started it. Free of JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracerec.errors import SealingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracerec.formats.contract import TraceSource

__all__ = ["ARROW_SUFFIX", "MAX_FILE_BYTES", "Order", "main", "retire", "seal", "seal_part", "suffix_of"]

ARROW_SUFFIX = ".arrow"

MAX_FILE_BYTES = 16 << 30

_NICENESS = 10
_ORPHAN_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A journal that is to become a sealed recording.

    Attributes:
        folder: the live folder.
        target: the file to make, ``.h5``, or the folder, ``.arrow``.
        compression: as `tracerec.record`.
        run_id: the run that the journal must be of; None for any.
        end: what the journal's end frame should have said, where it could not be written.
        max_file_bytes: a larger recording stays a folder of parts.
    """

    folder: Path
    target: Path
    compression: str | None = "lz4"
    run_id: str | None = None
    end: dict[str, Any] | None = None
    max_file_bytes: int = MAX_FILE_BYTES

    def to_json(self) -> dict[str, Any]:
        """Returns the order as JSON values."""
        return {**dataclasses.asdict(self), "folder": str(self.folder), "target": str(self.target)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Order:
        """Returns the order that `to_json` gave."""
        paths: dict[str, Any] = {name: Path(data[name]) for name in ("folder", "target")}
        return cls(**(data | paths))


def suffix_of(target: Path) -> str:
    """Returns the suffix of a recording's parts: ``".arrow"`` or ``".h5"``."""
    return ARROW_SUFFIX if target.suffix.lower() == ARROW_SUFFIX else ".h5"


class Before:
    """How many records each site has in the parts made so far: the next part goes on with their grid of chunks.

    Chunks of parts can then be copied into the whole as they are. A wrong number costs speed alone.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._next: int | None = None

    def part(self, folder: Path, number: int) -> Mapping[int, int]:
        """Returns the records before a part, by the site's id."""
        if self._next != number:
            self._counts = _counted(folder, number)
        return self._counts

    def add(self, number: int, source: TraceSource) -> None:
        """Takes the records of a part that was made."""
        self._next = number + 1
        for stream in source.streams:
            self._counts[stream.site.id] += stream.records


def seal_part(order: Order, number: int, before: Before | None = None, *, in_memory: bool = False) -> None:
    """Seals one segment that is full into a part, and deletes the segment once the part has its name.

    Args:
        order: of the recording.
        number: the segment's.
        before: what was sealed before.
        in_memory: whether HDF5 must not touch the disk.

    Raises:
        TracerecError: the segment is damaged, or the part cannot be written; the segment is left as it is.
    """
    from tracerec.journal import layout
    from tracerec.journal.reading import JournalSource

    segment = layout.segment_path(order.folder, number)
    part = layout.part_path(order.folder, number, suffix_of(order.target))
    if not part.exists():
        with contextlib.closing(JournalSource(order.folder, only=number, running=False)) as source:
            if source.damage:
                message = f"{segment} is damaged: {source.damage[0].reason}"
                raise SealingError(message, path=str(segment))
            if before is None:
                before = Before()
            counts = before.part(order.folder, number)
            _write(source, part, order.compression, before=counts, in_memory=in_memory)
            before.add(number, source)
    segment.unlink(missing_ok=True)


def retire(order: Order, numbers: list[int]) -> None:
    """Deletes segments and parts whose records are too old to be kept; the manifest says so already."""
    from tracerec.journal import layout

    for number in numbers:
        layout.segment_path(order.folder, number).unlink(missing_ok=True)
        remove(layout.part_path(order.folder, number, suffix_of(order.target)))


def seal(order: Order, *, in_memory: bool = False) -> None:
    """Makes the recording of a journal, and removes the journal once the recording has its name.

    Args:
        order: what to seal.
        in_memory: whether HDF5 must not touch the disk.

    Raises:
        TracerecError: the journal cannot be read or is of another run, the target exists, or the file cannot be
            written; the journal is left as it is.
    """
    from tracerec.formats.live import open_live
    from tracerec.journal.layout import read_manifest

    run_id = read_manifest(order.folder).run_id
    if order.run_id not in (None, run_id):
        message = f"{order.folder} now holds another run, {run_id}: the journal of this one was deleted"
        raise SealingError(message, path=str(order.target))
    if order.target.exists():
        message = f"{order.target} exists: it was made while the recording ran, and is left as it is"
        raise SealingError(message, path=str(order.target))
    _remove_unfinished(order)
    with contextlib.closing(open_live(order.folder, end=order.end, running=False)) as source:
        info, size = source.info, sum(stream.nbytes for stream in source.streams)
        fits = size <= order.max_file_bytes
        if fits:
            _check_room(order, size)
            _write(source, order.target, order.compression, in_memory=in_memory)
    if fits:
        _delete(order.folder)
    else:
        _keep_parts(order, info, in_memory=in_memory)


def _delete(folder: Path) -> None:
    """Deletes a journal under another name, so that no reader finds half of it."""
    doomed = folder.with_name(f"{folder.name}.tmp-{uuid.uuid4().hex}")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def remove(path: Path) -> None:
    """Deletes a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> int:
    """Runs the sealing process; returns its exit status."""
    # What interrupts the program does not interrupt this: it ends when the program does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A library that prints must not disturb the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    os.nice(_NICENESS)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    idle = threading.Event()
    parent, before = os.getppid(), Before()
    threading.Thread(target=_read, args=(lines, idle), daemon=True).start()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        idle.set()
        line = lines.get()
        idle.clear()
        if not line:
            return 0
        answers.write(json.dumps(_do(json.loads(line), before)) + "\n")
        answers.flush()


_JOBS: dict[str, Callable[[Order, list[int], Before], None]] = {
    "part": lambda order, numbers, before: seal_part(order, numbers[0], before),
    "retire": lambda order, numbers, _: retire(order, numbers),
    "finish": lambda order, _numbers, _before: seal(order),
}


def _do(job: dict[str, Any], before: Before) -> dict[str, Any]:
    answer = {"job": job["job"], "numbers": job["numbers"], "failed": None}
    try:
        _JOBS[job["job"]](Order.from_json(job["order"]), job["numbers"], before)
    except Exception as error:  # noqa: BLE001 - the one who ordered is told
        answer["failed"] = str(error) or type(error).__name__
    return answer


def _read(lines: queue.SimpleQueue[str], idle: threading.Event) -> None:
    for line in sys.stdin:
        lines.put(line)
    # The program has closed the pipe: because it is done, or because it has died.
    if not idle.is_set():
        os._exit(1)
    lines.put("")


def _end_with(parent: int) -> None:
    # A process forked from the program may hold the pipe open.
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    os._exit(1)


def _counted(folder: Path, number: int) -> Counter[int]:
    from tracerec.formats.joined import site_id
    from tracerec.formats.live import open_part
    from tracerec.journal import layout

    counts: Counter[int] = Counter()
    for part, path in layout.parts(folder).items():
        if part < number:
            with contextlib.closing(open_part(path)) as source:
                for stream in source.streams:
                    counts[site_id(stream)] += stream.records
    return counts


def _write(
    source: TraceSource,
    target: Path,
    compression: str | None,
    *,
    before: Mapping[int, int] | None = None,
    in_memory: bool,
) -> None:
    if target.suffix.lower() == ARROW_SUFFIX:
        from tracerec.formats.arrow.seal import seal as seal_arrow

        seal_arrow(source, target, compression=compression)
        return
    from tracerec.formats.hdf5.merge import merge
    from tracerec.formats.joined import JoinedSource

    pieces = source.sources if isinstance(source, JoinedSource) else [source]
    merge(pieces, target, info=source.info, compression=compression, before=before, in_memory=in_memory)


def _keep_parts(order: Order, info: Any, *, in_memory: bool) -> None:
    """Makes the live folder, all its segments sealed, the recording."""
    from tracerec.journal import layout

    before = Before()
    for path in layout.segments(order.folder):
        seal_part(order, layout.segment_number(path), before, in_memory=in_memory)
    journal = layout.read_journal(order.folder)
    layout.write_manifest(order.folder, info, journal)
    layout.Ballast.remove(order.folder)
    order.folder.rename(order.target)


def _remove_unfinished(order: Order) -> None:
    """Removes what sealing processes that were killed have left."""
    left = [path for path in order.folder.iterdir() if ".tmp-" in path.name]
    with os.scandir(order.target.parent) as entries:
        begins = tuple(f"{path.name}.tmp-" for path in (order.target, order.folder))
        left += [Path(entry.path) for entry in entries if entry.name.startswith(begins)]
    for path in left:
        remove(path)


def _check_room(order: Order, size: int) -> None:
    """Raises SealingError where the disk is too full: HDF5 can crash or hang on that."""
    free = shutil.disk_usage(order.target.parent).free
    if free < size:
        message = f"{order.target}: the disk has {free:,} bytes left, and sealing may need {size:,}"
        raise SealingError(message, path=str(order.target))


if __name__ == "__main__":
    sys.exit(main())
