"""Sealing: any source of records becomes one folder of Arrow IPC files.

Memory is bounded: a few blocks of `READ_BYTES`, or one record where that is more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import crc32c
import numpy as np
import pyarrow as pa

from tracerec import structure
from tracerec.errors import SealingError
from tracerec.formats.arrow import columns, layout
from tracerec.formats.arrow.files import Place, map_file
from tracerec.formats.arrow.ipc import IpcFile
from tracerec.formats.contract import FORMAT_VERSION
from tracerec.model import INDEX_DTYPE
from tracerec.summaries import StepRange, summarizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from tracerec.formats.contract import StreamSource, TraceSource

__all__ = ["COMPRESSIONS", "seal"]

COMPRESSIONS = ("lz4", "zstd", None)

READ_BYTES = 8 << 20
"""Bytes of records read from the source at once."""

_INDEX_COMPRESSION = "lz4"
"""Of streams.arrow, whose JSON repeats itself; LZ4 cannot make a bomb of it."""

_TEXT_BYTES = 16 << 20
"""Bytes of text of a batch of streams.arrow: Arrow's offsets of texts have 32 bits."""


def seal(
    source: TraceSource,
    path: str | os.PathLike[str],
    *,
    compression: str | None = None,
    wrote: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes all records of a source to a folder of Arrow IPC files, which appears whole or not at all.

    The folder is written beside its place, flushed to the disk, then renamed. The same records give the same bytes.

    Args:
        source: what to write; it is read block by block, and not closed.
        path: the folder; nothing, or an empty folder, may be there.
        compression: ``"lz4"`` (fast), ``"zstd"`` (small) or None, which readers map into memory without a copy. It is
            left out of files in which it gains less than 5 %.
        wrote: told of the bytes of records, uncompressed, that were written.

    Raises:
        SealingError: there is something at the path, the folder cannot be written, the source cannot be read, or the
            compression is unknown.

    Example:
        >>> seal(trace_source, "run.arrow")  # doctest: +SKIP
    """
    path = os.fspath(path)
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        message = f"{path!r}: unknown compression {compression!r}; for Arrow there are {known}"
        raise SealingError(message, path=path)
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    try:
        _check_free(path)
        Path(temporary).mkdir()
        _write(source, Path(temporary), compression, wrote)
        _commit(temporary, path)
    except Exception as error:
        # Sources raise their own errors.
        reason = str(error) or type(error).__name__
        message = f"{path!r} cannot be sealed: {reason}"
        raise SealingError(message, path=path) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)


def _write(source: TraceSource, folder: Path, compression: str | None, wrote: Callable[[int], None]) -> None:
    streams = source.streams
    rows: dict[int, dict[str, Any]] = {}
    for file in layout.plan([(stream.site, stream.records) for stream in streams]):
        written = [(number, streams[number]) for number in file.streams]
        with _FileWriter(folder / file.name, file, _metadata(file, streams), compression) as writer:
            found = [_write_stream(writer, number, stream, wrote) for number, stream in written]
        for row in found:
            share = writer.nbytes * row["records"] // writer.rows if writer.rows else 0
            row |= {"nbytes": share if file.pooled else writer.nbytes}
            row |= {"leaf_nbytes": structure.canonical(writer.leaf_nbytes(streams[row["stream"]]))}
            row |= {"file": file.name, "batch_rows": file.batch_rows}
            row |= {"file_nbytes": writer.nbytes, "file_crc32c": writer.checksum}
            rows[row["stream"]] = row
    info = dataclasses.replace(source.info, format_version=FORMAT_VERSION)
    _write_index(folder, [rows[number] for number in range(len(rows))], structure.canonical(info.to_json()))


def _write_stream(
    writer: _FileWriter, number: int, stream: StreamSource, wrote: Callable[[int], None]
) -> dict[str, Any]:
    """Writes the records of a stream; returns what its row of streams.arrow says of it alone."""
    site, records = stream.site, stream.records
    first, steps, leaves = writer.rows, StepRange(), summarizers(stream)
    width = INDEX_DTYPE.itemsize + site.record_nbytes
    # Whole batches, so that none is put together from two blocks.
    size = writer.file.batch_rows * max(1, READ_BYTES // (writer.file.batch_rows * width))
    for start in range(0, records, size):
        stop = min(start + size, records)
        index = stream.index(start, stop)
        steps.add(index)
        arrays: dict[str, np.ndarray] = {}
        for place, (leaf, summarizer) in enumerate(zip(site.leaves, leaves, strict=True)):
            field = layout.Field(f"data_{place}", leaf.dtype, leaf.shape)
            arrays[field.name] = block = _checked(stream.leaf(place, start, stop), field, site.name, (start, stop))
            summarizer.add(block)
        for place, column in enumerate(site.columns):
            if not column.in_index:
                field = layout.Field(f"kwarg_{place}", column.dtype, column.shape)
                arrays[field.name] = _checked(stream.column(place, start, stop), field, site.name, (start, stop))
        writer.add(number, index, [arrays[field.name] for field in writer.file.fields])
        wrote((stop - start) * width)
    low, high = steps.range or (None, None)
    return {
        "stream": number,
        "tap": layout.text(site.name),
        "first_row": first,
        "records": records,
        "first_step": low,
        "last_step": high,
        "site": structure.canonical(site.to_json()),
        "summaries": structure.canonical([leaf.summary().to_json() for leaf in leaves]),
        "site_id": site.id,
    }


def _checked(block: np.ndarray, field: layout.Field, tap: str, records: tuple[int, int]) -> np.ndarray:
    start, stop = records
    if block.shape != (stop - start, *field.shape) or block.dtype != field.numpy:
        message = (
            f"tap {layout.text(tap)!r}, {field.name}: the source gave {block.dtype} of {block.shape} for records "
            f"{start}:{stop}, not {field.numpy} of {(stop - start, *field.shape)}"
        )
        raise ValueError(message)
    return np.ascontiguousarray(block)


class _FileWriter:
    """Writes one data file, in batches of ``file.batch_rows`` rows.

    Attributes:
        file: what is written.
        rows: how many rows were added.
        nbytes: the file's bytes; once closed.
        checksum: their CRC-32C.
    """

    def __init__(self, path: Path, file: layout.DataFile, metadata: dict[str, str], compression: str | None) -> None:
        self.file = file
        self.rows = 0
        self._path, self._compression = path, compression
        self._index_dtype = np.dtype([*INDEX_DTYPE.descr, ("stream", "<i4")]) if file.pooled else INDEX_DTYPE
        self._schema = pa.schema(columns.schema(file), metadata)
        self._pending: list[tuple[np.ndarray, list[np.ndarray]]] = []
        self._waiting = 0
        self._writer: Any = None
        self._raw = dict.fromkeys((field.name for field in file.fields), 0)
        self._stored: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._sink = _Sink(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush(everything=True)
                (self._writer or self._started(None)).close()
                self._sink.sync()
                place = Place(str(self._path.parent), self._path.name)
                self._stored = IpcFile(map_file(place)).stored_nbytes()
        finally:
            self._sink.close()
        self.nbytes, self.checksum = self._sink.nbytes, self._sink.checksum

    def add(self, stream: int, index: np.ndarray, arrays: list[np.ndarray]) -> None:
        """Takes the next records of a stream: index rows, and an array a field."""
        if self.file.pooled:
            rows = np.empty(len(index), self._index_dtype)
            for name in INDEX_DTYPE.names or ():
                rows[name] = index[name]
            rows["stream"] = stream
            index = rows
        self._pending.append((index, arrays))
        for field, array in zip(self.file.fields, arrays, strict=True):
            self._raw[field.name] += array.nbytes
        self._waiting += len(index)
        self.rows += len(index)
        self._flush()

    def leaf_nbytes(self, stream: StreamSource) -> list[int]:
        """Returns the bytes that each leaf of a stream takes in the closed file; in a pool, its share of them."""
        sizes: list[int] = []
        for place, leaf in enumerate(stream.site.leaves):
            field = layout.Field(f"data_{place}", leaf.dtype, leaf.shape)
            raw = stream.records * field.nbytes
            sizes.append(self._stored[field.name] * raw // self._raw[field.name] if raw else 0)
        return sizes

    def _flush(self, *, everything: bool = False) -> None:
        while self._waiting >= self.file.batch_rows or (everything and self._waiting):
            parts = list(self._take(min(self._waiting, self.file.batch_rows)))
            index = columns.joined([index for index, _ in parts])
            pieces = [[arrays[n] for _, arrays in parts] for n in range(len(self.file.fields))]
            arrays = columns.index_columns(index)
            for field, blocks in zip(self.file.fields, pieces, strict=True):
                arrays += columns.data_columns(field, blocks, lists=self.file.lists)
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            (self._writer or self._started(batch)).write_batch(batch)

    def _take(self, rows: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Yields the oldest rows that wait, and forgets them."""
        self._waiting -= rows
        while rows:
            index, arrays = self._pending.pop(0)
            if len(index) > rows:
                self._pending.insert(0, (index[rows:], [array[rows:] for array in arrays]))
                index, arrays = index[:rows], [array[:rows] for array in arrays]
            rows -= len(index)
            yield index, arrays

    def _started(self, first: pa.RecordBatch | None) -> Any:
        pays = self._compression is not None and first is not None and columns.shrinks(first, self._compression)
        options = pa.ipc.IpcWriteOptions(compression=self._compression if pays else None)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), self._schema, options=options)
        return self._writer


