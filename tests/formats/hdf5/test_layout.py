"""How datasets are cut into chunks, for any shape."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from tracerec.formats.hdf5.layout import MAX_CHUNK, attribute_text, chunk_shape


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=5), st.sampled_from([1, 2, 4, 8, 16, 64]))
@example([3, 1], 1)
@example([10**9], 1)
@example([1, 10**7], 4)
@example([2, 7, 131_071], 8)
def test_chunks_of_any_shape(shape, itemsize):
    """A chunk is at most 1 MiB, within the shape, whole records or one cut along leading axes, nearly all used."""
    chunk = chunk_shape(tuple(shape), itemsize)
    nbytes = math.prod(chunk) * itemsize
    assert nbytes <= MAX_CHUNK
    assert all(1 <= c <= n for c, n in zip(chunk, shape, strict=True))
    cut = [axis for axis in range(len(shape)) if chunk[axis] < shape[axis]]
    if cut:
        # Before the last axis that is cut there is one element of each axis, after it everything.
        assert all(c == 1 for c in chunk[: cut[-1]])
        assert chunk[cut[-1] + 1 :] == tuple(shape[cut[-1] + 1 :])
    stored = math.prod(-(-n // c) * c for c, n in zip(chunk, shape, strict=True))
    assert stored <= 1.5 * math.prod(shape)
    # Chunks are large when there is enough to fill them, unless one element along an axis is large itself.
    if math.prod(shape) * itemsize > MAX_CHUNK and math.prod(shape[1:]) * itemsize < MAX_CHUNK // 8:
        assert nbytes >= MAX_CHUNK // 8


@given(st.text(st.characters(categories=None)))
def test_attribute_texts(text):
    """Any text becomes one that UTF-8 and a text of fixed length can hold; ordinary texts stay as they are."""
    shown = attribute_text(text)
    assert b"\0" not in shown.encode()
    if text.isprintable():
        assert shown == text
