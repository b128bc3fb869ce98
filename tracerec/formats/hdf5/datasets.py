"""One dataset of a file nobody has vouched for: checked when it is opened, read by whole chunks.

HDF5 is asked for the raw chunks alone. What it would do behind our back is then out of reach of the file: it
follows no links, opens no second file, loads no filter plugin, converts no bits.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5d, h5g, h5l

from tracerec.errors import TraceFormatError
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.codecs import MAX_RATIO, codec_of, decompress
from tracerec.formats.hdf5.types import file_type

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HDF5_ERRORS", "Dataset", "Place", "open_group"]

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)
"""What h5py raises for what HDF5 finds wrong; which one depends on the HDF5 version."""

READABLE_CHUNK = 64 << 20
"""Bytes of the largest chunk read. The writer's are at most 1 MiB; a later version's may be larger."""


class Place:
    """Where in which file something is, for messages.

    Attributes:
        file: the file's path.
        size: the file's size in bytes.
        inside: the path inside the file.
    """

    def __init__(self, file: str, size: int, inside: str = "/") -> None:
        self.file = file
        self.size = size
        self.inside = inside

    def child(self, name: str) -> Place:
        """Returns the place of a member."""
        return Place(self.file, self.size, f"{self.inside.rstrip('/')}/{name}")

    def error(self, what: object) -> TraceFormatError:
        """Returns the error that says what is wrong here, in one line."""
        reason = " ".join(str(what).split()) or type(what).__name__
        message = f"{self.file!r} is no intact trace: {self.inside}: {reason}"
        return TraceFormatError(message, path=self.file)


def open_group(parent: h5g.GroupID, name: str, place: Place) -> h5g.GroupID:
    """Returns a group of that name; raises TraceFormatError when there is none, or when it is a link elsewhere."""
    _check_link(parent, name, place)
    try:
        return h5g.open(parent, name.encode())
    except HDF5_ERRORS as error:
        raise place.error(error) from error


class Dataset:
    """A dataset of which every size was checked.

    Args:
        parent: the group that holds it.
        table: its name, dtype and the shape of one record.
        records: how many records it must hold; None: whatever it says.
        place: where it is.

    Raises:
        TraceFormatError: it is missing, lies outside the file, is not of that type and shape, is stored in a way
            that tracerec does not write, or declares more bytes than the file can hold.
    """

    def __init__(self, parent: h5g.GroupID, table: layout.Table, records: int | None, place: Place) -> None:
        self._table, self._place = table, place
        _check_link(parent, table.name, place)
        try:
            self._id = h5d.open(parent, table.name.encode())
            self._check(records)
        except HDF5_ERRORS as error:
            raise place.error(error) from error

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self._shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its chunks in the file; raises TraceFormatError where the file does not tell."""
        try:
            return self._id.get_storage_size()
        except HDF5_ERRORS as error:
            raise self._place.error(error) from error

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns records ``start`` to ``stop`` as ``(stop - start, *shape)`` of the logical dtype.

        Raises:
            IndexError: the range is not within the records.
            TraceFormatError: a chunk is missing or damaged.
        """
        if not 0 <= start <= stop <= self.records:
            message = f"records {start}:{stop} of {self.records} in {self._place.inside}"
            raise IndexError(message)
        bits = np.empty((stop - start, *self._shape[1:]), np.dtype((np.void, self._table.numpy.itemsize)))
        if bits.size:
            for offset in self._offsets(start, stop):
                try:
                    self._read_chunk(offset, start, bits)
                except HDF5_ERRORS as error:
                    reason = f"chunk at {offset}: {error}"
                    raise self._place.error(reason) from error
        return bits.view(self._table.numpy).reshape(stop - start, *self._table.shape)

    def _check(self, records: int | None) -> None:
        """Raises ValueError for a dataset that tracerec did not write."""
        table, self._shape = self._table, self._id.shape
        expected = layout.stored_shape(self._shape[0] if records is None else records, table.shape)
        if self._shape != expected:
            message = f"has shape {self._shape}, not {expected}"
            raise ValueError(message)
        if not self._id.get_type().equal(file_type(table.dtype)):
            message = f"has elements of {self._id.dtype}, not {table.dtype}"
            raise ValueError(message)
        properties = self._id.get_create_plist()
        if properties.get_layout() == h5d.VIRTUAL or properties.get_external_count():
            message = "its data lie in other files, which tracerec does not open"
            raise ValueError(message)
        nbytes = math.prod(self._shape) * table.numpy.itemsize
        if not nbytes:
            return
        if properties.get_layout() != h5d.CHUNKED:
            message = "is not chunked"
            raise ValueError(message)
        self._chunk = properties.get_chunk()
        self._pipeline = codec_of(properties, table.numpy.itemsize)
        self._chunk_nbytes = math.prod(self._chunk) * table.numpy.itemsize
        if nbytes > self._place.size * (MAX_RATIO if self._pipeline else 1) or self._chunk_nbytes > READABLE_CHUNK:
            message = f"declares {nbytes} bytes in chunks of {self._chunk_nbytes}, in a file of {self._place.size}"
            raise ValueError(message)

    def _offsets(self, start: int, stop: int) -> Iterator[tuple[int, ...]]:
        """Yields the corners of the chunks that hold these records, in row-major order."""
        first = start - start % self._chunk[0]
        rest = (range(0, n, c) for n, c in zip(self._shape[1:], self._chunk[1:], strict=True))
        return itertools.product(range(first, stop, self._chunk[0]), *rest)

    def _read_chunk(self, offset: tuple[int, ...], start: int, bits: np.ndarray) -> None:
        """Copies what a chunk holds of ``bits``, whose first record is ``start``."""
        row, skipped = offset[0] - start, max(0, start - offset[0])
        rest = (slice(low, low + c) for low, c in zip(offset[1:], self._chunk[1:], strict=True))
        target = bits[(slice(row + skipped, row + self._chunk[0]), *rest)]
        if target.shape == self._chunk and target.flags.c_contiguous:
            self._decode(offset, target.reshape(-1).view(np.uint8))
            return
        whole = np.empty(self._chunk, bits.dtype)
        self._decode(offset, whole.reshape(-1).view(np.uint8))
        part = (slice(skipped, skipped + target.shape[0]), *map(slice, target.shape[1:]))
        target[...] = whole[part]

    def _decode(self, offset: tuple[int, ...], out: np.ndarray) -> None:
        # A chunk that does not compress grows by some bytes; one that is longer still is refused by h5py.
        stored = np.empty(self._chunk_nbytes + self._chunk_nbytes // 512 + 64, np.uint8)
        mask, data = self._id.read_direct_chunk(offset, out=stored)
        if mask:
            message = f"filter mask {mask:#x}"
            raise ValueError(message)
        decompress(self._pipeline, np.frombuffer(data, np.uint8), out, self._table.numpy.itemsize)


def _check_link(parent: h5g.GroupID, name: str, place: Place) -> None:
    try:
        kind = parent.links.get_info(name.encode()).type
    except HDF5_ERRORS as error:
        reason = "is missing"
        raise place.error(reason) from error
    if kind != h5l.TYPE_HARD:
        reason = "is a link to something else, which tracerec does not follow"
        raise place.error(reason)
