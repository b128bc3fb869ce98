"""``retain_steps`` and ``retain_bytes``: only the newest is kept, and the rest is counted as retired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tracerec
from tools.feeding import Feed, expected
from tracerec.errors import SealingError, SelectionError

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 400
# 1 KB, its step in the index, a frame around it
RECORD = 1024 + 64


def run(path: Path, **options: Any) -> tracerec.RecordingSummary:
    """Records two streams, a flush a step so that segments are cut between steps."""
    feeds = [Feed(0, (256,)), Feed(1, ())]
    with tracerec.record(path, **options) as rec:
        for _ in range(STEPS):
            for feed in feeds:
                feed.put()
            rec.flush()
    return rec.close()


@pytest.mark.parametrize("name", ["run.h5", "run.arrow"])
@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"retain_steps": 50, "segment_bytes": 16_384}, 50, 80),
        ({"retain_bytes": 100 * RECORD}, 60, 140),
    ],
)
def test_the_newest_is_kept_and_the_rest_counted(
    tmp_path: Path, name: str, options: dict[str, Any], least: int, most: int
) -> None:
    """What is there are the last steps, without a gap; counts add up."""
    summary = run(tmp_path / name, **options)
    with tracerec.open(tmp_path / name) as trace:
        values = trace["stream/0"].to_numpy()
        kept = len(values)
        assert least <= kept <= most
        np.testing.assert_array_equal(values, expected(0, np.arange(STEPS - kept, STEPS), (256,)))
        retired = {"stream/0": STEPS - kept, "stream/1": STEPS - len(trace["stream/1"])}
        assert trace.info.retired == retired
        assert trace.info.clean
        assert not trace.info.dropped
    assert dict(summary.retired) == retired


def test_a_step_that_was_retired_is_no_longer_there(tmp_path: Path) -> None:
    """It was recorded: only of a step behind the last one is it said that it never was."""
    run(tmp_path / "run.h5", retain_steps=50, segment_bytes=16_384)
    with tracerec.open(tmp_path / "run.h5") as trace:
        tap = trace["stream/0"]
        low, retired = int(tap.steps[0]), trace.info.retired["stream/0"]
        assert low == retired > 0
        there = rf"the oldest records were retired, {retired} of this tap; its steps are {low}\.\.{STEPS - 1}$"
        for wanted in (1, slice(0, 3), [2, 3], slice(None, 3)):
            with pytest.raises(SelectionError, match=rf"^step=.* of tap 'stream/0' is no longer there: {there}"):
                tap.sel(step=wanted)
        for wanted in (STEPS, slice(STEPS, None), [STEPS, STEPS + 1], "3"):
            with pytest.raises(SelectionError, match=r"was never recorded: its steps are"):
                tap.sel(step=wanted)
        assert trace.availability("stream/0", step=1) == "never"


def test_a_recording_that_is_killed_says_what_was_retired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest has it; missing segments are no fault."""
    monkeypatch.setattr("tracerec.sealer.Sealer.finish", lambda self, _: self.stop())
    run(tmp_path / "run.h5", retain_steps=50, segment_bytes=16_384)
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.retired["stream/0"] == STEPS - len(trace["stream/0"])
        assert not any("missing" in note for note in trace.info.notes)


def test_what_an_earlier_attempt_recorded_is_retired_too(tmp_path: Path) -> None:
    """Its counts come from its files."""
    run(tmp_path / "run.h5")
    feeds = [Feed(0, (256,), sent=STEPS), Feed(1, (), sent=STEPS)]
    with tracerec.record(tmp_path / "run.h5", mode="a", retain_steps=50, segment_bytes=16_384) as rec:
        for _ in range(STEPS):
            for feed in feeds:
                feed.put()
            rec.flush()
    with tracerec.open(tmp_path / "run.h5") as trace:
        steps = [record.step for record in trace["stream/0"]]
        assert steps == list(range(2 * STEPS - len(steps), 2 * STEPS))
        assert trace.info.retired["stream/0"] == 2 * STEPS - len(steps)


def test_retaining_goes_on_where_sealing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not fill with what nobody wants."""

    class Failing:
        def __init__(self) -> None:
            message = "no process"
            raise SealingError(message)

    monkeypatch.setattr("tracerec.sealer._Process", Failing)
    run(tmp_path / "run.h5", retain_steps=50, segment_bytes=16_384)
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert 50 <= len(trace["stream/0"]) <= 80
