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
``docs/protocol.md`` is the description for people, ``schemas/outfeed.schema.json`` that for programs.

Here are single frames; `tracerec.protocol.stream` finds the frames of a stream that may be damaged.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
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
    "MAX_METADATA_BYTES",
    "MAX_RANK",
    "Frame",
    "FrameHead",
    "body",
    "check",
    "checksum",
    "decode",
    "encode",
    "head_at",
    "head_bytes_at",
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
MAX_METADATA_BYTES = 1 << 20
"""Longer metadata is refused: room for more than 100,000 arrays, and it is parsed before it can be checked."""
MAX_RANK = 64
"""As many axes as a numpy array can have."""

_FIXED_BYTES = 16
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_MAX_IDS = 1 << 64
# numpy allows no array, not even an empty one, whose axes other than those of size 0 make this many bytes.
_MAX_ARRAY_BYTES = 1 << 63
_CACHED_METADATA_BYTES = 256
_CACHED_ARRAYS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class FrameHead:
    """What a frame's header says, before its arrays are believed.

    Attributes:
        consumer_id: whom the frame is for.
        specs: a dtype and a shape an array.
        start: where the frame begins, in bytes from the start of the buffer or the stream.
        payload: where its arrays begin.
        end: where the next frame begins.
    """

    consumer_id: int
    specs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    start: int
    payload: int
    end: int

    def offset(self, number: int) -> int:
        """Returns where array ``number`` begins, in bytes from the start of the buffer or the stream."""
        return self.payload + sum(_nbytes(dtype, shape) for dtype, shape in self.specs[:number])


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame.

    Attributes:
        head: what its header says.
        arrays: read-only views into the buffer that was decoded.
    """

    head: FrameHead
    arrays: tuple[np.ndarray, ...]

    @property
    def consumer_id(self) -> int:
        """Whom the frame is for."""
        return self.head.consumer_id

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.head.end


def encode(consumer_id: int, arrays: Sequence[np.ndarray]) -> list[Any]:
    """Returns a frame as buffers to be written one after the other; array data is not copied.

    Args:
        consumer_id: 0 to 2**64 - 1.
        arrays: arrays of any dtype in `tracerec.protocol.dtypes.NAMES`. One that is not C-contiguous or not
            little-endian is copied.

    Raises:
        ValueError: an array's dtype has no type code, the id is out of range, or there are so many arrays that their
            metadata is longer than `MAX_METADATA_BYTES`.

    Example:
        >>> b"".join(encode(7, [np.arange(3, dtype=np.int16)]))[:4].hex()
        '82080000'
    """
    buffers = body(consumer_id, arrays)
    buffers.append(checksum(buffers))
    return buffers


def body(consumer_id: int, arrays: Sequence[np.ndarray]) -> list[Any]:
    """Returns a frame but for its checksum, which comes last; see `encode`."""
    if not 0 <= consumer_id < _MAX_IDS:
        message = f"consumer id {consumer_id} has more than 64 bits"
        raise ValueError(message)
    arrays = [_normal(a) for a in arrays]
    make = _cached_head if len(arrays) <= _CACHED_ARRAYS else _head
    head = make(consumer_id, tuple([(a.dtype, a.shape) for a in arrays]))
    return [head, *(_as_bytes(array) for array in arrays if array.nbytes)]


def checksum(buffers: Sequence[Any]) -> bytes:
    """Returns what follows the body of a frame: the CRC-32C of its buffers."""
    crc = 0
    for buffer in buffers:
        crc = crc32c.crc32c(buffer, crc)
    return struct.pack("<I", crc)


def decode(buffer: Any, offset: int = 0) -> Frame:
    """Returns the frame that begins at an offset, its checksum verified.

    Args:
        buffer: bytes, memoryview or mmap.
        offset: where the frame begins.

    Raises:
        FrameError: with ``torn=True`` where the buffer ends before the frame does, else corrupt.

    Example:
        >>> frame = decode(b"".join(encode(7, [np.arange(3, dtype=np.int16)])))
        >>> frame.consumer_id, frame.arrays
        (7, (array([0, 1, 2], dtype=int16),))
    """
    view = memoryview(buffer)
    return check(view, peek(view, offset))


def check(view: memoryview, head: FrameHead, base: int = 0) -> Frame:
    """Returns the frame of a head, its checksum verified.

    Args:
        view: holds the whole frame.
        head: as `peek` or `head_at` gave it.
        base: the position, in the stream that ``head`` counts in, of the view's first byte.

    Raises:
        FrameError: the checksum is wrong.
    """
    body_end = head.end - CRC_BYTES - base
    (expected,) = struct.unpack_from("<I", view, body_end)
    found = crc32c.crc32c(view[head.start - base : body_end])
    if found != expected:
        message = f"frame at byte {head.start}: checksum {found:#010x}, expected {expected:#010x}"
        raise FrameError(message)
    view = view.toreadonly()
    arrays: list[np.ndarray] = []
    at = head.payload - base
    for dtype, shape in head.specs:
        array: np.ndarray = np.ndarray(shape, dtype, buffer=view, offset=at)
        arrays.append(array)
        at += array.nbytes
    return Frame(head, tuple(arrays))


def peek(buffer: Any, offset: int = 0) -> FrameHead:
    """Returns a frame's head without reading its arrays; sizes are checked against the buffer's length.

    Raises:
        FrameError: with ``torn=True`` where the buffer ends before the frame does, else corrupt.
    """
    view = memoryview(buffer)
    head = head_at(view, offset)
    if head.end > len(view):
        message = f"frame at byte {offset}: {head.end - len(view)} bytes are cut off"
        raise FrameError(message, torn=True)
    return head


def head_at(view: memoryview, position: int, base: int = 0) -> FrameHead:
    """Returns a frame's head, of which alone the header and the metadata need be there.

    Args:
        view: bytes of a stream.
        position: where the frame begins in the stream.
        base: the position of the view's first byte in the stream.

    Raises:
        FrameError: with ``torn=True`` where the view ends before the metadata does and what there is could be a
            header, else corrupt.
    """
    offset = position - base
    there = len(view) - offset
    if there < HEADER_BYTES:
        _check_start(view[offset:], position)
        message = f"frame at byte {position}: the header is cut off"
        raise FrameError(message, torn=True)
    magic, high, low, length = struct.unpack_from("<IIII", view, offset)
    if magic != MAGIC or length > MAX_METADATA_BYTES:
        _check_start(view[offset : offset + _FIXED_BYTES], position)
    payload = _head_bytes(length)
    if there < payload:
        message = f"frame at byte {position}: the metadata is cut off"
        raise FrameError(message, torn=True)
    metadata = view[offset + _FIXED_BYTES : offset + _FIXED_BYTES + length]
    try:
        specs, nbytes = _cached_specs(bytes(metadata)) if length <= _CACHED_METADATA_BYTES else _specs(metadata)
    except ValueError as error:
        message = f"frame at byte {position}: the metadata is no list of (type code, dims) pairs: {error}"
        raise FrameError(message) from error
    payload += position
    return FrameHead(high << 32 | low, specs, position, payload, payload + nbytes + CRC_BYTES)


def head_bytes_at(view: memoryview, offset: int) -> int:
    """Returns how many bytes from an offset on `head_at` reads, as far as the bytes that are there say."""
    if len(view) - offset < HEADER_BYTES:
        return HEADER_BYTES
    magic, _, _, length = struct.unpack_from("<IIII", view, offset)
    return _head_bytes(length) if magic == MAGIC and length <= MAX_METADATA_BYTES else HEADER_BYTES


def heads(buffer: Any, offset: int = 0) -> Iterator[FrameHead]:
    """Yields the heads of the frames from an offset to the end of the buffer; raises as `peek` does."""
    view = memoryview(buffer)
    while offset < len(view):
        head = peek(view, offset)
        yield head
        offset = head.end


def _check_start(start: memoryview, position: int) -> None:
    """Raises FrameError unless the bytes, at most a header's, can begin a frame."""
    magic = bytes(start[:4])
    if not _MAGIC_BYTES.startswith(magic):
        number = int.from_bytes(magic, "little")
        message = f"no frame at byte {position}: magic number {number}, expected {MAGIC}"
        raise FrameError(message)
    if len(start) >= _FIXED_BYTES:
        (length,) = struct.unpack_from("<I", start, 12)
        if length > MAX_METADATA_BYTES:
            message = f"frame at byte {position}: metadata of {length} bytes, at most {MAX_METADATA_BYTES} are allowed"
            raise FrameError(message)


