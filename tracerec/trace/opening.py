"""Opening a trace: which form of a recording is at a path, which ones are one trace, what to say of none."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.trace.finding import LIVE_SUFFIX, is_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracerec.formats.contract import TraceSource
    from tracerec.formats.merged import Process
    from tracerec.formats.pool import Pool
    from tracerec.trace.processes import ProcessesSource
    from tracerec.trace.trace import Trace

__all__ = ["LIVE_SUFFIX", "open_source", "open_sources", "open_trace"]

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
"""The signature of an HDF5 file: HDF5 File Format Specification, III.A."""


Paths = str | os.PathLike[str]


def open_trace(path: Paths | Sequence[Paths]) -> Trace:
    """Returns the trace at a path. It reads the list of streams alone; close it, or use it in a ``with``.

    Several recordings, one a process, are one trace: a glob pattern such as ``"run.*.h5"``, or a list of paths. Numbers
    of arrival, calls and devices are a process's own. So each record has its process's number (`Record.process`,
    ``sel(process=)``): that in the file's name where the names differ in one number alone (``run.0.h5``, ``run.1.h5``),
    else the place of the path, of a pattern's in the order of names. Each process has its program order, and they are
    merged by time. `Trace.info` adds up what its ``processes`` say. A tap of several processes is one tap.

    Args:
        path: a sealed recording such as ``run.h5``; for a run that was killed or still runs the same path,
            although there is only the folder ``run.h5.live`` yet, or that folder; a pattern with ``*``, ``?``,
            ``[...]`` or ``**`` (a path that is there is none), which also finds recordings that are not sealed; or a
            list of such paths.

    Raises:
        TraceNotFound: there is nothing at the path, or nothing matches. The message has the nearest name beside it.
        TraceFormatError: what is there cannot be read: it is empty, no trace, damaged, of a newer major version, or
            not permitted to be read. Of several the message names the one.
        TraceError: of several, two are of one process's recording.

    Example:
        >>> open_trace("missing.h5")
        Traceback (most recent call last):
            ...
        tracerec.errors.TraceNotFound: there is no trace at missing.h5
        >>> open_trace("missing.*.h5")
        Traceback (most recent call last):
            ...
        tracerec.errors.TraceNotFound: no recording matches missing.*.h5
    """
    from tracerec.trace.refreshing import Opened
    from tracerec.trace.trace import Trace

    return Trace(Opened(open_sources(path)))


def open_sources(path: Paths | Sequence[Paths]) -> TraceSource:
    """Returns what `open_trace` makes a trace of, and raises the same: one recording, or those of several processes."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if not is_pattern(text) or _is_there(text):
            return open_source(text)
        return _of_processes(text, _matching(text), ordered=False)
    texts = [os.fspath(each) for each in path]
    if not texts:
        message = "there is no trace: the list of paths is empty"
        raise TraceNotFound(message)
    found = [
        each for text in texts for each in ([text] if not is_pattern(text) or _is_there(text) else _matching(text))
    ]
    return _of_processes(", ".join(texts), found, ordered=True)


def _of_processes(name: str, paths: Sequence[str], *, ordered: bool) -> ProcessesSource:
    """Returns the recordings of several processes, opened as one."""
    from tracerec.formats.pool import Pool
    from tracerec.trace.processes import ProcessesSource, numbered

    pool = Pool()
    numbers: list[int] = []
    sources: list[TraceSource] = []
    with contextlib.ExitStack() as stack:
        for number, path in numbered(paths, ordered=ordered):
            numbers.append(number)
            sources.append(open_source(path, pool))
            stack.callback(sources[-1].close)
            if isinstance(sources[-1], ProcessesSource):
                message = (
                    f"{path} is a merged recording of {len(sources[-1].sources)} processes already, which is opened "
                    "alone: leave it out of the paths or the pattern"
                )
                raise TraceError(message, path=path)
        joined = ProcessesSource(name, sources, numbers)
        stack.pop_all()
        return joined


def _matching(pattern: str) -> list[str]:
    found = matches(pattern)
    if not found:
        message = f"no recording matches {pattern}"
        if not is_pattern(os.fspath(Path(pattern).parent)):
            message += _hint(Path(pattern))
        raise TraceNotFound(message, path=pattern)
    return found


def _is_there(text: str) -> bool:
    """Returns whether there is something at a path that could be a pattern."""
    return os.path.lexists(text) or os.path.lexists(text + LIVE_SUFFIX)


def open_source(text: str, pool: Pool | None = None) -> TraceSource:
    """Returns what is at a path, opened, as `open_trace` says.

    Args:
        text: the path.
        pool: what it shares with others of one trace.
    """
    if not text:
        message = "there is no trace at '': the path is empty"
        raise TraceNotFound(message, path=text)
    path = Path(text)
    try:
        source = _found(path, pool)
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


def _found(path: Path, pool: Pool | None) -> TraceSource | None:
    """Returns what is at a path, or None; raises OSError for what cannot be looked at."""
    live = Path(os.fspath(path) + LIVE_SUFFIX)
    mode = _mode(path)
    if mode is not None:
        return _folder(path, pool) if stat.S_ISDIR(mode) else _sealed(path, mode, pool)
    try:
        mode = _mode(live)
    except OSError as error:
        # The suffix can make a name longer than the file system allows, so that it has no such folder.
        if error.errno != errno.ENAMETOOLONG:
            raise
    return _journal_or_sealed(live, path, pool) if mode is not None and stat.S_ISDIR(mode) else None


def _folder(path: Path, pool: Pool | None) -> TraceSource:
    from tracerec.formats.arrow import layout, processes

    if processes.is_merged(path):
        return _merged(path, *processes.open_processes(path, pool))
    if layout.is_trace(path):
        from tracerec.formats.arrow.reading import ArrowSource

        return ArrowSource(path, pool=pool)
    return _journal(path, pool)


def _mode(path: Path) -> int | None:
    """Returns the kind and permissions of what is at a path, links followed; None when there is nothing."""
    # Path.exists says False for more than that, and for what differs between Python versions.
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _journal_or_sealed(live: Path, path: Path, pool: Pool | None) -> TraceSource:
    try:
        return _journal(live, pool=pool)
    except FileNotFoundError:
        # Between the look and the reading, the run may have closed: the journal goes when the file is there.
        mode = _mode(path)
        if mode is not None:
            return _folder(path, pool) if stat.S_ISDIR(mode) else _sealed(path, mode, pool)
        raise


def _journal(folder: Path, pool: Pool | None = None) -> TraceSource:
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
    return open_live(folder, pool=pool)


def _sealed(path: Path, mode: int, pool: Pool | None) -> TraceSource:
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
    from tracerec.formats.hdf5.processes import open_hdf5

    processes, sources = open_hdf5(path, pool)
    return _merged(path, processes, sources) if processes else sources[0]


def _merged(path: Path, processes: Sequence[Process], sources: Sequence[TraceSource]) -> ProcessesSource:
    """Returns the processes of a merged recording as one."""
    from tracerec.trace.processes import ProcessesSource

    try:
        return ProcessesSource(
            str(path), sources, [each.number for each in processes], [each.name for each in processes]
        )
    except BaseException:
        for source in sources:
            source.close()
        raise


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
