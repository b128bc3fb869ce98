"""Verifying a recording while it is written, sealed, retired and closed: never a fault, never an error."""

from __future__ import annotations

import subprocess
import sys
import time

import jax
import pytest

from tests.support import ROOT
from tracerec.errors import TraceNotFound
from tracerec.verifying import verify

PROGRAM = """
import sys, time
import jax, jax.numpy as jnp, tracerec
step = jax.jit(lambda x, i: tracerec.tap(x + i, "x", step=i) * 2 + tracerec.tap(i, "y"))
other = jax.jit(lambda x, i: tracerec.tap(x - i, "x", step=i))
options = {"retain_bytes": 400_000} if sys.argv[2] == "retained" else {}
with tracerec.record(sys.argv[1], **options) as rec:
    print("begun", flush=True)
    end = time.monotonic() + float(sys.argv[3])
    i = 0
    while time.monotonic() < end:
        step(jnp.arange(100.0), i)
        other(jnp.arange(100.0), i)
        i += 1
    rec.flush()
print("closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
@pytest.mark.parametrize("kind", ["plain", "retained"])
def test_a_recording_is_verified_while_it_changes_its_form(tmp_path, name, kind):
    """From the first record to the sealed file."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / name), kind, "6"]
    seen: set[str] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            found = looked_at(tmp_path / name)
            assert found.faults == (), found.notes
            seen.add(str(found.state))
    assert process.returncode == 0
    assert "recording" in seen
    found = looked_at(tmp_path / name)
    assert (found.ok, found.state) == (True, "clean")
    assert found.records > 100


def test_records_of_two_programs_are_in_order(tmp_path):
    """One tap in two programs, called in turn: the stream's records are in the order in which they arrived."""
    import jax.numpy as jnp

    import tracerec

    one = jax.jit(lambda x: tracerec.tap(x, "a") + 1)
    other = jax.jit(lambda x: tracerec.tap(x, "a") * 2)
    with tracerec.record(tmp_path / "run.h5"):
        for n in range(100):
            one(jnp.full(3, float(n)))
            other(jnp.full(3, n + 0.5))
    found = verify(tmp_path / "run.h5")
    assert (found.ok, found.streams, found.records) == (True, 1, 200)
    with tracerec.open(tmp_path / "run.h5") as trace:
        values = [float(record.value[0]) for record in trace.records(order="arrival")]
    assert values == [n / 2 for n in range(200)]


def looked_at(path):
    """Verifies; for a moment neither the folder nor the file may be there."""
    for _ in range(5):
        try:
            return verify(path)
        except TraceNotFound:
            time.sleep(0.2)
    return verify(path)
