"""Arrays that are kept on disk once there are many of them."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import weakref
from typing import Any

import numpy as np

__all__ = ["Handle", "Spool"]

_IN_MEMORY = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Handle:
    """Where an array is.

    Attributes:
        offset: its first byte.
        shape: its shape.
        dtype: its dtype.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Spool:
    """Arrays put away one after the other: in memory as long as they are few, then in a file without a name.

    Example:
        >>> spool = Spool()
        >>> handle = spool.put(np.arange(3))
        >>> spool.get(handle).tolist()
        [0, 1, 2]
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it goes with this object
        self._end = 0
        # Where the file stands; -1: not at an end. A seek there, too, would write what is buffered.
        self._at = 0
        weakref.finalize(self, self._file.close)

    def put(self, array: np.ndarray) -> Handle:
        """Keeps an array."""
        array = np.ascontiguousarray(array)
        if self._at != self._end:
            self._file.seek(self._end)
        self._file.write(array.reshape(-1).view(np.uint8).data)
        handle = Handle(self._end, array.shape, array.dtype)
        self._end += array.nbytes
        self._at = self._end
        return handle

    def get(self, handle: Handle) -> np.ndarray:
        """Returns an array that was kept."""
        nbytes = math.prod(handle.shape) * handle.dtype.itemsize
        self._file.seek(handle.offset)
        self._at = -1
        return np.frombuffer(self._file.read(nbytes), handle.dtype).reshape(handle.shape)

    def change(self, handle: Handle, field: str, values: np.ndarray) -> None:
        """Replaces a field of a structured array that was kept."""
        array = self.get(handle).copy()
        array[field] = values
        self._file.seek(handle.offset)
        self._at = -1
        self._file.write(array.tobytes())
