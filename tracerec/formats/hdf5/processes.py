"""The processes of a merged HDF5 file, each opened as a recording of its own."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tracerec.errors import TraceFormatError
from tracerec.formats import merged
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.files import OpenFile, attribute
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.headers import parse_version
from tracerec.formats.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.merged import Process

__all__ = ["listed_processes", "open_hdf5"]


def open_hdf5(path: str | os.PathLike[str], pool: Pool | None = None) -> tuple[Sequence[Process], Sequence[Hdf5Source]]:
    """Returns the processes of a merged file with their recordings; of any other file none, and its recording.

    Args:
        path: the file.
        pool: what it shares with other files of one trace.

    Raises:
        TraceNotFound: there is no such file.
        TraceFormatError: it is no trace, is damaged, or is of a newer major version.
    """
    text = os.fspath(path)
    # HDF5 opens a file that is open already at little cost.
    with contextlib.closing(OpenFile(text)) as file, contextlib.ExitStack() as stack:
        processes = _listed(file)
        if processes is None:
            return (), (Hdf5Source(text, pool=pool),)
        sources: list[Hdf5Source] = []
        pool = pool or Pool()
        for process in processes:
            sources.append(Hdf5Source(text, pool=pool, group=merged.group_path(process.number)))
            stack.callback(sources[-1].close)
        stack.pop_all()
    return processes, sources


def listed_processes(path: str | os.PathLike[str]) -> Sequence[Process] | None:
    """Returns the processes that a file lists; None where it is no merged one. Raises as `open_hdf5`."""
    with contextlib.closing(OpenFile(os.fspath(path))) as file:
        return _listed(file)


def _listed(file: OpenFile) -> Sequence[Process] | None:
    with file.root() as root:
        text = attribute(root, merged.ATTRIBUTE, file.place)
        if text is None or attribute(root, layout.FORMAT_ATTRIBUTE, file.place) != layout.FORMAT:
            return None
        try:
            parse_version(attribute(root, layout.VERSION_ATTRIBUTE, file.place) or "")
        except ValueError as error:
            message = f"{file.place.file!r}: {error}"
            raise TraceFormatError(message, path=file.place.file) from error
        try:
            return merged.parsed(text)
        except ValueError as error:
            raise file.place.error(error) from error
