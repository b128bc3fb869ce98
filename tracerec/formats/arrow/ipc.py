"""The bytes of an Arrow IPC file that nobody has vouched for: where its columns lie, every size checked.

Arrow's own reader takes the sizes that a file declares at their word when it decompresses, and would give the process
to whatever bug its parsers have. Here a column is found in the mapped bytes, and its exact size is known before
memory is taken. Only what tracerec writes is understood: no dictionaries, no nesting beyond lists of numbers.

The formats are those of the Arrow columnar specification, "IPC File Format" and ``format/{File,Schema,Message}.fbs``,
and of FlatBuffers' "Internals" page.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np

__all__ = ["IPC_ERRORS", "Batch", "Column", "Extent", "IpcFile"]

IPC_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    struct.error,
    OSError,
    MemoryError,
    NotImplementedError,
)
"""What reading a damaged file raises here; pyarrow's errors are among them."""

DECOMPRESSED_BATCH = 64 << 20
"""Bytes of the largest compressed column of a batch of several rows. The writer's are about 1 MiB."""

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_CODECS = {0: "lz4", 1: "zstd"}

_MAX_RATIO = {"lz4": 256, "zstd": 1 << 15}
"""How much smaller each can make bytes: LZ4 extends a match by 255 a byte; Zstandard needs 4 bytes for 128 KiB."""

_MAX_COLUMNS = 1 << 16
_MAX_NAME = 64

_BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])

_FLOATS = ("float16", "float32", "float64")
_UNITS = ("s", "ms", "us", "ns")


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of the file's schema.

    Attributes:
        type: its type's name: ``"uint32"``, ``"fixed_size_list[6]<float32>"``, ``"large_list<int8>"``, ``"utf8"``.
        buffer: the number of its first buffer.
    """

    type: str
    buffer: int


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A record batch.

    Attributes:
        rows: how many rows it has.
        codec: ``"lz4"``, ``"zstd"`` or None.
        start: where in the file its body begins.
        size: the bytes of its body.
        buffers: offset in the body and length of each buffer.
    """

    rows: int
    codec: str | None
    start: int
    size: int
    buffers: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """Where the bytes of a buffer are.

    Attributes:
        start: in the file.
        stored: how many are there.
        nbytes: how many they are when decompressed.
        codec: None where they lie as they are.
    """

    start: int
    stored: int
    nbytes: int
    codec: str | None


