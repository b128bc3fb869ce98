"""One dataset of a file nobody has vouched for: checked when it is opened, read by whole chunks.

HDF5 is asked for the raw chunks alone. What it would do behind our back is then out of reach of the file: it
follows no links, opens no second file, loads no filter plugin, converts no bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import crc32c
import numpy as np
from h5py import h5d, h5g, h5l

from tracerec.errors import TraceFormatError
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.codecs import MAX_RATIO, codec_of, decompress
from tracerec.formats.hdf5.types import file_type

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HDF5_ERRORS", "ChunkDamage", "Dataset", "Grid", "Place", "open_group"]

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
        tap: the tap whose stream it is, as text that a terminal can show; None outside of streams.
    """

    def __init__(self, file: str, size: int, inside: str = "/", tap: str | None = None) -> None:
        self.file = file
        self.size = size
        self.inside = inside
        self.tap = tap

    def child(self, name: str, tap: str | None = None) -> Place:
        """Returns the place of a member; ``tap`` where it is the group of a stream."""
        return Place(self.file, self.size, f"{self.inside.rstrip('/')}/{name}", tap or self.tap)

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


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkDamage:
    """A chunk that cannot be read, for whoever verifies or salvages a file.

    Attributes:
        dataset: the dataset's name in the stream's group, such as ``"data_0"``.
        chunk: the chunk's corner, in elements of the dataset.
        start: the first record that needs it.
        stop: the one after the last.
        checksum: whether it is the checksum that is wrong; else the chunk is missing or does not decompress.
        reason: what is wrong, in a few words.
    """

    dataset: str
    chunk: tuple[int, ...]
    start: int
    stop: int
    checksum: bool
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """How a dataset is cut into chunks. Chunks of datasets that agree in all but the lead can be copied as they are.

    Attributes:
        chunk: the shape of a chunk.
        filters: the filters as HDF5 describes them; see `tracerec.formats.hdf5.codecs.filters_of`.
        lead: rows before the first record's.
    """

    chunk: tuple[int, ...]
    filters: tuple[tuple[int, tuple[int, ...]], ...]
    lead: int


class _WrongChecksum(ValueError):
    """The bytes of a chunk are not those that were written."""


