"""Repairing sealed recordings: what is intact is kept, whole records alone, and what is lost is said."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.verifying.breaking import BREAKERS, flip, flipped_chunk, intact
from tools.fuzzed_recordings import made, truth_of
from tracerec.errors import SealingError, TraceFormatError, TraceNotFound
from tracerec.formats.arrow.reading import ArrowSource
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.live import open_live
from tracerec.model import Leaf, Site
from tracerec.repairing import repair
from tracerec.salvaging.worker import work
from tracerec.verifying import verify


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The work is done in this process, which is faster; `test_repair_process` has the other."""
    monkeypatch.setattr("tracerec.repairing.run_order", lambda order: work(order, lambda: None))


def records_of(path):
    """All records of a recording, read by the plain reader of its form, by arrival number."""
    path = Path(path)
    if path.is_file():
        opened = Hdf5Source(path)
    else:
        opened = ArrowSource(path) if (path / "streams.arrow").exists() else open_live(path)
    try:
        return truth_of(opened)
    finally:
        opened.close()


def info_of(path):
    """What a sealed recording says of its run."""
    assert path is not None
    with Hdf5Source(path) if Path(path).is_file() else ArrowSource(path) as source:
        return source.info


def assert_sound(done, truth):
    """The result is verified, holds nothing but records of the truth, and all but those that are said to be lost."""
    assert done.result is not None
    assert done.verification.ok
    assert verify(done.result).ok
    found = records_of(done.result)
    assert found.items() <= truth.items()
    assert len(found) == done.records
    if not done.losses:
        assert len(truth) - len(found) == sum(done.lost.values())
    return found


