from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.folders import (
    ROOT,
    RUN_ID,
    A,
    B,
    Writer,
    all_of,
    end_frame,
    flipped,
    head_frame,
    ids_of,
    make_folder,
    positions,
    record_frame,
    segment,
    text_frame,
)
from tracerec.errors import FrameError, TraceError
from tracerec.journal import access, layout, recovery
from tracerec.journal.reading import JournalSource
from tracerec.model import Leaf, Site
from tracerec.protocol import frames

if TYPE_CHECKING:
    from pathlib import Path

OLD = segment(0, [(A, [0, 1]), (B, [2]), (A, [3, 4, 5]), (B, [6, 7]), (A, [8])])
NEW = segment(1, [(A, [9, 10]), (B, [11]), (A, [12])], end={"dropped": {"x": 3}})


LEAF = {"path": "", "shape": [1], "dtype": "int8", "number": 0}


def records_of(source: JournalSource) -> dict[str, list[int]]:
    """The numbers of all records, by tap."""
    return {stream.site.name: ids_of(stream) for stream in source.streams}


def record_heads(data: bytes) -> list[frames.FrameHead]:
    """The heads of the frames that hold records."""
    return [head for head in positions(data) if head.consumer_id > 1]


def test_a_whole_journal_has_no_damage(tmp_path: Path) -> None:
    """Heads are no sites, and nothing is said of them."""
    with JournalSource(make_folder(tmp_path, {0: OLD, 1: NEW})) as source:
        assert records_of(source) == {"a": [0, 1, 3, 4, 5, 8, 9, 10, 12], "b": [2, 6, 7, 11]}
        assert source.damage == ()
        assert source.sealed == frozenset()
        assert source.info.clean
        assert source.info.notes == ("3 records are missing: they were dropped or could not be written",)


def test_a_journal_without_heads_is_read_as_ever(tmp_path: Path) -> None:
    """Before version 1.2 segments began with a definition."""
    old = segment(0, [(A, [0, 1]), (B, [2])], head=False)
    new = segment(1, [(A, [3])], head=False, end={})
    source = JournalSource(make_folder(tmp_path, {0: old, 1: new}))
    assert records_of(source) == {"a": [0, 1, 3], "b": [2]}
    assert (source.damage, source.info.notes, source.info.clean) == ((), (), True)


@pytest.mark.parametrize("head", [True, False])
def test_the_last_segment_cut_at_any_byte_reads_to_its_last_whole_frame(tmp_path: Path, *, head: bool) -> None:
    """What is said of the rest: how many bytes, and how many records where the header tells."""
    old, new = (
        segment(0, [(A, [0])], head=head),
        segment(1, [(A, [1, 2]), (B, [3]), (A, [4, 5, 6])], head=head, end={}),
    )
    folder = make_folder(tmp_path, {0: old, 1: new})
    heads = positions(new)
    for cut in range(len(new)):
        layout.segment_path(folder, 1).write_bytes(new[:cut])
        source = JournalSource(folder)
        whole = [h for h in heads if h.end <= cut]
        expected = 1 + sum(h.specs[0][1][0] for h in whole if h.consumer_id > 1)
        assert source.info.records == expected
        assert all_of(records_of(source)) == list(range(expected))
        assert not source.info.clean
        assert source.info.state == "killed"
        start = max((h.end for h in whole), default=0)
        if cut == start:
            assert source.damage == ()
            continue
        (damage,) = source.damage
        assert (damage.file, damage.offset, damage.nbytes, damage.torn) == (
            "segment-000001.frames",
            start,
            cut - start,
            True,
        )
        torn = next(h for h in heads if h.start == start)
        held = torn.specs[0][1][0] if torn.consumer_id > 1 else 0
        assert damage.records == (held if cut - start >= frames.HEADER_BYTES else None)
        assert f"{cut - start} bytes at the end were not read" in source.info.notes[-1]


