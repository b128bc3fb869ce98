"""Records as Arrow record batches, a block at a time; numbers that Arrow lacks in types that hold them exactly."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracerec.model import FLAG_STEP, INDEX_DTYPE
from tracerec.protocol import dtypes
from tracerec.trace import columns as kinds
from tracerec.trace import selection
from tracerec.trace.blocks import blocks
from tracerec.trace.columns import as_text, plain, well_formed
from tracerec.trace.view import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.model import Leaf
    from tracerec.trace.blocks import Block
    from tracerec.trace.view import StreamView

__all__ = ["Head", "attempts_of", "leaf_column", "leaf_fields", "plain_elements", "reader", "steps_of"]

_TAKEN = ("step", "time", "device", "call", "process", "attempt")
"""Columns whose names a kwarg cannot have."""


def reader(views: Sequence[StreamView], places: Sequence[np.ndarray]) -> pa.RecordBatchReader:
    """Returns a reader of records in program order, which reads a block of `BLOCK_BYTES` at a time.

    Args:
        views: views whose leaves are alike.
        places: for each view the place of its records in program order.
    """
    head = Head(views)
    leaves = [leaf for leaf in (views[0].site.leaves if views else ()) if math.prod(leaf.shape)]
    numbers = [number for number, leaf in enumerate(views[0].site.leaves if views else ()) if math.prod(leaf.shape)]
    schema = pa.schema([*head.fields, *leaf_fields(leaves)], metadata=_about(views))

    def batches() -> Iterator[pa.RecordBatch]:
        for block in blocks(views, places, BLOCK_BYTES):
            found = head.columns(views, block)
            for number in numbers:
                array = block.read(lambda s, low, high, number=number: views[s].leaf(number, low, high))
                found.append(leaf_column(array))
            yield pa.RecordBatch.from_arrays(found, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


class Head:
    """The columns beside the arrays: step, time, device, call, process, attempt, and the kwargs.

    Args:
        views: all views whose records will come: their kwargs decide which columns there are, and of which types.

    Attributes:
        fields: the columns.
    """

    def __init__(self, views: Sequence[StreamView]) -> None:
        self._processes = len({view.process for view in views}) > 1
        self._attempts = any(view.attempts is not None for view in views)
        self._kwargs = _kwarg_types(views)
        self.fields = [
            pa.field("step", pa.int64()),
            pa.field("time", pa.timestamp("ns", "UTC"), nullable=False),
            pa.field("device", pa.int32(), nullable=False),
            pa.field("call", pa.uint64(), nullable=False),
        ]
        if self._processes:
            self.fields.append(pa.field("process", pa.int32(), nullable=False))
        if self._attempts:
            self.fields.append(pa.field("attempt", pa.int32(), nullable=False))
        for name, kind in self._kwargs.items():
            taken = name in _TAKEN or name == "value" or name.startswith("value[")
            self.fields.append(pa.field(well_formed(f"kwargs.{name}" if taken else name), kind))

    def columns(self, views: Sequence[StreamView], block: Block) -> list[pa.Array]:
        """Returns the columns of a block of records of some views."""
        rows = block.read(lambda stream, low, high: views[stream].index(low, high))
        no_step = (rows["flags"] & FLAG_STEP) == 0
        found = [
            pa.array(np.ascontiguousarray(rows["step"]), pa.int64(), mask=no_step),
            pa.array(rows["time"].astype("datetime64[ns]"), pa.timestamp("ns", "UTC")),
            pa.array(np.ascontiguousarray(rows["device"]), pa.int32()),
            pa.array(np.ascontiguousarray(rows["call"]), pa.uint64()),
        ]
        if self._processes:
            found.append(pa.array(block.read(lambda s, low, high: np.full(high - low, views[s].process, np.int32))))
        if self._attempts:
            found.append(pa.array(block.read(lambda s, low, high: attempts_of(views[s], low, high))))
        described = [selection.kwargs_of(view) for view in views]
        found += [_kwarg_column(views, block, described, name, kind) for name, kind in self._kwargs.items()]
        return found


def leaf_fields(leaves: Sequence[Leaf]) -> list[pa.Field]:
    """Returns the columns of leaves that have elements."""
    found: list[pa.Field] = []
    for leaf in leaves:
        metadata = {"dtype": leaf.dtype, "leaf": well_formed(leaf.path)}
        if leaf.key_impl is not None:
            metadata["key_impl"] = well_formed(leaf.key_impl)
        sample = plain_elements(np.empty((0, *leaf.shape), dtypes.from_name(leaf.dtype)))
        kind = pa.from_numpy_dtype(sample.dtype)
        if sample.ndim > 1:
            kind = pa.fixed_shape_tensor(kind, sample.shape[1:])
        found.append(pa.field(well_formed(f"value{leaf.path}"), kind, nullable=False, metadata=metadata))
    return found


def leaf_column(array: np.ndarray) -> pa.Array:
    """Returns records ``(n, *shape)`` as a column of numbers or of tensors."""
    values = plain_elements(array)
    if values.ndim == 1:
        return pa.array(np.ascontiguousarray(values))
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:])
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
    return pa.ExtensionArray.from_storage(kind, storage)


def plain_elements(array: np.ndarray) -> np.ndarray:
    """Returns records in a type that Arrow has, exactly: complex numbers as two, bools of tensors as 0 and 1."""
    if array.dtype.kind == "c":
        part = np.dtype(f"<f{array.dtype.itemsize // 2}")
        return np.ascontiguousarray(array).view(part).reshape(*array.shape, 2)
    if array.dtype.kind == "b" and array.ndim > 1:
        return array.view(np.uint8)
    return array if array.dtype == np.float16 else plain(array)


def steps_of(views: Sequence[StreamView]) -> Callable[[int, int, int], np.ndarray] | None:
    """Returns what reads the steps of a view's rows; None when some records have none, or of another shape or type."""
    numbers: list[int | None] = []
    for view in views:
        stored = [n for n, c in enumerate(view.site.columns) if c.name == "step" and c.role is None and not c.in_index]
        numbers.append(stored[0] if stored else None)
        if not stored and not _all_stepped(view):
            return None

    def read(stream: int, low: int, high: int) -> np.ndarray:
        number, view = numbers[stream], views[stream]
        return view.index(low, high)["step"] if number is None else view.column(number, low, high)

    samples = [read(stream, 0, 0) for stream in range(len(views))]
    return read if len({(sample.shape, sample.dtype) for sample in samples}) == 1 else None


