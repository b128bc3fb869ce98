"""A folder of parts and segments as one trace, whatever is sealed, retired, killed, or being sealed meanwhile."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.formats.pieces import split, write_journal, write_segment
from tests.formats.test_contract import assert_same
from tests.formats.test_joined import open_files
from tests.memory_source import MemorySource, make_stream
from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.contract import RECORDING_NOTE, RunInfo
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.joined import JoinedSource
from tracerec.formats.live import open_live
from tracerec.journal import layout
from tracerec.journal.lock import JournalLock
from tracerec.journal.reading import JournalSource
from tracerec.model import Column, Leaf, Site

SITE = Site("act", (Leaf("", (4,), "float32"),), (Column("step", "int64", python="int"),))
OTHER = dataclasses.replace(SITE, name="other")


def trace(records=60, **info):
    """Returns a trace of two streams whose values tell which record they are."""
    values = np.repeat(np.arange(records), 4).reshape(records, 4)
    streams = [make_stream(site, [values + 1000 * n], [range(records)]) for n, site in enumerate((SITE, OTHER))]
    source = MemorySource(streams)
    source.info = dataclasses.replace(source.info, pid=os.getpid(), **info)
    return source


def seal_segments(folder, numbers, *, keep=False, suffix=".h5"):
    """Seals segments as the sealing process does: the part first, then the segment goes."""
    for number in numbers:
        with JournalSource(folder, only=number) as segment:
            (seal if suffix == ".h5" else seal_arrow)(segment, layout.part_path(folder, number, suffix))
        if not keep:
            layout.segment_path(folder, number).unlink()


@pytest.fixture
def folder(tmp_path):
    """A live folder of four segments, of a run that was closed."""
    source = trace()
    write_journal(tmp_path, split(source, [0.2, 0.5, 0.6]), source.info)
    return tmp_path


@pytest.mark.parametrize("suffix", [".h5", ".arrow"])
@pytest.mark.parametrize("sealed", [[], [0], [0, 1, 2], [0, 1, 2, 3], [1], [0, 2], [3], [1, 3]])
@pytest.mark.parametrize("keep", [False, True])
def test_whatever_is_sealed_the_trace_is_the_same(folder, suffix, sealed, keep):
    """Records, summaries and the run are the same whichever segments have become parts, and whether they are gone."""
    seal_segments(folder, sealed, keep=keep, suffix=suffix)
    (folder / "part-000001.h5.tmp-0123").write_bytes(b"half a part")
    with open_live(folder) as source:
        assert_same(source, trace())
        assert source.info.state == "clean"
        assert tuple(source.damage) == ()
        assert isinstance(source, JoinedSource if sealed else JournalSource)


def test_a_part_wins_over_its_segment(folder):
    """A segment that is still there although its part is, is not read, not even when it is damaged."""
    seal_segments(folder, [1], keep=True)
    layout.segment_path(folder, 1).write_bytes(b"nonsense")
    with open_live(folder) as source:
        assert_same(source, trace())


def test_what_the_manifest_disowns_is_not_read(folder):
    """Parts and segments before the first that was kept on purpose are left out, and are no fault."""
    seal_segments(folder, [0, 2])
    info = layout.read_manifest(folder)
    layout.write_manifest(folder, dataclasses.replace(info, retired={"act": 30}), layout.Journal(2, "run.h5"))
    with open_live(folder) as source:
        assert [stream.records for stream in source.streams] == [30, 30]
        assert source.streams[0].leaf(0, 0, 1).tolist() == [[30.0] * 4]
        assert source.info.records == 60
        assert source.info.retired == {"act": 30}
        assert source.info.state == "clean"


def test_a_missing_number_is_damage(folder):
    """A segment that is missing and has no part is told, with parts around it too."""
    seal_segments(folder, [0, 3])
    layout.segment_path(folder, 1).unlink()
    with open_live(folder) as source:
        assert [damage.file for damage in source.damage] == ["segment-000001.frames"]
        assert any("segment-000001.frames" in note for note in source.info.notes)
        assert [stream.records for stream in source.streams] == [42, 42]


def test_a_killed_run(tmp_path):
    """Without an end frame the run was killed, however much is sealed; its parts say nothing else."""
    source = trace(ended=None, clean=False)
    write_journal(tmp_path, split(source, [0.5]), source.info)
    seal_segments(tmp_path, [0])
    for sealed in ([], [1]):
        seal_segments(tmp_path, sealed)
        with open_live(tmp_path) as read:
            assert read.info.state == "killed"
            assert read.info.notes == ("the run did not end cleanly",)
            assert read.info.records == 120


def test_a_running_run(tmp_path):
    """While its process holds the lock the run is being recorded; sealed parts, which were told so, add nothing."""
    source = trace(ended=None, clean=False)
    write_journal(tmp_path, split(source, [0.5]), source.info)
    lock = JournalLock(tmp_path)
    try:
        seal_segments(tmp_path, [0])
        with open_live(tmp_path) as read:
            assert read.info.state == "recording"
            assert read.info.notes == (RECORDING_NOTE,)
    finally:
        lock.forget()
    with open_live(tmp_path) as read:
        assert read.info.state == "killed"


def test_the_end_may_be_given(tmp_path):
    """What the end frame should have said is told where it could not be written."""
    source = trace(ended=None, clean=False)
    write_journal(tmp_path, split(source, [0.5]), source.info)
    seal_segments(tmp_path, [0, 1])
    with open_live(tmp_path, end={"ended": 7, "failure": "OSError: no space", "lost": {"act": 2}}) as read:
        assert read.info.state == "stopped early"
        assert read.info.ended == 7
        assert read.info.dropped == {"act": 2}
        assert read.info.notes == (
            "recording stopped early: OSError: no space",
            "2 records are missing: they were dropped or could not be written",
        )


@pytest.mark.parametrize("sealed", [[], [0], [1], [0, 1]])
def test_counts_of_all_ends_add_up(tmp_path, sealed):
    """An earlier attempt's counts are in its end frame, which may be in a part; the newest tells the state."""
    pieces = split(trace(), [0.5])
    info = trace(records=60).info
    attempts = ({"first_arrival": 0, "ended": 5, "clean": True}, {"first_arrival": 30})
    layout.write_manifest(tmp_path, dataclasses.replace(info, ended=None, attempts=attempts))
    first, second = dataclasses.replace(info, dropped={"act": 2}), dataclasses.replace(info, dropped={"act": 1, "b": 1})
    write_segment(tmp_path, 0, pieces[0], dataclasses.replace(first, high_water_bytes=9))
    write_segment(tmp_path, 1, pieces[1], dataclasses.replace(second, high_water_bytes=5), attempt=1)
    seal_segments(tmp_path, sealed)
    with open_live(tmp_path) as source:
        assert source.info.dropped == {"act": 3, "b": 1}
        assert source.info.high_water_bytes == 9
        assert source.info.notes == ("4 records are missing: they were dropped or could not be written",)
        assert source.info.state == "clean"
        assert [attempt["clean"] for attempt in source.info.attempts] == [True, True]


