"""``tracerec compare``: exit status, what people see, what programs read."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from tests.cli.inside import inside
from tests.cli.running import tracerec
from tests.comparing.runs import Written, chain
from tests.support import ROOT
from tracerec import compare

SCHEMA = json.loads((ROOT / "schemas/compare.schema.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Recordings by name: one, one that differs, one without a tap, one that dropped it, one of strangers."""
    written = Written(tmp_path_factory.mktemp("compare"))
    x = np.random.default_rng(5).normal(size=(3, 6, 4)).astype(np.float32)
    y = x.copy()
    y[1, 3, 2] += 1
    y[2, 4:] += 100
    names = ("first", "second", "evil\x1b[2J")
    streams = chain(x, names)
    return {
        "a": written(*streams),
        "b": written(*chain(y, names)),
        "without": written(*streams[:2]),
        "dropped": written(*streams[:2], dropped={names[2]: 6}),
        "strangers": written(*chain(x, ("u", "v", "w"))),
    }


@pytest.mark.parametrize(
    ("other", "options", "status"),
    [
        ("a", (), 0),
        ("b", (), 1),
        ("b", ("--atol", "200"), 0),
        ("b", ("--atol", "second=2", "--atol", "float32=200"), 0),
        ("b", ("--ignore", "sec*", "--ignore", "evil*"), 0),
        ("without", (), 1),
        ("without", ("--missing", "warn"), 3),
        ("without", ("--missing", "ignore"), 0),
        ("dropped", (), 3),
        ("strangers", (), 2),
        ("strangers", ("--rename", "first=u", "--rename", "second=v", "--rename", "evil*=w"), 0),
    ],
)
def test_exit_status(runs, other, options, status):
    """0 equal, 1 different, 2 not comparable, 3 compared with loss."""
    done = inside("compare", runs["a"], runs[other], *options)
    assert (done.status, done.err) == (status, "")


def test_what_people_see(runs):
    """Verdict, first divergence with the values around its worst element, a table in order, or the worst first."""
    lines = tracerec("compare", runs["a"], runs["b"]).stdout.splitlines()
    assert lines[0].startswith("✗ different: 3 of 18 compared differ, ")
    assert lines[0].endswith("; first: second step=3")
    assert "First divergence: second step=3" in lines
    assert any(line.startswith("  [2] ") and line.endswith(" <") for line in lines)
    assert "\x1b" not in "".join(lines)
    rows = [line.split()[0] for line in lines if " float32  (4,)" in line]
    assert rows == ["second", "evil\\x1b[2J"]
    worst = inside("compare", runs["a"], runs["b"], "--sort", "worst").out.splitlines()
    assert [line.split()[0] for line in worst if " float32  (4,)" in line] == rows[::-1]
    assert inside("compare", runs["a"], runs["a"]).out.startswith("✓ equal: all 18 of 18")
    assert "float8_e5m2" in inside("compare", runs["a"], runs["a"], "--tolerances").out


def test_a_narrow_terminal(runs):
    """The table leaves columns out and says which; no sentence is broken; what a name is made of stays in its line."""
    wide = inside("compare", runs["a"], runs["b"]).out.splitlines()
    narrow = inside("compare", runs["a"], runs["b"], columns=60).out.splitlines()
    assert narrow[0] == wide[0]
    assert [line for line in wide if line.startswith("Tolerances")] == [x for x in narrow if x.startswith("Tolerances")]
    start = next(number for number, line in enumerate(narrow) if line.startswith("tap "))
    rows = narrow[start : start + 3]
    assert all(len(line) <= 60 for line in rows)
    assert [line.split()[0] for line in rows] == ["tap", "second", "evil\\x1b[2J"]
    assert narrow[start + 3].startswith("Not shown for want of width: ")
    assert "max ulp" in narrow[start + 3]
    assert "max ulp" in wide[wide.index("First divergence: second step=3") + 1 :][10]


def test_names_with_control_characters(runs):
    """As text of the library, too."""
    text = str(compare(runs["a"], runs["b"]))
    assert "\x1b" not in text
    assert "evil\\x1b[2J" in text


def test_what_programs_read(runs, tmp_path):
    """One JSON object by its schema, whatever the verdict; reports beside it."""
    for other, status in (("a", 0), ("b", 1), ("strangers", 2), ("dropped", 3)):
        done = inside("compare", runs["a"], runs[other], "--json", "--report", tmp_path / f"{other}.html")
        found = json.loads(done.out)
        jsonschema.validate(found, SCHEMA)
        assert found["status"] == done.status == status
        assert (tmp_path / f"{other}.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rtol", "much"), "--rtol takes a number, or NAME=NUMBER, not 'much'"),
        (("--rtol", "-1"), "rtol is a number of at least 0"),
        (("--rename", "a", "--rename", "b=c"), "--rename takes OLD=NEW, or one JSON file, not 'a'"),
        (("--rename", "none=x"), "matches 'none'"),
        (("--key", "nothing"), "no tap has a kwarg 'nothing'"),
        (("--report", "/nowhere/x.html"), "/nowhere/x.html cannot be written: No such file or directory"),
        (("--report", "x.pdf"), "a report's name ends in"),
    ],
)
def test_what_cannot_be_done(runs, options, words):
    """Status 2 and one line."""
    done = inside("compare", runs["a"], runs["b"], *options)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_missing_run(runs, tmp_path):
    """Status 2 and one line that names it."""
    done = inside("compare", runs["a"], tmp_path / "none.h5")
    assert (done.status, done.err) == (2, f"tracerec: there is no trace at {tmp_path / 'none.h5'}\n")
