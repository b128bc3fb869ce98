"""Giving what was made its name: a file or folder that was written beside its place, complete, flushed to the disk."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["free_name", "move", "remove", "replace"]


def move(made: Path, target: Path) -> None:
    """Gives a file or folder a name that nothing has; raises FileExistsError when something has it by now."""
    if made.is_dir():
        # A folder never takes the place of one with files.
        made.rename(target)
    else:
        try:
            target.hardlink_to(made)
        except FileExistsError:
            raise
        except OSError:
            # No hard links on this file system.
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "it exists", str(target)) from None
            made.rename(target)
    _sync(target.parent)


def replace(made: Path, place: Path) -> None:
    """Puts a file or folder in another's place, at once; the other is deleted then."""
    if not place.is_dir():
        made.replace(place)
    elif _exchange(made, place):
        shutil.rmtree(made)
    else:
        old = free_name(place.with_name(f"{place.name}.old"))
        place.rename(old)
        made.rename(place)
        shutil.rmtree(old)
    _sync(place.parent)


def free_name(path: Path) -> Path:
    """Returns a path, or one beside it with a number, at which nothing is."""
    number = 1
    free = path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders' names at once (Linux's renameat2); returns False where that cannot be done."""
    import ctypes

    here, exchange = -100, 2
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def remove(path: Path) -> None:
    """Deletes a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
