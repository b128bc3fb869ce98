"""A sealed folder as others see it: pyarrow, polars, DuckDB, the directory it lies in, the bytes on the disk."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc

import duckdb
import jsonschema
import ml_dtypes
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.formats.hdf5.test_schema import SCHEMA
from tests.formats.test_contract import assert_same
from tests.memory_source import STARTED, MemorySource, make_index, make_stream
from tracerec.errors import SealingError
from tracerec.formats.arrow import layout
from tracerec.formats.arrow.reading import ArrowSource
from tracerec.formats.arrow.seal import seal
from tracerec.model import Column, Leaf, Site


def table(path):
    """Returns a file as pyarrow reads it, mapped."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def small_streams():
    """Returns three scalar streams, of which one has no steps, and a large one of tensors."""
    scalars = [
        make_stream(
            Site(name, (Leaf("", (), "float32"),), (Column("step", "int64"), Column("lr", "float64"))),
            [np.arange(5) + 10 * n],
            [range(5), np.full(5, 0.5)],
        )
        for n, name in enumerate(["loss", "acc"])
    ]
    bare = make_stream(Site("eval", (Leaf("['x']", (), "float32"),), (Column("s", "int8"), Column("lr", "float64"))),
                       [[7]], [[1], [2]])  # fmt: skip
    large = make_stream(Site("act", (Leaf("['w']", (40, 60), "bfloat16"),)), [np.ones((9, 40, 60))], steps=range(9))
    return [scalars[0], large, scalars[1], bare]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_pyarrow_reads_tensors(tmp_path, compression):
    """Mapped by pyarrow, a leaf is numpy tensors of the right shape, the dtype's name beside; times and devices too."""
    values = np.arange(900 * 30 * 40, dtype=np.float32).reshape(900, 30, 40)
    stream = make_stream(Site("act", (Leaf("['w']", (30, 40), "float32"),)), [values], steps=range(900), device=3)
    seal(MemorySource([stream]), tmp_path / "run.arrow", compression=compression)
    read = table(tmp_path / "run.arrow/stream-000000.arrow")
    assert read.column("data_0").num_chunks > 1
    assert np.array_equal(read.column("data_0").combine_chunks().to_numpy_ndarray(), values)
    assert read.schema.field("data_0").type == pa.fixed_shape_tensor(pa.float32(), (30, 40))
    assert read.schema.field("data_0").metadata == {b"dtype": b"float32", b"leaf": b"['w']"}
    assert read.column("step").to_pylist() == list(range(900))
    assert set(read.column("device").to_pylist()) == {3}
    assert read.column("time").cast(pa.int64())[2].as_py() == STARTED + 2_000_000
    assert json.loads(read.schema.metadata[b"site"]) == stream.site.to_json()


def test_polars_reads_every_file(tmp_path):
    """In polars there are pools and tensors, and joins records with the names of their taps."""
    seal(MemorySource(small_streams()), tmp_path / "run.arrow")
    streams = pl.read_ipc(tmp_path / "run.arrow/streams.arrow")
    assert streams["tap"].to_list() == ["loss", "act", "acc", "eval"]
    assert streams["first_step"].to_list() == [0, 0, 0, None]
    pool = pl.scan_ipc(tmp_path / "run.arrow/pool-000000.arrow")
    means = pool.join(streams.lazy(), on="stream").group_by("tap").agg(pl.col("data_0").mean()).collect()
    assert dict(means.select("tap", "data_0").iter_rows()) == {"loss": 2.0, "acc": 12.0}
    assert pl.read_ipc(tmp_path / "run.arrow/pool-000001.arrow")["step"].to_list() == [None]
    tensors = pl.read_ipc(tmp_path / "run.arrow/stream-000001.arrow")["data_0"]
    bits = tensors.ext.storage().to_numpy()
    assert bits.shape == (9, 2400)
    assert (bits.view(ml_dtypes.bfloat16) == 1).all()