def test_any_bit_flipped_in_the_last_segment_ends_what_is_read_there(tmp_path: Path) -> None:
    """What stands behind is left alone, but counted; it is no longer what a kill leaves."""
    folder = make_folder(tmp_path, {0: OLD})
    heads = positions(NEW)
    for at in range(0, len(NEW), 7):
        layout.segment_path(folder, 1).write_bytes(flipped(NEW, at))
        source = JournalSource(folder)
        hit = next(h for h in heads if h.start <= at < h.end)
        behind = [h for h in heads if h.start >= hit.end and h.consumer_id > 1]
        before = sum(h.specs[0][1][0] for h in heads if h.end <= hit.start and h.consumer_id > 1)
        assert source.info.records == 9 + before
        (damage,) = source.damage
        assert (damage.offset, damage.nbytes) == (hit.start, len(NEW) - hit.start)
        assert damage.torn is (not behind)
        if behind:
            records = sum(h.specs[0][1][0] for h in behind)
            assert f"behind it are {len(behind)} intact frames with {records} records" in damage.reason
        if at >= hit.payload:
            lost = [h for h in heads if h.start >= hit.start and h.consumer_id > 1]
            assert damage.records == sum(h.specs[0][1][0] for h in lost)


def test_a_bad_frame_in_an_older_segment_is_passed_over(tmp_path: Path) -> None:
    """Every other record is read, and the loss is told: which bytes, how many records."""
    folder = make_folder(tmp_path, {1: NEW})
    for hit in record_heads(OLD):
        for at in range(hit.start, hit.end, 5):
            layout.segment_path(folder, 0).write_bytes(flipped(OLD, at))
            source = JournalSource(folder)
            lost = hit.specs[0][1][0]
            assert source.info.records == 13 - lost
            assert source.info.clean
            (damage,) = source.damage
            assert (damage.offset, damage.nbytes, damage.torn) == (hit.start, hit.end - hit.start, False)
            assert damage.records in ((lost,) if at >= hit.payload else (lost, None))
            assert f"{damage.nbytes} bytes from byte {hit.start} on were not read" in "".join(source.info.notes)
            missing = {*range(13)} - {*all_of(records_of(source))}
            assert len(missing) == lost


def test_a_definition_lost_in_one_segment_is_taken_from_another(tmp_path: Path) -> None:
    """A site is the same in all segments, so that its records are not lost with one of its definitions."""
    define = positions(OLD)[1]
    folder = make_folder(tmp_path, {0: flipped(OLD, define.payload + 3), 1: NEW})
    source = JournalSource(folder)
    assert source.info.records == 13
    (damage,) = source.damage
    assert (damage.offset, damage.records) == (define.start, 0)


def test_records_of_a_site_that_nothing_defines_are_counted(tmp_path: Path) -> None:
    """They cannot be read, and the reader says how many they are."""
    lone = Site("lone", (Leaf("", (2,), "int8"),))
    data = head_frame(0) + record_frame(lone, [0, 1]) + OLD[positions(OLD)[0].end :] + record_frame(lone, [20])
    source = JournalSource(make_folder(tmp_path, {0: data, 1: NEW}))
    assert source.info.records == 13
    (damage,) = source.damage
    assert damage.records == 3
    assert f"2 frames of site {lone.id:#018x}, which is not defined" in damage.reason


def test_intact_frames_with_the_wrong_content_are_damage_and_cost_nothing_else(tmp_path: Path) -> None:
    """A right checksum does not make a frame right: arrays, JSON and heads are checked."""
    bad = [
        (b"".join(frames.encode(A.id, [np.zeros((2, 64), np.uint8)])), "arrays are not those of tap 'a'"),
        (b"".join(frames.encode(A.id, [np.zeros(3)])), "has no index table"),
        (b"".join(frames.encode(A.id, [])), "has no index table"),
        (b"".join(frames.encode(frames.END, [np.frombuffer(b"[" * 100_000, np.uint8)])), "not JSON"),
        (text_frame(frames.END, [1]), "its JSON is no object"),
        (text_frame(frames.END, {"dropped": {"x": "many"}}), "dropped is"),
        (text_frame(frames.END, {"ended": "never"}), "ended is 'never'"),
        (text_frame(frames.DEFINE, {"name": 1}), "not the JSON that defines a site"),
        (text_frame(frames.DEFINE, {**A.to_json(), "leaves": [{**LEAF, "dtype": "f99"}]}), "f99"),
        (text_frame(frames.DEFINE, [1]), "not the JSON that defines a site"),
        (text_frame(frames.DEFINE, {"segment": -1, "run_id": RUN_ID}), "not the head of a segment"),
        (head_frame(5), "the head of another segment"),
    ]
    for data, message in bad:
        for number in range(2):
            segments = {0: OLD, 1: segment(1, [(A, [9])])}
            segments[number] += data + record_frame(A, [100])
            for path in layout.segments(tmp_path):
                path.unlink()
            source = JournalSource(make_folder(tmp_path, segments))
            assert source.info.records == 11
            (damage,) = source.damage
            assert message in damage.reason
            assert (damage.nbytes, damage.torn) == (len(data), False)


