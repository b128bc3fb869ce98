from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.memory_source import make_stream
from tests.trace.streams import CountingStream
from tracerec.model import Leaf, Site
from tracerec.trace import view as view_module
from tracerec.trace.view import StreamView

WIDE = Site("wide", leaves=(Leaf("", (4096,), "float32"),))  # 16 KiB a record


def counted(records):
    """Returns a stream that counts reads; the first element of each record is its number times 4096."""
    stream = make_stream(WIDE, [np.arange(records * 4096, dtype=np.float32).reshape(records, 4096)])
    return CountingStream(stream)


@given(st.sets(st.integers(0, 199)), st.sets(st.integers(0, 199)), st.integers(0, 200), st.integers(0, 200))
def test_rows_selected_twice(first, second, start, stop):
    """Two masks one after the other, then a range, are what numpy indexing gives."""
    values = np.arange(200 * 3, dtype=np.int16).reshape(200, 3)
    stream = make_stream(Site("x", leaves=(Leaf("", (3,), "int16"),)), [values])
    one, two = (np.isin(np.arange(200), list(chosen)) for chosen in (first, second))
    view = StreamView.of(stream).take(one)
    view = view.take(two[one])
    expected = values[one & two]
    assert view.records == len(expected)
    start, stop = sorted((min(start, len(expected)), min(stop, len(expected))))
    np.testing.assert_array_equal(expected[start:stop], view.leaf(0, start, stop))
    np.testing.assert_array_equal(stream.rows[one & two][start:stop], view.index(start, stop))


def test_far_rows_are_read_alone():
    """Of two rows that are far apart, what lies between is not read."""
    stream = counted(100)
    mask = np.zeros(100, bool)
    mask[[3, 90]] = True
    got = StreamView.of(stream).take(mask).leaf(0, 0, 2)
    np.testing.assert_array_equal([3 * 4096, 90 * 4096], got[:, 0])
    assert (stream.leaf_rows, stream.reads) == (2, 2)


def test_near_rows_are_read_at_once():
    """Every other row of a run is one read: rows between are cheaper to read than to skip."""
    stream = counted(100)
    mask = np.zeros(100, bool)
    mask[10:31:2] = True
    StreamView.of(stream).take(mask).leaf(0, 0, 11)
    assert (stream.leaf_rows, stream.reads) == (21, 1)


def test_scattered_rows_are_read_in_bounded_blocks(monkeypatch):
    """A long selection with small gaps is cut at the largest block."""
    monkeypatch.setattr(view_module, "BLOCK_BYTES", 10 * 4096 * 4)
    stream = counted(100)
    mask = np.arange(100) % 2 == 0
    got = StreamView.of(stream).take(mask).leaf(0, 0, 50)
    np.testing.assert_array_equal(np.arange(0, 100, 2) * 4096, got[:, 0])
    assert stream.reads == 10


def test_leaf_of_a_view_with_one_leaf():
    """The second leaf is still the second in the source."""
    site = Site("two", leaves=(Leaf("['a']", (), "int8", 0), Leaf("['b']", (2,), "int8", 1)))
    view = StreamView.of(make_stream(site, [[1, 2], [[3, 4], [5, 6]]])).with_leaf("['b']")
    assert view.leaf(0, 0, 2).tolist() == [[3, 4], [5, 6]]
    assert [leaf.path for leaf in view.site.leaves] == ["['b']"]