@pytest.mark.parametrize("form", ["h5-lz4", "h5-none", "arrow", "arrow-zstd", "parts", "parts-arrow"])
def test_an_intact_recording_is_left_alone(tmp_path, form):
    """Nothing is written, in place or not."""
    path = intact(form, tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    for in_place in (False, True):
        done = repair(path, in_place=in_place)
        assert (done.action, done.result, done.whole, done.records) == ("none", None, True, 223)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("form", ["h5-lz4", "h5-zstd", "h5-gzip", "h5-none"])
def test_records_of_a_damaged_chunk_are_left_out_whole(tmp_path, form):
    """A leaf of the first stream is damaged: its records go, with their other leaves; all others stay, bit for bit."""
    path, truth = intact(form, tmp_path), made(form).truth
    with h5py.File(path) as file:
        site = json.loads(file["index"][:].tobytes().splitlines()[0])["site_id"]
        at = file["streams/000000/data_1"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[at + 20] ^= 0x10
    path.write_bytes(data)
    done = repair(path)
    assert (done.action, done.whole, done.fault_count) == ("salvaged", False, 1)
    assert done.result == str(tmp_path / "run.repaired.h5")
    found = assert_sound(done, truth)
    lost = {n for n, record in truth.items() if record[0] == int(site, 16)}
    assert truth.keys() - found.keys() == lost
    assert done.lost == {"encoder/act": len(lost)}
    assert done.result is not None
    info = info_of(done.result)
    assert info.dropped == {"loss": 2, "encoder/act": len(lost)}
    assert (
        f"repaired: {len(lost)} records that were damaged could not be kept: {len(lost)} of 'encoder/act'" in info.notes
    )
    assert path.read_bytes() == bytes(data)


def large(folder, records=3000):
    """A file of one stream in several chunks, of which the index has another number of rows than the data."""
    site = Site("a", (Leaf("x", (64,), "float32"), Leaf("y", (200,), "float64", 1)))
    values = np.arange(records * 64, dtype=np.float32).reshape(records, 64)
    other = np.repeat(np.arange(records, dtype=np.float64), 200).reshape(records, 200)
    seal(MemorySource([make_stream(site, [values, other])]), folder / "run.h5", compression=None)
    return folder / "run.h5"


def test_only_the_records_of_a_chunk_are_lost(tmp_path):
    """Two chunks, of two leaves, that overlap: the rows of both, and no more."""
    path = large(tmp_path)
    with h5py.File(path) as file:
        lost: set[int] = set()
        places: list[int] = []
        for name, number in (("data_0", 1), ("data_1", 2)):
            dataset = file["streams/000000"][name]
            chunk = dataset.id.get_chunk_info(number)
            places.append(chunk.byte_offset)
            lost |= set(range(chunk.chunk_offset[0], min(chunk.chunk_offset[0] + dataset.chunks[0], 3000)))
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 1
    path.write_bytes(data)
    assert 0 < len(lost) < 3000
    done = repair(path)
    assert done.lost == {"a": len(lost)}
    assert done.result is not None
    with Hdf5Source(done.result) as source:
        stream = source.streams[0]
        left = stream.index(0, stream.records)["arrival"].astype(int)
        assert left.tolist() == sorted(set(range(3000)) - lost)
        assert (stream.leaf(0, 0, stream.records)[:, 0] == left * 64).all()
        assert (stream.leaf(1, 0, stream.records)[:, 7] == left).all()
    assert verify(done.result).ok


WHOLE_DAMAGE = {
    "index": lambda file: file["index"].id.get_chunk_info(0).byte_offset + 30,
    "summaries": lambda file: file["summaries"].id.get_chunk_info(0).byte_offset + 30,
    "checksums": lambda file: file["checksums"].id.get_chunk_info(0).byte_offset + 5,
    "superblock": lambda _: 30,
    "root": lambda _: 60,
}


@pytest.mark.parametrize("what", WHOLE_DAMAGE)
@pytest.mark.parametrize("form", ["h5-lz4", "h5-gzip"])
def test_lists_and_headers_are_made_anew(tmp_path, form, what):
    """Damage to what a file says of its streams costs no record: their groups say it again."""
    path, truth = intact(form, tmp_path), made(form).truth
    with h5py.File(path) as file:
        at = WHOLE_DAMAGE[what](file)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)
    assert not verify(path).ok
    done = repair(path)
    assert done.action == "salvaged"
    assert not sum(done.lost.values())
    assert assert_sound(done, truth) == truth
    if what == "checksums":
        assert "taken for right" in " ".join(done.notes)
    assert done.result is not None
    if what == "root":
        assert info_of(done.result).state == "killed"
        assert not done.whole
    else:
        assert done.whole
        assert info_of(done.result).run_id == info_of(intact(form, tmp_path / "again")).run_id


def test_damage_is_found_although_the_checksums_are_lost_to_the_list(tmp_path):
    """The list of streams says where a chunk's checksum is; without it that is found by counting, and by looking."""
    path, truth = flipped_chunk(tmp_path), made("h5-lz4").truth
    with h5py.File(path) as file:
        at = file["index"].id.get_chunk_info(0).byte_offset + 30
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)
    done = repair(path)
    assert assert_sound(done, truth).keys() == {n for n, r in truth.items() if r[0] != sites(truth)["encoder/act"]}


def sites(truth):
    """The ids of the fuzzer's sites that are in a recording, by name."""
    from tools.fuzzed_recordings import SITES

    return {site.name: site.id for site in SITES if site.id in {record[0] for record in truth.values()}}


@pytest.mark.parametrize("share", [0.97, 0.6])
def test_a_file_that_was_cut_off(tmp_path, share):
    """HDF5 refuses it; the streams whose headers and chunks are left are kept."""
    path, truth = intact("h5-none", tmp_path), made("h5-none").truth
    os.truncate(path, int(share * path.stat().st_size))
    assert verify(path).counts == {"readable": 1}
    done = repair(path)
    found = assert_sound(done, truth)
    assert len(found) > 30
    assert not done.whole


