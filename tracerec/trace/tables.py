"""Records as a tidy pandas table: one row a record and leaf."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import lanes, structure
from tracerec.errors import MissingExtra
from tracerec.model import FLAG_CALL_GUESSED, FLAG_STEP
from tracerec.statistics import moments
from tracerec.trace import selection
from tracerec.trace.order import places

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pandas as pd

    from tracerec.trace.view import StreamView

__all__ = ["COUNTS", "MEASURES", "table"]

COUNTS = ("count", "nan", "posinf", "neginf", "zeros")
MEASURES = ("min", "max", "mean", "std", "l2")
_SOMETIMES = ("attempt", "call_sure", "valid_lanes", "lanes_may_be_invalid")
"""Columns that are there if a stream has something to say in them."""
_FIXED = ("tap", "leaf", "transforms", "step", "time", "device", "call", *_SOMETIMES, "value", *COUNTS, *MEASURES)
"""Names that a kwarg's column cannot have."""


def table(views: Sequence[StreamView]) -> pd.DataFrame:
    """Returns the table of some streams, in program order; `tracerec.trace.Trace.to_pandas` says what it holds.

    Raises:
        MissingExtra: pandas is not installed.
    """
    pandas = _pandas()
    parts = [_part(view, place) for view, place in zip(views, places(views), strict=True)]
    length = sum(part.length for part in parts)
    order = np.lexsort((_joined(parts, "leaf_number", length), _joined(parts, "place", length)))
    columns: dict[str, Any] = {}
    for name in ("tap", "leaf", "transforms"):
        columns[name] = pandas.array(_joined(parts, name, length)[order].tolist(), dtype="str")
    columns["step"] = _column(pandas, parts, "step", order)
    times = _joined(parts, "time", length)[order].astype("datetime64[ns]")
    columns["time"] = pandas.DatetimeIndex(times, tz="UTC")
    for name in ("device", "call"):
        columns[name] = _joined(parts, name, length)[order].astype(np.int64)
    columns |= _sometimes(pandas, views, parts, order)
    kwargs = dict.fromkeys(name for part in parts for name in part.kwargs)
    for name in kwargs:
        columns[f"kwargs.{name}" if name in _FIXED else name] = _column(pandas, parts, name, order)
    columns["value"] = _column(pandas, parts, "value", order)
    unknown = _joined(parts, "unknown", length)[order].astype(bool)
    for name in COUNTS:
        counts = _joined(parts, name, length)[order].astype(np.int64)
        columns[name] = pandas.arrays.IntegerArray(counts, unknown) if unknown.any() else counts
    for name in MEASURES:
        values = _joined(parts, name, length)[order].astype(np.float64)
        # A measure that is missing, for want of a finite value, is NA and not NaN.
        columns[name] = pandas.arrays.FloatingArray(values, np.isnan(values))
    return pandas.DataFrame(columns)


def _sometimes(
    pandas: ModuleType, views: Sequence[StreamView], parts: Sequence[_Part], order: np.ndarray
) -> dict[str, Any]:
    """Returns the columns of `_SOMETIMES` that say something."""
    length = len(order)
    said: dict[str, Any] = {}
    if any(view.attempts for view in views):
        said["attempt"] = _joined(parts, "attempt", length)[order].astype(np.int64)
    guessed = _joined(parts, "call_guessed", length)[order].astype(bool)
    if guessed.any():
        said["call_sure"] = ~guessed
    if any("valid_lanes" in part.sparse for part in parts):
        said["valid_lanes"] = _column(pandas, parts, "valid_lanes", order)
    if any(view.site.lanes_may_be_invalid for view in views):
        said["lanes_may_be_invalid"] = _joined(parts, "lanes_may_be_invalid", length)[order].astype(bool)
    return said


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Values:
    """One stream's values of a column that other streams may lack.

    Attributes:
        values: ``(n,)``, of a numpy dtype, or of objects.
        valid: which of them are there, ``(n,)``.
    """

    values: np.ndarray
    valid: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """One stream's rows.

    Attributes:
        length: how many.
        dense: columns that every stream has.
        sparse: ``step``, ``value`` and ``valid_lanes``.
        kwargs: the kwargs, but for ``step``.
    """

    length: int
    dense: dict[str, np.ndarray]
    sparse: dict[str, _Values]
    kwargs: dict[str, _Values]


