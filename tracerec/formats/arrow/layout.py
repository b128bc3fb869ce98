"""What a sealed Arrow trace holds: the files of its folder, their columns, and which stream goes into which file.

::

    streams.arrow          one row a stream, in first-seen order: STREAM_COLUMNS; the run in the schema's metadata
    streams.crc32c         the CRC-32C of streams.arrow, eight hexadecimal digits
    stream-000007.arrow    all records of one large stream
    pool-000000.arrow      the records of many small streams, one stream after the other

All are Arrow IPC files. A row of a data file is a record: the columns of the index table, ``data_N`` for leaf N and
``kwarg_N`` for column N of the site; in a pool first ``stream``, the row of streams.arrow.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from tracerec.formats.contract import FORMAT_VERSION
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np

__all__ = [
    "CHECKSUM",
    "DATA_FILE",
    "FORMAT",
    "FORMAT_KEY",
    "INDEX_FIELDS",
    "LIST_SHAPE_TYPE",
    "NEW_COLUMNS",
    "RUN_KEY",
    "STREAMS",
    "STREAM_COLUMNS",
    "STREAM_FIELD",
    "VERSION",
    "VERSION_KEY",
    "DataFile",
    "Field",
    "fields",
    "is_trace",
    "plan",
    "text",
]

FORMAT = "arrow"
VERSION = ".".join(map(str, FORMAT_VERSION))
FORMAT_KEY = "tracerec_format"
VERSION_KEY = "format_version"
RUN_KEY = "run"
STREAMS = "streams.arrow"
CHECKSUM = "streams.crc32c"

DATA_FILE = re.compile(r"(stream|pool)-[0-9]{6,12}\.arrow", re.ASCII)
"""Names of data files. Whatever else the index names is refused, so that no path leads out of the folder."""

BATCH_BYTES = 1 << 20
"""Bytes of a record batch: what a reader maps or decompresses at once. Many more batches are slow to open."""

SMALL_ROW = 4096
SMALL_STREAM = 4 << 20
"""A stream of shorter rows and fewer bytes is pooled: a file costs a kilobyte and an open."""

MAX_POOLS = 32
"""Pools of fixed shapes. Small streams of yet other shapes share pools of lists."""

LIST_ROWS = 256
"""Rows of a batch of a pool of lists, whose rows differ in length."""

MAX_LIST_SIZE = (1 << 31) - 1
"""Arrow's limit of elements in a fixed-size list."""

LIST_SHAPE_TYPE = "list<int32>"
"""The type of ``data_N_shape``, which stands beside ``data_N`` where that is a list."""

STREAM_COLUMNS: dict[str, str] = {
    "stream": "int32",  # the row's own number, to join pools with
    "tap": "utf8",
    "file": "utf8",
    "first_row": "int64",  # in the file
    "records": "int64",
    "first_step": "int64",  # null where no record has a step
    "last_step": "int64",
    "nbytes": "int64",  # of the file; in a pool its share
    "leaf_nbytes": "utf8",  # JSON, the same for each leaf's column
    "site": "utf8",  # JSON
    "summaries": "utf8",  # JSON, one item a leaf
    "batch_rows": "int64",  # of every record batch of the file but the last
    "file_nbytes": "int64",
    "file_crc32c": "uint32",
    "site_id": "uint64",
}
"""The columns of streams.arrow and their types."""

NEW_COLUMNS = frozenset({"site_id"})
"""Those of which a file of a version before 1.2 has none."""

_STORED = {"bool": "uint8", "bfloat16": "uint16", "complex64": "float32", "complex128": "float64"}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One column of a data file.

    Attributes:
        name: the column's name.
        dtype: the logical dtype's name.
        shape: the shape of one record.
        metadata: of the Arrow field.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], compare=False)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of the elements, as tracerec gives them."""
        return dtypes.from_name(self.dtype)

    @property
    def stored(self) -> str:
        """The name of the Arrow type of the elements: that of the bits, where Arrow has no such number."""
        if self.dtype in _STORED:
            return _STORED[self.dtype]
        return self.dtype if self.dtype in _NUMBERS else "uint8"

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of one record in the file: a complex number is two."""
        return (*self.shape, 2) if self.dtype.startswith("complex") else self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of one record."""
        return math.prod(self.shape) * self.numpy.itemsize

    @property
    def type(self) -> str:
        """The name of the column's type, as `tracerec.formats.arrow.ipc` names it."""
        if self.name == "time":
            return "timestamp[ns]"
        if not self.stored_shape:
            return self.stored
        return f"fixed_size_list[{math.prod(self.stored_shape)}]<{self.stored}>"

    @property
    def list_type(self) -> str:
        """The name of the type that the column has where records of several shapes share a file."""
        return f"large_list<{self.stored}>"


