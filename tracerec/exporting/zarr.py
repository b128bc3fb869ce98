"""A Zarr v3 folder: a group a tap, with named dimensions, as `xarray.open_zarr` takes it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import MissingExtra
from tracerec.exporting.arrays import attributes, columns, flat

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tracerec.exporting.arrays import Column
    from tracerec.exporting.job import Job, Kind

__all__ = ["FOLDER", "made", "write"]

FOLDER = True


def write(job: Job, place: Path) -> None:
    """Writes the folder.

    Raises:
        MissingExtra: zarr is not installed.
    """
    zarr = _zarr()
    root = zarr.open_group(str(place), mode="w", zarr_format=3, attributes={"exported_from": job.about})
    for kind in job.kinds:
        found = columns(kind)
        names = [flat(column.name) for column in found if not column.name.startswith("value")]
        # They are told apart by blanks, and all or none of them is taken.
        beside = " ".join(name for name in names if len(name.split()) == 1)
        group = root.create_group(kind.name, attributes={**attributes(kind), "coordinates": beside})
        _fill(group, job, kind)


def made(folder: Path) -> bool:
    """Returns whether a folder is one that `write` made."""
    try:
        root = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(root, dict) and "exported_from" in root.get("attributes", {})


def _fill(group: Any, job: Job, kind: Kind) -> None:
    plan: list[tuple[Column, Any, dict[str, int]]] = [(c, _array(group, kind, c), {}) for c in columns(kind)]
    for block in kind.blocks():
        for column, array, codes in plan:
            values = column.read(block)
            if column.dtype.kind == "O":
                values = np.array([codes.setdefault(text, len(codes)) for text in values.tolist()], np.int32)
            if values.size:
                array[block.start : block.stop] = values
        job.advance(kind, len(block))
    for column, array, codes in plan:
        if column.dtype.kind == "O":
            array.attrs["categories"] = list(codes)


def _array(group: Any, kind: Kind, column: Column) -> Any:
    """Returns a new array. Texts are numbers of ``categories``: Zarr v3 has no type for text that all readers know."""
    dtype = np.dtype(np.int32) if column.dtype.kind == "O" else column.dtype
    # A chunk is what is written at once.
    rows = max(1, *(len(block) for block in itertools.islice(kind.blocks(), 1)))
    return group.create_array(
        flat(column.name),
        shape=(kind.records, *column.shape),
        dtype=dtype,
        chunks=(rows, *(max(1, size) for size in column.shape)),
        dimension_names=["record", *column.dims],
        attributes=dict(column.attributes),
    )


def _zarr() -> ModuleType:
    try:
        import zarr
    except ImportError as error:
        message = "exporting to Zarr needs zarr, which is not installed: pip install 'tracerec[zarr]'"
        raise MissingExtra(message, extra="zarr") from error
    return zarr
