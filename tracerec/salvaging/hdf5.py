"""An HDF5 file, opened as far as it can be.

Where the list of streams cannot be believed, each stream's group still says whose it is, in an attribute of which HDF5
keeps a checksum. Where groups cannot be found by their names, they are found by what their headers look like.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
from h5py import h5g

from tracerec import lanes
from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats import headers
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Dataset, Place
from tracerec.formats.hdf5.files import attribute, open_root
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.headers import JSON_ERRORS
from tracerec.model import Site
from tracerec.protocol import dtypes
from tracerec.salvaging.forms import is_recording
from tracerec.salvaging.groups import Checksums, GroupStream, classify, open_stream, reason_of
from tracerec.salvaging.lists import (
    check_sum,
    checksums_of,
    compression_of,
    groups_of,
    lines_of,
    rows_of,
    sums_of,
    tap_of,
)
from tracerec.salvaging.objects import find_objects
from tracerec.salvaging.opened import BadRows, Opened, OpenedStream, tables_of
from tracerec.salvaging.patched import PatchedFile
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from tracerec.formats.contract import RunInfo
    from tracerec.formats.hdf5.datasets import Grid
    from tracerec.formats.hdf5.reading import Hdf5Stream
    from tracerec.verifying.report import Findings

__all__ = ["grids_of", "open_hdf5"]

_ERRORS = (*HDF5_ERRORS, *JSON_ERRORS, TraceFormatError)
_LOST_CHECKSUMS = "its checksums are damaged: values that still decompress are taken for right"
_OLD = "files before version 1.2 have no checksums: values that still decompress are taken for right"


def open_hdf5(path: str, findings: Findings, *, deep: bool = False, group: str = "") -> Opened:
    """Returns what can be read of a file; reports what is wrong with it as a whole.

    Args:
        path: the file.
        findings: takes the faults.
        deep: also look for streams in a file that HDF5 itself cannot open, or whose groups it cannot list. That is for
            a process of its own: HDF5 is shown what nobody wrote.
        group: that of one process in a merged file; empty: the whole file.

    Raises:
        TraceNotFound: there is no such file.
        TraceFormatError: it is no recording, of a newer major version, or nothing in it can be read.
    """
    name = os.path.basename(path)  # noqa: PTH119
    if group:
        name = f"{name}/{group}"
    else:
        findings.nbytes += os.path.getsize(path) if os.path.exists(path) else 0  # noqa: PTH110, PTH202 - paths are str here
    try:
        source = Hdf5Source(path, group=group)
    except TraceNotFound:
        raise
    except TraceFormatError as error:
        if "reads up to" in str(error) or not is_recording(Path(path)):
            raise
        findings.add(classify(error), name, reason_of(error))
        return _Broken(path, name, findings, deep=deep, group=group).opened()
    reasons = list(source.damage())
    for reason in reasons:
        findings.add("chunk-checksum" if "CRC-32C" in reason else "readable", name, reason_of(ValueError(reason)))
    if any(f"/{layout.CHECKSUMS}" in reason for reason in reasons):
        source.close()
        return _Broken(path, name, findings, deep=deep, group=group).opened()
    return _Whole(source, name, findings, summaries=not reasons, group=group).opened()


class _Whole:
    """A file that a reader opens."""

    def __init__(self, source: Hdf5Source, name: str, findings: Findings, *, summaries: bool, group: str) -> None:
        self._source, self._name, self._findings, self._group = source, name, findings, group
        self._summaries = summaries
        self._lost: Counter[str] = Counter()

    def opened(self) -> Opened:
        """Returns the streams; reports what is wrong with one as a whole."""
        streams = [found for stream in self._source.streams if (found := self._stream(stream))]
        self._check_groups([opened.stream.site for opened in streams])
        return Opened(
            path=self._source.path,
            info=self._source.info,
            streams=streams,
            close=self._source.close,
            lost=self._lost,
            unchecked=_OLD if self._source.info.format_version < layout.CHECKED_VERSION else None,
            compression=compression_of(grids_of(self._source)),
        )

    def _stream(self, stream: Hdf5Stream) -> OpenedStream | None:
        try:
            _ = stream.site
        except TraceFormatError as error:
            message = f"{reason_of(error)}; its {stream.records} records are lost"
            self._findings.add("site-defined", self._name, message)
            self._lost["?"] += stream.records
            return None
        bad_rows = partial(_bad_rows, stream)
        return OpenedStream(stream, self._name, bad_rows, stored=self._summaries, steps=stream.steps)

    def _check_groups(self, sites: list[Site]) -> None:
        """Compares the groups in the file with the list of streams: names, sites, sizes."""
        path = self._source.path
        place = Place(path, os.path.getsize(path), f"/{self._group}")  # noqa: PTH202 - paths are str here
        try:
            with h5py.File(path, "r", rdcc_nbytes=0) as file:
                root = open_root(file, place)
                listed, groups = lines_of(root, place), dict(groups_of(root, place))
                lines = Counter(line.group for line in listed)
                for name in sorted(groups.keys() - lines.keys()):
                    self._findings.add("streams-listed", self._name, f"/streams/{name} is not in the list of streams")
                for name in sorted(name for name, count in lines.items() if count > 1):
                    self._findings.add("streams-listed", self._name, f"/streams/{name} is listed more than once")
                if len(sites) == len(listed):
                    for line, site in zip(listed, sites, strict=True):
                        if line.group in groups:
                            self._check_group(groups[line.group], line, site, place)
        except _ERRORS as error:
            self._findings.add("readable", self._name, f"/streams: {reason_of(error)}")

    def _check_group(self, group: h5g.GroupID, line: layout.StreamLine, site: Site, place: Place) -> None:
        """Compares what a stream's group says with what the list does."""
        inside = place.child(layout.STREAMS).child(line.group)
        true = {"site": canonical(site.to_json()), "tap": layout.attribute_text(site.name)}
        if any(attribute(group, name, inside) not in (None, text) for name, text in true.items()):
            message = f"{inside.inside} says that it is of another site than the list of streams does"
            self._findings.add("site-id", self._name, message, tap=site.name)
        sizes: list[int] = []
        for table in layout.tables(site):
            try:
                sizes.append(Dataset(group, table, None, inside.child(table.name)).nbytes)
            except TraceFormatError as error:
                if not line.records:
                    # Nothing would be read of it, so that nobody else notices.
                    self._findings.add(classify(error), self._name, reason_of(error), tap=site.name, leaf=table.name)
                return
        leaves = tuple(sizes[1 : 1 + len(site.leaves)])
        if sum(sizes) != line.nbytes or line.leaf_nbytes not in (None, leaves):
            message = f"its chunks have {sum(sizes)} bytes, {line.nbytes} are listed; or its leaves {leaves}"
            self._findings.add("size-declared", self._name, message, tap=site.name)


