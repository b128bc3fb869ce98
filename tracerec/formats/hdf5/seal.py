"""Sealing: any source of records becomes one immutable HDF5 file.

Memory is bounded: a few blocks of `READ_BYTES`, or one record where that is more.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from typing import TYPE_CHECKING

import numpy as np

from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.writing import new_file, padded
from tracerec.protocol import dtypes
from tracerec.summaries import StepRange, summarizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracerec.formats.contract import StreamSource, TraceSource
    from tracerec.formats.hdf5.writing import Chunk, FileWriter, StreamWriter

__all__ = ["READ_BYTES", "cut_block", "reads", "seal", "write_stream"]

READ_BYTES = 8 << 20
"""Bytes of records read from the source at once."""


def seal(
    source: TraceSource,
    path: str | os.PathLike[str],
    *,
    compression: str | None = "lz4",
    before: Mapping[int, int] | None = None,
    in_memory: bool = False,
) -> None:
    """Writes all records of a source to an HDF5 file, which appears whole or not at all.

    The file is written beside its place, flushed to the disk, then renamed; an older file at ``path`` is
    replaced. The same records give the same bytes.

    Args:
        source: what to write; it is read stream by stream, leaf by leaf, in order, and not closed.
        path: the file.
        compression: ``"lz4"`` (bit-shuffled, fast), ``"zstd"`` (byte-shuffled, small), ``"gzip"`` (byte-shuffled,
            read by every HDF5 library without a plugin) or None. It is left out where it gains less than 5 %.
        before: for a part of a longer recording, how many records each site has in the parts before it, by the
            site's id. Long compressed streams then continue the grid of chunks there, so that most chunks are merged
            as they are (`tracerec.formats.hdf5.merge`). A wrong number costs speed alone.
        in_memory: whether HDF5 must not touch the disk; see `tracerec.formats.hdf5.writing.new_file`.

    Raises:
        SealingError: the file cannot be written, the source cannot be read, or the compression is unknown.

    Example:
        >>> seal(trace_source, "run.h5", compression="zstd")  # doctest: +SKIP
    """
    with new_file(os.fspath(path), compression, in_memory=in_memory) as file:
        for stream in source.streams:
            write_stream(file, stream, (before or {}).get(stream.site.id, 0))
        file.finish(source.info)


def write_stream(file: FileWriter, stream: StreamSource, before: int = 0) -> None:
    """Writes a stream, with summaries of what passes by; ``before`` as in `seal`, of this site."""
    site = stream.site
    steps = StepRange()
    leaves = summarizers(stream)
    watches = [steps.add, *(leaf.add for leaf in leaves)]
    out = file.stream(site)
    for table, read, watch in itertools.zip_longest(layout.tables(site), reads(stream), watches):
        try:
            _Table(file, table, stream.records, read, watch).write(out, before)
        except ValueError as error:
            message = f"tap {layout.attribute_text(site.name)!r}, {table.name}: {error}"
            raise ValueError(message) from error
    out.close(stream.records, steps.range, [leaf.summary() for leaf in leaves])


def reads(stream: StreamSource) -> Iterator[Callable[[int, int], np.ndarray]]:
    """Yields what reads the tables of a stream, in the order of `layout.tables`."""
    yield stream.index
    for number in range(len(stream.site.leaves)):
        yield lambda start, stop, number=number: stream.leaf(number, start, stop)
    for number, column in enumerate(stream.site.columns):
        if not column.in_index:
            yield lambda start, stop, number=number: stream.column(number, start, stop)


@dataclasses.dataclass(frozen=True)
class _Table:
    """One dataset to be made of records that are read in blocks; ``watch`` sees every block."""

    file: FileWriter
    table: layout.Table
    records: int
    read: Callable[[int, int], np.ndarray]
    watch: Callable[[np.ndarray], None] | None

    def write(self, out: StreamWriter, before: int) -> None:
        """Writes it; raises ValueError for a source that breaks its word."""
        shape, itemsize = layout.stored_shape(self.records, self.table.shape), self.table.numpy.itemsize
        if 0 in shape:
            for _ in self._blocks(max(1, self.records)):
                pass
            out.empty(self.table, shape)
            return
        lead = self._lead(shape, before)
        chunk = layout.full_chunk(shape, itemsize) if lead else layout.chunk_shape(shape, itemsize)
        shape = (lead + self.records, *shape[1:])
        step = chunk[0] * max(1, READ_BYTES // (math.prod(chunk[:1] + shape[1:]) * itemsize))
        chunks = itertools.chain.from_iterable(
            cut_block(start, block, shape, chunk) for start, block in self._blocks(step, lead)
        )
        if lead:
            codec = self.file.codec
        else:
            codec, chunks = self.file.compressed_first(chunks, itemsize)
        out.table(self.table, shape, chunk, codec, chunks, lead=lead)

    def _lead(self, shape: tuple[int, ...], before: int) -> int:
        """Returns how many rows to put before the records, so that their chunks are those of the whole recording.

        None are put where there are few chunks, or uncompressed ones: merging cuts those anew at little cost, while
        rows of zeros would take room.
        """
        itemsize = self.table.numpy.itemsize
        full = layout.full_chunk(shape, itemsize)
        lead = before % full[0]
        if not lead or self.records < _LEADING_CHUNKS * full[0]:
            return 0
        # In the first chunk are zeros: it does not tell whether the compression pays.
        piece = padded(self._stored(0, full[0]).reshape(full), full)
        return lead if self.file.pays(piece, itemsize) else 0

    def _blocks(self, step: int, lead: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """Yields first rows, multiples of ``step``, and blocks ``(n, *shape)`` of bits; the first begins with zeros."""
        for row in range(0, lead + self.records, step):
            start, stop = max(0, row - lead), min(row + step - lead, self.records)
            bits = self._stored(start, stop, watched=True)
            if row < lead:
                bits = np.concatenate([np.zeros((lead - row, *bits.shape[1:]), bits.dtype), bits])
            yield row, bits

    def _stored(self, start: int, stop: int, *, watched: bool = False) -> np.ndarray:
        """Returns records as bits; raises ValueError where the source gives something else."""
        block = np.ascontiguousarray(self.read(start, stop))
        expected = (stop - start, *self.table.shape)
        if block.shape != expected or block.dtype != self.table.numpy:
            message = (
                f"the source gave {block.dtype} of {block.shape} for records {start}:{stop}, "
                f"not {self.table.numpy} of {expected}"
            )
            raise ValueError(message)
        if watched and self.watch is not None:
            self.watch(block)
        return dtypes.as_bits(block)


_LEADING_CHUNKS = 2


def cut_block(start: int, block: np.ndarray, shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Chunk]:
    """Yields the corner and the elements, padded, of every chunk of a block, in row-major order."""
    block = block.reshape(len(block), *shape[1:])
    corners = itertools.product(*(range(0, n, c) for n, c in zip(block.shape, chunk, strict=True)))
    for corner in corners:
        piece = block[tuple(slice(low, low + c) for low, c in zip(corner, chunk, strict=True))]
        yield (start + corner[0], *corner[1:]), padded(piece, chunk)
