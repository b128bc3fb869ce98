"""What the tests of the protocol share: arbitrary arrays, frames as bytes, what a frame holds."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import crc32c
import msgpack
import numpy as np
from hypothesis import strategies as st

from tracerec.protocol import dtypes, frames

if TYPE_CHECKING:
    from collections.abc import Sequence


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any array that a frame can carry, of arbitrary bits."""
    dtype = dtypes.from_name(draw(st.sampled_from(dtypes.NAMES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4).map(tuple))
    size = int(np.prod(shape)) * dtype.itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if dtype.name == "bool":
        bits = bits & 1
    return bits.view(dtype).reshape(shape)


def packed(value: object) -> bytes:
    """Msgpack, whose stubs allow for None."""
    data = msgpack.packb(value)
    assert data is not None
    return data


def joined(consumer_id: int, values: Sequence[np.ndarray]) -> bytes:
    """One frame as bytes."""
    return b"".join(bytes(b) for b in frames.encode(consumer_id, values))


def sealed(metadata: bytes, payload: bytes = b"", consumer_id: int = 9) -> bytes:
    """A frame of any metadata, its checksum right: what a hostile writer can make."""
    words = struct.pack("<IIII", frames.MAGIC, consumer_id >> 32, consumer_id & 0xFFFFFFFF, len(metadata))
    body = (words + metadata).ljust(max(128, 16 + (len(metadata) + 3) // 4 * 4), b"\0") + payload
    return body + struct.pack("<I", crc32c.crc32c(body))


def content(frame: frames.Frame) -> tuple[Any, ...]:
    """All that a frame carries, bit for bit, to be compared."""
    return described(frame.consumer_id, frame.arrays)


def described(consumer_id: int, values: Sequence[np.ndarray]) -> tuple[Any, ...]:
    """The same of a frame that was never encoded."""
    return (consumer_id, *((a.dtype.name, a.shape, a.tobytes()) for a in values))
