"""Sealing: a journal becomes one immutable file, in a process of its own.

``python -m tracerec.sealing run.h5.live run.h5 lz4`` is that process. It is spawned, never forked, low in priority,
and the only one that calls HDF5: a full disk makes HDF5 crash or hang the process it is in. Free of JAX.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tracerec.errors import SealingError, TracerecError

__all__ = ["main", "seal", "seal_in_process_of_its_own"]

_NICENESS = 10
_NO_COMPRESSION = "none"


def seal(folder: Path, target: Path, compression: str | None) -> None:
    """Seals a journal into a file, and removes the journal once the file has its name.

    Args:
        folder: the live folder.
        target: the file to make, ``.h5``.
        compression: as `tracerec.record`.

    Raises:
        TracerecError: the journal cannot be read or the file not written; the journal is intact.
    """
    from tracerec.formats.hdf5.seal import seal as seal_hdf5
    from tracerec.journal.reading import JournalSource

    source = JournalSource(folder)
    seal_hdf5(source, target, compression=compression)
    source.close()
    shutil.rmtree(folder)


def seal_in_process_of_its_own(folder: Path, target: Path, compression: str | None) -> None:
    """Runs `seal` in a spawned process and waits for it.

    Raises:
        SealingError: the process could not be started, or failed; the message is its own. The journal is intact.
    """
    words = [str(folder), str(target), compression or _NO_COMPRESSION]
    # -P: the user's working folder must not shadow a library of ours
    command = [sys.executable, "-P", "-m", "tracerec.sealing", *words]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, our own module
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment(), check=False
        )
    except OSError as error:
        message = f"{folder}: the sealing process could not be started: {error}; the records are in this folder"
        raise SealingError(message, path=str(target)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"it ended with status {done.returncode}"
        message = f"{folder}: not sealed: {reason}; the records are in this folder, and readers open it"
        raise SealingError(message, path=str(target))


def main(words: list[str]) -> int:
    """Runs the sealing process; returns its exit status."""
    folder, target, compression = words
    os.nice(_NICENESS)
    try:
        seal(Path(folder), Path(target), None if compression == _NO_COMPRESSION else compression)
    except TracerecError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _environment() -> dict[str, str]:
    # The child must find this very package, however the parent found it.
    ours = str(Path(__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ours, known] if known else [ours])}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