def test_a_file_whose_first_page_is_gone(tmp_path):
    """Superblock, root and the first groups are zeros: the streams behind are found by their headers."""
    path = intact("h5-lz4", tmp_path)
    data = path.read_bytes()
    path.write_bytes(bytes(4096) + data[4096:])
    assert verify(path).counts == {"readable": 1}
    done = repair(path)
    found = assert_sound(done, made("h5-lz4").truth)
    assert found
    assert "streams of which nothing is left cannot be counted" in done.losses
    assert "what was known of the run was damaged, and is lost with its id" in info_of(done.result).notes


def test_a_file_of_an_older_version_has_no_checksums(tmp_path):
    """What can be read of it is taken for right, and that is said; what does not decompress is lost."""
    path = intact("h5-gzip", tmp_path)
    with h5py.File(path, "r+") as file:
        lines = [json.loads(line) for line in file["index"][:].tobytes().splitlines()]
        for line in lines:
            for name in ("checksums", "site_id", "tap"):
                del line[name]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        del file["index"], file["checksums"], file.attrs["crc32c"]
        file.create_dataset("index", data=np.frombuffer(text, np.uint8), chunks=(len(text),))
        file.attrs["format_version"] = np.bytes_("1.1")
        at = file["streams/000003/data_0"].id.get_chunk_info(0).byte_offset + 60
    found = verify(path)
    assert found.ok
    assert "no checksums" in found.notes[-1] or "no checksums" in " ".join(found.notes)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
    assert "chunk-whole" in verify(path).counts
    done = repair(path)
    assert set(done.lost) == {"big"}
    assert "no checksums" in " ".join(done.notes)
    assert_sound(done, made("h5-gzip").truth)


@pytest.mark.parametrize("form", ["arrow", "arrow-lz4"])
def test_an_arrow_file_has_one_checksum_for_all_its_records(tmp_path, form):
    """Which of them are damaged cannot be told: they are left out, or kept when that is asked for."""
    path, truth = intact(form, tmp_path), made(form).truth
    with ArrowSource(path) as source:
        name = next(check.name for check in source.files if check.name.startswith("pool"))
    flip(path / name, 0.6)
    done = repair(path)
    assert done.lost
    assert_sound(done, truth)
    assert "cannot be told, they are left out" in done.notes[0]
    kept = repair(path, tmp_path / "all.arrow", keep_suspect=True)
    assert kept.whole or sum(kept.lost.values()) < sum(done.lost.values())
    assert "kept all the same: some may be wrong" in kept.notes[0]
    assert kept.verification is not None
    assert kept.verification.ok


def test_a_list_of_arrow_streams_that_is_damaged(tmp_path):
    """Its rows still agree with the files: nothing is lost."""
    path, truth = intact("arrow", tmp_path), made("arrow").truth
    (path / "streams.crc32c").write_text("00000000\n")
    assert verify(path).counts == {"file-checksum": 1}
    done = repair(path)
    assert done.whole
    assert assert_sound(done, truth) == truth


def test_a_list_of_arrow_streams_that_is_gone(tmp_path):
    """A large stream's file says whose it is; small streams share files that do not."""
    site, small = Site("large", (Leaf("", (2000,), "float32"),)), Site("small", (Leaf("", (), "int8"),))
    from tracerec.formats.arrow.seal import seal as seal_arrow

    streams = [make_stream(site, [np.ones((700, 2000))]), make_stream(small, [[1, 2, 3]], first=700)]
    seal_arrow(MemorySource(streams), tmp_path / "run.arrow")
    truth = records_of(tmp_path / "run.arrow")
    (tmp_path / "run.arrow/streams.arrow").unlink()
    done = repair(tmp_path / "run.arrow")
    assert len(assert_sound(done, truth)) == 700
    assert done.losses == ("pool-000000.arrow: whose records are in it is not known; they are lost",)


