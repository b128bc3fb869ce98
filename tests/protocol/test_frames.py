from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracerec.errors import FrameError
from tracerec.protocol import dtypes, frames


def crc32c_by_table(data: bytes) -> int:
    """CRC-32C bit by bit (RFC 3720, reflected polynomial 0x82F63B78): independent of the library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


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


def joined(consumer_id: int, values: list[np.ndarray]) -> bytes:
    """One frame as bytes."""
    return b"".join(bytes(b) for b in frames.encode(consumer_id, values))


@given(st.lists(arrays(), max_size=5), st.integers(0, 2**64 - 1))
def test_round_trip_keeps_dtype_shape_and_bits(values: list[np.ndarray], consumer_id: int) -> None:
    """Decoding gives back what was encoded, for every dtype and shape, bit for bit."""
    frame = frames.decode(joined(consumer_id, values))
    assert frame.consumer_id == consumer_id
    assert [(a.dtype, a.shape, a.tobytes()) for a in frame.arrays] == [(v.dtype, v.shape, v.tobytes()) for v in values]


def test_header_words_are_those_of_the_protocol() -> None:
    """A frame written by hand from the protocol's text equals the encoder's bytes."""
    array = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    metadata: bytes = packed([(9, (2, 3))])
    words = struct.pack("<IIII", 2178, 0x01234567, 0x89ABCDEF, len(metadata)) + metadata
    body = words.ljust(128, b"\0") + array.tobytes()
    expected = body + struct.pack("<I", crc32c_by_table(body))
    assert joined(0x0123456789ABCDEF, [array]) == expected


def test_metadata_longer_than_the_header_continues_in_further_words() -> None:
    """With 100 arrays the header grows by whole words, and decoding finds every array."""
    values = [np.full((i,), i, np.int16) for i in range(100)]
    data = joined(5, values)
    (length,) = struct.unpack_from("<I", data, 12)
    assert length > 112
    payload = 16 + (length + 3) // 4 * 4
    assert len(data) == payload + sum(v.nbytes for v in values) + 4
    assert all((a == v).all() for a, v in zip(frames.decode(data).arrays, values, strict=True))


def test_type_codes_of_the_seed_do_not_move() -> None:
    """Codes 0 to 11 are those of host_callback; a trace of any age relies on them."""
    assert dtypes.NAMES[:12] == (
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "bfloat16",
    )  # fmt: skip


@given(st.lists(arrays(), min_size=1, max_size=3), st.data())
def test_every_cut_is_torn_and_every_flipped_bit_is_found(values: list[np.ndarray], data: st.DataObject) -> None:
    """A frame cut anywhere is torn; one with any bit flipped never decodes to something else."""
    whole = joined(7, values)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FrameError) as caught:
        frames.decode(whole[:cut])
    assert caught.value.torn
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        frames.decode(bytes(flipped))


@pytest.mark.parametrize("dims", [[2**62], [2**40, 2**40], [-1], [1] * 65, "ab", [1.5], [True]])
def test_hostile_sizes_are_refused_before_memory_is_taken(dims: object) -> None:
    """Sizes that the buffer cannot hold, or that are no sizes, are refused from the header alone."""
    metadata: bytes = packed([(11, dims)])
    data = (struct.pack("<IIII", 2178, 0, 9, len(metadata)) + metadata).ljust(4096, b"\0")
    with pytest.raises(FrameError):
        frames.decode(data)


@pytest.mark.parametrize("metadata", [b"\xc1", b"\x91\x92\x63\x90", b"\x05", b"\xdd\xff\xff\xff\xff", b""])
def test_metadata_that_is_no_list_of_pairs_is_refused(metadata: bytes) -> None:
    """Bytes that are no msgpack, an unknown type code, a number, a huge declared list."""
    data = (struct.pack("<IIII", 2178, 0, 9, len(metadata)) + metadata).ljust(256, b"\0")
    with pytest.raises(FrameError):
        frames.decode(data)


def test_big_endian_and_strided_arrays_are_written_little_endian_in_c_order() -> None:
    """The receiver gets the values, whatever the memory layout was."""
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    (decoded,) = frames.decode(joined(3, [array])).arrays
    assert decoded.tolist() == [[0, 2], [4, 6], [8, 10]]
    assert decoded.dtype == np.dtype("<i4")
