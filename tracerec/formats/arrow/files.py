"""One data file of a folder nobody has vouched for: mapped into memory, checked, read by ranges of rows."""

from __future__ import annotations

import dataclasses
import mmap
import os
import stat
from functools import cached_property
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from tracerec.errors import TraceFormatError
from tracerec.formats.arrow import layout
from tracerec.formats.arrow.ipc import IPC_ERRORS, Batch, Column, Extent, IpcFile
from tracerec.formats.resident import RESIDENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["MappedFile", "Place", "checksum_of", "map_file"]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Which file of which trace something is in, for messages.

    Attributes:
        folder: the trace's path.
        name: the file's name.
    """

    folder: str
    name: str

    @property
    def path(self) -> str:
        """The file's path."""
        return os.path.join(self.folder, self.name)  # noqa: PTH118  # paths are str here, as the user gave them

    def error(self, what: object) -> TraceFormatError:
        """Returns the error that says what is wrong here, in one line."""
        reason = " ".join(str(what).split()) or type(what).__name__
        message = f"{self.path!r} is no intact trace: {reason if reason.isprintable() else ascii(reason)}"
        return TraceFormatError(message, path=self.folder)


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Rows ``first`` to ``stop`` of one batch."""

    batch: Batch
    first: int
    stop: int


class MappedFile:
    """A data file, opened when it is first read.

    Args:
        place: where it is.
        nbytes: the bytes it must have.
        batch_rows: rows of every record batch but the last.
    """

    def __init__(self, place: Place, nbytes: int, batch_rows: int) -> None:
        self._place, self._nbytes, self._batch_rows = place, nbytes, batch_rows

    def index(self, start: int, stop: int, dtype: np.dtype[np.void]) -> np.ndarray:
        """Returns rows of the file as an array of a structured dtype, whose fields are `layout.INDEX_FIELDS`."""
        try:
            columns = [self._column(field) for field in layout.INDEX_FIELDS]
            pieces = self._pieces(start, stop)
            # Sizes are checked before memory is taken.
            extents = [[self._fixed(piece, c, f.nbytes) for piece in pieces] for c, f in _pairs(columns)]
            rows = np.empty(stop - start, dtype)
            for field, parts in zip(layout.INDEX_FIELDS, extents, strict=True):
                for at, data in self._loaded(pieces, parts):
                    rows[field.name][at : at + len(data) // field.nbytes] = data.view(field.numpy)
        except IPC_ERRORS as error:
            raise self._place.error(error) from error
        return rows

    def read(self, field: layout.Field, start: int, stop: int) -> np.ndarray:
        """Returns rows of a column as ``(stop - start, *shape)`` of the logical dtype.

        Rows of one uncompressed batch are a view of the file, without a copy.
        """
        shape = (stop - start, *field.shape)
        if start == stop or not field.nbytes:
            # Copies of columns without elements, which files do not have.
            return np.empty(shape, field.numpy)
        try:
            bits = self._bits(field, start, stop)
        except IPC_ERRORS as error:
            reason = f"column {field.name}: {error}"
            raise self._place.error(reason) from error
        return bits.view(field.numpy).reshape(shape)

    def _bits(self, field: layout.Field, start: int, stop: int) -> np.ndarray:
        column, pieces = self._column(field), self._pieces(start, stop)
        if column.type == field.list_type:
            parts = [self._listed(piece, column, field) for piece in pieces]
        else:
            parts = [self._fixed(piece, column, field.nbytes) for piece in pieces]
        if len(parts) == 1:
            ((_, data),) = self._loaded(pieces, parts)
            return data
        out = np.empty((stop - start) * field.nbytes, np.uint8)
        filled = 0
        for _, data in self._loaded(pieces, parts):
            out[filled : filled + len(data)] = data
            filled += len(data)
        return out

    def shut(self) -> None:
        """Forgets the mapping until the file is next read."""
        self.__dict__.pop("_file", None)
        self.__dict__.pop("_mapping", None)

    @cached_property
    def _file(self) -> IpcFile:
        return IpcFile(self._mapping)

    @cached_property
    def _mapping(self) -> np.ndarray:
        return map_file(self._place, self._nbytes)

    def _column(self, field: layout.Field) -> Column:
        column = self._file.columns.get(field.name)
        if column is None:
            message = f"column {field.name} is missing"
            raise ValueError(message)
        if column.type not in (field.type, field.list_type):
            message = f"column {field.name} is {column.type}, not {field.type}"
            raise ValueError(message)
        return column

    def _pieces(self, start: int, stop: int) -> list[_Piece]:
        """Returns the parts of batches that hold these rows."""
        size = self._batch_rows
        last = self._file.batches - 1
        if stop > (last + 1) * size:
            message = f"it has {last + 1} batches of {size} rows; row {stop} lies behind them"
            raise ValueError(message)
        pieces: list[_Piece] = []
        for number in range(start // size, -(-stop // size)):
            batch = self._file.batch(number)
            low, high = max(start - number * size, 0), min(stop - number * size, size)
            if not (batch.rows == size or (number == last and high <= batch.rows < size)):
                message = f"batch {number} has {batch.rows} rows, not {size}"
                raise ValueError(message)
            pieces.append(_Piece(batch, low, high))
        return pieces

    def _fixed(self, piece: _Piece, column: Column, width: int) -> tuple[Extent, int, int]:
        """Returns where the elements of a piece are, and which of the bytes there are its rows."""
        buffer = column.buffer + (2 if column.type.startswith("fixed_size_list") else 1)
        extent = self._file.extent(piece.batch, buffer, piece.batch.rows * width)
        return extent, piece.first * width, piece.stop * width

    def _listed(self, piece: _Piece, column: Column, field: layout.Field) -> tuple[Extent, int, int]:
        """The same of a column of lists."""
        rows = piece.batch.rows
        ends = self._file.load(self._file.extent(piece.batch, column.buffer + 1, 8 * (rows + 1)))
        offsets = ends[: 8 * (rows + 1)].view("<i8")[piece.first : piece.stop + 1]
        items = field.nbytes // _itemsize(field)
        first = int(offsets[0])
        if first < 0 or (np.diff(offsets) != items).any():
            message = f"its lists are not of {items} items"
            raise ValueError(message)
        low, high = (at * _itemsize(field) for at in (first, first + items * (piece.stop - piece.first)))
        return self._file.extent(piece.batch, column.buffer + 3, high), low, high

    def _loaded(
        self, pieces: Sequence[_Piece], parts: Sequence[tuple[Extent, int, int]]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the row, counted from the first, and the bytes of each part."""
        row = 0
        for piece, (extent, low, high) in zip(pieces, parts, strict=True):
            RESIDENT.read(self._mapping, extent.stored)
            yield row, self._file.load(extent)[low:high]
            row += piece.stop - piece.first


