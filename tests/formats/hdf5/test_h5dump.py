"""Files as HDF5's own command-line tool reads them: version 1.10, which knows nothing of tracerec or of h5py."""

from __future__ import annotations

import re
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tracerec.formats.hdf5.merge import merge
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site

H5DUMP = shutil.which("h5dump") or ""

if not H5DUMP:
    pytest.skip("needs h5dump (Debian: hdf5-tools)", allow_module_level=True)


def h5dump(*arguments):
    """Returns what h5dump prints; fails where it says that anything is wrong."""
    done = subprocess.run([H5DUMP, *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stderr == b""
    return done.stdout.decode()


def numbers(path, dataset):
    """Returns the numbers of a dataset, as h5dump prints them without indices."""
    text = h5dump("-y", "-w", "0", "-m", "%.9g", "-d", dataset, path)
    data = text[text.index("DATA {") + 6 :].split("}")[0]
    return [float(word) for word in re.findall(r"[-+.\w]+", data)]


@pytest.mark.parametrize("compression", ["gzip", None])
def test_values(tmp_path, compression):
    """Numbers come out right, without a plugin, also those of bfloat16, float8_e5m2 and int4."""
    values = [1.0, -2.5, 0.25, 384.0, -0.0]
    names = ["float32", "float64", "float16", "bfloat16", "float8_e5m2", "int4", "uint8"]
    streams = []
    for name in names:
        numbers_of = [1, -8, 7, 0, 3] if name == "int4" else [0, 255, 7, 1, 2] if name == "uint8" else values
        array = np.array(numbers_of).astype(getattr(ml_dtypes, name, name))
        streams.append(make_stream(Site(name, (Leaf("", (), name),)), [array], steps=range(5)))
    seal(MemorySource(streams), tmp_path / "run.h5", compression=compression)
    for number, stream in enumerate(streams):
        expected = stream.arrays[0].astype(np.float64).tolist()
        assert numbers(tmp_path / "run.h5", f"/streams/{number:06}/data_0") == expected


def test_everything_of_a_file(tmp_path):
    """A file with a group, a dataset and an attribute of each kind, merged from two parts, is dumped as a whole."""
    site = Site(
        "encoder/act",
        (Leaf("['k']", (2,), "uint32", key_impl="rbg"), Leaf("['c']", (1, 2), "complex64", number=1)),
        (Column("step", "int64"), Column("ok", "bool"), Column("bits", "float8_e4m3fn", (3,))),
    )
    arrays = [np.arange(8).reshape(4, 2), np.full((4, 1, 2), 1.5 - 2j)]
    stream = make_stream(site, arrays, [range(4), [True, False, True, True], np.ones((4, 3))])
    empty = make_stream(Site("empty", (Leaf("", (0, 3), "float32"),)), [np.zeros((2, 0, 3))])
    for number in range(2):
        seal(MemorySource([stream, empty]), tmp_path / f"{number}.h5", compression="gzip")
    parts = [Hdf5Source(tmp_path / f"{number}.h5") for number in range(2)]
    merge(parts, tmp_path / "run.h5", info=parts[0].info, compression="gzip")
    for part in parts:
        part.close()
    text = h5dump(tmp_path / "run.h5")
    for word in ("tracerec_format", "crc32c", "summaries", "checksums", '"encoder/act"', "data_1", "kwarg_2", "TRUE"):
        assert word in text
    assert text.count("1.5") == 16
    assert text.count("-2") >= 16


@pytest.mark.parametrize(
    "name", ["a/b", "/a//b/", "trailing...", "..", "β😀", "nul\0inside", "new\nline", '"quoted"', "x" * 70_000]
)
def test_names(tmp_path, name):
    """Whatever the tap is called, the file is dumped as a whole, and the name is its group's attribute."""
    site = Site(name, (Leaf(f"['{name}']", (), "float32"),), (Column(name, "float32"),))
    seal(MemorySource([make_stream(site, [[1, 2]], [[3, 4]])]), tmp_path / "run.h5", compression=None)
    text = h5dump("-w", "0", tmp_path / "run.h5")
    if name.isascii() and name.isprintable() and '"' not in name:
        assert f'(0): "{name}"' in text
    assert 'GROUP "000000"' in text
    assert numbers(tmp_path / "run.h5", "/streams/000000/kwarg_0") == [3, 4]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_there_is_without_the_plugin(tmp_path, compression):
    """Of a file compressed with Blosc everything but the compressed data can be listed, and the index be read."""
    values = np.zeros((600, 100), np.float32)
    stream = make_stream(Site("act", (Leaf("", (100,), "float32"),)), [values], steps=range(600))
    seal(MemorySource([stream]), tmp_path / "run.h5", compression=compression)
    assert "FILTER_ID 32001" in h5dump("-H", "-p", tmp_path / "run.h5")
    assert bytes(map(int, numbers(tmp_path / "run.h5", "/index"))).startswith(b'{"checksums":[0,1]')
