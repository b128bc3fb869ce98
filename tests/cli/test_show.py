from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from rich.cells import cell_len

from tests.cli.inside import inside
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import STEP, leaf, training
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site, Transform
from tracerec.statistics import moments

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "show.schema.json").read_text())
VALUES = np.random.default_rng(3).normal(size=(3, 40, 50)).astype(np.float32)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Three records of 2,000 values, two of a batch; keys; numbers that numpy lacks."""
    path = tmp_path_factory.mktemp("show") / "large.h5"
    plain = Site("big", (Leaf("", (40, 50), "float32"),), (STEP,), '{"step":{"slot":0}}')
    batches = [Transform("batch", size=n, dims=(0,), kwarg_dims=()) for n in (2, 3)]
    lanes = [Site("lanes", (Leaf("", (t.size or 0,), "int32"),), transforms=(t,)) for t in batches]
    key = Site("key", (Leaf("", (2,), "uint32", key_impl="threefry2x32"),))
    small = Site("small", (Leaf("", (3,), "bfloat16"),))
    streams = [
        make_stream(plain, [VALUES], numbers=[[7, 7, 8]]),
        make_stream(lanes[0], [[[1, 2]]], first=10),
        make_stream(lanes[1], [[[1, 2, 3]]], first=20),
        make_stream(key, [[[1, 2]]], first=30),
        make_stream(small, [np.array([[1, np.nan, np.inf]], ml_dtypes.bfloat16)], first=40),
    ]
    seal(MemorySource(streams), path)
    return path


def parsed(*args):
    """Returns the object that the command prints, checked by the schema."""
    done = inside("show", *args, "--json")
    assert (done.status, done.err) == (0, ""), done.err
    value = json.loads(done.out, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return value


class TestText:
    def test_last_record(self, recording):
        """Metadata, values, statistics; the last one unless told otherwise."""
        done = inside("show", recording, "loss")
        assert (done.status, done.err) == (0, "")
        lines = done.out.splitlines()
        assert lines[0] == "loss  float32[]  record 7, the last of 8"
        facts = dict(line.split(maxsplit=1) for line in lines[1:5])
        assert facts == {
            "step": "50",
            "kwargs": 'lr=0.2  phase="train"',
            "time": "2023-11-14 22:13:20.005 UTC",
            "from": "device 0, call 6, arrival 52",
        }
        assert lines[6:] == ["1.", "", "1 value · mean 1 · std 0 · min 1 · max 1 · l2 1"]

    def test_values_as_numpy_prints_them(self, recording):
        """Bit for bit those of the record."""
        done = inside("show", recording, "layer", "--transforms", "jvp,transpose", "--record", "1")
        assert np.array2string(leaf(training(), 1)[1]) in done.out
        assert "transforms  jvp, transpose" in done.out
        assert "device 1" in done.out

    def test_large_array(self, large):
        """The summary of numpy, with how much of it is seen."""
        done = inside("show", large, "big")
        assert np.array2string(VALUES[2], max_line_width=120, threshold=1024) in done.out
        assert "36 of 2,000 values are shown; --slice shows a part, --all shows all" in done.out
        everything = inside("show", large, "big", "--all")
        assert "..." not in everything.out
        assert "are shown" not in everything.out

    def test_histogram(self, large):
        """A line a bin; the counts are those of numpy, and add up."""
        done = inside("show", large, "big", "--record", "0")
        lines = [line.split() for line in done.out.split(" l2 ")[1].splitlines()[1:]]
        edges = [float(line[0]) for line in lines]
        counts = [int(line[-1].replace(",", "")) for line in lines]
        width = edges[1] - edges[0]
        assert counts == np.histogram(VALUES[0], [*edges, edges[-1] + width])[0].tolist()
        longest = max(lines, key=lambda line: len(line[1]))
        assert int(longest[-1]) == max(counts)

    def test_slice(self, large):
        """Values, statistics and histogram of the part."""
        done = inside("show", large, "big", "--slice", "0,1:4")
        assert np.array2string(VALUES[2, 0, 1:4]) in done.out
        assert "slice  [0, 1:4], of shape (3,)" in done.out
        assert "3 values" in done.out

    def test_step_selects(self, large):
        """Records of a step; the number counts among them."""
        assert "record 1, the last of 2" in inside("show", large, "big", "--step", "7").out
        assert (
            np.array2string(VALUES[0, 0, :3])[1:-1] in inside("show", large, "big", "--step", "7", "--record", "0").out
        )

    def test_not_finite(self, large):
        """NaN and infinities are counted apart."""
        done = inside("show", large, "small")
        assert "[1 nan inf]" in done.out
        assert done.out.splitlines()[-1].endswith(" · 1 NaN, 1 Inf")

    def test_keys(self, large):
        """Key data, without statistics."""
        done = inside("show", large, "key")
        assert done.out.splitlines()[0].startswith("key  key<threefry2x32>[2]")
        assert done.out.splitlines()[-1] == "[1 2]"

    @pytest.mark.parametrize("columns", [40, 60, 100])
    def test_width(self, large, columns):
        """No line is wider than the terminal."""
        done = inside("show", large, "big", columns=columns)
        assert max(map(cell_len, done.out.splitlines())) <= columns

    def test_hostile_kwargs(self, faulty):
        """Nothing that a terminal would obey."""
        name = "evil\x1b]0;title\x07\u202e\n/name"
        done = inside("show", faulty, name, "--leaf", "['b']")
        assert "\x1b" not in done.out
        assert r"evil\x1b]0;title" in done.out

    def test_lanes_of_which_nothing_is_known(self, masked):
        """A note."""
        assert "lanes that did not take the tap's branch may be in it" in inside("show", masked, "branch").out


class TestJson:
    def test_object(self, large):
        """By the schema; statistics are those of the library."""
        value = parsed(large, "big", "--record", "-2")
        assert np.array_equal(np.array(value["values"], np.float32), VALUES[1])
        assert value["statistics"] == moments(VALUES[1]).to_json()
        assert (value["record"], value["records"], value["step"]) == (1, 3, 7)
        assert sum(value["histogram"]["counts"]) == 2000

    def test_odd_values(self, large, masked):
        """NaN as text; keys without statistics; slices."""
        assert parsed(large, "small")["values"] == [1.0, "nan", "inf"]
        assert parsed(large, "key")["statistics"] is None
        assert parsed(large, "big", "--slice", "0,-1")["shape"] == []
        assert parsed(masked, "branch")["transforms"] == ["batch(4)"]


class TestErrors:
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("bgi",), "has no tap 'bgi'; did you mean 'big'?"),
            (("big", "--step", "9"), "step=9 of tap 'big' was never recorded"),
            (("big", "--record", "3"), "--record 3: there are 3 records to choose from, 0 to 2"),
            (("big", "--transforms", "jvp"), "no records with --transforms 'jvp'; it has --transforms none"),
            (("big", "--leaf", "['w']"), "tap 'big' has no leaf \"['w']\""),
            (("big", "--slice", "x"), "--slice 'x' is no index; write one such as"),
            (("big", "--slice", "...,..."), "--slice '...,...' is no index"),
            (("big", "--slice", "::0"), "--slice '::0' is no index"),
            (("big", "--slice", "40"), "--slice '40' does not fit an array of shape (40, 50)"),
            (("lanes",), "choose one: --transforms 'batch(2)', --transforms 'batch(3)'"),
            (("lanes", "--transforms", "batch"), "choose one: --transforms 'batch(2)', --transforms 'batch(3)'"),
        ],
        ids=str,
    )
    def test_one_line(self, large, args, message):
        """What is wrong, and what there is."""
        done = inside("show", large, *args)
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
        assert message in done.err

    def test_several_kinds(self, recording):
        """The options that choose one, which then do."""
        done = inside("show", recording, "layer")
        assert done.err.endswith("choose one: --transforms none, --transforms jvp,transpose\n")
        done = inside("show", recording, "layer", "--transforms", "none")
        assert done.err.endswith("choose one: --leaf \"['b']\", --leaf \"['w']\"\n")
        assert inside("show", recording, "layer", "--transforms", "none", "--leaf", "['w']").status == 0

    def test_chains_of_one_name(self, large):
        """They are told apart by their sizes."""
        assert "[1 2 3]" in inside("show", large, "lanes", "--transforms", "batch(3)").out
