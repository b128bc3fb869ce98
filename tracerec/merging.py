"""``tracerec.merge``: several recordings, or one in many parts, become one that is read alike. Free of JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import uuid
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracerec.errors import SealingError, TraceError
from tracerec.formats.contract import RECORDING_NOTE, RunInfo
from tracerec.formats.joined import JoinedSource
from tracerec.journal.reading import JournalSource
from tracerec.model import INDEX_DTYPE
from tracerec.placing import move, remove, replace
from tracerec.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.formats.contract import TraceSource

__all__ = ["Compression", "Merge", "MergedProcess", "merge"]

Compression = Literal["lz4", "zstd", "gzip"]
_COMPRESSIONS = {".h5": ("same", "lz4", "zstd", "gzip", None), ".arrow": ("same", "lz4", "zstd", None)}

SCHEMA = "1.0"
"""The version of ``schemas/merge.schema.json``."""

_MERGED_WHILE_RUNNING = "the run was still being recorded when it was merged"
_SLACK = 1 << 20
"""Bytes that lists and tables of a file may take beside chunks."""


@dataclasses.dataclass(frozen=True, slots=True)
class MergedProcess:
    """One recording that was merged.

    Attributes:
        number: the number of its process.
        path: the recording.
        run_id: of its run.
        state: what became of it, as `tracerec.formats.contract.RunInfo.state`.
        records: how many records it has.
    """

    number: int
    path: str
    run_id: str
    state: str
    records: int


@dataclasses.dataclass(frozen=True, slots=True)
class Merge:
    """What was merged.

    Attributes:
        path: the file or folder.
        form: ``"hdf5"`` or ``"arrow"``.
        processes: the recordings, in the order of their numbers.
        records: how many records there are.
        taps: of how many taps.
        nbytes: bytes of the file, or of all files in the folder.
        losses: sentences about what the recordings had lost before, each with its name; empty when all is there.
    """

    path: str
    form: Literal["hdf5", "arrow"]
    processes: tuple[MergedProcess, ...]
    records: int
    taps: int
    nbytes: int
    losses: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, by ``schemas/merge.schema.json``."""
        return {
            "schema": SCHEMA,
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "processes": [dataclasses.asdict(process) for process in self.processes],
            "losses": list(self.losses),
        }


def merge(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    compression: Compression | Literal["same"] | None = "same",
    overwrite: bool = False,
    progress: bool | None = None,
) -> Merge:
    """Makes one recording of those of several processes, or one file of a folder of parts. The inputs stay as they are.

    Reading the result gives what reading the inputs together gives, record for record: each record keeps its process's
    number, and each process its own description, its program order and its numbers of devices and calls. Stored chunks
    are copied as they are, as far as they can be, and each is compared with its checksum. The result appears whole or
    not at all.

    Args:
        paths: as `tracerec.open` takes them: a pattern such as ``"run.*.h5"``, a list, a folder of parts, what a killed
            run left, or one recording.
        out: the file to make, ``run.h5``, or for an Arrow recording the folder, ``run.arrow``.
        compression: as `tracerec.record`, for what cannot be copied; ``"same"``: as each recording is compressed.
        overwrite: whether a recording at ``out`` is replaced.
        progress: whether to show a bar on standard error; None: on a terminal, when it takes more than a second.

    Returns:
        What was merged. Its ``losses`` say which inputs lacked records: killed runs, dropped records, damage.

    Raises:
        TraceNotFound, TraceFormatError, TraceError: the inputs cannot be opened together; as `tracerec.open`.
        SealingError: something is at ``out``, it cannot be written, or an input is damaged. Nothing was changed.

    Example:
        >>> import numpy as np, tracerec
        >>> for process in range(2):
        ...     with tracerec.record(f"run.{process}.h5"):
        ...         _ = tracerec.tap(np.float32(process), "loss", step=0)
        >>> tracerec.merge("run.*.h5", "run.h5").records
        2
        >>> [(r.process, float(r.value)) for r in tracerec.open("run.h5").records()]
        [(0, 0.0), (1, 1.0)]
    """
    from tracerec.trace.opening import open_sources

    target = Path(out)
    suffix = ".arrow" if target.suffix.lower() == ".arrow" else ".h5"
    if compression not in _COMPRESSIONS[suffix]:
        known = ", ".join(map(repr, _COMPRESSIONS[suffix]))
        message = f"{target}: unknown compression {compression!r}; there are {known}"
        raise SealingError(message, path=str(target))
    with contextlib.closing(open_sources(paths)) as source:
        pieces = list(_pieces(source))
        _check_place(target, pieces, overwrite=overwrite)
        made = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex}")
        try:
            _check_room(target, source)
            writing = _Writing(pieces, made, compression, several=_is_several(source))
            with Progress("merging", writing.total(suffix), show=progress) as bar:
                (writing.arrow if suffix == ".arrow" else writing.hdf5)(bar.advance)
            _put(made, target, overwrite=overwrite)
        except SealingError as error:
            raise SealingError(str(error).replace(str(made), str(target)), path=str(target)) from error
        finally:
            remove(made)
        return Merge(
            path=str(target),
            form="arrow" if suffix == ".arrow" else "hdf5",
            processes=tuple(piece.merged() for piece in pieces),
            records=sum(piece.records for piece in pieces),
            taps=len({stream.site.name for stream in source.streams}),
            nbytes=_size(target),
            losses=tuple(loss for piece in pieces for loss in piece.losses()),
        )


