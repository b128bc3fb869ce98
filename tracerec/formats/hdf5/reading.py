"""Reading a sealed HDF5 file, lazily: opening reads the attributes of the root and ``/index``, nothing else."""

from __future__ import annotations

import os
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import h5py
import numpy as np
from h5py import h5a, h5g, h5t

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats import headers
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Dataset, Place, open_group
from tracerec.protocol import dtypes
from tracerec.statistics import LeafSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from tracerec.formats.contract import RunInfo
    from tracerec.model import Site

__all__ = ["Hdf5Source", "Hdf5Stream"]

_JSON_ERRORS = (*HDF5_ERRORS, AttributeError, RecursionError)
"""What parsing JSON of the wrong form raises."""


class Hdf5Source:
    """A sealed file, opened for reading: a `tracerec.formats.contract.TraceSource`.

    Args:
        path: the file.

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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = _opened(self.path)
        try:
            place = Place(self.path, os.path.getsize(self.path))  # noqa: PTH202  # paths are str here
            root = _root(self._file, place)
            version = _checked_version(root, place)
            self.info: RunInfo = _run_info(root, version, place)
            self.streams: Sequence[Hdf5Stream] = self._listed(root, place)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Closes the file; reading from its streams then raises TraceError."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listed(self, root: h5g.GroupID, place: Place) -> tuple[Hdf5Stream, ...]:
        index = _Lines(self._file, root, layout.INDEX, place)
        summaries = _Lines(self._file, root, layout.SUMMARIES, place)
        groups = place.child(layout.STREAMS)
        parent = open_group(root, layout.STREAMS, groups)
        try:
            # As one text: a parser started for each line takes six times as long.
            values = headers.parse_json(b"[" + b",".join(index.lines) + b"]")
            lines = [layout.StreamLine.from_json(value) for value in values]
        except _JSON_ERRORS as error:
            reason = f"not one stream a line: {error!r}"
            raise index.place.error(reason) from error
        return tuple(
            Hdf5Stream(self._file, parent, line, groups, partial(summaries.parsed, number))
            for number, line in enumerate(lines)
        )


class _Lines:
    """A dataset of JSON lines, read when it is first asked for."""

    def __init__(self, file: h5py.File, root: h5g.GroupID, name: str, place: Place) -> None:
        self._file, self._root, self._name = file, root, name
        self.place = place.child(name)

    @cached_property
    def lines(self) -> list[bytes]:
        _check_open(self._file, self.place)
        dataset = Dataset(self._root, layout.text_table(self._name), None, self.place)
        return dataset.read(0, dataset.records).tobytes().splitlines()

    def parsed(self, number: int) -> Any:
        """Returns a line's JSON value; raises ValueError where it is none."""
        if number >= len(self.lines):
            message = f"{self.place.inside} has no line {number + 1}"
            raise ValueError(message)
        return headers.parse_json(self.lines[number])


class Hdf5Stream:
    """One stream of a sealed file: a `tracerec.formats.contract.StreamSource`.

    Attributes:
        records: how many records it has.
        nbytes: bytes of its chunks in the file.
        steps: the smallest and the largest step, None when no record has one.
    """

    def __init__(
        self,
        file: h5py.File,
        parent: h5g.GroupID,
        line: layout.StreamLine,
        groups: Place,
        summaries: Callable[[], Any],
    ) -> None:
        self._file, self._parent, self._line, self._groups = file, parent, line, groups
        self._summaries = summaries
        self._datasets: dict[str, Dataset] = {}
        self.records = line.records
        self.nbytes = line.nbytes
        self.steps = line.steps

    @property
    def site(self) -> Site:
        """The site; raises TraceFormatError where the file does not describe one."""
        return self._site

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, as made when the file was sealed."""
        leaves = len(self.site.leaves)
        try:
            summaries = [LeafSummary.from_json(value) for value in self._summaries()]
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
            return self._dataset(f"data_{number}").nbytes
        if len(sizes) != len(self.site.leaves):
            reason = f"{len(sizes)} sizes for {len(self.site.leaves)} leaves"
            raise self._place.error(reason)
        return sizes[number]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table, as an array of `tracerec.model.INDEX_DTYPE`."""
        return self._dataset(layout.INDEX).read(start, stop)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` of ``site.leaves`` as ``(stop - start, *shape)`` of the logical dtype."""
        return self._dataset(f"data_{number}").read(start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` of ``site.columns`` as ``(stop - start, *shape)``."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(dtypes.from_name(column.dtype))
        return self._dataset(f"kwarg_{number}").read(start, stop)

    @property
    def _place(self) -> Place:
        return self._groups.child(self._line.group)

    @cached_property
    def _site(self) -> Site:
        try:
            return self._line.parsed_site()
        except _JSON_ERRORS as error:
            reason = f"site: {error!r}"
            raise self._place.error(reason) from error

    @cached_property
    def _tables(self) -> dict[str, layout.Table]:
        return {table.name: table for table in layout.tables(self.site)}

    @cached_property
    def _group(self) -> h5g.GroupID:
        return open_group(self._parent, self._line.group, self._place)

    def _dataset(self, name: str) -> Dataset:
        _check_open(self._file, self._place)
        if name not in self._datasets:
            table = self._tables[name]
            self._datasets[name] = Dataset(self._group, table, self.records, self._place.child(name))
        return self._datasets[name]


