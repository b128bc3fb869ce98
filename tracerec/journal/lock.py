"""Whose journal it is: an advisory lock that dies with its process.

The lock is ``flock`` on a file in the live folder. On network file systems without it nothing protects a journal from a
second process but the folder itself, which is made with an exclusive ``mkdir``.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalLock", "is_locked"]

_NAME = "lock"

_TRIES = 10
_PAUSE_SECONDS = 0.01


class JournalLock:
    """Holds a journal for this process until it is released or the process ends.

    Args:
        folder: an existing live folder.

    Raises:
        BlockingIOError: another recording holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take()
        except BlockingIOError:
            self.forget()
            raise
        except OSError:
            # no locks on this file system
            return
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def _take(self) -> None:
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # a reader that asks whether the journal is locked holds it for a moment
                time.sleep(_PAUSE_SECONDS)
            else:
                return
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def forget(self) -> None:
        """Closes the file: the lock is gone, unless a parent process still holds it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(folder: Path) -> bool:
    """Returns whether a recording, of this or another process on this machine, is using a live folder."""
    try:
        fd = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
