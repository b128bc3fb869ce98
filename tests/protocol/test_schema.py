"""The code is what `schemas/outfeed.schema.json` says, and so is what a recording writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import crc32c
import jsonschema
import ml_dtypes
import msgpack
import numpy as np
import pytest
from referencing import Registry, Resource

import tracerec
from tests.protocol.support import joined, packed, sealed
from tracerec.errors import FrameError
from tracerec.journal.writing import JournalWriter
from tracerec.model import FLAG_CALL_GUESSED, FLAG_STEP, INDEX_DTYPE, Site
from tracerec.protocol import dtypes, frames
from tracerec.protocol.stream import FrameStream

SCHEMAS = Path(__file__).parents[2] / "schemas"
SCHEMA = json.loads((SCHEMAS / "outfeed.schema.json").read_text(encoding="utf-8"))
TRACE = json.loads((SCHEMAS / "trace.schema.json").read_text(encoding="utf-8"))
FIELDS = {field["name"]: field for field in SCHEMA["frame"]["header"]["fields"]}


def validator(name: str) -> jsonschema.Draft202012Validator:
    """A validator of one definition of the schema, which knows the schema of traces."""
    registry = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in (SCHEMA, TRACE))
    return jsonschema.Draft202012Validator({"$ref": f"{SCHEMA['$id']}#/$defs/{name}"}, registry=registry)


def test_the_schema_is_one_and_has_a_version():
    """It is a valid schema of its draft, and its id ends with the version that the comment tells."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == "tracerec/outfeed-1.0"
    assert SCHEMA["$comment"] == "version 1.0"


def test_header_words():
    """A frame's words are where the schema has them, and the limits of the code are the schema's."""
    header = SCHEMA["frame"]["header"]
    words = np.frombuffer(joined(0x0123456789ABCDEF, [np.zeros((3,), np.float32)]), "<u4")
    assert words[FIELDS["magic"]["word"]] == FIELDS["magic"]["value"] == frames.MAGIC
    first = FIELDS["consumer_id"]["word"]
    assert FIELDS["consumer_id"]["word_order"] == "high first"
    assert words[first : first + FIELDS["consumer_id"]["words"]].tolist() == [0x01234567, 0x89ABCDEF]
    length = int(words[FIELDS["metadata_bytes"]["word"]])
    metadata = words.tobytes()[4 * FIELDS["metadata"]["word"] :][:length]
    assert msgpack.unpackb(metadata) == [[9, [3]]]
    assert sum(field["words"] for field in FIELDS.values()) == header["words"]
    assert 4 * header["words"] == frames.HEADER_BYTES
    assert FIELDS["metadata_bytes"]["maximum"] == frames.MAX_METADATA_BYTES
    assert len(words) == header["words"] + 3 + SCHEMA["frame"]["checksum"]["bytes"] // 4


def test_checksum():
    """The parameters make the schema's check value, bit by bit, and the library's."""
    checksum = SCHEMA["frame"]["checksum"]
    assert checksum["reflected"]
    polynomial = int(f"{checksum['polynomial']:032b}"[::-1], 2)
    crc = checksum["initial"]
    for byte in checksum["check"]["of"].encode():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    assert crc ^ checksum["final_xor"] == checksum["check"]["value"]
    assert crc32c.crc32c(checksum["check"]["of"].encode()) == checksum["check"]["value"]
    assert checksum["bytes"] == frames.CRC_BYTES


def test_type_codes():
    """Codes, names and itemsizes are those of the code; the itemsizes are also numpy's and ml_dtypes' own."""
    assert [t["name"] for t in SCHEMA["types"]] == list(dtypes.NAMES)
    assert [t["code"] for t in SCHEMA["types"]] == list(range(len(dtypes.NAMES)))
    for entry in SCHEMA["types"]:
        dtype = np.dtype(getattr(ml_dtypes, entry["name"], None) or entry["name"])
        assert dtypes.from_code(entry["code"]) == dtype
        assert entry["itemsize"] == dtype.itemsize
    assert SCHEMA["$defs"]["code"]["maximum"] == len(dtypes.NAMES) - 1
    assert SCHEMA["$defs"]["dims"]["maxItems"] == frames.MAX_RANK
    assert TRACE["$defs"]["dtype"]["enum"] == list(dtypes.NAMES)


