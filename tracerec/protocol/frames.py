"""Frames: one header of 32 words, metadata, arrays, a checksum.

::

    word 0        2178, the magic number
    words 1, 2    consumer id, 64 bits, high word first
    word 3        length of the metadata in bytes
    words 4..31   metadata: msgpack of one (type code, dims) pair an array, padded with zeros
    ...           further words, where the metadata is longer than 112 bytes
    arrays        little-endian, C order, one after the other, sub-byte types one byte an element
    CRC-32C       of everything before, 4 bytes

Words are little-endian uint32. The header is that of JAX's ``host_callback`` module (2020, since removed); the
longer metadata and the checksum are tracerec's. CRC-32C is the Castagnoli polynomial of RFC 3720, section 12.1.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

import crc32c
import msgpack
import numpy as np

from tracerec.errors import FrameError
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "CRC_BYTES",
    "DEFINE",
    "END",
    "HEADER_BYTES",
    "MAGIC",
    "Frame",
    "FrameHead",
    "decode",
    "encode",
    "heads",
    "peek",
]

MAGIC = 2178
HEADER_BYTES = 128
CRC_BYTES = 4
END = 0
"""Consumer id of the frame that ends a stream of frames; its array is a JSON summary as bytes."""
DEFINE = 1
"""Consumer id of the frame that defines a site; its array is the site's JSON as bytes."""

_FIXED_BYTES = 16
_MAX_METADATA = 1 << 24
_MAX_RANK = 64


