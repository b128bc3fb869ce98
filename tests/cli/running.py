"""Runs the command line in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tracerec.cli import main

COMMAND = [sys.executable, "-m", "tracerec"]


def tracerec(*args, columns=None, encoding="utf-8", **environment):
    """Runs a command into a pipe and returns the finished process, its output decoded."""
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONUTF8"}}
    env |= {"PYTHONIOENCODING": encoding, **environment}
    if columns is not None:
        env["COLUMNS"] = str(columns)
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, capture_output=True, encoding=encoding, env=env, check=False, timeout=120)


def within(monkeypatch, capsys, *args):
    """Runs a command in this process, which is quicker; returns the same as `tracerec`."""
    monkeypatch.setattr(sys, "argv", ["tracerec", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return subprocess.CompletedProcess(args, int(ended.value.code or 0), said.out, said.err)