@pytest.mark.parametrize("form", ["parts", "parts-arrow"])
def test_a_damaged_part_is_made_anew(tmp_path, form):
    """The others are taken as they are; the result is a folder of parts."""
    path, truth = intact(form, tmp_path), made(form).truth
    part = path / "part-000001.h5" if form == "parts" else path / "part-000001.arrow/pool-000001.arrow"
    flip(part, 0.5)
    done = repair(path)
    assert done.result is not None
    assert_sound(done, truth)
    assert sum(done.lost.values()) > 0
    assert sorted(p.name for p in Path(done.result).iterdir()) == sorted(p.name for p in path.iterdir())
    intact_part = min(path.glob("part-*"))
    same = Path(done.result) / intact_part.name
    assert same.is_dir() or same.read_bytes() == intact_part.read_bytes()


@pytest.mark.parametrize("form", ["parts", "parts-arrow"])
def test_parts_that_are_missing_doubled_or_exchanged(tmp_path, form):
    """A missing part is lost; a copy is left out; parts whose names were exchanged go back to their places."""
    suffix = ".h5" if form == "parts" else ".arrow"
    truth = made(form).truth

    def part(number):
        return path / f"part-{number:06}{suffix}"

    path = intact(form, tmp_path / "missing")
    shutil.rmtree(part(1)) if part(1).is_dir() else part(1).unlink()
    done = repair(path)
    assert_sound(done, truth)
    assert done.losses == ("segment-000001.frames: it is missing",)

    path = intact(form, tmp_path / "doubled")
    shutil.copytree(part(1), part(3)) if part(1).is_dir() else shutil.copy(part(1), part(3))
    assert "arrival-monotone" in verify(path).counts
    done = repair(path)
    assert assert_sound(done, truth) == truth
    assert done.whole
    assert "were there twice" in done.notes[0]

    path = intact(form, tmp_path / "exchanged")
    part(0).rename(path / "x")
    part(2).rename(part(0))
    (path / "x").rename(part(2))
    assert "arrival-monotone" in verify(path).counts
    done = repair(path)
    assert assert_sound(done, truth) == truth
    assert done.whole


@pytest.mark.parametrize("name", sorted(set(BREAKERS) - {"part-manifest", "number-monotone"}))
def test_every_broken_invariant_is_repaired(tmp_path, name):
    """Whatever is wrong, the result is sound."""
    path = BREAKERS[name](tmp_path)
    done = repair(path)
    assert done.action in ("salvaged", "sealed")
    assert done.verification is not None
    assert done.verification.ok
    assert name in {fault.invariant for fault in done.faults}


def test_parts_of_another_run_are_refused(tmp_path):
    """There is nothing of the run that the manifest names."""
    path = BREAKERS["part-manifest"](tmp_path)
    done = repair(path)
    assert done.records == 0
    assert len(done.losses) == 3
    assert "is of another run" in done.losses[0]


def test_numbers_that_were_recorded_so_are_kept(tmp_path):
    """A checksum covers them: records are not thrown away for an order that cannot be told."""
    path = BREAKERS["number-monotone"](tmp_path)
    done = repair(path)
    assert done.action == "salvaged"
    assert done.records == 3
    assert done.whole
    assert done.verification is not None
    assert set(done.verification.counts) == {"number-monotone"}


def test_in_place(tmp_path):
    """The result takes the place of the damaged file; nothing else is left."""
    path = flipped_chunk(tmp_path)
    done = repair(path, in_place=True)
    assert done.result == str(path)
    assert done.verification is not None
    assert done.verification.path == str(path)
    assert verify(path).ok
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    assert repair(path).action == "none"


