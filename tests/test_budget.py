from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tracerec
from tools.feeding import Feed, expected
from tracerec.budget import Budget
from tracerec.errors import RecordingError
from tracerec.model import Leaf, Site

if TYPE_CHECKING:
    from pathlib import Path

# 64 float32 and a row of the index table
SITE = Site("a/b", (Leaf("", (64,), "float32"),))
NBYTES = 64 * 4 + 64


def test_a_recording_stops_at_its_budget_and_counts_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What fits is there, in order; the computation and the close go on without an error."""
    small, large = Feed(0, (64,)), Feed(1, (1024,))
    with tracerec.record(tmp_path / "run.h5", max_bytes=10 * NBYTES) as rec:
        for _ in range(15):
            small.put()
        large.put()
    summary = rec.close()
    assert summary.over_budget == {"stream/0": 5, "stream/1": 1}
    assert summary.records == 10
    assert caplog.text.count("max_bytes=3200 is reached") == 1
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.state == "clean"
        assert trace.info.over_budget == {"stream/0": 5, "stream/1": 1}
        np.testing.assert_array_equal(trace["stream/0"].to_numpy(), expected(0, np.arange(10), (64,)))


def test_a_tap_stops_at_its_budget_and_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first pattern that matches holds, for each tap by itself."""
    feeds = [Feed(number, (64,)) for number in range(3)]
    budget = {"stream/0": 4 * NBYTES, "stream/[01]": 6 * NBYTES}
    with tracerec.record(tmp_path / "run.h5", budget=budget) as rec:
        for _ in range(10):
            for feed in feeds:
                feed.put()
    assert rec.close().over_budget == {"stream/0": 6, "stream/1": 4}
    assert caplog.text.count("has reached its budget") == 2
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert [len(trace[feed.name]) for feed in feeds] == [4, 6, 10]


@pytest.mark.parametrize("together", [False, True])
def test_a_budget_that_fits_exactly_is_told_of_when_the_next_record_comes(
    together: bool,  # noqa: FBT001 - a parameter of the test
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, however the records come."""
    budget = Budget("run.h5", None, {"a/*": 3 * NBYTES})
    assert sum(budget.take(SITE, n) for n in ([5] if together else [1] * 5)) == 3
    assert budget.refused == {"a/b": 2}
    assert caplog.text.count("tap 'a/b' has reached its budget") == 1


def test_a_record_that_does_not_fit_ends_its_tap_for_good() -> None:
    """Else a reader would see gaps."""
    budget = Budget("run.h5", None, {"a/*": NBYTES + 1})
    assert [budget.take(SITE, n) for n in (2, 1, 1)] == [1, 0, 0]
    assert budget.refused == {"a/b": 3}


def test_what_a_step_takes_is_told_after_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with how long the budget will last."""
    caplog.set_level(logging.INFO, "tracerec")
    feeds = [Feed(number, (64,)) for number in range(2)]
    with tracerec.record(tmp_path / "run.h5", max_bytes=100 * NBYTES) as rec:
        for _ in range(5):
            for feed in feeds:
                feed.put()
            rec.flush()
    assert caplog.text.count("the first step took about 640 bytes") == 1
    assert "lasts for about 50 such steps" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"max_bytes": 0},
        {"max_bytes": 1.5},
        {"budget": {"a": -1}},
        {"retain_steps": 0},
        {"retain_bytes": "1 GB"},
        {"segment_bytes": 0},
        {"durability": "none"},
    ],
)
def test_sizes_that_are_none_are_refused_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    """Before anything is recorded."""
    with pytest.raises(RecordingError, match=next(iter(options))):
        tracerec.record(tmp_path / "run.h5", **options)
    assert not list(tmp_path.iterdir())
