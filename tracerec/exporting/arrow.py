"""A folder of Arrow IPC files, one a tap and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tracerec.trace import columnar

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.exporting.job import Job

__all__ = ["FOLDER", "made", "write"]

FOLDER = True


def write(job: Job, place: Path) -> None:
    """Writes ``NAME.arrow`` for each kind."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for kind in job.kinds:
        reader = columnar.reader(kind.views, kind.places)
        with pa.ipc.new_file(place / f"{kind.name}.arrow", reader.schema, options=options) as file:
            for batch in reader:
                file.write_batch(batch)
                job.advance(kind, len(batch))


def made(folder: Path) -> bool:
    """Returns whether a folder is one that `write` made."""
    paths = list(folder.iterdir())
    # A folder of that name is a recording.
    files = all(path.name.endswith(".arrow") and path.is_file() for path in paths)
    return files and not {path.name for path in paths} & _OF_A_RECORDING


_OF_A_RECORDING = {"streams.arrow"}
"""Found in every sealed Arrow recording, which no export may replace."""
