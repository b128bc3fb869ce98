"""What a sealed HDF5 file holds: groups, datasets, attributes, and how datasets are cut into chunks.

::

    /                      attributes tracerec_format, format_version, run
    /index                 uint8: JSON lines, one a stream, gzip
    /summaries             uint8: JSON lines, one a stream in the same order: a summary a leaf, gzip
    /streams/000000        attributes tap, site
    /streams/000000/index  (records,) of INDEX_DTYPE
    /streams/000000/data_0 (records, *shape), one a leaf; attributes leaf, dtype, key_impl
    /streams/000000/kwarg_1 (records, *shape), one a column not in the index; attributes kwarg, dtype, role

Attributes below the root are for people; the reader believes the JSON of ``/index``, of which a line is a
`StreamLine`. Summaries are apart since they are most of the text: listing 5,000 streams must not parse them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from tracerec import lanes
from tracerec.formats.contract import FORMAT_VERSION
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

__all__ = [
    "FORMAT",
    "FORMAT_ATTRIBUTE",
    "INDEX",
    "MAX_CHUNK",
    "RUN_ATTRIBUTE",
    "STREAMS",
    "SUMMARIES",
    "VERSION",
    "VERSION_ATTRIBUTE",
    "StreamLine",
    "Table",
    "attribute_text",
    "chunk_shape",
    "group_name",
    "stored_shape",
    "tables",
    "text_table",
]

FORMAT = "hdf5"
VERSION = ".".join(map(str, FORMAT_VERSION))
FORMAT_ATTRIBUTE = "tracerec_format"
VERSION_ATTRIBUTE = "format_version"
RUN_ATTRIBUTE = "run"
INDEX = "index"
SUMMARIES = "summaries"
STREAMS = "streams"

MAX_RANK = 32
"""HDF5's limit (H5S_MAX_RANK), record axis included; numpy and JAX allow 64 axes."""

MAX_CHUNK = 1 << 20
"""Bytes of the largest chunk: beyond it reading gets slower, below 256 KiB compression does."""

ROWS_CHUNK = 1 << 19
"""Bytes of a chunk of several records. A reader of one record reads a whole chunk, so not `MAX_CHUNK`."""

