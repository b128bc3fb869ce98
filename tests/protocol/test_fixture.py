"""The stream of frames that version 1 wrote, and that every later version must read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tools import make_frames_fixture
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol.stream import Counts, FrameStream

FILE = Path(__file__).parents[1] / "fixtures" / "frames-v1.bin"

BITS = {
    "int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "float32": 32, "float64": 64, "bfloat16": 16, "bool": 8, "complex64": 64, "complex128": 128,
    "int2": 8, "int4": 8, "uint2": 8, "uint4": 8, "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3b11fnuz": 8,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float4_e2m1fn": 8,
}  # fmt: skip
ORDER = list(BITS)
USED_BITS = {"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


@pytest.fixture(scope="module")
def stream():
    """The frames of the file."""
    decoder = FrameStream()
    frames = decoder.feed(FILE.read_bytes())
    assert decoder.close() == []
    assert decoder.counts == Counts(frames=5)
    return frames


def test_the_definition(stream):
    """The site's JSON as it was written, and the id that it gives."""
    assert stream[0].consumer_id == 1
    (text,) = stream[0].arrays
    data = json.loads(text.tobytes())
    assert data["name"] == "every dtype"
    assert [leaf["dtype"] for leaf in data["leaves"]] == ORDER
    assert [leaf["path"] for leaf in data["leaves"]] == [f"['{name}']" for name in ORDER]
    assert data["columns"] == [
        {"name": "step", "dtype": "int64", "shape": [], "python": "int"},
        {"name": "lr", "dtype": "float64", "shape": [], "python": "float"},
    ]
    assert data["kwargs"] == {"step": {"slot": 0}, "lr": {"slot": 1}, "phase": "train"}
    assert data["transforms"] == [{"name": "jvp"}]
    digest = hashlib.blake2b(json.dumps(data, sort_keys=True, separators=(",", ":")).encode(), digest_size=8).digest()
    assert stream[1].consumer_id == int.from_bytes(digest, "big") == Site.from_json(data).id


def test_the_index_table(stream):
    """One row a record, each field a number of its own."""
    index = stream[1].arrays[0]
    assert (index.dtype, index.shape) == (np.uint8, (2, 64))
    plain = "<u8 <u8 <u8 <i8 <i8 <i4 <i4 <u4 <u4 <u4 <u4"
    rows = np.frombuffer(index.tobytes(), np.dtype([(f"f{k}", t) for k, t in enumerate(plain.split())]))
    assert rows.tolist() == [
        (1, 2, 3, 4, 5, 6, -1, 8, 9, 1, 11),
        (100, 200, 300, 400, 500, 600, -1, 800, 900, 1, 1100),
    ]
    assert INDEX_DTYPE.itemsize == 64


@pytest.mark.parametrize("name", ORDER)
def test_every_dtype(stream, name):
    """Bytes that count up in steps of 37 are, in each dtype, the elements of two records."""
    array = stream[1].arrays[1 + ORDER.index(name)]
    shape = {"int8": (2,), "float32": (2, 0, 4)}.get(name, (2, 2, 3))
    nbytes = int(np.prod(shape)) * BITS[name] // 8
    raw = bytes((11 + 37 * k) % 256 & (2 ** USED_BITS.get(name, 8) - 1) for k in range(nbytes))
    expected = np.frombuffer(raw, np.dtype(getattr(ml_dtypes, name, None) or name)).reshape(shape)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == raw
    assert len(array.tobytes()) == nbytes


def test_known_elements(stream):
    """A few elements worked out by hand, so that byte order and sign are held too."""
    by_name = dict(zip(ORDER, stream[1].arrays[1:], strict=False))
    assert by_name["int8"].tolist() == [11, 48]
    assert by_name["uint16"][0, 0, 0] == 0x300B
    assert by_name["int16"][0, 0, 1] == 0x7A55
    assert by_name["uint32"][0, 0, 0] == 0x7A55300B
    assert by_name["bool"].ravel().tolist() == [True, False] * 6
    assert by_name["uint4"].ravel().tolist()[:4] == [11, 0, 5, 10]
    assert by_name["int4"].ravel().astype(int).tolist()[:4] == [-5, 0, 5, -6]


def test_the_stored_column(stream):
    """Behind the leaves: the learning rate, whose second value is minus zero; the step is in the index alone."""
    lr = stream[1].arrays[-1]
    assert lr.tolist() == [0.5, 0.0]
    assert np.signbit(lr).tolist() == [False, True]
    assert len(stream[1].arrays) == 1 + len(ORDER) + 1


def test_long_metadata_and_none(stream):
    """A frame of 300 arrays with the largest id, and one of no array with the smallest of a site."""
    assert stream[2].consumer_id == 0xFFFFFFFFFFFFFFFF
    assert [a.tolist() for a in stream[2].arrays] == [[k] * (k % 3) for k in range(300)]
    assert {a.dtype.name for a in stream[2].arrays} == {"int16"}
    assert (stream[3].consumer_id, stream[3].arrays) == (2, ())


def test_the_end(stream):
    """The summary of a run that was closed."""
    assert stream[4].consumer_id == 0
    (text,) = stream[4].arrays
    expected = {"ended": 1, "dropped": {"a": 3}, "lost": {}, "high_water_bytes": 4096, "failure": None}
    assert json.loads(text.tobytes()) == expected


def test_today_s_encoder_writes_the_same_bytes():
    """Other bytes for the same arrays would be another version of the protocol."""
    assert make_frames_fixture.fixture() == FILE.read_bytes()
