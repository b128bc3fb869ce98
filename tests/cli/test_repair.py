"""``tracerec repair``: exit status, what people see, what programs read."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.cli.running import tracerec
from tests.verifying.breaking import flip, flipped_chunk, flipped_segment, intact
from tracerec.journal.lock import JournalLock
from tracerec.verifying import verify

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "schemas/repair.schema.json").read_text())


def test_an_intact_recording(tmp_path):
    """Nothing is done; status 0."""
    path = intact("h5-lz4", tmp_path)
    done = tracerec("repair", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{path}  ✓ intact: 223 records; nothing was done"
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_a_killed_run(tmp_path):
    """It is sealed; status 0."""
    intact("killed", tmp_path)
    done = tracerec("repair", tmp_path / "run.h5")
    assert (done.returncode, done.stderr) == (0, "")
    live, path = tmp_path / "run.h5.live", tmp_path / "run.h5"
    assert done.stdout == f"{live}  ✓ sealed to {path}, 223 records, verified\n"
    assert tracerec("verify", path).returncode == 0


def test_a_loss(tmp_path):
    """What is lost is said, by tap; status 3; the damaged recording stays."""
    path = flipped_chunk(tmp_path)
    done = tracerec("repair", path)
    assert (done.returncode, done.stderr) == (3, "")
    title, lost, *rest = done.stdout.splitlines()
    assert title == f"{path}  ✗ repaired: {tmp_path / 'run.repaired.h5'}, 180 records, verified"
    assert lost == "  lost: 43 records: 43 of 'encoder/act'"
    assert "  faults found: 1; tracerec verify lists them" in rest
    assert not verify(path).ok
    assert verify(tmp_path / "run.repaired.h5").ok


def test_a_damaged_journal(tmp_path):
    """Where it is now is said."""
    path = flipped_segment(tmp_path)
    done = tracerec("repair", path)
    assert done.returncode == 3
    assert f"the damaged journal is now {tmp_path / 'run.h5.damaged'}" in done.stdout


def test_options(tmp_path):
    """--out, --compression, --in-place, --keep-suspect."""
    path = flipped_chunk(tmp_path)
    out = tmp_path / "other.h5"
    done = tracerec("repair", path, "--out", out, "--compression", "gzip")
    assert done.returncode == 3
    assert verify(out).ok
    assert tracerec("repair", path, "--in-place", "--compression", "none").returncode == 3
    assert verify(path).ok
    arrow = intact("arrow", tmp_path)
    flip(arrow / "pool-000001.arrow", 0.5)
    done = tracerec("repair", arrow, "--keep-suspect")
    assert done.returncode == 0
    assert "some may be wrong" in done.stdout


def test_errors(tmp_path):
    """One line, status 2, and nothing is changed."""
    path = flipped_chunk(tmp_path)
    (tmp_path / "taken.h5").touch()
    journal = intact("killed", tmp_path / "running")
    for words, message in [
        ((path, "--out", tmp_path / "taken.h5"), "taken.h5 exists; move it away"),
        ((path, "--compression", "brotli"), "unknown compression 'brotli'"),
        ((path, "--in-place", "--out", tmp_path / "x.h5"), "exclude each other"),
        ((tmp_path / "missing.h5",), "there is no trace at"),
        ((tmp_path / "taken.h5",), "it is empty"),
    ]:
        done = tracerec("repair", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert message in done.stderr
    lock = JournalLock(journal)
    done = tracerec("repair", journal)
    lock.forget()
    assert done.returncode == 2
    assert "still being recorded into" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "running", "taken.h5"]


@pytest.mark.parametrize(
    "make", [flipped_chunk, flipped_segment, lambda folder: intact("h5-lz4", folder)], ids=range(3)
)
def test_json(tmp_path, make):
    """By the schema."""
    path = make(tmp_path)
    done = tracerec("repair", path, "--json")
    parsed = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    assert done.returncode == (0 if parsed["whole"] else 3)
    assert (parsed["action"] == "none") is (parsed["verification"] is None)
    if parsed["result"] is not None:
        assert parsed["verification"]["ok"]
        assert parsed["verification"]["path"] == parsed["result"]
        assert len(parsed["faults"]) == parsed["fault_count"] == 1


def test_a_name_that_would_take_over_the_terminal(tmp_path):
    """Of the file, and in what is said of it."""
    (tmp_path / "a\x1b[31mb").mkdir()
    path = flipped_chunk(tmp_path / "a\x1b[31mb")
    done = tracerec("repair", path)
    assert done.returncode == 3
    assert all(c.isprintable() or c == "\n" for c in done.stdout)
