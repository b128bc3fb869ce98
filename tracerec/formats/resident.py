"""Pages of mapped files go back to the system once they were read, so that memory does not grow with what is read.

The system would take them back itself when it needs them. Until then they count as the process's memory, which limits
of containers and batch systems, and people, take at its word. What is read again is mapped again, from the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

__all__ = ["MOST_RESIDENT", "RESIDENT", "Resident"]

MOST_RESIDENT = 64 << 20
"""Bytes that were read of mapped files and not given back."""


class Resident:
    """Counts what is read of mappings; gives the pages of those back that were read longest ago.

    Args:
        most: how many bytes may be resident, beside those of the mapping that is read now.

    Example:
        >>> import numpy as np
        >>> resident = Resident(most=100)
        >>> resident.read(np.zeros(10, np.uint8), 60)  # of an array that is no mapping nothing is given back
        >>> resident.nbytes
        60
    """

    def __init__(self, most: int = MOST_RESIDENT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._read: OrderedDict[int, tuple[weakref.ref[Any], int]] = OrderedDict()
        self.nbytes = 0

    def read(self, mapping: np.ndarray | mmap.mmap, nbytes: int) -> None:
        """Notes that so many bytes of a mapping are read now.

        Args:
            mapping: the whole mapping: one of Python's, or the array over all of one; slices keep it alive.
            nbytes: how many bytes of it.
        """
        with self._lock:
            reference, before = self._read.pop(id(mapping), (None, 0))
            if reference is None or reference() is not mapping:
                # One that is gone had the same number; its pages went with it.
                self.nbytes -= before
                reference, before = weakref.ref(mapping), 0
            elif before and before + nbytes > self._most:
                _give_back(mapping)
                self.nbytes -= before
                before = 0
            self._read[id(mapping)] = reference, before + nbytes
            self.nbytes += nbytes
            # Not the newest: what was noted now is read after this.
            while self.nbytes > self._most and len(self._read) > 1:
                _, (oldest, given_back) = self._read.popitem(last=False)
                self.nbytes -= given_back
                # Held as long as it is advised: other memory could be at its address otherwise.
                if (alive := oldest()) is not None:
                    _give_back(alive)


RESIDENT = Resident()
"""That of the process."""


def _give_back(mapping: np.ndarray | mmap.mmap) -> None:
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)
        return
    address = mapping.ctypes.data
    advise = _madvise()
    # Memory that is not the system's own pages of a file would lose what it holds.
    if advise is not None and _is_mapped(mapping) and address % mmap.PAGESIZE == 0:
        advise(address, mapping.nbytes, mmap.MADV_DONTNEED)


def _is_mapped(array: np.ndarray) -> bool:
    """Returns whether an array is a read-only view of memory that numpy does not own."""
    return not array.flags.owndata and not array.flags.writeable


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    try:
        found: Any = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found
