"""The superblock that a damaged HDF5 file gets, and objects found by their headers."""

from __future__ import annotations

import h5py
import pytest

from tests.verifying.breaking import intact
from tracerec.salvaging.objects import find_objects
from tracerec.salvaging.patched import PatchedFile, lookup3, object_headers


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xDEADBEEF),
        (b"Four score and seven years ago", 0x17770551),
    ],
)
def test_lookup3(data, expected):
    """The checksums that Bob Jenkins' own self-test of 2006 has (lookup3.c, driver5)."""
    assert lookup3(data) == expected


def test_the_superblock_is_what_hdf5_wrote(tmp_path):
    """Byte for byte, from the file's length and the root's address alone."""
    path = intact("h5-lz4", tmp_path)
    written = path.read_bytes()
    with PatchedFile(str(path)) as patched:
        assert patched.read(48) == written[:48]
        assert patched.read() == written[48:]
        assert patched.seek(-5, 2) == len(written) - 5
        assert patched.read(100) == written[-5:]


@pytest.mark.parametrize(
    "damage",
    [lambda d: bytes(48) + d[48:], lambda d: d[:-500], lambda d: b"x" + d[1:]],
    ids=["no superblock", "cut off", "no signature"],
)
def test_what_hdf5_refuses_is_opened(tmp_path, damage):
    """Without a superblock, with one that lies, and cut off at the end."""
    path = intact("h5-lz4", tmp_path)
    written = path.read_bytes()
    path.write_bytes(damage(written))
    with pytest.raises(OSError, match="open"):
        h5py.File(path)
    with h5py.File(PatchedFile(str(path)), "r") as file:
        assert sorted(file["streams"]) == ["000000", "000001", "000002", "000003", "000004"]


def test_the_end_reads_as_zeros(tmp_path):
    """What was cut off is as long as it was."""
    path = intact("h5-lz4", tmp_path)
    written = path.read_bytes()
    path.write_bytes(written[:-300])
    with PatchedFile(str(path)) as patched:
        assert patched.seek(0, 2) == len(written)
        patched.seek(-301, 2)
        assert patched.read() == written[-301:-300] + bytes(300)


def test_objects_are_found_without_a_root(tmp_path, monkeypatch):
    """Groups of streams, in the order of the file, and the checksums; headers on the border of what is read at once."""
    path = intact("h5-none", tmp_path)
    with h5py.File(path) as file:
        checksums = file["checksums"][:].tolist()
    monkeypatch.setattr("tracerec.salvaging.patched._WINDOW", 64)
    addresses = list(object_headers(str(path)))
    data = path.read_bytes()
    assert addresses == [n for n in range(len(data)) if data[n : n + 5] == b"OHDR\x02"]
    path.write_bytes(data[:48] + bytes(60) + data[108:])
    objects = find_objects(str(path))
    assert objects is not None
    assert [min(group) for group in objects.groups] == [b"data_0"] * 5
    assert [found.tolist() for found in objects.checksums] == [checksums]
    objects.file.close()


def test_no_object_is_found_in_noise(tmp_path):
    """Bytes that look like headers are none."""
    (tmp_path / "noise").write_bytes(b"OHDR\x02" * 1000)
    assert find_objects(str(tmp_path / "noise")) is None
