"""``tracerec export``."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import typer

from tests.cli.running import tracerec, within
from tests.memory_source import MemorySource, make_stream
from tracerec.cli.export import parsed_steps
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command in this process."""
    return functools.partial(within, monkeypatch, capsys)


def test_selection_and_what_it_prints(recording, tmp_path):
    """One line about what was written."""
    out = tmp_path / "out.npz"
    selected = ("--tap", "l*", "--step", "10:30", "--transforms", "")
    done = tracerec("export", recording, "--to", "npz", "-o", out, *selected)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: 5 records of 2 taps, ")
    with np.load(out) as file:
        assert file["layer/step"].tolist() == [10, 20]
        assert file["loss/step"].tolist() == [10, 10, 20]


def test_json(recording, tmp_path):
    """One object."""
    done = tracerec(
        "export", recording, "--to", "hdf5", "-o", tmp_path / "o.h5", "--transforms", "jvp, transpose", "--json"
    )
    said = json.loads(done.stdout)
    assert said["nbytes"] == (tmp_path / "o.h5").stat().st_size
    assert {k: v for k, v in said.items() if k not in ("nbytes", "path")} == {
        "to": "hdf5",
        "taps": 1,
        "records": 6,
        "left_out": [],
    }


def test_existing_output(command, recording, tmp_path):
    """Refused with one line; replaced when forced."""
    out = tmp_path / "out"
    assert command("export", recording, "--to", "parquet", "-o", out).returncode == 0
    again = command("export", recording, "--to", "parquet", "-o", out)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.count("\n") == 1
    assert "--force" in again.stderr
    assert command("export", recording, "--to", "parquet", "-o", out, "--force").returncode == 0


def test_output_is_the_input(command, recording):
    """Refused with one line that names the file and the cure, by every way to say it."""
    before = recording.read_bytes()
    link = recording.with_name("link.h5")
    link.symlink_to(recording.name)
    for to, out in (
        ("npz", recording),
        ("hdf5", link),
        ("zarr", recording.parent / ".." / recording.parent.name / "link.h5"),
    ):
        done = command("export", recording, "--to", to, "-o", out, "--force")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert str(recording) in done.stderr
        assert "choose another place (-o)" in done.stderr
    assert recording.read_bytes() == before


def test_loss_is_said(command, tmp_path):
    """Status 3, and a line about what is not there."""
    key = make_stream(Site("key", (Leaf("", (2,), "uint32", key_impl="threefry2x32"),)), [[[1, 2]]])
    seal(MemorySource([key]), tmp_path / "run.h5")
    done = command("export", tmp_path / "run.h5", "--to", "tensorboard", "-o", tmp_path / "out")
    assert done.returncode == 3
    assert "left out: key: PRNG keys" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "a:b"], "no step"),
        (["--step", "999"], "no records with steps=999"),
        (["--tap", "los"], "did you mean 'loss'"),
        (["-o", "/nonexistent/x"], "there is no folder"),
    ],
)
def test_errors(command, recording, tmp_path, arguments, message):
    """Status 2, no traceback."""
    out = [] if "-o" in arguments else ["-o", tmp_path / "out"]
    done = command("export", recording, "--to", "npz", *out, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_steps():
    """A step, and ranges as Python has them."""
    assert parsed_steps("-3") == -3
    assert parsed_steps(":20") == slice(None, 20, None)
    assert parsed_steps("0:20:5") == slice(0, 20, 5)
    for wrong in ("", "1:2:3:4", "1:2:0", "x"):
        with pytest.raises(typer.BadParameter, match="is no step"):
            parsed_steps(wrong)
