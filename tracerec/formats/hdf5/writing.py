"""A new HDF5 file of a trace, which appears whole or not at all: groups, datasets, chunks, checksums.

Every chunk is written once, whole, and compressed before HDF5 sees it.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import math
import os
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s, h5t

from tracerec import structure
from tracerec.errors import SealingError
from tracerec.formats import merged
from tracerec.formats.contract import FORMAT_VERSION
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.codecs import COMPRESSIONS, Codec, filters_of
from tracerec.formats.hdf5.types import file_type

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tracerec.formats.contract import RunInfo
    from tracerec.model import Site
    from tracerec.statistics import LeafSummary

__all__ = [
    "Chunk",
    "FileWriter",
    "MergedWriter",
    "StreamWriter",
    "filters_for",
    "new_file",
    "new_merged_file",
    "padded",
]

Chunk = tuple[tuple[int, ...], "np.ndarray | bytes"]
"""A chunk's corner, in elements, and what is in it: its elements as bits, to be compressed, or its stored bytes."""

WORTH = 0.95
"""A dataset whose first chunk does not shrink to this is stored as it is: it then reads faster."""

_THREADS = min(4, os.cpu_count() or 1)
_IN_FLIGHT = 2 * _THREADS
"""Chunks being compressed while one is written."""


def _nobody(nbytes: int) -> None:
    """Nobody wants to know how far writing is."""


@contextlib.contextmanager
def new_file(
    path: str, compression: str | None, *, in_memory: bool = False, wrote: Callable[[int], None] = _nobody
) -> Generator[FileWriter, None, None]:
    """Gives what writes a trace; the file gets its name when the block ends, and an older one there is replaced.

    The file is written beside its place, flushed to the disk, then renamed.

    Args:
        path: the file.
        compression: one of `COMPRESSIONS`.
        in_memory: whether HDF5 makes the file in memory, and we write it: it can crash the process when the disk is
            full. Takes twice the file's size of memory.
        wrote: told of the bytes of chunks that were written.

    Raises:
        SealingError: anything in the block failed, or the compression is unknown. Nothing is left behind.
    """
    codec = _codec(path, compression)
    with _new_root(path, in_memory=in_memory) as (root, pool):
        yield FileWriter(root, codec, pool, wrote)


@contextlib.contextmanager
def new_merged_file(path: str, wrote: Callable[[int], None] = _nobody) -> Generator[MergedWriter, None, None]:
    """Gives what writes a file of several processes; the same as `new_file` in all else."""
    with _new_root(path, in_memory=False) as (root, pool):
        yield MergedWriter(root, path, pool, wrote)


@contextlib.contextmanager
def _new_root(path: str, *, in_memory: bool) -> Generator[tuple[h5f.FileID, ThreadPoolExecutor], None, None]:
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    try:
        with _new(temporary, in_memory=in_memory) as file:
            with ThreadPoolExecutor(_THREADS, "tracerec-compress") as pool:
                yield file.id, pool
            if in_memory:
                file.flush()
                Path(temporary).write_bytes(file.id.get_file_image())
        _commit(temporary, path)
    except Exception as error:
        # h5py raises almost every built-in exception, and sources raise their own.
        reason = str(error) or type(error).__name__
        message = f"{path!r} cannot be sealed: {reason}"
        raise SealingError(message, path=path) from error
    finally:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)


def _codec(path: str, compression: str | None) -> Codec | None:
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        message = f"{path!r}: unknown compression {compression!r}; there are {known}"
        raise SealingError(message, path=path)
    return COMPRESSIONS[compression]


_MEMORY_STEP = 16 << 20
"""By how many bytes a file in memory grows at once."""


