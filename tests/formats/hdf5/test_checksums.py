"""Damage that HDF5 does not notice: checksums find it, in the data and in what the file says of itself."""

from __future__ import annotations

import json

import crc32c
import h5py
import numpy as np
import pytest

from tests.formats.hdf5.checksums import set_chunk_checksum, set_sums, stored_chunks
from tests.formats.hdf5.test_reading import read_all
from tests.memory_source import MemorySource, make_stream
from tracerec.errors import TraceFormatError
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site

DATA = "streams/000000/data_0"


@pytest.fixture(params=[None, "gzip", "lz4"])
def path(request, tmp_path):
    """A file of two streams: 700 records of 4 KB in several chunks, a kwarg, an empty leaf; and one of 3 scalars."""
    values = (np.arange(700 * 1000) // 10).astype(np.float32).reshape(700, 1000)
    site = Site("act", (Leaf("", (1000,), "float32"), Leaf("e", (0,), "int8", number=1)), (Column("lr", "float64"),))
    large = make_stream(site, [values, np.zeros((700, 0))], [np.arange(700.0)], steps=range(700))
    small = make_stream(Site("loss\x1b[2J", (Leaf("", (), "float32"),)), [[1, 2, 3]])
    seal(MemorySource([large, small]), tmp_path / "run.h5", compression=request.param)
    return tmp_path / "run.h5"


def flip(path, chunk, at=-1):
    """Flips a bit of a stored chunk, in the file itself."""
    content = bytearray(path.read_bytes())
    where = content.index(chunk)
    assert content.count(chunk) == 1
    content[(where + len(chunk) + at) if at < 0 else where + at] ^= 4
    path.write_bytes(content)


def test_every_chunk_has_its_checksum(path):
    """/checksums are the CRC-32C of the stored bytes of all chunks, found by the offsets in the index."""
    with h5py.File(path) as file:
        lines = [json.loads(line) for line in file["index"][:].tobytes().splitlines()]
        sums = file["checksums"][:].tolist()
        assert [len(line["checksums"]) for line in lines] == [4, 2]
        for line, names in zip(lines, (["index", "data_0", "data_1", "kwarg_0"], ["index", "data_0"]), strict=True):
            for name, first in zip(names, line["checksums"], strict=True):
                stored = list(stored_chunks(file["streams"][line["group"]][name]))
                assert sums[first : first + len(stored)] == [crc32c.crc32c(data) for _, data in stored]
        count = sum(len(list(stored_chunks(d))) for group in file["streams"].values() for d in group.values())
        assert len(sums) == count > 6


def test_what_the_file_says_of_itself_has_checksums(path):
    """The root's attribute has the CRC-32C of the run, the index, the summaries and the checksums."""
    with h5py.File(path) as file:
        expected = {name: crc32c.crc32c(file[name][:].tobytes()) for name in ("checksums", "index", "summaries")}
        expected["run"] = crc32c.crc32c(file.attrs["run"])
        assert json.loads(file.attrs["crc32c"]) == expected


@pytest.mark.parametrize("at", [40, -1])
def test_a_flipped_bit_in_a_chunk(path, at):
    """A bit that flips on the disk is an error that names file, tap, dataset and chunk; other chunks are still read."""
    with h5py.File(path) as file:
        corner, chunk = list(stored_chunks(file[DATA]))[1]
        rows = file[DATA].chunks[0]
    assert corner == (rows, 0)
    flip(path, chunk, at)
    with Hdf5Source(path) as source:
        stream = source.streams[0]
        with pytest.raises(TraceFormatError) as caught:
            stream.leaf(0, rows, rows + 1)
        text = str(caught.value)
        assert f"/{DATA}: chunk at ({rows}, 0) of tap 'act': its CRC-32C is " in text
        assert str(path) in text
        assert stream.leaf(0, 0, rows)[-1, 9] == (rows - 1) * 100
        (damage,) = stream.damage()
        assert (damage.dataset, damage.chunk, damage.checksum) == ("data_0", (rows, 0), True)
        assert (damage.start, damage.stop) == (rows, min(2 * rows, 700))
        assert list(source.streams[1].damage()) == []
        assert list(source.damage()) == []


def test_a_chunk_that_does_not_decompress(path):
    """A chunk whose checksum is right may still be none: it is found as that."""
    with h5py.File(path, "r+") as file:
        file[DATA].id.write_direct_chunk((0, 0), b"no chunk")
        compressed = bool(file[DATA].id.get_create_plist().get_nfilters())
    set_chunk_checksum(path, 1, b"no chunk")
    with Hdf5Source(path) as source:
        (damage,) = source.streams[0].damage()
        # Without compression HDF5 gives a chunk of the right size all the same.
        assert (damage.start, damage.checksum) == (0, not compressed)


def test_control_characters_of_a_tap_are_escaped(path):
    """The name of the tap in a message cannot move a terminal's cursor."""
    with h5py.File(path) as file:
        ((_, chunk),) = stored_chunks(file["streams/000001/index"])
    flip(path, chunk)
    with pytest.raises(TraceFormatError, match=r"of tap 'loss\\x1b\[2J': its CRC") as caught:
        read_all(path)
    assert str(caught.value).isprintable()


def test_a_changed_run(path):
    """A digit of the run that changed is refused when the file is opened."""
    with h5py.File(path, "r+") as file:
        file.attrs["run"] = np.bytes_(file.attrs["run"].replace(b'"pid":4711', b'"pid":4712'))
    with pytest.raises(TraceFormatError, match="attribute run: its CRC-32C is"):
        Hdf5Source(path)


@pytest.mark.parametrize("name", ["index", "summaries", "checksums"])
def test_a_changed_text(path, name):
    """A changed list of streams is refused when the file is opened, other texts when they are read."""
    with h5py.File(path, "r+") as file:
        values = file[name][:]
        del file[name]
        values[:] = np.frombuffer(values.tobytes().replace(b"1", b"2", 1), values.dtype)
        if name == "checksums":
            values[1] ^= 1
        file.create_dataset(name, data=values, chunks=values.shape)
    with pytest.raises(TraceFormatError, match=f"/{name}: its CRC-32C is"):
        read_all(path)
    if name != "index":
        with Hdf5Source(path) as source:
            (found,) = source.damage()
            assert f"/{name}: its CRC-32C is" in found


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[]", b'{"index":1}', b"{", b'{"run":"a"}'])
def test_no_checksums_of_texts(path, value):
    """A file of this version must have them, whole."""
    with h5py.File(path, "r+") as file:
        del file.attrs["crc32c"]
        if value is not None:
            file.attrs["crc32c"] = np.bytes_(value)
    with pytest.raises(TraceFormatError, match="attribute crc32c is missing or damaged"):
        Hdf5Source(path)


@pytest.mark.parametrize("values", [np.zeros(2, "u4"), np.zeros(0, "u4"), np.zeros(90, "f4"), None])
def test_no_checksums_of_chunks(path, values):
    """/checksums that are missing, too few, or something else: one clear error, and no data without a check."""
    with h5py.File(path, "r+") as file:
        del file["checksums"]
        if values is not None:
            file.create_dataset("checksums", data=values, chunks=values.shape if len(values) else None)
    if values is not None:
        set_sums(path)
    with pytest.raises(TraceFormatError, match=r"/checksums: |chunks, but \d checksums|not 00000000"):
        read_all(path)


def test_checksums_are_not_compressed(path):
    """Compressed, they could be a bomb."""
    with h5py.File(path, "r+") as file:
        values = file["checksums"][:]
        del file["checksums"]
        file.create_dataset("checksums", data=values, compression="gzip")
    with pytest.raises(TraceFormatError, match="/checksums: is compressed"):
        read_all(path)


def test_files_of_older_versions_have_none(path):
    """A file of version 1.1 is read without: it has no checksums, nor lists them."""
    whole = read_all(path)
    with h5py.File(path, "r+") as file:
        lines = [json.loads(line) for line in file["index"][:].tobytes().splitlines()]
        for line in lines:
            del line["checksums"], line["site_id"]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        del file["index"], file["checksums"], file.attrs["crc32c"]
        file.create_dataset("index", data=np.frombuffer(text, np.uint8), chunks=(len(text),))
        file.attrs["format_version"] = np.bytes_("1.1")
        run = json.loads(file.attrs["run"])
    with Hdf5Source(path) as source:
        assert source.info.format_version == (1, 1)
        assert source.info.run_id == run["run_id"]
        assert source.streams[0].site_id == source.streams[0].site.id
        assert list(source.damage()) == []
    assert read_all(path) != whole  # the version itself is in the digest
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = np.bytes_("1.2")
    with pytest.raises(TraceFormatError, match="attribute crc32c is missing"):
        Hdf5Source(path)
