from __future__ import annotations

import json
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracerec import structure
from tracerec.model import Column, Leaf, Site, Transform


@given(st.dictionaries(st.text(), st.text() | st.booleans() | st.none()))
def test_canonical_text_is_json_and_equal_for_equal_values(value: dict[str, object]) -> None:
    """Any order of the keys gives the same ASCII text, which reads back as the value."""
    text = structure.canonical(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert structure.canonical(dict(reversed(value.items()))) == text


def test_lone_surrogates_and_nul_survive() -> None:
    """Strings that UTF-8 cannot hold are escaped, not refused or cut."""
    name = "a\0b\ud800"
    assert json.loads(structure.canonical(name)) == name


def test_build_gives_python_values_back() -> None:
    """Each kind of node becomes the value it stands for."""
    node = {
        "dict": [
            ["t", {"tuple": [{"slot": 1}, {"list": [{"slot": 0}, None, True]}]}],
            [{"int": "3"}, {"bytes": "00ff"}],
            ["e", {"enum": ["m:Color", "RED"]}],
            ["p", {"path": "/a/b"}],
            ["d", {"dtype": "bfloat16"}],
            ["o", {"object": ["m:Layer", [".w", ".b"], [{"slot": 2}, None]]}],
        ]
    }
    value = structure.build(node, ["zero", "one", "two"].__getitem__)
    assert value["t"] == ("one", ["zero", None, True])
    assert value[3] == b"\x00\xff"
    assert str(value["e"]) == "Color.RED"
    assert value["p"] == PurePath("/a/b")
    assert value["d"].name == "bfloat16"
    assert (value["o"].w, value["o"].b, value["o"][0], len(value["o"])) == ("two", None, "two", 2)
    with pytest.raises(AttributeError, match="no recorded child 'x'; it has"):
        _ = value["o"].x


@pytest.mark.parametrize("node", [{"new": 1}, {"slot": 0, "x": 1}, 7, 1.5, [], {}])
def test_nodes_of_another_version_are_refused(node: object) -> None:
    """An unknown node is a ValueError, never a guess."""
    with pytest.raises(ValueError, match="structure"):
        structure.build(node, lambda i: i)


def a_site(**changes: object) -> Site:
    """A site with every field used."""
    fields: dict[str, object] = {
        "name": "a/b\0\ud800",
        "leaves": (Leaf("['w']", (2, 0, 3), "bfloat16", 1), Leaf("['k']", (2, 2), "uint32", 0, "threefry2x32")),
        "columns": (Column("step", "int64", (), "int"), Column("lr", "float64", (4,), None)),
        "kwargs": '{"lr":{"slot":1},"step":{"slot":0}}',
        "structure": '{"dict":[["k",{"slot":0}],["w",{"slot":1}]]}',
        "transforms": (
            Transform("batch", size=2, dims=(0, None), kwarg_dims=(None, 0), axis_name="i"),
            Transform("jvp"),
        ),
        "mesh": (("x", 2), ("y", 1)),
        "ordered": True,
    }
    return Site(**{**fields, **changes})  # type: ignore[arg-type]


def test_site_survives_json_and_is_equal_and_hashable() -> None:
    """A site read back from text is the same site, with the same id."""
    site = a_site()
    back = Site.from_json(json.loads(structure.canonical(site.to_json())))
    assert back == site
    assert hash(back) == hash(site)
    assert back.id == site.id


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a"},
        {"transforms": ()},
        {"mesh": ()},
        {"ordered": False},
        {"kwargs": "{}"},
        {"leaves": (Leaf("", (2,), "int4"),)},
    ],
)
def test_sites_that_differ_have_different_ids(change: dict[str, object]) -> None:
    """Every field counts."""
    assert a_site(**change).id != a_site().id


def test_site_id_is_the_same_in_every_process() -> None:
    """The id is the BLAKE2b digest of the site's canonical JSON, here digested by another program (b2sum -l 64)."""
    assert Site("act", (Leaf("", (3,), "float32"),)).id == 0xEF60_3EBF_0448_2425


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (Column("step", "int32"), True),
        (Column("step", "uint32"), True),
        (Column("step", "uint64"), False),
        (Column("step", "float32"), False),
        (Column("step", "int32", (2,)), False),
        (Column("layer", "int32"), False),
    ],
)
def test_only_an_integer_scalar_step_lives_in_the_index(column: Column, expected: bool) -> None:  # noqa: FBT001
    """Everything else is stored as a column of its own."""
    assert column.in_index is expected
