"""Runs the command line in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "tracerec"]


def tracerec(*args, columns=None, encoding="utf-8", **environment):
    """Runs a command into a pipe and returns the finished process, its output decoded."""
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONUTF8"}}
    env |= {"PYTHONIOENCODING": encoding, **environment}
    if columns is not None:
        env["COLUMNS"] = str(columns)
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, capture_output=True, encoding=encoding, env=env, check=False, timeout=120)