class IpcFile:
    """An Arrow IPC file in memory.

    Args:
        data: the whole file, uint8.

    Attributes:
        columns: the columns by name.
        metadata: the schema's metadata.

    Raises:
        ValueError, struct.error: it is no such file; see `IPC_ERRORS`.
    """

    def __init__(self, data: np.ndarray) -> None:
        self._data, self._view = data, data.data
        size = len(data)
        tail = len(_MAGIC) + 4
        if size < 2 * tail or bytes(data[:6]) != _MAGIC or bytes(data[-6:]) != _MAGIC:
            message = "it is no Arrow IPC file, or is cut off"
            raise ValueError(message)
        length = int(data[-tail:-6].view("<i4")[0])
        if not 0 < length <= size - tail - len(_MAGIC):
            message = f"its footer declares {length} bytes, in a file of {size}"
            raise ValueError(message)
        footer = _root(self._view[size - tail - length : size - tail])
        schema = footer.table(1)
        if schema is None or footer.vector(2)[1]:
            message = "its footer has no schema, or dictionaries"
            raise ValueError(message)
        self.columns = _columns(schema)
        self.metadata = _metadata(schema)
        self._buffers = sum(_buffer_count(column.type) for column in self.columns.values())
        self._blocks = footer.structs(3, _BLOCK)
        used = sum(map(sum, zip(self._blocks["head"].tolist(), self._blocks["body"].tolist(), strict=True)))
        if (self._blocks["head"] < 0).any() or (self._blocks["body"] < 0).any() or used > size:
            message = f"its record batches declare {used} bytes, in a file of {size}"
            raise ValueError(message)

    def stored_nbytes(self) -> dict[str, int]:
        """Returns the bytes that each column takes, after compression. It looks at all batches."""
        lengths = np.zeros(self._buffers, np.int64)
        for number in range(self.batches):
            lengths += self.batch(number).buffers["length"]
        return {
            name: int(lengths[column.buffer : column.buffer + _buffer_count(column.type)].sum())
            for name, column in self.columns.items()
        }

    @property
    def batches(self) -> int:
        """How many record batches there are."""
        return len(self._blocks)

    def batch(self, number: int) -> Batch:
        """Returns a record batch; raises an error of `IPC_ERRORS` where it is damaged."""
        offset, head, _, body = map(int, self._blocks[number])
        if offset < 0 or offset + head + body > len(self._data):
            message = f"batch {number} lies outside the file"
            raise ValueError(message)
        marker, length = struct.unpack_from("<Ii", self._view, offset)
        if marker != _CONTINUATION or not 0 < length <= head - 8:
            message = f"batch {number} does not begin with a message"
            raise ValueError(message)
        message = _root(self._view[offset + 8 : offset + 8 + length])
        table = message.table(2)
        if message.number(1, "<B") != _RECORD_BATCH or table is None:
            text = f"batch {number} is no record batch"
            raise ValueError(text)
        rows, buffers, compression = table.number(0, "<q"), table.structs(2, _BUFFER), table.table(3)
        if rows < 0 or len(buffers) != self._buffers:
            text = f"batch {number} has {rows} rows and {len(buffers)} buffers, not {self._buffers}"
            raise ValueError(text)
        codec = None if compression is None else _CODECS[compression.number(0, "<B")]
        return Batch(rows, codec, offset + head, body, buffers)

    def extent(self, batch: Batch, buffer: int, nbytes: int) -> Extent:
        """Returns where a buffer is that must hold at least some bytes; raises ValueError where it cannot."""
        offset, stored = map(int, batch.buffers[buffer])
        start, declared, codec = batch.start + offset, stored, batch.codec
        if offset < 0 or stored < 0 or offset + stored > batch.size:
            message = f"buffer {buffer} lies outside its batch"
            raise ValueError(message)
        if codec is not None and stored:
            (declared,) = struct.unpack_from("<q", self._view, start)
            start, stored = start + 8, stored - 8
            if declared == -1:
                codec, declared = None, stored
        if codec is not None:
            most = max(stored, 0) * _MAX_RATIO[codec]
            most = min(most, DECOMPRESSED_BATCH) if batch.rows > 1 else most
            if declared > most:
                message = f"buffer {buffer} declares {declared} bytes, compressed to {stored}"
                raise ValueError(message)
        if declared < nbytes or stored < 0:
            message = f"buffer {buffer} has {declared} bytes, {nbytes} are needed"
            raise ValueError(message)
        return Extent(start, stored, declared, codec if declared else None)

    def load(self, extent: Extent) -> np.ndarray:
        """Returns the bytes: a view of the file, or a new array where they are compressed."""
        stored = self._data[extent.start : extent.start + extent.stored]
        if extent.codec is None:
            return stored
        import pyarrow as pa

        out = np.empty(extent.nbytes, np.uint8)
        # Not pyarrow.decompress: of LZ4 that is too short it returns memory that was never written.
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored.data)), extent.codec) as stream:
            count = 0
            while count < extent.nbytes and (got := stream.readinto(out.data[count:])):
                count += got
            if count < extent.nbytes or stream.read(1):
                message = f"a buffer of {extent.nbytes} bytes decompresses to another size"
                raise ValueError(message)
        return out


