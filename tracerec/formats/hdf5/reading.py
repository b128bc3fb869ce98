"""Reading a sealed HDF5 file, lazily: opening reads the attributes of the root and ``/index``, nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self, TypeVar

import crc32c
import numpy as np

from tracerec.errors import TraceFormatError
from tracerec.formats import headers, merged
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Dataset, open_group
from tracerec.formats.hdf5.files import OpenFile, attribute
from tracerec.formats.pool import Pool
from tracerec.protocol import dtypes
from tracerec.statistics import LeafSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from h5py import h5g

    from tracerec.formats.contract import RunInfo
    from tracerec.formats.hdf5.datasets import ChunkDamage, Grid, Place
    from tracerec.model import Site

__all__ = ["Hdf5Source", "Hdf5Stream"]

_JSON_ERRORS = (*HDF5_ERRORS, AttributeError, RecursionError)
"""What parsing JSON of the wrong form raises."""

_SHOWN = 80
"""Characters of a tap's name in a message."""

_T = TypeVar("_T")


class Hdf5Source:
    """A sealed file, opened for reading: a `tracerec.formats.contract.TraceSource`.

    Args:
        path: the file.
        pool: the pool of the trace that the file is a part of; None: it is a trace of its own.
        group: the group of one process in a merged file, such as ``"processes/000003"``; empty: the whole file.

    Attributes:
        path: the file, as given.
        info: what is known of the run.
        streams: the streams, in first-seen order.

    Raises:
        TraceNotFound: there is no such file.
        TraceFormatError: it is no trace, is damaged, or is of a newer major version.

    Example:
        >>> with Hdf5Source("run.h5") as source:  # doctest: +SKIP
        ...     source.streams[0].leaf(0, 0, 10)
    """

    def __init__(self, path: str | os.PathLike[str], *, pool: Pool | None = None, group: str = "") -> None:
        self.path = os.fspath(path)
        self._contents = _Contents(OpenFile(self.path, pool, group), pool or Pool())
        try:
            self.info: RunInfo = self._contents.run_info()
            self.streams: Sequence[Hdf5Stream] = self._contents.streams()
        except BaseException:
            self.close()
            raise

    def damage(self) -> Iterator[str]:
        """Reads the texts that opening did not read, and yields what is wrong with them; `Hdf5Stream.damage` the rest.

        Without checksums (before version 1.2) what still decompresses is not known to be damaged.
        """
        for check in (self._contents.summaries, self._contents.checksums):
            try:
                check()
            except TraceFormatError as error:
                yield str(error)

    def close(self) -> None:
        """Closes the file; reading from its streams then raises TraceError."""
        self._contents.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Hdf5Stream:
    """One stream of a sealed file: a `tracerec.formats.contract.StreamSource`. Made by `Hdf5Source`."""

    __slots__ = ("_contents", "_line", "_number", "_site")

    def __init__(self, contents: _Contents, line: layout.StreamLine, number: int) -> None:
        self._contents, self._line, self._number = contents, line, number
        self._site: Site | None = None

    @property
    def site(self) -> Site:
        """The site; raises TraceFormatError where the file does not describe one."""
        if self._site is None:
            self._site = self._parsed_site()
        return self._site

    @property
    def site_id(self) -> int:
        """The site's id, for which the site need not be parsed."""
        return self.site.id if self._line.site_id is None else self._line.site_id

    @property
    def tap(self) -> str:
        """The tap's name, for which the site need not be parsed."""
        return self.site.name if self._line.tap is None else self._line.tap

    @property
    def records(self) -> int:
        """How many records it has."""
        return self._line.records

    @property
    def nbytes(self) -> int:
        """Bytes of its chunks in the file."""
        return self._line.nbytes

    @property
    def steps(self) -> tuple[int, int] | None:
        """The smallest and the largest step, None when no record has one."""
        return self._line.steps

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, as made when the file was sealed."""
        leaves = len(self.site.leaves)
        lines = self._contents.summaries()
        try:
            if self._number >= len(lines):
                message = f"/{layout.SUMMARIES} has no line {self._number + 1}"
                raise ValueError(message)
            summaries = [LeafSummary.from_json(value) for value in headers.parse_json(lines[self._number])]
            if len(summaries) != leaves:
                message = f"{len(summaries)} for {leaves} leaves"
                raise ValueError(message)
        except _JSON_ERRORS as error:
            reason = f"summaries: {error!r}"
            raise self._place.error(reason) from error
        return summaries

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes of a leaf's chunks in the file."""
        sizes = self._line.leaf_nbytes
        if sizes is None:
            # Version 1.0 does not list them; the dataset knows.
            return self._with(f"data_{number}", lambda dataset: dataset.nbytes)
        if len(sizes) != len(self.site.leaves):
            reason = f"{len(sizes)} sizes for {len(self.site.leaves)} leaves"
            raise self._place.error(reason)
        return sizes[number]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table, as an array of `tracerec.model.INDEX_DTYPE`."""
        return self._read(layout.INDEX, start, stop)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` of ``site.leaves`` as ``(stop - start, *shape)`` of the logical dtype."""
        return self._read(f"data_{number}", start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` of ``site.columns`` as ``(stop - start, *shape)``."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(dtypes.from_name(column.dtype))
        return self._read(f"kwarg_{number}", start, stop)

    def damage(self) -> Iterator[ChunkDamage]:
        """Reads every chunk of the stream, and yields those that are missing or damaged.

        Raises:
            TraceFormatError: a whole dataset cannot be opened.
        """
        for table in self._tables:
            # Not one by one: between two the caller may read other files, and the pool may shut this one.
            yield from self._with(table.name, lambda dataset: list(dataset.damage()))

    def grid(self, number: int) -> Grid | None:
        """Returns how dataset ``number`` of `layout.tables` is cut into chunks; None where it has no elements."""
        return self._with(self._tables[number].name, lambda dataset: dataset.grid)

    def stored(self, number: int, chunk: tuple[int, ...]) -> bytes:
        """Returns a chunk of dataset ``number`` of `layout.tables` as it is in the file, its checksum compared.

        Args:
            number: which dataset.
            chunk: the chunk's corner, in elements of the dataset, the rows before the first record's included.

        Raises:
            TraceFormatError: the chunk is missing or damaged.
        """
        return self._with(self._tables[number].name, lambda dataset: dataset.stored(chunk))

    @property
    def _place(self) -> Place:
        return self._contents.place.child(layout.STREAMS).child(self._line.group)

    @property
    def _tables(self) -> list[layout.Table]:
        return self._contents.tables(self.site)

    def _read(self, name: str, start: int, stop: int) -> np.ndarray:
        return self._with(name, lambda dataset: dataset.read(start, stop))

    def _with(self, name: str, use: Callable[[Dataset], _T]) -> _T:
        with self._contents.file.root() as root:
            return use(self._dataset(root, name))

    def _dataset(self, root: h5g.GroupID, name: str) -> Dataset:
        return self._contents.file.kept(f"{self._line.group}/{name}", lambda: self._opened(root, name))

    def _opened(self, root: h5g.GroupID, name: str) -> Dataset:
        tables = self._tables
        number = next(number for number, table in enumerate(tables) if table.name == name)
        file, outside = self._contents.file, self._contents.place.child(layout.STREAMS)
        place = outside.child(self._line.group, _shown(self.site.name))
        parent = file.kept("/", lambda: open_group(root, layout.STREAMS, outside))
        group = file.kept(self._line.group, lambda: open_group(parent, self._line.group, place))
        lead = self._of_table(self._line.leads, number, len(tables)) or 0
        dataset = Dataset(group, tables[number], self.records, place.child(name), lead)
        first = self._of_table(self._line.checksums, number, len(tables))
        if first is not None and self._contents.checked:
            dataset.use_checksums(self._contents.checksums()[first : first + dataset.chunks])
        return dataset

    def _of_table(self, values: tuple[int, ...] | None, number: int, tables: int) -> int | None:
        """Returns a dataset's item of a list of the stream's line; None where there is no list."""
        if values is None:
            return None
        if len(values) != tables:
            reason = f"{len(values)} numbers for {tables} data sets"
            raise self._place.error(reason)
        return values[number]

    def _parsed_site(self) -> Site:
        known = self._contents.pool.sites
        site_id = self._line.site_id
        if site_id is not None and site_id in known:
            return known[site_id]
        try:
            site = self._line.parsed_site()
        except _JSON_ERRORS as error:
            reason = f"site: {error!r}"
            raise self._place.error(reason) from error
        return known.setdefault(site.id, site)


class _Contents:
    """What a file holds beside its streams, read when it is first asked for, each compared with its checksum."""

    def __init__(self, file: OpenFile, pool: Pool) -> None:
        self.file, self.pool = file, pool
        self.place = file.place
        self._expected: dict[str, int] = {}
        self._lines: list[bytes] | None = None
        self._checksums: np.ndarray | None = None
        self._tables: tuple[Site, list[layout.Table]] | None = None

    @property
    def checked(self) -> bool:
        """Whether the file has checksums."""
        return bool(self._expected)

    def run_info(self) -> RunInfo:
        """Returns the run, the format and its version checked."""
        with self.file.root() as root:
            version = _checked_version(root, self.place)
            if version >= layout.CHECKED_VERSION:
                self._expected = _expected_sums(root, self.place)
            text = attribute(root, layout.RUN_ATTRIBUTE, self.place)
        if text is None:
            reason = f"attribute {layout.RUN_ATTRIBUTE} is missing"
            raise self.place.error(reason)
        try:
            self._check(layout.RUN_ATTRIBUTE, text.encode())
        except ValueError as error:
            reason = f"attribute {layout.RUN_ATTRIBUTE}: {error}"
            raise self.place.error(reason) from error
        try:
            return headers.parse_run(text, version)
        except ValueError as error:
            reason = f"attribute {error}"
            raise self.place.error(reason) from error

    def streams(self) -> tuple[Hdf5Stream, ...]:
        """Returns the streams that the file lists."""
        with self.file.root() as root:
            open_group(root, layout.STREAMS, self.place.child(layout.STREAMS))
        place = self.place.child(layout.INDEX)
        text = self._text(layout.INDEX)
        try:
            parsed = layout.stream_lines(text, self.pool.site_texts)
            if self.checked and not all(line.checksums and line.site_id is not None for line in parsed):
                message = "a line without checksums or site_id"
                raise ValueError(message)
        except _JSON_ERRORS as error:
            reason = f"not one stream a line: {error!r}"
            raise place.error(reason) from error
        return tuple(Hdf5Stream(self, line, number) for number, line in enumerate(parsed))

    def summaries(self) -> list[bytes]:
        """Returns the lines of /summaries."""
        if self._lines is None:
            self._lines = self._text(layout.SUMMARIES)
        return self._lines

    def checksums(self) -> np.ndarray:
        """Returns the checksums of all chunks of streams; none in a file of an older version."""
        if self._checksums is None:
            self._checksums = self._read_checksums() if self.checked else np.empty(0, np.uint32)
        return self._checksums

    def _read_checksums(self) -> np.ndarray:
        place = self.place.child(layout.CHECKSUMS)
        with self.file.root() as root:
            dataset = Dataset(root, layout.checksum_table(), None, place)
            if dataset.grid is not None and dataset.grid.filters:
                reason = "is compressed"
                raise place.error(reason)
            values = dataset.read(0, dataset.records)
        self._checked(layout.CHECKSUMS, values.tobytes(), place)
        return values

    def tables(self, site: Site) -> list[layout.Table]:
        """Returns the datasets of a stream, which mostly are opened one after the other."""
        known = self._tables
        if known is None or known[0] is not site:
            known = self._tables = (site, list(layout.tables(site)))
        return known[1]

    def _text(self, name: str) -> list[bytes]:
        place = self.place.child(name)
        with self.file.root() as root:
            dataset = Dataset(root, layout.text_table(name), None, place)
            text = dataset.read(0, dataset.records).tobytes()
        self._checked(name, text, place)
        return text.splitlines()

    def _checked(self, name: str, data: bytes, place: Place) -> None:
        try:
            self._check(name, data)
        except ValueError as error:
            raise place.error(error) from error

    def _check(self, name: str, data: bytes) -> None:
        """Raises ValueError where data are not those that were written."""
        expected = self._expected.get(name)
        if expected is not None and (found := crc32c.crc32c(data)) != expected:
            message = f"its CRC-32C is {found:08x}, not {expected:08x}: it is not what was written"
            raise ValueError(message)


def _shown(tap: str) -> str:
    """Returns a tap's name as a message can have it."""
    return ascii(tap if len(tap) <= _SHOWN else tap[:_SHOWN] + "...")


def _checked_version(root: h5g.GroupID, place: Place) -> tuple[int, int]:
    if attribute(root, layout.FORMAT_ATTRIBUTE, place) != layout.FORMAT:
        message = f"{place.file!r} is an HDF5 file but no trace: its root has no {layout.FORMAT_ATTRIBUTE!r}"
        raise TraceFormatError(message, path=place.file)
    text = attribute(root, layout.VERSION_ATTRIBUTE, place) or ""
    try:
        version = headers.parse_version(text)
    except ValueError as error:
        message = f"{place.file!r}: {error}"
        raise TraceFormatError(message, path=place.file) from error
    if attribute(root, merged.ATTRIBUTE, place) is not None:
        message = f"{place.file!r} is a merged recording of several processes, which cannot be used as that of one"
        raise TraceFormatError(message, path=place.file)
    return version


def _expected_sums(root: h5g.GroupID, place: Place) -> dict[str, int]:
    """Returns the checksums of what a file holds beside its streams."""
    name = layout.CHECKSUMS_ATTRIBUTE
    text = attribute(root, name, place)
    try:
        values = headers.parse_json(text or "")
        return {part: int(values[part]) for part in layout.CHECKED_TEXTS}
    except _JSON_ERRORS as error:
        reason = f"attribute {name} is missing or damaged: {error!r}"
        raise place.error(reason) from error
