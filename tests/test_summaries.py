"""Summaries of streams with masks: numpy's own statistics of what is left after masking by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.journal.writing import JournalWriter
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.summaries import summarizers

BATCH = Transform("batch", size=3, dims=(1, None), kwarg_dims=(0, 0))
SITE = Site(
    "t",
    (Leaf("['a']", (4, 3), "float32"), Leaf("['b']", (2,), "float64", number=1)),
    (Column("where", "bool", (3,), role="where"), Column("['a']", "int32", (3, 1), role="extent")),
    structure='{"dict":[["a",{"slot":0}],["b",{"slot":1}]]}',
    transforms=(BATCH,),
)
RECORDS = 100


def masked_stream(seed=0):
    """Returns a stream of which some records, lanes and rows do not count, and hold NaN, Inf or huge numbers."""
    random = np.random.default_rng(seed)
    a = random.normal(size=(RECORDS, 4, 3)).astype(np.float32)
    b = random.normal(size=(RECORDS, 2))
    where = random.integers(0, 3, (RECORDS, 3)) > 0
    where[[0, 7, 50, 98, 99]] = False
    where[97] = [False, True, False]
    extent = random.integers(0, 5, (RECORDS, 3, 1)).astype(np.int32)
    extent[97, 1] = 3
    counts = where[:, None, :] & (np.arange(4)[:, None] < extent[:, None, :, 0])
    a[~counts] = random.choice([np.nan, np.inf, -np.inf, 1e30], (~counts).sum())
    a[20, counts[20]] = np.nan
    b[~where.any(axis=1)] = np.inf
    return make_stream(SITE, [a, b], [where, extent]), a, b, counts, where


def summaries_of(stream):
    """Returns the summaries of a stream fed in uneven blocks."""
    leaves = summarizers(stream)
    for number, leaf in enumerate(leaves):
        for start, stop in ((0, 1), (1, 40), (40, 99), (99, RECORDS)):
            leaf.add(stream.leaf(number, start, stop))
    return [leaf.summary() for leaf in leaves]


def test_only_what_counts_is_summarized():
    """Totals, the last record and the means leave out lanes, padding, and records without a lane."""
    stream, a, b, counts, where = masked_stream()
    first, second = summaries_of(stream)
    kept = np.flatnonzero(where.any(axis=1))
    assert first.records == second.records == len(kept)
    assert (first.nan, first.posinf, first.neginf) == (int(counts[20].sum()), 0, 0)
    last = a[97, :3, 1].astype(np.float64)
    assert (first.last.count, first.last.min, first.last.max) == (3, last.min(), last.max())
    assert first.last.mean == pytest.approx(last.mean(), rel=1e-12)
    picks = [int(kept[n * (len(kept) - 1) // 47]) for n in range(48)]
    for pick, mean in zip(picks, first.spark, strict=True):
        values = a[pick][counts[pick]].astype(np.float64)
        assert mean == (pytest.approx(values.mean(), rel=1e-12) if np.isfinite(values).any() else None)
    # The other leaf is the same for all lanes: it counts where a lane does.
    assert second.posinf == 0
    assert second.spark == pytest.approx([b[pick].mean() for pick in picks], rel=1e-12)


def test_a_sealed_file_has_them(tmp_path):
    """Sealing reads blocks of its own, and comes to the same."""
    stream = masked_stream()[0]
    seal(MemorySource([stream]), tmp_path / "run.h5")
    with Hdf5Source(tmp_path / "run.h5") as source:
        assert list(source.streams[0].summaries()) == summaries_of(stream)


def test_keys_that_count():
    """Of keys the elements that count are counted."""
    site = Site(
        "k",
        (Leaf("", (3, 2), "uint32", key_impl="threefry2x32"),),
        (Column("where", "bool", (3,), role="where"),),
        transforms=(Transform("batch", size=3, dims=(0,), kwarg_dims=(0,)),),
    )
    stream = make_stream(site, [np.ones((2, 3, 2))], [[[True, True, True], [True, False, True]]])
    (leaf,) = summarizers(stream)
    leaf.add(stream.leaf(0, 0, 2))
    assert (leaf.summary().records, leaf.summary().last.count, leaf.summary().last.mean) == (2, 4, None)


def test_no_record_counts():
    """A branch that was never taken has a summary of nothing."""
    site = Site("t", (Leaf("", (), "float32"),), (Column("where", "bool", (), role="where"),))
    stream = make_stream(site, [[np.nan, 1.0]], [[False, False]])
    (leaf,) = summarizers(stream)
    leaf.add(stream.leaf(0, 0, 2))
    summary = leaf.summary()
    assert (summary.records, summary.nan, summary.last.count, summary.spark) == (0, 0, 0, ())


def test_a_journal_computes_them(tmp_path):
    """A run that was killed has the same summaries, read from its frames."""
    stream = masked_stream()[0]
    layout.write_manifest(tmp_path, RunInfo(run_id="0" * 32, started=1))
    writer = JournalWriter(tmp_path)
    for start, stop in ((0, 30), (30, 31), (31, RECORDS)):
        rows = np.ascontiguousarray(stream.index(start, stop)).view(np.uint8).reshape(stop - start, -1)
        tables = [stream.leaf(n, start, stop) for n in range(2)] + [stream.column(n, start, stop) for n in range(2)]
        writer.append(SITE, [rows, *map(np.ascontiguousarray, tables)])
    writer.flush()
    (read,) = JournalSource(tmp_path).streams
    assert read.records == RECORDS
    assert list(read.summaries()) == summaries_of(stream)
