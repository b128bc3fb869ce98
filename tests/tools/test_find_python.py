"""tools/find_python.sh, which `make` asks for a Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "find_python.sh"


@pytest.fixture
def find(tmp_path):
    """Returns a function that runs the script with only the fake programs given, by name, on PATH."""
    shims = tmp_path / "pyenv" / "shims"
    shims.mkdir(parents=True)

    def run(least: int, programs: dict[str, str], home: str = "") -> subprocess.CompletedProcess[str]:
        for name, text in programs.items():
            path = shims / name
            path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            path.chmod(0o755)
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), str(least)],
            env={"PATH": str(shims), "HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


REAL = f'exec "{os.path.realpath(sys.executable)}" "$@"'
BROKEN = 'echo "pyenv: command not found" >&2; exit 127'


def test_a_python_that_works_is_found(find):
    """The path of the interpreter itself is printed, not that of the name on PATH."""
    found = find(11, {"python3": REAL})
    assert (found.returncode, found.stdout.strip()) == (0, os.path.realpath(sys.executable))


def test_a_shim_that_fails_is_passed_over(find):
    """``python3`` exists and fails; the next name is tried, and nothing of the failure is printed."""
    found = find(11, {"python3": BROKEN, "python3.12": REAL})
    assert (found.returncode, found.stdout.strip()) == (0, os.path.realpath(sys.executable))
    assert found.stderr == ""


def test_an_interpreter_of_pyenv_is_found_beside_the_shims(find, tmp_path):
    """No name on PATH works, but the folder of the shims has versions beside it, wherever HOME is."""
    version = tmp_path / "pyenv" / "versions" / "3.11.1" / "bin"
    version.mkdir(parents=True)
    (version / "python3").write_text(f"#!/bin/sh\n{REAL}\n", encoding="utf-8")
    (version / "python3").chmod(0o755)
    found = find(11, {"python3": BROKEN})
    assert (found.returncode, found.stdout.strip()) == (0, os.path.realpath(sys.executable))


def test_none_is_a_status(find):
    """Without a Python that is new enough, the status is 1 and nothing is printed."""
    found = find(99, {"python3": REAL})
    assert (found.returncode, found.stdout, found.stderr) == (1, "", "")