def _part(view: StreamView, place: np.ndarray) -> _Part:
    site, records = view.site, view.records
    leaves = len(site.leaves)
    rows = view.index(0, records)
    dense = {
        "place": place,
        "time": rows["time"],
        "device": rows["device"],
        "call": rows["call"],
        "tap": _constant(site.name, records),
        "transforms": _constant(", ".join(map(str, site.transforms)), records),
        "attempt": np.zeros(records, np.int64) if view.attempts is None else view.attempts.number(rows),
        "call_guessed": (rows["flags"] & FLAG_CALL_GUESSED) != 0,
        "lanes_may_be_invalid": np.full(records, site.lanes_may_be_invalid),
        "unknown": np.full(records, _unknown(view)),
    }
    dense = {name: np.repeat(values, leaves) for name, values in dense.items()}
    dense["leaf"] = np.tile(np.array([leaf.path for leaf in site.leaves], object), records)
    dense["leaf_number"] = np.tile(np.array([leaf.number for leaf in site.leaves], np.int64), records)
    kwargs = {name: _repeated(values, leaves) for name, values in _kwargs(view).items()}
    step = kwargs.pop("step", _Values(rows["step"][:0], np.empty(0, bool)))
    statistics = [_statistics(view, number) for number in range(leaves)]
    for name in (*COUNTS, *MEASURES):
        dense[name] = _interleaved([s[name] for s in statistics])
    sparse = {"step": step, "value": _scalars(view)}
    if (lanes_said := _lanes(view)) is not None:
        sparse["valid_lanes"] = _repeated(lanes_said, leaves)
    return _Part(records * leaves, dense, sparse, kwargs)


def _unknown(view: StreamView) -> bool:
    """Returns whether statistics are left out, since lanes that never took the tap's branch would be in them."""
    return view.site.lanes_may_be_invalid and not view.raw


def _lanes(view: StreamView) -> _Values | None:
    """Returns how many lanes of each record count; None where it is clear."""
    where = view.site.column("where")
    if where is None or (view.site.columns[where].shape == () and not view.raw):
        return None
    counts, total = lanes.lane_counts(view.column(where, 0, view.records))
    texts = np.array([f"{count}/{total}" for count in counts.tolist()], object)
    return _Values(texts, np.ones(view.records, bool))


def _kwargs(view: StreamView) -> dict[str, _Values]:
    """Returns one value a record for each kwarg."""
    records, columns = view.records, view.site.columns
    out: dict[str, _Values] = {}
    for name, kwarg in selection.kwargs_of(view).items():
        if isinstance(kwarg, selection.Static):
            out[name] = _Values(_constant(kwarg.value, records), np.full(records, kwarg.value is not None))
        elif isinstance(kwarg, int) and columns[kwarg].in_index:
            rows = view.index(0, records)
            out[name] = _Values(rows["step"], (rows["flags"] & FLAG_STEP) != 0)
        elif isinstance(kwarg, int) and columns[kwarg].shape == ():
            out[name] = _Values(view.column(kwarg, 0, records), np.ones(records, bool))
        else:
            out[name] = _Values(_built(view, kwarg), np.ones(records, bool))
    return out


def _built(view: StreamView, kwarg: Any) -> np.ndarray:
    """Returns the values of a kwarg that is an array, or a container of numbers, as objects."""
    columns = [view.column(i, 0, view.records) for i in range(len(view.site.columns))]
    out = np.empty(view.records, object)
    for row in range(view.records):
        numbers = [c.to_python(x[row, ...]) for c, x in zip(view.site.columns, columns, strict=True)]
        node = {"slot": kwarg} if isinstance(kwarg, int) else kwarg
        out[row] = structure.build(node, numbers.__getitem__)
    return out


def _statistics(view: StreamView, number: int) -> dict[str, np.ndarray]:
    """Returns the moments of one leaf of each record, by name: counts as int64, measures with NaN if missing."""
    leaf = view.site.leaves[number]
    out = {name: np.zeros(view.records, np.int64) for name in COUNTS}
    out |= {name: np.full(view.records, np.nan) for name in MEASURES}
    if _unknown(view):
        return out
    for start, stop in view.blocks(view.site.record_nbytes):
        valid = view.valid(number, start, stop)
        if valid is not None:
            valid = np.broadcast_to(valid, (stop - start, *leaf.shape))
        if leaf.key_impl is not None:
            size = int(np.prod(leaf.shape, dtype=np.int64))
            out["count"][start:stop] = size if valid is None else valid.reshape(-1, size).sum(axis=1)
            continue
        block = view.leaf(number, start, stop)
        found = [moments(block[i] if valid is None else block[i][valid[i]]) for i in range(stop - start)]
        for name in COUNTS:
            out[name][start:stop] = [getattr(m, name) for m in found]
        for name in MEASURES:
            # A float64 array takes None as NaN.
            out[name][start:stop] = np.array([getattr(m, name) for m in found], np.float64)
    return out


