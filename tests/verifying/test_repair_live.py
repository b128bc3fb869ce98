"""Repairing what a killed run left: sealed to what it was to be, verified, and only then deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.journal.folders import A, arrays_of, make_folder, text_frame
from tests.support import ROOT
from tests.verifying.breaking import BREAKERS, edited, flip, intact
from tests.verifying.test_repair import assert_sound, info_of, records_of
from tools.fuzzed_recordings import made
from tracerec.errors import SealingError, TraceError
from tracerec.formats.hdf5.seal import seal
from tracerec.journal import layout
from tracerec.journal.lock import JournalLock
from tracerec.journal.reading import JournalSource
from tracerec.model import INDEX_DTYPE
from tracerec.protocol import frames
from tracerec.repairing import repair
from tracerec.salvaging.worker import work
from tracerec.verifying import verify


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The work is done in this process, which is faster; `test_repair_process` has the other."""
    monkeypatch.setattr("tracerec.repairing.run_order", lambda order: work(order, lambda: None))


@pytest.mark.parametrize("form", ["journal", "killed", "live"])
@pytest.mark.parametrize("by", ["run.h5", "run.h5.live"])
def test_a_journal_is_sealed(tmp_path, form, by):
    """By either name; the journal is gone, the recording is what it would have been."""
    intact(form, tmp_path)
    done = repair(tmp_path / by)
    assert (done.action, done.whole, done.kept_aside) == ("sealed", True, None)
    assert done.path == str(tmp_path / "run.h5.live")
    assert done.result == str(tmp_path / "run.h5")
    assert assert_sound(done, made(form).truth) == made(form).truth
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    assert info_of(done.result).state == ("killed" if form == "killed" else "clean")
    assert repair(tmp_path / by.removesuffix(".live")).action == "none"


@pytest.mark.parametrize("form", ["journal", "live"])
@pytest.mark.parametrize(
    ("name", "result"),
    [("other.h5.live", "other.h5"), ("other.live", "other"), ("kept", "kept.h5"), ("a.h5.damaged", "a.h5.damaged.h5")],
)
def test_the_name_of_the_folder_says_what_is_made(tmp_path, form, name, result):
    """Not that under which it was recorded; nothing else is touched."""
    path = intact(form, tmp_path)
    shutil.copytree(path, tmp_path / name)
    done = repair(tmp_path / name)
    assert (done.action, done.whole, done.result) == ("sealed", True, str(tmp_path / result))
    assert assert_sound(done, made(form).truth) == made(form).truth
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([result, "run.h5.live"])


def test_a_folder_without_a_form_in_its_name_keeps_that_of_the_recording(tmp_path):
    """An Arrow journal becomes an Arrow folder."""
    path = intact("journal", tmp_path)
    edited(path, lambda data: data["journal"].update(target="run.arrow"))
    path.rename(tmp_path / "kept")
    done = repair(tmp_path / "kept")
    assert (done.result, done.whole) == (str(tmp_path / "kept.arrow"), True)
    assert assert_sound(done, made("journal").truth) == made("journal").truth


