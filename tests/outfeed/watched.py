"""Programs run in processes of their own under a watchdog: one that hangs prints all its stacks and fails."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import tracerec
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PROLOGUE", "environment", "run_watched", "steps_of", "write_program"]

HANG_SECONDS = 60

# The names that every program may use. `at_end` prints after tracerec has closed: atexit runs the first hook last.
PROLOGUE = f"""
import faulthandler, sys
faulthandler.dump_traceback_later({HANG_SECONDS}, exit=True)
import atexit
last_words = []
atexit.register(lambda: [print(*words, flush=True) for words in last_words])
def at_end(*words):
    last_words.append(words)
import os, signal, threading, time
import jax, jax.numpy as jnp, numpy as np, tracerec
from tracerec.errors import *
path = sys.argv[1]
step = jax.jit(lambda x, i: tracerec.tap(x + i, "x", step=i) * 2)
def train(first, last):
    return [int(step(0, i)) for i in range(first, last)]
"""


def write_program(folder: Path, source: str) -> Path:
    """Writes a program, with the prologue before it, to a file that a spawned child can import."""
    program = folder / "program.py"
    program.write_text(PROLOGUE + source, encoding="utf-8")
    return program


def environment() -> dict[str, str]:
    """The environment in which a program finds this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run_watched(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that records to ``run.h5`` in the folder; fails the test with all stacks when it hangs."""
    program = write_program(folder, source)
    process = subprocess.Popen(
        [sys.executable, str(program), str(folder / "run.h5")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=HANG_SECONDS + 30)
    except subprocess.TimeoutExpired:
        # its children hold the pipes open: they go too
        os.killpg(process.pid, 9)
        out, error = process.communicate()
        pytest.fail(f"the program, or a child of it, hung\n{out}\n{error}")
    if "Timeout (0:" in error:
        pytest.fail(f"the program hung\n{out}\n{error}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def steps_of(folder: Path, tap: str = "x") -> list[int | None]:
    """The steps of a tap's records in the recording, sorted."""
    with tracerec.open(folder / "run.h5") as trace:
        return sorted(r.step for r in trace[tap]) if tap in trace.taps else []
