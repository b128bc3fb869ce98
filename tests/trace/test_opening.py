from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.trace.streams import journal, leaf, training
from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats.hdf5.seal import seal
from tracerec.trace import open_trace, opening


@pytest.fixture
def sealed(tmp_path):
    """A sealed recording."""
    path = tmp_path / "run.h5"
    seal(training(), path)
    return path


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
    folder = journal(tmp_path / "run.h5")
    with open_trace(folder if by_folder else tmp_path / "run.h5") as trace:
        assert not trace.info.clean
        assert trace["loss"].to_numpy().tolist() == [0.5, 0.25]
        assert trace["loss"][1].kwargs == {"phase": "train", "step": 1, "lr": 0.2}


def test_sealed_while_it_was_opened(tmp_path, monkeypatch):
    """The journal is gone before it is read: the sealed file has taken its place."""
    folder = journal(tmp_path / "run.h5")
    read = opening._journal  # pyright: ignore[reportPrivateUsage]

    def close_first(path, pool=None):
        shutil.rmtree(folder)
        seal(training(), tmp_path / "run.h5")
        return read(path, pool)

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
    journal(tmp_path / "baseline.h5")
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
    """A folder without a manifest is refused with its name; a recording in it was perhaps meant."""
    with pytest.raises(TraceNotFound, match=r"no recording: it has no manifest\.json$"):
        open_trace(tmp_path)
    (tmp_path / "a.h5").symlink_to("nowhere")
    journal(tmp_path / "b.h5")
    with pytest.raises(TraceNotFound, match=r"did you mean .*/b\.h5\?$"):
        open_trace(tmp_path)


def test_not_a_regular_file(tmp_path):
    """A socket or a pipe is not waited for, nor a device read to its end."""
    os.mkfifo(tmp_path / "run.h5")
    (tmp_path / "zero.h5").symlink_to("/dev/zero")
    for name in ("run.h5", "zero.h5"):
        with pytest.raises(TraceFormatError, match="not a regular file"):
            open_trace(tmp_path / name)


@pytest.mark.parametrize("name", ["manifest.json", "segment-000000.frames", "segment-000001.frames"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_journal_of_other_than_regular_files(tmp_path, name, kind):
    """Nor are those of a folder that somebody else made; and no link out of it is followed."""
    file = journal(tmp_path / "run.h5") / name
    if file.exists():
        file.rename(tmp_path / name)
    if kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / name)
    with pytest.raises(TraceFormatError, match=rf"run\.h5\.live is no intact recording: {name} is not a regular file"):
        open_trace(tmp_path / "run.h5")


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("", TraceNotFound, r"^there is no trace at '': the path is empty$"),
        (".", TraceNotFound, r"^\. is a folder and no recording"),
        ("..", TraceNotFound, r"^\.\. is a folder and no recording"),
        ("./", TraceNotFound, r"^\. is a folder and no recording"),
        ("/", TraceNotFound, r"^/ is a folder and no recording"),
        ("a\0b.h5", TraceNotFound, r"^there is no trace at 'a\\x00b\.h5': no file can have this name"),
        ("\ud800.h5", TraceNotFound, r"^there is no trace at '\\ud800\.h5': no file can have this name"),
        ("\udcff.h5", TraceNotFound, r"^there is no trace at \udcff\.h5$"),
        ("x" * 252, TraceNotFound, r"^there is no trace at x{252}$"),
        ("x" * 300, TraceFormatError, r"^x{300} cannot be read: File name too long$"),
        ("run.h5/x.h5", TraceNotFound, r"there is no folder run\.h5$"),
    ],
)
def test_odd_paths(tmp_path, monkeypatch, path, error, message):
    """Paths that have no name, that no file can have, or that the system refuses: one error of ours."""
    (tmp_path / "run.h5").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if path != "run.h5/x.h5" else tmp_path)
    with pytest.raises(error, match=message) as caught:
        open_trace(path)
    assert caught.value.path in {path, os.path.normpath(path)}


def test_slash_at_the_end(sealed):
    """A slash that the shell put there changes nothing."""
    folder = journal(sealed.with_name("killed.h5"))
    for path in (f"{sealed}/", f"{folder}/", f"{folder.with_name('killed.h5')}/"):
        with open_trace(path) as trace:
            assert "loss" in trace


def test_links(tmp_path, sealed):
    """A link is followed; one to nowhere says where it leads and offers no link to nowhere, a loop is no trace."""
    (tmp_path / "link.h5").symlink_to(sealed)
    with open_trace(tmp_path / "link.h5") as trace:
        assert len(trace.taps) == 3
    (tmp_path / "dangling.h5").symlink_to("nowhere.h5")
    with pytest.raises(TraceNotFound, match=r"dangling\.h5: it is a link to nowhere\.h5, which does not exist$"):
        open_trace(tmp_path / "dangling.h5")
    with pytest.raises(TraceNotFound, match=r"did you mean .*/run\.h5\?$"):
        open_trace(tmp_path / "danun.h5")
    (tmp_path / "loop.h5").symlink_to("loop.h5")
    with pytest.raises(TraceFormatError, match=r"loop\.h5 cannot be read: Too many levels of symbolic links"):
        open_trace(tmp_path / "loop.h5")
    # Where the link will lead once the run has ended.
    (tmp_path / "later.h5").symlink_to("data.h5")
    journal(tmp_path / "later.h5")
    with open_trace(tmp_path / "later.h5") as trace:
        assert list(trace) == ["loss"]


@pytest.fixture
def outsider():
    """A folder that everybody may enter, and this process, if it is root's, without root's rights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        seal(training(), folder / "run.h5")
        # Imports what is needed: another user may not read the interpreter's own files.
        open_trace(journal(folder / "killed.h5")).close()
        open_trace(folder / "run.h5").close()
        yield folder
        os.seteuid(os.getuid())
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o700)


@pytest.mark.parametrize(
    ("locked", "mode", "path"),
    [
        ("run.h5", 0, "run.h5"),
        ("killed.h5.live", 0, "killed.h5"),
        ("killed.h5.live", 0o111, "killed.h5"),
        ("killed.h5.live", 0o444, "killed.h5.live"),
        ("killed.h5.live/manifest.json", 0, "killed.h5"),
        (".", 0, "run.h5"),
        (".", 0, "missing.h5"),
        (".", 0, "."),
    ],
)
def test_not_permitted(outsider, locked, mode, path):
    """What may not be read is not called missing, damaged or empty."""
    (outsider / locked).chmod(mode)
    if not os.getuid():
        os.seteuid(65534)
    with pytest.raises(TraceFormatError, match=r"cannot be read: Permission denied$"):
        open_trace(outsider / path)


def test_folder_that_may_not_be_listed(outsider):
    """Without the names beside it, a missing file is still no more than missing."""
    outsider.chmod(0o111)
    if not os.getuid():
        os.seteuid(65534)
    with pytest.raises(TraceNotFound, match=r"there is no trace at .*/missing\.h5$"):
        open_trace(outsider / "missing.h5")
