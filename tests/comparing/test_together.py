"""Small leaves of many streams are compared at once, and what is found of each is the same as by itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.comparing.runs import STEP, chain, compare, site
from tests.memory_source import MemorySource, make_stream
from tracerec.comparing.cells import KINDS, Comparer
from tracerec.comparing.measures import measure
from tracerec.comparing.ordering import TraceIndex
from tracerec.comparing.together import batches
from tracerec.model import Column
from tracerec.trace.order import places
from tracerec.trace.view import StreamView


@pytest.fixture
def joined(monkeypatch):
    """How many cells were measured at once, each time."""
    counts = []
    usual = Comparer.compare_together

    def counted(self, some):
        counts.append(len(some))
        return usual(self, some)

    monkeypatch.setattr(Comparer, "compare_together", counted)
    return counts


def taps(shape, dtype, differs):
    """Two runs of 30 taps; in the second a share of the elements is another, and some of those not finite."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 90, *shape)).astype(dtype)
    y = x.copy()
    some = rng.random(x.shape) < differs
    y[some] += rng.choice([1e-7, 1e-2, np.nan, np.inf, -np.inf], some.sum(), p=[0.4, 0.57, 0.01, 0.01, 0.01]).astype(
        dtype
    )
    return x, y


@pytest.mark.parametrize("differs", [0.0, 0.02, 1.0])
@pytest.mark.parametrize(("shape", "dtype"), [((), "float32"), ((), "float64"), ((3,), "float32"), ((2, 2), "float16")])
def test_what_is_found_is_what_is_found_of_each_tap_alone(written, joined, shape, dtype, differs):
    """Every measure of every record, from the arrays themselves, tap by tap."""
    x, y = taps(shape, dtype, differs)
    names = [f"tap{number:02d}" for number in range(30)]
    found = compare(written(*chain(x, names)), written(*chain(y, names)))
    assert max(joined) > 10
    assert sum(joined) == len(found.cells) == 30
    for cell, a, b in zip(found.cells, x, y, strict=True):
        rows = measure(a, b, cell.tolerance)
        differing = (rows["differing"] > 0) | (rows["bits"] > 0)
        kind = np.where(rows["beyond"] > 0, "beyond tolerance", "within tolerance")
        kind = np.where(rows["differing"] == 0, np.where(rows["bits"] == 0, "equal", "equal values"), kind)
        assert np.array(KINDS)[cell.pairs["kind"]].tolist() == kind.tolist()
        assert (cell.pairs["measured"] >= 0).tolist() == differing.tolist()
        assert cell.measures.tobytes() == rows[differing].tobytes()
        assert cell.pairs["measured"][differing].tolist() == list(range(int(differing.sum())))


def test_the_report_is_that_of_one_tap_at_a_time(written, joined, monkeypatch):
    """Taps of several shapes and dtypes one after the other, some with a float kwarg."""
    rng = np.random.default_rng(4)
    scale = Column("scale", "float32", python="float")
    runs = []
    for differ in (False, True):
        streams = []
        for number in range(40):
            shape, dtype = [((), "float32"), ((4,), "float32"), ((), "int32")][number // 3 % 3]
            values = np.arange(50 * int(np.prod(shape, dtype=int))).reshape(50, *shape).astype(dtype)
            if differ:
                values = values + rng.integers(0, 2, values.shape).astype(dtype)
            columns: list[Column] = [STEP]
            numbers: list[np.ndarray] = [np.arange(50)]
            if number % 5 == 0:
                columns.append(scale)
                numbers.append(np.linspace(0, 1 + differ, 50).astype(np.float32))
            of = site(f"tap{number:02d}", shape, dtype, tuple(columns))
            streams.append(make_stream(of, [values], numbers=numbers, first=50 * number, position=number))
        runs.append(written(*streams))
    together = compare(*runs)
    assert joined
    monkeypatch.setattr("tracerec.comparing.walk.batches", lambda work: ([each] for each in work))
    alone = compare(*runs)
    assert together.to_pandas().equals(alone.to_pandas())
    assert (str(together), together.to_json()) == (str(alone), alone.to_json())


def test_a_batch_is_bounded(written, joined):
    """In pairs, and in bytes of a side; a leaf that is larger is compared by itself."""
    for size, steps, most in ((1, 1000, 4), (16, 100, 5), (10_000, 1, 1)):
        x = np.random.default_rng(5).normal(size=(9, steps, size)).astype(np.float32)
        names = [f"tap{number}" for number in range(9)]
        del joined[:]
        assert compare(written(*chain(x, names)), written(*chain(x + 1, names))).different == 9 * steps
        assert max(joined, default=1) == most
    assert list(batches([])) == []


def test_places_of_several_processes_are_those_of_the_reader():
    """Streams of three processes in turns, the rows of each out of order: more than are read at once."""
    rng = np.random.default_rng(6)
    views = []
    for number in range(7):
        steps = int(rng.integers(1, 400))
        arrival = rng.permutation(4000)[:steps] * 7 + number
        stream = make_stream(
            site(f"tap{number}"),
            [np.zeros(steps)],
            numbers=[np.arange(steps)],
            arrival=arrival,
            call=np.arange(steps) + 1,
            program=number % 2,
            position=number,
            time=rng.integers(0, 50, steps),
        )
        source = MemorySource([stream])
        views.append(StreamView.of(source.streams[0], process=number % 3))
    index = TraceIndex(views)
    for number, view in enumerate(views):
        assert index.rows(number).tobytes() == view.index(0, view.records).tobytes()
    for number, expected in enumerate(places(views)):
        assert index.places(number).tolist() == expected.tolist()
    for number, view in enumerate(views):
        assert index.rows(number).tobytes() == view.index(0, view.records).tobytes()
