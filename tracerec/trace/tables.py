"""Records as a tidy pandas table: one row a record and leaf."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import lanes
from tracerec.errors import MissingExtra, SelectionError
from tracerec.keeping.reading import rows as rows_of
from tracerec.model import FLAG_CALL_GUESSED
from tracerec.progress import Progress
from tracerec.protocol import dtypes
from tracerec.statistics import COUNTS, MEASURES, moments, moments_by_row
from tracerec.trace import columns as kinds
from tracerec.trace import selection
from tracerec.trace.columns import Values, common, constant, plain, well_formed
from tracerec.trace.order import places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    import pandas as pd

    from tracerec.keeping.reading import Row
    from tracerec.model import Leaf
    from tracerec.trace.view import StreamView

__all__ = ["STATISTICS", "statistics_named", "table"]

STATISTICS = (*COUNTS, *MEASURES)
"""The names of all statistics, in the order of their columns."""

_SOMETIMES = ("process", "attempt", "call_sure", "valid_lanes", "lanes_may_be_invalid")
"""Columns that are there if a stream has something to say in them."""
_KEPT = ("kept", "digest")
"""Columns that are there if something else than a whole leaf was kept, and if a fingerprint was."""

_FIXED = (
    *("tap", "leaf", "transforms", "step", "time", "device", "call", *_SOMETIMES),
    *(*_KEPT, "value", *COUNTS, *MEASURES),
)
"""Names that a kwarg's column cannot have."""


def table(
    views: Sequence[StreamView], stats: Sequence[str] = STATISTICS, *, progress: bool | None = False
) -> pd.DataFrame:
    """Returns the table of some streams, in program order; `tracerec.trace.Trace.to_pandas` says what it holds.

    Args:
        views: the streams.
        stats: the statistics to compute, of `STATISTICS`.
        progress: as for `tracerec.progress.Progress`.

    Raises:
        MissingExtra: pandas is not installed.
    """
    pandas = _pandas()
    total = sum(_payload(view, stats) for view in views)
    with Progress("statistics", total, show=progress) as bar:
        parts = [_part(view, place, stats, bar) for view, place in zip(views, places(views), strict=True)]
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
        columns[_label(name, columns)] = _column(pandas, parts, name, order)
    if any(leaf.kept is not None for view in views for leaf in view.site.leaves):
        columns["kept"] = pandas.array(_joined(parts, "kept", length)[order].tolist(), dtype="str")
    if any("digest" in part.sparse for part in parts):
        columns["digest"] = _column(pandas, parts, "digest", order)
    columns["value"] = _column(pandas, parts, "value", order)
    columns |= _measured(pandas, parts, stats, order)
    return pandas.DataFrame(columns)


def _label(name: str, taken: Iterable[str]) -> str:
    """Returns the name of a kwarg's column, well formed and not that of another."""
    label = well_formed(f"kwargs.{name}" if name in _FIXED else name)
    while label in taken:
        label = f"kwargs.{label}"
    return label


def statistics_named(stats: bool | str | Iterable[str]) -> tuple[str, ...]:  # noqa: FBT001 - True and False are words here
    """Returns the statistics that a caller asks for, in the order of their columns.

    Args:
        stats: True: all; False: none; a name or several.

    Raises:
        SelectionError: there is no such statistic.

    Example:
        >>> statistics_named(["mean", "nan"])
        ('nan', 'mean')
    """
    if isinstance(stats, bool):
        return STATISTICS if stats else ()
    wanted = {stats} if isinstance(stats, str) else set(stats)
    for name in sorted(map(str, wanted - set(STATISTICS))):
        message = f"there is no statistic {name!r}; {selection.nearest(name, STATISTICS, 'there are')}"
        raise SelectionError(message, choices=STATISTICS)
    return tuple(name for name in STATISTICS if name in wanted)


def _measured(pandas: ModuleType, parts: Sequence[_Part], stats: Sequence[str], order: np.ndarray) -> dict[str, Any]:
    """Returns the columns of statistics."""
    columns: dict[str, Any] = {}
    unknown = _joined(parts, "unknown", len(order))[order].astype(bool)
    for name in stats:
        values = _joined(parts, name, len(order))[order]
        if name in COUNTS:
            counts = values.astype(np.int64)
            missing = unknown | (counts < 0)
            columns[name] = pandas.arrays.IntegerArray(counts, missing) if missing.any() else counts
        else:
            values = values.astype(np.float64)
            # A measure that is missing, for want of a finite value, is NA and not NaN.
            columns[name] = pandas.arrays.FloatingArray(values, np.isnan(values))
    return columns


