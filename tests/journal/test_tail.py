from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.folders import (
    A,
    B,
    Writer,
    all_of,
    arrays_of,
    check_values,
    end_frame,
    flipped,
    head_frame,
    make_folder,
    positions,
    record_frame,
    segment,
    text_frame,
    wait_for,
)
from tests.memory_source import MemorySource, MemoryStream
from tracerec.errors import TraceError, TraceNotFound
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.seal import seal as seal_hdf5
from tracerec.journal import layout, tail
from tracerec.journal.lock import JournalLock
from tracerec.journal.reading import JournalSource
from tracerec.journal.tail import JournalTail, TailBatch
from tracerec.model import INDEX_DTYPE, Leaf, Site
from tracerec.protocol import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTS = [(A, [0, 1]), (B, [2]), (A, [3, 4, 5]), (B, [6, 7]), (A, [8])]


def ids_in(batches: list[TailBatch]) -> dict[str, list[int]]:
    """The numbers of the records of batches, which every one of their arrays must agree on."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        assert batch.rows.dtype == INDEX_DTYPE
        ids = batch.rows["arrival"].astype(np.int64)
        assert len(batch) == len(ids) > 0
        assert len(batch.leaves) == len(batch.site.leaves)
        assert len(batch.columns) == len(batch.site.columns)
        for array in (*batch.leaves, *batch.columns):
            assert len(array) == len(ids)
            assert array.flags.writeable
            check_values(array, ids)
        found.setdefault(batch.site.name, []).extend(ids.tolist())
    return found


def all_in(follower: JournalTail, **options: Any) -> dict[str, list[int]]:
    """Polls until there is nothing new."""
    batches: list[TailBatch] = []
    while new := follower.poll(**options):
        batches += new
    return ids_in(batches)


def append(path: Path, data: bytes) -> None:
    """Appends bytes to a file, making it if need be."""
    with path.open("ab") as file:
        file.write(data)


def seal_part(folder: Path, number: int, suffix: str = ".h5") -> None:
    """Seals one segment as a recording does: the part gets its name, then the segment goes."""
    part = layout.part_path(folder, number, suffix)
    with JournalSource(folder, only=number) as source:
        assert source.damage == ()
        (seal_arrow if suffix == ".arrow" else seal_hdf5)(source, part)
    layout.segment_path(folder, number).unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The live folder of a recording that goes on, of this process."""
    folder = tmp_path / "run.h5.live"
    make_folder(folder, pid=os.getpid(), target="run.h5")
    lock = JournalLock(folder)
    yield folder
    lock.forget()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads so far."""
    sizes: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        data = real(fd, size, offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    return sizes


def test_a_tail_gives_every_record_once(folder: Path) -> None:
    """All sites, leaves and columns, over segments, in recorded order."""
    make_folder(folder, {0: segment(0, PARTS), 1: segment(1, [(B, [9]), (A, [10, 11])])}, pid=os.getpid())
    with JournalTail(folder) as follower:
        first = follower.poll()
        assert ids_in(first) == {"a": [0, 1, 3, 4, 5, 8, 10, 11], "b": [2, 6, 7, 9]}
        assert [batch.site for batch in first] == [A, B]
        assert first[0].columns[0].dtype == np.int64
        first[0].leaves[0][:] = 0
        assert follower.poll() == []
        assert (follower.ended, follower.reason, follower.end) == (False, None, None)
        append(layout.segment_path(folder, 1), record_frame(A, [12]))
        assert ids_in(follower.poll()) == {"a": [12]}


def test_a_poll_costs_what_is_new_whatever_the_pieces(folder: Path, counted: list[int]) -> None:
    """Bytes come one by one; each is read once, a frame is given when it is whole, and an idle poll reads nothing."""
    data = segment(0, PARTS)
    ends = {head.end: head.specs[0][1][0] for head in positions(data) if head.consumer_id > 1}
    path = layout.segment_path(folder, 0)
    given = 0
    with JournalTail(folder) as follower:
        for at in range(len(data)):
            append(path, data[at : at + 1])
            given += sum(map(len, follower.poll()))
            assert given == sum(n for end, n in ends.items() if end <= at + 1)
            assert sum(counted) == at + 1
            if at % 100 == 0:
                assert follower.poll() == []
                assert sum(counted) == at + 1
        assert follower.damage == ()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_pieces_and_segments_and_limits(folder: Path, data: st.DataObject) -> None:
    """However the bytes come and however little is read at once, every record is given once and in order."""
    groups, first = [], 0
    for _ in range(data.draw(st.integers(1, 12))):
        n = data.draw(st.integers(0, 4))
        groups.append((data.draw(st.sampled_from([A, B])), range(first, first + n)))
        first += n
    cuts = sorted(data.draw(st.sets(st.integers(0, len(groups)), max_size=3)))
    pieces = [groups[a:b] for a, b in zip([0, *cuts], [*cuts, len(groups)], strict=True)]
    for path in layout.segments(folder):
        path.unlink()
    found: dict[str, list[int]] = {}
    with JournalTail(folder) as follower:
        for number, piece in enumerate(pieces):
            whole = segment(number, piece, end={} if number == len(pieces) - 1 else None)
            at = 0
            while at < len(whole):
                step = data.draw(st.integers(1, len(whole)))
                append(layout.segment_path(folder, number), whole[at : at + step])
                at += step
                if data.draw(st.booleans()):
                    for name, ids in ids_in(follower.poll(data.draw(st.integers(1, 5000)))).items():
                        found.setdefault(name, []).extend(ids)
        for name, ids in all_in(follower, max_bytes=data.draw(st.integers(1, 5000))).items():
            found.setdefault(name, []).extend(ids)
        assert (follower.ended, follower.reason, follower.damage) == (True, "closed", ())
    assert all_of(found) == list(range(first))
    assert all(ids == sorted(ids) for ids in found.values())


def test_from_the_end_only_what_comes_is_given(folder: Path) -> None:
    """A frame that was half there belongs to what comes."""
    make_folder(folder, {0: segment(0, PARTS), 1: segment(1, [(A, [9])]) + record_frame(A, [10])[:-5]}, pid=os.getpid())
    with JournalTail(folder, from_start=False) as follower:
        assert follower.poll() == []
        append(layout.segment_path(folder, 1), record_frame(A, [10])[-5:] + record_frame(A, [11]))
        assert ids_in(follower.poll()) == {"a": [10, 11]}
        layout.segment_path(folder, 2).write_bytes(segment(2, [(B, [12])]))
        assert ids_in(follower.poll()) == {"b": [12]}


def test_a_poll_is_bounded_but_gives_a_frame_of_any_size(folder: Path, counted: list[int]) -> None:
    """What is over is left to the next poll; a larger frame is read whole, and in pieces while it comes."""
    groups = [(A, range(10 * n, 10 * n + 10)) for n in range(200)]
    path = layout.segment_path(folder, 0)
    path.write_bytes(segment(0, groups))
    with JournalTail(folder) as follower:
        polls = []
        while batches := follower.poll(max_bytes=20_000):
            assert sum(counted) <= 20_000
            counted.clear()
            polls.append(ids_in(batches)["a"])
        assert len(polls) > 5
        assert [number for ids in polls for number in ids] == list(range(2000))
        big = Site("big", (Leaf("", (100_000,), "float32"),))
        frame = text_frame(frames.DEFINE, big.to_json()) + record_frame(big, [2000])
        append(path, frame[:150_000])
        assert follower.poll(max_bytes=1000) == []
        append(path, frame[150_000:])
        assert ids_in(follower.poll(max_bytes=1000)) == {"big": [2000]}


@pytest.mark.parametrize("suffix", [".h5", ".arrow"])
def test_a_segment_sealed_while_it_is_followed_is_read_to_its_end(folder: Path, suffix: str) -> None:
    """The file stays open though its name is gone; nothing is read twice from the part."""
    first = segment(0, PARTS)
    path = layout.segment_path(folder, 0)
    path.write_bytes(first[: len(first) // 2])
    with JournalTail(folder) as follower:
        found = ids_in(follower.poll())
        path.write_bytes(first)
        layout.segment_path(folder, 1).write_bytes(segment(1, [(B, [9])]))
        seal_part(folder, 0, suffix)
        for name, ids in all_in(follower).items():
            found.setdefault(name, []).extend(ids)
        assert found == {"a": [0, 1, 3, 4, 5, 8], "b": [2, 6, 7, 9]}
        assert follower.damage == ()


@pytest.mark.parametrize("suffix", [".h5", ".arrow"])
def test_segments_sealed_before_they_are_opened_are_read_from_their_parts(folder: Path, suffix: str) -> None:
    """In bounded pieces, and in the order of the segments."""
    groups = [(A, range(100 * n, 100 * n + 100)) for n in range(3)]
    for number in range(3):
        layout.segment_path(folder, number).write_bytes(segment(number, [groups[number], (B, [1000 + number])]))
    seal_part(folder, 0, suffix)
    seal_part(folder, 1, suffix)
    with JournalTail(folder) as follower:
        sizes = []
        found: dict[str, list[int]] = {}
        while batches := follower.poll(max_bytes=2000):
            sizes.append(sum(array.nbytes for b in batches for array in (b.rows, *b.leaves, *b.columns)))
            for name, ids in ids_in(batches).items():
                found.setdefault(name, []).extend(ids)
        assert max(sizes) < 12_000
        assert found == {"a": list(range(300)), "b": [1000, 1001, 1002]}


def test_retired_segments_are_passed_over_and_counted(folder: Path) -> None:
    """The one that is open is read to its end all the same."""
    layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]))
    with JournalTail(folder) as follower:
        assert ids_in(follower.poll()) == {"a": [0]}
        append(layout.segment_path(folder, 0), record_frame(A, [1]))
        for number in (1, 2, 3):
            layout.segment_path(folder, number).write_bytes(segment(number, [(A, [number + 1])]))
        make_folder(folder, first_segment=3, pid=os.getpid())
        for number in (0, 1, 2):
            layout.segment_path(folder, number).unlink()
        assert all_in(follower) == {"a": [1, 4]}
        assert (follower.skipped, follower.damage, follower.ended) == (2, (), False)


def test_a_recording_that_is_closed_ends(folder: Path) -> None:
    """Its end frame says so, whether the journal is still there or not."""
    layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]))
    with JournalTail(folder) as follower:
        follower.poll()
        append(layout.segment_path(folder, 0), record_frame(A, [1]) + end_frame(dropped={"a": 3}))
        assert ids_in(follower.poll()) == {"a": [1]}
        assert follower.poll() == []
        assert (follower.ended, follower.reason) == (True, "closed")
        assert follower.end == {"ended": 2, "dropped": {"a": 3}}
        shutil.rmtree(folder)
        assert follower.poll() == []
        assert (follower.ended, follower.reason) == (True, "closed")


@pytest.mark.parametrize("suffix", [".h5", ".arrow", "parts"])
@pytest.mark.parametrize("from_start", [True, False])
def test_what_was_not_read_of_a_journal_that_is_gone_is_read_from_its_file(
    tmp_path: Path, suffix: str, *, from_start: bool
) -> None:
    """The recording was closed and sealed while the tail slept: nothing is missing and nothing comes twice."""
    target = tmp_path / ("run.h5" if suffix == "parts" else "run" + suffix)
    folder = make_folder(layout.live_folder(target), {0: segment(0, PARTS)}, target=target.name)
    with JournalTail(folder, from_start=from_start) as follower:
        first = {"a": [0, 1, 3, 4, 5, 8], "b": [2, 6, 7]}
        assert ids_in(follower.poll()) == (first if from_start else {})
        append(layout.segment_path(folder, 0), record_frame(B, [9]))
        layout.segment_path(folder, 1).write_bytes(segment(1, [(B, [10]), (A, [11, 12])]))
        lone = Site("late", (Leaf("", (), "int8"),))
        layout.segment_path(folder, 2).write_bytes(segment(2, [(lone, [13]), (A, [14])], end={}))
        if suffix == "parts":
            for number in range(3):
                seal_part(folder, number)
            folder.rename(target)
        else:
            with JournalSource(folder) as source:
                (seal_arrow if suffix == ".arrow" else seal_hdf5)(source, target)
            shutil.rmtree(folder)
        found = all_in(follower)
        assert found == {"a": [11, 12, 14], "b": [9, 10], "late": [13]}
        assert (follower.ended, follower.reason, follower.damage) == (True, "closed", ())
        assert follower.poll() == []


def test_a_folder_that_is_deleted_ends(folder: Path) -> None:
    """So does one that another recording has taken; that one's records are not given out."""
    layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]))
    with JournalTail(folder) as follower, JournalTail(folder) as other:
        assert ids_in(follower.poll()) == {"a": [0]}
        shutil.rmtree(folder)
        assert follower.poll() == []
        assert (follower.ended, follower.reason) == (True, "deleted")
        make_folder(folder, {0: segment(0, [(A, [5])], run_id="f" * 32)}, run_id="f" * 32)
        assert other.poll() == []
        assert (other.ended, other.reason) == (True, "deleted")
        with JournalSource(folder) as source:
            seal_hdf5(source, folder.parent / "run.h5")
        assert follower.poll() == []
        assert follower.reason == "deleted"
    with pytest.raises(TraceError, match="the tail is closed"):
        follower.poll()


