"""A sealed file as others see it: plain h5py, the directory it lies in, the bytes on the disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tracemalloc

import h5py
import hdf5plugin
import ml_dtypes
import numpy as np
import pytest

from tests.memory_source import MemorySource, make_index, make_stream
from tracerec.errors import SealingError
from tracerec.formats.hdf5.layout import MAX_CHUNK
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site

assert hdf5plugin.FILTERS["blosc"] == 32001  # imported for its effect: h5py can then read Blosc


def sealed(path, dtype, array, compression="lz4"):
    """Seals one leaf ``(records, *shape)`` and returns the path."""
    site = Site("tap", (Leaf("['w']", array.shape[1:], dtype),))
    seal(MemorySource([make_stream(site, [array], steps=range(len(array)))]), path, compression=compression)
    return path


def smooth(records, *shape):
    """Returns float32 numbers that compress: a random walk rounded to bfloat16."""
    random = np.random.default_rng(0)
    walk = random.standard_normal((records, *shape)).cumsum(axis=0)
    return walk.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip", None])
def test_plain_h5py_reads_values(tmp_path, compression):
    """Two lines of plain h5py give the numbers, whatever the compression; several chunks, last one partial."""
    values = smooth(999, 7, 131)
    sealed(tmp_path / "run.h5", "float32", values, compression)
    with h5py.File(tmp_path / "run.h5") as file:
        dataset = file["streams/000000/data_0"]
        assert dataset.id.get_num_chunks() > 1
        assert np.array_equal(dataset[:], values)
        assert np.array_equal(dataset[3:500:7], values[3:500:7])
        assert file["streams/000000/index"]["step"].tolist() == list(range(999))
        properties = dataset.id.get_create_plist()
        codes = [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
    assert codes == {"lz4": [32001], "zstd": [32001], "gzip": [h5py.h5z.FILTER_SHUFFLE, 1], None: []}[compression]


@pytest.mark.parametrize(
    ("name", "numbers", "shown"),
    [
        ("bfloat16", [1.0, -2.5, 2.0**127, float("inf")], "float32"),
        ("float8_e5m2", [1.0, -2.5, 57344.0, float("-inf")], "float32"),
        ("float16", [1.0, -2.5, 65504.0], "float16"),
        ("int4", [-8, -1, 0, 7], "int8"),
        ("uint4", [0, 1, 15], "uint8"),
        ("int2", [-2, -1, 0, 1], "int8"),
        ("bool", [True, False, True], "bool"),
        ("complex64", [1 + 2j, -3.5j], "complex64"),
        ("complex128", [1 + 2j, 1e300], "complex128"),
        ("uint64", [0, 2**64 - 1], "uint64"),
    ],
)
def test_plain_h5py_reads_numbers_of_small_types(tmp_path, name, numbers, shown):
    """bfloat16, float8_e5m2, int4 and the rest are numbers to plain h5py, not bits."""
    sealed(tmp_path / "run.h5", name, np.array(numbers, getattr(ml_dtypes, name, name)))
    with h5py.File(tmp_path / "run.h5") as file:
        dataset = file["streams/000000/data_0"]
        assert dataset.attrs["dtype"].decode() == name
        read = dataset[:]
    # numpy's smallest float that holds an 8-bit one differs between h5py versions; the numbers do not.
    assert read.dtype == shown or (name.startswith("float8") and read.dtype.kind == "f")
    assert read.tolist() == numbers


def test_other_small_floats_decode_by_the_dtype_attribute(tmp_path):
    """A float8_e4m3fn leaf is its bits; numpy with ml_dtypes decodes it by the name beside it."""
    numbers = [1.0, -448.0, 256.0, 0.015625]
    sealed(tmp_path / "run.h5", "float8_e4m3fn", np.array(numbers).astype(ml_dtypes.float8_e4m3fn))
    with h5py.File(tmp_path / "run.h5") as file:
        dataset = file["streams/000000/data_0"]
        assert dataset.dtype == np.uint8
        assert dataset[:].view(dataset.attrs["dtype"]).astype(float).tolist() == numbers


def test_gzip_needs_no_plugin(tmp_path):
    """A gzip file is read by a process that has h5py and nothing else."""
    values = smooth(50, 40)
    sealed(tmp_path / "run.h5", "float32", values, "gzip")
    code = "import h5py, sys; print(float(h5py.File(sys.argv[1])['streams/000000/data_0'][:].sum(dtype='f8')))"
    environment = {**os.environ, "HDF5_PLUGIN_PATH": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path / "run.h5")]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert float(shown) == values.sum(dtype=np.float64)


def test_attributes_and_index_name_everything(tmp_path):
    """The root says what the file is; groups and datasets say what they hold; /index lists all streams."""
    site = Site(
        "encoder/act\0",
        (Leaf("['k']", (2,), "uint32", key_impl="threefry2x32"), Leaf("['w']", (), "float32", number=1)),
        (Column("step", "int64", python="int"), Column("lr", "float64", python="float")),
    )
    stream = make_stream(site, [np.zeros((3, 2)), [1, 2, 6]], [[7, 5, 6], [0.1, 0.2, 0.3]])
    source = MemorySource([stream, make_stream(Site("other", ()), [], steps=range(2))])
    seal(source, tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["tracerec_format"] == b"hdf5"
        assert file.attrs["format_version"] == b"1.3"
        assert json.loads(file.attrs["run"])["run_id"] == source.info.run_id
        group = file["streams/000000"]
        assert sorted(group) == ["data_0", "data_1", "index", "kwarg_1"]
        assert group.attrs["tap"] == b"encoder/act\\u0000"
        assert json.loads(group.attrs["site"]) == site.to_json()
        assert dict(group["data_0"].attrs) == {"leaf": b"['k']", "dtype": b"uint32", "key_impl": b"threefry2x32"}
        assert dict(group["kwarg_1"].attrs) == {"kwarg": b"lr", "dtype": b"float64"}
        assert group["kwarg_1"][:].tolist() == [0.1, 0.2, 0.3]
        lines = [json.loads(line) for line in file["index"][:].tobytes().splitlines()]
        assert [line["site"]["name"] for line in lines] == ["encoder/act\0", "other"]
        assert [line["records"] for line in lines] == [3, 2]
        assert [line["steps"] for line in lines] == [[5, 7], [0, 1]]
        stored = [group[name].id.get_storage_size() for name in group]
        assert lines[0]["nbytes"] == sum(stored)
        assert lines[0]["leaf_nbytes"] == [group[f"data_{n}"].id.get_storage_size() for n in range(2)]
        summaries = [json.loads(line) for line in file["summaries"][:].tobytes().splitlines()]
        assert summaries[0][1]["last"]["mean"] == 6.0
        assert summaries[0][1]["spark"] == [1.0, 2.0, 6.0]
        assert summaries[1] == []


@pytest.mark.parametrize(
    ("records", "shape", "chunk"),
    [
        (10, (256,), (10, 256)),  # a short stream: one chunk, no row more than there are
        (4096, (1024,), (128, 1024)),  # 512 KiB of whole records
        (3, (512, 512), (1, 512, 512)),  # a record of just 1 MiB is whole
        (2, (1024, 1024), (1, 256, 1024)),  # a larger one is cut along its first axis
        (2, (3, 2, 600_000), (1, 1, 1, 200_000)),  # and further along, where that is not enough
    ],
)
def test_chunks(tmp_path, records, shape, chunk):
    """Chunks hold whole records up to 512 KiB; records beyond 1 MiB are cut along leading axes."""
    sealed(tmp_path / "run.h5", "float32", np.zeros((records, *shape), np.float32))
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["streams/000000/data_0"].chunks == chunk
        assert np.prod(chunk) * 4 <= MAX_CHUNK


def test_noise_is_not_compressed(tmp_path):
    """A dataset whose first chunk does not shrink by 5 % has no filter."""
    noise = np.random.default_rng(0).integers(0, 2**32, (100, 5000), np.uint32)
    sealed(tmp_path / "run.h5", "uint32", noise, "zstd")
    with h5py.File(tmp_path / "run.h5") as file:
        dataset = file["streams/000000/data_0"]
        assert dataset.id.get_create_plist().get_nfilters() == 0
        assert np.array_equal(dataset[:], noise)
        assert file["streams/000000/index"].id.get_create_plist().get_nfilters() == 1


def test_short_streams_do_not_bloat_the_file(tmp_path):
    """2,000 streams of ten 1 KB records take at most 1.2 times the data and 48 bytes a record, uncompressed."""
    random = np.random.default_rng(0)
    streams = []
    for number in range(2000):
        site = Site(f"layer_{number}/act", (Leaf("", (256,), "float32"),), (Column("step", "int64"),))
        data = random.standard_normal((10, 256)).astype(np.float32)
        streams.append(make_stream(site, [data], steps=range(10), first=10 * number))
    seal(MemorySource(streams), tmp_path / "run.h5", compression=None)
    payload = 2000 * 10 * 1024
    assert payload < (tmp_path / "run.h5").stat().st_size <= 1.2 * payload + 48 * 20_000


def test_the_same_records_give_the_same_bytes(tmp_path):
    """Sealing twice gives equal files: nothing of the clock, the threads or the path is in them."""
    streams = [
        make_stream(Site(f"tap{n}", (Leaf("", (700,), "float32"),)), [smooth(2000, 700) + n], steps=range(2000))
        for n in range(3)
    ]
    files = []
    for name in ("a.h5", "a much longer name.h5"):
        seal(MemorySource(streams), tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


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
        seal(MemorySource([EndlessStream()]), tmp_path / "run.h5")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_failure_leaves_what_was_there(tmp_path):
    """When the source fails half way, the old file stays, and nothing else."""
    path = tmp_path / "run.h5"
    path.write_bytes(b"the old file")
    source = MemorySource([EndlessStream(fail_at=600)])
    with pytest.raises(SealingError, match=r"run\.h5' cannot be sealed: .*Input/output error") as caught:
        seal(source, path)
    assert caught.value.path == str(path)
    assert isinstance(caught.value.__cause__, OSError)
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    assert path.read_bytes() == b"the old file"


def test_an_old_file_is_replaced(tmp_path):
    """A file at the path is replaced by the sealed one."""
    path = tmp_path / "run.h5"
    path.write_bytes(b"the old file")
    sealed(path, "float32", np.ones((2, 2), np.float32))
    assert h5py.is_hdf5(path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_a_folder_that_is_not_there(tmp_path):
    """A path in no folder is one clear error."""
    with pytest.raises(SealingError, match="cannot be sealed"):
        sealed(tmp_path / "nowhere" / "run.h5", "float32", np.ones((2, 2), np.float32))


def test_an_unknown_compression(tmp_path):
    """The message lists the compressions that there are."""
    with pytest.raises(SealingError, match="unknown compression 'lzma'; there are 'lz4', 'zstd', 'gzip', None"):
        sealed(tmp_path / "run.h5", "float32", np.ones((2, 2), np.float32), "lzma")


def test_a_source_that_breaks_its_word(tmp_path):
    """A block of another dtype or shape than the site says is refused, with the tap and the dataset."""
    stream = make_stream(Site("act", (Leaf("", (3,), "float32"),)), [np.zeros((2, 3))])
    for array in (np.zeros((2, 3)), np.zeros((2, 4), np.float32)):
        object.__setattr__(stream, "arrays", (array,))
        with pytest.raises(SealingError, match="tap 'act', data_0: the source gave float"):
            seal(MemorySource([stream]), tmp_path / "run.h5")
    assert list(tmp_path.iterdir()) == []