def _check_open(file: h5py.File, place: Place) -> None:
    if not file:
        message = f"{place.file!r} is closed"
        raise TraceError(message, path=place.file)


def _opened(path: str) -> h5py.File:
    try:
        # Chunks are read past HDF5's cache. Locking stays as it is: HDF5 refuses to open a file twice in one
        # process with different settings, and the user may have it open.
        return h5py.File(path, "r", rdcc_nbytes=0)
    except FileNotFoundError as error:
        message = f"{path!r} does not exist"
        raise TraceNotFound(message, path=path) from error
    except HDF5_ERRORS as error:
        reason = " ".join(str(error).split())
        message = f"{path!r} is no trace, or is damaged: {reason}"
        raise TraceFormatError(message, path=path) from error


def _root(file: h5py.File, place: Place) -> h5g.GroupID:
    try:
        return h5g.open(file.id, b"/")
    except HDF5_ERRORS as error:
        raise place.error(error) from error


def _checked_version(root: h5g.GroupID, place: Place) -> tuple[int, int]:
    if _attribute(root, layout.FORMAT_ATTRIBUTE, place) != layout.FORMAT:
        message = f"{place.file!r} is an HDF5 file but no trace: its root has no {layout.FORMAT_ATTRIBUTE!r}"
        raise TraceFormatError(message, path=place.file)
    text = _attribute(root, layout.VERSION_ATTRIBUTE, place) or ""
    try:
        return headers.parse_version(text)
    except ValueError as error:
        message = f"{place.file!r}: {error}"
        raise TraceFormatError(message, path=place.file) from error


def _run_info(root: h5g.GroupID, version: tuple[int, int], place: Place) -> RunInfo:
    text = _attribute(root, layout.RUN_ATTRIBUTE, place)
    if text is None:
        reason = f"attribute {layout.RUN_ATTRIBUTE} is missing"
        raise place.error(reason)
    try:
        return headers.parse_run(text, version)
    except ValueError as error:
        reason = f"attribute {error}"
        raise place.error(reason) from error


def _attribute(root: h5g.GroupID, name: str, place: Place) -> str | None:
    """Returns a text attribute of the root, None where there is none or it is something else.

    A text of variable length is something else: HDF5 2.0 loops for ever on a damaged heap of them.
    """
    try:
        if not h5a.exists(root, name.encode()):
            return None
        attribute = h5a.open(root, name.encode())
        kind = attribute.get_type()
        if attribute.shape != () or not isinstance(kind, h5t.TypeStringID) or kind.is_variable_str():
            return None
        if kind.get_size() > place.size:
            reason = f"attribute {name} declares {kind.get_size()} bytes, in a file of {place.size}"
            raise place.error(reason)
        value = np.empty((), f"S{kind.get_size()}")
        attribute.read(value, kind)
    except HDF5_ERRORS as error:
        reason = f"attribute {name}: {error}"
        raise place.error(reason) from error
    return bytes(value[()]).decode("utf-8", "replace")