def test_a_process_that_was_killed_ends_and_may_be_continued(tmp_path: Path) -> None:
    """Nobody holds the lock and there is no end frame; what another attempt adds is given out."""
    folder = make_folder(tmp_path, {0: segment(0, [(A, [0]), (A, [1, 2])])[:-7]}, pid=1)
    with JournalTail(folder) as follower:
        assert ids_in(follower.poll()) == {"a": [0]}
        assert follower.poll() == []
        assert (follower.ended, follower.reason) == (True, "killed")
        (damage,) = follower.damage
        assert (damage.torn, damage.file) == (True, "segment-000000.frames")
        lock = JournalLock(folder)
        make_folder(folder, pid=os.getpid())
        assert follower.poll() == []
        assert (follower.ended, follower.reason) == (False, None)
        layout.segment_path(folder, 1).write_bytes(segment(1, [(A, [3])], attempt=1))
        assert ids_in(follower.poll()) == {"a": [3]}
        append(layout.segment_path(folder, 1), end_frame())
        lock.forget()
        assert follower.poll() == []
        assert (follower.ended, follower.reason, len(follower.damage)) == (True, "closed", 1)


def test_a_damaged_frame_is_passed_over_and_told(folder: Path) -> None:
    """What follows is given out."""
    data = segment(0, PARTS)
    hit = [head for head in positions(data) if head.consumer_id == A.id][1]
    for at in range(hit.start, hit.end, 11):
        layout.segment_path(folder, 0).write_bytes(flipped(data, at))
        with JournalTail(folder) as follower:
            found = all_in(follower)
            layout.segment_path(folder, 1).write_bytes(segment(1, [(A, [9])]))
            for name, ids in all_in(follower).items():
                found.setdefault(name, []).extend(ids)
            assert found == {"a": [0, 1, 8, 9], "b": [2, 6, 7]}
            (damage,) = follower.damage
            assert (damage.offset, damage.nbytes, damage.torn) == (hit.start, hit.end - hit.start, False)
        layout.segment_path(folder, 1).unlink()


