"""One file of arrays for `numpy.load`; each array is written block by block."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.exporting.arrays import columns

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.exporting.arrays import Column
    from tracerec.exporting.job import Job, Kind

__all__ = ["FOLDER", "made", "write"]

FOLDER = False


def write(job: Job, place: Path) -> None:
    """Writes arrays ``NAME/value``, ``NAME/step`` and so on."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for kind in job.kinds:
            for column in columns(kind):
                # numpy takes the member's name without its suffix.
                with archive.open(f"{kind.name}/{column.name}.npy", "w", force_zip64=True) as file:
                    _write(file, job, kind, column)


def made(folder: Path) -> bool:
    """Returns False: it is a file that is made here."""
    del folder
    return False


def _write(file: Any, job: Job, kind: Kind, column: Column) -> None:
    if column.dtype.kind == "O":
        texts = [text for block in kind.blocks() for text in column.read(block).tolist()]
        np.lib.format.write_array(file, np.array(texts, str), allow_pickle=False)
        return
    header = {
        "descr": np.lib.format.dtype_to_descr(column.dtype),
        "fortran_order": False,
        "shape": (kind.records, *column.shape),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for block in kind.blocks():
        array = np.ascontiguousarray(column.read(block))
        file.write(array.reshape(-1).view(np.uint8).data if array.size else b"")
        if column.name.startswith("value"):
            job.progress.advance(array.nbytes)