@pytest.mark.parametrize("form", ["arrow", "parts"])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_in_place(tmp_path, monkeypatch, form, exchange):
    """At once where the system can exchange two names, else one after the other."""
    path = intact(form, tmp_path)
    flip(min(path.glob("p*-000001.*")), 0.5)
    if not exchange:
        monkeypatch.setattr("tracerec.placing._exchange", lambda *_: False)
    done = repair(path, in_place=True)
    assert done.result == str(path)
    assert verify(path).ok
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_old_file_stays_until_the_new_one_is_verified(tmp_path, monkeypatch):
    """A result that is faulty is deleted, and nothing is changed."""
    path = flipped_chunk(tmp_path)
    before = path.read_bytes()
    (tmp_path / "other").mkdir()
    faulty = verify(BREAKERS["dtype-valid"](tmp_path / "other"))
    monkeypatch.setattr("tracerec.repairing.verify", lambda _: faulty)
    done = repair(path, in_place=True)
    assert (done.action, done.result, done.verification) == ("refused", None, faulty)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "run.h5"]


def test_nothing_is_overwritten(tmp_path):
    """A result that exists already, a folder that does not, and two answers to one question are refused."""
    path = flipped_chunk(tmp_path)
    (tmp_path / "run.repaired.h5").write_text("mine")
    with pytest.raises(SealingError, match=r"run\.repaired\.h5 exists; move it away, or choose another name"):
        repair(path)
    assert (tmp_path / "run.repaired.h5").read_text() == "mine"
    with pytest.raises(SealingError, match=r"there is no folder .*nowhere"):
        repair(path, tmp_path / "nowhere/out.h5")
    with pytest.raises(SealingError, match="exclude each other"):
        repair(path, tmp_path / "out.h5", in_place=True)
    with pytest.raises(SealingError, match="unknown compression 'brotli'; there are 'lz4'"):
        repair(path, tmp_path / "out.h5", compression="brotli")  # pyright: ignore[reportArgumentType]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "run.repaired.h5"]


@pytest.mark.parametrize("form", ["h5-lz4", "h5-zstd", "h5-gzip", "h5-none"])
def test_the_compression_stays_what_it_was(tmp_path, form):
    """Unless another is asked for."""
    path = intact(form, tmp_path)
    flip(path, 0.5)

    def filters(name):
        with h5py.File(name) as file:
            properties = file["streams/000003/index"].id.get_create_plist()
            found = [properties.get_filter(n) for n in range(properties.get_nfilters())]
        # of Blosc's numbers those behind the size of a chunk
        return [(code, values[4:]) for code, _, values, _ in found]

    before = filters(path)
    assert filters(repair(path).result) == before
    other = None if form != "h5-none" else "gzip"
    assert filters(repair(path, tmp_path / "other.h5", compression=other).result) != before


@pytest.mark.parametrize(
    ("name", "content", "error", "match"),
    [
        ("missing.h5", None, TraceNotFound, "there is no trace"),
        ("notes.h5", b"hello", TraceFormatError, "is not a trace"),
        ("empty.h5", b"", TraceFormatError, "it is empty"),
        ("hdf5.h5", b"\x89HDF\r\n\x1a\n" + bytes(500), TraceFormatError, "is no trace"),
    ],
)
def test_what_is_no_recording(tmp_path, name, content, error, match):
    """It is refused, and nothing is written."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for call in (verify, repair):
        with pytest.raises(error, match=match):
            call(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == (content is not None)


def test_a_newer_version_is_refused(tmp_path):
    """What is not understood is not called damaged."""
    path = intact("h5-lz4", tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = np.bytes_("2.0")
    for call in (verify, repair):
        with pytest.raises(TraceFormatError, match="Upgrade tracerec"):
            call(path)


def test_nothing_that_is_intact(tmp_path):
    """An empty result is no result."""
    path = BREAKERS["chunk-checksum"](tmp_path)
    with h5py.File(path, "r+") as file:
        for name in file["streams"]:
            dataset = file[f"streams/{name}/index"].id
            dataset.write_direct_chunk((0,), bytes(len(dataset.read_direct_chunk((0,))[1])))
    with pytest.raises(SealingError, match="nothing in it is known to be intact"):
        repair(path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