@pytest.mark.parametrize("sealed", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_segments_beside_parts_are_intact(tmp_path, sealed):
    """Sealing some of them failed: they come before the records of a later part, and are no less in order for it."""
    path = intact("journal", tmp_path)
    for number in sealed:
        with contextlib.closing(JournalSource(path, only=number)) as source:
            seal(source, layout.part_path(path, number, ".h5"))
        layout.segment_path(path, number).unlink()
    assert verify(path).ok
    done = repair(path)
    assert (done.action, done.whole, done.fault_count, done.kept_aside) == ("sealed", True, 0, None)
    assert assert_sound(done, made("journal").truth) == made("journal").truth


def test_a_torn_end_is_no_loss(tmp_path):
    """What was being written when the run was killed had never been flushed; it is said in a note."""
    path = intact("killed", tmp_path)
    last = layout.segments(path)[-1]
    os.truncate(last, last.stat().st_size - 50)
    before = verify(path)
    assert before.ok
    (note,) = (note for note in before.notes if "at the end were not read" in note)
    done = repair(path)
    assert done.whole
    assert done.notes == (note,)
    found = assert_sound_but_torn(done, made("killed").truth)
    assert 0 < 223 - len(found) < 10
    assert note in info_of(done.result).notes


def assert_sound_but_torn(done, truth):
    """As `assert_sound`, of a recording whose last records were never flushed."""
    assert done.verification.ok
    found = records_of(done.result)
    assert found.items() <= truth.items()
    return found


def test_a_damaged_frame_costs_its_records_alone(tmp_path):
    """Frames behind it are kept, also in the last segment; the journal is kept aside."""
    path, truth = intact("killed", tmp_path), made("killed").truth
    for segment in (layout.segments(path)[0], layout.segments(path)[-1]):
        flip(segment, 0.4)
    found = verify(path)
    assert found.counts == {"frame-checksum": 2}
    done = repair(path)
    assert not done.whole
    assert 2 <= sum(done.lost.values()) <= 10
    assert_sound(done, truth)
    assert done.kept_aside == str(tmp_path / "run.h5.damaged")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "run.h5.damaged"]
    assert len(layout.segments(tmp_path / "run.h5.damaged")) == 3


def test_in_place_the_damaged_journal_goes(tmp_path):
    """Whoever asks for it gets the recording alone."""
    path = BREAKERS["frame-checksum"](tmp_path)
    done = repair(path, in_place=True)
    assert done.kept_aside is None
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_a_head_that_is_damaged(tmp_path):
    """Bytes of a frame's head: how many records it held is not known, and that is said."""
    path, truth = intact("killed", tmp_path), made("killed").truth
    segment = layout.segments(path)[1]
    data = bytearray(segment.read_bytes())
    head = list(frames.heads(bytes(data)))[4]
    data[head.start] ^= 1
    segment.write_bytes(data)
    done = repair(path)
    assert not sum(done.lost.values())
    (loss,) = done.losses
    assert f"{head.end - head.start} bytes at {head.start} were damaged" in loss
    assert "is not known" in loss
    assert len(truth) - len(assert_sound(done, truth)) < 10


@pytest.mark.parametrize("bad", [False, True])
def test_an_older_segment_that_was_cut_off_between_two_frames(tmp_path, bad):
    """It is told once, and only what was cut off, also where a frame before it is damaged."""
    path, truth = intact("killed", tmp_path), made("killed").truth
    segment = layout.segments(path)[0]
    whole = segment.read_bytes()
    heads = list(frames.heads(whole))
    data = bytearray(whole[: heads[-3].start])
    if bad:
        data[heads[4].start] ^= 1
    segment.write_bytes(data)
    done = repair(path)
    cut = [loss for loss in done.losses if "it was cut off" in loss]
    assert len(cut) == 1
    assert f"{len(whole) - len(data)} bytes from byte {len(data)} on" in cut[0]
    assert len(done.losses) == 1 + bad
    assert 0 < len(truth) - len(assert_sound(done, truth)) < 30


def test_segments_missing_doubled_and_misnamed(tmp_path):
    """A missing one is lost, a copy is left out, one with another's name is read as what it says it is."""
    path, truth = intact("killed", tmp_path), made("killed").truth
    one, two, three = layout.segments(path)
    shutil.copy(three, path / "segment-000009.frames")
    two.rename(path / "segment-000005.frames")
    found = verify(path)
    assert found.counts == {"segment-sequence": 2}
    done = repair(path)
    assert done.whole
    assert done.kept_aside is not None
    assert assert_sound(done, truth) == truth
    shutil.rmtree(done.kept_aside)
    (tmp_path / "run.h5").unlink()
    path = intact("killed", tmp_path)
    one.unlink()
    done = repair(path)
    assert done.losses == ("segment-000000.frames: it is missing",)
    assert_sound(done, truth)