def test_a_newer_attempt_without_records_has_not_ended(tmp_path):
    """The end frame of an earlier attempt, sealed, is not that of one that has just begun."""
    info = trace().info
    write_journal(tmp_path, [trace()], info)
    seal_segments(tmp_path, [0])
    attempts = ({"first_arrival": 0, "ended": info.ended, "clean": True}, {"first_arrival": 60})
    layout.write_manifest(tmp_path, dataclasses.replace(info, ended=None, attempts=attempts))
    with open_live(tmp_path) as source:
        assert source.info.state == "killed"
        assert source.info.ended is None


def test_a_finished_recording_that_is_a_folder_of_parts(folder):
    """A folder of parts and a manifest that says all is a recording that was closed."""
    seal_segments(folder, [0, 1, 2, 3])
    info = dataclasses.replace(trace().info, notes=("a note",), dropped={"x": 1}, records=120)
    layout.write_manifest(folder, info, layout.Journal(0, "run.h5"))
    with open_live(folder) as source:
        assert source.info == info
        assert_same(source, dataclasses.replace(trace(), info=info))


def test_a_part_of_another_run(folder):
    """A part of another run is refused: its records are not of this one."""
    other = trace()
    seal(dataclasses.replace(other, info=dataclasses.replace(other.info, run_id="f" * 32)), folder / "part-000000.h5")
    with pytest.raises(TraceFormatError, match=r"part-000000\.h5 is of another run, f{32}"):
        open_live(folder)


