"""Looking again at a recording that goes on: only what is new is read, and the result is that of looking afresh."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.test_live import seal_segments
from tests.trace.streams import LOSS
from tests.trace.test_refreshing import Running
from tracerec.formats.live import open_live
from tracerec.journal.layout import segment_path
from tracerec.journal.reading import JournalSource


@pytest.fixture
def running(tmp_path):
    """A recording that goes on."""
    run = Running(tmp_path / "run.h5")
    run.add(*range(500))
    yield run
    run.writer.close()
    run.lock.forget()


def contents(source):
    """Returns all that a source holds, and what is said of it."""
    streams = [
        (
            s.site,
            s.index(0, s.records).tobytes(),
            [s.leaf(n, 0, s.records).tobytes() for n in range(len(s.site.leaves))],
        )
        for s in source.streams
    ]
    return streams, source.info, source.damage


@pytest.fixture
def read(monkeypatch):
    """How many bytes were read of files, one number a read."""
    sizes = []
    real = os.pread

    def pread(fd, size, offset):
        data = real(fd, size, offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    return sizes


def test_only_what_is_new_is_read(running, read):
    """Of a segment of 110 kB a hundred bytes each time, and the heads of all segments."""
    old = segment_path(running.folder, 0).stat().st_size
    assert old > 100_000
    source = JournalSource(running.folder)
    for step in range(5):
        running.add(500 + step)
        read.clear()
        source = JournalSource(running.folder, earlier=source)
        assert source.streams[0].records == 501 + step
        assert sum(read) < 6_000
    read.clear()
    JournalSource(running.folder)
    assert sum(read) > old


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(["add", "add", "other", "segment", "seal", "look", "look", "cut", "cut and add", "half"]),
        max_size=14,
    )
)
def test_whatever_happens_meanwhile(tmp_path_factory, actions):
    """Records, new taps and segments, sealed ones, a full disk that cut the segment back, a frame half written."""
    folder = tmp_path_factory.mktemp("run")
    run = Running(folder / "run.h5")
    try:
        run.add(0, 1, 2)
        source = open_live(run.folder)
        for number, action in enumerate([*actions, "look"]):
            act(run, action, 10 + number)
            if action == "look":
                source = open_live(run.folder, earlier=source)
                with open_live(run.folder) as afresh:
                    assert contents(source) == contents(afresh)
        source.close()
    finally:
        run.writer.close()
        run.lock.forget()


def act(run, action, step):
    """Does something to a recording that goes on."""
    newest = segment_path(run.folder, run.number)
    if action == "add":
        run.add(step, step + 1)
    elif action == "other":
        run.add(step, site=LOSS)
    elif action == "segment":
        run.next_segment()
        run.add(step)
    elif action == "seal":
        old = [n for n in range(run.number) if segment_path(run.folder, n).exists()][:1]
        seal_segments(run.folder, old)
    elif action == "half":
        # What a writer has written of a frame when somebody looks; it goes on, or takes it back.
        size = newest.stat().st_size
        run.add(step)
        os.truncate(newest, size + 150)
        os.lseek(run.writer._fd, size, os.SEEK_SET)
    elif action.startswith("cut"):
        cut_back(run, newest)
        if action == "cut and add":
            run.add(step, step)


def cut_back(run, newest):
    """Takes the last frame of the newest segment away, as a recording does whose disk is full."""
    with JournalSource(run.folder) as source:
        recovery = source.kept and source.kept.recovery
        if recovery is None:
            return
        starts = [
            n
            for found in recovery.frames.values()
            for n, s in zip(found.starts, found.segments, strict=True)
            if s == len(recovery.places) - 1
        ]
    # The first of a segment stays: behind it come definitions that the writer will not repeat.
    if len(starts) > 1:
        os.truncate(newest, max(starts))
        os.lseek(run.writer._fd, max(starts), os.SEEK_SET)
