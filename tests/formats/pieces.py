"""A trace in pieces: as parts, as segments of a journal, as a live folder of both."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tests.memory_source import MemorySource, MemoryStream
from tracerec.journal import layout
from tracerec.journal.writing import JournalWriter, SegmentHead

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracerec.formats.contract import RunInfo, StreamSource, TraceSource

__all__ = ["append", "split", "write_journal", "write_segment"]


def split(source: TraceSource, shares: Sequence[float]) -> list[MemorySource]:
    """Returns the records of a source in pieces; each has all streams, all but the first some perhaps without records.

    Args:
        source: the trace.
        shares: where to cut every stream, ascending, from 0 to 1.
    """
    pieces = []
    for low, high in zip([0, *shares], [*shares, 1], strict=True):
        streams = [_part(s, math.ceil(low * s.records), math.ceil(high * s.records)) for s in source.streams]
        pieces.append(MemorySource(streams, source.info))
    return pieces


def append(writer: JournalWriter, stream: StreamSource, records: int = 7) -> None:
    """Appends the frames of a stream, of so many records each."""
    site = stream.site
    for start in range(0, stream.records, records):
        stop = min(start + records, stream.records)
        rows = np.ascontiguousarray(stream.index(start, stop)).view(np.uint8).reshape(stop - start, -1)
        arrays = [stream.leaf(number, start, stop) for number in range(len(site.leaves))]
        arrays += [stream.column(n, start, stop) for n, column in enumerate(site.columns) if not column.in_index]
        writer.append(site, [rows.reshape(stop - start, 64), *map(np.ascontiguousarray, arrays)])


def write_journal(folder: Path, pieces: Sequence[TraceSource], info: RunInfo) -> None:
    """Writes a journal of one segment a piece. It is ended where the run was."""
    layout.write_manifest(folder, dataclasses.replace(info, ended=None))
    for number, piece in enumerate(pieces):
        write_segment(folder, number, piece, info if number == len(pieces) - 1 else None)


def write_segment(
    folder: Path, number: int, piece: TraceSource, ended: RunInfo | None = None, *, attempt: int = 0
) -> None:
    """Writes one segment; with an end frame where the run is given and ended."""
    run_id = layout.read_manifest(folder).run_id
    writer = JournalWriter(folder, head=SegmentHead(run_id, attempt), first=number)
    for stream in piece.streams:
        append(writer, stream)
    writer.flush()
    if ended is not None and ended.ended is not None:
        writer.end({"ended": ended.ended, "dropped": dict(ended.dropped), "high_water_bytes": ended.high_water_bytes})
    else:
        writer.close()


def _part(stream: StreamSource, start: int, stop: int) -> MemoryStream:
    site = stream.site
    return MemoryStream(
        site,
        stream.index(start, stop),
        tuple(stream.leaf(number, start, stop) for number in range(len(site.leaves))),
        tuple(None if c.in_index else stream.column(n, start, stop) for n, c in enumerate(site.columns)),
    )
