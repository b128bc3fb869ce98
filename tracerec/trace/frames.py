"""The tidy table as Arrow and back: what Parquet files and DuckDB take, with no type lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tracerec.trace.columns import as_text, well_formed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["arrow_table", "nullable"]


def arrow_table(table: pd.DataFrame, *, zone: bool = True) -> pa.Table:
    """Returns a tidy table as Arrow; a column of Python objects is JSON text.

    Args:
        table: what `tracerec.trace.tables.table` returned.
        zone: whether times say that they are UTC. DuckDB keeps nanoseconds in times without a zone alone.
    """
    columns: dict[str, pa.Array] = {}
    for name in table.columns:
        column = table[name]
        if column.dtype == object or str(column.dtype) == "str":
            missing = column.isna().to_numpy() if column.dtype != object else [value is None for value in column]
            texts = [None if gone else well_formed(as_text(v)) for v, gone in zip(column, missing, strict=True)]
            columns[well_formed(str(name))] = pa.array(texts, pa.string())
        elif name == "time":
            kind = pa.timestamp("ns", "UTC" if zone else None)
            columns[str(name)] = pa.array(column.to_numpy("datetime64[ns]"), pa.timestamp("ns")).cast(kind)
        else:
            columns[well_formed(str(name))] = pa.array(column.array)
    return pa.table(columns)


def nullable(table: pa.Table) -> pd.DataFrame:
    """Returns an Arrow table as one of pandas, with types in which a value can be missing."""
    import pandas as pd

    kinds = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint8(): pd.UInt8Dtype(),
        pa.uint16(): pd.UInt16Dtype(),
        pa.uint32(): pd.UInt32Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return table.to_pandas(types_mapper=kinds.get)