def _payload(view: StreamView, stats: Sequence[str]) -> int:
    """Returns the bytes that are read for statistics."""
    if _unknown(view) or not _reads(stats):
        return 0
    return view.records * sum(_leaf_nbytes(row.leaf) for row in rows_of(view.site) if row.array is not None)


def _reads(stats: Sequence[str]) -> bool:
    """Returns whether tensors are read: how many elements there are is known without."""
    return bool(set(stats) - {"count"})


def _leaf_nbytes(leaf: Leaf) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64)) * dtypes.from_name(leaf.dtype).itemsize


def _sometimes(
    pandas: ModuleType, views: Sequence[StreamView], parts: Sequence[_Part], order: np.ndarray
) -> dict[str, Any]:
    """Returns the columns of `_SOMETIMES` that say something."""
    length = len(order)
    said: dict[str, Any] = {}
    if len({view.process for view in views}) > 1:
        said["process"] = _joined(parts, "process", length)[order].astype(np.int64)
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
class _Part:
    """One stream's rows.

    Attributes:
        length: how many.
        dense: columns that every stream has.
        sparse: ``step``, ``value``, ``valid_lanes`` and ``digest``.
        kwargs: the kwargs, but for ``step``.
    """

    length: int
    dense: dict[str, np.ndarray]
    sparse: dict[str, Values]
    kwargs: dict[str, Values]


def _part(view: StreamView, place: np.ndarray, stats: Sequence[str], bar: Progress) -> _Part:
    site, records = view.site, view.records
    told = rows_of(site)
    leaves = len(told)
    rows = view.index(0, records)
    dense = {
        "place": place,
        "time": rows["time"],
        "device": rows["device"],
        "call": rows["call"],
        "tap": constant(well_formed(site.name), records),
        "transforms": constant(well_formed(", ".join(map(str, site.transforms))), records),
        "attempt": np.zeros(records, np.int64) if view.attempts is None else view.attempts.number(rows),
        "process": np.full(records, view.process),
        "call_guessed": (rows["flags"] & FLAG_CALL_GUESSED) != 0,
        "lanes_may_be_invalid": np.full(records, site.lanes_may_be_invalid),
        "unknown": np.full(records, _unknown(view)),
    }
    dense = {name: np.repeat(values, leaves) for name, values in dense.items()}
    dense["leaf"] = np.tile(np.array([well_formed(row.leaf.path) for row in told], object), records)
    dense["leaf_number"] = np.tile(np.array([row.leaf.number for row in told], np.int64), records)
    dense["kept"] = np.tile(np.array([", ".join(row.kept) for row in told], object), records)
    kwargs = {name: _repeated(values, leaves) for name, values in kinds.kwargs(view, 0, records).items()}
    step = kwargs.pop("step", Values(rows["step"][:0], np.empty(0, bool)))
    statistics = [_statistics(view, row, stats, bar) for row in told]
    for name in stats:
        dense[name] = _interleaved([s[name] for s in statistics])
    sparse = {"step": step, "value": _scalars(view, told)}
    if (lanes_said := _lanes(view)) is not None:
        sparse["valid_lanes"] = _repeated(lanes_said, leaves)
    if (digests := _digests(view, told)) is not None:
        sparse["digest"] = digests
    return _Part(records * leaves, dense, sparse, kwargs)


def _unknown(view: StreamView) -> bool:
    """Returns whether statistics are left out, since lanes that never took the tap's branch would be in them."""
    return view.site.lanes_may_be_invalid and not view.raw


def _lanes(view: StreamView) -> Values | None:
    """Returns how many lanes of each record count; None where it is clear."""
    where = view.site.column("where")
    if where is None or (view.site.columns[where].shape == () and not view.raw):
        return None
    counts, total = lanes.lane_counts(view.column(where, 0, view.records))
    texts = np.array([f"{count}/{total}" for count in counts.tolist()], object)
    return Values(texts, np.ones(view.records, bool))


def _statistics(view: StreamView, row: Row, stats: Sequence[str], bar: Progress) -> dict[str, np.ndarray]:
    """Returns the moments of one row of each record, by name: counts as int64, measures with NaN if missing."""
    out = {name: np.zeros(view.records, np.int64) for name in COUNTS}
    out |= {name: np.full(view.records, np.nan) for name in MEASURES}
    if _unknown(view) or not stats:
        return out
    number, leaf = row.array, row.leaf
    size = int(np.prod(leaf.shape, dtype=np.int64))
    counts_alone = leaf.key_impl is not None or not _reads(stats)
    for start, stop in view.blocks(view.site.record_nbytes):
        if number is None:
            for name, values in row.statistics(_reading(view, start, stop)).items():
                out[name][start:stop] = values
            continue
        valid = view.valid(number, start, stop)
        if valid is not None:
            valid = np.broadcast_to(valid, (stop - start, *leaf.shape))
        if counts_alone:
            out["count"][start:stop] = size if valid is None else valid.reshape(stop - start, size).sum(axis=1)
            continue
        found = _moments(view.leaf(number, start, stop), valid)
        for name, values in found.items():
            out[name][start:stop] = values
        bar.advance((stop - start) * _leaf_nbytes(leaf))
    return out