def _scalars(view: StreamView) -> _Values:
    """Returns the values of scalar leaves, one a row; not valid for other leaves."""
    scalars = [leaf.shape == () and leaf.key_impl is None for leaf in view.site.leaves]
    read = [view.leaf(i, 0, view.records) for i, scalar in enumerate(scalars) if scalar]
    if not read:
        count = view.records * len(scalars)
        return _Values(np.empty(0), np.zeros(count, bool))
    values = [_numpy(array) for array in read]
    dtype = _common(values)
    filled = iter(values)
    columns = [next(filled).astype(dtype) if scalar else np.zeros(view.records, dtype) for scalar in scalars]
    valid = [np.full(view.records, scalar) for scalar in scalars]
    return _Values(_interleaved(columns), _interleaved(valid))


def _column(pandas: ModuleType, parts: Sequence[_Part], name: str, order: np.ndarray) -> Any:
    """Returns the pandas array of a column that some streams lack, in a type that fits all values there are."""
    found = [part.sparse.get(name) or part.kwargs.get(name) for part in parts]
    present = [_numpy(f.values) for f in found if f is not None and f.valid.any()]
    dtype = _common(present) if present else np.dtype(np.int64 if name == "step" else float)
    length = len(order)
    values = np.full(length, None, object) if dtype.kind == "O" else np.zeros(length, dtype)
    missing = np.ones(length, bool)
    start = 0
    for part, column in zip(parts, found, strict=True):
        stop = start + part.length
        if column is not None and column.valid.any():
            values[start:stop] = _numpy(column.values).astype(dtype)
            missing[start:stop] = ~column.valid
        start = stop
    values, missing = values[order], missing[order]
    if dtype.kind == "O":
        values[missing] = None
        texts = all(isinstance(v, str) for v in values[~missing].tolist())
        return pandas.array(values.tolist(), dtype="str") if texts else pandas.Series(values, dtype=object).array
    if dtype.kind == "b":
        return pandas.arrays.BooleanArray(values, missing)
    if dtype.kind in "iu":
        return pandas.arrays.IntegerArray(values, missing)
    return pandas.arrays.FloatingArray(values, missing)


def _numpy(values: np.ndarray) -> np.ndarray:
    """Returns the values in a type that pandas has a nullable array for, exactly; complex numbers as objects."""
    name = values.dtype.name
    if values.dtype.kind == "c":
        return values.astype(object)
    if name.startswith(("bfloat", "float8", "float4")) or name == "float16":
        return values.astype(np.float32)
    if name in {"int2", "int4"}:
        return values.astype(np.int8)
    if name in {"uint2", "uint4"}:
        return values.astype(np.uint8)
    return values


def _common(arrays: Sequence[np.ndarray]) -> np.dtype[Any]:
    """Returns the type of a column: that of all its arrays if it is one, else one that holds them exactly."""
    dtypes = {array.dtype for array in arrays}
    kinds = {dtype.kind for dtype in dtypes}
    if len(dtypes) == 1 and kinds <= set("bf"):
        return next(iter(dtypes))
    if "O" in kinds:
        return np.dtype(object)
    if kinds <= set("iu"):
        unsigned64 = np.dtype(np.uint64) in dtypes
        return np.dtype(object if unsigned64 and "i" in kinds else np.uint64 if unsigned64 else np.int64)
    inexact = any(a.dtype.kind in "iu" and a.size and _magnitude(a) > _EXACT_IN_FLOAT64 for a in arrays)
    return np.dtype(object if inexact else np.float64)


_EXACT_IN_FLOAT64 = 1 << 53


def _magnitude(integers: np.ndarray) -> int:
    return max(abs(int(integers.min())), abs(int(integers.max())))


def _joined(parts: Sequence[_Part], name: str, length: int) -> np.ndarray:
    arrays = [part.dense[name] for part in parts]
    return np.concatenate(arrays) if arrays else np.empty(length, object)


def _constant(value: Any, count: int) -> np.ndarray:
    out = np.empty(count, object)
    # Slice assignment would take a sequence apart.
    out.fill(value)
    return out


def _repeated(column: _Values, times: int) -> _Values:
    return _Values(np.repeat(column.values, times), np.repeat(column.valid, times))


def _interleaved(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Returns one array with the first item of each column, then the second of each, and so on."""
    return np.stack(columns, axis=1).reshape(-1) if columns else np.empty(0)


def _pandas() -> ModuleType:
    try:
        import pandas as pd
    except ImportError as error:
        message = "tables need pandas, which is not installed: pip install 'tracerec[pandas]'"
        raise MissingExtra(message, extra="pandas") from error
    return pd