class _Sink:
    """A new file to which pyarrow writes; it counts bytes and keeps their CRC-32C."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self.nbytes = 0
        self.checksum = 0

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Writes all of some bytes; raises OSError."""
        view = memoryview(data).cast("B")
        self.checksum = crc32c.crc32c(view, self.checksum)
        self.nbytes += len(view)
        left = view
        while left:
            left = left[self._file.write(left) :]
        return len(view)

    def tell(self) -> int:
        """Returns how many bytes were written."""
        return self.nbytes

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def sync(self) -> None:
        """Makes the bytes permanent."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _write_index(folder: Path, rows: list[dict[str, Any]], run: str) -> None:
    """Writes streams.arrow and its checksum."""
    types = {"utf8": pa.string()}
    columns = [pa.field(name, types.get(kind) or getattr(pa, kind)()) for name, kind in layout.STREAM_COLUMNS.items()]
    schema = pa.schema(columns, {**_versions(), layout.RUN_KEY: run})
    options = pa.ipc.IpcWriteOptions(compression=_INDEX_COMPRESSION)
    sink = _Sink(folder / layout.STREAMS)
    with contextlib.closing(sink):
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
            for batch in _by_text(rows):
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
        sink.sync()
    checksum = _Sink(folder / layout.CHECKSUM)
    with contextlib.closing(checksum):
        checksum.write(f"{sink.checksum:08x}\n".encode())
        checksum.sync()


def _by_text(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    nbytes = 0
    for row in rows:
        nbytes += sum(4 * len(value) for value in row.values() if isinstance(value, str))
        if batch and nbytes > _TEXT_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(row)
    if batch:
        yield batch


def _versions() -> dict[str, str]:
    return {layout.FORMAT_KEY: layout.FORMAT, layout.VERSION_KEY: layout.VERSION}


def _metadata(file: layout.DataFile, streams: Any) -> dict[str, str]:
    """Returns what a data file says of itself, for people: the reader believes streams.arrow."""
    if file.pooled:
        return _versions()
    site = streams[file.streams[0]].site
    return {**_versions(), "tap": layout.text(site.name), "site": structure.canonical(site.to_json())}


def _check_free(path: str) -> None:
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):  # noqa: PTH112, PTH208
        raise FileExistsError(errno.EEXIST, "it exists", path)


def _commit(temporary: str, path: str) -> None:
    """Makes the folder permanent under its name; a crash leaves nothing there or all of it."""
    _sync(temporary)
    os.rename(temporary, path)  # noqa: PTH104  # paths are str here, as the user gave them
    _sync(os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
