"""Reading a sealed Arrow folder, lazily: opening reads ``streams.arrow``, data files are mapped when they are read."""

from __future__ import annotations

import dataclasses
import os
from functools import cached_property
from typing import TYPE_CHECKING, Self

import crc32c
import numpy as np

from tracerec import lanes
from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.arrow import layout
from tracerec.formats.arrow.files import MappedFile, Place, checksum_of, map_file
from tracerec.formats.arrow.ipc import IPC_ERRORS, Batch, IpcFile
from tracerec.formats.headers import JSON_ERRORS, parse_json, parse_run, parse_version
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes
from tracerec.statistics import LeafSummary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tracerec.formats.contract import RunInfo
    from tracerec.formats.pool import Pool

__all__ = ["ArrowSource", "ArrowStream", "FileCheck", "StreamRows"]

_TEXTS = ("file", "site", "summaries", "leaf_nbytes")
_NUMBERS = tuple(name for name, kind in layout.STREAM_COLUMNS.items() if kind != "utf8")
_MOST = 1 << 62
_CHECKSUM_BYTES = 9


@dataclasses.dataclass(frozen=True, slots=True)
class FileCheck:
    """What a trace's index says of a data file, for whoever verifies it.

    Attributes:
        name: the file's name in the folder.
        nbytes: its size.
        crc32c: the CRC-32C (Castagnoli) of all its bytes.
    """

    name: str
    nbytes: int
    crc32c: int


class ArrowSource:
    """A sealed folder, opened for reading: a `tracerec.formats.contract.TraceSource`.

    Arrays that it gives may be read-only views of the files, which stay mapped as long as the arrays live. A trace
    may be deleted or replaced meanwhile, but its files must not be shortened: the system ends a process that reads
    from a mapping behind the end of its file.

    Args:
        path: the folder.
        pool: the pool of the trace that the folder is a part of; None: it is a trace of its own.

    Attributes:
        path: the folder, as given.
        info: what is known of the run.
        streams: the streams, in first-seen order.
        files: the data files, for `damage` and for tools that copy traces.

    Raises:
        TraceNotFound: there is no such folder.
        TraceFormatError: it is no trace, is damaged, or is of a newer major version.

    Example:
        >>> with ArrowSource("run.arrow") as source:  # doctest: +SKIP
        ...     source.streams[0].leaf(0, 0, 10)
    """

    def __init__(self, path: str | os.PathLike[str], *, pool: Pool | None = None) -> None:
        self.path = os.fspath(path)
        self.closed = False
        self._pool = pool
        self.sites: dict[int, Site] = {} if pool is None else pool.sites
        place = Place(self.path, layout.STREAMS)
        self._names = _listing(self.path)
        data = map_file(place)
        _check_sum(data, place)
        try:
            table = IpcFile(data)
            self.info: RunInfo = _run_info(table.metadata)
            rows = StreamRows(table)
            self.files: tuple[FileCheck, ...] = tuple(self._checked(rows))
        except IPC_ERRORS as error:
            raise place.error(error) from error
        opened = {check.name: Place(self.path, check.name) for check in self.files}
        self._files = {
            name: MappedFile(opened[name], nbytes, batch_rows)
            for name, nbytes, batch_rows in zip(rows.file, rows.file_nbytes, rows.batch_rows, strict=True)
        }
        self._rows = rows
        self.streams: Sequence[ArrowStream] = tuple(
            ArrowStream(self, rows, number, self._files[name]) for number, name in enumerate(rows.file)
        )
        if pool is not None:
            rows.forget_texts()

    def damage(self, check: FileCheck) -> str | None:
        """Returns what is wrong with a data file, None when its size and its checksum are right. It reads all of it."""
        try:
            data = map_file(Place(self.path, check.name), check.nbytes)
        except TraceFormatError as error:
            return str(error)
        found = checksum_of(data)
        if found == check.crc32c:
            return None
        return f"{check.name}: its CRC-32C is {found:08x}, not {check.crc32c:08x}"

    def use(self) -> None:
        """Notes that the files are read: a pool keeps those of some folders mapped."""
        if self._pool is not None:
            with self._pool.lock:
                self._pool.use(self)

    def shut(self) -> None:
        """Lets go of the files until they are next read."""
        self._rows.forget_texts()
        for file in list(self._files.values()):
            file.shut()

    def close(self) -> None:
        """Lets go of the files; reading from the streams then raises TraceError. Arrays that were read stay valid."""
        self.closed = True
        if self._pool is not None:
            with self._pool.lock:
                self._pool.forget(self)
        self.shut()
        self._files.clear()
        for stream in self.streams:
            stream.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, rows: StreamRows) -> list[FileCheck]:
        """Returns the data files that the rows name; raises ValueError where they contradict each other."""
        found: dict[str, tuple[int, int, int]] = {}
        facts = zip(rows.file_nbytes, rows.file_crc32c, rows.batch_rows, strict=True)
        for name, fact in zip(rows.file, facts, strict=True):
            if not layout.DATA_FILE.fullmatch(name):
                message = f"it names a file {name[:80]!r}, which is no name of a data file"
                raise ValueError(message)
            if found.setdefault(name, fact) != fact:
                message = f"it contradicts itself about {name}"
                raise ValueError(message)
        for name in found.keys() - self._names:
            reason = "the file is missing"
            raise Place(self.path, name).error(reason)
        return [FileCheck(name, nbytes, checksum) for name, (nbytes, checksum, _) in found.items()]


