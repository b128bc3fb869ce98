from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats.contract import RunInfo
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.journal.writing import JournalWriter
from tracerec.model import INDEX_DTYPE, Column, Leaf, Site
from tracerec.protocol import frames

if TYPE_CHECKING:
    from pathlib import Path

SITE = Site("a", (Leaf("", (3,), "bfloat16"),), (Column("step", "int64", (), "int"), Column("lr", "float64")))


def rows(n: int, first: int = 0) -> np.ndarray:
    """Index rows as the frame carries them."""
    table = np.zeros(n, INDEX_DTYPE)
    table["arrival"] = table["step"] = np.arange(first, first + n)
    return table.view(np.uint8).reshape(n, INDEX_DTYPE.itemsize)


def frame_of(n: int, first: int = 0, site: Site = SITE) -> list[np.ndarray]:
    """The arrays of one frame: values that tell which record they are."""
    leaf = site.leaves[0]
    ids = np.arange(first, first + n)
    data = np.broadcast_to(ids.reshape(n, *(1 for _ in leaf.shape)), (n, *leaf.shape))
    from tracerec.protocol import dtypes

    return [rows(n, first), np.ascontiguousarray(data.astype(dtypes.from_name(leaf.dtype))), ids.astype(np.float64) / 7]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A live folder with its manifest."""
    layout.write_manifest(tmp_path, RunInfo(run_id="0" * 32, started=1, metadata={"a": [1]}))
    return tmp_path


def written(folder: Path, counts: list[int], *, end: bool = True, **options: Any) -> JournalWriter:
    """Writes frames of so many records each."""
    writer = JournalWriter(folder, **options)
    first = 0
    for n in counts:
        writer.append(SITE, frame_of(n, first))
        first += n
    writer.flush()
    if end:
        writer.end({"ended": 2, "dropped": {"x": 3}})
    return writer


@pytest.mark.parametrize("segment_bytes", [1, 1200, 64 << 20])
def test_what_was_written_is_read_back_over_frames_and_segments(folder: Path, segment_bytes: int) -> None:
    """Every range of records is right, however they were cut into frames and segments."""
    written(folder, [3, 1, 5, 2], segment_bytes=segment_bytes)
    assert (len(layout.segments(folder)) > 1) is (segment_bytes < 64 << 20)
    source = JournalSource(folder)
    (stream,) = source.streams
    assert stream.site == SITE
    assert stream.records == 11
    for start in range(12):
        for stop in range(start, 12):
            expected = np.arange(start, stop)
            assert stream.index(start, stop)["step"].tolist() == expected.tolist()
            assert stream.leaf(0, start, stop).astype(np.float64)[:, 2].tolist() == expected.tolist()
            assert stream.leaf(0, start, stop).shape == (stop - start, 3)
            assert stream.column(0, start, stop).tolist() == expected.tolist()
            assert stream.column(1, start, stop).tolist() == (expected / 7).tolist()
    assert source.info.clean
    assert source.info.dropped == {"x": 3}
    assert source.info.metadata == {"a": [1]}
    assert source.info.records == 11
    assert source.info.notes == ("3 records are missing: they were dropped or could not be written",)


def test_each_segment_stands_alone(folder: Path) -> None:
    """A segment repeats the definitions of the sites that it uses."""
    written(folder, [1, 1, 1], segment_bytes=1)
    for path in layout.segments(folder)[:3]:
        ids = [head.consumer_id for head in frames.heads(path.read_bytes())]
        assert ids[:2] == [frames.DEFINE, SITE.id]


def test_a_journal_cut_at_any_byte_reads_to_its_last_whole_frame(folder: Path) -> None:
    """A kill in the middle of a write loses that frame alone, and the reader says so."""
    written(folder, [2, 1, 1])
    (path,) = layout.segments(folder)
    whole = path.read_bytes()
    ends = {head.end: head.consumer_id for head in frames.heads(whole)}
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        source = JournalSource(folder)
        frames_left = sum(1 for end, consumer in ends.items() if end <= cut and consumer == SITE.id)
        expected = [0, 2, 3, 4][frames_left]
        assert source.info.records == expected
        assert not source.info.clean
        at_boundary = cut in ends or cut == 0
        assert any("bytes at the end were not read" in note for note in source.info.notes) is not at_boundary
        if expected:
            assert source.streams[0].index(0, expected)["step"].tolist() == list(range(expected))


def test_a_flipped_bit_ends_what_is_read_and_is_told(folder: Path) -> None:
    """The checksum finds it; nothing wrong is returned."""
    written(folder, [1, 1, 1])
    (path,) = layout.segments(folder)
    data = bytearray(path.read_bytes())
    second = [head for head in frames.heads(bytes(data)) if head.consumer_id == SITE.id][1]
    data[second.payload + 5] ^= 4
    path.write_bytes(data)
    source = JournalSource(folder)
    assert source.info.records == 1
    assert "checksum" in source.info.notes[1]


def test_frames_that_are_not_those_of_their_site_are_refused(folder: Path) -> None:
    """A whole frame with the wrong arrays, or of a site never defined, is damage, not a crash."""
    other = Site("other", (Leaf("", (), "int8"),))
    define = frames.encode(frames.DEFINE, [np.frombuffer(b'{"name": 1}', np.uint8)])
    bad = [
        frames.encode(SITE.id, [rows(1)]),
        frames.encode(other.id, [rows(1), np.zeros(1, np.int8)]),
        frames.encode(frames.END, [np.frombuffer(b"[" * 100_000, np.uint8)]),
        define,
        frames.encode(SITE.id, []),
    ]
    for buffers in bad:
        for path in layout.segments(folder):
            path.unlink()
        written(folder, [1], end=False).close()
        with layout.segments(folder)[0].open("ab") as file:
            file.writelines(buffers)
        source = JournalSource(folder)
        assert source.info.records == 1
        assert len(source.info.notes) == 2


def test_short_writes_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write any part of what it was given."""
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [bytes(views[0])[:7]]))
    written(folder, [2, 3])
    monkeypatch.undo()
    assert JournalSource(folder).info.records == 5