class _Table:
    """A FlatBuffers table; positions are checked against the buffer."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._at = position
        (distance,) = self._unpack("<i", position)
        self._vtable = position - distance
        (self._slots,) = self._unpack("<H", self._vtable)

    @property
    def size(self) -> int:
        """The bytes of the buffer that the table is in."""
        return len(self._data)

    def number(self, slot: int, form: str) -> int:
        """Returns a scalar; 0, the default of all that are read here, where it is left out."""
        at = self._slot(slot)
        return self._unpack(form, at)[0] if at else 0

    def table(self, slot: int) -> _Table | None:
        """Returns a member that is a table."""
        at = self._slot(slot)
        return _Table(self._data, self._target(at)) if at else None

    def vector(self, slot: int) -> tuple[int, int]:
        """Returns where the items of a vector are and how many; 0, 0 where it is left out."""
        at = self._slot(slot)
        if not at:
            return 0, 0
        start = self._target(at)
        (count,) = self._unpack("<I", start)
        return start + 4, count

    def tables(self, slot: int, most: int) -> list[_Table]:
        """Returns a vector of at most some tables."""
        start, count = self.vector(slot)
        if count > most:
            message = f"a vector of {count} items, {most} at most are known"
            raise ValueError(message)
        return [_Table(self._data, self._target(start + 4 * n)) for n in range(count)]

    def structs(self, slot: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Returns a vector of structs, without a copy."""
        start, count = self.vector(slot)
        return np.frombuffer(self._data, dtype, count, start)

    def string(self, slot: int, most: int | None = None) -> str:
        """Returns a text; raises ValueError when it is longer than ``most`` bytes."""
        start, count = self.vector(slot)
        if count > len(self._data) - start or (most is not None and count > most):
            message = f"a text of {count} bytes"
            raise ValueError(message)
        return bytes(self._data[start : start + count]).decode()

    def _slot(self, slot: int) -> int:
        entry = 4 + 2 * slot
        offset = self._unpack("<H", self._vtable + entry)[0] if entry < self._slots else 0
        return self._at + offset if offset else 0

    def _target(self, at: int) -> int:
        return at + self._unpack("<I", at)[0]

    def _unpack(self, form: str, at: int) -> tuple[Any, ...]:
        if at < 0:
            message = f"position {at}"
            raise ValueError(message)
        return struct.unpack_from(form, self._data, at)


def _root(data: memoryview) -> _Table:
    return _Table(data, struct.unpack_from("<I", data, 0)[0])


def _columns(schema: _Table) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    buffer = 0
    for field in schema.tables(1, _MAX_COLUMNS):
        name, kind = field.string(0, _MAX_NAME), _type(field)
        if name in columns:
            message = f"two columns {name!r}"
            raise ValueError(message)
        columns[name] = Column(kind, buffer)
        buffer += _buffer_count(kind)
    return columns


def _type(field: _Table, *, nested: bool = False) -> str:
    """Returns the name of a field's type; raises ValueError for one that tracerec does not write."""
    kind, detail = field.number(2, "<B"), field.table(3)
    if detail is None or field.table(4) is not None:
        message = "a column without a type, or with a dictionary"
        raise ValueError(message)
    if kind in _LISTS and not nested:
        children = field.tables(5, 1)
        if len(children) == 1:
            size = f"[{detail.number(0, '<i')}]" if kind == _FIXED_SIZE_LIST else ""
            return f"{_LISTS[kind]}{size}<{_type(children[0], nested=True)}>"
    elif not field.vector(5)[1] and kind in _PLAIN:
        return _PLAIN[kind](detail)
    message = f"a column of Arrow type {kind}, which tracerec does not write"
    raise ValueError(message)


_FIXED_SIZE_LIST = 16
_LISTS = {12: "list", 16: "fixed_size_list", 21: "large_list"}
_PLAIN = {
    2: lambda detail: f"{'' if detail.number(1, '<B') else 'u'}int{detail.number(0, '<i')}",
    3: lambda detail: _FLOATS[detail.number(0, "<H")],
    5: lambda _: "utf8",
    6: lambda _: "bool",
    10: lambda detail: f"timestamp[{_UNITS[detail.number(0, '<H')]}]",
}
"""The members of the union Type in Schema.fbs that tracerec writes, and bool, which a later version might."""


def _buffer_count(kind: str) -> int:
    """Returns how many buffers a column has: validity, offsets where sizes vary, the elements' own."""
    if kind.startswith("fixed_size_list"):
        return 3
    if kind.startswith(("list", "large_list")):
        return 4
    return 3 if kind == "utf8" else 2


def _metadata(schema: _Table) -> dict[str, str]:
    pairs = schema.tables(2, _MAX_COLUMNS)
    # A hostile file may name one long text many times.
    budget = 2 * schema.size
    found: dict[str, str] = {}
    for pair in pairs:
        key, value = pair.string(0, _MAX_NAME), pair.string(1)
        budget -= len(value)
        if budget < 0:
            message = "metadata of more bytes than the schema"
            raise ValueError(message)
        found[key] = value
    return found
