"""``tracerec stats``."""

from __future__ import annotations

import csv
import functools
import io
import json

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import HOSTILE
from tests.cli.running import tracerec, within
from tests.memory_source import MemorySource, make_stream
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.trace import open_trace


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command in this process."""
    return functools.partial(within, monkeypatch, capsys)


def table_of(path):
    """Returns the table of the library."""
    with open_trace(path) as trace:
        return trace.to_pandas()


def test_table(recording):
    """One row a record and leaf; what is cut is said."""
    done = tracerec("stats", recording, "--rows", "4")
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows, note = done.stdout.splitlines()
    assert header.split()[:4] == ["tap", "leaf", "transforms", "step"]
    assert len(rows) == 4
    assert note == "4 of 31 rows (--all); --csv, --json and -o have everything"
    whole = tracerec("stats", recording, "--all").stdout.splitlines()
    assert len(whole) == 32
    assert whole[:5][0].split() == header.split()


def test_some_taps(command, recording):
    """A glob; an unknown one is an error of one line with the nearest name."""
    lines = command("stats", recording, "--tap", "lo*").stdout.splitlines()
    assert len(lines) == 9
    assert all(line.startswith("loss") for line in lines[1:])
    done = command("stats", recording, "--tap", "los")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'loss'?" in done.stderr


def test_csv(command, recording):
    """All rows; the numbers are those of the library, to the last bit."""
    done = command("stats", recording, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    table = table_of(recording)
    assert list(rows[0]) == list(table.columns)
    assert [row["tap"] for row in rows] == table["tap"].tolist()
    for name in ("mean", "l2"):
        assert [float(row[name]) for row in rows] == table[name].tolist()
    assert [row["step"] for row in rows][-1] == ("" if table["step"].isna().iloc[-1] else str(table["step"].iloc[-1]))


def test_json_lines(command, faulty):
    """One object a row that any parser takes, hostile names escaped."""
    done = command("stats", faulty, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    table = table_of(faulty)
    assert len(rows) == len(table)
    assert [row["tap"] for row in rows] == table["tap"].tolist()
    assert HOSTILE in {row["tap"] for row in rows}
    assert [row["nan"] for row in rows] == table["nan"].tolist()
    assert "\x1b" not in done.stdout
    missing = table["mean"].isna().tolist()
    assert [row["mean"] is None for row in rows] == missing


def test_values_that_are_not_finite(command, tmp_path):
    """They are texts in JSON, which has no number for them, and differ from what is missing."""
    site = Site("x", (Leaf("", (), "float32"),))
    other = make_stream(Site("y", (Leaf("", (2,), "float32"),)), [np.zeros((1, 2))], first=9)
    seal(MemorySource([make_stream(site, [[np.nan, np.inf, 1.5]]), other]), tmp_path / "run.h5")
    rows = [json.loads(line) for line in command("stats", tmp_path / "run.h5", "--json").stdout.splitlines()]
    assert [row["value"] for row in rows] == ["NaN", "Infinity", 1.5, None]
    rows = list(csv.DictReader(io.StringIO(command("stats", tmp_path / "run.h5", "--csv").stdout)))
    assert [row["value"] for row in rows] == ["nan", "inf", "1.5", ""]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_files(command, recording, tmp_path, suffix):
    """The suffix says which form; a file is not replaced unasked."""
    out = tmp_path / f"stats{suffix}"
    done = command("stats", recording, "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: 31 rows, ")
    table = table_of(recording)
    if suffix == ".parquet":
        found = pd.read_parquet(out, dtype_backend="numpy_nullable")
        assert found["step"].tolist() == table["step"].tolist()
        assert str(found["step"].dtype) == "Int64"
        assert found["time"].tolist() == table["time"].tolist()
    elif suffix == ".csv":
        found = pd.read_csv(out)
    else:
        found = pd.read_json(out, lines=True, precise_float=True)
    assert found["l2"].dropna().tolist() == table["l2"].dropna().tolist()
    again = command("stats", recording, "-o", out)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert again.stderr.count("\n") == 1
    assert command("stats", recording, "-o", out, "--force").returncode == 0


def test_bad_usage(command, recording, tmp_path):
    """Two places, and a suffix that says nothing."""
    assert command("stats", recording, "--csv", "--json").returncode == 2
    assert command("stats", recording, "-o", tmp_path / "x.xls").returncode == 2
    assert command("stats", tmp_path / "no.h5").returncode == 2


def test_nothing_recorded(command, tmp_path):
    """It says so."""
    seal(MemorySource([]), tmp_path / "run.h5")
    assert command("stats", tmp_path / "run.h5").stdout == "Nothing was recorded.\n"


def test_masks(command, masked):
    """What does not count is not there, but for ``--raw``."""
    assert len(command("stats", masked, "--tap", "some", "--json").stdout.splitlines()) == 3
    assert len(command("stats", masked, "--tap", "some", "--json", "--raw").stdout.splitlines()) == 9


@pytest.mark.parametrize("columns", [45, 60, 90])
def test_narrow_terminals(recording, columns, command, monkeypatch):
    """Columns that have no room are left out by name; no number is cut."""
    monkeypatch.setenv("COLUMNS", "1000")
    whole = {word for line in command("stats", recording, "--all").stdout.splitlines() for word in line.split()}
    monkeypatch.setenv("COLUMNS", str(columns))
    *lines, note = command("stats", recording, "--rows", "31").stdout.replace("\n--", " --").splitlines()
    assert all(len(line) <= columns for line in lines)
    text = " ".join([*lines, note])
    assert "no room for " in text
    table = lines[: 1 + 31]
    assert all(word in whole for line in table for word in line.split())
    assert "mean" in table[0]


def test_very_narrow_terminals(recording, command, monkeypatch):
    """What does not fit is folded, not cut."""
    monkeypatch.setenv("COLUMNS", "16")
    done = command("stats", recording, "--tap", "loss")
    assert done.returncode == 0
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout


def test_output_is_the_input(command, recording):
    """Refused with one line, forced or not; the suffix of a recording is free."""
    path = recording.rename(recording.with_name("src.csv"))
    before = path.read_bytes()
    for force in ([], ["--force"]):
        done = command("stats", path, "-o", path, *force)
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr == f"tracerec: {path} is a recording that is read here; choose another place (-o) to write to\n"
        )
    assert path.read_bytes() == before


def test_lone_surrogates(command, tmp_path):
    """Escaped wherever text is UTF-8."""
    kwargs = '{"phase":"\\ud800","cfg":{"dict":[["a","\\udfff"]]}}'
    path = tmp_path / "run.h5"
    seal(MemorySource([make_stream(Site("\ud800lone", (Leaf("", (), "int8"),), kwargs=kwargs), [[3]])]), path)
    for name in ("o.csv", "o.jsonl", "o.parquet"):
        assert command("stats", path, "-o", tmp_path / name).returncode == 0
    assert pd.read_csv(tmp_path / "o.csv")["tap"].tolist() == [r"\ud800lone"]
    assert json.loads((tmp_path / "o.jsonl").read_text())["phase"] == r"\ud800"
    assert pd.read_parquet(tmp_path / "o.parquet")["tap"].tolist() == [r"\ud800lone"]
    assert r"\ud800lone" in command("stats", path, "--csv").stdout
    assert r"\ud800lone" in command("stats", path, "--tap", "*lone").stdout
