"""Opening a trace: which form of a recording is at a path, and what to say when none is."""

from __future__ import annotations

import difflib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracerec.formats.contract import TraceSource
    from tracerec.trace.trace import Trace

__all__ = ["LIVE_SUFFIX", "open_trace"]

LIVE_SUFFIX = ".live"
"""What the folder of a recording that is not sealed has behind the recording's name."""

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
"""The signature of an HDF5 file: HDF5 File Format Specification, III.A."""


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Returns the trace at a path. It reads the list of streams alone; close it, or use it in a ``with``.

    Args:
        path: a sealed recording such as ``run.h5``; for a run that was killed or still runs the same path,
            although there is only the folder ``run.h5.live`` yet, or that folder.

    Raises:
        TraceNotFound: there is nothing at the path. The message has the nearest name beside it.
        TraceFormatError: what is there cannot be read: it is empty, no trace, damaged, of a newer major version, or
            not permitted to be read.

    Example:
        >>> open_trace("missing.h5")
        Traceback (most recent call last):
            ...
        tracerec.errors.TraceNotFound: there is no trace at missing.h5
    """
    from tracerec.trace.trace import Trace

    return Trace(_source(os.fspath(path)))


def _source(text: str) -> TraceSource:
    if not text:
        message = "there is no trace at '': the path is empty"
        raise TraceNotFound(message, path=text)
    path = Path(text)
    try:
        source = _found(path)
        reason = "" if source else _hint(path)
    except TraceError:
        raise
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise TraceFormatError(message, path=text) from error
    except ValueError as error:
        # A NUL, or a surrogate that stands for no byte.
        message = f"there is no trace at {text!r}: no file can have this name: {error}"
        raise TraceNotFound(message, path=text) from error
    if source is None:
        message = f"there is no trace at {path}{reason}"
        raise TraceNotFound(message, path=text)
    return source


def _found(path: Path) -> TraceSource | None:
    """Returns what is at a path, or None; raises OSError for what cannot be looked at."""
    live = Path(os.fspath(path) + LIVE_SUFFIX)
    mode = _mode(path)
    if mode is not None:
        return _folder(path) if stat.S_ISDIR(mode) else _sealed(path, mode)
    try:
        mode = _mode(live)
    except OSError as error:
        # The suffix can make a name longer than the file system allows, so that it has no such folder.
        if error.errno != errno.ENAMETOOLONG:
            raise
    return _journal_or_sealed(live, path) if mode is not None and stat.S_ISDIR(mode) else None


def _folder(path: Path) -> TraceSource:
    from tracerec.formats.arrow import layout

    if layout.is_trace(path):
        from tracerec.formats.arrow.reading import ArrowSource

        return ArrowSource(path)
    return _journal(path)


def _mode(path: Path) -> int | None:
    """Returns the kind and permissions of what is at a path, links followed; None when there is nothing."""
    # Path.exists says False for more than that, and for what differs between Python versions.
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _journal_or_sealed(live: Path, path: Path) -> TraceSource:
    try:
        return _journal(live)
    except FileNotFoundError:
        # Between the look and the reading, the run may have closed: the journal goes when the file is there.
        mode = _mode(path)
        if mode is not None:
            return _folder(path) if stat.S_ISDIR(mode) else _sealed(path, mode)
        raise


def _journal(folder: Path) -> TraceSource:
    from tracerec.formats.live import open_live
    from tracerec.journal.layout import MANIFEST

    # Here, since a pattern finds nothing in a folder that may not be listed, and reading a pipe waits for ever.
    names: set[str] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            names.add(entry.name)
            read = entry.name == MANIFEST or entry.name.endswith(".frames")
            if read and not entry.is_file(follow_symlinks=False):
                message = f"{folder} is no intact recording: {entry.name} is not a regular file"
                raise TraceFormatError(message, path=str(folder))
    if MANIFEST not in names:
        message = f"{folder} is a folder and no recording: it has no {MANIFEST}{_meant(folder, _recordings(names))}"
        raise TraceNotFound(message, path=str(folder))
    # A manifest that may not be read is no damaged one.
    (folder / MANIFEST).open("rb").close()
    return open_live(folder)


def _sealed(path: Path, mode: int) -> TraceSource:
    if not stat.S_ISREG(mode):
        message = f"{path} is not a trace: it is not a regular file"
        raise TraceFormatError(message, path=str(path))
    with path.open("rb") as file:
        start = file.read(len(_HDF5_MAGIC))
    if not start:
        message = f"{path} is empty: no trace was ever written to it"
        raise TraceFormatError(message, path=str(path))
    if start != _HDF5_MAGIC:
        message = f"{path} is not a trace: it is not an HDF5 file (it begins with {start!r})"
        raise TraceFormatError(message, path=str(path))
    from tracerec.formats.hdf5.reading import Hdf5Source

    return Hdf5Source(path)


def _hint(path: Path) -> str:
    """Returns what to say of a missing file: where its link leads, or which name beside it was meant."""
    folder = path.parent
    if path.is_symlink():
        return f": it is a link to {path.readlink()}, which does not exist"
    if not folder.is_dir():
        return f": there is no folder {folder}"
    try:
        with os.scandir(folder) as entries:
            names = _recordings(entry.name for entry in entries)
    except PermissionError:
        return ""  # the folder may be entered but not listed
    return _meant(folder, difflib.get_close_matches(path.name, names, n=3, cutoff=0.5))


def _meant(folder: Path, names: Iterable[str]) -> str:
    """Returns a question with the first of these recordings that is there; a name can be that of a link to nowhere."""
    there = (folder / name for name in names if any((folder / n).exists() for n in (name, name + LIVE_SUFFIX)))
    found = next(there, None)
    return "" if found is None else f"; did you mean {found}?"


def _recordings(names: Iterable[str]) -> list[str]:
    """Returns those of a folder's names that are recordings'; a killed run has the name it would have had."""
    suffixes = (".h5", ".h5" + LIVE_SUFFIX)
    return sorted({n.removesuffix(LIVE_SUFFIX) for n in names if n.endswith(suffixes) and not n.startswith(".")})
