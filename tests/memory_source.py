"""A trace held in memory: the plainest implementation of the source protocols, and the tests' reference.

Example:
    >>> import numpy as np
    >>> from tracerec.model import Leaf, Site
    >>> site = Site("act", leaves=(Leaf("", (3,), "float32"),))
    >>> stream = make_stream(site, [np.zeros((4, 3), np.float32)], steps=range(4))
    >>> source = MemorySource([stream])
    >>> source.streams[0].leaf(0, 1, 3).shape, source.info.records
    ((2, 3), 4)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.formats.contract import RunInfo
from tracerec.model import FLAG_STEP, INDEX_DTYPE, NO_SHARD, Site
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.contract import StreamSource
    from tracerec.statistics import LeafSummary

__all__ = ["MemorySource", "MemoryStream", "make_index", "make_stream"]

RUN_ID = "0123456789abcdef0123456789abcdef"
STARTED = 1_700_000_000_000_000_000
"""Nanoseconds since the Unix epoch: 14 November 2023."""


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryStream:
    """A `StreamSource` over whole arrays.

    Attributes:
        site: the site.
        rows: the index table, ``(records,)`` of `INDEX_DTYPE`.
        arrays: one array ``(records, *shape)`` a leaf, of the leaf's logical dtype.
        columns: one array ``(records, *shape)`` a column; for a column with ``in_index`` it is ignored.
    """

    site: Site
    rows: np.ndarray
    arrays: tuple[np.ndarray, ...]
    columns: tuple[np.ndarray | None, ...] = ()

    @property
    def records(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        stored = [c for c in self.columns if c is not None]
        return self.rows.nbytes + sum(a.nbytes for a in (*self.arrays, *stored))

    def summaries(self) -> Sequence[LeafSummary]:
        from tracerec.summaries import summarizers

        leaves = summarizers(self)
        for leaf, array in zip(leaves, self.arrays, strict=True):
            leaf.add(array)
        return [leaf.summary() for leaf in leaves]

    def leaf_nbytes(self, number: int) -> int:
        return self.arrays[number].nbytes

    def index(self, start: int, stop: int) -> np.ndarray:
        return self.rows[start:stop]

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        return self.arrays[number][start:stop]

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        column = self.site.columns[number]
        if column.in_index:
            return self.rows["step"][start:stop].astype(dtypes.from_name(column.dtype))
        array = self.columns[number]
        assert array is not None
        return array[start:stop]


@dataclasses.dataclass(eq=False)
class MemorySource:
    """A `TraceSource` over streams in memory.

    Attributes:
        streams: the streams, in first-seen order.
        info: what is known of the run; made up unless given.
        path: the name that messages show.
        closed: whether `close` was called.
    """

    streams: Sequence[StreamSource]
    info: RunInfo = dataclasses.field(default=None)  # type: ignore[assignment]  # filled in below
    path: str = "<memory>"
    closed: bool = False

    def __post_init__(self) -> None:
        if self.info is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.info = RunInfo(
                run_id=RUN_ID,
                started=STARTED,
                ended=STARTED + 60_000_000_000,
                host="node-1",
                pid=4711,
                command=("python", "train.py"),
                versions={"tracerec": "1.0.0", "jax": "0.10.2"},
                devices=({"id": 0, "kind": "cpu", "platform": "cpu", "process": 0},),
                records=sum(s.records for s in self.streams),
            )

    def close(self) -> None:
        self.closed = True


def make_index(
    records: int,
    *,
    steps: Sequence[int] | np.ndarray | None = None,
    first: int = 0,
    **fields: Any,
) -> np.ndarray:
    """Returns ``records`` rows of the index table, one record a millisecond and one call a record.

    Args:
        records: how many rows.
        steps: the step of each record; None: the tap had none.
        first: the arrival number of the first row.
        fields: any field of `INDEX_DTYPE`, as a number for all rows or one a row; it wins over the rest.
    """
    rows = np.zeros(records, INDEX_DTYPE)
    arrival = first + np.arange(records)
    rows["arrival"] = rows["number"] = arrival
    rows["call"] = arrival + 1
    rows["time"] = STARTED + 1_000_000 * arrival
    rows["shard"] = NO_SHARD
    rows["program"] = 1
    if steps is not None:
        rows["step"] = np.asarray(steps, np.int64)
        rows["flags"] |= FLAG_STEP
    for name, value in fields.items():
        rows[name] = value
    return rows


def make_stream(
    site: Site,
    arrays: Sequence[Any],
    numbers: Sequence[Any] = (),
    steps: Sequence[int] | np.ndarray | None = None,
    *,
    first: int = 0,
    **fields: Any,
) -> MemoryStream:
    """Returns a stream of the site with sensible index rows.

    Args:
        site: the site.
        arrays: one ``(records, *shape)`` a leaf; lists are converted to the leaf's dtype.
        numbers: one ``(records, *shape)`` a column of ``site.columns``. For a column with ``in_index`` they
            are the steps; None there leaves them to ``steps``.
        steps: the step of each record, where the site has no such column or ``numbers`` has None for it.
        first: the arrival number of the first record.
        fields: fields of the index rows, as in `make_index`: ``device=3, call=[1, 1, 2], shard=0, ...``.

    Example:
        >>> from tracerec.model import Column, Leaf
        >>> site = Site("loss", (Leaf("", (), "float32"),), (Column("step", "int64", python="int"),))
        >>> stream = make_stream(site, [[0.5, 0.25]], numbers=[[10, 20]])
        >>> stream.rows["step"].tolist(), stream.column(0, 0, 2).tolist()
        ([10, 20], [10, 20])
    """
    leaves = tuple(_checked(array, leaf.shape, leaf.dtype) for array, leaf in zip(arrays, site.leaves, strict=True))
    numbers = tuple(numbers) or (None,) * len(site.columns)
    columns: list[np.ndarray | None] = []
    for values, column in zip(numbers, site.columns, strict=True):
        if column.in_index:
            steps = steps if values is None else values
            columns.append(None)
        else:
            columns.append(_checked(values, column.shape, column.dtype))
    stored = [*leaves, *(c for c in columns if c is not None)]
    records = len(stored[0]) if stored else 0 if steps is None else len(steps)
    assert all(len(array) == records for array in stored), "arrays of different lengths"
    return MemoryStream(site, make_index(records, steps=steps, first=first, **fields), leaves, tuple(columns))


def _checked(values: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    array = np.asarray(values, dtypes.from_name(dtype))
    assert array.shape[1:] == shape, f"array of {array.shape[1:]} for a leaf of {shape}"
    return array
