"""Several sources as one: every range, the same summaries as at once, few open files."""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.formats.pieces import split
from tests.formats.test_contract import assert_array, assert_same, masked, random_elements
from tests.memory_source import MemorySource, MemoryStream, make_stream
from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.arrow.reading import ArrowSource
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.joined import JoinedSource
from tracerec.formats.pool import Pool
from tracerec.model import Column, Leaf, Site

SITE = Site("act", (Leaf("", (2,), "bfloat16"),), (Column("step", "int64", python="int"), Column("lr", "float64")))


def stream(records, first=0, site=SITE):
    """Returns a stream whose values tell which record they are."""
    ids = np.arange(first, first + records)
    return make_stream(site, [np.stack([ids, -ids], 1) % 256], [ids * 3, ids / 7], first=first)


def joined(pieces, **options):
    """Joins sources, with the information of the first."""
    return JoinedSource("run.h5", pieces[0].info, pieces, **options)


@pytest.mark.parametrize("sizes", [[10], [0, 10], [3, 0, 0, 1, 6], [1] * 10, [0, 0]])
def test_every_range_is_that_of_the_whole(sizes):
    """Whatever range is read, over however many pieces, it is the whole array's slice."""
    total = sum(sizes)
    whole = stream(total)
    starts = itertools.accumulate(sizes[:-1], initial=0)
    pieces = [MemorySource([stream(n, first)]) for first, n in zip(starts, sizes, strict=True)]
    (read,) = joined(pieces).streams
    assert read.records == total
    assert read.nbytes == whole.nbytes
    assert read.leaf_nbytes(0) == whole.leaf_nbytes(0)
    assert read.steps == ((0, 3 * total - 3) if total else None)
    for start in range(total + 1):
        for stop in range(start, total + 1):
            assert_array(read.index(start, stop), whole.index(start, stop))
            assert_array(read.leaf(0, start, stop), whole.leaf(0, start, stop))
            for column in range(2):
                assert_array(read.column(column, start, stop), whole.column(column, start, stop))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (5, 4)])
def test_ranges_outside_the_records(start, stop):
    """Ranges are half-open and within the records; others are the caller's error."""
    (read,) = joined([MemorySource([stream(4)]), MemorySource([stream(6, 4)])]).streams
    with pytest.raises(IndexError, match="of 10 of tap 'act'"):
        read.leaf(0, start, stop)


def test_streams_are_in_first_seen_order():
    """Streams of one site are one, at the place where it was first seen."""
    sites = [dataclasses.replace(SITE, name=name) for name in "abc"]
    first = MemorySource([stream(2, site=sites[1]), stream(2, site=sites[0])])
    second = MemorySource([stream(1, site=sites[2]), stream(3, 2, sites[0])])
    read = joined([first, second])
    assert [(s.site.name, s.records) for s in read.streams] == [("b", 2), ("a", 5), ("c", 1)]


def test_closing():
    """Closing closes all pieces and says so once; reading then raises TraceError."""
    closed = []
    pieces = [MemorySource([stream(3)]), MemorySource([stream(3, 3)])]
    source = joined(pieces, closing=lambda: closed.append(1))
    (read,) = source.streams
    source.close()
    source.close()
    assert closed == [1]
    assert [piece.closed for piece in pieces] == [True, True]
    for use in (lambda: read.leaf(0, 0, 1), lambda: read.index(0, 0), lambda: read.column(1, 2, 4), read.summaries):
        with pytest.raises(TraceError, match=r"'run\.h5' is closed"):
            use()


def unmasked(records):
    """Returns leaves of several dtypes, with NaN, infinities, huge and tiny numbers in some records, and a key."""
    names = ["float32", "bfloat16", "float64", "complex64", "uint32", "int4"]
    leaves = tuple(Leaf(f"[{n}]", (5, 3), name, number=n) for n, name in enumerate(names))
    leaves += (Leaf("k", (2,), "uint32", number=9, key_impl="rbg"), Leaf("e", (0,), "int8", number=10))
    random = np.random.default_rng(records)
    arrays = [random_elements(name, (records, 5, 3), n) for n, name in enumerate(names)]
    arrays[2] = random.normal(size=(records, 5, 3)) * 10.0 ** random.integers(-310, 308, (records, 1, 1))
    arrays[1] = np.maximum(random.normal(size=(records, 5, 3)), 0)
    arrays += [np.ones((records, 2)), np.zeros((records, 0))]
    return MemorySource([make_stream(Site("tap", leaves), arrays, steps=range(records))])


@pytest.mark.parametrize("records", [1, 47, 48, 49, 500])
@pytest.mark.parametrize("shares", [[], [0.5], [0.01, 0.02, 0.9], list(np.arange(1, 30) / 30)])
def test_summaries_are_those_of_the_whole(tmp_path, records, shares):
    """Counts, the last record and the 48 means are what sealing all records at once stores, bit for bit."""
    for source in (unmasked(records), masked(records)):
        seal(source, tmp_path / "whole.h5")
        pieces = split(source, shares)
        for number, piece in enumerate(pieces):
            seal(piece, tmp_path / f"{number}.h5")
        parts = [Hdf5Source(tmp_path / f"{number}.h5") for number in range(len(pieces))]
        with Hdf5Source(tmp_path / "whole.h5") as whole, joined(parts) as read:
            for got, want in zip(read.streams, whole.streams, strict=True):
                assert [repr(leaf.to_json()) for leaf in got.summaries()] == [
                    repr(leaf.to_json()) for leaf in want.summaries()
                ]


