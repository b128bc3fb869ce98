from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from tests.journal.folders import (
    RUN_ID,
    A,
    B,
    arrays_of,
    end_frame,
    head_frame,
    ids_of,
    make_folder,
    record_frame,
    segment,
)
from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.journal.writing import JournalWriter, SegmentHead
from tracerec.protocol import frames

if TYPE_CHECKING:
    from pathlib import Path

IDS = [[0, 1], [2, 3, 4], [5], [6, 7]]


def whole(*, head: bool = True) -> dict[int, bytes]:
    """Four segments with records 0 to 7."""
    last = {3: {}}
    return {n: segment(n, [(A, ids)], head=head, end=last.get(n)) for n, ids in enumerate(IDS)}


def read(folder: Path, **options) -> tuple[list[int], list[str]]:
    """The records read, and what is said of each file that is not as it should be."""
    with JournalSource(folder, **options) as source:
        ids = ids_of(source.streams[0]) if source.streams else []
        assert all(str(damage) in source.info.notes for damage in source.damage)
        assert not any(damage.torn for damage in source.damage)
        return ids, [f"{damage.file}: {damage.reason}" for damage in source.damage]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1:])
def test_renamed_segments_are_read_in_their_own_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    """The head says which segment it is, and the name that is wrong is told."""
    segments = whole()
    ids, said = read(make_folder(tmp_path, {n: segments[k] for n, k in enumerate(order)}))
    assert ids == list(range(8))
    assert said == [
        f"segment-{n:06d}.frames: it is segment {k} by its first frame, and is read as that"
        for n, k in enumerate(order)
        if n != k
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1:])
def test_renamed_segments_without_heads_are_read_in_the_order_of_arrival(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Before version 1.2 only the records tell it."""
    segments = whole(head=False)
    ids, said = read(make_folder(tmp_path, {n: segments[k] for n, k in enumerate(order)}))
    assert ids == list(range(8))
    assert said == [
        f"segment-{n:06d}.frames: its records did not arrive in the order of the segments' names"
        for n, k in enumerate(order)
        if n != k
    ]


def test_segments_that_overlap_a_little_are_in_order(tmp_path: Path) -> None:
    """A batch is written site by site, so that arrival numbers of two segments may cross; that is no fault."""
    segments = {0: segment(0, [(A, [0, 4, 5])], head=False), 1: segment(1, [(A, [1, 2, 6]), (A, [7])], head=False)}
    assert read(make_folder(tmp_path, segments)) == ([0, 4, 5, 1, 2, 6, 7], [])


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (1, 2), (0, 2)])
@pytest.mark.parametrize("head", [True, False])
def test_a_missing_segment_is_named(tmp_path: Path, missing: tuple[int, ...], *, head: bool) -> None:
    """The others are read."""
    segments = {n: data for n, data in whole(head=head).items() if n not in missing}
    ids, said = read(make_folder(tmp_path, segments))
    assert ids == [i for n, some in enumerate(IDS) if n not in missing for i in some]
    if missing == (1, 2):
        assert said == ["segment-000001.frames: it is missing, and so are those up to segment-000002.frames"]
    else:
        assert said == [f"segment-{n:06d}.frames: it is missing" for n in missing]


def test_a_gap_of_any_width_costs_nothing(tmp_path: Path) -> None:
    """A file of a huge number is not waited for."""
    segments = whole() | {999_999_999_999: segment(999_999_999_999, [(A, [8])])}
    ids, said = read(make_folder(tmp_path, segments))
    assert ids == list(range(9))
    assert said == ["segment-000004.frames: it is missing, and so are those up to segment-999999999998.frames"]


@pytest.mark.parametrize("copied", range(4))
def test_a_copy_of_a_segment_is_left_out(tmp_path: Path, copied: int) -> None:
    """Its head gives it away; records are not doubled."""
    segments = whole()
    ids, said = read(make_folder(tmp_path, segments | {4: segments[copied]}))
    assert ids == list(range(8))
    assert said == [f"segment-000004.frames: there is another segment {copied}, and this one is left out"]


def test_a_copy_over_another_segment_leaves_that_one_missing(tmp_path: Path) -> None:
    """Both are told."""
    segments = whole()
    ids, said = read(make_folder(tmp_path, segments | {1: segments[2]}))
    assert ids == [0, 1, 5, 6, 7]
    assert said == [
        "segment-000001.frames: there is another segment 2, and this one is left out",
        "segment-000001.frames: it is missing",
    ]


@pytest.mark.parametrize("copied", range(4))
def test_a_copy_of_a_segment_without_a_head_is_left_out(tmp_path: Path, copied: int) -> None:
    """Its frames are those of another, with the same arrival numbers."""
    segments = whole(head=False)
    ids, said = read(make_folder(tmp_path, segments | {4: segments[copied]}))
    assert ids == list(range(8))
    assert said == ["segment-000004.frames: 1 frames that repeat others, and are left out"]


def test_other_records_with_known_arrival_numbers_are_kept_and_told(tmp_path: Path) -> None:
    """They are no copies, so that leaving them out would lose them."""
    segments = {0: segment(0, [(A, [0, 1])]), 1: segment(1, [(A, [1, 2])]), 2: segment(2, [(A, [1])], end={})}
    ids, said = read(make_folder(tmp_path, segments))
    assert ids == [0, 1, 1, 2, 1]
    assert said == ["segment-000002.frames: 1 frames with arrival numbers that others have"]


def test_frames_copied_behind_their_segment_are_left_out(tmp_path: Path) -> None:
    """A whole segment appended to itself."""
    data = segment(0, [(A, [0]), (B, [1]), (A, [2])])
    source = JournalSource(make_folder(tmp_path, {0: data + data, 1: segment(1, [(A, [3])], end={})}))
    assert [ids_of(stream) for stream in source.streams] == [[0, 2, 3], [1]]
    assert ["head of another" in d.reason or "repeat" in d.reason for d in source.damage] == [True] * 3


def test_a_segment_of_another_run_is_left_out(tmp_path: Path) -> None:
    """So is one in the place of another."""
    foreign = segment(1, [(A, [100])], run_id="f" * 32)
    ids, said = read(make_folder(tmp_path, whole() | {1: foreign}))
    assert ids == [0, 1, 5, 6, 7]
    assert said == [
        f"segment-000001.frames: it is of another run, {'f' * 32}, and is left out",
        "segment-000001.frames: it is missing",
    ]


def test_retired_segments_are_not_missed(tmp_path: Path) -> None:
    """The manifest says that they were deleted on purpose; one of them that is still there is left out."""
    segments = whole()
    del segments[0]
    assert read(make_folder(tmp_path, segments, first_segment=2)) == ([5, 6, 7], [])


@pytest.mark.parametrize("skip", [{0}, {1, 2}, {0, 1, 2, 3}, {2}])
def test_segments_to_skip_are_neither_read_nor_missed(tmp_path: Path, skip: set[int]) -> None:
    """Whether they are still there or not."""
    expected = [i for n, some in enumerate(IDS) if n not in skip for i in some]
    folder = make_folder(tmp_path, whole())
    assert read(folder, skip=skip) == (expected, [])
    for number in skip:
        layout.segment_path(folder, number).unlink()
    assert read(folder, skip=skip) == (expected, [])


def test_a_segment_sealed_meanwhile_is_told_from_a_missing_one(tmp_path: Path) -> None:
    """Its part is there, so that whoever opens both looks again."""
    segments = whole()
    del segments[1], segments[2], segments[3]
    folder = make_folder(tmp_path, segments | {4: segment(4, [(A, [8])])})
    for number in (2, 3, 5):
        (folder / f"part-{number:06d}.h5").write_bytes(b"")
    with JournalSource(folder, skip={3}) as source:
        # number 5 too, although no segment shows that there was one
        assert source.sealed == {2, 5}
        assert [damage.file for damage in source.damage] == ["segment-000001.frames"]
        assert "segments 2, 5 were sealed while the journal was opened, and are not read" in source.info.notes


def test_one_segment_alone(tmp_path: Path) -> None:
    """What is wrong with others is not said."""
    segments = whole()
    folder = make_folder(tmp_path, {0: segments[0][:-3], 1: segments[2], 2: segments[1], 4: segments[0]})
    assert read(folder, only=1) == (
        [2, 3, 4],
        [
            "segment-000001.frames: it is segment 2 by its first frame, and is read as that",
            "segment-000002.frames: it is segment 1 by its first frame, and is read as that",
        ],
    )
    assert read(folder, only=3) == ([], ["segment-000003.frames: it is missing"])
    with JournalSource(folder, only=0) as source:
        assert [damage.file for damage in source.damage] == ["segment-000004.frames", "segment-000000.frames"]
        assert "another segment 0" in source.damage[0].reason
        assert "cut off" in source.damage[1].reason


def test_a_damaged_head_leaves_the_segment_its_name(tmp_path: Path) -> None:
    """Its records are read at that place."""
    segments = whole()
    data = bytearray(segments[1])
    data[140] ^= 1
    ids, said = read(make_folder(tmp_path, segments | {1: bytes(data)}))
    assert ids == list(range(8))
    assert len(said) == 1
    assert said[0].startswith("segment-000001.frames: frame at byte 0: checksum")


def test_the_end_of_an_attempt_is_torn_and_an_older_segment_is_damaged(tmp_path: Path) -> None:
    """The heads say where an attempt ends: only there does a cut look like a kill."""
    cut = segment(0, [(A, [0]), (A, [1, 2])])[:-10]
    behind = {1: segment(1, [(A, [3])], attempt=0), 2: segment(2, [(A, [4])], attempt=1, end={})}
    with JournalSource(make_folder(tmp_path, {0: cut, **behind})) as source:
        assert [(d.torn, d.records) for d in source.damage] == [(False, None)]
    behind[1] = segment(1, [(A, [3])], attempt=1)
    with JournalSource(make_folder(tmp_path, behind)) as source:
        assert [(d.torn, d.records) for d in source.damage] == [(True, 2)]
        assert ids_of(source.streams[0]) == [0, 3, 4]
    # an attempt that died before it wrote
    behind = {1: b"", 2: segment(2, [(A, [4])], attempt=2, end={})}
    with JournalSource(make_folder(tmp_path, behind)) as source:
        assert [(d.torn, d.records) for d in source.damage] == [(True, 2)]


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for, a link followed out of the folder."""
    folder = make_folder(tmp_path / "run", whole())
    path = layout.segment_path(folder, 1)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TraceFormatError, match=r"segment-000001\.frames is not a regular file"):
        JournalSource(folder)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TraceFormatError, match="cannot be read"):
        JournalSource(folder)


