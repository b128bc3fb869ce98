"""tools/fuzz_recordings.py: a short run of it, and that it tells the faults that it looks for."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from tools import fuzz_recordings, fuzzed_recordings
from tools.fuzzed_recordings import FORMATS, damage, made
from tracerec import repairing, verifying
from tracerec.errors import SealingError
from tracerec.formats.hdf5 import datasets
from tracerec.journal import recovery

FEWER = {"h5-zstd", "h5-gzip", "arrow", "arrow-zstd", "killed", "parts-arrow"}
"""Forms that are much like another."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_short_run_finds_no_fault(name, capsys):
    """Limited children damage recordings of each form in every way; nothing is wrong, and figures are shown."""
    count = 20 if name in FEWER else 50
    assert fuzz_recordings.main(["--count", str(count), "--seed", "11", "--format", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{name}: ")
    figures = {
        key: int(value) for key, value in re.findall(r"([a-z][a-z:, ]*[a-zA-Z]) (\d+)", shown.partition(": ")[2])
    }
    assert figures["mutations"] == count
    assert figures["refused"] > 0
    assert figures["read whole"] > 0


def run(name, count, seed=0, first=0):
    """Runs mutations here; returns figures and faults."""
    figures: Counter[str] = Counter()
    faults = []
    fuzz_recordings.fuzz(fuzz_recordings.Span(name, seed, first, count), figures, faults.append)
    return figures, faults


def test_a_mutation_is_the_same_in_every_run():
    """By format, seed and number alone."""
    recording = made("live")
    for number in range(30):
        one, other = (damage(random.Random(f"live:1:{number}"), recording) for _ in range(2))  # noqa: S311 - no secret
        assert one[1:] == other[1:]
        assert {k: v if isinstance(v, bytes) else None for k, v in one[0].items()} == {
            k: v if isinstance(v, bytes) else None for k, v in other[0].items()
        }
    assert made("live").files.keys() == recording.files.keys()
    assert made("h5-zstd") == made("h5-zstd")


def test_every_damage_is_done():
    """Each way to damage a recording is among those of a short run."""
    done: Counter[str] = Counter()
    for name in ("h5-lz4", "arrow", "live"):
        for number in range(300):
            done.update(damage(random.Random(f"{name}:{number}"), made_once(name))[1])  # noqa: S311 - no secret
    tables = (fuzzed_recordings._DAMAGE, fuzzed_recordings._FOLDER_DAMAGE, fuzzed_recordings._FORGERIES)
    assert {way.__name__ for ways in tables for way in ways} == done.keys()


def made_once(name, known={}):  # noqa: B006 - a cache
    """Returns a recording, made when it is first asked for."""
    if name not in known:
        known[name] = made(name)
    return known[name]


def flips(monkeypatch):
    """Has every mutation flip bits in data alone."""

    def flip_data(rng, data):
        data[len(data) // 2 + rng.randrange(len(data) // 4)] ^= 1

    monkeypatch.setattr(fuzzed_recordings, "_DAMAGE", (flip_data,))
    monkeypatch.setattr(fuzzed_recordings, "_FOLDER_DAMAGE", (flip_of_largest,))
    monkeypatch.setattr(fuzzed_recordings, "_FORGERIES", (lambda *_: False,))


def flip_of_largest(rng, files):
    """Flips a bit of the largest file."""
    name = max(files, key=lambda n: len(files[n]))
    data = bytearray(files[name])
    data[len(data) // 2 + rng.randrange(100)] ^= 1
    files[name] = bytes(data)


def test_a_wrong_value_is_a_fault(monkeypatch):
    """Were checksums not compared, the run would say so."""
    flips(monkeypatch)
    monkeypatch.setattr(datasets.Dataset, "use_checksums", lambda *_: None)
    _, faults = run("h5-none", 10)
    assert any("are read wrong, untold" in fault["what"] for fault in faults)


def test_a_loss_that_nobody_tells_is_a_fault(monkeypatch):
    """Were damaged frames passed over in silence, the run would say so."""
    flips(monkeypatch)
    monkeypatch.setattr(recovery.Recovery, "damage", lambda *_: [])
    _, faults = run("journal", 10)
    assert any("are missing, and nothing says so" in fault["what"] for fault in faults)


def test_a_fault_in_an_intact_recording_is_a_fault(monkeypatch):
    """A false alarm counts as much."""
    monkeypatch.setattr(fuzz_recordings, "damage", lambda _, recording: (dict(recording.files), ["nothing"], False))
    assert run("parts", 1)[1] == []
    faulty = verifying.Verification("", "", None, None, None, 0, 0, 0, (), (), {"readable": 1}, ())
    monkeypatch.setattr(fuzz_recordings, "verify", lambda _: faulty)
    assert "an intact recording is faulty" in run("parts", 1)[1][0]["what"]


@pytest.mark.parametrize(
    ("where", "error", "fault"),
    [
        ("verify", KeyError("x"), "verify: Traceback"),
        ("verify", MemoryError(), "verify: Traceback"),
        ("repairing.repair", ZeroDivisionError(), "repair: Traceback"),
        ("open_trace", RecursionError(), "read: Traceback"),
    ],
)
def test_any_other_exception_is_a_fault(monkeypatch, where, error, fault):
    """Whatever is raised that is none of tracerec's."""

    def broken(*_):
        raise error

    monkeypatch.setattr(f"tools.fuzz_recordings.{where}", broken)
    _, (found,) = run("killed", 1)
    assert fault in found["what"]
    assert type(error).__name__ in found["what"]


def test_memory_that_is_hidden_in_a_refusal_is_a_fault(monkeypatch):
    """A reader that asked for too much must not be able to call it damage."""

    def broken(*_):
        message = "damaged"
        raise SealingError(message) from MemoryError()

    monkeypatch.setattr(repairing, "repair", broken)
    assert "repair: out of memory" in run("killed", 1)[1][0]["what"]


def test_a_crash_and_a_hang_are_faults_and_the_rest_is_done(monkeypatch, capsys):
    """The child that dies is followed by another; its last mutation, and what it said, are shown."""
    start = subprocess.Popen

    def instead(command, **options):
        program = (
            command[-2]
            .replace(
                "f.child()",
                "r = f.Case.run\n"
                "def run(case):\n"
                "    n = case._folder.name\n"
                "    if n == '1': import os; os.abort()\n"
                "    if n == '3': import time; time.sleep(100)\n"
                "    r(case)\n"
                "f.Case.run, f.HANG_S = run, 3\n"
                "f.child()",
            )
            .replace("; r = ", "\nr = ")
        )
        return start([*command[:-2], program, command[-1]], **options)

    monkeypatch.setattr(subprocess, "Popen", instead)
    since = time.monotonic()
    assert fuzz_recordings.main(["--count", "5", "--format", "killed"]) == 1
    assert time.monotonic() - since < 90
    shown = capsys.readouterr().out
    assert re.findall(r"FAULT: --format killed --seed 0 --first (\d)", shown) == ["1", "3"]
    assert "the child ended with status -6" in shown
    assert "Timeout (0:00:03)!" in shown


def test_usage():
    """An unknown format is bad usage."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.fuzz_recordings", "--format", "tape"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid choice: 'tape'" in done.stderr
