"""Reading a journal: of a killed run, or of one that still runs, as it was at the moment of opening."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tracerec.errors import TraceError, TraceFormatError
from tracerec.formats.headers import parse_run
from tracerec.journal import placing
from tracerec.journal.access import Maps, SegmentBytes
from tracerec.journal.assembling import assemble
from tracerec.journal.contents import ROW_BYTES, row_sizes
from tracerec.journal.layout import MANIFEST, read_manifest
from tracerec.journal.outcome import Found, is_recording, run_info
from tracerec.journal.recovering import Kept, recovered
from tracerec.journal.recovery import Damage
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes
from tracerec.structure import canonical
from tracerec.summaries import summarizers

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from tracerec.formats.contract import RunInfo
    from tracerec.journal.assembling import StreamFrames
    from tracerec.journal.placing import PlacedSegment
    from tracerec.journal.recovery import Recovery
    from tracerec.statistics import LeafSummary

__all__ = ["Damage", "JournalSource", "JournalStream"]

_BLOCK_BYTES = 4 << 20

# How often a folder is looked at again from which files go while it is read, since they are being sealed.
_LOOKS = 10


class JournalStream:
    """All records of one site in a journal; implements `tracerec.formats.contract.StreamSource`.

    Args:
        site: the site.
        frames: where its frames are.
        segments: the segments that they are in.
    """

    def __init__(self, site: Site, frames: StreamFrames, segments: Sequence[SegmentBytes]) -> None:
        self.site = site
        self.records = int(frames.firsts[-1])
        self.nbytes = frames.nbytes
        self._frames = frames
        self._segments = segments
        # of one record in each table, and in all tables before it
        self._sizes = row_sizes(site)
        self._before = [0, *itertools.accumulate(self._sizes)]
        self._stored = {k: i for i, k in enumerate(k for k, c in enumerate(site.columns) if not c.in_index)}

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, computed from all records."""
        leaves = summarizers(self)
        for number, leaf in enumerate(leaves):
            for block in self._blocks(number):
                leaf.add(block)
        return [leaf.summary() for leaf in leaves]

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes of a leaf's arrays in the frames."""
        return self.records * self._sizes[1 + number]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table."""
        return self._range(0, start, stop, (ROW_BYTES,), np.dtype("uint8")).view(INDEX_DTYPE).reshape(-1)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` as ``(stop - start, *shape)``."""
        leaf = self.site.leaves[number]
        return self._range(1 + number, start, stop, leaf.shape, dtypes.from_name(leaf.dtype))

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` as ``(stop - start, *shape)``."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(column.dtype)
        at = 1 + len(self.site.leaves) + self._stored[number]
        return self._range(at, start, stop, column.shape, dtypes.from_name(column.dtype))

    def _blocks(self, number: int) -> Iterator[np.ndarray]:
        size = max(1, _BLOCK_BYTES // max(1, self.site.record_nbytes))
        for start in range(0, self.records, size):
            yield self.leaf(number, start, min(start + size, self.records))

    def _range(self, table: int, start: int, stop: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        pieces = self._pieces(table, start, stop) if start < stop and self._sizes[table] else []
        # one piece is given as it is mapped, several are copied into one
        data = pieces[0] if len(pieces) == 1 else bytearray().join(pieces)
        return np.frombuffer(data, np.uint8).view(dtype).reshape(max(stop - start, 0), *shape)

    def _pieces(self, table: int, start: int, stop: int) -> list[Any]:
        """Returns the bytes of a table's records, frame by frame."""
        found = self._frames
        low = int(np.searchsorted(found.firsts, start, "right")) - 1
        high = int(np.searchsorted(found.firsts, stop, "left"))
        before, size = self._before[table], self._sizes[table]
        if high == low + 1:
            first, behind = map(int, found.firsts[low : high + 1])
            at = int(found.payloads[low]) + (behind - first) * before - first * size
            return self._segments[found.segments[low]].read([at + start * size], [at + stop * size])
        firsts = found.firsts[low : high + 1]
        tables = found.payloads[low:high] + np.diff(firsts) * before
        starts = tables + (np.maximum(firsts[:-1], start) - firsts[:-1]) * size
        stops = tables + (np.minimum(firsts[1:], stop) - firsts[:-1]) * size
        segments = found.segments[low:high]
        cuts = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), high - low]
        pieces: list[Any] = []
        for begin, end in itertools.pairwise(cuts):
            segment = self._segments[int(segments[begin])]
            pieces += segment.read(starts[begin:end].tolist(), stops[begin:end].tolist())
        return pieces


class JournalSource:
    """A live folder, opened for reading; implements `tracerec.formats.contract.TraceSource`.

    Every frame's checksum is verified at opening. What cannot be read is in `damage`, and `info.notes` says so.

    Args:
        folder: the live folder, such as ``run.h5.live``.
        end: what the end frame should have said, where it could not be written.
        skip: numbers of segments that are not read, since their parts are.
        only: the number of the one segment that is read, and that `damage` is about.
        running: whether a process is still recording to the folder, so that the end of the newest segment is not yet
            final; None: whether the process that began it holds its lock.
        earlier: the same folder, opened before: what was found in it is not read again.

    Attributes:
        damage: the places that could not be read as they were written, and the files that are not what their names say.
        kept: what was found in the segments, for whoever opens the folder again; None where they do not grow.
        sealed: numbers of segments that are gone, although they were not to be skipped, and whose parts are there: they
            were sealed a moment ago.

    Raises:
        TraceNotFound, TraceFormatError: as `tracerec.journal.layout.read_manifest`, and a segment cannot be read.

    Example:
        >>> with JournalSource("run.h5.live") as source:  # doctest: +SKIP
        ...     source.streams[0].leaf(0, 0, 10)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        end: dict[str, Any] | None = None,
        skip: Collection[int] = frozenset(),
        only: int | None = None,
        running: bool | None = None,
        earlier: JournalSource | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._maps = Maps()
        manifest = _checked_manifest(self._folder)
        # asked first: what a process that ends meanwhile wrote is then all there
        running = end is None and is_recording(self._folder, manifest.pid) if running is None else running
        places, self._segments = self._opened(manifest.run_id, skip, only, running=running)
        recovery = recovered(places.segments, self._segments, earlier.kept if earlier is not None else None)
        self.kept = Kept.of(recovery, places.segments, self._segments)
        streams = assemble(recovery, self._segments, places.segments)
        ends = {places.segments[number].attempt: summary for number, summary in recovery.ends}
        _report_empty(recovery, places.segments, ends)
        self.streams: Sequence[JournalStream] = [JournalStream(*stream, self._segments) for stream in streams]
        self.damage: tuple[Damage, ...] = (*places.damage, *recovery.damage(self._segments))
        self.sealed: frozenset[int] = places.sealed
        found = Found(
            ends=ends,
            attempts=places.attempts,
            records=sum(stream.records for stream in self.streams),
            notes=(*_notes(places), *map(str, self.damage)),
        )
        # again: it must still be there, since a recording that is closed deletes its journal in any order
        self.info: RunInfo = run_info(_checked_manifest(self._folder), found, end=end, running=running)

    @property
    def path(self) -> str:
        """The live folder."""
        return str(self._folder)

    def close(self) -> None:
        """Lets go of the files once the arrays read from them are gone; reading then raises TraceError."""
        self._maps.close()
        for segment in self._segments:
            segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(
        self, run_id: str, skip: Collection[int], only: int | None, *, running: bool
    ) -> tuple[placing.Places, list[SegmentBytes]]:
        """Returns the segments in their places, and opened; looks again when one goes meanwhile."""
        for _ in range(_LOOKS):
            try:
                places = placing.place(self._folder, run_id, skip, only)
                return places, [
                    SegmentBytes(placed.path, self._maps, growing=running and placed.newest)
                    for placed in places.segments
                ]
            except FileNotFoundError:
                read_manifest(self._folder)
            except OSError as error:
                message = f"{self._folder}: cannot be read: {error.strerror or error}"
                raise TraceFormatError(message, path=str(self._folder)) from error
        message = f"{self._folder}: its segments go faster than they can be opened; try again"
        raise TraceError(message, path=str(self._folder))


def _checked_manifest(folder: Path) -> RunInfo:
    info = read_manifest(folder)
    try:
        return parse_run(canonical(info.to_json()), info.format_version)
    except (ValueError, RecursionError) as error:
        message = f"{folder / MANIFEST}: damaged manifest: {error}"
        raise TraceFormatError(message, path=str(folder)) from error


def _notes(places: placing.Places) -> Iterator[str]:
    if places.sealed:
        names = ", ".join(map(str, sorted(places.sealed)))
        yield f"segments {names} were sealed while the journal was opened, and are not read"


def _report_empty(recovery: Recovery, segments: Sequence[PlacedSegment], ends: Mapping[int, Mapping[str, Any]]) -> None:
    """Adds segments that have nothing in them to the damaged places, but where they may be like that."""
    for places, segment in zip(recovery.places, segments, strict=True):
        # One that could not be written to is left empty, and the end of the attempt is in the next.
        failed = ends.get(segment.attempt, {}).get("failure")
        if not (segment.nbytes or segment.last or failed):
            places.add(0, 0, "it is empty")
