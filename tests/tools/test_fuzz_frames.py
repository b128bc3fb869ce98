"""tools/fuzz_frames.py: a short run of it, and that it tells the faults that it looks for."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from tests.protocol.support import joined
from tools import fuzz_frames
from tracerec.protocol import frames
from tracerec.protocol.stream import scan


def test_a_short_run_finds_no_fault(capsys):
    """A limited child damages streams in every way; nothing is wrong, and the figures say what was done."""
    assert fuzz_frames.main(["--mutations", "400", "--seed", "7"]) == 0
    figures = dict(line.strip().split(": ") for line in capsys.readouterr().out.splitlines())
    assert figures["mutations"] == "400"
    assert all(int(figures[mutation.__name__]) > 0 for mutation in fuzz_frames.MUTATIONS)
    assert int(figures["frames found"]) > 400
    assert int(figures["gaps"]) > 100


def test_a_mutation_is_the_same_in_every_run():
    """A run that begins at a later mutation does what the whole run did there."""
    whole, first, second = (fuzz_frames.fuzz(3, *span) for span in ((0, 20), (0, 12), (12, 8)))
    for name in ("frames sent", "frames found", "gaps"):
        assert whole[name] == first[name] + second[name]


def test_a_wrong_value_is_a_fault(monkeypatch, capsys):
    """Were the checksum not looked at, the run would say so, with the number of the mutation."""
    monkeypatch.setattr(frames.crc32c, "crc32c", lambda *_: 0)
    with pytest.raises(fuzz_frames.FaultError) as caught:
        fuzz_frames.main(["--mutations", "50", "--in-process"])
    assert any("of seed 0" in note for note in caught.value.__notes__)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda items: items[:1] + items[2:], "an item begins at"),
        (lambda items: items[:-1], "the items end at"),
        (lambda items: [*items[:-1], frames.Frame(items[-1].head, (np.arange(9),))], "was never sent"),
    ],
)
def test_each_check_of_a_scan_can_fail(monkeypatch, change, fault):
    """A frame left out, the last frame missing, another value."""
    sent = [joined(k, [np.arange(k)]) for k in range(4)]
    data = b"".join(sent)
    assert len(fuzz_frames.check_scan(data, sent, [])) == 4
    monkeypatch.setattr(fuzz_frames, "scan", lambda *args: iter(change(list(scan(*args)))))
    with pytest.raises(fuzz_frames.FaultError, match=fault):
        fuzz_frames.check_scan(data, sent, [])


def test_frames_that_were_not_touched_are_looked_for():
    """One before and one behind the damage: each is missed when it does not come."""
    sent = [joined(k, [np.arange(5)]) for k in range(4)]
    original = b"".join(sent)
    data = bytearray(original)
    data[len(sent[0]) + 5] ^= 1
    items = list(scan(data))
    fuzz_frames.check_untouched(sent, original, bytes(data), items)
    with pytest.raises(fuzz_frames.FaultError, match="before all damage"):
        fuzz_frames.check_untouched(sent, original, bytes(data), items[1:])
    with pytest.raises(fuzz_frames.FaultError, match="behind all damage"):
        fuzz_frames.check_untouched(sent, original, bytes(data), items[:-1])


def test_pieces_that_change_the_result_are_a_fault():
    """A stream must give what the scan gave."""
    data = joined(5, [np.arange(5)])
    with pytest.raises(fuzz_frames.FaultError, match="in pieces"):
        fuzz_frames.check_stream(random.Random(0), data, [])  # noqa: S311 - no secret


def test_a_crash_or_a_hang_of_the_child_is_a_fault(monkeypatch, capsys):
    """The status and what the child said last are shown; a child that takes too long is ended."""
    run = subprocess.run

    def instead(program):
        def ended(*_: object, **__: object):
            return run([sys.executable, "-c", program], capture_output=True, text=True, timeout=5, check=False)

        return ended

    monkeypatch.setattr(subprocess, "run", instead("import os, sys; print('last words', file=sys.stderr); os.abort()"))
    assert fuzz_frames.main(["--mutations", "1"]) == 1
    out = capsys.readouterr().out
    assert "FAULT: the child ended with status -6" in out
    assert "last words" in out
    monkeypatch.setattr(subprocess, "run", instead("import time; time.sleep(1000)"))
    assert fuzz_frames.main(["--mutations", "1"]) == 1
    assert "FAULT: not done after" in capsys.readouterr().out


def test_a_hang_shows_where_it_hangs():
    """The child's own watchdog dumps the stack of the mutation that does not end."""
    program = (
        "import time; from tools import fuzz_frames as f; f.HANG_S = 1\n"
        "f.run_one = lambda *_: time.sleep(100)\n"
        "f.child()"
    )
    command = [sys.executable, "-c", program, json.dumps([0, 0, 1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in fuzz" in done.stderr
