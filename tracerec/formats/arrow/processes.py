"""A merged Arrow recording: a folder with a folder for each process, and the list of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import SealingError, TraceFormatError
from tracerec.formats import merged
from tracerec.formats.arrow import layout
from tracerec.formats.arrow.files import Place, checksum_of, map_file
from tracerec.formats.arrow.reading import ArrowSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.formats.contract import TraceSource
    from tracerec.formats.merged import Process
    from tracerec.formats.pool import Pool

__all__ = [
    "Recording",
    "copy_folder",
    "inner_folder",
    "is_merged",
    "listed_processes",
    "merge_processes",
    "open_processes",
    "write_one",
]

_MOST = 64 << 20
"""Bytes of the longest list of processes."""


def is_merged(folder: Path) -> bool:
    """Returns whether a folder is a merged recording, by what it holds; a reader then checks it."""
    if os.path.lexists(folder / merged.LIST):
        return True
    with os.scandir(folder) as entries:
        return any(merged.ARROW_FOLDER.fullmatch(entry.name) for entry in entries)


def listed_processes(folder: Path) -> Sequence[Process]:
    """Returns the processes that a folder lists; raises TraceFormatError where its list is none."""
    place = Place(str(folder), merged.LIST)
    try:
        status = (folder / merged.LIST).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
            reason = f"it is no regular file of at most {_MOST} bytes"
            raise place.error(reason)
        return merged.parsed((folder / merged.LIST).read_text("utf-8"))
    except OSError as error:
        raise place.error(error.strerror or error) from error
    except ValueError as error:
        raise place.error(error) from error


def open_processes(folder: Path, pool: Pool | None = None) -> tuple[Sequence[Process], Sequence[ArrowSource]]:
    """Returns the processes of a merged folder, with their recordings.

    Raises:
        TraceFormatError: the folder, or that of a process, is damaged, or of a newer major version.
    """
    processes = listed_processes(folder)
    sources: list[ArrowSource] = []
    with contextlib.ExitStack() as stack:
        for process in processes:
            sources.append(ArrowSource(inner_folder(folder, process.number), pool=pool))
            stack.callback(sources[-1].close)
        stack.pop_all()
    return processes, sources


def inner_folder(folder: Path, number: int) -> Path:
    """Returns the folder of a process; raises TraceFormatError where it is none, or a link."""
    inside = folder / merged.arrow_folder(number)
    if inside.is_symlink() or not inside.is_dir():
        message = f"{str(folder)!r} is no intact trace: {inside.name}: it is no folder in it"
        raise TraceFormatError(message, path=str(folder))
    return inside


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """The recording of one process, to be merged with those of others.

    Attributes:
        process: its number and name.
        source: the recording.
        compression: as `tracerec.formats.arrow.seal.seal`; ``"same"``: its files are copied as they are.
    """

    process: Process
    source: TraceSource
    compression: str | None


def merge_processes(recordings: Sequence[Recording], path: Path, *, wrote: Callable[[int], None]) -> None:
    """Writes the recordings of several processes to one folder, which is not given another name when it is complete.

    Args:
        recordings: the recordings, in the order of their numbers.
        path: the folder; nothing may be there.
        wrote: told of the bytes that were written: of files that are copied, and of records of others, uncompressed.

    Raises:
        SealingError: it cannot be written, or a recording cannot be read.
    """
    try:
        path.mkdir()
    except OSError as error:
        raise _failed(path, error) from error
    for each in recordings:
        write_one(each.source, path / merged.arrow_folder(each.process.number), each.compression, wrote)
    try:
        (path / merged.LIST).write_text(merged.text_of([each.process for each in recordings]), "utf-8")
        for synced in (path / merged.LIST, path):
            _sync(synced)
    except OSError as error:
        raise _failed(path, error) from error


def write_one(source: TraceSource, path: Path, compression: str | None, wrote: Callable[[int], None]) -> None:
    """Writes one recording to a folder, as `merge_processes` does."""
    from tracerec.formats.arrow.seal import seal

    if compression == "same" and isinstance(source, ArrowSource):
        copy_folder(source, path, wrote)
    else:
        seal(source, path, compression=None if compression == "same" else compression, wrote=wrote)


def copy_folder(source: ArrowSource, path: Path, wrote: Callable[[int], None]) -> None:
    """Copies a folder of Arrow files as they are, compared with their checksums.

    Args:
        source: the folder.
        path: the copy; nothing may be there.
        wrote: told of the bytes that were written.

    Raises:
        SealingError: it cannot be written, or the folder is damaged.
    """
    try:
        path.mkdir()
        for check in source.files:
            found = _copied(Place(source.path, check.name), path / check.name, check.nbytes, wrote)
            if found != check.crc32c:
                reason = f"its CRC-32C is {found:08x}, not {check.crc32c:08x}: it is not what was written"
                raise Place(source.path, check.name).error(reason)
        for name in (layout.CHECKSUM, layout.STREAMS):
            # Folders of before version 1.2 have no checksum of the list.
            if os.path.lexists(Path(source.path) / name):
                _copied(Place(source.path, name), path / name, None, wrote)
        _sync(path)
    except (OSError, TraceFormatError) as error:
        raise _failed(path, error) from error


def _copied(place: Place, target: Path, nbytes: int | None, wrote: Callable[[int], None]) -> int:
    """Copies one file; returns its CRC-32C."""
    with target.open("xb") as out:

        def take(block: memoryview) -> None:
            out.write(block)
            wrote(len(block))

        found = checksum_of(map_file(place, nbytes), take)
        out.flush()
        os.fsync(out.fileno())
    return found


def _failed(path: Path, error: Exception) -> SealingError:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    message = f"{path} cannot be written: {reason}"
    return SealingError(message, path=str(path))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
