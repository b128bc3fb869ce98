"""A sealed recording, opened as far as it can be."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import TYPE_CHECKING

from tracerec.model import INDEX_DTYPE
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from tracerec.formats.contract import RunInfo, StreamSource

__all__ = ["BadRows", "Opened", "OpenedStream", "Table", "all_readable", "tables_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class BadRows:
    """Rows of one array of a stream that cannot be read.

    Attributes:
        start: the first.
        stop: the one after the last.
        invariant: what does not hold there.
        reason: what is wrong, in a few words.
    """

    start: int
    stop: int
    invariant: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """One array of a stream.

    Attributes:
        name: as files name it: ``"index"``, ``"data_0"``, ``"kwarg_1"``.
        label: as people do: ``"index"``, ``"leaf ['w']"``, ``"kwarg lr"``.
        dtype: the logical dtype's name; empty for the index.
        row_nbytes: bytes of one record.
        read: returns a range of it.
    """

    name: str
    label: str
    dtype: str
    row_nbytes: int
    read: Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class OpenedStream:
    """A stream whose site can be read.

    Attributes:
        stream: reads its records.
        file: the file that they are in, for reports.
        bad_rows: reads all of one array, by its place in `tables_of`, and returns what cannot be read of it.
        stored: whether summaries are stored, and not made from the records when they are asked for.
        steps: the stored smallest and largest step.
        suspect: why records may be wrong although they can be read; None where nothing says so.
    """

    stream: StreamSource
    file: str
    bad_rows: Callable[[int], Iterator[BadRows]]
    stored: bool = True
    steps: tuple[int, int] | None = None
    suspect: str | None = None


@dataclasses.dataclass
class Opened:
    """What could be opened.

    Attributes:
        path: the file or folder.
        info: the run, None where its description cannot be read.
        streams: those that could be opened, in first-seen order.
        close: lets go of the files.
        lost: records of streams that could not be opened, by tap name; ``"?"`` where that is not known.
        losses: sentences about what is lost of which not even the number of records is known.
        unchecked: why records could not be compared with checksums; None where they can be.
        compression: what the files are compressed with; ``"default"`` where that cannot be told.
    """

    path: str
    info: RunInfo | None
    streams: Sequence[OpenedStream]
    close: Callable[[], None]
    lost: Counter[str] = dataclasses.field(default_factory=Counter[str])
    losses: list[str] = dataclasses.field(default_factory=list[str])
    unchecked: str | None = None
    compression: str | None = "default"


def tables_of(stream: StreamSource) -> Iterator[Table]:
    """Yields the arrays of a stream: the index, the leaves, the columns that are not in the index."""
    site = stream.site
    yield Table("index", "index", "", INDEX_DTYPE.itemsize, stream.index)
    for number, leaf in enumerate(site.leaves):
        size = math.prod(leaf.shape) * dtypes.from_name(leaf.dtype).itemsize
        label = f"leaf {leaf.path or number}"
        yield Table(f"data_{number}", label, leaf.dtype, size, lambda a, b, n=number: stream.leaf(n, a, b))
    for number, column in enumerate(site.columns):
        if not column.in_index:
            size = math.prod(column.shape) * dtypes.from_name(column.dtype).itemsize
            label = f"{column.role or 'kwarg'} {column.name}".strip()
            yield Table(f"kwarg_{number}", label, column.dtype, size, lambda a, b, n=number: stream.column(n, a, b))


def all_readable(number: int) -> Iterator[BadRows]:
    """For streams of journals: what is damaged there is left out when a journal is opened."""
    del number
    yield from ()
