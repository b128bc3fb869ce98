"""Pages of mapped files go back to the system, and what they held is read again."""

from __future__ import annotations

import gc
import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tracerec.formats.arrow.files import Place, checksum_of, map_file
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.resident import RESIDENT, Resident
from tracerec.model import Leaf, Site
from tracerec.trace import open_trace

SITE = Site("big", (Leaf("", (1 << 18,), "float32"),))


def mapped_bytes(path):
    """Returns how many bytes of a file are in this process's memory."""
    found = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.fixture
def file(tmp_path):
    """A file of 4 MiB of random bytes."""
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(4 << 20))
    return path


@pytest.mark.parametrize("kind", ["array", "mmap"])
def test_pages_go_and_come_back(file, kind):
    """The oldest mapping's first; arrays of it hold the same as before."""
    resident = Resident(most=6 << 20)
    expected = np.fromfile(file, np.uint8)

    def opened():
        if kind == "array":
            mapping = map_file(Place(str(file.parent), file.name))
            return mapping, mapping[100:]
        with file.open("rb") as opened:
            mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return mapping, np.frombuffer(mapping, np.uint8)[100:]

    before = mapped_bytes(file)
    one, view = opened()
    resident.read(one, 4 << 20)
    assert int(view.sum(dtype=np.int64)) == int(expected[100:].sum(dtype=np.int64))
    assert mapped_bytes(file) - before > 3 << 20
    other, _ = opened()
    resident.read(other, 4 << 20)
    assert mapped_bytes(file) - before < 1 << 20
    assert resident.nbytes == 4 << 20
    np.testing.assert_array_equal(view, expected[100:])


def test_mappings_that_are_gone(file):
    """They are forgotten, and memory that has their address is left alone."""
    resident = Resident(most=6 << 20)
    for _ in range(20):
        mapping = map_file(Place(str(file.parent), file.name))
        resident.read(mapping, 4 << 20)
        del mapping
        gc.collect()
        kept = np.full(4 << 20, 7, np.uint8)
        resident.read(kept, 4 << 20)
        assert (kept == 7).all()
        assert resident.nbytes <= 6 << 20


def test_an_arrow_recording_is_read_in_little_memory(tmp_path):
    """Reading 192 MiB tensor by tensor, and its checksum, keeps a third of it at most."""
    values = np.random.default_rng(0).normal(size=(192, 1 << 18)).astype(np.float32)
    seal_arrow(MemorySource([make_stream(SITE, [values])]), tmp_path / "run.arrow")
    data = tmp_path / "run.arrow" / "stream-000000.arrow"
    most = 0
    with open_trace(tmp_path / "run.arrow") as trace:
        for number, record in enumerate(trace.records()):
            assert record.value.tobytes() == values[number].tobytes()
            most = max(most, mapped_bytes(data))
    assert (32 << 20) < most < (80 << 20)
    mapping = map_file(Place(str(data.parent), data.name))
    sizes = []
    checksum_of(mapping, lambda _: sizes.append(mapped_bytes(data)))
    assert max(sizes) < 80 << 20
    assert RESIDENT.nbytes > 0


def test_a_mapping_larger_than_all(file):
    """It is given back when the next one is read."""
    resident = Resident(most=1 << 20)
    before = mapped_bytes(file)
    one, other = (map_file(Place(str(file.parent), file.name)) for _ in range(2))
    for mapping in (one, other):
        resident.read(mapping, 4 << 20)
        mapping.sum(dtype=np.int64)
        assert (3 << 20) < mapped_bytes(file) - before < (5 << 20)