def test_duckdb_reads_every_file(tmp_path):
    """DuckDB queries pools and tensors in SQL."""
    seal(MemorySource(small_streams()), tmp_path / "run.arrow")
    streams, pool, act = (table(tmp_path / "run.arrow" / name) for name in (
        "streams.arrow", "pool-000000.arrow", "stream-000001.arrow"))  # fmt: skip
    with duckdb.connect() as connection:
        for name, read in (("streams", streams), ("pool", pool), ("act", act)):
            connection.register(name, read)
        query = "SELECT tap, max(data_0), sum(kwarg_1) FROM pool JOIN streams USING (stream) GROUP BY tap ORDER BY tap"
        assert connection.sql(query).fetchall() == [("acc", 14.0, 2.5), ("loss", 4.0, 2.5)]
        assert connection.sql("SELECT count(*), max(step), min(data_0[7]) FROM act").fetchall() == [(9, 8, 0x3F80)]


@pytest.mark.parametrize(
    ("name", "value", "stored", "shown"),
    [
        ("bfloat16", 1.0, pa.uint16(), 0x3F80),
        ("float8_e4m3fn", 1.0, pa.uint8(), 0x38),
        ("float4_e2m1fn", 1.0, pa.uint8(), 2),
        ("int4", 7, pa.uint8(), 7),
        ("uint2", 3, pa.uint8(), 3),
        ("bool", True, pa.uint8(), 1),
        ("float16", 1.5, pa.float16(), 1.5),
        ("uint64", 2**64 - 1, pa.uint64(), 2**64 - 1),
    ],
)
def test_types(tmp_path, name, value, stored, shown):
    """What Arrow has no number for is stored as bits, the dtype's name beside."""
    array = np.array([value], getattr(ml_dtypes, name, name))
    seal(MemorySource([make_stream(Site("tap", (Leaf("", (), name),)), [array])]), tmp_path / "run.arrow")
    read = table(tmp_path / "run.arrow/pool-000000.arrow")
    assert read.schema.field("data_0").type == stored
    assert read.schema.field("data_0").metadata[b"dtype"].decode() == name
    assert read.column("data_0")[0].as_py() == shown


def test_complex_numbers_are_pairs(tmp_path):
    """A complex leaf has a trailing axis of two: real and imaginary part."""
    array = np.array([[1 + 2j, 3 - 4j]], np.complex64)
    seal(MemorySource([make_stream(Site("tap", (Leaf("", (2,), "complex64"),)), [array])]), tmp_path / "run.arrow")
    read = table(tmp_path / "run.arrow/pool-000000.arrow").column("data_0")
    assert read.type == pa.fixed_shape_tensor(pa.float32(), (2, 2))
    assert read.combine_chunks().to_numpy_ndarray().tolist() == [[[1, 2], [3, -4]]]


def test_leaves_without_elements_have_no_column(tmp_path):
    """Empty arrays, which polars cannot read, are left out; what is left opens everywhere."""
    site = Site("tap", (Leaf("[0]", (0, 3), "float32"), Leaf("[1]", (), "int32", number=1)))
    seal(MemorySource([make_stream(site, [np.zeros((4, 0, 3)), range(4)])]), tmp_path / "run.arrow")
    assert pl.read_ipc(tmp_path / "run.arrow/pool-000000.arrow").columns[-1] == "data_1"
    with ArrowSource(tmp_path / "run.arrow") as source:
        assert source.streams[0].leaf(0, 1, 4).shape == (3, 0, 3)


