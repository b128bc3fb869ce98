"""What a sealed HDF5 file holds: groups, datasets, attributes, and how datasets are cut into chunks.

::

    /                      attributes tracerec_format, format_version, run, crc32c
    /index                 uint8: JSON lines, one a stream, gzip
    /summaries             uint8: JSON lines, one a stream in the same order: a summary a leaf, gzip
    /checksums             uint32: the CRC-32C of every chunk of the streams, as stored
    /streams/000000        attributes tap, site
    /streams/000000/index  (records,) of INDEX_DTYPE
    /streams/000000/data_0 (records, *shape), one a leaf; attributes leaf, dtype, key_impl
    /streams/000000/kwarg_1 (records, *shape), one a column not in the index; attributes kwarg, dtype, role

Attributes below the root are for people; the reader believes the JSON of ``/index``, of which a line is a
`StreamLine`. Summaries are apart since they are most of the text: listing 5,000 streams must not parse them.
Checksums are one dataset for the whole file, since a dataset costs more than all checksums of a short stream.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from tracerec import lanes
from tracerec.formats.contract import FORMAT_VERSION
from tracerec.formats.headers import parse_json
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

    import numpy as np

__all__ = [
    "CHECKED_TEXTS",
    "CHECKED_VERSION",
    "CHECKSUMS",
    "CHECKSUMS_ATTRIBUTE",
    "FORMAT",
    "FORMAT_ATTRIBUTE",
    "INDEX",
    "LEAD_ATTRIBUTE",
    "MAX_CHUNK",
    "RUN_ATTRIBUTE",
    "STREAMS",
    "SUMMARIES",
    "VERSION",
    "VERSION_ATTRIBUTE",
    "WASTE",
    "StreamLine",
    "Table",
    "attribute_text",
    "checksum_table",
    "chunk_count",
    "chunk_shape",
    "full_chunk",
    "group_name",
    "stored_shape",
    "stream_lines",
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
CHECKSUMS = "checksums"
CHECKSUMS_ATTRIBUTE = "crc32c"
CHECKED_TEXTS = (RUN_ATTRIBUTE, INDEX, SUMMARIES, CHECKSUMS)
LEAD_ATTRIBUTE = "lead"

CHECKED_VERSION = (1, 2)
"""The first version whose files have checksums."""

MAX_RANK = 32
"""HDF5's limit (H5S_MAX_RANK), record axis included; numpy and JAX allow 64 axes."""

MAX_CHUNK = 1 << 20
"""Bytes of the largest chunk: beyond it reading gets slower, below 256 KiB compression does."""

ROWS_CHUNK = 1 << 19
"""Bytes of a chunk of several records. A reader of one record reads a whole chunk, so not `MAX_CHUNK`."""

