"""Sealing: any source of records becomes one immutable HDF5 file.

Every chunk is written once, whole, and compressed before HDF5 sees it. Memory is bounded: a few blocks of
`READ_BYTES`, or one record where that is more.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import os
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s, h5t

from tracerec import structure
from tracerec.errors import SealingError
from tracerec.formats.contract import FORMAT_VERSION
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.codecs import COMPRESSIONS, Codec
from tracerec.formats.hdf5.types import file_type
from tracerec.model import FLAG_STEP
from tracerec.protocol import dtypes
from tracerec.summaries import summarizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracerec.formats.contract import StreamSource, TraceSource
    from tracerec.statistics import LeafSummary

__all__ = ["seal"]

READ_BYTES = 8 << 20
"""Bytes of records read from the source at once."""

WORTH = 0.95
"""A dataset whose first chunk does not shrink to this is stored as it is: it then reads faster."""

_THREADS = min(4, os.cpu_count() or 1)
_IN_FLIGHT = 2 * _THREADS
"""Chunks being compressed while one is written."""


def seal(source: TraceSource, path: str | os.PathLike[str], *, compression: str | None = "lz4") -> None:
    """Writes all records of a source to an HDF5 file, which appears whole or not at all.

    The file is written beside its place, flushed to the disk, then renamed; an older file at ``path`` is
    replaced. The same records give the same bytes.

    Args:
        source: what to write; it is read stream by stream, leaf by leaf, in order, and not closed.
        path: the file.
        compression: ``"lz4"`` (bit-shuffled, fast), ``"zstd"`` (byte-shuffled, small), ``"gzip"`` (byte-shuffled,
            read by every HDF5 library without a plugin) or None. It is left out where it gains less than 5 %.

    Raises:
        SealingError: the file cannot be written, the source cannot be read, or the compression is unknown.

    Example:
        >>> seal(trace_source, "run.h5", compression="zstd")  # doctest: +SKIP
    """
    path = os.fspath(path)
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        message = f"{path!r}: unknown compression {compression!r}; there are {known}"
        raise SealingError(message, path=path)
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    try:
        _write(source, temporary, COMPRESSIONS[compression])
        _commit(temporary, path)
    except Exception as error:
        # h5py raises almost every built-in exception, and sources raise their own.
        reason = str(error) or type(error).__name__
        message = f"{path!r} cannot be sealed: {reason}"
        raise SealingError(message, path=path) from error
    finally:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)


def _write(source: TraceSource, path: str, codec: Codec | None) -> None:
    with _created(path) as file, ThreadPoolExecutor(_THREADS, "tracerec-compress") as pool:
        root = file.id
        info = dataclasses.replace(source.info, format_version=FORMAT_VERSION)
        _attribute(root, layout.FORMAT_ATTRIBUTE, layout.FORMAT)
        _attribute(root, layout.VERSION_ATTRIBUTE, layout.VERSION)
        _attribute(root, layout.RUN_ATTRIBUTE, structure.canonical(info.to_json()))
        streams = _group(root, layout.STREAMS)
        writer = _Writer(codec, pool)
        lines: list[Any] = []
        summaries: list[Any] = []
        for number, stream in enumerate(source.streams):
            line, summary = writer.stream(streams, number, stream)
            lines.append(line.to_json())
            summaries.append([leaf.to_json() for leaf in summary])
        # Always gzip: a reader without plugins can then at least list the streams.
        writer = _Writer(COMPRESSIONS["gzip"], pool)
        writer.text(root, layout.INDEX, lines)
        writer.text(root, layout.SUMMARIES, summaries)


class _Writer:
    """Writes streams and their datasets with one codec."""

    def __init__(self, codec: Codec | None, pool: ThreadPoolExecutor) -> None:
        self._codec = codec
        self._pool = pool

    def text(self, parent: h5g.GroupID, name: str, values: list[Any]) -> None:
        """Writes a dataset of JSON lines."""
        lines = np.frombuffer("".join(structure.canonical(v) + "\n" for v in values).encode(), np.uint8)
        self.table(parent, layout.text_table(name), len(lines), lambda start, stop: lines[start:stop])

    def stream(
        self, parent: h5g.GroupID, number: int, stream: StreamSource
    ) -> tuple[layout.StreamLine, list[LeafSummary]]:
        """Writes a stream's group; returns its line of the index and its summaries."""
        site, records = stream.site, stream.records
        name = layout.group_name(number)
        group = _group(parent, name)
        _attribute(group, "tap", layout.attribute_text(site.name))
        _attribute(group, "site", structure.canonical(site.to_json()))
        steps = _Steps()
        leaves = summarizers(stream)
        reads = _reads(stream)
        watches = [steps.add, *(leaf.add for leaf in leaves)]
        sizes: list[int] = []
        for table, read, watch in itertools.zip_longest(layout.tables(site), reads, watches):
            try:
                sizes.append(self.table(group, table, records, read, watch))
            except ValueError as error:
                message = f"tap {layout.attribute_text(site.name)!r}, {table.name}: {error}"
                raise ValueError(message) from error
        of_leaves = tuple(sizes[1 : 1 + len(site.leaves)])
        line = layout.StreamLine(name, site.to_json(), records, sum(sizes), steps.range, of_leaves)
        return line, [leaf.summary() for leaf in leaves]

    def table(
        self,
        parent: h5g.GroupID,
        table: layout.Table,
        records: int,
        read: Callable[[int, int], np.ndarray],
        watch: Callable[[np.ndarray], None] | None = None,
    ) -> int:
        """Writes one dataset and returns the bytes of its chunks; ``watch`` sees every block read."""
        shape = layout.stored_shape(records, table.shape)
        itemsize = table.numpy.itemsize
        if 0 in shape:
            for _ in _blocks(table, records, records, read, watch):
                pass
            _dataset(parent, table, shape, None, None)
            return 0
        chunk = layout.chunk_shape(shape, itemsize)
        step = chunk[0] * max(1, READ_BYTES // (math.prod(chunk[:1] + shape[1:]) * itemsize))
        blocks = _blocks(table, records, step, read, watch)
        pieces = itertools.chain.from_iterable(_pieces(*block, shape, chunk) for block in blocks)
        return self._chunks(parent, table, shape, chunk, pieces)

    def _chunks(
        self,
        parent: h5g.GroupID,
        table: layout.Table,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        pieces: Iterator[tuple[tuple[int, ...], np.ndarray]],
    ) -> int:
        codec, itemsize = self._codec, table.numpy.itemsize
        first, piece = next(pieces)
        data: bytes | np.ndarray = piece
        if codec is not None:
            data = self._pool.submit(codec.compress, piece, itemsize).result()
            if len(data) > WORTH * piece.nbytes:
                codec, data = None, piece
        dataset = _dataset(parent, table, shape, chunk, codec)
        nbytes = _put(dataset, first, data)
        for offset, data in self._compressed(pieces, codec, itemsize):
            nbytes += _put(dataset, offset, data)
        return nbytes

    def _compressed(
        self, pieces: Iterator[tuple[tuple[int, ...], np.ndarray]], codec: Codec | None, itemsize: int
    ) -> Iterator[tuple[tuple[int, ...], bytes | np.ndarray]]:
        """Yields the pieces in order, compressed by the threads of the pool, a few ahead."""
        if codec is None:
            yield from pieces
            return
        waiting: collections.deque[tuple[tuple[int, ...], Future[bytes]]] = collections.deque()
        for offset, piece in pieces:
            waiting.append((offset, self._pool.submit(codec.compress, piece, itemsize)))
            if len(waiting) > _IN_FLIGHT:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


class _Steps:
    """The smallest and the largest step of a stream."""

    range: tuple[int, int] | None = None

    def add(self, rows: np.ndarray) -> None:
        """Takes rows of the index table."""
        steps = rows["step"][(rows["flags"] & FLAG_STEP) != 0]
        if len(steps):
            low, high = int(steps.min()), int(steps.max())
            self.range = (low, high) if self.range is None else (min(low, self.range[0]), max(high, self.range[1]))


def _reads(stream: StreamSource) -> Iterator[Callable[[int, int], np.ndarray]]:
    """Yields what reads the tables of a stream, in the order of `layout.tables`."""
    yield stream.index
    for number in range(len(stream.site.leaves)):
        yield lambda start, stop, number=number: stream.leaf(number, start, stop)
    for number, column in enumerate(stream.site.columns):
        if not column.in_index:
            yield lambda start, stop, number=number: stream.column(number, start, stop)


def _blocks(
    table: layout.Table,
    records: int,
    step: int,
    read: Callable[[int, int], np.ndarray],
    watch: Callable[[np.ndarray], None] | None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields first records and blocks ``(n, *shape)`` of bits; raises ValueError for a block that does not fit."""
    for start in range(0, records, max(step, 1)):
        stop = min(start + step, records)
        block = np.ascontiguousarray(read(start, stop))
        if block.shape != (stop - start, *table.shape) or block.dtype != table.numpy:
            message = (
                f"the source gave {block.dtype} of {block.shape} for records {start}:{stop}, "
                f"not {table.numpy} of {(stop - start, *table.shape)}"
            )
            raise ValueError(message)
        if watch is not None:
            watch(block)
        yield start, dtypes.as_bits(block)


def _pieces(
    start: int, block: np.ndarray, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yields the offset and the array, of the chunk's shape, of every chunk of a block, in row-major order."""
    block = block.reshape(len(block), *shape[1:])
    corners = itertools.product(*(range(0, n, c) for n, c in zip(block.shape, chunk, strict=True)))
    for corner in corners:
        piece = block[tuple(slice(low, low + c) for low, c in zip(corner, chunk, strict=True))]
        if piece.shape != chunk:
            padded = np.zeros(chunk, block.dtype)
            padded[tuple(map(slice, piece.shape))] = piece
            piece = padded
        yield (start + corner[0], *corner[1:]), np.ascontiguousarray(piece)


def _put(dataset: h5d.DatasetID, offset: tuple[int, ...], data: bytes | np.ndarray) -> int:
    raw = data if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
    dataset.write_direct_chunk(offset, raw)
    return len(raw)


def _created(path: str) -> h5py.File:
    """Returns a new file that HDF5 1.10 and later read and that holds no times."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    # HDF5 2.0 would keep 8 MiB of chunks for each dataset; ours are written once.
    access.set_cache(0, 1, 0, 1.0)
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_EXCL, creation, access))


def _group(parent: h5g.GroupID, name: str) -> h5g.GroupID:
    properties = h5p.create(h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5g.create(parent, name.encode(), gcpl=properties)


def _dataset(
    parent: h5g.GroupID,
    table: layout.Table,
    shape: tuple[int, ...],
    chunk: tuple[int, ...] | None,
    codec: Codec | None,
) -> h5d.DatasetID:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    if chunk is not None:
        properties.set_chunk(chunk)
    if chunk is not None and codec is not None:
        itemsize = table.numpy.itemsize
        codec.add_filters(properties, itemsize, math.prod(chunk) * itemsize)
    space = h5s.create_simple(shape)
    dataset = h5d.create(parent, table.name.encode(), file_type(table.dtype), space, properties)
    for name, text in table.attributes.items():
        _attribute(dataset, name, text)
    return dataset


def _attribute(target: h5g.GroupID | h5d.DatasetID, name: str, text: str) -> None:
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