def test_damage_that_is_longer_than_a_read_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is read at once."""
    monkeypatch.setattr(tail, "_READ_BYTES", 500)
    noise = random.Random(1).randbytes(5000)  # noqa: S311 - reproducible
    data = segment(0, [(A, [0])]) + noise + record_frame(A, [1]) + noise + record_frame(A, [2])
    layout.segment_path(folder, 0).write_bytes(data)
    with JournalTail(folder) as follower:
        assert all_in(follower) == {"a": [0, 1, 2]}
        assert [damage.nbytes for damage in follower.damage] == [5000, 5000]


def test_intact_frames_with_the_wrong_content_are_told(folder: Path) -> None:
    """And cost nothing else."""
    lone = Site("lone", (Leaf("", (), "int8"),))
    bad = [
        (record_frame(lone, [7]), "is not defined"),
        (b"".join(frames.encode(A.id, arrays_of(B, [7]))), "its arrays are not those of tap 'a'"),
        (b"".join(frames.encode(A.id, [])), "its arrays are not those of tap 'a'"),
        (text_frame(frames.DEFINE, [1]), "not the JSON that defines a site"),
        (b"".join(frames.encode(frames.DEFINE, [])), "out of range"),
        (head_frame(5), "the head of segment 5 of run"),
        (head_frame(0, run_id="f" * 32), "of run " + "f" * 32),
    ]
    for data, message in bad:
        layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]) + data + record_frame(A, [1]))
        with JournalTail(folder) as follower:
            assert all_in(follower) == {"a": [0, 1]}
            (damage,) = follower.damage
            assert message in damage.reason
    data = text_frame(frames.END, {"dropped": 3})
    layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]) + data)
    with JournalTail(folder) as follower:
        assert all_in(follower) == {"a": [0]}
        assert (follower.ended, follower.reason, follower.end) == (True, "closed", None)
        assert "dropped is 3" in follower.damage[0].reason


def test_missing_and_unreadable_segments_are_told_and_passed_over(folder: Path) -> None:
    """The tail goes on with the next."""
    layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]))
    layout.segment_path(folder, 2).write_bytes(segment(2, [(A, [2])]))
    layout.part_path(folder, 3, ".h5").write_bytes(b"no HDF5")
    layout.part_path(folder, 4, ".h5").symlink_to("nowhere")
    layout.segment_path(folder, 5).mkdir()
    layout.segment_path(folder, 6).write_bytes(segment(6, [(A, [6])]))
    with JournalTail(folder) as follower:
        assert all_in(follower) == {"a": [0, 2, 6]}
        assert [damage.file for damage in follower.damage] == [
            "segment-000001.frames",
            "part-000003.h5",
            "part-000004.h5",
            "segment-000005.frames",
        ]
        assert "it is missing; the next is segment 2" in follower.damage[0].reason


FULL: dict[str, Callable[[bytes, bytes], bytes]] = {
    "the frame that was torn": lambda kept, _: kept,
    "another frame in its place": lambda kept, _: kept + record_frame(A, [20]),
    "the end in its place": lambda kept, _: kept + end_frame(lost={"a": 1}),
    "a longer frame in its place": lambda kept, _: kept + record_frame(A, range(20, 60)),
    "the same head, other values": lambda kept, _: kept + record_frame(A, [20, 21]),
}


@pytest.mark.parametrize("what", FULL)
@pytest.mark.parametrize("torn", [40, 140, 280, None])
def test_a_segment_that_a_full_disk_cuts_back_is_followed(folder: Path, what: str, torn: int | None) -> None:
    """What the tail had read of it is no longer true: bytes of half a frame, or whole frames that were given out."""
    kept = segment(0, [(A, [0]), (B, [1])])
    withdrawn = record_frame(A, [2, 3])[:torn] if torn else record_frame(A, [2]) + record_frame(A, [3])
    path = layout.segment_path(folder, 0)
    path.write_bytes(kept + withdrawn)
    with JournalTail(folder) as follower:
        found = ids_in(follower.poll())
        assert found["a"] == ([0] if torn else [0, 2, 3])
        path.write_bytes(FULL[what](kept, withdrawn))
        for name, ids in all_in(follower).items():
            found[name] += ids
        layout.segment_path(folder, 1).write_bytes(segment(1, [(A, [70])], end={}))
        for name, ids in all_in(follower).items():
            found[name] += ids
        new = {"another frame in its place": [20], "the same head, other values": [20, 21]}
        new["a longer frame in its place"] = list(range(20, 60))
        assert found["a"] == [*([0] if torn else [0, 2, 3]), *new.get(what, []), 70]
        assert follower.damage == ()
        assert follower.reason == "closed"


def test_what_was_found_before_an_error_is_not_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next poll gives it out."""
    layout.segment_path(folder, 0).write_bytes(segment(0, [(A, [0])]))
    layout.segment_path(folder, 1).write_bytes(segment(1, [(A, [1])]))
    follower = JournalTail(folder)
    real = os.pread
    calls = iter(range(100))

    def failing(fd: int, size: int, offset: int) -> bytes:
        if next(calls) == 2:
            raise OSError(5, "Input/output error")
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(TraceError, match=r"segment-000001\.frames: cannot be read: Input/output error"):
        follower.poll()
    assert ids_in(follower.poll()) == {"a": [0, 1]}
    follower.close()