@pytest.mark.parametrize("manifest", [None, "{", "[]", '{"format": "tracerec-journal", "version": [1, 2], "run": 7}'])
@pytest.mark.parametrize("form", ["killed", "live"])
def test_a_manifest_that_is_damaged(tmp_path, form, manifest):
    """The segments say of which run they are, and parts more."""
    path = intact(form, tmp_path)
    if manifest is None:
        (path / layout.MANIFEST).unlink()
    else:
        (path / layout.MANIFEST).write_text(manifest)
    assert not verify(path).ok
    done = repair(path)
    assert assert_sound(done, made(form).truth) == made(form).truth
    assert not done.whole
    assert info_of(done.result).run_id == "f0220f0220f0220f0220f0220f0220f0"
    assert (info_of(done.result).host == "fuzz") is (form == "live")


def test_a_damaged_part_of_a_killed_run(tmp_path):
    """Its intact records and those of the segments become one recording."""
    path, truth = intact("live", tmp_path), made("live").truth
    flip(layout.part_path(path, 1, ".h5"), 0.5)
    done = repair(path)
    assert sum(done.lost.values()) > 0
    assert_sound(done, truth)


@pytest.mark.parametrize("original", ["intact", "damaged", "missing"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_copy_of_a_part(tmp_path, number, original):
    """It stands in for the original, before the segments that follow, whatever its number."""
    path, truth = intact("live", tmp_path), made("live").truth
    part = layout.parts(path)[number]
    shutil.copy(part, path / "part-000007.h5")
    assert layout.segments(path) == [layout.segment_path(path, 2)]
    if original == "missing":
        part.unlink()
    elif original == "damaged":
        flip(part, 0.5)
    assert not verify(path).ok
    done = repair(path)
    assert not sum(done.lost.values())
    assert assert_sound(done, truth) == truth


def test_files_swapped_between_parts_cost_what_is_then_out_of_order(tmp_path):
    """The other records of both parts are kept, and what is not is counted."""
    path, truth = intact("parts-arrow", tmp_path), made("parts-arrow").truth
    one, other = (part / "pool-000000.arrow" for part in list(layout.parts(path).values())[:2])
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    assert not verify(path).ok
    done = repair(path)
    assert done.action == "salvaged"
    kept = assert_sound(done, truth)
    assert len(truth) // 2 < len(kept) < len(truth)
    assert sum(done.lost.values()) == len(truth) - len(kept)


def test_damaged_copies_of_a_part_cost_what_neither_has(tmp_path):
    """What one of them has is kept, unless the other is in its place."""
    path, truth = intact("live", tmp_path), made("live").truth
    part = layout.parts(path)[1]
    shutil.copy(part, path / "part-000007.h5")
    for each, at in ((part, 0.3), (path / "part-000007.h5", 0.7)):
        data = bytearray(each.read_bytes())
        start = int(len(data) * at)
        data[start : start + 2000] = bytes(2000)
        each.write_bytes(data)
    done = repair(path)
    assert not done.whole
    assert len(assert_sound(done, truth)) > len(truth) // 2


def test_the_segment_of_a_damaged_part_is_read_instead(tmp_path):
    """A kill between the part's last write and the segment's end leaves both."""
    path, truth = intact("live", tmp_path), made("live").truth
    whole = intact("journal", tmp_path / "journal")
    shutil.copy(layout.segment_path(whole, 1), path)
    layout.part_path(path, 1, ".h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    done = repair(path)
    assert assert_sound(done, truth) == truth
    assert done.losses == ("part-000001.h5 cannot be read: its records are lost",) or done.whole


def test_a_large_journal_becomes_a_folder_of_parts(tmp_path):
    """As closing it would have."""
    path = intact("live", tmp_path)
    done = repair(path, max_file_bytes=1000)
    assert done.result == str(tmp_path / "run.h5")
    assert assert_sound(done, made("live").truth) == made("live").truth
    assert sorted(p.name for p in (tmp_path / "run.h5").iterdir()) == [
        "manifest.json",
        "part-000000.h5",
        "part-000001.h5",
        "part-000002.h5",
    ]
    assert not (tmp_path / "run.h5.live").exists()


def test_a_journal_of_an_older_version(tmp_path):
    """Records of one tap that came from two programs stand in another order there: they are sorted."""
    data = b""
    for ids in ([0, 2, 4], [1, 3, 5]):
        rows, *arrays = arrays_of(A, ids)
        rows.view(INDEX_DTYPE)["number"][:, 0] = ids
        data += b"".join(map(bytes, frames.encode(A.id, [rows, *arrays])))
    path = make_folder(
        tmp_path / "run.h5.live", {0: text_frame(frames.DEFINE, A.to_json()) + data}, format_version=(1, 1)
    )
    edited(path, lambda manifest: manifest.update(version=[1, 1]))
    assert verify(path).ok
    done = repair(path)
    assert done.verification is not None
    assert done.verification.ok
    found = records_of(done.result)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["run.h5", "run.h5.live"])
def test_a_running_recording_is_left_alone(tmp_path, name):
    """It is verified as it is, and not repaired."""
    path = intact("killed", tmp_path)
    lock = JournalLock(path)
    try:
        found = verify(tmp_path / name)
        assert found.ok
        with pytest.raises(TraceError, match="is still being recorded into"):
            repair(tmp_path / name)
    finally:
        lock.forget()
    assert path.is_dir()
    assert not (tmp_path / "run.h5").exists()


def test_nobody_records_into_a_journal_that_is_repaired(tmp_path, monkeypatch):
    """Meanwhile its lock is held, so that mode="a" does not take it up."""
    path = intact("killed", tmp_path)
    held: list[str] = []

    def look(order):
        with pytest.raises(BlockingIOError):
            JournalLock(path)
        held.append("yes")
        return work(order, lambda: None)

    monkeypatch.setattr("tracerec.repairing.run_order", look)
    assert repair(path).whole
    assert held == ["yes"]


def test_a_journal_beside_its_own_recording(tmp_path):
    """Closing was interrupted after the recording was made: the journal is deleted, since all of it is there."""
    path = intact("journal", tmp_path)
    shutil.copytree(path, tmp_path / "copy")
    repair(path)
    (tmp_path / "copy").rename(path)
    layout.segments(path)[0].unlink()
    assert any("is there, too" in note for note in verify(tmp_path / "run.h5").notes)
    done = repair(path)
    assert (done.action, done.result, done.whole) == ("sealed", str(tmp_path / "run.h5"), True)
    assert "was what an interrupted closing had left" in done.notes[0]
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_a_journal_beside_another_recording(tmp_path):
    """A recording of another run, or one that has less, is not taken for its own."""
    path = intact("journal", tmp_path)
    BREAKERS["dtype-valid"](tmp_path)
    with pytest.raises(SealingError, match=r"run\.h5 exists; move it away, or choose another name"):
        repair(path)
    assert len(layout.segments(path)) == 3
    assert repair(path, tmp_path / "other.h5").action == "sealed"


RECORDER = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, tracerec
step = jax.jit(lambda x, i: tracerec.tap(x + i, "x", step=i) * 2)
rec = tracerec.record(sys.argv[1])
for i in range(10**9):
    step(jnp.arange(50.0), i)
    if i % 50 == 49:
        rec.flush()
        print(i + 1, flush=True)
"""


@pytest.mark.slow
def test_a_real_run_that_was_killed(tmp_path):
    """SIGKILL in the middle of recording: all that was flushed is in the sealed recording, in order."""
    path = tmp_path / "run.h5"
    command = [sys.executable, "-c", RECORDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(20)][-1]
        process.send_signal(signal.SIGKILL)
    assert verify(path).state == "killed"
    done = repair(path)
    assert done.whole
    found = records_of(done.result)
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= flushed
    values = np.array([np.frombuffer(record[2][0], np.float32) for _, record in sorted(found.items())])
    assert (values == np.arange(50.0) + np.arange(len(found))[:, None]).all()
    assert info_of(path).state == "killed"