def many_shapes(count):
    """Returns streams of which no two have the same shape, and a few of each that do."""
    random = np.random.default_rng(0)
    streams = []
    for n in range(count):
        site = Site(f"t{n}", (Leaf("", (n + 1,), "float32"), Leaf("c", (1, n), "complex64", number=1)))
        arrays = [random.normal(size=(7, n + 1)), random.normal(size=(7, 1, n))]
        streams.append(make_stream(site, arrays, steps=range(7)))
    return streams


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_streams_of_many_shapes_share_pools_of_lists(tmp_path, compression):
    """100 streams of 100 shapes make few files; in the shared one an array is a list with its shape beside."""
    source = MemorySource(many_shapes(100))
    seal(source, tmp_path / "run.arrow", compression=compression)
    files = sorted((tmp_path / "run.arrow").glob("*.arrow"))
    assert len(files) <= layout.MAX_POOLS + 2
    with ArrowSource(tmp_path / "run.arrow") as read:
        assert_same(read, source)
        last = read.streams[-1]
        assert np.array_equal(last.leaf(1, 3, 5), source.streams[-1].leaf(1, 3, 5))
    lists = table(files[-2])
    assert lists.schema.field("data_0").type == pa.large_list(pa.float32())
    assert lists.column("data_1_shape")[-1].as_py() == [1, 99, 2]
    assert pl.read_ipc(files[-2])["data_0_shape"].to_list()[-1] == [100]
    with duckdb.connect() as connection:
        connection.register("lists", lists)
        assert connection.sql("SELECT max(len(data_0)) FROM lists").fetchall() == [(100,)]


def test_leaves_beyond_the_size_of_a_fixed_list(tmp_path, monkeypatch):
    """Arrays of more elements than Arrow's fixed-size lists can have are lists as well."""
    monkeypatch.setattr(layout, "MAX_LIST_SIZE", 1000)
    values = np.arange(3 * 2000, dtype=np.int32).reshape(3, 20, 100)
    source = MemorySource([make_stream(Site("big", (Leaf("", (20, 100), "int32"),)), [values])])
    seal(source, tmp_path / "run.arrow")
    assert table(tmp_path / "run.arrow/stream-000000.arrow").column("data_0_shape").to_pylist() == [[20, 100]] * 3
    with ArrowSource(tmp_path / "run.arrow") as read:
        assert_same(read, source)


def test_streams_arrow_names_everything(tmp_path):
    """One row a stream says where its records are; run, sites and summaries are the documented JSON."""
    source = MemorySource(small_streams())
    seal(source, tmp_path / "run.arrow")
    read = table(tmp_path / "run.arrow/streams.arrow")
    assert read.schema.metadata[b"tracerec_format"] == b"arrow"
    rows = read.to_pylist()
    assert [row["file"] for row in rows] == [
        "pool-000000.arrow", "stream-000001.arrow", "pool-000000.arrow", "pool-000001.arrow"]  # fmt: skip
    assert [row["first_row"] for row in rows] == [0, 0, 5, 0]
    assert [row["records"] for row in rows] == [5, 9, 5, 1]
    assert rows[1]["nbytes"] == (tmp_path / "run.arrow/stream-000001.arrow").stat().st_size
    assert json.loads(rows[1]["leaf_nbytes"]) == [9 * 40 * 60 * 2]
    assert json.loads(rows[2]["leaf_nbytes"]) == [20]
    documents = {"run": [read.schema.metadata[b"run"]]}
    documents |= {"site": [r["site"] for r in rows], "summaries": [r["summaries"] for r in rows]}
    for name, texts in documents.items():
        for text in texts:
            schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_short_streams_do_not_bloat_the_folder(tmp_path):
    """2,000 streams of ten 1 KB records are few files, of at most 1.2 times the data and 48 bytes a record."""
    random = np.random.default_rng(0)
    streams = []
    for number in range(2000):
        site = Site(f"layer_{number}/act", (Leaf("", (256,), "float32"),), (Column("step", "int64"),))
        data = random.standard_normal((10, 256)).astype(np.float32)
        streams.append(make_stream(site, [data], steps=range(10), first=10 * number))
    seal(MemorySource(streams), tmp_path / "run.arrow")
    files = list((tmp_path / "run.arrow").iterdir())
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) <= 1.2 * 2000 * 10 * 1024 + 48 * 20_000
    with ArrowSource(tmp_path / "run.arrow") as source:
        assert np.array_equal(source.streams[1234].leaf(0, 2, 9), streams[1234].leaf(0, 2, 9))


