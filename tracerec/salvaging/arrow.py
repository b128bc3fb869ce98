"""A folder of Arrow files, opened as far as it can be.

Where ``streams.arrow`` cannot be believed, a large stream's own file still says whose it is. A pool does not: the sites
of its streams are in ``streams.arrow`` alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c

from tracerec import lanes
from tracerec.errors import TraceFormatError
from tracerec.formats.arrow import layout
from tracerec.formats.arrow.files import MappedFile, Place, checksum_of, map_file
from tracerec.formats.arrow.ipc import IPC_ERRORS, IpcFile
from tracerec.formats.arrow.reading import ArrowSource, StreamRows
from tracerec.formats.headers import JSON_ERRORS, parse_json, parse_run, parse_version
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes
from tracerec.salvaging.opened import BadRows, Opened, OpenedStream, tables_of
from tracerec.summaries import summarizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from tracerec.formats.contract import RunInfo, StreamSource
    from tracerec.statistics import LeafSummary
    from tracerec.verifying.report import Findings

__all__ = ["open_arrow"]

_UNTRUSTED = f"{layout.STREAMS} is damaged: what it says of the run is taken for right"
_UNREADABLE = f"{layout.STREAMS}, which has the checksums, cannot be read: values are taken for right"

_ERRORS = (TraceFormatError, *IPC_ERRORS, *JSON_ERRORS)
_NUMBER = re.compile(r"[0-9]+")


def open_arrow(path: str, findings: Findings, *, prefix: str = "") -> Opened:
    """Returns what can be read of a folder; reports what is wrong with it as a whole, and with each of its files.

    Args:
        path: the folder.
        findings: takes the faults.
        prefix: what reports put before the names of its files.

    Raises:
        TraceFormatError: the folder cannot be listed, or is of a newer major version.
    """
    try:
        names = set(os.listdir(path))  # noqa: PTH208 - an error must name the folder as the user did
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise TraceFormatError(message, path=path) from error
    folder = _Folder(path, names, findings, prefix)
    return folder.opened()


@dataclasses.dataclass(frozen=True)
class _Row:
    """What is known of one stream: from ``streams.arrow``, or from its own file."""

    number: int
    file: str
    first_row: int
    records: int
    batch_rows: int
    site: str
    site_id: int | None = None


class _PlainStream:
    """A stream of a folder that cannot be opened as a whole; a `tracerec.formats.contract.StreamSource`."""

    def __init__(self, site: Site, file: MappedFile, row: _Row) -> None:
        self.site, self.records = site, row.records
        self._file, self._first = file, row.first_row
        self.nbytes = row.records * (INDEX_DTYPE.itemsize + site.record_nbytes)

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes of a leaf, uncompressed."""
        return self.records * layout.Field("", self.site.leaves[number].dtype, self.site.leaves[number].shape).nbytes

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, made from the records."""
        found = summarizers(self)
        for number, leaf in enumerate(found):
            leaf.add(self.leaf(number, 0, self.records))
        return [leaf.summary() for leaf in found]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table."""
        return self._file.index(self._first + start, self._first + stop, INDEX_DTYPE)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns a leaf."""
        leaf = self.site.leaves[number]
        return self._read(layout.Field(f"data_{number}", leaf.dtype, leaf.shape), start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns a column."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(dtypes.from_name(column.dtype))
        return self._read(layout.Field(f"kwarg_{number}", column.dtype, column.shape), start, stop)

    def _read(self, field: layout.Field, start: int, stop: int) -> np.ndarray:
        return self._file.read(field, self._first + start, self._first + stop)


class _Folder:
    """A folder while it is opened."""

    def __init__(self, path: str, names: set[str], findings: Findings, prefix: str) -> None:
        self._path, self._names, self._findings, self._prefix = path, names, findings, prefix
        self._lost: Counter[str] = Counter()
        self._losses: list[str] = []
        self._suspect: dict[str, str] = {}
        self._files: dict[str, MappedFile] = {}

    def opened(self) -> Opened:
        """Returns what can be read; reports what is wrong."""
        table, rows, trusted = self._index()
        try:
            source = ArrowSource(self._path) if trusted else None
        except TraceFormatError as error:
            # A data file is missing; or the list is no list although its checksum is right.
            if rows is None or not _missing(rows, self._names):
                self._add("readable", layout.STREAMS, _bare(error))
            source = None
        listed = [] if rows is None else self._listed(rows)
        if not trusted:
            listed = self._from_files(listed)
        self._check_files(rows, listed, trusted=trusted)
        if source is None:
            streams = [stream for row in listed if (stream := self._plain(row, trusted=trusted))]
        else:
            streams = [s for n, row in enumerate(listed) if (s := self._official(source, n, row))]
        return Opened(
            path=self._path,
            info=self._info(table),
            streams=streams,
            close=self._files.clear if source is None else source.close,
            lost=self._lost,
            losses=self._losses,
            unchecked=None if trusted else _UNTRUSTED if rows is not None else _UNREADABLE,
            compression=self._compression(),
        )

    def _add(self, invariant: str, name: str, message: str, **place: Any) -> None:
        self._findings.add(invariant, f"{self._prefix}{name}", message, **place)

    def _index(self) -> tuple[IpcFile | None, StreamRows | None, bool]:
        """Returns streams.arrow, its rows, and whether its checksum is right."""
        place = Place(self._path, layout.STREAMS)
        try:
            data = map_file(place)
        except TraceFormatError as error:
            self._add("readable", layout.STREAMS, f"{_bare(error)}: nothing lists the streams")
            return None, None, False
        found = f"{crc32c.crc32c(data.data):08x}"
        self._findings.nbytes += len(data)
        try:
            expected = bytes(map_file(Place(self._path, layout.CHECKSUM))[:10]).decode("ascii", "backslashreplace")
        except TraceFormatError as error:
            expected = _bare(error)
        trusted = expected == f"{found}\n"
        if not trusted:
            message = f"its CRC-32C is {found}; {layout.CHECKSUM}: {expected.strip()!r}"
            self._add("file-checksum", layout.STREAMS, f"{message}: the list of streams cannot be believed")
        try:
            table = IpcFile(data)
            rows = StreamRows(table)
            for number in range(len(rows.file)):
                rows.text("site", number)
        except IPC_ERRORS as error:
            self._add("readable", layout.STREAMS, f"it is no list of streams: {' '.join(str(error).split())}")
            return None, None, False
        return table, rows, trusted

    def _info(self, table: IpcFile | None) -> RunInfo | None:
        if table is None:
            return None
        try:
            version = parse_version(table.metadata.get(layout.VERSION_KEY, ""))
            return parse_run(table.metadata.get(layout.RUN_KEY, ""), version)
        except ValueError as error:
            if "reads up to" in str(error):
                message = f"{self._path!r}: {error}"
                raise TraceFormatError(message, path=self._path) from error
            self._add("run-described", layout.STREAMS, str(error))
            return None

    def _listed(self, rows: StreamRows) -> list[_Row]:
        found: list[_Row] = []
        for number, name in enumerate(rows.file):
            if not layout.DATA_FILE.fullmatch(name):
                self._add("stays-inside", layout.STREAMS, f"row {number} names a file {name[:80]!r}")
                continue
            facts = (rows.first_row[number], rows.records[number], rows.batch_rows[number])
            site_id = rows.site_id[number] if rows.site_id else None
            found.append(_Row(number, name, *facts, rows.text("site", number), site_id))
        return found

    def _from_files(self, listed: list[_Row]) -> list[_Row]:
        """Returns the streams, of those that have a file to themselves by what that says; of pools as listed."""
        found = {row.number: row for row in listed if row.file.startswith("pool-")}
        for name in sorted(filter(layout.DATA_FILE.fullmatch, self._names)):
            if name.startswith("stream-") and (row := self._own_row(name)):
                found[row.number] = row
        return [found[number] for number in sorted(found)]

    def _own_row(self, name: str) -> _Row | None:
        """Returns what the file of a large stream says of itself."""
        number = int(_NUMBER.findall(name)[0])
        try:
            file = IpcFile(map_file(Place(self._path, name)))
            sizes = [file.batch(n).rows for n in range(file.batches)]
            return _Row(number, name, 0, sum(sizes), max([1, *sizes[:1]]), file.metadata["site"])
        except _ERRORS as error:
            message = f"it cannot be read: {_text(error)}; its records are lost"
            self._add("readable", name, message)
            self._losses.append(f"{self._prefix}{name}: {message}")
            return None

    def _check_files(self, rows: StreamRows | None, listed: list[_Row], *, trusted: bool) -> None:
        """Compares every data file with its checksum, and finds those that nothing lists."""
        facts: dict[str, tuple[int, int]] = {}
        if rows is not None:
            facts = dict(zip(rows.file, zip(rows.file_nbytes, rows.file_crc32c, strict=True), strict=True))
        for name in sorted({row.file for row in listed}):
            if name not in self._names:
                self._add("readable", name, "the file is missing; its records are lost")
                continue
            if name in facts:
                reason = self._damage(name, *facts[name])
                if reason is not None and trusted:
                    self._add("file-checksum", name, f"{reason}: bytes are not those that were written")
                if reason is not None:
                    self._suspect[name] = reason
            try:
                size = len(map_file(Place(self._path, name)))
            except TraceFormatError as error:
                self._add("readable", name, f"{_bare(error)}; its records are lost")
                continue
            self._findings.nbytes += size
            batch_rows = next(row.batch_rows for row in listed if row.file == name)
            self._files[name] = MappedFile(Place(self._path, name), size, batch_rows)
        left = sorted(filter(layout.DATA_FILE.fullmatch, self._names - {row.file for row in listed}))
        for name in left:
            self._add("streams-listed", name, f"{layout.STREAMS} lists no stream in it")
            self._losses.append(f"{self._prefix}{name}: whose records are in it is not known; they are lost")

    def _check_copies(self, row: _Row) -> None:
        """Compares what a stream's own file says of it with what the list of streams does."""
        try:
            site = IpcFile(map_file(Place(self._path, row.file))).metadata.get("site")
        except _ERRORS:
            return
        if site != row.site:
            message = f"it says that it is of another site than row {row.number} of {layout.STREAMS} does"
            self._add("site-id", row.file, message)

    def _check_pool(self, row: _Row, tap: str) -> None:
        """Compares the pool's own column of streams with what the list of streams says."""
        try:
            numbers = self._files[row.file].read(layout.STREAM_FIELD, row.first_row, row.first_row + row.records)
        except TraceFormatError:
            return
        if (numbers != row.number).any():
            message = f"rows {row.first_row} to {row.first_row + row.records - 1} are not all of stream {row.number}"
            self._add("streams-listed", row.file, message, tap=tap)

    def _damage(self, name: str, nbytes: int, expected: int) -> str | None:
        try:
            data = map_file(Place(self._path, name), nbytes)
        except TraceFormatError as error:
            return _bare(error)
        found = checksum_of(data)
        return None if found == expected else f"its CRC-32C is {found:08x}, not {expected:08x}"

    def _plain(self, row: _Row, *, trusted: bool) -> OpenedStream | None:
        site = self._site(row)
        if site is None:
            return None
        file = self._files.get(row.file)
        if file is None:
            self._lost[site.name] += row.records
            return None
        opened = self._opened(_PlainStream(site, file, row), row, stored=False, steps=None)
        if opened.suspect is None and not trusted and not _is_proven(row, site, file):
            suspect = f"{layout.STREAMS}, which says whose records are in {row.file}, is damaged"
            return dataclasses.replace(opened, suspect=suspect)
        return opened

    def _official(self, source: ArrowSource, number: int, row: _Row) -> OpenedStream | None:
        stream, site = source.streams[number], self._site(row)
        if site is None:
            return None
        if row.file.startswith("pool-") and row.file in self._files:
            self._check_pool(row, site.name)
        elif row.file in self._files:
            self._check_copies(row)
        return self._opened(stream, row, stored=True, steps=stream.steps)

    def _opened(self, stream: StreamSource, row: _Row, *, stored: bool, steps: tuple[int, int] | None) -> OpenedStream:
        bad_rows = partial(_bad_rows, stream, row)
        return OpenedStream(stream, f"{self._prefix}{row.file}", bad_rows, stored, steps, self._suspect.get(row.file))

    def _site(self, row: _Row) -> Site | None:
        try:
            site = Site.from_json(parse_json(row.site))
            for part in (*site.leaves, *site.columns):
                dtypes.from_name(part.dtype)
            lanes.check(site)
        except _ERRORS as error:
            message = (
                f"row {row.number} does not say of which tap it is ({_text(error)}); {row.records} records are lost"
            )
            self._add("site-defined", layout.STREAMS, message)
            self._lost["?"] += row.records
            return None
        return site

    def _compression(self) -> str | None:
        """Returns the codec of the first file that has one; None where files can be read and have none."""
        readable = False
        for name in self._files:
            try:
                file = IpcFile(map_file(Place(self._path, name)))
                codec = file.batch(0).codec if file.batches else None
            except _ERRORS:
                continue
            if codec is not None:
                return codec
            readable = True
        return None if readable else "default"