@dataclasses.dataclass(frozen=True, slots=True)
class FrameHead:
    """What a frame's header says, before its arrays are believed.

    Attributes:
        consumer_id: whom the frame is for.
        specs: a dtype and a shape an array.
        start: where the frame begins, in bytes from the start of the buffer.
        payload: where its arrays begin.
        end: where the next frame begins.
    """

    consumer_id: int
    specs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    start: int
    payload: int
    end: int

    def offset(self, number: int) -> int:
        """Returns where array ``number`` begins, in bytes from the start of the buffer."""
        return self.payload + sum(_nbytes(dtype, shape) for dtype, shape in self.specs[:number])


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame.

    Attributes:
        consumer_id: whom the frame is for.
        arrays: read-only views into the buffer that was decoded.
        end: where the next frame begins.
    """

    consumer_id: int
    arrays: tuple[np.ndarray, ...]
    end: int


def encode(consumer_id: int, arrays: Sequence[np.ndarray]) -> list[Any]:
    """Returns a frame as buffers to be written one after the other; array data is not copied.

    Args:
        consumer_id: 0 to 2**64 - 1.
        arrays: arrays of any dtype in `tracerec.protocol.dtypes.NAMES`. One that is not C-contiguous or not
            little-endian is copied.

    Raises:
        ValueError: an array's dtype has no type code.

    Example:
        >>> b"".join(encode(7, [np.arange(3, dtype=np.int16)]))[:4].hex()
        '82080000'
    """
    arrays = [_normal(a) for a in arrays]
    metadata: bytes = msgpack.packb([(dtypes.code_of(a.dtype), a.shape) for a in arrays])  # pyright: ignore[reportAssignmentType]
    fixed = struct.pack("<IIII", MAGIC, consumer_id >> 32, consumer_id & 0xFFFFFFFF, len(metadata))
    head = (fixed + metadata).ljust(_head_bytes(len(metadata)), b"\0")
    crc = crc32c.crc32c(head)
    buffers: list[Any] = [head]
    for array in arrays:
        if array.nbytes:
            data = _as_bytes(array)
            crc = crc32c.crc32c(data, crc)
            buffers.append(data)
    buffers.append(struct.pack("<I", crc))
    return buffers


def decode(buffer: Any, offset: int = 0) -> Frame:
    """Returns the frame that begins at an offset, its checksum verified.

    Args:
        buffer: bytes, memoryview or mmap.
        offset: where the frame begins.

    Raises:
        FrameError: with ``torn=True`` where the buffer ends before the frame does, else corrupt.
    """
    view = memoryview(buffer)
    head = peek(view, offset)
    return check(view, head)


def check(view: memoryview, head: FrameHead) -> Frame:
    """Returns the frame of a head, its checksum verified; raises FrameError for a wrong checksum."""
    body_end = head.end - CRC_BYTES
    (expected,) = struct.unpack_from("<I", view, body_end)
    found = crc32c.crc32c(view[head.start : body_end])
    if found != expected:
        message = f"frame at byte {head.start}: checksum {found:#010x}, expected {expected:#010x}"
        raise FrameError(message)
    arrays: list[np.ndarray] = []
    at = head.payload
    for dtype, shape in head.specs:
        size = _nbytes(dtype, shape)
        arrays.append(np.frombuffer(view[at : at + size], dtype=np.uint8).view(dtype).reshape(shape))
        at += size
    return Frame(head.consumer_id, tuple(arrays), head.end)


def peek(buffer: Any, offset: int = 0) -> FrameHead:
    """Returns a frame's head without reading its arrays; sizes are checked against the buffer's length.

    Raises:
        FrameError: with ``torn=True`` where the buffer ends before the frame does, else corrupt.
    """
    view = memoryview(buffer)
    if len(view) - offset < HEADER_BYTES:
        message = f"frame at byte {offset}: the header is cut off"
        raise FrameError(message, torn=True)
    magic, high, low, length = struct.unpack_from("<IIII", view, offset)
    if magic != MAGIC:
        message = f"no frame at byte {offset}: magic number {magic}, expected {MAGIC}"
        raise FrameError(message)
    if length > _MAX_METADATA:
        message = f"frame at byte {offset}: metadata of {length} bytes, at most {_MAX_METADATA} are allowed"
        raise FrameError(message)
    payload = offset + _head_bytes(length)
    if payload > len(view):
        message = f"frame at byte {offset}: the metadata is cut off"
        raise FrameError(message, torn=True)
    specs = _specs(view[offset + _FIXED_BYTES : offset + _FIXED_BYTES + length], offset)
    end = payload + sum(_nbytes(dtype, shape) for dtype, shape in specs) + CRC_BYTES
    if end > len(view):
        message = f"frame at byte {offset}: {end - len(view)} bytes are cut off"
        raise FrameError(message, torn=True)
    return FrameHead(high << 32 | low, specs, offset, payload, end)


def heads(buffer: Any, offset: int = 0) -> Iterator[FrameHead]:
    """Yields the heads of the frames from an offset to the end of the buffer; raises as `peek` does."""
    view = memoryview(buffer)
    while offset < len(view):
        head = peek(view, offset)
        yield head
        offset = head.end


def _specs(metadata: memoryview, offset: int) -> tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]:
    try:
        pairs: Any = msgpack.unpackb(metadata, use_list=False)
        specs = tuple((dtypes.from_code(code), _dims(dims)) for code, dims in pairs)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        message = f"frame at byte {offset}: the metadata is no list of (type code, dims) pairs: {error}"
        raise FrameError(message) from error
    return specs


def _dims(dims: Any) -> tuple[int, ...]:
    if len(dims) > _MAX_RANK or any(type(n) is not int or n < 0 for n in dims):
        message = f"dims {dims!r}"
        raise ValueError(message)
    return dims


def _head_bytes(metadata: int) -> int:
    return max(HEADER_BYTES, _FIXED_BYTES + (metadata + 3) // 4 * 4)


def _nbytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    size = dtype.itemsize
    for n in shape:
        size *= n
    return size


def _normal(array: np.ndarray) -> np.ndarray:
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else np.array(array, order="C")


def _as_bytes(array: np.ndarray) -> Any:
    # ml_dtypes arrays have no buffer protocol of their own; a view as bytes has.
    return array.reshape(-1).view(np.uint8)
