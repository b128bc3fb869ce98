"""``tracerec verify``: exit status, what people see, what programs read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len

from tests.cli.conftest import HOSTILE
from tests.cli.running import tracerec
from tests.memory_source import MemorySource, make_stream
from tests.verifying.breaking import BREAKERS, flipped_chunk, intact
from tracerec.formats.hdf5.seal import seal
from tracerec.journal import layout
from tracerec.model import Leaf, Site
from tracerec.verifying import INVARIANTS, verify

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "schemas/verify.schema.json").read_text())


@pytest.mark.parametrize("form", ["h5-lz4", "arrow", "journal", "parts"])
def test_an_intact_recording(tmp_path, form):
    """One line, and status 0."""
    path = intact(form, tmp_path)
    done = tracerec("verify", path)
    assert (done.returncode, done.stderr) == (0, "")
    title = done.stdout.splitlines()[0]
    assert title.startswith(f"{path}  ✓ intact  223 records in ")
    assert "invariants" in title
    assert "2 records are missing" in done.stdout  # a note: the run had dropped them


def test_a_fault(tmp_path):
    """Its invariant, its file and place, what it means, and what can be done; status 1."""
    path = flipped_chunk(tmp_path)
    done = tracerec("verify", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "✗ 1 fault  223 records in 5 streams" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "chunk-checksum" in line)
    assert "run.h5: tap 'encoder/act', leaf ['w'], records 0 to 42" in line
    assert "its bytes are not those that were written; these 43 records cannot be read" in line
    assert f"tracerec repair {path} takes every record that is intact" in done.stdout


def test_a_killed_run_is_no_fault(tmp_path):
    """Status 0; what its end lost is said."""
    path = intact("killed", tmp_path)
    last = layout.segments(path)[-1]
    os.truncate(last, last.stat().st_size - 50)
    done = tracerec("verify", tmp_path / "run.h5")
    assert done.returncode == 0
    assert "✓ intact" in done.stdout
    assert "note: the run did not end cleanly" in done.stdout
    assert "bytes at the end were not read" in done.stdout
    assert "lost" in done.stdout


def test_several_recordings(tmp_path):
    """Each has its line; one that cannot be read has one on standard error, and the others are verified."""
    good, bad = (
        intact("h5-gzip", tmp_path),
        flipped_chunk(tmp_path / "bad") if (tmp_path / "bad").mkdir() is None else None,
    )
    done = tracerec("verify", good, bad)
    assert done.returncode == 1
    assert [line.split("  ")[1][0] for line in done.stdout.splitlines() if line.startswith("/")] == ["✓", "✗"]
    done = tracerec("verify", tmp_path / "missing.h5", bad, good)
    assert done.returncode == 2
    assert done.stderr == f"tracerec: there is no trace at {tmp_path / 'missing.h5'}\n"
    assert "✓ intact" in done.stdout


@pytest.mark.parametrize(
    ("name", "content"), [("notes.h5", b"hello"), ("empty.h5", b""), ("other.h5", b"\x89HDF\r\n\x1a\n" + bytes(99))]
)
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_what_is_no_recording(tmp_path, name, content, option):
    """Status 2 and one line."""
    (tmp_path / name).write_bytes(content)
    done = tracerec("verify", tmp_path / name, *option)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert name in done.stderr
    assert not done.stdout or json.loads(done.stdout)["errors"][0]["path"].endswith(name)


@pytest.mark.parametrize("name", ["chunk-checksum", "segment-sequence", "site-defined", "run-described", "dtype-valid"])
def test_json(tmp_path, name):
    """By the schema, and the same as the library's."""
    path = BREAKERS[name](tmp_path)
    done = tracerec("verify", path, tmp_path / "missing", "--json")
    parsed = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    assert done.returncode == 2
    assert not parsed["ok"]
    assert parsed["recordings"] == [verify(path).to_json()]
    assert [error["path"] for error in parsed["errors"]] == [str(tmp_path / "missing")]
    assert name in parsed["recordings"][0]["counts"]


def test_json_of_intact_recordings(tmp_path):
    """Status 0 and ok."""
    paths = [intact(form, tmp_path / form) for form in ("h5-lz4", "arrow", "killed", "parts", "live")]
    done = tracerec("verify", *paths, "--json")
    parsed = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    assert (done.returncode, parsed["ok"]) == (0, True)
    assert [found["form"] for found in parsed["recordings"]] == ["hdf5", "arrow", "live", "parts", "live"]
    assert {name for found in parsed["recordings"] for name in found["checked"]} == set(INVARIANTS)


def hostile(folder):
    """A recording with a tap whose name would take over a terminal, damaged, and with too many faults to show."""
    site = Site(HOSTILE, (Leaf("\x1b[31m", (1000,), "float64"),))
    seal(MemorySource([make_stream(site, [[[n / 7] * 1000 for n in range(9000)]])]), folder / "run.h5")
    data = bytearray((folder / "run.h5").read_bytes())
    for at in range(len(data) // 10, len(data) * 9 // 10, 64):
        data[at] ^= 1
    (folder / "run.h5").write_bytes(data)
    return folder / "run.h5"


def test_hostile_names_and_many_faults(tmp_path):
    """No control character reaches the terminal; the table ends, and says how many more there are."""
    path = hostile(tmp_path)
    found = verify(path)
    assert found.fault_count > 60
    done = tracerec("verify", path)
    assert done.returncode == 1
    assert all(c.isprintable() or c == "\n" for c in done.stdout)
    assert f"and {found.fault_count - 50} faults more; --json lists up to 1,000" in done.stdout
    parsed = json.loads(tracerec("verify", path, "--json").stdout)
    assert {fault["tap"] for fault in parsed["recordings"][0]["faults"]} == {HOSTILE}


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_width(tmp_path, columns):
    """No line is wider than the terminal."""
    path = BREAKERS["frame-arrays"](tmp_path)
    output = tracerec("verify", path, columns=columns).stdout
    assert max(map(cell_len, output.splitlines())) <= columns
    assert "frame-arrays" in output


def test_usage():
    """Without a path it is bad usage."""
    done = tracerec("verify")
    assert done.returncode == 2
    assert "Missing argument" in done.stderr


def test_reading_needs_no_jax(tmp_path):
    """Verifying and repairing import no jax."""
    import subprocess
    import sys

    path = flipped_chunk(tmp_path)
    program = (
        "import sys\n"
        "from tracerec.cli import app\n"
        f"for words in (['verify', {str(path)!r}], ['repair', {str(path)!r}]):\n"
        "    try:\n"
        "        app(words)\n"
        "    except SystemExit as ended:\n"
        "        print(ended.code, sorted({'jax', 'jaxlib'} & set(sys.modules)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "1 []" in shown
    assert "3 []" in shown
