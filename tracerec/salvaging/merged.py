"""Salvaging a merged recording: of each process every record that is intact, merged anew."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from tracerec.errors import SealingError
from tracerec.salvaging.forms import Found
from tracerec.salvaging.orders import Answer, Order, answer
from tracerec.salvaging.rows import SalvagedSource, repaired_info, salvaged
from tracerec.verifying.merged import check_processes
from tracerec.verifying.report import Findings
from tracerec.verifying.sealed import attempts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.formats.merged import Process
    from tracerec.verifying.merged import CheckedProcess

__all__ = ["repair_merged"]


def repair_merged(order: Order, processes: Sequence[Process] | str, tick: Callable[[], None]) -> Answer:
    """Does what an order says, of a merged recording.

    Args:
        order: the order.
        processes: the processes that it lists, or what is wrong with its list.
        tick: called now and then.

    Raises:
        TracerecError: nothing in it is intact, or the target cannot be written.
    """
    found = Found(order.source, "arrow" if order.form == "arrow" else "hdf5")
    findings = Findings(tick)
    with contextlib.ExitStack() as stack:
        checked: list[CheckedProcess] = []
        for each in check_processes(found, processes, findings, deep=True):
            checked.append(each)
            if each.opened is not None:
                stack.callback(each.opened.close)
        if not findings.counts and not order.always:
            return answer(findings, made=False, records=findings.records)
        result = _Result(order, tick)
        for each in checked:
            result.take(each)
        result.write()
    return answer(
        findings, made=True, records=result.records, lost=result.lost, losses=result.losses, notes=result.notes
    )


class _Result:
    """What becomes of a damaged merged recording."""

    def __init__(self, order: Order, tick: Callable[[], None]) -> None:
        self._order, self._tick = order, tick
        self._kept: list[tuple[Process, SalvagedSource, str | None]] = []
        self.lost: Counter[str] = Counter()
        self.losses: list[str] = []
        self.notes: list[str] = []
        self.records = 0

    def take(self, checked: CheckedProcess) -> None:
        """Takes what is intact of a process."""
        process, opened = checked.process, checked.opened
        if opened is None or (opened.info is None and not opened.streams):
            self.losses.append(f"{process.name}: nothing of it can be opened")
            return
        name = self._order.source.name
        attempts = None if opened.unchecked is None else attempts_of(opened.info, name, Findings())
        found = salvaged(checked.checks, keep_suspect=self._order.keep_suspect, tick=self._tick, attempts=attempts)
        lost, notes = found.lost + opened.lost, found.notes
        if opened.unchecked is not None:
            notes.append(opened.unchecked)
        info = repaired_info(opened.info, found.streams, lost, [*opened.losses, *notes])
        self.lost += lost
        self.losses += [f"{process.name}: {loss}" for loss in opened.losses]
        self.notes += [f"{process.name}: {note}" for note in notes]
        self.records += info.records
        compression = opened.compression if self._order.compression == "same" else self._order.compression
        self._kept.append((process, SalvagedSource(str(self._order.source), info, found.streams), compression))

    def write(self) -> None:
        """Writes it; raises SealingError."""
        if not self._kept:
            message = f"{self._order.source}: nothing in it is known to be intact"
            raise SealingError(message, path=str(self._order.source))
        if self._order.suffix == ".arrow":
            from tracerec.formats.arrow.processes import Recording, merge_processes

            merge_processes(
                [
                    Recording(process, source, None if compression in ("default", "gzip") else compression)
                    for process, source, compression in self._kept
                ],
                self._order.target,
                wrote=lambda _: None,
            )
            return
        from tracerec.formats.hdf5.merge import Recording as Hdf5Recording
        from tracerec.formats.hdf5.merge import merge_processes as merge_hdf5

        merge_hdf5(
            [
                Hdf5Recording(process, (source,), source.info, "lz4" if compression == "default" else compression)
                for process, source, compression in self._kept
            ],
            self._order.target,
            wrote=lambda _: None,
        )