class FileWriter:
    """Writes a trace into a new file, or group: streams one after the other, then `finish`. Made by `new_file`.

    Attributes:
        codec: compresses chunks; None: they stay as they are.
    """

    def __init__(
        self,
        root: h5f.FileID | h5g.GroupID,
        codec: Codec | None,
        pool: ThreadPoolExecutor,
        wrote: Callable[[int], None] = _nobody,
    ) -> None:
        self.codec = codec
        self._root, self._pool, self._wrote = root, pool, wrote
        self._streams = _group(root, layout.STREAMS)
        self._lines: list[layout.StreamLine] = []
        self._summaries: list[list[LeafSummary]] = []
        self._checksums = array.array("I")

    def stream(self, site: Site) -> StreamWriter:
        """Returns what writes the next stream."""
        group = _group(self._streams, layout.group_name(len(self._lines)))
        _attribute(group, "tap", layout.attribute_text(site.name))
        _attribute(group, "site", structure.canonical(site.to_json()))
        return StreamWriter(self, group, site)

    def add(self, line: layout.StreamLine, summaries: list[LeafSummary]) -> None:
        """Lists a stream whose datasets have been written."""
        self._lines.append(dataclasses.replace(line, group=layout.group_name(len(self._lines))))
        self._summaries.append(summaries)

    def finish(self, info: RunInfo) -> None:
        """Writes what the file says of itself: the run, the list of streams, their summaries, the checksums."""
        run = structure.canonical(dataclasses.replace(info, format_version=FORMAT_VERSION).to_json())
        sums = {layout.RUN_ATTRIBUTE: crc32c.crc32c(run.encode())}
        lines = [line.to_json() for line in self._lines]
        summaries = [[leaf.to_json() for leaf in leaves] for leaves in self._summaries]
        sums[layout.INDEX] = self._text(layout.INDEX, lines)
        sums[layout.SUMMARIES] = self._text(layout.SUMMARIES, summaries)
        checksums = np.array(self._checksums, "<u4")
        sums[layout.CHECKSUMS] = self._plain(layout.checksum_table(), checksums, None)
        _attribute(self._root, layout.FORMAT_ATTRIBUTE, layout.FORMAT)
        _attribute(self._root, layout.VERSION_ATTRIBUTE, layout.VERSION)
        _attribute(self._root, layout.RUN_ATTRIBUTE, run)
        _attribute(self._root, layout.CHECKSUMS_ATTRIBUTE, structure.canonical(sums))

    def compressed_first(self, chunks: Iterator[Chunk], itemsize: int) -> tuple[Codec | None, Iterator[Chunk]]:
        """Tries the compression on the first chunk.

        Returns:
            The codec, or None where it does not pay, and the same chunks, of which the first may be compressed now.
        """
        offset, data = next(chunks)
        codec = self.codec
        if codec is not None and isinstance(data, np.ndarray):
            raw, data = data, self._pool.submit(codec.compress, data, itemsize).result()
            if len(data) > WORTH * raw.nbytes:
                codec, data = None, raw
        return codec, _with_first((offset, data), chunks)

    def pays(self, piece: np.ndarray, itemsize: int) -> bool:
        """Returns whether the compression makes a chunk smaller by 5 % at least."""
        if self.codec is None:
            return False
        return len(self._pool.submit(self.codec.compress, piece, itemsize).result()) <= WORTH * piece.nbytes

    def put(self, dataset: h5d.DatasetID, chunks: Iterable[Chunk], codec: Codec | None, itemsize: int) -> int:
        """Writes all chunks of a dataset, in row-major order; returns their bytes, and keeps their checksums."""
        nbytes = 0
        for offset, data in self._compressed(chunks, codec, itemsize):
            dataset.write_direct_chunk(offset, data)
            self._checksums.append(crc32c.crc32c(data))
            nbytes += len(data)
            self._wrote(len(data))
        return nbytes

    @property
    def checksums(self) -> int:
        """How many checksums there are so far."""
        return len(self._checksums)

    def _text(self, name: str, values: list[Any]) -> int:
        """Writes a dataset of JSON lines; returns the CRC-32C of the text."""
        text = "".join(structure.canonical(value) + "\n" for value in values).encode()
        # Always gzip: a reader without plugins can then at least list the streams.
        return self._plain(layout.text_table(name), np.frombuffer(text, np.uint8), COMPRESSIONS["gzip"])

    def _plain(self, table: layout.Table, values: np.ndarray, codec: Codec | None) -> int:
        """Writes a dataset that is not of a stream; returns the CRC-32C of its elements."""
        data = values.view(np.uint8).data
        if not len(values):
            _create(self._root, table, values.shape, None, None)
            return crc32c.crc32c(data)
        chunk = layout.chunk_shape(values.shape, values.itemsize)
        starts = range(0, len(values), chunk[0])
        chunks = (((start,), padded(values[start : start + chunk[0]], chunk)) for start in starts)
        dataset = _create(self._root, table, values.shape, chunk, codec)
        for offset, piece in self._compressed(chunks, codec, values.itemsize):
            dataset.write_direct_chunk(offset, piece)
        return crc32c.crc32c(data)

    def _compressed(
        self, chunks: Iterable[Chunk], codec: Codec | None, itemsize: int
    ) -> Iterator[tuple[tuple[int, ...], bytes | memoryview]]:
        """Yields the chunks in order as they are stored, compressed by the threads of the pool, a few ahead."""
        waiting: collections.deque[tuple[tuple[int, ...], bytes | memoryview | Future[bytes]]] = collections.deque()
        ahead = 0 if codec is None else _IN_FLIGHT
        for offset, data in chunks:
            if isinstance(data, bytes):
                waiting.append((offset, data))
            elif codec is None:
                waiting.append((offset, data.reshape(-1).view(np.uint8).data))
            else:
                waiting.append((offset, self._pool.submit(codec.compress, data, itemsize)))
            if len(waiting) > ahead:
                yield _done(*waiting.popleft())
        while waiting:
            yield _done(*waiting.popleft())


