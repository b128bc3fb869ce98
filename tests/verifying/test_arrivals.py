"""Arrival numbers over many streams, a window at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory_source import make_stream
from tracerec.model import Leaf, Site
from tracerec.verifying import arrivals
from tracerec.verifying.arrivals import Seen, check_arrivals
from tracerec.verifying.report import Findings


def stream_of(name, numbers, **fields):
    """A stream whose records have these arrival numbers."""
    site = Site(name, (Leaf("", (), "int8"),))
    return make_stream(site, [np.zeros(len(numbers))], **{"arrival": numbers, "number": numbers} | fields)


def faults_of(streams, **options):
    """What the check reports: how many faults by name, and the messages."""
    findings = Findings()
    check_arrivals(streams, "run.h5", findings, **options)
    return dict(findings.counts), [fault.message for fault in findings.faults]


@pytest.fixture
def small_windows(monkeypatch):
    """Windows and buffers so small that every test needs several."""
    monkeypatch.setattr(arrivals, "WINDOW", 16)
    monkeypatch.setattr(arrivals, "BUFFER_ROWS", 8)


@given(st.lists(st.sets(st.integers(0, 200)), max_size=6))
@settings(max_examples=200)
def test_numbers_that_two_streams_share_are_found(groups):
    """The same as comparing all pairs, however the numbers lie in windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "WINDOW", 16)
        patch.setattr(arrivals, "BUFFER_ROWS", 8)
        streams = [stream_of(f"s{k}", sorted(group), device=k) for k, group in enumerate(groups)]
        found, _ = faults_of(streams)
    every = [n for group in groups for n in group]
    assert ("arrival-unique" in found) == (len(set(every)) < len(every))
    assert set(found) <= {"arrival-unique"}


@pytest.mark.usefixtures("small_windows")
def test_both_taps_are_named():
    """Of two records with one number."""
    _, (message,) = faults_of([stream_of("a", [1, 50]), stream_of("b", [2, 50], device=1)])
    assert message.startswith("arrival number 50 is that of a record of tap 'a' and of one of tap 'b'")


@pytest.mark.usefixtures("small_windows")
def test_numbers_as_large_as_can_be():
    """The last window ends with the numbers."""
    top = 2**64 - 1
    assert faults_of([stream_of("a", [0, top - 1]), stream_of("b", [5, top])])[0] == {}
    assert faults_of([stream_of("a", [top]), stream_of("b", [top])])[0]["arrival-unique"] == 1


@pytest.mark.usefixtures("small_windows")
def test_more_records_than_numbers():
    """Many streams that share all numbers are noticed before memory is taken for them."""
    found, messages = faults_of([stream_of(f"s{k}", range(16), device=k) for k in range(5)])
    assert found == {"arrival-unique": 1}
    assert "more than 16 records have arrival numbers from 0 to 15" in messages[0]


@pytest.mark.usefixtures("small_windows")
def test_numbers_of_a_device_rise_over_streams_and_windows():
    """A device's own number falls at the border of two windows, in another stream."""
    one, other = stream_of("a", [0, 40], number=[0, 2]), stream_of("b", [20, 60], number=[1, 2])
    found, (message,) = faults_of([one, other])
    assert found == {"number-monotone": 1}
    assert "device 0: number 2, at arrival number 60" in message
    assert faults_of([one, stream_of("b", [20, 60], number=[1, 3])])[0] == {}
    assert faults_of([one, other], attempts=[0, 50])[0] == {}


def test_numbers_of_earlier_files():
    """A record that an earlier part has, too."""
    seen = Seen()
    assert faults_of([stream_of("a", [1, 2, 3])], seen=seen)[0] == {}
    found, (message,) = faults_of([stream_of("a", [3, 4])], seen=seen)
    assert found == {"arrival-unique": 1}
    assert message == "arrival number 3 is that of a record in an earlier part or segment, too"


def test_scattered_numbers_are_compared_in_each_file_alone(monkeypatch):
    """What is remembered has a limit; that it was reached is said."""
    monkeypatch.setattr(arrivals, "MAX_RUNS", 3)
    findings, seen = Findings(), Seen()
    check_arrivals([stream_of("a", [1, 3, 5, 7])], "part", findings, seen=seen)
    assert seen.full
    assert "compared within each file alone" in findings.notes[0]
    assert seen.add(np.array([3], np.uint64)) is None


def test_no_streams():
    """Nothing to compare."""
    assert faults_of([]) == ({}, [])
    assert faults_of([stream_of("a", [])]) == ({}, [])
