from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from tests.memory_source import make_stream
from tests.trace.streams import LOSS, leaf, training
from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.seal import seal
from tracerec.journal.layout import write_manifest
from tracerec.journal.writing import JournalWriter
from tracerec.trace import open_trace, opening


@pytest.fixture
def sealed(tmp_path):
    """A sealed recording."""
    path = tmp_path / "run.h5"
    seal(training(), path)
    return path


def killed(path):
    """Writes the journal that a killed run leaves: two losses, no end. Returns its folder."""
    folder = path.with_name(path.name + ".live")
    folder.mkdir()
    write_manifest(folder, RunInfo(run_id="1" * 32, started=5))
    stream = make_stream(LOSS, [[0.5, 0.25]], numbers=[[0, 1], [0.1, 0.2]])
    writer = JournalWriter(folder)
    writer.append(LOSS, [stream.rows.view(np.uint8).reshape(2, 64), stream.arrays[0], stream.column(1, 0, 2)])
    writer.flush()
    writer.close()
    return folder


def test_sealed_file(sealed):
    """The file's values are those that were sealed, by every way of giving the path."""
    source = training()
    for path in (sealed, str(sealed)):
        with open_trace(path) as trace:
            assert list(trace) == ["layer", "loss", "ragged"]
            np.testing.assert_array_equal(leaf(source, 1), trace["layer"].streams[1].to_numpy())


@pytest.mark.parametrize("by_folder", [False, True])
def test_killed_recording(tmp_path, by_folder):
    """A run that was killed is opened by the name it would have had, and by its folder."""
    folder = killed(tmp_path / "run.h5")
    with open_trace(folder if by_folder else tmp_path / "run.h5") as trace:
        assert not trace.info.clean
        assert trace["loss"].to_numpy().tolist() == [0.5, 0.25]
        assert trace["loss"][1].kwargs == {"phase": "train", "step": 1, "lr": 0.2}


def test_sealed_while_it_was_opened(tmp_path, monkeypatch):
    """The journal is gone before it is read: the sealed file has taken its place."""
    folder = killed(tmp_path / "run.h5")
    read = opening._journal  # pyright: ignore[reportPrivateUsage]

    def close_first(path):
        shutil.rmtree(folder)
        seal(training(), tmp_path / "run.h5")
        return read(path)

    monkeypatch.setattr(opening, "_journal", close_first)
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.info.clean


def test_missing(tmp_path):
    """The error names the path."""
    with pytest.raises(TraceNotFound, match=r"there is no trace at .*run\.h5$") as caught:
        open_trace(tmp_path / "run.h5")
    assert caught.value.path == str(tmp_path / "run.h5")
    assert isinstance(caught.value, FileNotFoundError)


def test_missing_beside_a_similar_name(tmp_path, sealed):
    """The nearest recording beside it is named, a killed one by the name it would have had."""
    with pytest.raises(TraceNotFound, match=rf"did you mean {sealed}\?"):
        open_trace(tmp_path / "rnu.h5")
    killed(tmp_path / "baseline.h5")
    with pytest.raises(TraceNotFound, match=r"did you mean .*/baseline\.h5\?"):
        open_trace(tmp_path / "baselin.h5")


def test_missing_folder(tmp_path):
    """A wrong folder is the likelier mistake then."""
    with pytest.raises(TraceNotFound, match=r"there is no folder .*nowhere"):
        open_trace(tmp_path / "nowhere" / "run.h5")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.h5", b"", "is empty"),
        ("run.h5", b"PK\x03\x04 a zip", r"not an HDF5 file \(it begins with b'PK"),
        ("run.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "run.h5"),
        ("run.arrow", b"ARROW1", "not supported yet"),
        ("missing.arrow", None, "not supported yet"),
    ],
)
def test_no_trace(tmp_path, name, content, message):
    """An empty, foreign or damaged file, and a form that is not read yet: one line that names the file."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=message) as caught:
        open_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.path == str(path)


def test_foreign_hdf5(tmp_path):
    """An HDF5 file of another program is no trace."""
    path = tmp_path / "weights.h5"
    with h5py.File(path, "w") as file:
        file["w"] = [1.0, 2.0]
    with pytest.raises(TraceFormatError, match=r"weights\.h5"):
        open_trace(path)


def test_folder_that_is_no_recording(tmp_path):
    """A folder without a manifest is refused with its name."""
    with pytest.raises(TraceNotFound, match=r"no recording"):
        open_trace(tmp_path)


def test_not_a_regular_file(tmp_path):
    """A socket or a pipe is not waited for."""
    import os

    os.mkfifo(tmp_path / "run.h5")
    with pytest.raises(TraceFormatError, match="not a regular file"):
        open_trace(tmp_path / "run.h5")