class MergedWriter:
    """Writes the recordings of several processes into one new file, then `finish`. Made by `new_merged_file`.

    Args:
        root: the file.
        path: its path, for messages.
        pool: compresses.
        wrote: as `new_file`.
    """

    def __init__(self, root: h5f.FileID, path: str, pool: ThreadPoolExecutor, wrote: Callable[[int], None]) -> None:
        self._root, self._path, self._pool, self._wrote = root, path, pool, wrote
        self._groups = _group(root, merged.GROUPS)
        self._processes: list[merged.Process] = []

    def process(self, process: merged.Process, compression: str | None) -> FileWriter:
        """Returns what writes the recording of a process; the numbers of processes ascend."""
        self._processes.append(process)
        group = _group(self._groups, merged.group_path(process.number).rpartition("/")[2])
        return FileWriter(group, _codec(self._path, compression), self._pool, self._wrote)

    def finish(self) -> None:
        """Writes which processes there are."""
        _attribute(self._root, layout.FORMAT_ATTRIBUTE, layout.FORMAT)
        _attribute(self._root, layout.VERSION_ATTRIBUTE, merged.VERSION)
        _attribute(self._root, merged.ATTRIBUTE, merged.text_of(self._processes))


class StreamWriter:
    """Writes the datasets of one stream, in the order of `layout.tables`, then `close`. Made by `FileWriter.stream`.

    Args:
        file: the file's writer.
        group: the stream's group.
        site: the site.
    """

    def __init__(self, file: FileWriter, group: h5g.GroupID, site: Site) -> None:
        self._file, self._group, self._site = file, group, site
        self._nbytes: list[int] = []
        self._checksums: list[int] = []
        self._leads: list[int] = []

    def table(
        self,
        table: layout.Table,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        codec: Codec | None,
        chunks: Iterable[Chunk],
        *,
        lead: int = 0,
    ) -> None:
        """Writes one dataset.

        Args:
            table: its name, dtype and attributes.
            shape: its shape, with the rows of ``lead``.
            chunk: the shape of a chunk.
            codec: how its chunks are, or are to be, compressed.
            chunks: all of them, in row-major order.
            lead: rows before the first record's.
        """
        dataset = _create(self._group, table, shape, chunk, codec)
        if lead:
            _attribute(dataset, layout.LEAD_ATTRIBUTE, str(lead))
        self._checksums.append(self._file.checksums)
        self._nbytes.append(self._file.put(dataset, chunks, codec, table.numpy.itemsize))
        self._leads.append(lead)

    def empty(self, table: layout.Table, shape: tuple[int, ...]) -> None:
        """Writes a dataset without elements."""
        _create(self._group, table, shape, None, None)
        self._checksums.append(self._file.checksums)
        self._nbytes.append(0)
        self._leads.append(0)

    def close(self, records: int, steps: tuple[int, int] | None, summaries: list[LeafSummary]) -> None:
        """Lists the stream in the file.

        Args:
            records: how many records were written.
            steps: the smallest and the largest step.
            summaries: one a leaf.
        """
        line = layout.StreamLine(
            group="",
            site=structure.canonical(self._site.to_json()).encode(),
            records=records,
            nbytes=sum(self._nbytes),
            steps=steps,
            leaf_nbytes=tuple(self._nbytes[1 : 1 + len(self._site.leaves)]),
            site_id=self._site.id,
            tap=self._site.name,
            checksums=tuple(self._checksums),
            leads=tuple(self._leads) if any(self._leads) else None,
        )
        self._file.add(line, summaries)


