"""Reading a journal: of a killed run, or of one that still runs, as it was at the moment of opening."""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import lanes
from tracerec.errors import FrameError, TraceFormatError
from tracerec.formats.contract import RECORDING_NOTE
from tracerec.journal.layout import read_manifest, segments
from tracerec.journal.lock import is_locked
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes, frames
from tracerec.summaries import summarizers

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.formats.contract import RunInfo
    from tracerec.statistics import LeafSummary

__all__ = ["JournalSource", "JournalStream"]

_BLOCK_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """One frame of a stream: records ``first`` to ``first + count``."""

    buffer: Any
    head: frames.FrameHead
    first: int
    count: int

    def array(self, number: int) -> np.ndarray:
        dtype, shape = self.head.specs[number]
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        at = self.head.offset(number)
        return np.frombuffer(self.buffer[at : at + size], np.uint8).view(dtype).reshape(shape)


class JournalStream:
    """All records of one site in a journal; implements `tracerec.formats.contract.StreamSource`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.records = 0
        self.nbytes = 0
        self._pieces: list[_Piece] = []
        self._stored = {k: i for i, k in enumerate(k for k, c in enumerate(site.columns) if not c.in_index)}

    def add(self, buffer: Any, head: frames.FrameHead) -> None:
        """Adds a frame; raises FrameError when its arrays are not those of the site."""
        shape = head.specs[0][1] if head.specs else ()
        count = shape[0] if shape else 0
        expected = [(np.dtype("uint8"), (count, INDEX_DTYPE.itemsize))]
        expected += [(dtypes.from_name(x.dtype), (count, *x.shape)) for x in self._arrays()]
        if list(head.specs) != expected:
            message = f"frame at byte {head.start}: its arrays are not those of tap {self.site.name!r}"
            raise FrameError(message)
        self._pieces.append(_Piece(buffer, head, self.records, count))
        self.records += count
        self.nbytes += head.end - head.start

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, computed from all records."""
        leaves = summarizers(self)
        for number, leaf in enumerate(leaves):
            for block in self._blocks(number):
                leaf.add(block)
        return [leaf.summary() for leaf in leaves]

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes of a leaf's arrays in the frames."""
        leaf = self.site.leaves[number]
        return self.records * math.prod(leaf.shape) * dtypes.from_name(leaf.dtype).itemsize

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table."""
        rows = self._range(0, start, stop, (INDEX_DTYPE.itemsize,), np.dtype("uint8"))
        return np.ascontiguousarray(rows).view(INDEX_DTYPE).reshape(stop - start)

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

    def _arrays(self) -> list[Any]:
        return [*self.site.leaves, *(c for c in self.site.columns if not c.in_index)]

    def _blocks(self, number: int) -> Iterator[np.ndarray]:
        size = max(1, _BLOCK_BYTES // max(1, self.site.record_nbytes))
        for start in range(0, self.records, size):
            yield self.leaf(number, start, min(start + size, self.records))

    def _range(self, number: int, start: int, stop: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        parts = [
            piece.array(number)[max(0, start - piece.first) : stop - piece.first]
            for piece in self._overlapping(start, stop)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, *shape), dtype)

    def _overlapping(self, start: int, stop: int) -> list[_Piece]:
        from bisect import bisect_left, bisect_right

        if start >= stop:
            return []
        first = bisect_right(self._pieces, start, key=lambda p: p.first) - 1
        last = bisect_left(self._pieces, stop, key=lambda p: p.first)
        return self._pieces[first:last]


class JournalSource:
    """A live folder, opened for reading; implements `tracerec.formats.contract.TraceSource`.

    Every frame's checksum is verified at opening. The first bad frame ends what is read; `info.notes` says so.

    Args:
        folder: the live folder, such as ``run.h5.live``.
        end: what the end frame should have said, where it could not be written.

    Raises:
        TraceNotFound, TraceFormatError: as `tracerec.journal.layout.read_manifest`.
    """

    def __init__(self, folder: str | os.PathLike[str], *, end: dict[str, Any] | None = None) -> None:
        self._folder = Path(folder)
        self._manifest = read_manifest(self._folder)
        self._streams: dict[int, JournalStream] = {}
        self._end: dict[str, Any] | None = None
        self._notes: list[str] = []
        self._maps: list[mmap.mmap] = []
        self._definitions: dict[int, Site] = {}
        for path in segments(self._folder):
            if not self._read_segment(path):
                break
        if self._end is None:
            self._end = end

    @property
    def path(self) -> str:
        """The live folder."""
        return str(self._folder)

    @property
    def streams(self) -> Sequence[JournalStream]:
        """The streams, in first-seen order."""
        return list(self._streams.values())

    @property
    def info(self) -> RunInfo:
        """The run information, completed from the end frame when there is one."""
        end = self._end or {}
        missing = Counter[str](end.get("dropped", {})) + Counter[str](end.get("lost", {}))
        notes = list(self._notes)
        if self._end is None:
            running = is_locked(self._folder)
            notes.insert(0, RECORDING_NOTE if running else "the run did not end cleanly")
        elif end.get("failure"):
            notes.insert(0, f"recording stopped early: {end['failure']}")
        if missing:
            count = missing.total()
            are = "1 record is missing: it was" if count == 1 else f"{count} records are missing: they were"
            notes.append(f"{are} dropped or could not be written")
        return dataclasses.replace(
            self._manifest,
            clean=self._end is not None and not end.get("failure"),
            ended=end.get("ended"),
            records=sum(stream.records for stream in self._streams.values()),
            dropped=dict(missing),
            high_water_bytes=end.get("high_water_bytes", 0),
            notes=tuple(notes),
        )

    def close(self) -> None:
        """Lets go of the files once the arrays read from them are gone."""
        self._streams.clear()
        self._maps.clear()

    def _read_segment(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                if not file.seek(0, 2):
                    return True
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            message = f"{path}: cannot be read: {error}"
            raise TraceFormatError(message, path=str(self._folder)) from error
        self._maps.append(mapped)
        view = memoryview(mapped)
        offset = 0
        try:
            for head in frames.heads(view):
                self._handle(view, head)
                offset = head.end
        except FrameError as error:
            self._notes.append(f"{path.name}: {len(view) - offset} bytes at the end were not read: {error}")
            return False
        return True

    def _handle(self, view: memoryview, head: frames.FrameHead) -> None:
        frame = frames.check(view, head)
        if head.consumer_id == frames.END:
            self._end = _parse(frame, head, dict)
        elif head.consumer_id == frames.DEFINE:
            site = _parse(frame, head, _site)
            self._definitions[site.id] = site
        else:
            self._stream(head).add(view, head)

    def _stream(self, head: frames.FrameHead) -> JournalStream:
        stream = self._streams.get(head.consumer_id)
        if stream is None:
            site = self._definitions.get(head.consumer_id)
            if site is None:
                message = f"frame at byte {head.start}: site {head.consumer_id:#018x} was never defined"
                raise FrameError(message)
            stream = self._streams[head.consumer_id] = JournalStream(site)
        return stream


def _site(data: Any) -> Site:
    site = Site.from_json(data)
    lanes.check(site)
    return site


def _parse(frame: frames.Frame, head: frames.FrameHead, build: Callable[[Any], Any]) -> Any:
    try:
        return build(json.loads(bytes(frame.arrays[0])))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        message = f"frame at byte {head.start}: not the JSON it should hold: {error}"
        raise FrameError(message) from error
