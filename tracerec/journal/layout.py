"""Names in a live folder, and its manifest.

``run.h5.live/`` holds ``manifest.json`` (run information by `tracerec.formats.contract.RunInfo`), and
``segment-000000.frames`` and so on; frames are only ever appended to the last one. ``part-000000.h5`` is the sealed
form of segment 0, which is deleted once its part has its name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats.contract import FORMAT_VERSION, RunInfo

__all__ = [
    "MANIFEST",
    "Ballast",
    "Journal",
    "live_folder",
    "part_path",
    "parts",
    "read_journal",
    "read_manifest",
    "segment_number",
    "segment_path",
    "segments",
    "write_manifest",
]

MANIFEST = "manifest.json"
_FORMAT = "tracerec-journal"

_SEGMENT = re.compile(r"segment-([0-9]{6,12})\.frames")
_PART = re.compile(r"part-([0-9]{6,12})\.(h5|arrow)")

_BALLAST = "ballast"
_BALLAST_BYTES = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Journal:
    """What the manifest says of the folder itself.

    Attributes:
        first_segment: segments and parts of lower numbers were deleted to keep the newest alone.
        target: the name of the file that closing makes, ``"run.h5"``.
    """

    first_segment: int = 0
    target: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Journal:
        """Returns what `to_json` gave; raises ValueError, TypeError or AttributeError on other input."""
        first, target = data.get("first_segment", 0), data.get("target")
        named = target is None or (isinstance(target, str) and os.path.basename(target) == target != "")  # noqa: PTH119
        if type(first) is not int or first < 0 or not named:
            message = f"first_segment {first!r}, target {target!r}"
            raise ValueError(message)
        return cls(first, target)


class Ballast:
    """Bytes on the disk that are given back when it is full, so that a journal can be ended in good order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            # random: a file system that compresses would keep no room for zeros
            (folder / _BALLAST).write_bytes(os.urandom(_BALLAST_BYTES))
        except OSError:
            # No room for ballast is no reason not to try to record.
            self.drop()

    def drop(self) -> None:
        """Gives the room back."""
        self.remove(self._folder)

    @staticmethod
    def remove(folder: Path) -> None:
        """Removes the ballast of a folder, if there is any."""
        with contextlib.suppress(OSError):
            (folder / _BALLAST).unlink(missing_ok=True)


def live_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the folder that a recording to ``path`` lives in: ``run.h5.live`` for ``run.h5``."""
    return Path(os.fspath(path) + ".live")


def segment_path(folder: Path, number: int) -> Path:
    """Returns the path of a segment by its number, from 0."""
    return folder / f"segment-{number:06d}.frames"


def part_path(folder: Path, number: int, suffix: str) -> Path:
    """Returns the path of the sealed form of a segment; the suffix is ``".h5"`` or ``".arrow"``."""
    return folder / f"part-{number:06d}{suffix}"


def segments(folder: Path) -> list[Path]:
    """Returns the segments in order of their numbers."""
    return [path for _, path in sorted(_numbered(folder, _SEGMENT))]


def segment_number(path: Path) -> int:
    """Returns the number in the name of a segment."""
    found = _SEGMENT.fullmatch(path.name)
    if found is None:
        message = f"{path.name!r} is no segment"
        raise ValueError(message)
    return int(found[1])


def parts(folder: Path) -> dict[int, Path]:
    """Returns the sealed parts by number, ascending."""
    return dict(sorted(_numbered(folder, _PART)))


def write_manifest(folder: Path, info: RunInfo, journal: Journal | None = None) -> None:
    """Writes the manifest whole or not at all: a temporary file, fsync, rename."""
    data = {
        "format": _FORMAT,
        "version": list(FORMAT_VERSION),
        "run": info.to_json(),
        "journal": (journal or Journal()).to_json(),
    }
    temporary = folder / (MANIFEST + ".tmp")
    with temporary.open("w", encoding="ascii") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> RunInfo:
    """Returns the run information of a live folder.

    Raises:
        TraceNotFound: the folder has no manifest.
        TraceFormatError: the manifest is damaged or of a newer major version.
    """
    return _read(folder)[0]


def read_journal(folder: Path) -> Journal:
    """Returns what the manifest of a live folder says of the folder; raises as `read_manifest`."""
    return _read(folder)[1]


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    with os.scandir(folder) as entries:
        found = [(pattern.fullmatch(entry.name), entry.name) for entry in entries]
    return [(int(match[1]), folder / name) for match, name in found if match]


def _read(folder: Path) -> tuple[RunInfo, Journal]:
    path = folder / MANIFEST
    try:
        data: Any = json.loads(_read_text(path))
        major = int(data["version"][0])
        if data["format"] == _FORMAT and major <= FORMAT_VERSION[0]:
            return RunInfo.from_json(data["run"]), Journal.from_json(data.get("journal", {}))
    except FileNotFoundError:
        message = f"{folder}: no recording, it has no {MANIFEST}"
        raise TraceNotFound(message, path=str(folder)) from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, RecursionError) as error:
        message = f"{path}: damaged manifest: {error}"
        raise TraceFormatError(message, path=str(folder)) from error
    if data["format"] != _FORMAT:
        message = f"{path}: not the manifest of a tracerec journal"
    else:
        message = f"{path}: journal version {major} is newer than this tracerec reads ({FORMAT_VERSION[0]}); upgrade it"
    raise TraceFormatError(message, path=str(folder))


def _read_text(path: Path) -> str:
    """Returns a small text file's content; raises ValueError for what would be waited for, or has no end."""
    # not blocking, since opening a pipe waits for ever
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(fd, encoding="ascii") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MANIFEST_BYTES:
            message = f"it is no regular file of at most {_MANIFEST_BYTES} bytes"
            raise ValueError(message)
        return file.read()


_MANIFEST_BYTES = 64 << 20