class ArrowStream:
    """One stream of a sealed folder: a `tracerec.formats.contract.StreamSource`.

    Attributes:
        records: how many records it has.
        nbytes: bytes that it takes in its file.
        steps: the smallest and the largest step, None when no record has one.
    """

    def __init__(self, source: ArrowSource, rows: StreamRows, number: int, file: MappedFile) -> None:
        self._source, self._rows, self._number = source, rows, number
        self._mapped: MappedFile | None = file
        self._first = rows.first_row[number]
        self.records = rows.records[number]
        self.nbytes = rows.nbytes[number]
        self.steps = rows.steps[number]

    @property
    def site(self) -> Site:
        """The site; raises TraceFormatError where the file does not describe one."""
        return self._site

    @property
    def site_id(self) -> int:
        """The site's id, for which the site need not be parsed."""
        known = self._rows.site_id
        return known[self._number] if known else self.site.id

    @cached_property
    def _site(self) -> Site:
        known = self._rows.site_id[self._number] if self._rows.site_id else None
        if known is not None and known in self._source.sites:
            return self._source.sites[known]
        try:
            site = Site.from_json(parse_json(self._rows.text("site", self._number)))
            for part in (*site.leaves, *site.columns):
                dtypes.from_name(part.dtype)
            lanes.check(site)
            if known not in (None, site.id):
                message = f"its id is {site.id:016x}, not {known:016x}"
                raise ValueError(message)
        except JSON_ERRORS as error:
            reason = f"site: {error!r}"
            raise self._error(reason) from error
        return self._source.sites.setdefault(site.id, site)

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, as made when the trace was sealed."""
        leaves = len(self.site.leaves)
        self._file()
        try:
            values = parse_json(self._rows.text("summaries", self._number))
            summaries = [LeafSummary.from_json(value) for value in values]
            if len(summaries) != leaves:
                message = f"{len(summaries)} for {leaves} leaves"
                raise ValueError(message)
        except JSON_ERRORS as error:
            reason = f"summaries: {error!r}"
            raise self._error(reason) from error
        return summaries

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes that a leaf takes in the file; in a pool, its share of them."""
        leaves = len(self.site.leaves)
        try:
            sizes = parse_json(self._rows.text("leaf_nbytes", self._number))
            if len(sizes) != leaves or not all(type(size) is int and size >= 0 for size in sizes):
                message = f"{sizes!r} for {leaves} leaves"
                raise ValueError(message)
        except JSON_ERRORS as error:
            reason = f"leaf_nbytes: {error!r}"
            raise self._error(reason) from error
        return sizes[number]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table, as an array of `tracerec.model.INDEX_DTYPE`."""
        self._check_range(start, stop)
        return self._file().index(self._first + start, self._first + stop, INDEX_DTYPE)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` of ``site.leaves`` as ``(stop - start, *shape)`` of the logical dtype.

        A range that lies in one record batch of an uncompressed file is a read-only view of the file.
        """
        leaf = self.site.leaves[number]
        return self._read(layout.Field(f"data_{number}", leaf.dtype, leaf.shape), start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` of ``site.columns`` as ``(stop - start, *shape)``."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(dtypes.from_name(column.dtype))
        return self._read(layout.Field(f"kwarg_{number}", column.dtype, column.shape), start, stop)

    def release(self) -> None:
        """Forgets the file."""
        self._mapped = None

    def _read(self, field: layout.Field, start: int, stop: int) -> np.ndarray:
        self._check_range(start, stop)
        return self._file().read(field, self._first + start, self._first + stop)

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.records:
            message = f"records {start}:{stop} of {self.records} in stream {self._number}"
            raise IndexError(message)

    def _file(self) -> MappedFile:
        if self._mapped is None:
            message = f"{self._source.path!r} is closed"
            raise TraceError(message, path=self._source.path)
        self._source.use()
        return self._mapped

    def _error(self, reason: str) -> TraceFormatError:
        return Place(self._source.path, layout.STREAMS).error(f"row {self._number}: {reason}")


class StreamRows:
    """The rows of streams.arrow. Texts are decoded when they are asked for: 5,000 sites take long to parse."""

    def __init__(self, table: IpcFile) -> None:
        numeric = [name for name in _NUMBERS if name in table.columns or name not in layout.NEW_COLUMNS]
        for name, kind in layout.STREAM_COLUMNS.items():
            if name in layout.NEW_COLUMNS and name not in table.columns:
                continue
            if name not in table.columns or table.columns[name].type != kind:
                found = table.columns[name].type if name in table.columns else "missing"
                message = f"column {name} is {found}, not {kind}"
                raise ValueError(message)
        batches = [table.batch(number) for number in range(table.batches)]
        self._table, self._batches = table, batches
        self._texts = {name: _text_parts(table, batches, name) for name in _TEXTS}
        numbers = {name: _numbers(table, batches, name) for name in numeric}
        for name, values in numbers.items():
            # Steps may be negative.
            if not name.endswith("step") and (values < 0).any():
                message = f"column {name} has a negative number"
                raise ValueError(message)
        steps = zip(_valid(table, batches), numbers["first_step"].tolist(), numbers["last_step"].tolist(), strict=True)
        self.steps = [(first, last) if valid else None for valid, first, last in steps]
        self.first_row: list[int] = numbers["first_row"].tolist()
        self.records: list[int] = numbers["records"].tolist()
        self.nbytes: list[int] = numbers["nbytes"].tolist()
        self.file_nbytes: list[int] = numbers["file_nbytes"].tolist()
        self.file_crc32c: list[int] = numbers["file_crc32c"].tolist()
        self.batch_rows: list[int] = numbers["batch_rows"].tolist()
        self.site_id: list[int] = numbers["site_id"].tolist() if "site_id" in numbers else []
        self.file = [self.text("file", number) for number in range(len(self.records))]
        if max([*self.first_row, *self.records], default=0) > _MOST or min(self.batch_rows, default=1) < 1:
            message = "a number of rows is out of range"
            raise ValueError(message)

    def text(self, name: str, number: int) -> str:
        """Returns the text of a row; raises ValueError where it is none."""
        # Another thread may forget them meanwhile.
        parts = self._texts.get(name)
        if parts is None:
            parts = self._texts[name] = _text_parts(self._table, self._batches, name)
        for first, ends, data in parts:
            at = number - first
            if at < len(ends) - 1:
                return bytes(data.data[int(ends[at]) : int(ends[at + 1])]).decode()
        message = f"there is no row {number}"
        raise ValueError(message)

    def forget_texts(self) -> None:
        """Lets go of the texts until one is next asked for."""
        self._texts.clear()


def _text_parts(table: IpcFile, batches: list[Batch], name: str) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Returns, a batch, its first row, where its texts begin and end, and their bytes."""
    parts: list[tuple[int, np.ndarray, np.ndarray]] = []
    first, buffer = 0, table.columns[name].buffer
    for batch in batches:
        if batch.rows:
            ends = table.load(table.extent(batch, buffer + 1, 4 * (batch.rows + 1)))
            ends = ends[: 4 * (batch.rows + 1)].view("<i4")
            data = table.load(table.extent(batch, buffer + 2, max(int(ends[-1]), 0)))
            if ends[0] < 0 or (np.diff(ends) < 0).any():
                message = f"column {name}: its texts overlap"
                raise ValueError(message)
            parts.append((first, ends, data))
            first += batch.rows
    return parts


def _numbers(table: IpcFile, batches: list[Batch], name: str) -> np.ndarray:
    dtype = np.dtype(layout.STREAM_COLUMNS[name]).newbyteorder("<")
    parts = [_bytes(table, batch, table.columns[name].buffer + 1, batch.rows * dtype.itemsize) for batch in batches]
    return np.concatenate([part.view(dtype) for part in parts]) if parts else np.empty(0, dtype)


def _valid(table: IpcFile, batches: list[Batch]) -> list[bool]:
    """Returns which rows have steps."""
    found: list[bool] = []
    for batch in batches:
        # A column without nulls has no bitmap.
        bits = _bytes(table, batch, table.columns["first_step"].buffer, 0, whole=True)
        if len(bits):
            found += np.unpackbits(bits, bitorder="little")[: batch.rows].astype(bool).tolist()
        else:
            found += [True] * batch.rows
    return found


def _bytes(table: IpcFile, batch: Batch, buffer: int, nbytes: int, *, whole: bool = False) -> np.ndarray:
    data = table.load(table.extent(batch, buffer, nbytes))
    return data if whole else data[:nbytes]


def _listing(path: str) -> set[str]:
    """Returns the names in the folder."""
    try:
        names = set(os.listdir(path))  # noqa: PTH208  # paths are str here
    except FileNotFoundError as error:
        message = f"{path!r} does not exist"
        raise TraceNotFound(message, path=path) from error
    except OSError as error:
        message = f"{path!r} is no trace folder: {error.strerror or error}"
        raise TraceFormatError(message, path=path) from error
    if layout.STREAMS not in names:
        message = f"{path!r} is no Arrow trace: it has no {layout.STREAMS}"
        raise TraceFormatError(message, path=path)
    return names


def _check_sum(data: np.ndarray, place: Place) -> None:
    """Raises TraceFormatError unless the checksum beside the index is right; nothing else covers the index."""
    text = bytes(map_file(Place(place.folder, layout.CHECKSUM))[: _CHECKSUM_BYTES + 1])
    found = f"{crc32c.crc32c(data.data):08x}"
    if text != f"{found}\n".encode():
        reason = f"its CRC-32C is {found}; {layout.CHECKSUM} has {text!r}"
        raise place.error(reason)


def _run_info(metadata: dict[str, str]) -> RunInfo:
    if metadata.get(layout.FORMAT_KEY) != layout.FORMAT:
        message = f"it is an Arrow file but no trace: its schema has no {layout.FORMAT_KEY!r}"
        raise ValueError(message)
    version = parse_version(metadata.get(layout.VERSION_KEY, ""))
    return parse_run(metadata.get(layout.RUN_KEY, ""), version)