def test_more_buffers_than_the_system_takes_at_once_are_split(folder: Path) -> None:
    """Linux refuses more than 1,024 buffers a call."""
    writer = JournalWriter(folder)
    for i in range(3000):
        writer.append(SITE, frame_of(1, i))
    writer.end({})
    assert JournalSource(folder).info.records == 3000


def test_a_failed_write_leaves_whole_frames_and_the_writer_can_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the segment is cut back to its last whole frame."""
    writer = written(folder, [2], end=False)
    real = os.writev

    def full(fd: int, views: list[Any]) -> int:
        real(fd, [bytes(views[0])[:50]])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    writer.append(SITE, frame_of(1, 2))
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    writer.append(SITE, frame_of(1, 3))
    writer.end({})
    source = JournalSource(folder)
    assert source.info.clean
    assert writer.written == {"a": 3}
    assert writer.lost == {"a": 1}
    assert source.streams[0].index(0, 3)["step"].tolist() == [0, 1, 3]


def test_folders_that_are_no_journal_are_told_apart(tmp_path: Path) -> None:
    """No manifest, a damaged one, another program's, a newer version's."""
    with pytest.raises(TraceNotFound, match=r"no recording, it has no manifest.json"):
        JournalSource(tmp_path)
    manifest = tmp_path / "manifest.json"
    for text, message in [
        ("{", "damaged manifest"),
        ("[]", "damaged manifest"),
        ('{"format": "other", "version": [1, 0], "run": {}}', "not the manifest of a tracerec journal"),
        ('{"format": "tracerec-journal", "version": [2, 0], "run": {}}', "version 2 is newer.*upgrade"),
        ('{"format": "tracerec-journal", "version": [1, 0], "run": {}}', "damaged manifest"),
    ]:
        manifest.write_text(text)
        with pytest.raises(TraceFormatError, match=message):
            JournalSource(tmp_path)


def test_run_information_of_a_newer_minor_version_is_read(folder: Path) -> None:
    """Unknown fields are left alone."""
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"run": {', '"run": {"news": 1, ').replace("[1, 0]", "[1, 9]", 1))
    assert JournalSource(folder).info.started == 1
