"""Merging: the parts of a recording become one HDF5 file, chunks copied as they are where that is possible.

A chunk can be copied when the whole has a chunk of the same rows: when the records before it fill whole chunks, and
shape and filters agree. All other records are read, and cut and compressed anew.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.reading import Hdf5Stream
from tracerec.formats.hdf5.seal import READ_BYTES, cut_block, reads, write_stream
from tracerec.formats.hdf5.writing import filters_for, new_file, new_merged_file
from tracerec.formats.joined import JoinedSource
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from tracerec.formats.contract import RunInfo, StreamSource, TraceSource
    from tracerec.formats.hdf5.codecs import Codec
    from tracerec.formats.hdf5.datasets import Grid
    from tracerec.formats.hdf5.writing import Chunk, FileWriter, StreamWriter
    from tracerec.formats.joined import JoinedStream
    from tracerec.formats.merged import Process

__all__ = ["Merged", "Recording", "merge", "merge_processes"]


@dataclasses.dataclass(slots=True)
class Merged:
    """How records got into a merged file.

    Attributes:
        copied: bytes of chunks, as stored, that were copied as they are.
        cut: bytes of records, uncompressed, that were read and cut into chunks anew.
        copied_records: bytes of records, uncompressed, in the chunks that were copied.
    """

    copied: int = 0
    cut: int = 0
    copied_records: int = 0


def merge(
    sources: Sequence[TraceSource],
    path: str | os.PathLike[str],
    *,
    info: RunInfo,
    compression: str | None = "lz4",
    before: Mapping[int, int] | None = None,
    in_memory: bool = False,
    wrote: Callable[[int], None] = lambda _: None,
) -> Merged:
    """Writes all records of several sources, one after the other, to one HDF5 file, which appears whole or not at all.

    The records are those that sealing the recording at once would store, bit for bit; chunks may be cut otherwise.
    Memory is bounded as in sealing.

    Args:
        sources: the pieces in order of their records: `tracerec.formats.hdf5.reading.Hdf5Source`, of which chunks can
            be copied, or any other. They are not closed.
        path: the file; an older one there is replaced.
        info: what is known of the run.
        compression: as `tracerec.formats.hdf5.seal.seal`.
        before: likewise; for streams that no source has as HDF5.
        in_memory: likewise.
        wrote: told of the bytes that were written.

    Returns:
        How much was copied.

    Raises:
        SealingError: the file cannot be written, a source cannot be read, or the compression is unknown.

    Example:
        >>> merge([first, second], "run.h5", info=first.info)  # doctest: +SKIP
        Merged(copied=1048576, cut=0, copied_records=2621440)
    """
    with new_file(os.fspath(path), compression, in_memory=in_memory, wrote=wrote) as file:
        return _write(file, sources, os.fspath(path), info, before)


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """The recording of one process, to be merged with those of others.

    Attributes:
        process: its number and name.
        sources: the pieces in order of their records, as `merge` takes them.
        info: what is known of it.
        compression: as `merge`.
    """

    process: Process
    sources: Sequence[TraceSource]
    info: RunInfo
    compression: str | None = "lz4"


def merge_processes(
    recordings: Sequence[Recording], path: str | os.PathLike[str], *, wrote: Callable[[int], None]
) -> Merged:
    """Writes the recordings of several processes to one HDF5 file, each into a group of its own, else as `merge`.

    Args:
        recordings: the recordings, in the order of their numbers.
        path: the file; an older one there is replaced.
        wrote: told of the bytes that were written.

    Raises:
        SealingError: as `merge`.
    """
    merged = Merged()
    with new_merged_file(os.fspath(path), wrote) as file:
        for each in recordings:
            writer = file.process(each.process, each.compression)
            done = _write(writer, each.sources, os.fspath(path), each.info, None)
            merged.copied, merged.cut = merged.copied + done.copied, merged.cut + done.cut
            merged.copied_records += done.copied_records
        file.finish()
    return merged


def _write(
    file: FileWriter, sources: Sequence[TraceSource], path: str, info: RunInfo, before: Mapping[int, int] | None
) -> Merged:
    merged = Merged()
    for stream in JoinedSource(path, info, sources).streams:
        if any(isinstance(piece, Hdf5Stream) for piece in stream.pieces):
            _write_stream(file, stream, merged)
        else:
            write_stream(file, stream, (before or {}).get(stream.site_id, 0))
            merged.cut += stream.records * stream.site.record_nbytes
    file.finish(info)
    return merged


def _write_stream(file: FileWriter, stream: JoinedStream, merged: Merged) -> None:
    site = stream.site
    out = file.stream(site)
    for number, (table, read) in enumerate(zip(layout.tables(site), reads(stream), strict=True)):
        try:
            _Table(file, stream, number, table, read, merged).write(out)
        except ValueError as error:
            message = f"tap {layout.attribute_text(site.name)!r}, {table.name}: {error}"
            raise ValueError(message) from error
    out.close(stream.records, stream.steps, list(stream.summaries()))


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """A piece whose chunks may be copied: its stream, its place in the whole, and how the dataset is cut there."""

    stream: Hdf5Stream
    first: int
    grid: Grid

    @property
    def ends(self) -> int:
        return self.first + self.stream.records


@dataclasses.dataclass
class _Table:
    """One dataset of the whole."""

    file: FileWriter
    stream: JoinedStream
    number: int
    table: layout.Table
    read: Callable[[int, int], np.ndarray]
    merged: Merged

    def __post_init__(self) -> None:
        self._shape = layout.stored_shape(self.stream.records, self.table.shape)
        self._itemsize = self.table.numpy.itemsize

    def write(self, out: StreamWriter) -> None:
        """Writes the dataset."""
        if 0 in self._shape:
            out.empty(self.table, self._shape)
            return
        pieces = [self._piece(*found) for found in zip(self.stream.pieces, self.stream.starts, strict=True)]
        chosen = self._chosen([piece for piece in pieces if piece is not None])
        if chosen is None:
            chunk = layout.chunk_shape(self._shape, self._itemsize)
            chunks = self._chunks(chunk, [None] * len(pieces))
            codec, chunks = self.file.compressed_first(chunks, self._itemsize)
        else:
            chunk, codec = chosen
            alike = chunk, filters_for(codec, chunk, self._itemsize)
            chunks = self._chunks(chunk, [p if p and (p.grid.chunk, p.grid.filters) == alike else None for p in pieces])
        out.table(self.table, self._shape, chunk, codec, chunks)

    def _piece(self, stream: StreamSource, first: int) -> _Piece | None:
        if not isinstance(stream, Hdf5Stream) or not stream.records:
            return None
        grid = stream.grid(self.number)
        return None if grid is None else _Piece(stream, first, grid)

    def _chosen(self, pieces: Sequence[_Piece]) -> tuple[tuple[int, ...], Codec | None] | None:
        """Returns the shape of chunks, and their codec, with which most records are copied; None: no record is."""
        rows: Counter[tuple[int, ...]] = Counter()
        plain = sum(piece.stream.records for piece in pieces if not piece.grid.filters)
        # Where most parts found that compression does not pay, the whole does.
        codec = None if 2 * plain > sum(piece.stream.records for piece in pieces) else self.file.codec
        for piece in pieces:
            chunk = piece.grid.chunk
            if self._is_good(chunk) and filters_for(codec, chunk, self._itemsize) == piece.grid.filters:
                rows[chunk] += self._copied_rows(piece)
        best = max(rows, key=rows.__getitem__, default=None)
        return (best, codec) if best is not None and rows[best] else None

    def _is_good(self, chunk: tuple[int, ...]) -> bool:
        """Returns whether the whole may have such chunks: not many small ones, and few rows to spare."""
        records, rows = self._shape[0], chunk[0]
        usual = layout.chunk_shape(self._shape, self._itemsize)
        fits = chunk[1:] == usual[1:] and math.prod(chunk) * self._itemsize <= layout.MAX_CHUNK
        return fits and 2 * rows >= usual[0] and -records % rows <= max(layout.WASTE * records, -records % usual[0])

    def _copied_rows(self, piece: _Piece) -> int:
        """Returns how many rows would be in chunks that are copied from a piece, if the whole had its chunks."""
        size, lead = piece.grid.chunk[0], piece.grid.lead
        begins = piece.first - lead
        if begins % size:
            return 0
        whole, rest = divmod(piece.ends - begins - (size if lead else 0), size)
        return max(0, whole) * size + (rest if piece.ends == self._shape[0] else 0)

    def _chunks(self, chunk: tuple[int, ...], pieces: Sequence[_Piece | None]) -> Iterator[Chunk]:
        """Yields all chunks of the whole, in row-major order; copied from the pieces that are given."""
        cut = 0
        for row in range(0, self._shape[0], chunk[0]):
            piece = pieces[bisect_right(self.stream.starts, row) - 1]
            if piece is not None and self._is_copyable(row, piece):
                yield from self._cut(cut, row, chunk)
                yield from self._copied(row, piece)
                cut = row + chunk[0]
        yield from self._cut(cut, self._shape[0], chunk)

    def _is_copyable(self, row: int, piece: _Piece) -> bool:
        """Returns whether the piece with a record has a chunk that begins with it and has the same records as here."""
        size = piece.grid.chunk[0]
        whole = row + size <= piece.ends or piece.ends == self._shape[0]
        return whole and (row - piece.first + piece.grid.lead) % size == 0

    def _copied(self, row: int, piece: _Piece) -> Iterator[Chunk]:
        """Yields the stored chunks of a row of chunks."""
        chunk = piece.grid.chunk
        mine = row - piece.first + piece.grid.lead
        for rest in itertools.product(*(range(0, n, c) for n, c in zip(self._shape[1:], chunk[1:], strict=True))):
            data = piece.stream.stored(self.number, (mine, *rest))
            self.merged.copied += len(data)
            yield (row, *rest), data
        self.merged.copied_records += min(chunk[0], self._shape[0] - row) * self._row_nbytes

    def _cut(self, start: int, stop: int, chunk: tuple[int, ...]) -> Iterator[Chunk]:
        """Yields the chunks of records that cannot be copied, read in blocks of whole chunks."""
        step = chunk[0] * max(1, READ_BYTES // (chunk[0] * self._row_nbytes))
        for row in range(start, stop, step):
            block = dtypes.as_bits(self.read(row, min(row + step, stop)))
            self.merged.cut += block.nbytes
            yield from cut_block(row, block, self._shape, chunk)

    @property
    def _row_nbytes(self) -> int:
        return math.prod(self._shape[1:]) * self._itemsize