def test_a_segment_of_zeros_behind_its_frames_is_torn(tmp_path: Path) -> None:
    """A power loss can leave that."""
    source = JournalSource(make_folder(tmp_path, {0: OLD + bytes(70_000)}))
    assert source.info.records == 9
    (damage,) = source.damage
    assert (damage.nbytes, damage.torn, damage.records) == (70_000, True, None)


def test_an_older_segment_that_is_empty_is_reported(tmp_path: Path) -> None:
    """But not the last one, which a kill leaves so, nor one that the disk had no room for."""
    source = JournalSource(make_folder(tmp_path, {0: b"", 1: NEW, 2: b""}))
    assert [(d.file, d.reason, d.records) for d in source.damage] == [("segment-000000.frames", "it is empty", None)]
    failed = segment(1, [], end={"failure": "OSError: no space"})
    source = JournalSource(make_folder(tmp_path / "other", {0: b"", 1: failed}))
    assert source.damage == ()
    assert source.info.state == "stopped early"


def test_too_many_places_are_added_up(tmp_path: Path) -> None:
    """Damage of a large file does not fill the memory with its description."""
    data = b"".join(record_frame(A, [100 + i]) + b"?" * 10 for i in range(recovery.MAX_PLACES + 50))
    source = JournalSource(make_folder(tmp_path, {0: OLD + data, 1: NEW}))
    assert source.info.records == 13 + recovery.MAX_PLACES + 50
    assert len(source.damage) == recovery.MAX_PLACES + 1
    assert "more places are damaged" in source.damage[-1].reason
    assert sum(d.nbytes for d in source.damage) == 10 * (recovery.MAX_PLACES + 50)


def test_a_segment_that_is_written_is_neither_mapped_nor_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be cut back under the reader, which must not die of it; its last frame is on its way."""
    monkeypatch.setattr(access, "_WINDOW_BYTES", 300)
    big = Site("big", (Leaf("", (1000,), "float32"),))
    data = segment(1, [(A, [9, 10]), (big, [11, 12]), (B, [13])])
    folder = make_folder(tmp_path, {0: OLD, 1: data + record_frame(A, [14])[:-3]})
    path = layout.segment_path(folder, 1)
    with JournalSource(folder, running=True) as source:
        assert source.damage == ()
        assert source.info.state == "recording"
        assert records_of(source) == {"a": [0, 1, 3, 4, 5, 8, 9, 10], "b": [2, 6, 7, 13], "big": [11, 12]}
        path.write_bytes(data[:300])
        with pytest.raises(TraceError, match="cut back"):
            ids_of(source.streams[0])
    with pytest.raises(TraceError, match="is closed"):
        source.streams[0].index(0, 1)


def test_more_segments_than_may_be_mapped_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many file descriptors are held; a segment that was let go and then sealed is missed by name."""
    monkeypatch.setattr(access, "MAX_MAPS", 3)
    folder = make_folder(tmp_path, {n: segment(n, [(A, [2 * n, 2 * n + 1])]) for n in range(10)})
    source = JournalSource(folder)
    (stream,) = source.streams
    assert ids_of(stream) == list(range(20))
    layout.segment_path(folder, 0).unlink()
    assert stream.index(2, 20)["step"].tolist() == list(range(2, 20))
    with pytest.raises(
        TraceError, match=r"segment-000000\.frames: since the trace was opened it was sealed or deleted"
    ):
        stream.index(0, 2)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_nothing_wrong_is_ever_read_from_a_damaged_journal(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    """Flips, cuts, noise and copies of stretches, anywhere: each record read is one that was written, once."""
    folder = make_folder(tmp_path_factory.mktemp("journal"))
    third = segment(2, [(B, [13, 14]), (A, [15])], end={})
    damaged = False
    for number, whole in enumerate((OLD, NEW, third)):
        changed = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, max(0, len(changed) - 1)))
            kind = data.draw(st.sampled_from(["flip", "cut", "noise", "copy", "drop"]))
            if kind == "flip" and changed:
                changed[at] ^= 1 << data.draw(st.integers(0, 7))
            elif kind == "cut":
                del changed[at:]
            elif kind == "noise":
                changed[at:at] = data.draw(st.binary(max_size=200))
            elif kind == "copy":
                changed += whole[data.draw(st.sampled_from([h.start for h in positions(whole)])) :]
            else:
                del changed[at : at + data.draw(st.integers(0, 300))]
        layout.segment_path(folder, number).write_bytes(changed)
        damaged |= not is_intact(bytes(changed))
    written = {"a": [0, 1, 3, 4, 5, 8, 9, 10, 12, 15], "b": [2, 6, 7, 11, 13, 14]}
    source = JournalSource(folder)
    for name, ids in records_of(source).items():
        assert len({*ids}) == len(ids)
        assert {*ids} <= {*written[name]}
        assert source.damage or ids == sorted(ids)
    assert source.damage or not damaged


