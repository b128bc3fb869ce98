"""Parts become one file: the same records and summaries as sealing at once, and chunks copied where they can be."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import sys
import textwrap
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.hdf5.checksums import stored_chunks
from tests.formats.hdf5.test_seal import EndlessStream, smooth
from tests.formats.pieces import split
from tests.formats.test_contract import assert_array, assert_same, masked, random_elements, traces
from tests.memory_source import MemorySource, MemoryStream, make_stream
from tracerec.errors import SealingError, TraceFormatError
from tracerec.formats.hdf5.merge import merge
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.pool import Pool
from tracerec.model import Column, Leaf, Site

DATA = "streams/000000/data_0"


def trace(records, width=1000, *, compressible=True):
    """Returns one stream of float32 rows, with a kwarg."""
    values = smooth(records, width) if compressible else random_elements("float32", (records, width))
    site = Site("act", (Leaf("", (width,), "float32"),), (Column("step", "int64"), Column("lr", "float64")))
    return MemorySource([make_stream(site, [values], [range(records), np.arange(records) / 7])])


def sealed_pieces(folder, pieces, *, counting=False, **options):
    """Seals pieces as parts; each is told how many records came before it, if asked."""
    before: dict[int, int] = {}
    parts = []
    for number, piece in enumerate(pieces):
        path = folder / f"part-{number:06}.h5"
        seal(piece, path, before=dict(before) if counting else None, **options)
        for stream in piece.streams:
            before[stream.site.id] = before.get(stream.site.id, 0) + stream.records
        parts.append(Hdf5Source(path))
    return parts


def merged(folder, pieces, **options):
    """Seals and merges pieces; returns what was copied, and the path."""
    counting = options.pop("counting", False)
    parts = sealed_pieces(folder, pieces, counting=counting, **options)
    done = merge(parts, folder / "run.h5", info=pieces[0].info, **options)
    for part in parts:
        part.close()
    return done, folder / "run.h5"


def text_of(path, name):
    """Returns a dataset of texts."""
    with h5py.File(path) as file:
        return file[name][:].tobytes()


def assert_as_sealed_at_once(folder, path, source, **options):
    """Asserts that a merged file has the records, the steps and the summaries of one that was sealed at once."""
    seal(source, folder / "whole.h5", **options)
    with Hdf5Source(path) as read, Hdf5Source(folder / "whole.h5") as whole:
        assert_same(read, whole)
        assert [stream.steps for stream in read.streams] == [stream.steps for stream in whole.streams]
        assert [list(stream.damage()) for stream in read.streams] == [[] for _ in read.streams]
    assert text_of(path, "summaries") == text_of(folder / "whole.h5", "summaries")


@pytest.mark.parametrize("compression", ["lz4", "gzip", None])
def test_aligned_parts_are_copied(tmp_path, compression):
    """Where parts hold whole chunks of records, every chunk of the data is copied byte for byte."""
    source = trace(131 * 6)
    done, path = merged(tmp_path, split(source, [1 / 3]), compression=compression)
    assert_as_sealed_at_once(tmp_path, path, source, compression=compression)
    with h5py.File(path) as file, h5py.File(tmp_path / "whole.h5") as whole:
        assert file[DATA].chunks == whole[DATA].chunks == (131, 1000)
        stored = [data for _, data in stored_chunks(file[DATA])]
        assert stored == [data for _, data in stored_chunks(whole[DATA])]
        assert done.copied >= sum(map(len, stored))
    assert done.copied_records >= 131 * 6 * 4000


def test_parts_that_do_not_align_are_cut_anew(tmp_path):
    """The first part is copied but for its last chunk; what comes behind is cut to the same grid."""
    source = trace(131 * 18 + 70)
    done, path = merged(tmp_path, split(source, [0.6]))
    assert_as_sealed_at_once(tmp_path, path, source)
    with h5py.File(path) as file:
        assert file[DATA].chunks == (131, 1000)
    assert done.copied_records == 131 * 11 * 4000
    assert done.cut == (131 * 7 + 70) * 4000 + (131 * 18 + 70) * (64 + 8)


def test_parts_of_equal_sizes_are_copied(tmp_path):
    """Where all parts have as many records, their chunks can be those of the whole, whatever the number is."""
    source = trace(428 * 4)
    done, path = merged(tmp_path, split(source, [0.25, 0.5, 0.75]))
    assert_as_sealed_at_once(tmp_path, path, source)
    with h5py.File(path) as file:
        assert file[DATA].chunks == (107, 1000)
    assert done.copied_records == 428 * 4 * 4000


def test_parts_continue_the_grid_of_the_part_before(tmp_path):
    """Parts that were told what came before are copied but for one chunk where two of them meet."""
    source = trace(131 * 12 + 70)
    pieces = split(source, [0.3, 0.55])
    done, path = merged(tmp_path, pieces, counting=True)
    assert_as_sealed_at_once(tmp_path, path, source)
    assert done.copied_records >= (131 * 10 + 70) * 4000
    with h5py.File(tmp_path / "part-000001.h5") as part, Hdf5Source(tmp_path / "part-000001.h5") as read:
        lead = pieces[0].streams[0].records % 131
        assert part[DATA].attrs["lead"] == str(lead).encode()
        assert part[DATA].shape == (lead + read.streams[0].records, 1000)
        values = pieces[1].streams[0].leaf(0, 0, read.streams[0].records)
        assert_same(read, pieces[1])
        for start, stop in ((0, 1), (0, 131 - lead), (130 - lead, 133 - lead), (200, 300)):
            assert_array(read.streams[0].leaf(0, start, stop), values[start:stop])
    with h5py.File(path) as file:
        assert "lead" not in file[DATA].attrs


def test_where_a_grid_is_not_continued(tmp_path):
    """Noise, short streams and uncompressed ones are not told apart by rows of zeros: they would take room."""
    noise, short = trace(600, compressible=False), trace(200)
    for source, compression in ((noise, "lz4"), (short, "lz4"), (trace(600), None)):
        seal(source, tmp_path / "part.h5", compression=compression, before={source.streams[0].site.id: 70})
        with h5py.File(tmp_path / "part.h5") as file:
            assert len(file[DATA]) == source.streams[0].records
        with Hdf5Source(tmp_path / "part.h5") as read:
            assert_same(read, source)


def test_wrong_counts_cost_speed_alone(tmp_path):
    """Parts that were told a wrong number of records before them are merged all the same."""
    source = trace(131 * 8 + 9)
    parts = []
    for number, piece in enumerate(split(source, [0.4, 0.7])):
        seal(piece, tmp_path / f"{number}.h5", before={piece.streams[0].site.id: 50 * number + 3})
        parts.append(Hdf5Source(tmp_path / f"{number}.h5"))
    merge(parts, tmp_path / "run.h5", info=source.info)
    for part in parts:
        part.close()
    assert_as_sealed_at_once(tmp_path, tmp_path / "run.h5", source)


def test_large_records_are_always_copied(tmp_path):
    """Records with a chunk or several of their own align wherever the recording is cut."""
    site = Site("large", (Leaf("", (300, 1200), "float32"), Leaf("b", (70_000,), "float32", number=1)))
    values = smooth(7, 300, 1200)
    stream = make_stream(site, [values, values.reshape(7, -1)[:, :70_000]], steps=range(7))
    done, path = merged(tmp_path, split(MemorySource([stream]), [0.2, 0.6]))
    assert_as_sealed_at_once(tmp_path, path, MemorySource([stream]))
    assert done.copied_records >= 7 * (300 * 1200 + 70_000) * 4
    assert done.cut <= 7 * 64


def test_small_parts_do_not_make_small_chunks(tmp_path):
    """Streams of a few records a part end in chunks of many."""
    source = trace(1000, 10)
    _, path = merged(tmp_path, split(source, list(np.arange(1, 20) / 20)))
    assert_as_sealed_at_once(tmp_path, path, source)
    with h5py.File(path) as file:
        assert file[DATA].chunks == (1000, 10)
        assert file[DATA].id.get_num_chunks() == 1


def test_parts_of_different_filters(tmp_path):
    """Parts compressed in other ways, or not, are cut anew with the compression asked for."""
    source = trace(131 * 4)
    parts = []
    for number, (piece, compression) in enumerate(zip(split(source, [0.25, 0.5]), ["zstd", None, "lz4"], strict=True)):
        seal(piece, tmp_path / f"{number}.h5", compression=compression)
        parts.append(Hdf5Source(tmp_path / f"{number}.h5"))
    merge(parts, tmp_path / "run.h5", info=source.info, compression="lz4")
    merge(parts, tmp_path / "gzip.h5", info=source.info, compression="gzip")
    for part in parts:
        part.close()
    for name, code in (("run.h5", 32001), ("gzip.h5", 2)):
        assert_as_sealed_at_once(tmp_path, tmp_path / name, source)
        with h5py.File(tmp_path / name) as file:
            assert file[DATA].id.get_create_plist().get_filter(0)[0] == code


def test_masked_streams(tmp_path):
    """Summaries leave out what does not count, whichever piece it is in."""
    source = masked(150)
    _, path = merged(tmp_path, split(source, [0.1, 0.4, 0.8]))
    assert_as_sealed_at_once(tmp_path, path, source)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    source=traces(),
    shares=st.lists(st.floats(0, 1), max_size=4).map(sorted),
    compression=st.sampled_from(["lz4", "gzip", None]),
)
def test_any_pieces_make_the_whole(tmp_path, source, shares, compression):
    """Whatever trace, wherever it is cut: merging its parts is sealing it at once."""
    _, path = merged(tmp_path, split(source, shares), compression=compression)
    assert_as_sealed_at_once(tmp_path, path, source, compression=compression)


def test_the_same_parts_give_the_same_bytes(tmp_path):
    """Merging twice gives equal files."""
    pieces = split(trace(700), [0.4])
    _, path = merged(tmp_path, pieces)
    first = path.read_bytes()
    _, path = merged(tmp_path, pieces)
    assert path.read_bytes() == first


def test_few_parts_are_open_at_once(tmp_path):
    """Parts of a pool that keeps two files open are merged like any."""
    source = MemorySource([*trace(900).streams, *masked(100).streams])
    pieces = split(source, list(np.arange(1, 8) / 8))
    for part in sealed_pieces(tmp_path, pieces, counting=True):
        part.close()
    pool = Pool(most=2)
    parts = [Hdf5Source(tmp_path / f"part-{number:06}.h5", pool=pool) for number in range(8)]
    merge(parts, tmp_path / "run.h5", info=source.info)
    for part in parts:
        part.close()
    assert_as_sealed_at_once(tmp_path, tmp_path / "run.h5", source)


def test_a_damaged_part_is_not_copied(tmp_path):
    """A chunk whose checksum is wrong stops the merging; the parts and an older file stay as they are."""
    pieces = split(trace(131 * 4), [0.5])
    parts = sealed_pieces(tmp_path, pieces)
    path = tmp_path / "part-000001.h5"
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        chunk = next(data for _, data in stored_chunks(file[DATA]))
    content[content.index(chunk) + 500] ^= 1
    path.write_bytes(content)
    (tmp_path / "run.h5").write_bytes(b"the old file")
    parts[1].close()
    parts[1] = Hdf5Source(path)
    with pytest.raises(SealingError, match=r"chunk at \(0, 0\) of tap 'act': its CRC-32C is") as caught:
        merge(parts, tmp_path / "run.h5", info=pieces[0].info)
    assert isinstance(caught.value.__cause__, TraceFormatError)
    assert (tmp_path / "run.h5").read_bytes() == b"the old file"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part-000000.h5", "part-000001.h5", "run.h5"]
    for part in parts:
        part.close()


def test_a_source_that_fails(tmp_path):
    """An error of a source that is no part ends the merging likewise."""
    with pytest.raises(SealingError, match="Input/output error") as caught:
        merge([MemorySource([EndlessStream(fail_at=600)])], tmp_path / "run.h5", info=trace(1).info)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded(tmp_path):
    """Two parts of 256 MiB and a source of as much pass through less than 64 MiB of memory."""
    for number in range(2):
        seal(MemorySource([EndlessStream()]), tmp_path / f"{number}.h5")
    parts = [Hdf5Source(tmp_path / f"{number}.h5") for number in range(2)]
    tracemalloc.start()
    try:
        done = merge(parts, tmp_path / "run.h5", info=parts[0].info)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert done.copied_records > 500 << 20
    for part in parts:
        part.close()


@pytest.mark.parametrize("call", ["seal", "merge"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_in_memory(tmp_path, call, in_memory):
    """Made in memory the file is the same, and there is nothing on the disk while HDF5 makes it."""
    source = trace(400)
    stream = source.streams[0]
    assert isinstance(stream, MemoryStream)
    parts = sealed_pieces(tmp_path, split(source, [0.5]))
    (tmp_path / "out").mkdir()
    seen = []

    def leaf(number, start, stop):
        seen.append(len(list((tmp_path / "out").iterdir())))
        return stream.arrays[number][start:stop]

    watched = MemorySource([dataclasses.replace(stream)])
    object.__setattr__(watched.streams[0], "leaf", leaf)
    if call == "seal":
        seal(watched, tmp_path / "out/run.h5", in_memory=in_memory)
    else:
        merge([watched], tmp_path / "out/other.h5", info=source.info, in_memory=in_memory)
        (tmp_path / "out/other.h5").unlink()
        merge(parts, tmp_path / "out/run.h5", info=source.info, in_memory=in_memory)
    assert set(seen) == {0 if in_memory else 1}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.h5"]
    assert_as_sealed_at_once(tmp_path, tmp_path / "out/run.h5", source)
    for part in parts:
        part.close()


def test_a_full_disk_does_not_end_the_process_in_memory(tmp_path):
    """Where the file may not grow, sealing in memory raises one clear error and leaves nothing."""
    script = textwrap.dedent("""
        import pathlib, resource, signal, sys
        from tests.formats.hdf5.test_merge import trace
        from tracerec.errors import SealingError
        from tracerec.formats.hdf5.seal import seal

        source = trace(700, compressible=False)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            seal(source, sys.argv[1], in_memory=True)
        except SealingError as error:
            print(error)
    """)
    path = tmp_path / "run.h5"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "run.h5' cannot be sealed: " in done.stdout
    assert "File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []
