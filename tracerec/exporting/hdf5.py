"""One plain HDF5 file: a group a tap, a dataset an array, nothing that needs a plugin."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from tracerec.exporting.arrays import attributes, columns, without_nul

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.exporting.arrays import Column
    from tracerec.exporting.job import Job, Kind

__all__ = ["FOLDER", "made", "write"]

FOLDER = False

_CHUNK_BYTES = 1 << 20


def write(job: Job, place: Path) -> None:
    r"""Writes the file; the run is JSON in an attribute of the root.

    HDF5 ends a text at its first NUL, which is therefore an escape here: ``\x00``.
    """
    with h5py.File(place, "w", libver=("earliest", "v110")) as file:
        file.attrs["exported_from"] = json.dumps(job.about)
        for kind in job.kinds:
            group = file.create_group(kind.name)
            for name, value in attributes(kind).items():
                group.attrs[name] = without_nul(value if isinstance(value, str) else json.dumps(value))
            _fill(group, job, kind)


def made(folder: Path) -> bool:
    """Returns False: it is a file that is made here."""
    del folder
    return False


def _fill(group: h5py.Group, job: Job, kind: Kind) -> None:
    found = [(column, _dataset(group, kind, column)) for column in columns(kind)]
    for block in kind.blocks():
        for column, dataset in found:
            array = column.read(block)
            if array.dtype.kind == "O":
                array = np.array([without_nul(text) for text in array.tolist()], object)
            if array.size:
                dataset[block.start : block.stop] = array
        job.advance(kind, len(block))


def _dataset(group: h5py.Group, kind: Kind, column: Column) -> Any:
    # A slash would be a group.
    name = column.name.replace("/", "%2F")
    shape = (kind.records, *column.shape)
    dtype: Any = h5py.string_dtype() if column.dtype.kind == "O" else column.dtype
    options: dict[str, Any] = {}
    row = math.prod(column.shape) * column.dtype.itemsize
    if row and kind.records:
        rows = max(1, min(kind.records, _CHUNK_BYTES // row))
        options = {"chunks": (rows, *_fitting(column.shape, column.dtype.itemsize)), "compression": "gzip"}
        options |= {"compression_opts": 1, "shuffle": np.dtype(column.dtype).kind != "O"}
    dataset = group.create_dataset(name, shape, dtype, **options)
    for key, value in column.attributes.items():
        dataset.attrs[key] = without_nul(value)
    return dataset


def _fitting(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the part of one record that a chunk holds: the last axes whole, as far as a chunk's bytes go."""
    room = max(1, _CHUNK_BYTES // itemsize)
    found: list[int] = []
    for size in reversed(shape):
        found.append(max(1, min(size, room)))
        room = max(1, room // max(size, 1))
    return tuple(reversed(found))
