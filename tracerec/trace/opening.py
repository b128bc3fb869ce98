"""Opening a trace: which form of a recording is at a path, and what to say when none is."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound

if TYPE_CHECKING:
    from tracerec.formats.contract import TraceSource
    from tracerec.trace.trace import Trace

__all__ = ["LIVE_SUFFIX", "open_trace"]

LIVE_SUFFIX = ".live"
"""What the folder of a recording that is not sealed has behind the recording's name."""

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
"""The signature of an HDF5 file: HDF5 File Format Specification, III.A."""

_ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".ipc"})


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Returns the trace at a path. It reads the list of streams alone; close it, or use it in a ``with``.

    Args:
        path: a sealed recording such as ``run.h5``; for a run that was killed or still runs the same path,
            although there is only the folder ``run.h5.live`` yet, or that folder.

    Raises:
        TraceNotFound: there is nothing at the path. The message has the nearest name beside it.
        TraceFormatError: what is there is empty, no trace, damaged, or of a newer major version.

    Example:
        >>> open_trace("missing.h5")
        Traceback (most recent call last):
            ...
        tracerec.errors.TraceNotFound: there is no trace at missing.h5
    """
    from tracerec.trace.trace import Trace

    return Trace(_source(Path(os.fspath(path))))


def _source(path: Path) -> TraceSource:
    if path.suffix in _ARROW_SUFFIXES:
        message = f"{path}: Arrow recordings are not supported yet; this version reads HDF5 (.h5)"
        raise TraceFormatError(message, path=str(path))
    live = path.with_name(path.name + LIVE_SUFFIX)
    try:
        if path.is_dir():
            return _journal(path)
        if path.exists():
            return _sealed(path)
        if live.is_dir():
            return _journal_or_sealed(live, path)
    except TraceError:
        raise
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise TraceFormatError(message, path=str(path)) from error
    message = f"there is no trace at {path}{_hint(path)}"
    raise TraceNotFound(message, path=str(path))


def _journal_or_sealed(live: Path, path: Path) -> TraceSource:
    try:
        return _journal(live)
    except TraceNotFound:
        # Between the look and the reading, the run may have closed: the journal goes when the file is there.
        if path.exists():
            return _sealed(path)
        raise


def _journal(folder: Path) -> TraceSource:
    from tracerec.journal.reading import JournalSource

    return JournalSource(folder)


def _sealed(path: Path) -> TraceSource:
    if not path.is_file():
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
    """Returns what to say of the files beside a missing one."""
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {folder}"
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    # A killed run is opened by the name it would have had.
    names = [name.removesuffix(LIVE_SUFFIX) for name in names if name.endswith((".h5", ".h5" + LIVE_SUFFIX))]
    near = difflib.get_close_matches(path.name, sorted(set(names)), n=1, cutoff=0.5)
    return f"; did you mean {folder / near[0]}?" if near else ""
