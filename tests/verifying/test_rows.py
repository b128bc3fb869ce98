"""Sets of rows, records of some rows, and records that go together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory_source import make_stream
from tracerec.model import Column, Leaf, Site
from tracerec.salvaging import sifting
from tracerec.salvaging.rows import SalvagedStream, repaired_info
from tracerec.salvaging.sifting import sift
from tracerec.statistics import summarize
from tracerec.verifying.arrivals import Seen
from tracerec.verifying.streams import Rows, invalid_rows

SITE = Site("a", (Leaf("", (2,), "float32"),), (Column("step", "int64", (), "int"), Column("lr", "float64")))


def stream_of(n, **fields):
    """A stream of records whose values are their numbers."""
    values = np.repeat(np.arange(n), 2).reshape(n, 2)
    return make_stream(SITE, [values], [np.arange(n), np.arange(n) / 2], **fields)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))), st.integers(0, 20), st.integers(0, 30))
def test_rows_are_a_set(ranges, start, more):
    """Ranges added in any order are their union; the rest is what is in none."""
    rows = Rows()
    for first, count in ranges:
        rows.add(first, first + count)
    union = {n for first, count in ranges for n in range(first, first + count)}
    assert {n for first, last in rows.ranges for n in range(first, last)} == union
    assert all(a[1] < b[0] for a, b in zip(rows.ranges, rows.ranges[1:], strict=False))
    rest = [n for first, last in rows.rest(start, start + more) for n in range(first, last)]
    assert rest == sorted(set(range(start, start + more)) - union)
    assert bool(rows) is bool(ranges)


def test_single_rows():
    """Rows that follow one another are one range."""
    rows = Rows()
    rows.add_rows(np.array([1, 2, 3, 7, 9, 10]))
    rows.add_rows(np.array([], np.int64))
    assert rows.ranges == [(1, 4), (7, 8), (9, 11)]


@given(st.lists(st.integers(0, 29), unique=True), st.data())
@settings(max_examples=200)
def test_a_stream_of_some_records(wanted, data):
    """Any range of any records in any order: index, leaves and columns are those of the rows asked for."""
    stream = stream_of(30)
    runs = np.array([(n, n + 1) for n in wanted], np.int64).reshape(-1, 2)
    ticks = []
    some = SalvagedStream(stream, runs, lambda: ticks.append(1))
    assert some.records == len(wanted)
    start = data.draw(st.integers(0, len(wanted)))
    stop = data.draw(st.integers(start, len(wanted)))
    expected = wanted[start:stop]
    assert some.index(start, stop)["arrival"].tolist() == expected
    assert some.leaf(0, start, stop)[:, 1].tolist() == expected
    assert some.leaf(0, start, stop).shape == (stop - start, 2)
    assert some.column(0, start, stop).tolist() == expected
    assert some.column(1, start, stop).tolist() == [n / 2 for n in expected]
    values = np.repeat(np.array(wanted, np.float32), 2).reshape(-1, 2)
    assert list(some.summaries()) == [summarize([values], len(wanted))]
    assert ticks


def test_rows_that_cannot_be_read_are_not_read():
    """Rows between two that are wanted may be damaged."""

    class Damaged:
        site = SITE
        records = 10
        nbytes = 0

        def index(self, start, stop):
            assert not start <= 4 < stop
            return stream_of(10).index(start, stop)

    some = SalvagedStream(Damaged(), np.array([[2, 4], [5, 8]]), lambda: None)  # pyright: ignore[reportArgumentType]
    assert some.index(0, 5)["arrival"].tolist() == [2, 3, 5, 6, 7]


def whole(stream):
    """All rows of a stream as one range."""
    return np.array([[0, stream.records]])


def test_records_in_another_order_are_sorted():
    """Before version 1.2 records of two programs could change places; none is lost."""
    order = [0, 2, 1, 3, 5, 4]
    stream = stream_of(6, arrival=order, number=order)
    found = sift([stream], [whole(stream)])
    some = SalvagedStream(stream, found.runs[0], lambda: None)
    assert some.index(0, 6)["arrival"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (found.repeated, found.wrong) == ([0], [0])


def test_records_that_are_there_twice_are_kept_once():
    """The first of them is kept; those of an earlier file are not kept again."""
    one, other = stream_of(4), stream_of(4, arrival=[2, 3, 4, 5], number=[2, 3, 4, 5])
    seen = Seen()
    seen.add(np.array([0], np.uint64))
    found = sift([one, other], [whole(one), whole(other)], [], seen)
    assert [runs.tolist() for runs in found.runs] == [[[1, 4]], [[2, 4]]]
    assert (found.repeated, found.wrong) == ([1, 2], [0, 0])


@pytest.mark.parametrize("at", [0, 1, 3, 5])
@pytest.mark.parametrize("value", [0, 2**40])
def test_one_number_that_is_wrong_costs_one_record(at, value):
    """A damaged number is told from those around it, at the start and at the end too."""
    numbers = np.arange(1, 7)
    numbers[at] = value
    stream = stream_of(6, number=numbers)
    found = sift([stream], [whole(stream)], [], None)
    left = [n for first, last in found.runs[0].tolist() for n in range(first, last)]
    expected = [n for n in range(6) if n != at or (at, value) in {(0, 0), (5, 2**40)}]
    assert left == expected
    assert found.wrong == [6 - len(expected)]


def test_numbers_begin_again_with_an_attempt():
    """Each process counts from 0."""
    stream = stream_of(6, number=[0, 1, 2, 0, 1, 2])
    assert sift([stream], [whole(stream)], [0, 3], None).wrong == [0]
    assert sift([stream], [whole(stream)], [0], None).wrong == [3]
    assert sift([stream], [whole(stream)]).wrong == [0]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.lists(st.integers(0, 2), min_size=30, max_size=30))
def test_what_is_left_goes_together(numbers, devices):
    """Whatever the numbers are, those of each device that are left rise."""
    n = len(numbers)
    stream = stream_of(n, number=numbers, device=devices[:n])
    found = sift([stream], [whole(stream)], [], None)
    some = SalvagedStream(stream, found.runs[0], lambda: None)
    rows = some.index(0, some.records)
    for device in range(3):
        mine = rows["number"][rows["device"] == device]
        assert (np.diff(mine.astype(int)) > 0).all()
    assert some.records + found.wrong[0] == n


def test_streams_of_too_many_records_are_sifted_alone(monkeypatch):
    """Beyond the limit of memory each stream is compared with itself."""
    monkeypatch.setattr(sifting, "MAX_ROWS", 5)
    one, other = stream_of(4), stream_of(4)
    assert sift([one, other], [whole(one), whole(other)], [], None).repeated == [0, 0]


@given(st.lists(st.sets(st.integers(0, 60), min_size=1)))
def test_seen_numbers(groups):
    """Runs hold what was added, and the first number that was there before is told."""
    seen, known = Seen(), set()
    for group in groups:
        numbers = np.array(sorted(group), np.uint64)
        assert seen.has(numbers).tolist() == [n in known for n in sorted(group)]
        twice = seen.add(numbers)
        assert (twice is not None) == bool(known & group)
        if twice is None:
            known |= group
        else:
            assert twice in known | group


def test_elements_that_are_no_values():
    """Bools and types below a byte; all bytes are values of the others."""
    bools = np.array([[0, 1], [3, 0], [1, 2]], np.uint8).view(bool)
    for name, values, wrong in (
        ("bool", bools, [1, 2]),
        ("int4", np.array([0, 1, 16], np.uint8), [2]),
        ("uint2", np.array([0, 4, 3], np.uint8), [1]),
        ("float4_e2m1fn", np.array([0x1F, 15], np.uint8), [0]),
    ):
        found = invalid_rows(values, name)
        assert found is not None
        assert found.tolist() == wrong
        assert invalid_rows(values[:0], name) is None
    assert invalid_rows(np.array([15], np.uint8), "int4") is None
    assert invalid_rows(np.array([255], np.uint8), "float8_e4m3fn") is None
    assert invalid_rows(np.zeros((3, 0), bool), "bool") is None


def test_what_a_repaired_recording_says_of_a_run_that_is_not_known():
    """A new id, the time of the first record, and a note."""
    info = repaired_info(None, [stream_of(3)], Counter(), ["more"])
    assert info.state == "killed"
    assert info.started == stream_of(3).index(0, 1)["time"][0]
    assert info.records == 3
    assert info.notes == ("what was known of the run was damaged, and is lost with its id", "more")
