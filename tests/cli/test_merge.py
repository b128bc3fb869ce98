"""``tracerec merge``."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.cli.inside import inside
from tests.cli.running import tracerec
from tests.trace.streams import journal
from tests.trace.test_processes import process
from tracerec.cli._terminal import size
from tracerec.formats.hdf5.seal import seal
from tracerec.trace import open_trace

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "merge.schema.json").read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Recordings of two processes in the current folder, with nothing lost."""
    for number in range(2):
        seal(process(number, dropped={}), tmp_path / f"run.{number}.h5")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", [["run.0.h5", "run.1.h5"], ["run.*.h5"]])
def test_names_and_patterns(folder, given):
    """Those that a shell has found, and one that it has not."""
    done = inside("merge", *given, "-o", "all.h5")
    nbytes = size((folder / "all.h5").stat().st_size)
    assert done == (0, f"all.h5: 13 records of 2 taps, {nbytes}, from 2 recordings\n", "")
    with open_trace("all.h5") as trace:
        assert trace.processes == (0, 1)
    assert "processes" in inside("inspect", "all.h5").out
    assert inside("compare", "all.h5", "run.*.h5").status == 0
    assert inside("verify", "all.h5").status == 0


@pytest.mark.parametrize("killed", [False, True])
def test_json(folder, killed):
    """By the schema; status 3 where a recording had lost something, and which."""
    if killed:
        (folder / "run.1.h5").unlink()
        journal(folder / "run.1.h5")
    done = inside("merge", "run.*.h5", "--out", "all.h5", "--json")
    value = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    assert done.status == (3 if killed else 0)
    assert value["losses"] == (["run.1.h5.live: the run did not end cleanly"] if killed else [])
    assert [each["state"] for each in value["processes"]] == ["clean", "killed" if killed else "clean"]
    if killed:
        again = inside("merge", "run.*.h5", "--out", "all.h5", "--overwrite")
        assert again.status == 3
        assert again.out.splitlines()[1] == "loss: run.1.h5.live: the run did not end cleanly"


def test_errors(folder):
    """One line each, and the status 2."""
    inside("merge", "run.*.h5", "-o", "all.h5")
    for args, message in (
        (["run.*.h5", "-o", "all.h5"], "all.h5 exists; move it away"),
        (["no.*.h5", "-o", "x.h5"], "no recording matches no.*.h5"),
        (["run.*.h5", "-o", "no/x.h5"], "there is no folder no"),
        (["run.*.h5", "-o", "x.h5", "--compression", "xz"], "unknown compression 'xz'"),
        (["run.0.h5", "run.0.h5", "-o", "x.h5"], "run.0.h5 is given twice; leave one out"),
        (["./run.0.h5", "run.0.h5", "-o", "x.h5"], "run.0.h5 is given twice; leave one out"),
        (["all.h5", "run.0.h5", "-o", "x.h5"], "all.h5 is a merged recording of 2 processes already"),
    ):
        done = inside("merge", *args)
        assert (done.status, done.out) == (2, "")
        assert message in done.err
        assert done.err.count("\n") == 1
    assert inside("merge", "run.0.h5").status == 2
    assert sorted(path.name for path in folder.iterdir()) == ["all.h5", "run.0.h5", "run.1.h5"]


def test_as_a_program(folder):
    """It is a command, and reading needs no JAX."""
    done = tracerec("merge", "run.0.h5", "run.1.h5", "-o", "all.h5", "--overwrite", "--compression", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "all.h5").is_file()