def is_intact(data: bytes) -> bool:
    """Whether bytes are whole frames, one behind the other: what is missing of them then cannot be seen."""
    try:
        for head in frames.heads(data):
            frames.check(memoryview(data), head)
    except FrameError:
        return False
    return True


@pytest.mark.slow
def test_what_a_killed_writer_flushed_is_there(tmp_path: Path) -> None:
    """SIGKILL at a random moment, again and again: every record that was flushed is read, in order, and right."""
    clock = random.Random(5)  # noqa: S311 - reproducible
    for trial in range(15):
        folder = tmp_path / str(trial)
        writer = Writer(folder, segment_bytes=clock.choice([2_000, 20_000, 1 << 20]))
        assert writer.line()
        time.sleep(clock.uniform(0, 0.15))
        flushed = writer.kill()
        with JournalSource(folder) as source:
            ids = all_of(records_of(source))
            assert ids == list(range(len(ids)))
            assert len(ids) >= flushed > 0
            assert source.info.state == "killed"
            assert all(damage.torn for damage in source.damage)


def test_end_frames_of_several_kinds(tmp_path: Path) -> None:
    """Counts that an end frame lacks are none."""
    source = JournalSource(make_folder(tmp_path, {0: OLD + end_frame(failure="OSError: x", lost={"a": 2})}))
    assert source.info.state == "stopped early"
    assert source.info.dropped == {"a": 2}
    assert source.info.notes[0] == "recording stopped early: OSError: x"


@pytest.mark.slow
def test_opening_takes_little_memory_for_each_frame(tmp_path: Path) -> None:
    """A journal may have millions of them."""
    frame = bytearray(record_frame(A, [0]))
    (head,) = positions(bytes(frame))
    parts = [segment(0, [(A, [])])]
    count = 200_000
    for number in range(count):
        struct.pack_into("<Q", frame, head.payload, number)
        struct.pack_into("<I", frame, head.end - 4, crc32c.crc32c(frame[:-4]))
        parts.append(bytes(frame))
    folder = make_folder(tmp_path, {0: b"".join(parts)})
    code = (
        "import sys\n"
        "from tracerec.journal.reading import JournalSource\n"
        "def anonymous():\n"
        "    lines = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "    return int(lines['RssAnon'].split()[0]) * 1024\n"
        "before = anonymous()\n"
        "source = JournalSource(sys.argv[1])\n"
        "print(source.info.records, anonymous() - before)\n"
    )
    output = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, capture_output=True).stdout
    records, grown = map(int, output.split())
    assert records == count
    assert grown < 80 * count
