"""Which form of a recording is at a path, judged by what is there, damaged or not."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Literal

from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats import merged
from tracerec.formats.arrow import layout as arrow_layout
from tracerec.journal.layout import MANIFEST

__all__ = ["PART", "SEGMENT", "Form", "Found", "find", "is_recording", "live_of"]

Form = Literal["hdf5", "arrow", "live", "parts"]

SEGMENT = re.compile(r"segment-([0-9]{6,12})\.frames", re.ASCII)
PART = re.compile(r"part-([0-9]{6,12})\.(h5|arrow)", re.ASCII)

_LIVE_SUFFIX = ".live"
_MARKS = re.compile(rb'tracerec_format|\{"columns":\[')
"""What a file of ours has in it: the root's attribute, a site's definition."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A recording, damaged or not.

    Attributes:
        path: the file or folder.
        form: ``"hdf5"``, ``"arrow"``, ``"live"``: the folder of a run that goes on or was killed, ``"parts"``: one
            that was closed as a folder of parts.
    """

    path: Path
    form: Form


def find(path: str | os.PathLike[str]) -> Found:
    """Returns what is at a path; for one where there is nothing, the live folder beside it.

    Raises:
        TraceNotFound: there is nothing.
        TraceFormatError: what is there is no recording, or may not be read.
    """
    text = os.fspath(path)
    try:
        return _find(Path(text), text)
    except OSError as error:
        if isinstance(error, TraceNotFound):
            raise
        message = f"{text} cannot be read: {error.strerror or error}"
        raise TraceFormatError(message, path=text) from error
    except ValueError as error:
        message = f"there is no trace at {text!r}: no file can have this name: {error}"
        raise TraceNotFound(message, path=text) from error


def live_of(path: Path) -> Path:
    """Returns the live folder of a recording, there or not."""
    return Path(os.fspath(path) + _LIVE_SUFFIX)


def is_recording(path: Path) -> bool:
    """Returns whether a file that cannot be opened was a recording once: whether marks of ours are in it."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _MARKS.search(data) is not None
    except (OSError, ValueError):
        return False


def _find(path: Path, text: str) -> Found:
    mode = _mode(path) if text else None
    live = live_of(path)
    if mode is None and text and _mode_of_live(live) is not None:
        path, mode = live, _mode(live)
    if mode is None:
        message = f"there is no trace at {text or repr(text)}"
        raise TraceNotFound(message, path=text)
    if stat.S_ISDIR(mode):
        return Found(path, _folder(path))
    if not stat.S_ISREG(mode):
        message = f"{path} is not a trace: it is not a regular file"
        raise TraceFormatError(message, path=text)
    return _file(path)


def _file(path: Path) -> Found:
    with path.open("rb") as file:
        start = file.read(8)
    if start == b"\x89HDF\r\n\x1a\n" or is_recording(path):
        return Found(path, "hdf5")
    reason = f"it is not an HDF5 file (it begins with {start!r})" if start else "it is empty"
    message = f"{path} is not a trace: {reason}"
    raise TraceFormatError(message, path=str(path))


def _folder(path: Path) -> Form:
    names = set(os.listdir(path))  # noqa: PTH208 - an error must name the folder as the user did
    if arrow_layout.STREAMS in names or any(arrow_layout.DATA_FILE.fullmatch(name) for name in names):
        return "arrow"
    if merged.LIST in names or any(merged.ARROW_FOLDER.fullmatch(name) for name in names):
        return "arrow"
    if MANIFEST not in names and not any(SEGMENT.fullmatch(n) or PART.fullmatch(n) for n in names):
        message = f"{path} is a folder and no recording: it has no {MANIFEST}"
        raise TraceNotFound(message, path=str(path))
    live = path.name.endswith(_LIVE_SUFFIX) or any(SEGMENT.fullmatch(name) for name in names)
    return "live" if live else "parts"


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _mode_of_live(live: Path) -> int | None:
    try:
        mode = _mode(live)
    except OSError as error:
        # The suffix can make a name longer than the file system allows, so that it has no such folder.
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise
    return mode if mode is not None and stat.S_ISDIR(mode) else None