WASTE = 1 / 8
"""The share of a dataset that may be rows of its last chunk that are none."""

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
        site: the site, as JSON text.
        records: how many records the stream has.
        nbytes: bytes of its chunks in the file.
        steps: the smallest and the largest step, None when no record has one.
        leaf_nbytes: the same as nbytes for each leaf alone; None in a file of version 1.0.
        site_id: the site's id, so that streams of several files are joined without parsing their sites; None before
            version 1.2, like the next two.
        tap: the tap's name, so that listing streams does not parse their sites.
        checksums: for each dataset of `tables`, in that order, the place in ``/checksums`` of its first chunk's; those
            of the others follow in row-major order of the chunks.
        leads: for each dataset of `tables` how many rows come before the first record's, which are zeros: a part of a
            longer recording continues the grid of chunks of the part before. None where there are none.
    """

    group: str
    site: bytes
    records: int
    nbytes: int
    steps: tuple[int, int] | None
    leaf_nbytes: tuple[int, ...] | None
    site_id: int | None = None
    tap: str | None = None
    checksums: tuple[int, ...] | None = None
    leads: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        line: dict[str, Any] = {
            "group": self.group,
            "site": json.loads(self.site),
            "records": self.records,
            "nbytes": self.nbytes,
            "steps": None if self.steps is None else list(self.steps),
            "site_id": None if self.site_id is None else f"{self.site_id:016x}",
            "tap": self.tap,
        }
        lists = {"leaf_nbytes": self.leaf_nbytes, "checksums": self.checksums, "leads": self.leads}
        line |= {name: None if values is None else list(values) for name, values in lists.items()}
        return {name: value for name, value in line.items() if value is not None or name == "steps"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], site: bytes) -> StreamLine:
        """Returns the line of which `to_json` gave all but the site; raises one of `JSON_ERRORS` on other input."""
        group, records, nbytes, steps, tap = (
            data["group"],
            data["records"],
            data["nbytes"],
            data["steps"],
            data.get("tap"),
        )
        leaves, checksums, leads = data.get("leaf_nbytes"), data.get("checksums"), data.get("leads")
        site_id = data.get("site_id")
        # The group becomes a path inside the file: nothing but digits may reach HDF5.
        good = (
            isinstance(group, str)
            and group.isascii()
            and group.isdigit()
            and type(records) is int
            and type(nbytes) is int
            and 0 <= records < _MOST
            and nbytes >= 0
            and (steps is None or (len(steps) == 2 and all(type(step) is int for step in steps)))  # noqa: PLR2004
            and (tap is None or isinstance(tap, str))
            and (site_id is None or len(site_id) == _ID_DIGITS)
        )
        if not good or not all(map(_are_counts, (leaves, checksums, leads))):
            message = (
                f"group {group!r}, records {records!r}, nbytes {nbytes!r}, steps {steps!r}, leaf_nbytes {leaves!r}, "
                f"checksums {checksums!r}, leads {leads!r}, site_id {site_id!r}, tap {tap!r}"
            )
            raise ValueError(message)
        lists = (None if values is None else tuple(values) for values in (leaves, checksums, leads))
        leaf_nbytes, checksums, leads = lists
        number = None if site_id is None else int(site_id, 16)
        return cls(group, site, records, nbytes, steps and tuple(steps), leaf_nbytes, number, tap, checksums, leads)

    def parsed_site(self) -> Site:
        """Returns the site; raises an error of `JSON_ERRORS` where it is none, or not that of its name and its id."""
        site = Site.from_json(parse_json(self.site))
        for part in (*site.leaves, *site.columns):
            dtypes.from_name(part.dtype)
        lanes.check(site)
        if self.site_id not in (None, site.id) or self.tap not in (None, site.name):
            message = f"its name is {site.name!r} and its id {site.id:016x}, listed are others"
            raise ValueError(message)
        return site


def stream_lines(lines: Sequence[bytes], sites: MutableMapping[str, bytes]) -> list[StreamLine]:
    """Returns the lines of ``/index``, parsed but for their sites: thousands of those would take long.

    Args:
        lines: the lines.
        sites: texts of sites by the id's text, to which those of the lines are added; files of one trace share them.

    Raises:
        JSON_ERRORS: a line is none.
    """
    split = [_without_site(line) for line in lines]
    # As one text: a parser started for each line takes six times as long.
    values: list[Any] = parse_json(b"[" + b",".join(rest for rest, _ in split) + b"]")
    if len(values) != len(lines):
        message = "not one stream a line"
        raise ValueError(message)
    parsed: list[StreamLine] = []
    for value, (_, site) in zip(values, split, strict=True):
        text = canonical(value["site"]).encode() if site is None else site
        site_id = value.get("site_id")
        shared = text if site_id is None else sites.setdefault(site_id, text)
        parsed.append(StreamLine.from_json(value, shared))
    return parsed


def _without_site(line: bytes) -> tuple[bytes, bytes | None]:
    """Returns a line without the member ``site``, and that; or the whole line, where it is written in another way.

    Members are sorted. In a string a quote has a backslash before it, so that what is looked for is a member's name,
    and behind the site none has members of its own.
    """
    before, mark, rest = line.partition(b',"site":')
    site, other, after = rest.rpartition(b',"site_id":')
    return (before + other + after, site) if mark and other else (line, None)


def _are_counts(values: Any) -> bool:
    """Returns whether a member is missing or a list of counts."""
    if not values:
        return values is None or values == []
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < _MOST


_MOST = 1 << 62
_ID_DIGITS = 16


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


def checksum_table() -> Table:
    """Returns the dataset of the chunks' checksums."""
    return Table(CHECKSUMS, (), "uint32", {})


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
    more than `MAX_CHUNK` bytes is cut along its leading axes. HDF5 stores the last chunk whole: where that wastes
    much, chunks are as equal as can be. Else their shape depends on that of a record alone, so that chunks of
    one recording's parts can become those of the whole.

    Example:
        >>> chunk_shape((10, 256), 4), chunk_shape((1_000_000,), 4), chunk_shape((140_000,), 4)
        ((10, 256), (131072,), (70000,))
        >>> chunk_shape((3, 4096, 4096), 4)
        (1, 64, 4096)
    """
    row = math.prod(shape[1:]) * itemsize
    if row <= MAX_CHUNK:
        return (_rows(shape[0], max(1, ROWS_CHUNK // row)), *shape[1:])
    chunk = [1] * len(shape)
    inner = row
    for axis in range(1, len(shape)):
        inner //= shape[axis]
        if inner <= MAX_CHUNK:
            chunk[axis] = _even(shape[axis], max(1, MAX_CHUNK // inner))
            chunk[axis + 1 :] = shape[axis + 1 :]
            break
    return tuple(chunk)


def full_chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the chunk's shape for a dataset of that shape with ever so many records.

    Example:
        >>> full_chunk((10, 256), 4)
        (512, 256)
    """
    row = math.prod(shape[1:]) * itemsize
    return (max(1, ROWS_CHUNK // row), *shape[1:]) if row <= MAX_CHUNK else chunk_shape(shape, itemsize)


def chunk_count(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """Returns how many chunks of one shape a dataset of another has.

    Example:
        >>> chunk_count((10, 4), (3, 4)), chunk_count((0, 4), (3, 4))
        (4, 0)
    """
    return math.prod(-(-n // c) for n, c in zip(shape, chunk, strict=True))


def _rows(records: int, most: int) -> int:
    """Returns the rows of a chunk: ``most`` where the last chunk then has few to spare."""
    if records <= most:
        return records
    spare = -records % most
    return most if spare <= WASTE * records else _even(records, most)


def _even(size: int, most: int) -> int:
    """Returns a length of at most ``most`` such that pieces of it cover ``size`` with little to spare."""
    fewest = -(-size // most)
    lengths = [-(-size // count) for count in range(fewest, min(2 * fewest, fewest + _TRIES) + 1)]
    return min(lengths, key=lambda length: -(-size // length) * length)