def test_a_folder_that_goes_while_it_is_opened_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that is closed deletes its journal, in any order: half of it must not be taken for all."""
    folder = make_folder(tmp_path, whole())
    real = layout.segments

    def and_then_gone(where: Path) -> list[Path]:
        found = real(where)
        for path in (found[0], found[3], folder / layout.MANIFEST):
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(layout, "segments", and_then_gone)
    with pytest.raises(TraceNotFound):
        JournalSource(folder)


def test_a_segment_that_is_sealed_between_two_looks_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is then sealed, and not lost."""
    folder = make_folder(tmp_path, whole())
    from tracerec.journal import reading

    real = reading.SegmentBytes

    def sealed_first(path: Path, *args, **options):
        if path.name == "segment-000001.frames":
            (folder / "part-000001.h5").write_bytes(b"")
            path.unlink(missing_ok=True)
        return real(path, *args, **options)

    monkeypatch.setattr(reading, "SegmentBytes", sealed_first)
    with JournalSource(folder) as source:
        assert source.sealed == {1}
        assert ids_of(source.streams[0]) == [0, 1, 5, 6, 7]


def test_streams_come_as_they_were_first_seen(tmp_path: Path) -> None:
    """Also when the segments were renamed."""
    first, second = segment(0, [(B, [0]), (A, [1])]), segment(1, [(A, [2]), (B, [3])])
    with JournalSource(make_folder(tmp_path, {0: second, 1: first})) as source:
        assert [stream.site.name for stream in source.streams] == ["b", "a"]
        assert [ids_of(stream) for stream in source.streams] == [[0, 3], [1, 2]]


