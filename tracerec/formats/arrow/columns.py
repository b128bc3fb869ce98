"""Records as Arrow arrays: the schema of a data file and the columns of its batches, without a copy where possible."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracerec.formats.arrow import layout
from tracerec.model import FLAG_STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["data_columns", "index_columns", "joined", "schema", "shrinks"]

WORTH = 0.95
"""A file whose first batch does not shrink to this is stored as it is: it can then be mapped."""


def schema(file: layout.DataFile) -> list[pa.Field]:
    """Returns the fields of a data file."""
    found = [pa.field("stream", pa.int32(), nullable=False)] if file.pooled else []
    for field in layout.INDEX_FIELDS:
        kind = pa.timestamp("ns", "UTC") if field.name == "time" else getattr(pa, field.stored)()
        found.append(pa.field(field.name, kind, nullable=field.name == "step"))
    for field in file.fields:
        kind = pa.large_list(_element(field)) if file.lists else _type(field)
        found.append(pa.field(field.name, kind, nullable=False, metadata=dict(field.metadata)))
        if file.lists:
            found.append(pa.field(f"{field.name}_shape", pa.list_(pa.int32()), nullable=False))
    return found


def _element(field: layout.Field) -> pa.DataType:
    return getattr(pa, field.stored)()


def _type(field: layout.Field) -> pa.DataType:
    shape = field.stored_shape
    return pa.fixed_shape_tensor(_element(field), shape) if shape else _element(field)


def index_columns(index: np.ndarray) -> list[pa.Array]:
    """Returns rows of the index table, with a field ``stream`` in a pool, as columns."""
    names = (["stream"] if "stream" in (index.dtype.names or ()) else []) + [f.name for f in layout.INDEX_FIELDS]
    columns: list[pa.Array] = []
    for name in names:
        values, valid = np.ascontiguousarray(index[name]), None
        kind = pa.timestamp("ns", "UTC") if name == "time" else getattr(pa, values.dtype.name)()
        if name == "step":
            # A record without a step has a null, with its bits beneath.
            has = (index["flags"] & FLAG_STEP) != 0
            valid = None if has.all() else pa.py_buffer(np.packbits(has, bitorder="little"))
        columns.append(pa.Array.from_buffers(kind, len(index), [valid, pa.py_buffer(values)]))
    return columns


def data_columns(field: layout.Field, blocks: Sequence[np.ndarray], *, lists: bool) -> list[pa.Array]:
    """Returns blocks of records, each ``(n, *shape)``, as the columns of a field."""
    return _list_columns(field, blocks) if lists else [_column(field, joined(blocks))]


def _column(field: layout.Field, block: np.ndarray) -> pa.Array:
    """Returns records ``(n, *shape)`` as a column of numbers or tensors, without a copy."""
    values = _values(field, block)
    if not field.stored_shape:
        return values
    kind = _type(field)
    storage = pa.FixedSizeListArray.from_buffers(kind.storage_type, len(block), [None], children=[values])
    return pa.ExtensionArray.from_storage(kind, storage)


def _list_columns(field: layout.Field, blocks: Sequence[np.ndarray]) -> list[pa.Array]:
    """Returns blocks of records of any shapes as a column of lists and one of their shapes."""
    sizes = [math.prod((*block.shape[1:], *field.stored_shape[len(field.shape) :])) for block in blocks]
    counts = [len(block) for block in blocks]
    offsets = np.concatenate([[0], np.cumsum(np.repeat(sizes, counts), dtype=np.int64)]).astype("<i8")
    values = _values(field, joined([block.reshape(-1) for block in blocks]))
    lists = pa.LargeListArray.from_buffers(
        pa.large_list(_element(field)), len(offsets) - 1, [None, pa.py_buffer(offsets)], children=[values]
    )
    extra = list(field.stored_shape[len(field.shape) :])
    shapes = [[*block.shape[1:], *extra] for block in blocks for _ in range(len(block))]
    return [lists, pa.array(shapes, pa.list_(pa.int32()))]


def _values(field: layout.Field, block: np.ndarray) -> pa.Array:
    """Returns all elements as one array of the type that stores them."""
    kind = _element(field)
    bits = block.reshape(-1).view(np.dtype(field.stored).newbyteorder("<"))
    return pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(bits)])


def joined(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Returns blocks as one array."""
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def shrinks(batch: pa.RecordBatch, compression: str) -> bool:
    """Returns whether compression makes a batch smaller by 5 % at least."""
    codec = pa.Codec(compression)
    plain = packed = 0
    for column in batch.columns:
        storage = column.storage if isinstance(column, pa.ExtensionArray) else column
        for buffer in storage.buffers():
            if buffer is not None and buffer.size:
                plain += buffer.size
                packed += min(buffer.size, len(codec.compress(buffer)))
    return packed <= WORTH * plain
