"""The JSON in a sealed file is what `schemas/trace.schema.json` says, member for member."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import jsonschema
import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.layout import VERSION, StreamLine
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.protocol import dtypes
from tracerec.statistics import SPARK_POINTS, LeafSummary, Moments

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "trace.schema.json").read_text())

STRUCTURE = {
    "dict": [
        ["a", {"tuple": [{"slot": 0}, {"list": [None, True, "x"]}]}],
        [{"int": "-3"}, {"object": ["optax:State", [".mu"], [{"slot": 1}]]}],
        ["b", {"bytes": "00ff"}],
        ["c", {"enum": ["m:Color", "RED"]}],
        ["d", {"dtype": "int4"}],
        ["e", {"path": "/x"}],
    ]
}


def validate(value, name):
    """Validates a JSON value against one definition of the schema."""
    schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.fixture
def file(tmp_path):
    """A sealed file that uses every optional member."""
    site = Site(
        "act",
        (Leaf("['a']", (2, 3), "float8_e4m3fn"), Leaf("[-3]", (2,), "uint32", number=1, key_impl="rbg")),
        (Column("step", "int64", python="int"), Column("lr", "float64", python="float"), Column("n", "int4", (2,))),
        kwargs=json.dumps({"step": {"slot": 0}, "lr": {"slot": 1}, "phase": "train", "n": {"slot": 2}}),
        structure=json.dumps(STRUCTURE),
        transforms=(
            Transform("jvp"),
            Transform("batch", size=2, dims=(0, None), kwarg_dims=(None, None, 0), axis_name="i"),
        ),
        mesh=(("x", 2),),
        ordered=True,
    )
    arrays = [np.full((60, 2, 3), np.nan), np.ones((60, 2))]
    stream = make_stream(site, arrays, [range(60), np.ones(60), np.ones((60, 2))])
    roles = (
        Column("where", "bool", (2,), role="where"),
        Column("", "int32", (1,), role="extent"),
        Column("", "int64", (2,), role="offset"),
    )
    batch = Transform("batch", size=2, dims=(0,), kwarg_dims=(0, None, None), lanes_may_be_invalid=True)
    shard = Site("shard", (Leaf("", (2, 1), "float32", global_shape=(2, 3)),), roles, transforms=(batch,))
    shards = make_stream(shard, [[[[1], [2]]]], [[[True, False]], [[2]], [[0, 1]]])
    plain = make_stream(Site("plain", (Leaf("", (), "float32"),)), [[0.1, np.nan, np.inf]])
    source = MemorySource([stream, shards, plain])
    source.info = dataclasses.replace(source.info, metadata={"a": [1, None]}, dropped={"act": 3}, notes=("Torn.",))
    seal(source, tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5") as opened:
        yield opened


def strict(text):
    """Parses JSON, NaN and Infinity refused."""
    return json.loads(text, parse_constant=pytest.fail)


def test_the_schema_is_a_schema():
    """The file is valid JSON Schema, and of the version that the writer writes."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == f"tracerec/trace-{VERSION}"
    assert SCHEMA["$comment"] == f"version {VERSION}"


def test_the_documents_of_a_file(file):
    """The run, each line of /index and each line of /summaries are valid."""
    validate(strict(file.attrs["run"]), "run")
    for name, definition in (("index", "stream"), ("summaries", "summaries")):
        lines = file[name][:].tobytes().splitlines()
        assert len(lines) == 3
        for line in lines:
            validate(strict(line), definition)
    validate(strict(file["streams/000000"].attrs["site"]), "site")
    assert [file[f"streams/000001/kwarg_{n}"].attrs["role"] for n in range(3)] == [b"where", b"extent", b"offset"]
    assert "role" not in file["streams/000000/kwarg_1"].attrs


def test_every_member_is_in_the_schema():
    """Classes and definitions have the same members: neither can grow without the other."""
    for cls, name in (
        (RunInfo, "run"),
        (StreamLine, "stream"),
        (Site, "site"),
        (Leaf, "leaf"),
        (Column, "column"),
        (Transform, "transform"),
        (LeafSummary, "summary"),
        (Moments, "moments"),
    ):
        assert set(SCHEMA["$defs"][name]["properties"]) == {f.name for f in dataclasses.fields(cls)}, name
    assert tuple(SCHEMA["$defs"]["dtype"]["enum"]) == dtypes.NAMES
    assert SCHEMA["$defs"]["summary"]["properties"]["spark"]["maxItems"] == SPARK_POINTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", {"run_id": "short", "started": 0}),
        ("run", {"started": 0}),
        ("stream", {"group": "../x", "site": {}, "records": 0, "nbytes": 0, "steps": None}),
        ("dims", ["x"]),
        ("dtype", "object"),
        ("node", {"pickle": "gASV"}),
        ("node", {"slot": 1, "tuple": []}),
        ("moments", {"count": -1}),
        ("summaries", [{}]),
    ],
)
def test_the_schema_refuses(name, value):
    """What is no such document is refused: the schema says something."""
    with pytest.raises(jsonschema.ValidationError):
        validate(value, name)