def _reading(view: StreamView, start: int, stop: int) -> Callable[[int], np.ndarray]:
    return lambda place: view.leaf(place, start, stop)


def _digests(view: StreamView, told: Sequence[Row]) -> Values | None:
    """Returns the digests of a stream's rows; None where there is none."""
    if all(row.kind("fingerprint") is None for row in told):
        return None
    columns: list[np.ndarray] = []
    for row in told:
        texts = np.full(view.records, None, object)
        for start, stop in view.blocks(view.site.record_nbytes):
            found = row.digests(_reading(view, start, stop), lambda place, a=start, b=stop: view.valid(place, a, b))
            if found is not None:
                texts[start:stop] = found
        columns.append(texts)
    texts = _interleaved(columns)
    return Values(texts, np.array([text is not None for text in texts.tolist()], bool))


def _moments(block: np.ndarray, valid: np.ndarray | None) -> dict[str, np.ndarray]:
    """Returns the moments of each record over the elements that are valid."""
    if valid is None:
        return moments_by_row(block)
    found = [moments(block[i, ...][valid[i, ...]]) for i in range(len(block))]
    # A float64 array takes None as NaN.
    return {name: np.array([getattr(m, name) for m in found], np.float64) for name in STATISTICS}


def _scalars(view: StreamView, told: Sequence[Row]) -> Values:
    """Returns the values of scalar leaves, one a row; not valid for other leaves."""
    read = [_scalar(view, row) for row in told]
    there = [plain(array) for array in read if array is not None]
    if not there:
        count = view.records * len(told)
        return Values(np.empty(0), np.zeros(count, bool))
    dtype = common(there)
    columns = [np.zeros(view.records, dtype) if array is None else plain(array).astype(dtype) for array in read]
    valid = [np.full(view.records, array is not None) for array in read]
    return Values(_interleaved(columns), _interleaved(valid))


def _scalar(view: StreamView, row: Row) -> np.ndarray | None:
    """Returns the values of a scalar leaf, read or told by its summary; None of other leaves."""
    if row.array is None:
        return row.scalars(_reading(view, 0, view.records))
    is_scalar = row.leaf.shape == () and row.leaf.key_impl is None
    return view.leaf(row.array, 0, view.records) if is_scalar else None


def _column(pandas: ModuleType, parts: Sequence[_Part], name: str, order: np.ndarray) -> Any:
    """Returns the pandas array of a column that some streams lack, in a type that fits all values there are."""
    found = [part.sparse.get(name) or part.kwargs.get(name) for part in parts]
    present = [plain(f.values) for f in found if f is not None and f.valid.any()]
    dtype = common(present) if present else np.dtype(np.int64 if name == "step" else float)
    length = len(order)
    values = np.full(length, None, object) if dtype.kind == "O" else np.zeros(length, dtype)
    missing = np.ones(length, bool)
    start = 0
    for part, column in zip(parts, found, strict=True):
        stop = start + part.length
        if column is not None and column.valid.any():
            values[start:stop] = plain(column.values).astype(dtype)
            missing[start:stop] = ~column.valid
        start = stop
    values, missing = values[order], missing[order]
    if dtype.kind == "O":
        values[missing] = None
        texts = all(isinstance(v, str) for v in values[~missing].tolist())
        if not texts:
            return pandas.Series(values, dtype=object).array
        known = [value if value is None else well_formed(value) for value in values.tolist()]
        return pandas.array(known, dtype="str")
    if dtype.kind == "b":
        return pandas.arrays.BooleanArray(values, missing)
    if dtype.kind in "iu":
        return pandas.arrays.IntegerArray(values, missing)
    return pandas.arrays.FloatingArray(values, missing)


def _joined(parts: Sequence[_Part], name: str, length: int) -> np.ndarray:
    arrays = [part.dense[name] for part in parts]
    return np.concatenate(arrays) if arrays else np.empty(length, object)


def _repeated(column: Values, times: int) -> Values:
    return Values(np.repeat(column.values, times), np.repeat(column.valid, times))


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
