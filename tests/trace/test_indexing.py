"""``tap[...]`` against numpy's own indexing, and what it reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import COTANGENT, RECORDS, STEP, CountingStream, leaf, training
from tracerec.errors import SelectionError
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site
from tracerec.trace import Trace, open_trace

SITE = Site("x", (Leaf("", (3,), "float32"),), (STEP,), '{"step":{"slot":0}}')
COUNT = 12


def several():
    """Returns a tap of three streams of one shape, whose records alternate, and its values."""
    values = np.arange(COUNT * 3, dtype=np.float32).reshape(COUNT, 3)
    streams = []
    for number, name in enumerate("abc"):
        rows = np.arange(number, COUNT, 3)
        site = Site("x", SITE.leaves, (STEP,), f'{{"kind":"{name}","step":{{"slot":0}}}}')
        streams.append(make_stream(site, [values[rows]], [rows], arrival=rows, call=rows + 1))
    return Trace(MemorySource(streams))["x"], values


def indices(count=COUNT):
    """Returns a strategy of what numpy takes as an index of an axis, but for a number."""
    numbers = st.integers(-count, count - 1)
    bound = st.none() | st.integers(-count - 3, count + 3)
    slices = st.builds(slice, bound, bound, st.none() | st.integers(-4, 4).filter(bool))
    masks = st.lists(st.booleans(), min_size=count, max_size=count)
    return slices | masks | masks.map(np.array) | st.lists(numbers, max_size=20).map(lambda x: np.array(x, int))


@settings(max_examples=120, deadline=None)
@given(indices())
def test_as_numpy(index):
    """Values, steps, records and tables come in the order of numpy, for slices, masks and arrays of numbers."""
    tap, values = several()
    expected = values[index]
    chosen = tap[index]
    np.testing.assert_array_equal(chosen.to_numpy(), expected)
    assert len(chosen) == len(expected)
    assert chosen.shape == expected.shape
    steps = np.arange(COUNT)[index].tolist()
    assert chosen.steps.tolist() == steps
    assert [record.step for record in chosen] == steps
    assert [chosen[i].step for i in range(len(chosen))] == steps
    assert [array.tolist() for array in chosen.to_numpy(trim=True)] == expected.tolist()
    np.testing.assert_array_equal(chosen.raw.to_numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_indices_one_after_the_other(data):
    """What is chosen can be chosen from again, and selected from by step: the order stays."""
    tap, values = several()
    first = data.draw(indices())
    second = data.draw(indices(len(values[first])) if len(values[first]) else st.just(slice(None)))
    chosen = tap[first][second]
    steps = np.arange(COUNT)[first][second]
    np.testing.assert_array_equal(chosen.to_numpy(), values[first][second])
    wanted = steps[(steps >= 2) & (steps < 9)]
    if len(wanted):
        assert chosen.sel(step=slice(2, 9)).steps.tolist() == wanted.tolist()
        for number, kind in enumerate("abc"):
            if (wanted % 3 == number).any():
                assert chosen.sel(step=slice(2, 9), kind=kind).steps.tolist() == wanted[wanted % 3 == number].tolist()


def test_the_table_has_the_order():
    """A table of records that a user has ordered has their order."""
    pytest.importorskip("pandas")
    tap, _ = several()
    assert tap[[7, 2, 2]].to_pandas()["step"].tolist() == [7, 2, 2]
    assert tap[::-1].to_pandas()["step"].tolist() == list(range(COUNT))[::-1]


def test_text_of_calls():
    """Errors of what was chosen have calls that work."""
    trace = Trace(training())
    with pytest.raises(SelectionError) as caught:
        trace["layer"][2:].to_numpy()
    assert caught.value.choices[1] == "trace['layer'][2:].sel(transforms=('jvp', 'transpose'))"
    np.testing.assert_array_equal(
        eval(caught.value.choices[1]).to_numpy(),  # noqa: S307 - our own text
        leaf(training(), 1)[1:],
    )
    with pytest.raises(SelectionError, match=r"trace\['layer'\]\[\[1, 2, 3, 4, 5, 6, \.\.\.\]\]\.sel"):
        trace["layer"][list(range(1, 9))].to_numpy()


def test_streams_without_a_record_go():
    """A slice of records of one kind is of that kind; an empty one is of all."""
    trace = Trace(training())
    assert trace["layer"][::2].transforms == ((),)
    assert trace["layer"][1::2].transforms == (COTANGENT,)
    assert (len(trace["layer"][4:2]), len(trace["layer"][4:2].streams)) == (0, 2)
    assert trace["layer"].sel(transforms=COTANGENT)[:0].to_numpy().shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ([True, False], SelectionError, "tap 'x' has 12 records; a mask of 2 does not fit"),
        (np.ones(13, bool), SelectionError, "tap 'x' has 12 records; a mask of 13 does not fit"),
        (np.ones((12, 1), bool), SelectionError, r"an array of shape \(12, 1\)"),
        ([0, 12], IndexError, "record 12 of tap 'x', which has 12"),
        ([-13], IndexError, "record -13 of tap 'x', which has 12"),
        (np.array([2**63], np.uint64), IndexError, "record 9223372036854775808 of tap 'x'"),
        ([0.0], TypeError, "takes the number of a record, a slice, a mask or an array of numbers"),
        ([[1], [1, 2]], TypeError, "takes the number of a record"),
        (slice(None, None, 0), ValueError, "slice step cannot be zero"),
    ],
)
def test_what_is_no_index(index, error, message):
    """Each error says what is wrong with it."""
    tap, _ = several()
    with pytest.raises(error, match=message):
        tap[index]


def test_only_what_is_chosen_is_read():
    """Ten records of 1 MB out of a hundred: those are read, in whole runs, each once."""
    site = Site("x", (Leaf("", (1 << 10, 1 << 8), "float32"),))
    stream = CountingStream(make_stream(site, [np.zeros((100, 1 << 10, 1 << 8), np.float32)]))
    tap = Trace(MemorySource([stream]))["x"]  # type: ignore[list-item]
    for index in (slice(20, 30), slice(29, 19, -1), np.arange(100) // 10 == 2):
        before = stream.leaf_rows, stream.reads
        assert tap[index].to_numpy().shape[0] == 10
        # a read takes 8 MB at most
        assert (stream.leaf_rows - before[0], stream.reads - before[1]) == (10, 2)
    assert tap[[5, 5, 5]].to_numpy().shape[0] == 3
    assert stream.leaf_rows == 31


def test_a_sealed_file(tmp_path):
    """From HDF5 with masks of lanes: the same as of the whole array."""
    where = Column("where", "bool", (), role="where")
    site = Site("x", (Leaf("", (4,), "int16"),), (where,))
    values = np.arange(400, dtype=np.int16).reshape(100, 4)
    counts = np.arange(100) % 3 > 0
    seal(MemorySource([make_stream(site, [values], [counts])]), tmp_path / "run.h5")
    with open_trace(tmp_path / "run.h5") as trace:
        tap = trace["x"]
        np.testing.assert_array_equal(tap[::-3].to_numpy(), values[counts][::-3])
        np.testing.assert_array_equal(
            tap[values[counts][:, 0] > 200].raw.to_numpy(), values[counts & (values[:, 0] > 200)]
        )
        assert [record.value[0] for record in tap[40:20:-7]] == values[counts][40:20:-7, 0].tolist()
        assert len(trace.raw["x"][::-1]) == 100


def test_one_record_in_a_chosen_order():
    """Numbers count in the order chosen."""
    loss = Trace(training())["loss"]
    assert loss[::-1][0].arrival == loss[-1].arrival
    assert loss[[3, 1]][-1].arrival == loss[1].arrival
    assert loss[np.int8(2)].arrival == loss[2].arrival == loss[np.array(2)].arrival
    assert len(loss[loss.steps >= 10]) == RECORDS
