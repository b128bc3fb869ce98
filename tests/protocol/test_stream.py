"""Streams of frames: pieces cut anywhere, damage, and the good frames behind it."""

from __future__ import annotations

import itertools
import mmap
import struct
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.support import arrays, content, described, joined, packed, sealed
from tracerec.protocol import frames, resync
from tracerec.protocol.stream import Counts, FrameStream, Gap, scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

VALUES = [[np.full((4 + k,), k, np.int32), np.arange(k, dtype=np.float64)] for k in range(6)]
GOOD = [joined(10 + k, values) for k, values in enumerate(VALUES)]
STARTS = [0, *itertools.accumulate(map(len, GOOD))]

streams = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.lists(arrays(), max_size=3)), min_size=1, max_size=5)


def fed(pieces: Iterable[bytes], **options: int) -> tuple[list[frames.Frame], Counts]:
    """The frames of a stream that comes in pieces, and its counts once it is closed."""
    stream = FrameStream(**options)
    found = [frame for piece in pieces for frame in stream.feed(piece)]
    return found + stream.close(), stream.counts


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces."""
    ends = sorted({min(p, len(data)) for p in places} | {len(data)})
    return [data[a:b] for a, b in itertools.pairwise([0, *ends])]


def ids(data: bytes) -> list[int]:
    """The consumer ids of the frames that `scan` finds; it and a stream agree on all they say."""
    items = list(scan(data))
    assert [0, *(item.end for item in items)] == [*(starts(items)), len(data)]
    assert [type(a) is type(b) is Gap for a, b in itertools.pairwise(items)] == [False] * (len(items) - 1)
    gaps = [item for item in items if isinstance(item, Gap)]
    found, counts = fed([data])
    whole = [item for item in items if isinstance(item, frames.Frame)]
    assert [(f.head, content(f)) for f in found] == [(f.head, content(f)) for f in whole]
    assert counts == Counts(
        frames=len(whole),
        corrupt=sum(not gap.torn for gap in gaps),
        skipped_bytes=sum(gap.end - gap.start for gap in gaps if not gap.torn),
        torn=sum(gap.end - gap.start for gap in gaps if gap.torn),
    )
    return [frame.consumer_id for frame in whole]


def starts(items: Sequence[frames.Frame | Gap]) -> list[int]:
    """Where each item begins."""
    return [item.start if isinstance(item, Gap) else item.head.start for item in items]


@given(streams, st.lists(st.integers(0, 2000)))
def test_any_cut_into_pieces_gives_the_same_frames(sent: list, places: list[int]) -> None:
    """Frames come out whole, in order, bit for bit, wherever the pieces begin and end."""
    data = b"".join(joined(*frame) for frame in sent)
    found, counts = fed(cut(data, places))
    assert [content(f) for f in found] == [described(*frame) for frame in sent]
    assert counts == Counts(frames=len(sent))
    assert [f.head.start for f in found] == [0, *(f.end for f in found)][:-1]


def test_single_bytes_give_each_frame_as_soon_as_it_is_whole() -> None:
    """A frame comes with its last byte; nothing is held back for the next."""
    stream = FrameStream()
    data = b"".join(GOOD)
    ends = [at + 1 for at in range(len(data)) if stream.feed(data[at : at + 1])]
    assert ends == STARTS[1:]


@given(streams, st.data())
def test_any_mutation_gives_no_wrong_value_and_loses_no_other_frame(sent: list, data: st.DataObject) -> None:
    """Bytes replaced, removed or put in: what comes is what was sent, and all frames before and behind are there."""
    whole = b"".join(joined(*frame) for frame in sent)
    first, last = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    junk = data.draw(st.one_of(st.binary(max_size=300), st.sampled_from([b"\x82\x08\0\0" * 40, whole[:200]])))
    mutated = whole[:first] + junk + whole[last:]
    edges = [0, *itertools.accumulate(len(joined(*frame)) for frame in sent)]
    sent_contents = [described(*frame) for frame in sent]
    untouched = [c for c, a, b in zip(sent_contents, edges, edges[1:], strict=False) if b <= first or a >= last]
    found, counts = fed(cut(mutated, data.draw(st.lists(st.integers(0, 2000)))))
    contents = iter([content(f) for f in found])
    assert all(content(f) in sent_contents for f in found)
    assert all(c in contents for c in untouched), "a frame that was not touched is missing, or out of order"
    assert counts.frames == len(found)
    scanned = [item for item in scan(mutated) if isinstance(item, frames.Frame)]
    assert [content(f) for f in scanned] == [content(f) for f in found]
    assert sum(f.end - f.head.start for f in found) + counts.skipped_bytes + counts.torn == len(mutated)


@pytest.mark.parametrize("place", ["magic", "id", "length", "metadata", "padding", "array", "checksum"])
def test_one_flipped_bit_costs_one_frame(place: str) -> None:
    """Wherever it is, the frames before and behind are there, and the damage is one stretch."""
    at = {"magic": 1, "id": 6, "length": 12, "metadata": 19, "padding": 90, "array": 130, "checksum": -2}[place]
    data = bytearray(b"".join(GOOD))
    data[(STARTS[3] if at < 0 else STARTS[2]) + at] ^= 16
    assert ids(bytes(data)) == [10, 11, 13, 14, 15]
    (gap,) = (item for item in scan(data) if isinstance(item, Gap))
    assert (gap.start, gap.end, gap.torn) == (STARTS[2], STARTS[3], False)
    assert f"at byte {STARTS[2]}" in gap.reason


@pytest.mark.parametrize("size", [1, 3, 4, 16, 127, 128, 140])
def test_a_torn_tail_is_kept_until_more_comes_and_told_at_the_end(size: int) -> None:
    """What begins as a frame waits for the rest; closing counts it as torn, not as damage."""
    stream = FrameStream()
    assert [f.consumer_id for f in stream.feed(GOOD[0] + GOOD[1][:size])] == [10]
    assert [f.consumer_id for f in stream.feed(GOOD[1][size:] + GOOD[2][:size])] == [11]
    assert stream.counts == Counts(frames=2)
    assert stream.close() == []
    assert stream.counts == Counts(frames=2, torn=size)
    assert stream.last_gap is not None
    assert stream.last_gap.torn
    assert "cut off" in stream.last_gap.reason
    assert ids(GOOD[0] + GOOD[1] + GOOD[2][:size]) == [10, 11]


def test_a_frame_cut_short_in_the_middle_of_a_stream() -> None:
    """A write that failed, and further writes behind it: only the frame that was cut is lost."""
    for size in range(1, len(GOOD[2])):
        data = b"".join(GOOD[:2]) + GOOD[2][:size] + b"".join(GOOD[3:])
        assert ids(data) == [10, 11, 13, 14, 15]


def test_equal_frames_behind_one_cut_by_a_whole_frame_are_all_found() -> None:
    """The cut frame's end falls on a frame's end; the frames between are still frames of the stream."""
    long = joined(7, [np.zeros(3 * len(GOOD[0]), np.uint8)])
    for short in range(1, 4):
        data = long[: len(long) - short * len(GOOD[0])] + GOOD[0] * 5
        assert ids(data) == [10] * 5


def test_frames_inside_a_damaged_frame_are_its_payload() -> None:
    """Somebody records the bytes of a recording: a damaged record gives no records of another run."""
    inner = np.frombuffer(b"".join(GOOD[:3]), np.uint8)
    outer = bytearray(joined(99, [inner, np.arange(5)]))
    assert ids(bytes(outer) + GOOD[4]) == [99, 14]
    outer[-20] ^= 1
    assert ids(bytes(outer) + GOOD[4]) == [14]
    assert ids(bytes(outer)) == []
    assert ids(bytes(outer) + GOOD[4][:50]) == []
    assert ids(bytes(outer) * 2 + GOOD[4]) == [14]


def test_a_damaged_size_that_ends_at_a_later_frame_hides_none() -> None:
    """The header says so, another header is there, and yet the frames between are found."""
    altered = bytearray(joined(7, [np.zeros(100, np.uint8)]))
    extra = len(GOOD[0]) + len(GOOD[1])
    old, new = packed([(4, [100])]), packed([(4, [100 + extra])])
    altered[12:16] = struct.pack("<I", len(new))
    altered[16 : 16 + max(len(old), len(new))] = new
    assert frames.peek(altered + b"".join(GOOD)).end == len(altered) + extra
    assert ids(bytes(altered) + b"".join(GOOD)) == [10, 11, 12, 13, 14, 15]
    assert ids(bytes(altered) + b"".join(GOOD[:2])) == [10, 11]


def test_a_damaged_size_that_ends_inside_an_intact_frame_is_not_believed() -> None:
    """A header stands there, in the payload of an intact frame: neither it nor the loss of the others is taken."""
    inner = np.frombuffer(GOOD[3], np.uint8)
    outer = joined(99, [np.zeros(10, np.uint8), inner])
    size = len(GOOD[0]) + 128 + 10
    altered = bytearray(joined(7, [np.zeros(100 + size, np.uint8)])[:128]) + bytes(104)
    assert frames.peek(altered + GOOD[0] + outer).end == len(altered) + size
    assert ids(bytes(altered) + GOOD[0] + outer + GOOD[4]) == [10, 99, 14]


def test_frames_that_never_become_whole_hide_none_at_the_end() -> None:
    """A damaged size beyond the end: the frames behind come at the latest when the stream is closed."""
    altered = sealed(packed([(4, [10**8])]), bytes(16))
    stream = FrameStream()
    assert [f.consumer_id for f in stream.feed(GOOD[0] + altered + GOOD[1] + GOOD[2])] == [10]
    assert [f.consumer_id for f in stream.close()] == [11, 12]
    assert stream.counts == Counts(frames=3, corrupt=1, skipped_bytes=len(altered))
    assert ids(GOOD[0] + altered + GOOD[1] + GOOD[2]) == [10, 11, 12]


def test_a_frame_above_the_limit_is_damage_at_once() -> None:
    """With a limit, a damaged size cannot keep the frames behind it waiting; the reason tells the limit."""
    altered = sealed(packed([(4, [10**8])]), bytes(16))
    stream = FrameStream(max_frame_bytes=1000)
    assert [f.consumer_id for f in stream.feed(altered + GOOD[1])] == [11]
    assert stream.last_gap is not None
    assert "100000132 bytes by its header, at most 1000" in stream.last_gap.reason


def test_a_stream_holds_no_more_than_a_few_of_the_largest_frames() -> None:
    """Frames that declare the largest size, over and over, and garbage without end, take bounded memory."""
    head = struct.pack("<IIII", 2178, 0, 9, 9) + packed([(4, [90_000])])
    for unit in (head.ljust(40, b"\0"), head.ljust(128, b"\0") + bytes(5000), bytes(64), b"\x82\x08\0\0"):
        stream = FrameStream(max_frame_bytes=100_000)
        for _ in range(200):
            assert stream.feed(unit * (10_000 // len(unit))) == []
            held = len(stream._window.view) + len(stream._waiting)
            assert held <= 350_000
        stream.close()
        assert stream.counts.skipped_bytes + stream.counts.torn == 200 * (10_000 // len(unit)) * len(unit)


LONG = struct.pack("<IIII", 2178, 0, 9, 1 << 20)
HOSTILE = {
    "magic numbers": b"\x82\x08\0\0",
    "headers of nothing": LONG[:4] + b"\x90\0\0\0\1\0\0\0",
    "sizes within": (struct.pack("<IIII", 2178, 0, 9, 9) + packed([(4, [2**21])])).ljust(28, b"\0"),
    "sizes beyond": (struct.pack("<IIII", 2178, 0, 9, 9) + packed([(4, [2**40])])).ljust(28, b"\0"),
    "long metadata": LONG + b"\xdd\0\4\0\0" + b"\x92\4\x90" * 2,
    "good and bad": GOOD[0] + (struct.pack("<IIII", 2178, 0, 9, 9) + packed([(4, [2**21])])).ljust(128, b"\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_is_linear_whatever_the_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes made to cost much: checksums and headers are bounded by the length, not by its square."""
    work = {"checksum": 0, "metadata": 0, "headers": 0}
    checksum, head_at, specs = crc32c.crc32c, frames.head_at, frames._specs

    def counted_checksum(data: memoryview) -> int:
        work["checksum"] += len(data)
        return checksum(data)

    def counted_head(view: memoryview, position: int, base: int = 0) -> frames.FrameHead:
        work["headers"] += 1
        return head_at(view, position, base)

    def counted_specs(metadata: memoryview) -> tuple:
        work["metadata"] += len(metadata)
        return specs(metadata)

    monkeypatch.setattr(frames.crc32c, "crc32c", counted_checksum)
    monkeypatch.setattr(frames, "head_at", counted_head)
    monkeypatch.setattr(frames, "_specs", counted_specs)
    # The free work is for honest damage; without it the bound shows on few bytes.
    monkeypatch.setattr(resync, "_FREE_WORK", 0)
    monkeypatch.setattr(resync, "_FREE_FRAMES", 1)
    size = 4 << 20
    data = (HOSTILE[name] * (size // len(HOSTILE[name]) + 1))[:size]
    items = list(scan(data))
    assert items[-1].end == size
    assert work["checksum"] <= 70 * size
    assert work["metadata"] <= size + (2 << 20)
    assert work["headers"] <= size / 64


def test_pieces_may_be_reused_by_the_caller() -> None:
    """A buffer that is read into again and again: frames keep their values."""
    stream, buffer, found = FrameStream(), bytearray(50), []
    data = b"".join(GOOD)
    for start in range(0, len(data), 50):
        piece = data[start : start + 50]
        buffer[: len(piece)] = piece
        found += stream.feed(memoryview(buffer)[: len(piece)])
    whole = bytearray(data)
    other = FrameStream().feed(whole)
    whole[:] = bytes(len(whole))
    buffer[:] = bytes(50)
    expected = [described(10 + k, values) for k, values in enumerate(VALUES)]
    assert [content(f) for f in found] == [content(f) for f in other] == expected


def test_a_closed_stream_takes_nothing_more() -> None:
    """Feeding it is an error; closing it again is none."""
    stream = FrameStream()
    stream.feed(GOOD[0])
    assert stream.close() == stream.close() == []
    with pytest.raises(ValueError, match="closed"):
        stream.feed(b"")
    assert stream.counts == Counts(frames=1)


def test_a_file_is_scanned_from_any_frame(tmp_path: Path) -> None:
    """A map of a file and an offset, as recovering a journal has them; positions are those of the file."""
    path = tmp_path / "segment"
    path.write_bytes(b"".join(GOOD) + b"noise")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    items = list(scan(mapped, STARTS[4]))
    assert starts(items) == [STARTS[4], STARTS[5], STARTS[6]]
    assert isinstance(items[2], Gap)
    assert items[2].end == STARTS[6] + 5
    assert list(scan(mapped, len(mapped))) == []


def test_nothing_is_a_stream_too() -> None:
    """No bytes: no frames, no damage."""
    assert list(scan(b"")) == []
    assert fed([b"", b""]) == ([], Counts())


def test_long_metadata_in_pieces() -> None:
    """A header of many further words, cut everywhere, is one frame; so is the one behind it."""
    values = [np.full((i % 7,), i, np.int16) for i in range(2000)]
    data = joined(5, values) + GOOD[0]
    found, counts = fed(cut(data, range(0, len(data), 1000)))
    assert [content(f) for f in found] == [described(5, values), described(10, VALUES[0])]
    assert counts == Counts(frames=2)