def checksum_of(data: np.ndarray, wrote: Callable[[memoryview], object] = lambda _: None) -> int:
    """Returns the CRC-32C of a file that `map_file` mapped, of which little is in memory at a time.

    Args:
        data: all bytes of the file.
        wrote: is given the bytes, block by block.
    """
    found = 0
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES].data
        RESIDENT.read(data, len(block))
        found = crc32c.crc32c(block, found)
        wrote(block)
    return found


_BLOCK_BYTES = 8 << 20


def map_file(place: Place, nbytes: int | None = None) -> np.ndarray:
    """Returns a file's bytes, mapped: uint8, read-only. The mapping lives as long as arrays made of it.

    Args:
        place: the file.
        nbytes: the bytes it must have; None: any number but none.

    Raises:
        TraceFormatError: it is missing, is no regular file (links are not followed), or has another size.
    """
    try:
        # O_NONBLOCK: a named pipe must not make the reader wait for a writer.
        descriptor = os.open(place.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                reason = "it is no regular file"
                raise place.error(reason)
            if status.st_size != nbytes and (nbytes is not None or not status.st_size):
                reason = f"it has {status.st_size} bytes" + ("" if nbytes is None else f", not {nbytes}")
                raise place.error(reason)
            return np.frombuffer(_mapped(descriptor), np.uint8)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        reason = "the file is missing"
        raise place.error(reason) from error
    except (OSError, ValueError) as error:
        reason = f"it cannot be mapped: {getattr(error, 'strerror', None) or error}"
        raise place.error(reason) from error


def _mapped(descriptor: int) -> Any:
    """Returns a mapping of an open file, as a buffer."""
    import pyarrow as pa

    # Python's own keeps a descriptor for each mapping, up to 3.12 always: a trace may have more files than a process
    # may have descriptors. Arrow's lets go of it. It wants a path, and only this one is sure to be the same file.
    try:
        with pa.memory_map(f"/proc/self/fd/{descriptor}") as file:
            return file.read_buffer()
    except FileNotFoundError:
        # There is no /proc.
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _itemsize(field: layout.Field) -> int:
    """Returns the bytes of an element as stored: of half a complex number."""
    return field.numpy.itemsize // (2 if field.dtype.startswith("complex") else 1)


def _pairs(columns: Sequence[Column]) -> Iterator[tuple[Column, layout.Field]]:
    return zip(columns, layout.INDEX_FIELDS, strict=True)
