"""Summaries of kept leaves: whatever the blocks and the pieces, they are those of the tapped leaf."""

from __future__ import annotations

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tracerec.formats.joined import JoinedSource
from tracerec.keeping import summary_columns
from tracerec.model import Column, Kept, Leaf, Site, Transform
from tracerec.statistics import SPARK_POINTS
from tracerec.summaries import summarizers

RECORDS, LANES = 150, 3
PARTS = {"counts": (6, "uint32"), "range": (2, "float32"), "moments": (5, "float32")}


def site_of(key_impl=None, dtype="float32"):
    """Returns a site of a vmapped tap with a mask, of which a summary and a fingerprint were kept."""
    parts = [("summary", part, *of) for part, of in PARTS.items()]
    parts += [("fingerprint", "digest", 2, "uint32"), ("fingerprint", "counts", 6, "uint32")]
    leaves = tuple(
        Leaf(
            f".{kind}.{part}",
            (LANES, size),
            "uint32" if part == "range" and dtype == "uint32" else name,
            number,
            kept=Kept(f'{{"kind":"{kind}"}}', part, "", (4, LANES), dtype, key_impl, 1),
        )
        for number, (kind, part, size, name) in enumerate(parts)
    )
    batch = Transform("batch", size=LANES, dims=(0,) * len(leaves), kwarg_dims=(0,))
    return Site("x", leaves, (Column("where", "bool", (LANES,), role="where"),), transforms=(batch,))


def arrays_of(first, records, site):
    """Returns arrays of records, and the mask; what a device would make of four elements a lane."""
    random = np.random.default_rng(7)
    x = random.normal(size=(RECORDS, LANES, 4)).astype(np.float32)
    x[5, 1, :2], x[60, 0], x[70, 2, 3] = np.nan, np.nan, -np.inf
    where = random.integers(0, 3, (RECORDS, LANES)) > 0
    where[[0, 9, RECORDS - 1]] = False
    live = where[..., None] & np.ones(4, bool)
    finite = live & np.isfinite(x)
    zero = np.where(finite, x, 0).astype(np.float64)
    n = finite.sum(-1)
    with np.errstate(all="ignore"):
        mean = zero.sum(-1) / n
        std = np.sqrt((np.where(finite, (x - mean[..., None]) ** 2, 0)).sum(-1) / n)
        low, high = np.where(finite, x, np.inf).min(-1), np.where(finite, x, -np.inf).max(-1)
    tests = [live, live & np.isnan(x), live & (x == np.inf), live & (x == -np.inf), finite & (x == 0), live & False]
    counts = np.stack([test.sum(-1) for test in tests], -1)
    ends = np.where(n[..., None] > 0, np.stack([low, high], -1), 0)
    ends = ends.astype(site.leaves[1].dtype if site.leaves[1].dtype != "uint32" else np.float32)
    l1, l2 = np.abs(zero).sum(-1), np.sqrt((zero**2).sum(-1))
    moments = np.stack([mean, std, l1, l2, np.zeros_like(mean)], -1).astype(np.float32)
    digest = random.integers(0, 1 << 32, (RECORDS, LANES, 2))
    stop = first + records
    return [a[first:stop] for a in (counts, ends, moments, digest, counts)], where[first:stop], x[first:stop]


def stream(first=0, records=RECORDS, site=None):
    """Returns a stream of some of the records."""
    site = site or site_of()
    arrays, where, _ = arrays_of(first, records, site)
    return make_stream(site, arrays, [where], first=first)


def test_summary_is_that_of_the_elements():
    """All three arrays of a summary have what it tells of the leaf; those of a fingerprint its counts."""
    found = stream().summaries()
    _, where, x = arrays_of(0, RECORDS, site_of())
    rows = np.flatnonzero(where.any(axis=1))
    values = [x[row][where[row]].astype(np.float64) for row in rows]
    picks = np.arange(SPARK_POINTS) * (len(rows) - 1) // (SPARK_POINTS - 1)
    means = [np.mean(v[np.isfinite(v)]) if np.isfinite(v).any() else None for v in (values[p] for p in picks)]
    for summary in found[:3]:
        assert summary == found[0]
        assert summary.records == len(rows)
        assert summary.nan == sum(np.isnan(v).sum() for v in values)
        assert summary.neginf == sum((v == -np.inf).sum() for v in values)
        assert summary.last.count == values[-1].size
        assert (summary.last.min, summary.last.max) == (values[-1].min(), values[-1].max())
        np.testing.assert_allclose(
            [np.nan if m is None else m for m in summary.spark], [np.nan if m is None else m for m in means], atol=1e-7
        )
    for summary in found[3:]:
        assert (summary.records, summary.nan, summary.spark) == (len(rows), found[0].nan, ())
        assert (summary.last.count, summary.last.mean) == (values[-1].size, None)


@pytest.mark.parametrize("sizes", [[150], [1] * 150, [40, 0, 110], [149, 1]])
def test_blocks_and_pieces(sizes):
    """Summaries are the same bit for bit, however the records are cut."""
    whole = stream()
    leaves = summarizers(whole)
    for leaf, array in zip(leaves, whole.arrays, strict=True):
        for block in np.split(array, np.cumsum(sizes)[:-1]):
            leaf.add(block)
    assert [leaf.summary() for leaf in leaves] == list(whole.summaries())
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    pieces = [MemorySource([stream(start, size)]) for start, size in zip(starts, sizes, strict=True) if size]
    joined = JoinedSource("run.h5", pieces[0].info, pieces)
    assert list(joined.streams[0].summaries()) == list(whole.summaries())


def test_records_are_as_many_as_announced():
    """More are the caller's error, and so are fewer."""
    whole = stream(0, 10)
    leaf = summarizers(whole)[0]
    with pytest.raises(ValueError, match="0 records for a summary"):
        leaf.summary()
    leaf.add(whole.arrays[0])
    with pytest.raises(ValueError, match="records for a summary"):
        leaf.add(whole.arrays[0])


def test_no_record_counts():
    """There is nothing to say of none."""
    found = stream(0, 1).summaries()
    assert (found[0].records, found[0].last.count, found[0].spark) == (0, 0, ())


def test_keys_are_counted_alone():
    """Their bits are no numbers."""
    site = site_of("threefry2x32", "uint32")
    found = make_stream(
        site, [np.ones((2, LANES, leaf.shape[-1])) for leaf in site.leaves], [np.ones((2, LANES), bool)]
    )
    for summary in found.summaries():
        assert (summary.last.count, summary.last.zeros, summary.last.mean, summary.spark) == (LANES, 0, None, ())


def test_columns_by_record():
    """What is told of many records at once is what is told of each."""
    arrays, _, _ = arrays_of(0, RECORDS, site_of())
    together = summary_columns(*(a.astype(t) for a, t in zip(arrays, ("u4", "f4", "f4"), strict=False)), lanes=1)
    for row in range(0, RECORDS, 7):
        alone = summary_columns(
            *(a[row : row + 1].astype(t) for a, t in zip(arrays, ("u4", "f4", "f4"), strict=False)), lanes=1
        )
        for name, values in alone.items():
            np.testing.assert_array_equal(values[0], together[name][row], err_msg=name)