def _all_stepped(view: StreamView) -> bool:
    blocks_of_rows = view.blocks(INDEX_DTYPE.itemsize)
    return all(bool(np.all(view.index(low, high)["flags"] & FLAG_STEP)) for low, high in blocks_of_rows)


def _about(views: Sequence[StreamView]) -> dict[str, str]:
    if not views:
        return {}
    site = views[0].site
    transforms = json.dumps([t.to_json() for t in site.transforms])
    return {"tap": well_formed(site.name), "transforms": transforms}


def attempts_of(view: StreamView, low: int, high: int) -> np.ndarray:
    """Returns the number of the attempt of some records."""
    if view.attempts is None:
        return np.zeros(high - low, np.int32)
    return view.attempts.number(view.index(low, high)).astype(np.int32)


def _kwarg_types(views: Sequence[StreamView]) -> dict[str, pa.DataType]:
    """Returns the type of each kwarg's column."""
    found: dict[str, list[pa.DataType | None]] = {}
    for view in views:
        for name, what in selection.kwargs_of(view).items():
            in_index = isinstance(what, int) and view.site.columns[what].in_index
            if not (name == "step" and in_index):
                found.setdefault(name, []).append(_type(view, what))
    return {name: _unified([kind for kind in types if kind is not None]) for name, types in found.items()}


def _type(view: StreamView, what: Any) -> pa.DataType | None:
    """Returns the type of a kwarg in one stream; None where its value is None."""
    if isinstance(what, selection.Static):
        if what.value is None:
            return None
        return pa.bool_() if isinstance(what.value, bool) else pa.string()
    if isinstance(what, int) and view.site.columns[what].shape == ():
        values = plain(np.empty(0, dtypes.from_name(view.site.columns[what].dtype)))
        return pa.string() if values.dtype.kind == "O" else pa.from_numpy_dtype(values.dtype)
    return pa.string()


def _unified(types: Sequence[pa.DataType]) -> pa.DataType:
    """Returns a type that holds the values of all: text where no number does."""
    distinct = set(types)
    if len(distinct) == 1:
        return next(iter(distinct))
    integers = all(pa.types.is_integer(kind) for kind in distinct)
    if distinct and integers:
        if pa.uint64() not in distinct:
            return pa.int64()
        signed = any(pa.types.is_signed_integer(kind) for kind in distinct)
        return pa.string() if signed else pa.uint64()
    numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in distinct)
    return pa.float64() if distinct and numbers else pa.string()


def _kwarg_column(
    views: Sequence[StreamView], block: Block, described: Sequence[dict[str, Any]], name: str, kind: pa.DataType
) -> pa.Array:
    as_object = pa.types.is_string(kind)
    dtype = np.dtype(object if as_object else kind.to_pandas_dtype())

    def read(stream: int, low: int, high: int) -> np.ndarray:
        """Returns values and whether they are there, as one structured array."""
        out = np.zeros(high - low, [("value", dtype), ("valid", bool)])
        what = described[stream].get(name, selection.Static(None))
        if high == low or what == selection.Static(None):
            return out
        found = kinds.kwarg(views[stream], what, low, high)
        if as_object and isinstance(what, selection.Static):
            out["value"] = as_text(what.value)
        elif as_object:
            out["value"] = [as_text(value) for value in found.values]
        else:
            out["value"] = plain(found.values) if found.values.dtype.kind != "O" else found.values
        out["valid"] = found.valid
        return out

    both = block.read(read)
    values, missing = np.ascontiguousarray(both["value"]), ~both["valid"]
    if as_object:
        texts = [None if gone else well_formed(value) for value, gone in zip(values.tolist(), missing, strict=True)]
        return pa.array(texts, kind)
    return pa.array(values, kind, mask=missing)