def test_the_same_records_give_the_same_bytes(tmp_path):
    """Sealing twice gives equal folders: nothing of the clock, the threads or the path is in them."""
    for name in ("a.arrow", "a much longer name.arrow"):
        seal(MemorySource(small_streams()), tmp_path / name, compression="zstd")
    first, second = ({f.name: f.read_bytes() for f in folder.iterdir()} for folder in tmp_path.iterdir())
    assert first == second


def test_noise_is_not_compressed(tmp_path):
    """A file that does not shrink by 5 % stays as it is, so that it can be mapped."""
    noise = np.random.default_rng(0).integers(0, 2**32, (100, 5000), np.uint32)
    source = MemorySource([make_stream(Site("n", (Leaf("", (5000,), "uint32"),)), [noise])])
    seal(source, tmp_path / "run.arrow", compression="zstd")
    assert (tmp_path / "run.arrow/stream-000000.arrow").stat().st_size > noise.nbytes
    with ArrowSource(tmp_path / "run.arrow") as read:
        assert not read.streams[0].leaf(0, 3, 5).flags.owndata


class EndlessStream:
    """A stream that makes its records when they are read: 256 MiB of them."""

    site = Site("large", (Leaf("", (1024, 64), "float32"),))
    records = 1024
    nbytes = 0

    def __init__(self, fail_at=None):
        self.fail_at = fail_at

    def summaries(self):
        return []  # sealing computes its own

    def leaf_nbytes(self, number):
        return self.records * self.site.record_nbytes * (number + 1)

    def index(self, start, stop):
        return make_index(self.records)[start:stop]

    def leaf(self, number, start, stop):
        if self.fail_at is not None and stop > self.fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return np.full((stop - start, 1024, 64), start + number, np.float32)

    def column(self, number, start, stop):
        return self.leaf(number, start, stop)


def test_memory_is_bounded(tmp_path):
    """256 MiB of records pass through less than 64 MiB of memory."""
    tracemalloc.start()
    try:
        seal(MemorySource([EndlessStream()]), tmp_path / "run.arrow")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_failure_leaves_nothing(tmp_path):
    """When the source fails half way, no folder stays, temporary or not."""
    with pytest.raises(SealingError, match=r"run\.arrow' cannot be sealed: .*Input/output error") as caught:
        seal(MemorySource([*small_streams(), EndlessStream(fail_at=600)]), tmp_path / "run.arrow")
    assert caught.value.path == str(tmp_path / "run.arrow")
    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_is_there_is_never_replaced(tmp_path, what):
    """A file, a folder with something in it, a link: sealing over it is refused, and it stays."""
    path = tmp_path / "run.arrow"
    if what == "file":
        path.write_bytes(b"old")
    elif what == "folder":
        (path / "notes").mkdir(parents=True)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(SealingError, match="exists"):
        seal(MemorySource(small_streams()), path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.arrow"]
    assert os.path.lexists(path)


def test_a_folder_that_is_not_there(tmp_path):
    """A path in no folder is one clear error."""
    with pytest.raises(SealingError, match="cannot be sealed"):
        seal(MemorySource([]), tmp_path / "nowhere" / "run.arrow")


def test_an_unknown_compression(tmp_path):
    """The message lists the compressions that there are."""
    with pytest.raises(SealingError, match="unknown compression 'gzip'; for Arrow there are 'lz4', 'zstd', None"):
        seal(MemorySource([]), tmp_path / "run.arrow", compression="gzip")


def test_a_source_that_breaks_its_word(tmp_path):
    """A block of another dtype or shape than the site says is refused, with the tap and the column."""
    stream = make_stream(Site("act", (Leaf("", (3,), "float32"),)), [np.zeros((2, 3))])
    for array in (np.zeros((2, 3)), np.zeros((2, 4), np.float32)):
        object.__setattr__(stream, "arrays", (array,))
        with pytest.raises(SealingError, match="tap 'act', data_0: the source gave float"):
            seal(MemorySource([stream]), tmp_path / "run.arrow")
    assert list(tmp_path.iterdir()) == []