def test_records_of_one_batch_that_stand_out_of_order_are_found_again_in_the_file(tmp_path: Path) -> None:
    """The tail knows its place by the last record, whatever arrival numbers stand before and behind it."""
    folder = make_folder(tmp_path / "run.h5.live", {0: segment(0, [(A, [0, 4, 5])])}, target="run.h5")
    with JournalTail(folder) as follower:
        assert ids_in(follower.poll()) == {"a": [0, 4, 5]}
        append(layout.segment_path(folder, 0), record_frame(A, [1, 2, 6]))
        with JournalSource(folder) as source:
            seal_hdf5(source, tmp_path / "run.h5")
        layout.segment_path(folder, 0).unlink()
        follower._let_go()
        shutil.rmtree(folder)
        assert all_in(follower) == {"a": [1, 2, 6]}


def test_a_folder_without_a_manifest_is_no_recording(tmp_path: Path) -> None:
    """It says so at once."""
    with pytest.raises(TraceNotFound, match="no recording"):
        JournalTail(tmp_path)


def test_the_file_of_another_run_at_the_target_is_not_read(tmp_path: Path) -> None:
    """It has nothing to do with the journal that is gone."""
    folder = make_folder(tmp_path / "run.h5.live", {0: segment(0, [(A, [0])])}, target="run.h5")
    rows, *tables = arrays_of(A, [8, 9])
    stream = MemoryStream(A, rows.view(INDEX_DTYPE).reshape(-1), (tables[0],), (None, tables[1]))
    seal_hdf5(MemorySource([stream], RunInfo("e" * 32, 3)), tmp_path / "run.h5")
    with JournalTail(folder) as follower:
        shutil.rmtree(folder)
        assert follower.poll() == []
        assert follower.reason == "deleted"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".h5", ".arrow"])