@dataclasses.dataclass(frozen=True)
class _Piece:
    """The recording of one process."""

    number: int
    name: str
    source: TraceSource

    @property
    def records(self) -> int:
        return sum(stream.records for stream in self.source.streams)

    @property
    def sources(self) -> Sequence[TraceSource]:
        """Its parts, of which chunks can be copied."""
        return self.source.sources if isinstance(self.source, JoinedSource) else (self.source,)

    @property
    def info(self) -> RunInfo:
        """What the result says of it: the same, but that it does not go on."""
        info = self.source.info
        notes = tuple(_MERGED_WHILE_RUNNING if note == RECORDING_NOTE else note for note in info.notes)
        return dataclasses.replace(info, notes=notes, records=self.records)

    def merged(self) -> MergedProcess:
        info = self.source.info
        return MergedProcess(self.number, self.source.path, info.run_id, info.state, self.records)

    def losses(self) -> Iterator[str]:
        """Yields what it had lost before it was merged, or will have, since it goes on."""
        info = self.source.info
        lost = sum(info.dropped.values())
        damaged = isinstance(self.source, (JoinedSource, JournalSource)) and self.source.damage
        if info.clean and not lost and not damaged:
            return
        yield from (f"{self.name}: {note}" for note in self.info.notes)
        if not info.notes:
            yield f"{self.name}: {f'{lost} records were not recorded' if lost else 'it did not end cleanly'}"

    def written(self, asked: str | None) -> tuple[Sequence[TraceSource], str | None]:
        """Returns what to write to HDF5, and how to compress it; chunks are copied where nothing else was asked for."""
        if asked in ("same", self.compression):
            return self.sources, self.compression
        # Chunks of a source that is joined are not looked for.
        return (JoinedSource(self.source.path, self.info, self.sources),), asked

    @cached_property
    def compression(self) -> str | None:
        """What its chunks are compressed with."""
        from tracerec.formats.hdf5.reading import Hdf5Source
        from tracerec.salvaging.hdf5 import grids_of
        from tracerec.salvaging.lists import compression_of

        sealed = [source for source in self.sources if isinstance(source, Hdf5Source)]
        return compression_of(grid for source in sealed for grid in grids_of(source)) if sealed else "lz4"


