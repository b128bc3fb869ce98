"""Recordings from anyone: nothing outside of them is opened, and what would be is named."""

from __future__ import annotations

import os
import time
import tracemalloc

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.test_reading import replace
from tests.verifying.breaking import intact, with_rows
from tests.verifying.test_repair import records_of
from tools.fuzzed_recordings import made
from tracerec.errors import TracerecError
from tracerec.journal import layout
from tracerec.repairing import repair
from tracerec.salvaging.worker import work
from tracerec.verifying import verify

DATA = "streams/000000/data_0"


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The work is done in this process, which is faster."""
    monkeypatch.setattr("tracerec.repairing.run_order", lambda order: work(order, lambda: None))


def virtual(file, name, old):
    """A dataset made of another file's."""
    made_of = h5py.VirtualLayout(old.shape, old.dtype)
    made_of[:] = h5py.VirtualSource("secret.h5", "x", old.shape)
    file.create_virtual_dataset(name, made_of)


OUTSIDE = {
    "external link": lambda file, name, _: file.__setitem__(name, h5py.ExternalLink("secret.h5", "/x")),
    "soft link": lambda file, name, _: file.__setitem__(name, h5py.SoftLink("/streams/000000/index")),
    "virtual dataset": virtual,
    "external storage": lambda file, name, old: file.create_dataset(
        name, old.shape, old.dtype, external=[("secret.bin", 0, h5py.h5f.UNLIMITED)]
    ),
    "unknown filter": lambda file, name, old: file.create_dataset(name, data=old, chunks=old.shape, compression="lzf"),
    "scale-offset filter": lambda file, name, old: file.create_dataset(name, data=old, chunks=old.shape, scaleoffset=3),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_nothing_leads_out_of_an_hdf5_file(tmp_path, monkeypatch, what):
    """It is named by verify; repair takes the other streams, and nothing from outside."""
    monkeypatch.chdir(tmp_path)
    path, truth = intact("h5-none", tmp_path), made("h5-none").truth
    with h5py.File(path) as file:
        old = file[DATA][...]
    with h5py.File("secret.h5", "w") as file:
        file["x"] = np.full(old.shape, 7, old.dtype)
    (tmp_path / "secret.bin").write_bytes(b"\7" * old.nbytes)
    replace(path, DATA, OUTSIDE[what])
    found = verify(path)
    assert set(found.counts) == {"stays-inside"}
    assert found.faults[0].tap == "encoder/act"
    done = repair(path)
    assert done.lost == {"encoder/act": 43}
    assert records_of(done.result).items() < truth.items()


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda p: p.symlink_to("/dev/zero"), lambda p: p.symlink_to(p)],
    ids=["pipe", "folder", "device", "loop"],
)
@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("arrow", "streams.arrow"),
        ("arrow", "streams.crc32c"),
        ("arrow", "pool-000001.arrow"),
        ("journal", "manifest.json"),
        ("journal", "segment-000001.frames"),
        ("parts", "manifest.json"),
        ("parts", "part-000001.h5"),
        ("parts-arrow", "part-000001.arrow/streams.arrow"),
        ("live", "part-000000.h5"),
    ],
)
def test_files_that_are_none(tmp_path, form, name, make):
    """A pipe is not waited for, a device not read to its end, a link not followed: a fault, or a clear error."""
    path = intact(form, tmp_path)
    (path / name).unlink()
    make(path / name)
    start = time.monotonic()
    found = tried(verify, path)
    assert found is None or not found.ok
    done = tried(repair, path)
    assert done is None or records_of(done.result).items() <= made(form).truth.items()
    assert time.monotonic() - start < 20


def tried(call, path):
    """What a call returns; None where it refuses, with one clear sentence."""
    try:
        return call(path)
    except TracerecError as error:
        text = str(error)
    assert str(path) in text
    return None


def test_a_part_that_is_a_link_is_not_read(tmp_path):
    """Also where it leads to a recording."""
    path, other = intact("parts", tmp_path), intact("parts", tmp_path / "other")
    (path / "part-000001.h5").unlink()
    (path / "part-000001.h5").symlink_to(other / "part-000001.h5")
    found = verify(path)
    assert "readable" in found.counts
    done = repair(path)
    assert len(records_of(done.result)) < 223


def test_names_that_are_nearly_numbers(tmp_path):
    """A number as large as can be written makes no work."""
    path = intact("killed", tmp_path)
    (path / "segment-999999999999.frames").write_bytes(layout.segments(path)[0].read_bytes())
    (path / "part-999999999998.h5").write_bytes(b"")
    start = time.monotonic()
    assert not verify(path).ok
    done = repair(path)
    assert records_of(done.result) == made("killed").truth
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("records", [1 << 30, 1 << 40])
def test_a_number_of_records_beyond_all_bounds(tmp_path, records):
    """The index of an Arrow folder says it; what is said of it takes neither time nor memory by the record."""
    path = with_rows(tmp_path, lambda rows: rows[-1].update(records=records))
    tracemalloc.start()
    try:
        result = verify(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not result.ok
    assert "index-count" in {fault.invariant for fault in result.faults}
    assert peak < 64 << 20