_NUMBERS = frozenset({f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}) | {
    "float16",
    "float32",
    "float64",
}

INDEX_FIELDS = tuple(Field(name, INDEX_DTYPE[name].name) for name in INDEX_DTYPE.names or ())
"""The columns of the index table, in every data file."""

STREAM_FIELD = Field("stream", "int32")


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """A data file to be written.

    Attributes:
        name: its name.
        streams: numbers of the streams in it, in order.
        fields: the columns behind the index's.
        pooled: whether it has the column ``stream``.
        lists: whether its arrays are lists of any length, with their shapes beside.
        batch_rows: rows of a record batch.
    """

    name: str
    streams: tuple[int, ...]
    fields: tuple[Field, ...]
    pooled: bool = False
    lists: bool = False
    batch_rows: int = 1


def is_trace(folder: Path) -> bool:
    """Returns whether a folder is a sealed Arrow trace, by what it holds; a reader then checks it."""
    return (folder / STREAMS).is_file()


def text(name: str) -> str:
    r"""Returns a name as UTF-8 can hold it: lone surrogates become JSON escapes. The exact name is in the site.

    Example:
        >>> print(text("a/β\ud800"))
        a/β\ud800
    """
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in name)


def fields(site: Site) -> tuple[Field, ...]:
    """Returns the columns of a site's leaves and kwargs; one without elements has none."""
    found: list[Field] = []
    for number, leaf in enumerate(site.leaves):
        metadata = {"dtype": leaf.dtype, "leaf": text(leaf.path)}
        if leaf.key_impl is not None:
            metadata["key_impl"] = text(leaf.key_impl)
        found.append(Field(f"data_{number}", leaf.dtype, leaf.shape, metadata))
    for number, column in enumerate(site.columns):
        if not column.in_index:
            metadata = {"dtype": column.dtype, "kwarg": text(column.name)}
            if column.role is not None:
                metadata["role"] = text(column.role)
            found.append(Field(f"kwarg_{number}", column.dtype, column.shape, metadata))
    # polars reads no file that has a column of empty arrays.
    return tuple(field for field in found if field.nbytes)


def plan(streams: Sequence[tuple[Site, int]]) -> list[DataFile]:
    """Returns the data files for streams of which the site and the number of records are given."""
    files: list[DataFile] = []
    small: dict[tuple[Field, ...], list[int]] = {}
    columns = [fields(site) for site, _ in streams]
    for number, (_, records) in enumerate(streams):
        row = INDEX_DTYPE.itemsize + sum(field.nbytes for field in columns[number])
        if row <= SMALL_ROW and row * records <= SMALL_STREAM:
            small.setdefault(columns[number], []).append(number)
        else:
            files.append(_own_file(number, columns[number], row))
    by_size = sorted(small.items(), key=lambda item: -len(item[1]))
    pools = [(numbers, False) for _, numbers in by_size[:MAX_POOLS]]
    mixed: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for key, numbers in by_size[MAX_POOLS:]:
        mixed.setdefault(tuple((field.name, field.dtype) for field in key), []).extend(numbers)
    pools += [(numbers, True) for numbers in mixed.values()]
    for place, (numbers, lists) in enumerate(sorted((sorted(numbers), lists) for numbers, lists in pools)):
        files.append(_pool(place, numbers, [columns[number] for number in numbers], lists=lists))
    return files


def _own_file(number: int, columns: tuple[Field, ...], row: int) -> DataFile:
    lists = any(math.prod(field.stored_shape) > MAX_LIST_SIZE for field in columns)
    rows = max(1, BATCH_BYTES // row)
    return DataFile(f"stream-{number:06}.arrow", (number,), columns, lists=lists, batch_rows=rows)


def _pool(place: int, numbers: Iterable[int], columns: Sequence[tuple[Field, ...]], *, lists: bool) -> DataFile:
    shared = [
        dataclasses.replace(together[0], metadata=_agreed([field.metadata for field in together]))
        for together in zip(*columns, strict=True)
    ]
    row = INDEX_DTYPE.itemsize + STREAM_FIELD.nbytes + sum(field.nbytes for field in shared)
    rows = LIST_ROWS if lists else max(1, BATCH_BYTES // row)
    return DataFile(f"pool-{place:06}.arrow", tuple(numbers), tuple(shared), pooled=True, lists=lists, batch_rows=rows)


def _agreed(metadata: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns what is the same for all streams of a pool."""
    first, *rest = metadata
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in rest)}