def padded(piece: np.ndarray, chunk: tuple[int, ...]) -> np.ndarray:
    """Returns what a chunk holds: the piece, where it is smaller with zeros behind it."""
    if piece.shape == chunk:
        return np.ascontiguousarray(piece)
    whole = np.zeros(chunk, piece.dtype)
    whole[tuple(map(slice, piece.shape))] = piece
    return whole


def filters_for(codec: Codec | None, chunk: tuple[int, ...], itemsize: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns the filters that a dataset of such chunks has, as `Dataset.filters`."""
    return filters_of(_properties(codec, chunk, itemsize))


def _create(
    parent: h5f.FileID | h5g.GroupID,
    table: layout.Table,
    shape: tuple[int, ...],
    chunk: tuple[int, ...] | None,
    codec: Codec | None,
) -> h5d.DatasetID:
    """Returns a new dataset with its attributes; without elements it has no chunks."""
    space = h5s.create_simple(shape)
    properties = _properties(codec, chunk, table.numpy.itemsize)
    dataset = h5d.create(parent, table.name.encode(), file_type(table.dtype), space, properties)
    for name, text in table.attributes.items():
        _attribute(dataset, name, text)
    return dataset


def _properties(codec: Codec | None, chunk: tuple[int, ...] | None, itemsize: int) -> h5p.PropDCID:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    if chunk is not None:
        properties.set_chunk(chunk)
        if codec is not None:
            codec.add_filters(properties, itemsize, math.prod(chunk) * itemsize)
    return properties


def _with_first(first: Chunk, rest: Iterator[Chunk]) -> Iterator[Chunk]:
    yield first
    yield from rest


def _done(
    offset: tuple[int, ...], data: bytes | memoryview | Future[bytes]
) -> tuple[tuple[int, ...], bytes | memoryview]:
    return offset, data.result() if isinstance(data, Future) else data


def _new(path: str, *, in_memory: bool) -> h5py.File:
    """Returns a new file that HDF5 1.10 and later read and that holds no times."""
    access = h5p.create(h5p.FILE_ACCESS)
    if in_memory:
        access.set_fapl_core(_MEMORY_STEP, backing_store=False)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    # HDF5 2.0 would keep 8 MiB of chunks for each dataset; ours are written once.
    access.set_cache(0, 1, 0, 1.0)
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_EXCL, creation, access))


def _group(parent: h5f.FileID | h5g.GroupID, name: str) -> h5g.GroupID:
    properties = h5p.create(h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5g.create(parent, name.encode(), gcpl=properties)


def _attribute(target: h5f.FileID | h5g.GroupID | h5d.DatasetID, name: str, text: str) -> None:
    """Writes a text as UTF-8 of fixed length.

    One of variable length lies in a heap without checksums, and HDF5 2.0 loops for ever on a damaged heap.
    """
    data = text.encode()
    kind = h5t.C_S1.copy()
    kind.set_size(max(1, len(data)))
    kind.set_cset(h5t.CSET_UTF8)
    kind.set_strpad(h5t.STR_NULLPAD)
    attribute = h5a.create(target, name.encode(), kind, h5s.create(h5s.SCALAR))
    attribute.write(np.array(data, f"S{max(1, len(data))}"), kind)


def _commit(temporary: str, path: str) -> None:
    """Makes the file permanent under its name; a crash leaves either the old state or the new one."""
    _sync(temporary)
    os.replace(temporary, path)  # noqa: PTH105  # paths are str here, as the user gave them
    _sync(os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
