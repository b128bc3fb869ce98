from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory_source import make_stream
from tests.trace.streams import CountingStream
from tracerec.model import INDEX_DTYPE, Leaf, Site
from tracerec.trace import order
from tracerec.trace.order import in_order, places
from tracerec.trace.view import StreamView


def views_of(firings, **fields):
    """Returns one view a position of the firings ``(position, iteration, arrival, call, device)``."""
    views = []
    for position in sorted({f[0] for f in firings}):
        mine = sorted((f for f in firings if f[0] == position), key=lambda f: f[2])
        columns = dict(zip(("position", "iteration", "arrival", "call", "device"), np.array(mine).T, strict=True))
        site = Site(f"tap{position}", leaves=(Leaf("", (), "int32"),))
        views.append(StreamView.of(make_stream(site, [np.arange(len(mine))], **columns, **fields)))
    return views


def in_program(firings, **fields):
    """Returns ``(position, iteration)`` of all records in program order."""
    rows = np.concatenate([batch.rows for batch in in_order(views_of(firings, **fields))])
    return list(zip(rows["position"].tolist(), rows["iteration"].tolist(), strict=True))


def one_call(arrivals):
    """Returns the firings of one call whose ``(position, iteration)`` arrive in this order."""
    return [(position, iteration, i, 1, 0) for i, (position, iteration) in enumerate(arrivals)]


def test_taps_outside_loops_come_by_position():
    """However the taps of one call arrive, they come out as the program has them."""
    for arrivals in itertools.permutations(range(4)):
        assert in_program(one_call([(p, 0) for p in arrivals])) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_calls_are_not_mixed():
    """The second call begins after the first has ended, even if its first record arrived before the last."""
    firings = [(1, 0, 0, 5, 0), (0, 0, 1, 6, 0), (0, 0, 2, 5, 0), (1, 0, 3, 6, 0)]
    rows = np.concatenate([batch.rows for batch in in_order(views_of(firings))])
    assert rows["call"].tolist() == [5, 5, 6, 6]
    assert rows["position"].tolist() == [0, 1, 0, 1]


def test_loop_comes_iteration_by_iteration():
    """A tap before a loop, two in it and one after it: the loop's come by iteration, then position."""
    loop = [(p, i) for i in range(3) for p in (1, 2)]
    expected = [(0, 0), *loop, (3, 0)]
    assert in_program(one_call(expected)) == expected
    # The tap after the loop and the one before it arrive late.
    assert in_program(one_call([*loop, (3, 0), (0, 0)])) == expected


def test_tap_of_an_inner_function_in_a_loop_arrives_late():
    """In each iteration position 1 arrives after position 2; program order has it before."""
    arrivals = [(p, i) for i in range(4) for p in (0, 2, 1)]
    assert in_program(one_call(arrivals)) == [(p, i) for i in range(4) for p in (0, 1, 2)]


def test_two_loops_of_equal_length_are_not_interleaved():
    """Loops that follow each other do not overlap in time, and so are two."""
    expected = [(0, i) for i in range(3)] + [(1, i) for i in range(3)]
    assert in_program(one_call(expected)) == expected


def test_nested_loop_keeps_arrival_order():
    """Position 1 is in an inner loop of two: its iterations do not run with those of position 0."""
    expected = [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2), (1, 3), (0, 2), (1, 4), (1, 5)]
    assert in_program(one_call([*expected, (2, 0)])) == [*expected, (2, 0)]


def test_branch_in_a_loop_keeps_arrival_order():
    """Position 1 fires in every other iteration only."""
    expected = [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1)]
    assert in_program(one_call(expected)) == expected


