from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.cells import cell_len

from tests.cli.inside import inside
from tests.cli.running import tracerec
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import STEP
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.trace import open_trace

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "plot.schema.json").read_text())
COUNT = 300


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A rising scalar with a gap, a vector, a tensor."""
    path = tmp_path_factory.mktemp("plot") / "run.h5"
    steps = np.arange(COUNT)

    def stream(name, values, first):
        site = Site(name, (Leaf("", values.shape[1:], "float32"),), (STEP,), '{"step":{"slot":0}}')
        return make_stream(site, [values.astype(np.float32)], numbers=[steps], first=first)

    loss = steps / 10.0
    loss[100:110] = np.nan
    vector = np.sin(steps[:, None] / 20 + np.arange(8))
    tensor = np.random.default_rng(0).normal(size=(COUNT, 4, 5))
    streams = [stream("loss", loss, 0), stream("vector", vector, 1000), stream("\x1b[31mtensor", tensor, 2000)]
    seal(MemorySource(streams), path)
    return path


class TestTerminal:
    @pytest.mark.parametrize("tap", ["loss", "vector", "\x1b[31mtensor"])
    @pytest.mark.parametrize("columns", [50, 80, None])
    def test_fits(self, course, tap, columns):
        """No line is too wide, none ends in spaces; nothing that a terminal would obey."""
        done = inside("plot", course, tap, columns=columns)
        assert (done.status, done.err) == (0, "")
        lines = done.out.splitlines()
        if tap == "loss":
            assert max(map(cell_len, lines)) <= (columns or 100)
        assert all(line == line.rstrip() for line in lines)
        assert "\x1b" not in done.out

    def test_line_goes_where_the_values_do(self, course):
        """Left below, right above; numbers at the side; the gap is told."""
        lines = inside("plot", course, "loss", columns=80).out.splitlines()
        assert lines[0] == "loss"
        assert lines[1].split("┤")[0].strip() == "29.9"
        assert len(lines[1].split("┤")[1]) > 55
        assert len(lines[16].split("┤")[1]) < 15
        assert lines[18].split() == ["0", "step", "298"]
        assert "10 of 300 records have no finite value" in " ".join(" ".join(lines[19:]).split())

    def test_mesh_has_what_the_library_gives(self, course):
        """The darkest shade where the largest means are."""
        lines = inside("plot", course, "vector", columns=80).out.splitlines()
        with open_trace(course) as trace:
            values = trace["vector"].picture(columns=66, rows=16).values
        row, column = np.unravel_index(values.argmax(), values.shape)
        assert lines[1 + row].split("┤")[1][column] == "█"
        row, column = np.unravel_index(values.argmin(), values.shape)
        assert lines[1 + row].split("┤")[1].ljust(66)[column] == " "

    def test_histogram(self, course):
        """Asked for; what is there is seen."""
        done = inside("plot", course, "vector", "--kind", "histogram", columns=80)
        assert "share of the values" in done.out
        assert "░" in done.out

    def test_ascii(self, course):
        """Where there is nothing else."""
        for tap in ("loss", "vector"):
            done = tracerec("plot", course, tap, encoding="ascii", columns=80)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.isascii()

    def test_nothing_finite(self, tmp_path):
        """A sentence."""
        site = Site("bad", (Leaf("", (2,), "float32"),))
        seal(MemorySource([make_stream(site, [np.full((3, 2), np.nan)])]), tmp_path / "bad.h5")
        for kind in ("line", "heatmap", "histogram"):
            assert "no record has a finite value" in inside("plot", tmp_path / "bad.h5", "bad", "--kind", kind).out


def test_file(course, tmp_path):
    """A picture, and nothing else."""
    done = inside("plot", course, "vector", "-o", tmp_path / "x.png")
    assert done == (0, "", "")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def parsed(*args):
    """Returns the object that the command prints, checked by the schema."""
    value = json.loads(inside("plot", *args, "--json").out, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return value


@pytest.mark.parametrize("tap", ["loss", "vector", "\x1b[31mtensor"])
@pytest.mark.parametrize("kind", ["line", "heatmap", "histogram"])
def test_json_by_the_schema(course, tap, kind):
    """Of every kind: as many numbers as the schema says."""
    value = parsed(course, tap, "--kind", kind)
    assert value["kind"] == kind
    columns = len(value["x"])
    assert all(len(measure) == columns for measure in value["measures"].values())
    assert len(value["measures"]) == (4 if kind == "line" else 0)
    rows = {"line": 0, "heatmap": len(value["y"]), "histogram": len(value["y"]) - 1}[kind]
    assert [len(row) for row in value["values"]] == [columns] * rows


def test_json(course):
    """What would be drawn."""
    value = parsed(course, "loss")
    assert (value["kind"], value["records"], value["missing"], value["x_name"]) == ("line", COUNT, 10, "step")
    assert value["measures"]["mean"][100] == "nan"
    assert value["measures"]["mean"][0] == 0.0


class TestErrors:
    def test_kinds_of_record(self, recording):
        """The options that choose one."""
        done = inside("plot", recording, "layer")
        assert (done.status, done.out) == (2, "")
        assert "choose one: --transforms none, --transforms jvp,transpose" in done.err

    @pytest.mark.parametrize(
        ("name", "message"),
        [("x.xyz", "matplotlib cannot draw to it"), ("no/x.png", "cannot be written: No such file")],
    )
    def test_file_that_cannot_be(self, course, tmp_path, name, message):
        """One line."""
        done = inside("plot", course, "loss", "-o", tmp_path / name)
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert message in done.err

    def test_without_matplotlib(self, course, tmp_path, monkeypatch):
        """One line names the extra; the terminal needs none."""
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        done = inside("plot", course, "loss", "-o", tmp_path / "x.png")
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert "pip install 'tracerec[plot]'" in done.err
        assert inside("plot", course, "loss").status == 0
