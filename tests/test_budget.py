from __future__ import annotations

import fnmatch
import itertools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracerec
from tools.feeding import Feed, expected
from tracerec.budget import Budget
from tracerec.errors import RecordingError
from tracerec.model import FLAG_STEP, INDEX_DTYPE, Leaf, Site

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# 64 float32 and a row of the index table
SITE = Site("a/b", (Leaf("", (64,), "float32"),))
SMALL = Site("c", (Leaf("", (), "float32"),))
NBYTES = 64 * 4 + 64
SMALL_NBYTES = 4 + 64


def rows(arrivals: Iterable[int], steps: Iterable[int] | None = None) -> np.ndarray:
    """Rows of the index with these arrival numbers, and these steps if there are any."""
    numbers = [*arrivals]
    made = np.zeros(len(numbers), INDEX_DTYPE)
    made["arrival"] = numbers
    if steps is not None:
        made["step"], made["flags"] = [*steps], FLAG_STEP
    return made


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
    assert sum(budget.take([(SITE, rows(range(n)))])[0] for n in ([5] if together else [1] * 5)) == 3
    assert budget.refused == {"a/b": 2}
    assert caplog.text.count("tap 'a/b' has reached its budget") == 1


def test_a_record_that_does_not_fit_ends_its_tap_for_good() -> None:
    """Else a reader would see gaps."""
    budget = Budget("run.h5", None, {"a/*": NBYTES + 1})
    assert [budget.take([(SITE, rows(range(n)))]) for n in (2, 1, 1)] == [[1], [0], [0]]
    assert budget.refused == {"a/b": 3}


@given(
    sites=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 39)),
    most=st.none() | st.integers(1, 12 * NBYTES),
    of_taps=st.dictionaries(st.sampled_from(["a/*", "c", "*"]), st.integers(1, 5 * NBYTES)),
)
def test_records_are_taken_in_the_order_of_arrival(
    sites: list[int], cuts: set[int], most: int | None, of_taps: dict[str, int]
) -> None:
    """However they come together, what is taken is what one by one would be: by a plain loop over all of them."""
    kinds = [SITE, SMALL, Site("c", (Leaf("", (8,), "float32"),))]
    sizes = [NBYTES, SMALL_NBYTES, 32 + 64]
    budget = Budget("run.h5", most, of_taps)
    taken: set[int] = set()
    edges = [0, *sorted(cut for cut in cuts if cut < len(sites)), len(sites)]
    for low, high in itertools.pairwise(edges):
        arrivals = [[n for n in range(low, high) if sites[n] == kind] for kind in range(3)]
        counts = budget.take([(kinds[kind], rows(arrivals[kind])) for kind in range(3)])
        taken |= {n for kind in range(3) for n in arrivals[kind][: counts[kind]]}

    bounds = {
        name: next((s for p, s in of_taps.items() if fnmatch.fnmatchcase(name, p)), None) for name in ("a/b", "c")
    }
    expects, ended, total, of_tap, refused = set[int](), set[str](), 0, Counter[str](), Counter[str]()
    for n, kind in enumerate(sites):
        name, size = kinds[kind].name, sizes[kind]
        bound = bounds[name]
        if not ended & {name, ""} and bound is not None and of_tap[name] + size > bound:
            ended.add(name)
        elif not ended & {name, ""} and most is not None and total + size > most:
            ended.add("")
        if ended & {name, ""}:
            refused[name] += 1
            continue
        expects.add(n)
        total, of_tap[name] = total + size, of_tap[name] + size
    assert taken == expects
    assert budget.refused == refused


def test_nothing_is_asked_of_an_empty_batch() -> None:
    """Everything in it was kept out before."""
    budget = Budget("run.h5", 10, {})
    assert budget.take([]) == []
    assert budget.take([(SITE, rows([]))]) == [0]


def test_a_small_tap_is_there_as_long_as_a_large_one(tmp_path: Path) -> None:
    """All steps in one batch: what arrived before the budget was reached is recorded, whatever its tap."""
    large, small = Feed(0, (1024,)), Feed(1, ())
    with tracerec.record(tmp_path / "run.h5", max_bytes=3 * (1024 * 4 + 64 + 4 + 64)) as rec:
        for _ in range(10):
            large.put()
            small.put()
    assert rec.close().over_budget == {"stream/0": 7, "stream/1": 7}
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace["stream/1"].steps.tolist() == trace["stream/0"].steps.tolist() == [0, 1, 2]


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


@pytest.mark.parametrize("together", [1, 2, 3, 7, 12])
def test_the_first_step_is_told_by_its_number(together: int, caplog: pytest.LogCaptureFixture) -> None:
    """However many steps come at once; records without a step count that came within it."""
    caplog.set_level(logging.INFO, "tracerec")
    budget = Budget("run.h5", 100_000, {"a/*": 1000, "none": 5, "c*": 100, "*": 3000})
    bare = Site("bare", (Leaf("", (2,), "float32"),))
    # one record without a step before the first; then a step is two of a/b, one of c, one of bare
    order = [None, *[kind for _ in range(3) for kind in (SITE, SITE, SMALL, bare)]]
    for low in range(0, len(order), together):
        part = range(low, min(low + together, len(order)))
        arrivals = {id(s): [n for n in part if (order[n] or bare) is s] for s in (SITE, SMALL, bare)}
        steps = {key: [7 + (n - 1) // 4 for n in numbers] for key, numbers in arrivals.items()}
        groups = [(s, rows(arrivals[id(s)], None if s is bare else steps[id(s)])) for s in (SITE, SMALL, bare)]
        budget.take(groups)
    whole = 2 * NBYTES + SMALL_NBYTES + 8 + 64
    (told,) = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert told == (
        f"run.h5: the first step took about {whole} bytes; max_bytes=100,000 lasts for about {100_000 // whole} such "
        "steps; budget 'a/*': 1,000 lasts for about 1 such step of tap 'a/b'; budget 'c*': 100 lasts for about 1 such "
        "step of tap 'c'; budget '*': 3,000 lasts for about 41 such steps of tap 'bare'"
    )


def test_how_long_budgets_of_taps_last_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without max_bytes, too, and of the tap that takes most."""
    caplog.set_level(logging.INFO, "tracerec")
    feeds = [Feed(number, (64 << number,)) for number in range(2)]
    with tracerec.record(tmp_path / "run.h5", budget={"stream/*": 10 * (512 + 64)}):
        for _ in range(6):
            for feed in feeds:
                feed.put()
    assert (
        "the first step took about 896 bytes; budget 'stream/*': 5,760 lasts for about 10 such steps of tap 'stream/1'"
        in caplog.text
    )


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
