"""A file or folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.errors import ExportError, TracerecError
from tracerec.trace.inputs import in_the_way

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

__all__ = ["check_free", "written"]


def check_free(
    path: Path,
    *,
    force: bool,
    inputs: Iterable[str] = (),
    folder: bool = False,
    is_ours: Callable[[Path], bool] = lambda _: False,
) -> None:
    """Raises ExportError where something is at a path that may not be replaced.

    Args:
        path: where something is to be written.
        force: whether a file may be replaced, and a folder that an export made.
        inputs: the files and folders that are being read, which are never replaced.
        folder: whether a folder is to be written; it replaces no file.
        is_ours: whether an export made the folder.
    """
    reason = in_the_way(path, inputs)
    if reason is not None:
        message = f"{path} {reason}; choose another place (-o) to write to"
        raise ExportError(message, path=str(path))
    if not os.path.lexists(path):
        return
    if folder and (path.is_symlink() or not path.is_dir()):
        what = "link" if path.is_symlink() else "file"
        message = f"{path} is a {what}, and what is to be written is a folder; remove it, or choose another place"
        raise ExportError(message, path=str(path))
    if not force:
        message = f"{path} exists already; remove it, choose another place, or say force (--force) to replace it"
        raise ExportError(message, path=str(path))
    if path.is_dir() and not path.is_symlink() and not is_ours(path):
        message = f"{path} is a folder with other things than an export in it, which is never replaced; remove it first"
        raise ExportError(message, path=str(path))


@contextlib.contextmanager
def written(path: Path, *, folder: bool = False) -> Generator[Path]:
    """Gives a place to write to, beside a path; what is there goes to the path at the end, and goes away on an error.

    Args:
        path: where the file or folder shall be; what is there is replaced.
        folder: whether it is a folder.

    Raises:
        ExportError: it cannot be written.
    """
    try:
        around = Path(tempfile.mkdtemp(prefix=f".{path.name[:80]}.", suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise _failed(path, error) from error
    place = around / path.name
    try:
        if folder:
            place.mkdir()
        yield place
        if not folder:
            _flush(place)
        _replace(place, path, around)
    except TracerecError:
        # Some of them are OSErrors, and say all.
        raise
    except OSError as error:
        raise _failed(path, error) from error
    finally:
        shutil.rmtree(around, ignore_errors=True)


def _replace(place: Path, path: Path, around: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # A folder is not replaced by a rename.
        path.rename(around / "old")
    place.replace(path)


def _flush(place: Path) -> None:
    with place.open("rb") as file:
        os.fsync(file.fileno())


def _failed(path: Path, error: OSError) -> ExportError:
    reason = f"there is no folder {path.parent}" if not path.parent.is_dir() else error.strerror or error
    message = f"{path} cannot be written: {reason}"
    return ExportError(message, path=str(path))