class _Broken:
    """A file that no reader opens."""

    def __init__(self, path: str, name: str, findings: Findings, *, deep: bool, group: str) -> None:
        # What is found by its looks alone may be of any process.
        self._path, self._name, self._findings, self._deep = path, name, findings, deep and not group
        self._place = Place(path, os.path.getsize(path), f"/{group}")  # noqa: PTH202 - paths are str here
        self._lost: Counter[str] = Counter()
        self._keep = contextlib.ExitStack()

    def opened(self) -> Opened:
        """Returns the streams whose groups can be opened."""
        try:
            root = self._root()
            info = None if root is None else self._info(root)
            lines = {} if root is None else {line.group: line for line in lines_of(root, self._place)}
            groups = [] if root is None else list(self._named(root))
            checksums, proven = (None, False) if root is None else checksums_of(root, self._place)
            if not groups and self._deep:
                groups, checksums = self._found(checksums)
            using = Checksums(checksums, proven=proven)
            streams = [s for name, group in groups if (s := self._stream(name, group, using, lines.get(name)))]
            missing = [line for name, line in lines.items() if name not in dict(groups)]
        except BaseException:
            self._keep.close()
            raise
        for line in missing:
            tap = tap_of(line)
            self._lost[tap] += line.records
            message = f"/streams/{line.group} is gone or cannot be opened; its {line.records} records are lost"
            self._findings.add("readable", self._name, message, tap=tap)
        known = sum(stream.stream.records for stream in streams) + self._lost.total()
        if info is not None and info.records > known:
            self._lost["?"] += info.records - known
        kept = [stream.stream for stream in streams if isinstance(stream.stream, GroupStream)]
        return Opened(
            path=self._path,
            info=info,
            streams=streams,
            close=self._keep.close,
            lost=self._lost,
            losses=["streams of which nothing is left cannot be counted"] if info is None and not lines else [],
            unchecked=_LOST_CHECKSUMS if using.unused else None,
            compression=compression_of(dataset.grid for stream in kept for dataset in stream.datasets.values()),
        )

    def _root(self) -> h5g.GroupID | None:
        """Returns the root, as HDF5 finds it or, deep, behind a superblock of ours; None where there is none."""
        files: list[str | PatchedFile] = [self._path]
        if self._deep:
            files.append(self._keep.enter_context(PatchedFile(self._path)))
        for file in files:
            try:
                opened = self._keep.enter_context(h5py.File(file, "r", rdcc_nbytes=0))
                return open_root(opened, self._place)
            except (*HDF5_ERRORS, TraceFormatError):
                continue
        return None

    def _info(self, root: h5g.GroupID) -> RunInfo | None:
        try:
            version = headers.parse_version(attribute(root, layout.VERSION_ATTRIBUTE, self._place) or "")
            text = attribute(root, layout.RUN_ATTRIBUTE, self._place) or ""
            check_sum(sums_of(root, self._place), layout.RUN_ATTRIBUTE, text.encode())
            return headers.parse_run(text, version)
        except (ValueError, TraceFormatError) as error:
            if "reads up to" in str(error):
                message = f"{self._path!r}: {error}"
                raise TraceFormatError(message, path=self._path) from error
            self._findings.add("run-described", self._name, f"attribute {reason_of(error)}")
            return None

    def _named(self, root: h5g.GroupID) -> Iterator[tuple[str, h5g.GroupID]]:
        try:
            yield from groups_of(root, self._place)
        except TraceFormatError as error:
            self._findings.add("readable", self._name, f"/streams cannot be listed: {reason_of(error)}")

    def _found(self, checksums: np.ndarray | None) -> tuple[list[tuple[str, h5g.GroupID]], np.ndarray | None]:
        """Returns the groups that are found by their headers, and the checksums if nothing else had them."""
        objects = find_objects(self._path)
        if objects is None:
            return [], checksums
        self._keep.callback(objects.file.close)
        groups = [(f"found at {n}", group) for n, group in enumerate(objects.groups)]
        if checksums is None and len(objects.checksums) == 1:
            checksums = objects.checksums[0]
        return groups, checksums

    def _stream(
        self, name: str, group: h5g.GroupID, checksums: Checksums, line: layout.StreamLine | None
    ) -> OpenedStream | None:
        place = self._place.child(layout.STREAMS).child(name)
        site = self._site(group, place)
        if site is None:
            checksums.skip()
            records = 0 if line is None else line.records
            self._lost["?" if line is None else tap_of(line)] += records
            return None
        try:
            stream = open_stream(group, site, place, checksums, line)
        except TraceFormatError as error:
            records = rows_of(group) if line is None else line.records
            self._lost[site.name] += records
            message = f"{reason_of(error)}; the stream's {records} records are lost"
            self._findings.add(classify(error), self._name, message, tap=site.name)
            return None
        return OpenedStream(stream, self._name, stream.bad_rows, stored=False)

    def _site(self, group: h5g.GroupID, place: Place) -> Site | None:
        try:
            site = Site.from_json(headers.parse_json(attribute(group, "site", place) or ""))
            for part in (*site.leaves, *site.columns):
                dtypes.from_name(part.dtype)
            lanes.check(site)
        except _ERRORS as error:
            message = f"{place.inside} does not say of which tap it is: {reason_of(error)}; its records are lost"
            self._findings.add("site-defined", self._name, message)
            return None
        return site


def grids_of(source: Hdf5Source) -> Iterator[Grid | None]:
    """Yields how the datasets of a file are cut, those that can be opened."""
    for stream in source.streams:
        with contextlib.suppress(TraceFormatError):
            yield from (stream.grid(number) for number in range(len(list(layout.tables(stream.site)))))


def _bad_rows(stream: Hdf5Stream, number: int) -> Iterator[BadRows]:
    """Reads one array of a stream a row of chunks at a time; yields those that cannot be read."""
    try:
        grid = stream.grid(number)
    except TraceFormatError as error:
        yield BadRows(0, stream.records, classify(error), reason_of(error))
        return
    if grid is None:
        return
    table = list(tables_of(stream))[number]
    edges = range(grid.chunk[0] - grid.lead, stream.records, grid.chunk[0])
    for start, stop in itertools.pairwise([0, *edges, stream.records]):
        try:
            table.read(start, stop)
        except TraceFormatError as error:
            yield BadRows(start, stop, classify(error), reason_of(error))
