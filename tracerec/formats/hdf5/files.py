"""One opened HDF5 file, which can be shut and opens again, unchanged, when it is next read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

import h5py
import numpy as np
from h5py import h5a, h5g, h5t

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Place, open_group

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tracerec.formats.pool import Pool

__all__ = ["OpenFile", "attribute", "open_root"]


_MOST_KEPT = 256
"""Groups and datasets kept open in a file: each takes kilobytes, and a file may have tens of thousands."""

_T = TypeVar("_T")


class OpenFile:
    """An HDF5 file opened for reading.

    Args:
        path: the file.
        pool: the pool of the trace that it is a part of, which may shut it; None: it is open until it is closed.
        group: the path of the group that is taken for the root; empty for the file's own.

    Attributes:
        place: where it is.

    Raises:
        TraceNotFound: there is no such file.
        TraceFormatError: it is no HDF5 file, or is damaged.
    """

    def __init__(self, path: str, pool: Pool | None = None, group: str = "") -> None:
        self._inside: OrderedDict[str, Any] = OrderedDict()
        self._pool, self._closed = pool, False
        self._lock = contextlib.nullcontext() if pool is None else pool.lock
        with self._lock:
            self._file = _opened(path)
            status = os.fstat(self._file.id.get_vfd_handle())
            self._identity = _identity(status)
            self.place = Place(path, status.st_size, f"/{group}")
            self._root = open_root(self._file, self.place)
            self._use()

    @contextlib.contextmanager
    def root(self) -> Generator[h5g.GroupID, None, None]:
        """Gives the file's root, which stays open as long as the block; raises TraceError when the file is closed."""
        with self._lock:
            if self._closed:
                message = f"{self.place.file!r} is closed"
                raise TraceError(message, path=self.place.file)
            if not self._file:
                self._open_again()
            self._use()
            yield self._root

    def kept(self, path: str, opened: Callable[[], _T]) -> _T:
        """Returns what is at a path in the file, which is kept open as long as not too much else is.

        Inside of a `root` block only.
        """
        found: _T | None = self._inside.get(path)
        if found is None:
            found = self._inside[path] = opened()
            if len(self._inside) > _MOST_KEPT:
                self._inside.popitem(last=False)
        else:
            self._inside.move_to_end(path)
        return found

    def shut(self) -> None:
        """Closes the file until it is next read."""
        self._inside.clear()
        self._file.close()

    def close(self) -> None:
        """Closes the file for good."""
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.forget(self)
            self.shut()

    def _use(self) -> None:
        if self._pool is not None:
            self._pool.use(self)

    def _open_again(self) -> None:
        path = self.place.file
        try:
            self._file = _opened(path)
        except TraceNotFound as error:
            message = f"{path!r} is gone: its recording was sealed, moved or deleted; open the trace again"
            raise TraceNotFound(message, path=path) from error
        if _identity(os.fstat(self._file.id.get_vfd_handle())) != self._identity:
            self._file.close()
            message = f"{path!r} is another file than when the trace was opened; open it again"
            raise TraceError(message, path=path)
        self._root = open_root(self._file, self.place)


def attribute(root: h5g.GroupID, name: str, place: Place) -> str | None:
    """Returns a text attribute of the root, None where there is none or it is something else.

    A text of variable length is something else: HDF5 2.0 loops for ever on a damaged heap of them.
    """
    try:
        if not h5a.exists(root, name.encode()):
            return None
        found = h5a.open(root, name.encode())
        kind = found.get_type()
        if found.shape != () or not isinstance(kind, h5t.TypeStringID) or kind.is_variable_str():
            return None
        if kind.get_size() > place.size:
            reason = f"attribute {name} declares {kind.get_size()} bytes, in a file of {place.size}"
            raise place.error(reason)
        value = np.empty((), f"S{kind.get_size()}")
        found.read(value, kind)
    except HDF5_ERRORS as error:
        reason = f"attribute {name}: {error}"
        raise place.error(reason) from error
    return bytes(value[()]).decode("utf-8", "replace")


def _opened(path: str) -> h5py.File:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # paths are str here
            # HDF5 would wait for somebody to write to a pipe.
            message = f"{path!r} is no trace, or is damaged: it is not a regular file"
            raise TraceFormatError(message, path=path)
        # Chunks are read past HDF5's cache. Locking stays as it is: HDF5 refuses to open a file twice in one
        # process with different settings, and the user may have it open.
        return h5py.File(path, "r", rdcc_nbytes=0)
    except FileNotFoundError as error:
        message = f"{path!r} does not exist"
        raise TraceNotFound(message, path=path) from error
    except HDF5_ERRORS as error:
        reason = " ".join(str(error).split())
        message = f"{path!r} is no trace, or is damaged: {reason}"
        raise TraceFormatError(message, path=path) from error


def open_root(file: h5py.File, place: Place) -> h5g.GroupID:
    """Returns the group at a place, without following a link; on a TraceFormatError the file is closed."""
    try:
        found = h5g.open(file.id, b"/")
        at = Place(place.file, place.size)
        for name in place.inside.strip("/").split("/") if place.inside != "/" else ():
            at = at.child(name)
            found = open_group(found, name, at)
    except TraceFormatError:
        file.close()
        raise
    except HDF5_ERRORS as error:
        file.close()
        raise place.error(error) from error
    return found


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
