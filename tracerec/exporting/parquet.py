"""Hive-partitioned Parquet: a folder a tap, which DuckDB, polars, Dask and Spark read as one table."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracerec.errors import ExportError
from tracerec.exporting.job import escaped
from tracerec.protocol import dtypes
from tracerec.trace.blocks import Block
from tracerec.trace.columnar import Head, plain_elements
from tracerec.trace.columns import well_formed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracerec.exporting.job import Job, Kind
    from tracerec.model import Leaf
    from tracerec.trace.view import StreamView

__all__ = ["FOLDER", "made", "write"]

FOLDER = True

_EXACT = 1 << 53
"""Integers up to this are the same as float64."""


def write(job: Job, place: Path) -> None:
    """Writes ``tap=NAME/part-N.parquet``, N counting the tap's streams; all files have one schema."""
    views = [view for kind in job.kinds for view in kind.views]
    head = Head(views)
    element = _element([leaf for view in views for leaf in view.site.leaves])
    schema = pa.schema(
        [
            pa.field("leaf", pa.string(), nullable=False),
            pa.field("transforms", pa.string(), nullable=False),
            pa.field("dtype", pa.string(), nullable=False),
            pa.field("shape", pa.list_(pa.int32()), nullable=False),
            pa.field("value", pa.list_(element), nullable=False),
            pa.field("arrival", pa.uint64(), nullable=False),
            *head.fields,
        ],
        metadata={"exported_from": json.dumps(job.about)},
    )
    parts: dict[str, int] = {}
    for kind in job.kinds:
        for view in kind.views:
            folder = place / f"tap={escaped(kind.tap)}"
            folder.mkdir(exist_ok=True)
            number = parts[folder.name] = parts.get(folder.name, -1) + 1
            with pq.ParquetWriter(folder / f"part-{number}.parquet", schema, compression="zstd") as file:
                _write(file, job, kind, view, head)
    if rounded := sum(job.rounded.values()):
        taps = ", ".join(f"{count:,} of {tap!r}" for tap, count in job.rounded.items() if count)
        job.left_out.append(
            f"{rounded:,} integers beyond 2**53 were rounded, since the column value is float64 for all taps: {taps}; "
            "export these taps by themselves"
        )


def made(folder: Path) -> bool:
    """Returns whether a folder is one that `write` made."""
    return all(path.name.startswith("tap=") and path.is_dir() for path in folder.iterdir())


def _write(file: pq.ParquetWriter, job: Job, kind: Kind, view: StreamView, head: Head) -> None:
    element = file.schema.field("value").type.value_type
    for low, high in view.blocks(view.site.record_nbytes):
        block = Block(low, high, ((0, np.arange(low, high), np.arange(high - low)),))
        beside = head.columns([view], block)
        arrivals = pa.array(np.ascontiguousarray(view.index(low, high)["arrival"]))
        batches: list[pa.RecordBatch] = []
        for number, leaf in enumerate(view.site.leaves):
            values = plain_elements(view.leaf(number, low, high))
            if pa.types.is_floating(element) and values.dtype.itemsize == _WIDEST:
                job.rounded[kind.tap] = job.rounded.get(kind.tap, 0) + _beyond(values)
            rows = [*_described(view, leaf, values), _lists(values, element), arrivals, *beside]
            batches.append(pa.RecordBatch.from_arrays(rows, schema=file.schema))
        file.write_table(pa.Table.from_batches(batches, schema=file.schema))
        job.advance(kind, high - low)


def _described(view: StreamView, leaf: Leaf, values: np.ndarray) -> list[pa.Array]:
    """Returns the columns that are the same for all records of a leaf."""
    count = len(values)
    transforms = ", ".join(map(str, view.site.transforms))
    texts = [pa.repeat(well_formed(text), count) for text in (leaf.path, transforms, leaf.dtype)]
    shape = pa.array(np.tile(np.array(values.shape[1:], np.int32), count), pa.int32())
    offsets = np.arange(count + 1, dtype=np.int32) * (values.ndim - 1)
    return [*texts, pa.ListArray.from_arrays(pa.array(offsets), shape)]


def _lists(values: np.ndarray, element: pa.DataType) -> pa.ListArray:
    """Returns each record's elements, row by row, as a list."""
    size = math.prod(values.shape[1:])
    if size * len(values) > _MOST_ELEMENTS:
        message = f"a record of {size:,} elements is too large for a Parquet file; export it to zarr or hdf5"
        raise ExportError(message)
    flat = np.ascontiguousarray(values).reshape(-1).astype(element.to_pandas_dtype(), copy=False)
    offsets = (np.arange(len(values) + 1, dtype=np.int64) * size).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, element))


_MOST_ELEMENTS = (1 << 31) - 1

_WIDEST = 8


def _beyond(values: np.ndarray) -> int:
    """Returns how many integers float64 may not hold."""
    if values.dtype.kind == "u":
        return int(np.count_nonzero(values > _EXACT))
    return int(np.count_nonzero((values > _EXACT) | (values < -_EXACT))) if values.dtype.kind == "i" else 0


def _element(leaves: Sequence[Leaf]) -> pa.DataType:
    """Returns one type for the elements of all leaves: the narrowest of a few that holds them."""
    found = {plain_elements(np.empty((0, 1), dtypes.from_name(leaf.dtype))).dtype for leaf in leaves}
    floats = {dtype for dtype in found if dtype.kind == "f"}
    integers = found - floats
    if floats:
        short = all(dtype.itemsize <= 2 for dtype in integers)  # noqa: PLR2004 - float32 holds 24 bits
        return pa.float32() if short and np.dtype(np.float64) not in floats else pa.float64()
    if np.dtype(np.uint64) in integers:
        return pa.uint64() if all(dtype.kind == "u" for dtype in integers) else pa.float64()
    return pa.int64()