_TRIES = 32
"""How many numbers of chunks `_even` looks at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """One dataset of a stream.

    Attributes:
        name: the dataset's name inside the stream's group.
        shape: the shape of one record.
        dtype: the logical dtype's name; ``"index"`` for the index table.
        attributes: the dataset's attributes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, str]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        return INDEX_DTYPE if self.dtype == INDEX else dtypes.from_name(self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class StreamLine:
    """One line of ``/index``: all that listing a trace needs.

    Attributes:
        group: the name of the stream's group.
        site: the site, as JSON values.
        records: how many records the stream has.
        nbytes: bytes of its chunks in the file.
        steps: the smallest and the largest step, None when no record has one.
        leaf_nbytes: the same as nbytes for each leaf alone; None in a file of version 1.0.
    """

    group: str
    site: Mapping[str, Any]
    records: int
    nbytes: int
    steps: tuple[int, int] | None
    leaf_nbytes: tuple[int, ...] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        line: dict[str, Any] = {
            "group": self.group,
            "site": self.site,
            "records": self.records,
            "nbytes": self.nbytes,
            "steps": None if self.steps is None else list(self.steps),
        }
        return line if self.leaf_nbytes is None else line | {"leaf_nbytes": list(self.leaf_nbytes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamLine:
        """Returns the line that `to_json` gave; raises KeyError, TypeError or ValueError on other input.

        The site stays JSON values, so that opening a file of thousands of streams does not wait for them.
        """
        group, records, nbytes, steps = data["group"], data["records"], data["nbytes"], data["steps"]
        leaves = data.get("leaf_nbytes")
        # The group becomes a path inside the file: nothing but digits may reach HDF5.
        good = (
            isinstance(group, str)
            and group.isascii()
            and group.isdigit()
            and type(records) is int
            and type(nbytes) is int
            and 0 <= records < 1 << 62
            and nbytes >= 0
            and (steps is None or (len(steps) == 2 and all(type(step) is int for step in steps)))  # noqa: PLR2004
            and (leaves is None or all(type(size) is int and size >= 0 for size in leaves))
        )
        if not good:
            message = (
                f"group {group!r}, records {records!r}, nbytes {nbytes!r}, steps {steps!r}, leaf_nbytes {leaves!r}"
            )
            raise ValueError(message)
        sizes = None if leaves is None else tuple(leaves)
        return cls(group, data["site"], records, nbytes, steps and tuple(steps), sizes)

    def parsed_site(self) -> Site:
        """Returns the site; raises KeyError, TypeError or ValueError where its JSON is not one."""
        site = Site.from_json(self.site)
        for part in (*site.leaves, *site.columns):
            dtypes.from_name(part.dtype)
        lanes.check(site)
        return site


def group_name(number: int) -> str:
    """Returns the name of a stream's group: ``"000007"``. Tap names are no HDF5 names: they hold slashes."""
    return f"{number:06}"


def tables(site: Site) -> Iterator[Table]:
    """Yields the datasets of a stream: the index, then leaves, then columns that are not in the index.

    A leaf is named by its place in ``site.leaves``, a column by its place in ``site.columns``.
    """
    yield Table(INDEX, (), INDEX, {})
    for number, leaf in enumerate(site.leaves):
        attributes = {"leaf": attribute_text(leaf.path), "dtype": leaf.dtype}
        if leaf.key_impl is not None:
            attributes["key_impl"] = attribute_text(leaf.key_impl)
        yield Table(f"data_{number}", leaf.shape, leaf.dtype, attributes)
    for number, column in enumerate(site.columns):
        if not column.in_index:
            attributes = {"kwarg": attribute_text(column.name), "dtype": column.dtype}
            if column.role is not None:
                attributes["role"] = attribute_text(column.role)
            yield Table(f"kwarg_{number}", column.shape, column.dtype, attributes)


def text_table(name: str) -> Table:
    """Returns the dataset of JSON lines of that name; its records are bytes."""
    return Table(name, (), "uint8", {})


def attribute_text(text: str) -> str:
    r"""Returns a name as an HDF5 attribute can hold it: NUL and lone surrogates become JSON escapes.

    The exact name is in the site's JSON.

    Example:
        >>> attribute_text("a/β")
        'a/β'
        >>> print(attribute_text("a\0b\ud800"))
        a\u0000b\ud800
    """
    return "".join(f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)


def stored_shape(records: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a dataset: records first; a row of too many axes becomes one axis.

    Example:
        >>> stored_shape(5, (2, 3)), stored_shape(5, (1,) * 40 + (7,))
        ((5, 2, 3), (5, 7))
    """
    return (records, *shape) if len(shape) < MAX_RANK else (records, math.prod(shape))


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the chunk's shape for a dataset of that shape, which must not have a zero.

    A chunk holds whole records, about `ROWS_CHUNK` bytes of them and never more than there are. A record of
    more than `MAX_CHUNK` bytes is cut along its leading axes. Chunks are as equal as can be, since HDF5 stores
    the last one whole.

    Example:
        >>> chunk_shape((10, 256), 4), chunk_shape((1_000_000,), 4)
        ((10, 256), (125000,))
        >>> chunk_shape((3, 4096, 4096), 4)
        (1, 64, 4096)
    """
    row = math.prod(shape[1:]) * itemsize
    if row <= MAX_CHUNK:
        return (_even(shape[0], max(1, ROWS_CHUNK // row)), *shape[1:])
    chunk = [1] * len(shape)
    inner = row
    for axis in range(1, len(shape)):
        inner //= shape[axis]
        if inner <= MAX_CHUNK:
            chunk[axis] = _even(shape[axis], max(1, MAX_CHUNK // inner))
            chunk[axis + 1 :] = shape[axis + 1 :]
            break
    return tuple(chunk)


def _even(size: int, most: int) -> int:
    """Returns a length of at most ``most`` such that pieces of it cover ``size`` with little to spare."""
    fewest = -(-size // most)
    lengths = [-(-size // count) for count in range(fewest, min(2 * fewest, fewest + _TRIES) + 1)]
    return min(lengths, key=lambda length: -(-size // length) * length)