def test_a_damaged_part(folder):
    """A part that cannot be opened is one clear error, which names it."""
    seal_segments(folder, [0, 1])
    (folder / "part-000001.h5").write_bytes(b"no part")
    before = open_files()
    with pytest.raises(TraceFormatError, match=r"part-000001\.h5"):
        open_live(folder)
    assert open_files() == before


@pytest.mark.parametrize("there", [False, True])
def test_no_recording(tmp_path, there):
    """A folder that is not there, or has no manifest, is no recording."""
    if there:
        (tmp_path / "run.h5.live").mkdir()
    with pytest.raises(TraceNotFound, match=r"run\.h5\.live"):
        open_live(tmp_path / "run.h5.live")


def test_reading_what_is_closed(folder):
    """A closed trace says so."""
    seal_segments(folder, [0])
    source = open_live(folder)
    (stream, _) = source.streams
    source.close()
    with pytest.raises(TraceError, match="is closed"):
        stream.leaf(0, 0, 60)


@pytest.mark.parametrize("suffix", [".h5", ".arrow"])
def test_a_folder_that_is_sealed_and_retired_while_it_is_opened(tmp_path, suffix):
    """However files go and come while a reader opens the folder, it reads whole segments, in order, or finds none."""
    source = trace(200)
    pieces = split(source, list(np.arange(1, 20) / 20))
    live, spare = tmp_path / "run.h5.live", tmp_path / "spare"
    live.mkdir()
    write_journal(live, pieces, source.info)
    shutil.copytree(live, spare)
    seal_segments(spare, range(20), suffix=suffix)
    done, progress = threading.Event(), threading.Event()

    def churn():
        rng = np.random.default_rng(0)
        info = layout.read_manifest(live)
        for number in range(20):
            shutil.move(layout.part_path(spare, number, suffix), layout.part_path(live, number, suffix))
            layout.segment_path(live, number).unlink()
            if number % 4 == 3:
                # what is retired is disowned before it is deleted
                layout.write_manifest(live, info, layout.Journal(number - 1, "run.h5"))
                for old in range(number - 1):
                    part = layout.part_path(live, old, suffix)
                    shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)
            if number % 5 == 2:
                # at the latest now the reader must get through
                progress.clear()
                progress.wait(20)
            done.wait(float(rng.uniform(0, 0.03)))
        shutil.rmtree(live)
        done.set()

    thread = threading.Thread(target=churn)
    thread.start()
    opened = 0
    try:
        while not done.is_set():
            try:
                read = open_live(live)
            except TraceNotFound:
                assert not (live / layout.MANIFEST).exists()
                break
            with read:
                _check_tail(read)
            opened += 1
            progress.set()
    finally:
        thread.join()
    assert opened >= 4


def _check_tail(read):
    """Asserts that all records from some segment on are there, unless some were deleted since the opening."""
    for stream in read.streams:
        try:
            first = int(stream.index(0, 1)["arrival"][0])
            values = stream.leaf(0, 0, stream.records)[:, 0]
        except TraceError as error:
            if re.search("is gone|the file is missing", str(error)):
                continue
            raise
        assert first % 10 == 0
        assert np.array_equal(values % 1000, np.arange(first, 200))


def test_opening_imports_no_library_that_is_not_needed(folder):
    """A live folder without parts is opened without HDF5, Arrow and JAX."""
    code = textwrap.dedent("""
        import sys
        from tracerec.formats.live import open_live
        print(len(open_live(sys.argv[1]).streams), sorted({"jax", "h5py", "pyarrow"} & set(sys.modules)))
    """)
    command = [sys.executable, "-c", code, str(folder)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert shown.stdout == "2 []\n"


def test_many_parts_are_opened_with_few_files(tmp_path):
    """200 parts are one trace with at most 64 of them open."""
    source = trace(400)
    pieces = split(source, list(np.arange(1, 200) / 200))
    info = RunInfo(source.info.run_id, 1, pid=os.getpid())
    layout.write_manifest(tmp_path, info)
    for number, piece in enumerate(pieces):
        seal(piece, layout.part_path(tmp_path, number, ".h5"))
    before = open_files()
    with open_live(tmp_path) as read:
        assert open_files() <= before + 64
        for got, want in zip(read.streams, source.streams, strict=True):
            assert np.array_equal(got.leaf(0, 0, 400), want.leaf(0, 0, 400))
            assert list(got.summaries()) == list(want.summaries())
        assert open_files() <= before + 64
    assert open_files() == before
