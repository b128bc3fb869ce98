"""A folder of parts and segments, repaired: of the sound folder that is made of it comes a recording."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from tracerec.formats.joined import JoinedSource
from tracerec.formats.live import open_live
from tracerec.journal import layout
from tracerec.journal.placing import place
from tracerec.journal.reading import JournalSource
from tracerec.salvaging.opened import OpenedStream, all_readable
from tracerec.salvaging.orders import Answer, Order, answer
from tracerec.salvaging.rows import SalvagedSource, repaired_info, salvaged
from tracerec.salvaging.sound import SoundFolder
from tracerec.salvaging.writing import write
from tracerec.verifying.live import read_folder
from tracerec.verifying.report import Findings
from tracerec.verifying.sealed import Before, check_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.formats.contract import RunInfo, TraceSource
    from tracerec.verifying.streams import StreamCheck

__all__ = ["repair_folder"]


def repair_folder(order: Order, tick: Callable[[], None]) -> Answer:
    """Repairs a folder; see `tracerec.salvaging.worker.work`."""
    findings = Findings(tick)
    folder = read_folder(order.source, findings)
    sound = SoundFolder(order, folder, findings)
    if order.form == "parts":
        _check_count(sound, folder.info, findings)
        if not findings.counts and not order.always:
            return answer(findings, made=False, records=findings.records)
    records = _Sealing(order, sound, findings).seal()
    lost = +sound.lost
    return answer(findings, made=True, records=records, lost=lost, losses=sound.losses, notes=sound.notes)


def _check_count(sound: SoundFolder, info: RunInfo | None, findings: Findings) -> None:
    """Compares how many records there are with how many the manifest says; what nothing else tells is lost."""
    with contextlib.closing(open_live(sound.path)) as source:
        records = sum(stream.records for stream in source.streams)
    if info is None or info.records == records + sound.lost.total():
        return
    message = f"the run says that it has {info.records} records; there are {records + sound.lost.total()}"
    findings.add("counts-true", layout.MANIFEST, message)
    missing = info.records - records - sound.lost.total()
    if missing > 0 and not sound.losses:
        sound.losses.append(f"{missing} records are missing that the manifest counts")


class _Sealing:
    """Makes a recording of a sound folder."""

    def __init__(self, order: Order, sound: SoundFolder, findings: Findings) -> None:
        self._order, self._sound, self._findings = order, sound, findings

    def seal(self) -> int:
        """Does it; returns how many records the recording has."""
        with contextlib.closing(open_live(self._sound.path)) as source:
            sorts = self._check_journals(source)
            info = self._info(source, source)
            size = sum(stream.nbytes for stream in source.streams)
            if sorts:
                info = self._write_sorted(source)
            elif self._order.form == "parts" or size > self._order.max_file_bytes:
                self._keep_parts(info)
            else:
                self._write(source, info)
        return info.records

    def _info(self, source: TraceSource, made: TraceSource) -> RunInfo:
        sound = self._sound
        return repaired_info(source.info, made.streams, +sound.lost, [*sound.losses, *sound.notes])

    def _check_journals(self, source: TraceSource) -> bool:
        """Checks the records of the segments; returns whether they cannot be taken as they are."""
        checks: list[StreamCheck] = []
        # Parts and segments alternate where sealing some of them failed: each comes after those before it alone.
        before = Before()
        for piece in _pieces(source):
            if isinstance(piece, JournalSource):
                checks += self._checked(piece, self._findings, before)
            else:
                _go_past(piece, before.last)
        return any(check.bad or not check.rising for check in checks)

    def _checked(self, piece: JournalSource, findings: Findings, before: Before) -> list[StreamCheck]:
        name = self._order.source.name
        streams = [OpenedStream(stream, name, all_readable, stored=False) for stream in piece.streams]
        return check_streams(streams, name, findings, piece.info, before)

    def _write(self, source: TraceSource, info: RunInfo) -> None:
        if self._order.suffix == ".h5":
            from tracerec.formats.hdf5.merge import merge

            compression = "lz4" if self._sound.compression == "default" else self._sound.compression
            merge(_pieces(source), self._order.target, info=info, compression=compression)
        else:
            whole = SalvagedSource(source.path, info, source.streams)
            write(whole, self._order.target, self._order.suffix, self._sound.compression)

    def _write_sorted(self, source: TraceSource) -> RunInfo:
        """Writes a recording whose journal has records that are no values, twice, or not in the order of arrival."""
        sound = self._sound
        pieces: list[TraceSource] = []
        before = Before()
        for piece in _pieces(source):
            if not isinstance(piece, JournalSource):
                _go_past(piece, before.last)
                pieces.append(piece)
                continue
            found = salvaged(
                self._checked(piece, Findings(), before),
                keep_suspect=False,
                tick=self._findings.tick,
                seen=sound.seen,
            )
            sound.lost += found.lost
            sound.notes += found.notes
            pieces.append(SalvagedSource(piece.path, piece.info, found.streams))
        joined = JoinedSource(source.path, source.info, pieces)
        info = self._info(source, joined)
        whole = SalvagedSource(source.path, info, joined.streams)
        write(whole, self._order.target, self._order.suffix, sound.compression)
        return info

    def _keep_parts(self, info: RunInfo) -> None:
        """Makes the folder itself the recording: parts alone, numbered anew without holes."""
        path, suffix = self._sound.path, self._order.suffix
        for segment in place(path, info.run_id, frozenset(layout.parts(path))).segments:
            with contextlib.closing(JournalSource(path, only=segment.number)) as source:
                write(source, layout.part_path(path, segment.number, suffix), suffix, self._sound.compression)
        for segment in layout.segments(path):
            segment.unlink()
        for number, part in enumerate(layout.parts(path).values()):
            # Upwards, so that each new name is free.
            part.rename(layout.part_path(path, number, part.suffix))
        layout.write_manifest(path, info, dataclasses.replace(layout.read_journal(path), first_segment=0))
        path.rename(self._order.target)


def _go_past(part: TraceSource, last: dict[int, int]) -> None:
    """Takes the arrival number of each site's last record in a part, by the site's id."""
    for stream in part.streams:
        if stream.records:
            arrival = int(stream.index(stream.records - 1, stream.records)["arrival"][0])
            last[stream.site.id] = max(arrival, last.get(stream.site.id, -1))


def _pieces(source: TraceSource) -> list[TraceSource]:
    return list(getattr(source, "sources", ())) or [source]
