"""Single frames: encoding, decoding, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.support import arrays, joined, packed, sealed
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
    """With 2,000 arrays the header grows by whole words, and decoding finds every array."""
    values = [np.full((i % 50,), i, np.int16) for i in range(2000)]
    data = joined(5, values)
    (length,) = struct.unpack_from("<I", data, 12)
    assert length > 112
    payload = 16 + (length + 3) // 4 * 4
    assert len(data) == payload + sum(v.nbytes for v in values) + 4
    decoded = frames.decode(data).arrays
    assert [a.tolist() for a in decoded] == [[i] * (i % 50) for i in range(2000)]


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


HUGE = 2**64 - 1
NAN = float("nan")
BAD_METADATA: dict[str, object] = {
    "bool in dims": [(9, [True])],
    "bool as type code": [(True, [1])],
    "bool as pair": [True],
    "huge dim": [(9, [HUGE])],
    "huge dim beside an empty one": [(9, [0, HUGE])],
    "huge product": [(9, [2**40, 2**40])],
    "huge product beside an empty one": [(9, [0, 2**62, 2**62])],
    "one element too many for numpy": [(0, [2**63 - 1, 0]), (1, [2**62, 0])],
    "negative dim": [(9, [-1])],
    "65 dims": [(9, [1] * 65)],
    "NaN in dims": [(9, [NAN])],
    "NaN as type code": [(NAN, [])],
    "whole float in dims": [(9, [2.0])],
    "whole float as type code": [(9.0, [])],
    "list in dims": [(9, [[1]])],
    "nil in dims": [(9, [None])],
    "nil as dims": [(9, None)],
    "text as dims": [(9, "ab")],
    "empty text as dims": [(9, "")],
    "bytes as dims": [(9, b"\x01")],
    "map as dims": [(9, {})],
    "one item": [(9,)],
    "three items": [(9, [], 0)],
    "map as pair": [{"a": 9, "b": []}],
    "no list": 9,
    "nil": None,
    "text": "",
    "bytes": b"",
    "map": {},
    "map of pairs": {"a": [9, []]},
    "code 28": [(28, [])],
    "negative code": [(-1, [])],
}


@pytest.mark.parametrize("name", BAD_METADATA)
def test_metadata_is_read_strictly(name: str) -> None:
    """With the checksum right and payload enough, anything but pairs of a known code and plain sizes is refused."""
    with pytest.raises(FrameError, match="metadata is no list of") as caught:
        frames.decode(sealed(packed(BAD_METADATA[name]), bytes(64)))
    assert not caught.value.torn
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "metadata",
    [
        b"\x91" * 400 + b"\x90",
        b"\x91" * 100_000 + b"\x90",
        b"\x91\x92\x09" + b"\x91" * 900 + b"\x90",
        packed([(9, [1])]) * 2,
        b"\x81\xa1a\x90\x81\xa1a\x90",
        b"\x82\xa1a\x90\xa1a\x90",
        b"\xd6\xff\0\0\0\0",
        b"\x91\x92\x09\x91\xd4\x01\x01",
    ],
    ids=["deep", "deeper", "deep dims", "twice", "two maps", "duplicate key", "time", "extension"],
)
def test_metadata_of_odd_msgpack_is_refused(metadata: bytes) -> None:
    """Nesting of any depth, what follows the list, maps and extension types are refused, with a short message."""
    with pytest.raises(FrameError, match="metadata is no list of") as caught:
        frames.decode(sealed(metadata, bytes(64)))
    assert len(str(caught.value)) < 300


EDGES = st.sampled_from([0, 1, 2, 7, 2**20, 2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, HUGE])


@given(st.integers(0, len(dtypes.NAMES) - 1), st.lists(EDGES, max_size=4), st.integers(0, 4))
def test_dims_of_any_size_make_an_array_or_an_error(code: int, dims: list[int], empty_at: int) -> None:
    """Where an axis is empty the other sizes are free, as far as numpy can have them; nothing else is raised."""
    dims.insert(empty_at, 0)
    try:
        (array,) = frames.decode(sealed(packed([(code, dims)]))).arrays
    except FrameError:
        itemsize = dtypes.from_code(code).itemsize
        with pytest.raises(ValueError, match=r"array is too big|Maximum allowed dimension"):
            np.empty(dims, f"V{itemsize}")
    else:
        assert array.shape == tuple(dims)


def test_longer_metadata_than_allowed_is_refused() -> None:
    """A declared length above the limit is refused from the header; encoding never goes beyond it."""
    data = struct.pack("<IIII", 2178, 0, 9, frames.MAX_METADATA_BYTES + 1).ljust(
        frames.MAX_METADATA_BYTES + 4096, b"\0"
    )
    for cut in (16, 128, len(data)):
        with pytest.raises(FrameError, match="1048577 bytes") as caught:
            frames.decode(data[:cut])
        assert not caught.value.torn
    one = np.zeros((1, 1000, 1000, 1000, 0), np.int8)
    with pytest.raises(ValueError, match="80000 arrays need"):
        frames.encode(9, [one] * 80_000)


def test_a_consumer_id_has_64_bits() -> None:
    """Smaller and larger ids are refused by name."""
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=f"consumer id {wrong}"):
            frames.encode(wrong, [])


def test_an_altered_header_never_moves_the_end_of_a_frame() -> None:
    """Each other size in the header, though frames follow that it could end at, is found by the checksum."""
    value = np.arange(40, dtype=np.uint8)
    data = joined(7, [value]) * 4
    for size in range(300):
        altered = bytearray(data)
        metadata = packed([(4, [size])])
        altered[12:16] = struct.pack("<I", len(metadata))
        altered[16:32] = metadata.ljust(16, b"\0")
        if altered == data:
            continue
        with pytest.raises(FrameError, match="checksum"):
            frames.decode(bytes(altered))


def test_arrays_are_read_only_whatever_the_buffer() -> None:
    """Nobody can change a recorded value in place."""
    for buffer in (joined(7, [np.arange(3)]), bytearray(joined(7, [np.arange(3)]))):
        (array,) = frames.decode(buffer).arrays
        assert not array.flags.writeable


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