class Dataset:
    """A dataset of which every size was checked.

    Args:
        parent: the group that holds it.
        table: its name, dtype and the shape of one record.
        records: how many records it must hold; None: whatever it says.
        place: where it is.
        lead: rows before the first record's.

    Attributes:
        grid: how it is cut into chunks; None where there are no elements.

    Raises:
        TraceFormatError: it is missing, lies outside the file, is not of that type and shape, is stored in a way
            that tracerec does not write, or declares more bytes than the file can hold.
    """

    def __init__(
        self, parent: h5g.GroupID, table: layout.Table, records: int | None, place: Place, lead: int = 0
    ) -> None:
        self._table, self._place, self._lead = table, place, lead
        self._checksums: np.ndarray | None = None
        self.grid: Grid | None = None
        _check_link(parent, table.name, place)
        try:
            self._id = h5d.open(parent, table.name.encode())
            self._check(records)
        except HDF5_ERRORS as error:
            raise place.error(error) from error

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self._shape[0] - self._lead

    @property
    def nbytes(self) -> int:
        """Bytes of its chunks in the file; raises TraceFormatError where the file does not tell."""
        try:
            return self._id.get_storage_size()
        except HDF5_ERRORS as error:
            raise self._place.error(error) from error

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return 0 if self.grid is None else layout.chunk_count(self._shape, self.grid.chunk)

    def use_checksums(self, checksums: np.ndarray) -> None:
        """From now on compares each chunk that is read with its checksum; there must be one a chunk.

        Raises:
            TraceFormatError: there are fewer checksums than chunks.
        """
        if len(checksums) != self.chunks:
            reason = f"{self.chunks} chunks, but {len(checksums)} checksums"
            raise self._place.error(reason)
        self._checksums = checksums

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
            start, stop = start + self._lead, stop + self._lead
            for offset in self._offsets(start, stop):
                try:
                    self._read_chunk(offset, start, bits)
                except HDF5_ERRORS as error:
                    raise self._chunk_error(offset, error) from error
        return bits.view(self._table.numpy).reshape(len(bits), *self._table.shape)

    def stored(self, offset: tuple[int, ...]) -> bytes:
        """Returns the bytes of a chunk as they are in the file, compared with their checksum.

        Args:
            offset: the chunk's corner, in elements.

        Raises:
            TraceFormatError: the chunk is missing or damaged.
        """
        try:
            return bytes(self._stored(offset))
        except HDF5_ERRORS as error:
            raise self._chunk_error(offset, error) from error

    def damage(self) -> Iterator[ChunkDamage]:
        """Reads every chunk, and yields those that are missing or damaged."""
        if self.grid is None:
            return
        out = np.empty(self._chunk_nbytes, np.uint8)
        for offset in self._offsets(0, self._shape[0]):
            try:
                self._decode(offset, out)
            except HDF5_ERRORS as error:
                start = max(0, offset[0] - self._lead)
                stop = min(offset[0] + self.grid.chunk[0], self._shape[0]) - self._lead
                reason = " ".join(str(error).split())
                wrong = isinstance(error, _WrongChecksum)
                yield ChunkDamage(self._table.name, offset, start, max(stop, start), wrong, reason)

    def _check(self, records: int | None) -> None:
        """Raises ValueError for a dataset that tracerec did not write."""
        table, self._shape = self._table, self._id.shape
        rows = self._shape[0] if records is None else records + self._lead
        expected = layout.stored_shape(rows, table.shape)
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
        chunk = tuple(map(int, properties.get_chunk()))
        self._pipeline, filters = codec_of(properties, table.numpy.itemsize)
        self._chunk_nbytes = math.prod(chunk) * table.numpy.itemsize
        if nbytes > self._place.size * (MAX_RATIO if self._pipeline else 1) or self._chunk_nbytes > READABLE_CHUNK:
            message = f"declares {nbytes} bytes in chunks of {self._chunk_nbytes}, in a file of {self._place.size}"
            raise ValueError(message)
        if self._lead >= chunk[0]:
            message = f"has {self._lead} rows before the first record's, in chunks of {chunk[0]}"
            raise ValueError(message)
        self.grid = Grid(chunk, filters, self._lead)
        # Row-major: how many chunks lie between neighbours along each axis.
        grid = [-(-n // c) for n, c in zip(self._shape, chunk, strict=True)]
        self._strides = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]

    def _offsets(self, start: int, stop: int) -> Iterator[tuple[int, ...]]:
        """Yields the corners of the chunks that hold these rows, in row-major order."""
        chunk = self._some_chunk
        first = start - start % chunk[0]
        rest = (range(0, n, c) for n, c in zip(self._shape[1:], chunk[1:], strict=True))
        return itertools.product(range(first, stop, chunk[0]), *rest)

    def _read_chunk(self, offset: tuple[int, ...], start: int, bits: np.ndarray) -> None:
        """Copies what a chunk holds of ``bits``, whose first row is ``start``."""
        chunk = self._some_chunk
        row, skipped = offset[0] - start, max(0, start - offset[0])
        rest = (slice(low, low + c) for low, c in zip(offset[1:], chunk[1:], strict=True))
        target = bits[(slice(row + skipped, row + chunk[0]), *rest)]
        if target.shape == chunk and target.flags.c_contiguous:
            self._decode(offset, target.reshape(-1).view(np.uint8))
            return
        whole = np.empty(chunk, bits.dtype)
        self._decode(offset, whole.reshape(-1).view(np.uint8))
        part = (slice(skipped, skipped + target.shape[0]), *map(slice, target.shape[1:]))
        target[...] = whole[part]

    def _decode(self, offset: tuple[int, ...], out: np.ndarray) -> None:
        data = np.frombuffer(self._stored(offset), np.uint8)
        decompress(self._pipeline, data, out, self._table.numpy.itemsize)

    def _stored(self, offset: tuple[int, ...]) -> bytes | memoryview:
        # A chunk that does not compress grows by some bytes; one that is longer still is refused by h5py.
        room = np.empty(self._chunk_nbytes + self._chunk_nbytes // 512 + 64, np.uint8)
        mask, data = self._id.read_direct_chunk(offset, out=room)
        if mask:
            message = f"filter mask {mask:#x}"
            raise ValueError(message)
        if self._checksums is not None:
            number = sum(o // c * n for o, c, n in zip(offset, self._some_chunk, self._strides, strict=True))
            found, expected = crc32c.crc32c(data), int(self._checksums[number])
            if found != expected:
                message = f"its CRC-32C is {found:08x}, not {expected:08x}: its bytes are not those that were written"
                raise _WrongChecksum(message)
        return data

    @property
    def _some_chunk(self) -> tuple[int, ...]:
        """The shape of a chunk of a dataset with elements."""
        if self.grid is None:
            reason = "has no chunks"
            raise self._place.error(reason)
        return self.grid.chunk

    def _chunk_error(self, offset: tuple[int, ...], error: Exception) -> TraceFormatError:
        of_tap = "" if self._place.tap is None else f" of tap {self._place.tap}"
        return self._place.error(f"chunk at {offset}{of_tap}: {error}")


def _check_link(parent: h5g.GroupID, name: str, place: Place) -> None:
    try:
        kind = parent.links.get_info(name.encode()).type
    except HDF5_ERRORS as error:
        reason = "is missing"
        raise place.error(reason) from error
    if kind != h5l.TYPE_HARD:
        reason = "is a link to something else, which tracerec does not follow"
        raise place.error(reason)
