"""A comparison as a pandas table: one row a pair of records and leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing.cells import KINDS
from tracerec.comparing.measures import cosine, rel_l2, snr_db, value_of
from tracerec.errors import MissingExtra
from tracerec.model import NO_SHARD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pandas as pd

    from tracerec.comparing.cells import Cell

__all__ = ["table"]

_COUNTS = ("size", "differing", "beyond", "nan", "posinf", "neginf", "lanes")
_LARGEST = ("abs", "rel", "ulp")


def table(cells: Sequence[Cell]) -> pd.DataFrame:
    """Returns the table of some cells; `tracerec.comparing.Comparison.to_pandas` says what it holds.

    Raises:
        MissingExtra: pandas is not installed.
    """
    pandas = _pandas()
    kept = any(cell.by is not None for cell in cells)
    parts = [_part(pandas, cell, kept=kept) for cell in cells]
    if not parts:
        return pandas.DataFrame(columns=["tap", "leaf", "transforms", "step", "kind"])
    whole = pandas.concat(parts, ignore_index=True)
    keys = [name for name in whole.columns if name.startswith("key:")]
    order = [
        "tap",
        "leaf",
        "transforms",
        *keys,
        *(n for n in whole.columns if n not in {"tap", "leaf", "transforms", *keys}),
    ]
    whole = whole[order].sort_values("place", kind="stable").drop(columns="place").reset_index(drop=True)
    taken = {name for name in whole.columns if not name.startswith("key:")}
    names = {key: key[4:] if key[4:] not in taken else f"kwargs.{key[4:]}" for key in keys}
    return whole.rename(columns=names)


def _part(pandas: ModuleType, cell: Cell, *, kept: bool) -> pd.DataFrame:
    pairs, rows = cell.pairs, cell.measures
    count = len(pairs)
    columns: dict[str, Any] = {
        "tap": [cell.tap] * count,
        "leaf": [cell.leaf] * count,
        "transforms": [cell.transforms] * count,
        **_keys(pandas, cell, cell.keys),
        **{name: pairs[name].astype(np.int64) for name in ("device", "process", "call", "occurrence", "place")},
        "shard": pandas.arrays.IntegerArray(pairs["shard"].astype(np.int64), pairs["shard"] == NO_SHARD),
        "kind": pandas.Categorical.from_codes(pairs["kind"].astype(np.int8), categories=list(KINDS)),
        "dtype_a": [cell.dtypes[0]] * count,
        "dtype_b": [cell.dtypes[1]] * count,
        "shape_a": [cell.shapes[0]] * count,
        "shape_b": [cell.shapes[1]] * count,
    }
    if kept:
        columns["by"] = ["" if cell.by is None else str(cell.by)] * count
    return pandas.DataFrame({**columns, **_measures(pandas, cell, pairs, rows)})


def _keys(pandas: ModuleType, cell: Cell, keys: np.ndarray) -> dict[str, Any]:
    out: dict[str, Any] = {}
    at = 0
    for name, kind, width in cell.group.keys:
        part = np.ascontiguousarray(keys[:, at : at + width])
        values = part.view(np.float64) if kind == "f" else part
        if width == 1 and kind == "i":
            out[f"key:{name}"] = pandas.array(values[:, 0], dtype="Int64")
        else:
            out[f"key:{name}"] = values[:, 0] if width == 1 else [tuple(row) for row in values.tolist()]
        at += width
    for name, value in cell.static.items():
        out[f"key:{name}"] = [value] * len(keys)
    return out


def _measures(pandas: ModuleType, cell: Cell, pairs: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Returns the measures: zeros of pairs that are equal, missing of pairs that were not measured."""
    there = pairs["measured"] >= 0
    equal = pairs["kind"] == 0
    mine = rows[pairs["measured"][there]]
    size = int(np.prod(cell.shapes[0], dtype=np.int64))
    missing = ~there & ~equal
    out: dict[str, Any] = {}

    def spread(values: np.ndarray, of_equal: float) -> np.ndarray:
        full = np.where(equal, float(of_equal), np.nan)
        full[there] = values
        return full

    for name in _COUNTS:
        full = np.full(len(pairs), size if name == "size" else 0, np.int64)
        full[there] = mine[name]
        out[name] = pandas.arrays.IntegerArray(full, missing)
    out["share"] = spread(mine["differing"] / np.maximum(mine["size"], 1), 0.0)
    for name in _LARGEST:
        out[f"max_{name}"] = spread(mine[f"max_{name}"], 0.0)
        found = mine[f"{name}_at"]
        at = np.full(len(pairs), -1, np.int64)
        at[there] = found
        out[f"max_{name}_at"] = pandas.arrays.IntegerArray(at, at < 0)
        for side, dtype in (("a", cell.a.dtype), ("b", cell.b.dtype)):
            values = np.full(len(pairs), None, object)
            some = [value_of(x, dtype) if f >= 0 else None for x, f in zip(mine[f"{name}_{side}"], found, strict=True)]
            values[there] = np.array([*some, None], object)[:-1]
            out[f"max_{name}_{side}"] = values
    out["mean_abs"] = spread(mine["sum_abs"] / np.maximum(mine["count"], 1), 0.0)
    out["cosine"], out["snr_db"] = spread(cosine(mine), 1.0), spread(snr_db(mine), np.inf)
    out["rel_l2"] = spread(rel_l2(mine), 0.0)
    out["need_rtol"], out["need_atol"] = spread(mine["need_rtol"], 0.0), spread(mine["need_atol"], 0.0)
    return out


def _pandas() -> ModuleType:
    try:
        import pandas as pd
    except ImportError as error:
        message = "tables need pandas, which is not installed: pip install 'tracerec[pandas]'"
        raise MissingExtra(message, extra="pandas") from error
    return pd