def _specs(metadata: bytes | memoryview) -> tuple[tuple[tuple[np.dtype[Any], tuple[int, ...]], ...], int]:
    """Returns a dtype and a shape an array, and the bytes of all; raises ValueError for what is no metadata."""
    # Nothing of variable size but arrays is allowed, so that hostile metadata costs no more than its own length.
    pairs: Any = msgpack.unpackb(metadata, use_list=False, max_str_len=0, max_bin_len=0, max_map_len=0, max_ext_len=0)
    if type(pairs) is not tuple:
        message = f"it is {reprlib.repr(pairs)}"
        raise ValueError(message)
    specs = tuple(_spec(pair) for pair in pairs)
    return specs, sum(_nbytes(dtype, shape) for dtype, shape in specs)


_cached_specs = functools.lru_cache(maxsize=512)(_specs)


def _spec(pair: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    match pair:
        case [code, dims] if type(pair) is tuple and type(code) is int and _are_dims(dims):
            dtype = dtypes.from_code(code)
            if math.prod(n or 1 for n in dims) * dtype.itemsize < _MAX_ARRAY_BYTES:
                return dtype, dims
            message = f"no array has the dims {reprlib.repr(dims)}"
        case _:
            message = f"one is {reprlib.repr(pair)}"
    raise ValueError(message)


def _head(consumer_id: int, specs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> bytes:
    metadata: bytes = msgpack.packb([(dtypes.code_of(dtype), shape) for dtype, shape in specs])  # pyright: ignore[reportAssignmentType]
    if len(metadata) > MAX_METADATA_BYTES:
        message = f"{len(specs)} arrays need {len(metadata)} bytes of metadata, a frame has {MAX_METADATA_BYTES}"
        raise ValueError(message)
    fixed = struct.pack("<IIII", MAGIC, consumer_id >> 32, consumer_id & 0xFFFFFFFF, len(metadata))
    return (fixed + metadata).ljust(_head_bytes(len(metadata)), b"\0")


_cached_head = functools.lru_cache(maxsize=2048)(_head)


def _are_dims(dims: Any) -> bool:
    # bool is a subclass of int, hence the exact types.
    return type(dims) is tuple and len(dims) <= MAX_RANK and all(type(n) is int and n >= 0 for n in dims)


def _head_bytes(metadata: int) -> int:
    return max(HEADER_BYTES, _FIXED_BYTES + (metadata + 3) // 4 * 4)


def _nbytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _normal(array: np.ndarray) -> np.ndarray:
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else np.array(array, order="C")


def _as_bytes(array: np.ndarray) -> Any:
    # ml_dtypes arrays have no buffer protocol of their own; a view as bytes has.
    return array.reshape(-1).view(np.uint8)
