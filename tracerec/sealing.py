"""Sealing: a journal becomes one immutable file, in a process of its own.

``python -m tracerec.sealing`` is that process; it reads its order, as JSON, from standard input. It is spawned, never
forked, low in priority, and the only one that calls HDF5: a full disk makes HDF5 crash or hang the process it is in.
Free of JAX.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tracerec.errors import SealingError, TracerecError

__all__ = ["ARROW_SUFFIX", "Order", "main", "seal", "seal_in_process_of_its_own"]

_NICENESS = 10

ARROW_SUFFIX = ".arrow"


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What is to be sealed.

    Attributes:
        folder: the live folder.
        target: the file to make, ``.h5``, or the folder, ``.arrow``.
        compression: as `tracerec.record`.
        run_id: the run that the journal must be of; None for any.
        end: what the journal's end frame should have said, where it could not be written.
    """

    folder: Path
    target: Path
    compression: str | None = "lz4"
    run_id: str | None = None
    end: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the order as JSON values."""
        return {**dataclasses.asdict(self), "folder": str(self.folder), "target": str(self.target)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Order:
        """Returns the order that `to_json` gave."""
        folder, target = Path(data["folder"]), Path(data["target"])
        return cls(folder, target, data["compression"], data["run_id"], data["end"])


def seal(order: Order) -> None:
    """Seals a journal into a file, and removes the journal once the file has its name.

    Raises:
        TracerecError: the journal cannot be read or is of another run, the target exists, or the file cannot be
            written; the journal is left as it is.
    """
    from tracerec.journal.reading import JournalSource

    source = JournalSource(order.folder, end=order.end)
    if order.run_id is not None and source.info.run_id != order.run_id:
        message = f"{order.folder} now holds another run, {source.info.run_id}: the journal of this one was deleted"
        raise SealingError(message, path=str(order.target))
    if order.target.exists():
        message = f"{order.target} exists: it was made while the recording ran, and is left as it is"
        raise SealingError(message, path=str(order.target))
    if order.target.suffix.lower() == ARROW_SUFFIX:
        from tracerec.formats.arrow.seal import seal as seal_arrow

        seal_arrow(source, order.target, compression=order.compression)
    else:
        from tracerec.formats.hdf5.seal import seal as seal_hdf5

        seal_hdf5(source, order.target, compression=order.compression)
    source.close()
    shutil.rmtree(order.folder)


def seal_in_process_of_its_own(order: Order) -> None:
    """Runs `seal` in a spawned process and waits for it.

    Raises:
        SealingError: the process could not be started, or failed; the message is its own.
    """
    # -P: the user's working folder must not shadow a library of ours
    command = [sys.executable, "-P", "-m", "tracerec.sealing"]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, our own module
            command, input=json.dumps(order.to_json()), capture_output=True, text=True, env=_environment(), check=False
        )
    except OSError as error:
        message = f"{order.folder}: the sealing process could not be started: {error}{_where(order)}"
        raise SealingError(message, path=str(order.target)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"it ended with status {done.returncode}"
        message = f"{order.folder}: not sealed: {reason}{_where(order)}"
        raise SealingError(message, path=str(order.target))


def main() -> int:
    """Runs the sealing process; returns its exit status."""
    order = Order.from_json(json.load(sys.stdin))
    os.nice(_NICENESS)
    try:
        seal(order)
    except TracerecError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _where(order: Order) -> str:
    if order.folder.is_dir():
        return f"; the records are in {order.folder}, and readers open it"
    return f"; {order.folder} is gone: it was deleted or moved"


def _environment() -> dict[str, str]:
    # The child must find this very package, however the parent found it.
    ours = str(Path(__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ours, known] if known else [ours])}


if __name__ == "__main__":
    sys.exit(main())