def test_frames_without_records_are_no_matter(tmp_path: Path) -> None:
    """A frame may hold none."""
    data = segment(0, [(A, [])]) + record_frame(A, [0]) + end_frame()
    with JournalSource(make_folder(tmp_path, {0: data})) as source:
        assert ids_of(source.streams[0]) == [0]
        assert source.damage == ()
    with JournalSource(make_folder(tmp_path / "none", {0: segment(0, [(A, [])], end={})})) as source:
        assert len(source.streams) == 0
    with JournalSource(make_folder(tmp_path / "bare", {0: head_frame(0)})) as source:
        assert (len(source.streams), source.damage) == (0, ())


def test_an_older_segment_cut_off_between_two_frames_is_noticed(tmp_path: Path) -> None:
    """It looks whole; the next one says how long it was. So is one that is cut to nothing."""
    made = tmp_path / "made"
    made.mkdir()
    writer = JournalWriter(made, 1, head=SegmentHead(RUN_ID, 0))
    for first in (0, 2, 4):
        writer.append(A, arrays_of(A, [first]))
        writer.append(A, arrays_of(A, [first + 1]))
    writer.flush()
    writer.close()
    segments = {layout.segment_number(path): path.read_bytes() for path in layout.segments(made)}
    assert len(segments) > 2
    assert read(make_folder(tmp_path / "whole", segments)) == ([*range(6)], [])
    whole = segments[1]
    ends = [head.end for head in frames.heads(whole)][:-1]
    for number, end in enumerate([0, *ends]):
        folder = make_folder(tmp_path / f"{number}", {**segments, 1: whole[:end]})
        with JournalSource(folder) as source:
            (damage,) = [d for d in source.damage if d.reason == "it was cut off"]
            assert (damage.file, damage.offset, damage.nbytes) == ("segment-000001.frames", end, len(whole) - end)
            assert not damage.torn
            assert str(damage) in source.info.notes


def test_the_last_segment_of_an_earlier_attempt_cut_off_between_two_frames_is_noticed(tmp_path: Path) -> None:
    """The first segment of the next attempt says how long it was."""
    made = tmp_path / "made"
    made.mkdir()
    for attempt in (0, 1):
        writer = JournalWriter(made, head=SegmentHead(RUN_ID, attempt), first=attempt)
        writer.append(A, arrays_of(A, [2 * attempt]))
        writer.append(A, arrays_of(A, [2 * attempt + 1]))
        writer.flush()
        writer.close()
    segments = {layout.segment_number(path): path.read_bytes() for path in layout.segments(made)}
    assert read(make_folder(tmp_path / "whole", segments)) == ([*range(4)], [])
    whole = segments[0]
    for number, head in enumerate([*frames.heads(whole)][:-1]):
        with JournalSource(make_folder(tmp_path / f"{number}", {**segments, 0: whole[: head.end]})) as source:
            (damage,) = [d for d in source.damage if d.reason == "it was cut off"]
            assert (damage.file, damage.nbytes) == ("segment-000000.frames", len(whole) - head.end)