def _is_proven(row: _Row, site: Site, file: MappedFile) -> bool:
    """Returns whether a row of a list that cannot be believed is right all the same.

    A large stream's row comes from its own file, whose checksum was compared. For one in a pool the site's id is the
    digest of the site, and the pool says for each record which row it is of.
    """
    if not row.file.startswith("pool-"):
        return True
    if row.site_id != site.id:
        return False
    first, stop = row.first_row, row.first_row + row.records
    try:
        numbers = file.read(layout.STREAM_FIELD, first, stop)
        before = file.read(layout.STREAM_FIELD, first - 1, first) if first else numbers[:0]
    except TraceFormatError:
        return False
    try:
        behind = file.read(layout.STREAM_FIELD, stop, stop + 1)
    except TraceFormatError:
        behind = numbers[:0]
    return bool((numbers == row.number).all() and (before != row.number).all() and (behind != row.number).all())


def _missing(rows: StreamRows, names: set[str]) -> bool:
    return any(name not in names for name in rows.file)


def _bad_rows(stream: StreamSource, row: _Row, number: int) -> Iterator[BadRows]:
    """Reads one array of a stream a record batch at a time; yields the batches that cannot be read."""
    table = list(tables_of(stream))[number]
    edges = range(row.batch_rows - row.first_row % row.batch_rows, stream.records, row.batch_rows)
    # Not as a list: a damaged index may say that there are thousands of millions of records.
    for start, stop in itertools.pairwise(itertools.chain([0], edges, [stream.records])):
        try:
            table.read(start, stop)
        except TraceFormatError as error:
            kind = _classify(error)
            if kind == "index-count" and "lies behind them" in str(error):
                yield BadRows(start, stream.records, kind, _bare(error))
                return
            yield BadRows(start, stop, kind, _bare(error))


def _classify(error: TraceFormatError) -> str:
    text = str(error)
    shape = re.search(r"column \w+ is (missing|[a-z0-9_\[\]<>]+, not )", text)
    rows = re.search(r"lies behind them|batch [0-9]+ has [0-9]+ rows", text)
    return "shape-declared" if shape else "index-count" if rows else "chunk-whole"


def _bare(error: TraceFormatError) -> str:
    return str(error).rpartition(" is no intact trace: ")[2]


def _text(error: BaseException) -> str:
    if isinstance(error, TraceFormatError):
        return _bare(error)
    return " ".join(str(error).split()) or type(error).__name__