def test_consumer_ids():
    """The reserved ids are those of the code."""
    reserved = {c["name"]: c["id"] for c in SCHEMA["consumers"] if "id" in c}
    assert reserved == {"end": frames.END, "definition": frames.DEFINE}
    assert {c["minimum"] for c in SCHEMA["consumers"] if "minimum" in c} == {max(reserved.values()) + 1}


def test_index_table():
    """Fields, types, offsets and flags of an index row are those of the model."""
    index = SCHEMA["index"]
    described = np.dtype(
        {
            "names": [f["name"] for f in index["fields"]],
            "formats": [np.dtype(f["type"]).newbyteorder("<") for f in index["fields"]],
            "offsets": [f["offset"] for f in index["fields"]],
            "itemsize": index["itemsize"],
        }
    )
    assert index["byte_order"] == "little"
    assert described == INDEX_DTYPE
    assert index["flags"] == {"step": FLAG_STEP, "call_guessed": FLAG_CALL_GUESSED}


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [[0, []]],
        [[27, [1, 2, 3]], [9, [0, 2**60]]],
        [[9, [1] * 64]],
        [[28, []]],
        [[-1, []]],
        [[9, [-1]]],
        [[9, [1] * 65]],
        [[9, [2**63]]],
        [[9, [None]]],
        [[9, ["a"]]],
        [[9]],
        [[9, [], 0]],
        [[9, 3]],
        [9],
        9,
        {},
    ],
)
def test_metadata_grammar(metadata: Any):
    """The schema and the decoder take the same metadata."""
    try:
        frames.head_at(memoryview(sealed(packed(metadata))), 0)
    except FrameError:
        taken = False
    else:
        taken = True
    assert taken is validator("metadata").is_valid(metadata)


def test_what_a_recording_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The definitions and the end summary of a real recording are as the schema says, member for member."""
    summaries, segments = [], []
    end = JournalWriter.end

    def kept(self, summary):
        end(self, summary)
        summaries.append(summary)
        segments.extend(path.read_bytes() for path in sorted(self._folder.glob("*.frames")))

    monkeypatch.setattr(JournalWriter, "end", kept)
    with tracerec.record(tmp_path / "run.h5"):
        tracerec.tap({"a": np.ones((2, 3), np.float32)}, "act", step=3, phase="train")
    found: dict[int, list[frames.Frame]] = {}
    for data in segments:
        for head in frames.heads(data):
            found.setdefault(head.consumer_id, []).append(frames.decode(data, head.start))
    (summary,) = summaries
    assert json.loads(found[frames.END][0].arrays[0].tobytes()) == summary
    validator("end").validate(summary)
    segment, definition = (json.loads(frame.arrays[0].tobytes()) for frame in found[frames.DEFINE])
    validator("segment").validate(segment)
    validator("definition").validate(definition)
    site = Site.from_json(definition)
    index, value = found[site.id][0].arrays
    assert index.shape == (1, SCHEMA["index"]["itemsize"])
    (offset,) = (field["offset"] for field in SCHEMA["index"]["fields"] if field["name"] == "step")
    assert struct.unpack_from("<q", index.tobytes(), offset) == (3,)
    assert value.tolist() == [[[1.0] * 3] * 2]


def test_what_the_fixture_holds():
    """What version 1 wrote is by the schema of version 1."""
    decoder = FrameStream()
    held = decoder.feed((SCHEMAS.parent / "tests" / "fixtures" / "frames-v1.bin").read_bytes())
    documents = {f.consumer_id: json.loads(f.arrays[0].tobytes()) for f in held if f.consumer_id <= frames.DEFINE}
    validator("definition").validate(documents[frames.DEFINE])
    validator("end").validate(documents[frames.END])


def test_the_schema_is_strict_about_what_is_written():
    """A member too many or too few is a fault of the writer, which the tests above would see."""
    good = {"ended": 1, "dropped": {"a": 1}, "lost": {}, "high_water_bytes": 0, "failure": "OSError: full"}
    validator("end").validate(good)
    for wrong in ({**good, "more": 1}, {"ended": 1}, {**good, "dropped": {"a": -1}}, {**good, "lost": None}):
        assert not validator("end").is_valid(wrong)