class CountingStream(MemoryStream):
    """Counts the records that are read of it."""

    read = 0

    def leaf(self, number, start, stop):
        self.__dict__["read"] = self.read + stop - start
        return super().leaf(number, start, stop)


def test_summaries_read_few_records():
    """Of 4,000 large records in two pieces no more are read than a summary has means."""
    site = Site("t", (Leaf("", (300_000,), "int8"),))
    rows = make_stream(Site("t", ()), [], steps=range(2000)).rows
    pieces = []
    for n in range(2):
        values = np.broadcast_to(np.int8(n), (2000, 300_000))
        counting = CountingStream(site, rows, (values,))
        object.__setattr__(counting, "summaries", make_stream(site, [np.full((2000, 300_000), n, np.int8)]).summaries)
        pieces.append(counting)
    source = joined([MemorySource([piece]) for piece in pieces])
    (summary,) = source.streams[0].summaries()
    assert summary.spark == (0.0,) * 24 + (1.0,) * 24
    assert sum(piece.read for piece in pieces) <= 46


def test_summaries_that_contradict_the_records():
    """A piece that has summaries of other records than its own is damaged."""
    one = stream(5)
    lying = stream(4)
    object.__setattr__(lying, "summaries", one.summaries)
    with pytest.raises(TraceFormatError, match=r"'run\.h5' is no intact trace: tap 'act': summaries of \[5\]"):
        joined([MemorySource([one]), MemorySource([lying])]).streams[0].summaries()


def test_a_piece_of_another_site():
    """A stream whose id is that of another site is found when its arrays are other ones."""
    other = make_stream(Site("act", (Leaf("", (3,), "int8"),)), [np.ones((2, 3))])
    object.__setattr__(other, "site_id", SITE.id)
    (read,) = joined([MemorySource([stream(2)]), MemorySource([other])]).streams
    with pytest.raises(TraceFormatError, match=r"tap 'act': one of its pieces has int8 of \(2, 3\), not bfloat16 of"):
        read.leaf(0, 0, 4)


def open_files():
    """Returns how many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("form", ["h5", "arrow"])
def test_few_files_are_open_at_once(tmp_path, form):
    """A trace of 60 parts is read back and forth with four of them open."""
    make, opened = (seal, Hdf5Source) if form == "h5" else (seal_arrow, ArrowSource)
    source = MemorySource([stream(600), stream(600, site=dataclasses.replace(SITE, name="b"))])
    for number, piece in enumerate(split(source, list(np.arange(1, 60) / 60))):
        make(piece, tmp_path / f"{number}.{form}")
    before = open_files()
    pool = Pool(most=4)
    with joined([opened(tmp_path / f"{number}.{form}", pool=pool) for number in range(60)]) as read:
        assert open_files() <= before + 4
        assert_same(read, source)
        for start in range(590, 0, -59):
            assert_array(read.streams[1].leaf(0, start, start + 3), source.streams[1].leaf(0, start, start + 3))
            assert open_files() <= before + 4
        assert len(pool.sites) == 2
    assert open_files() == before


@pytest.mark.parametrize("form", ["h5", "arrow"])
def test_threads_read_at_once(tmp_path, form):
    """Several threads read a trace of which two parts at most are open: none has its file shut under it."""
    make, opened = (seal, Hdf5Source) if form == "h5" else (seal_arrow, ArrowSource)
    whole = stream(300)
    for number, piece in enumerate(split(MemorySource([whole]), list(np.arange(1, 12) / 12))):
        make(piece, tmp_path / f"{number}.{form}")
    pool = Pool(most=2)

    def check(seed):
        random = np.random.default_rng(seed)
        for _ in range(60):
            start, stop = sorted(random.integers(0, 301, 2))
            assert_array(read.streams[0].leaf(0, start, stop), whole.leaf(0, start, stop))
        return True

    parts = [opened(tmp_path / f"{number}.{form}", pool=pool) for number in range(12)]
    with joined(parts) as read, ThreadPoolExecutor(4) as threads:
        assert list(threads.map(check, range(4))) == [True] * 4


def test_a_part_that_goes_while_it_is_shut(tmp_path):
    """A part that is deleted or replaced behind the reader's back is an error that says so, not other data."""
    pieces = split(MemorySource([stream(30)]), [0.3, 0.6])
    for number, piece in enumerate(pieces):
        seal(piece, tmp_path / f"{number}.h5")
    pool = Pool(most=1)
    with joined([Hdf5Source(tmp_path / f"{number}.h5", pool=pool) for number in range(3)]) as read:
        (tmp_path / "0.h5").unlink()
        with pytest.raises(TraceNotFound, match=r"0\.h5' is gone: .* open the trace again"):
            read.streams[0].leaf(0, 0, 30)
        seal(pieces[2], tmp_path / "1.h5")
        with pytest.raises(TraceError, match=r"1\.h5' is another file than when the trace was opened"):
            read.streams[0].leaf(0, 10, 12)
        assert_array(read.streams[0].leaf(0, 20, 30), stream(30).leaf(0, 20, 30))