@dataclasses.dataclass(frozen=True)
class _Writing:
    """The writing of a result, in either form."""

    pieces: Sequence[_Piece]
    path: Path
    compression: str | None
    several: bool

    def total(self, suffix: str) -> int:
        """Returns about how many bytes the writers will tell of."""
        return sum(self._nbytes(piece, suffix) for piece in self.pieces)

    def _nbytes(self, piece: _Piece, suffix: str) -> int:
        streams = piece.source.streams
        if suffix == ".h5" or self._is_copied(piece):
            return sum(stream.nbytes for stream in streams)
        return sum(stream.records * (stream.site.record_nbytes + INDEX_DTYPE.itemsize) for stream in streams)

    def _is_copied(self, piece: _Piece) -> bool:
        return self.compression == "same" and hasattr(piece.source, "files")

    def _check(self, pieces: Sequence[_Piece]) -> None:
        """Raises SealingError for damaged Arrow files, whose checksums are not compared when they are read."""
        from tracerec.formats.arrow.reading import ArrowSource

        sources = [source for piece in pieces for source in piece.sources]
        for source in sources:
            if not isinstance(source, ArrowSource):
                continue
            for check in source.files:
                if (reason := source.damage(check)) is not None:
                    message = f"{self.path}: {source.path} is no intact trace: {reason}"
                    raise SealingError(message, path=str(self.path))

    def hdf5(self, wrote: Callable[[int], None]) -> None:
        """Writes one file."""
        from tracerec.formats.hdf5.merge import Recording, merge, merge_processes
        from tracerec.formats.merged import Process

        self._check(self.pieces)
        if not self.several:
            (piece,) = self.pieces
            sources, compression = piece.written(self.compression)
            merge(sources, self.path, info=piece.info, compression=compression, wrote=wrote)
            return
        recordings: list[Recording] = []
        for piece in self.pieces:
            sources, compression = piece.written(self.compression)
            recordings.append(Recording(Process(piece.number, piece.name), sources, piece.info, compression))
        merge_processes(recordings, self.path, wrote=wrote)

    def arrow(self, wrote: Callable[[int], None]) -> None:
        """Writes one folder."""
        from tracerec.formats.arrow.processes import Recording, merge_processes, write_one
        from tracerec.formats.merged import Process

        # Files that are copied are compared meanwhile.
        self._check([piece for piece in self.pieces if not self._is_copied(piece)])
        if not self.several:
            (piece,) = self.pieces
            write_one(_described(piece), self.path, self.compression, wrote)
            return
        recordings = [Recording(Process(p.number, p.name), _described(p), self.compression) for p in self.pieces]
        merge_processes(recordings, self.path, wrote=wrote)


def _described(piece: _Piece) -> TraceSource:
    """Returns the source of a recording with what is to be said of it."""
    if piece.info == piece.source.info:
        return piece.source
    return JoinedSource(piece.source.path, piece.info, [piece.source])


def _is_several(source: TraceSource) -> bool:
    from tracerec.trace.processes import ProcessesSource

    return isinstance(source, ProcessesSource)


def _pieces(source: TraceSource) -> Iterator[_Piece]:
    """Yields the recordings of all processes."""
    from tracerec.trace.processes import ProcessesSource

    if not isinstance(source, ProcessesSource):
        yield _Piece(0, Path(source.path).name, source)
        return
    for number, name, each in zip(source.numbers, source.names, source.sources, strict=True):
        yield _Piece(number, name, each)


def _check_place(target: Path, pieces: Sequence[_Piece], *, overwrite: bool) -> None:
    """Raises SealingError for what would fail at the end, or delete what is not meant."""
    from tracerec.salvaging.forms import find
    from tracerec.trace.inputs import files, in_the_way

    def refuse(reason: str) -> SealingError:
        return SealingError(f"{target} {reason}", path=str(target))

    if not target.parent.is_dir():
        message = f"cannot be written: there is no folder {target.parent}"
        raise refuse(message)
    reason = in_the_way(target, [path for piece in pieces for path in files(piece.source)])
    if reason is not None:
        message = f"{reason}; choose another name for the result"
        raise refuse(message)
    if not os.path.lexists(target):
        return
    if not overwrite:
        message = "exists; move it away, choose another name, or say overwrite (--overwrite) to replace it"
        raise refuse(message)
    try:
        find(target)
    except TraceError as error:
        message = "is no recording, so that it is not replaced; move it away, or choose another name"
        raise refuse(message) from error


def _check_room(target: Path, source: TraceSource) -> None:
    """Raises SealingError where the disk is too full: HDF5 can crash or hang on that."""
    free = shutil.disk_usage(target.parent).free
    size = sum(stream.nbytes for stream in source.streams) + _SLACK
    if free < size:
        message = f"{target}: the disk has {free:,} bytes left, and merging may need {size:,}"
        raise SealingError(message, path=str(target))


def _put(made: Path, target: Path, *, overwrite: bool) -> None:
    try:
        if overwrite and os.path.lexists(target):
            replace(made, target)
        else:
            move(made, target)
    except OSError as error:
        message = f"{target}: the result cannot be given its name: {error.strerror or error}"
        raise SealingError(message, path=str(target)) from error


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