def test_devices_of_a_call_stand_together():
    """Each device's records are in program order, and the n-th of all devices follow each other."""
    firings = [(1, 0, 0, 1, 0), (0, 0, 1, 1, 1), (1, 0, 2, 1, 1), (0, 0, 3, 1, 0)]
    rows = np.concatenate([batch.rows for batch in in_order(views_of(firings))])
    assert list(zip(rows["position"].tolist(), rows["device"].tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_eager_records_keep_arrival_order():
    """Program 0 is eager: all positions are 0, and one call number may serve several records."""
    firings = [(0, 0, 2, 1, 0), (0, 0, 0, 1, 0), (0, 0, 1, 2, 0)]
    rows = np.concatenate([batch.rows for batch in in_order(views_of(firings, program=0))])
    assert rows["arrival"].tolist() == [0, 1, 2]


def test_long_call_is_ordered_in_pieces(monkeypatch):
    """A call longer than the look-ahead still comes out iteration by iteration, then the tap behind the loop."""
    monkeypatch.setattr(order, "_WINDOW", 8)
    monkeypatch.setattr(order, "_INDEX_BYTES", 64)
    loop = [(p, i) for i in range(100) for p in (0, 2, 1)]
    assert in_program(one_call([*loop, (3, 0)])) == [(p, i) for i in range(100) for p in (0, 1, 2)] + [(3, 0)]


@pytest.mark.parametrize("which", ["program", "arrival"])
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=6),
    seed=st.integers(0, 1 << 32),
    calls=st.integers(1, 40),
)
def test_every_record_comes_once(which, lengths, seed, calls):
    """Whatever the streams, each record comes out exactly once; arrival order is that of a plain sort."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    arrivals = rng.permutation(total)
    views, start = [], 0
    for number, length in enumerate(lengths):
        mine = np.sort(arrivals[start : start + length])
        start += length
        site = Site(f"tap{number}", leaves=(Leaf("", (), "int32"),))
        call = mine * calls // max(total, 1)
        fields = {"iteration": rng.integers(0, 3, length), "device": rng.integers(0, 2, length), "program": length % 2}
        stream = make_stream(site, [np.zeros(length)], arrival=mine, call=call, position=number, **fields)
        views.append(StreamView.of(stream))
    batches = list(in_order(views, which))
    pairs = [(s, n) for b in batches for s, n in zip(b.stream.tolist(), b.number.tolist(), strict=True)]
    assert sorted(pairs) == [(s, n) for s, length in enumerate(lengths) for n in range(length)]
    if which == "arrival":
        assert [a for b in batches for a in b.rows["arrival"].tolist()] == list(range(total))


def test_first_batch_does_not_wait_for_the_last_row(monkeypatch):
    """Merging reads each stream's index a block at a time, as it goes on."""
    monkeypatch.setattr(order, "_INDEX_BYTES", 2 * 64 * 64)
    site = Site("tap", leaves=(Leaf("", (), "int32"),))
    streams = [CountingStream(make_stream(site, [np.zeros(5000)], arrival=np.arange(5000) * 2 + i)) for i in (0, 1)]
    batches = in_order([StreamView.of(stream) for stream in streams], "arrival")
    next(batches)
    assert [stream.index_rows for stream in streams] == [64, 64]


def test_places_are_the_inverse_of_the_order():
    """Each row's place is where it stands among all records in program order."""
    views = views_of(one_call([(2, 0), (0, 0), (1, 0), (1, 1)]))
    assert [p.tolist() for p in places(views)] == [[0], [1, 2], [3]]


def test_unknown_order():
    """Any other word is refused."""
    with pytest.raises(ValueError, match="'program' or 'arrival', not 'time'"):
        in_order([], "time")  # type: ignore[arg-type]


class Interleaved:
    """A view whose records arrive in turns with those of others."""

    process = 0
    ranks = None

    def __init__(self, number: int, of: int, records: int) -> None:
        self.table = np.zeros(records, INDEX_DTYPE)
        self.table["arrival"] = np.arange(records) * of + number
        self.records = records
        self.reads = 0

    def index(self, start: int, stop: int) -> np.ndarray:
        """Counts."""
        self.reads += 1
        return self.table[start:stop]


def test_streams_that_take_turns_go_out_in_large_batches() -> None:
    """Not a row of each at a time."""
    views: Any = [Interleaved(number, 300, 500) for number in range(300)]
    batches = [len(batch) for batch in in_order(views, "arrival")]
    assert sum(batches) == 300 * 500
    assert len(batches) <= 30
    assert max(view.reads for view in views) <= 10
    for number, places_of in enumerate(places(views)):
        np.testing.assert_array_equal(places_of, np.arange(500) * 300 + number)