def test_a_process_that_records_is_followed_while_its_segments_are_sealed(tmp_path: Path, suffix: str) -> None:
    """Every record once and right, whichever way it came; then the process is killed."""
    folder = tmp_path / "run.live"
    writer = Writer(folder, segment_bytes=15_000, pause=0.001, target="run" + suffix)
    assert writer.line()
    clock = random.Random(2)  # noqa: S311 - reproducible
    found: dict[str, list[int]] = {}
    with JournalTail(folder) as follower:
        sealed = 0
        while sealed < 25:
            newest = max(map(layout.segment_number, layout.segments(folder)))
            if sealed < newest - clock.randrange(3):
                seal_part(folder, sealed, suffix)
                sealed += 1
            if clock.random() < 0.3:
                for name, ids in ids_in(follower.poll(clock.choice([1000, 1 << 20]))).items():
                    found.setdefault(name, []).extend(ids)
        flushed = writer.kill()
        for name, ids in all_in(follower).items():
            found.setdefault(name, []).extend(ids)
        assert (follower.ended, follower.reason) == (True, "killed")
        assert all(damage.torn for damage in follower.damage)
    ids = all_of(found)
    assert ids == list(range(len(ids)))
    assert len(ids) >= flushed


@pytest.mark.slow
def test_a_process_that_records_is_followed_to_its_end(tmp_path: Path) -> None:
    """While it writes, and after."""
    folder = tmp_path / "run.h5.live"
    writer = Writer(folder, segment_bytes=50_000, records=6000, pause=0.001)
    wait_for((folder / layout.MANIFEST).exists)
    found: dict[str, list[int]] = {}
    with JournalTail(folder) as follower:
        while not follower.ended:
            for name, ids in ids_in(follower.poll()).items():
                found.setdefault(name, []).extend(ids)
        assert (follower.reason, follower.damage) == ("closed", ())
        assert follower.end == {"ended": 5, "dropped": {"a": 1}}
    count = writer.wait_done()
    writer.close()
    assert all_of(found) == list(range(count))
    assert all(ids == sorted(ids) for ids in found.values())
