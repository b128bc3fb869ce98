"""The process that repairs: ``python -m tracerec.salvaging.worker``.

It reads what nobody has vouched for, and writes with HDF5, which can crash or hang the process it is in when the disk
is full. Its order is a JSON object on standard input. It answers by lines on standard output: ``.`` while it works,
then one JSON object, with ``error`` and ``message`` where it cannot be done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from tracerec.errors import SealingError, TracerecError
from tracerec.salvaging.forms import Found
from tracerec.salvaging.orders import Answer, Order, answer
from tracerec.salvaging.rows import SalvagedSource, repaired_info, salvaged
from tracerec.salvaging.writing import write
from tracerec.verifying.live import open_sealed
from tracerec.verifying.merged import processes_of
from tracerec.verifying.report import Findings
from tracerec.verifying.sealed import attempts_of, check_opened

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main", "work"]

_TICK_SECONDS = 1.0


def work(order: Order, tick: Callable[[], None]) -> Answer:
    """Does what an order says.

    Args:
        order: the order.
        tick: called now and then.

    Raises:
        TracerecError: the source cannot be read, nothing in it is intact, or the target cannot be written.
    """
    if order.form in ("live", "parts"):
        from tracerec.salvaging.folder import repair_folder

        return repair_folder(order, tick)
    if (processes := processes_of(Found(order.source, "arrow" if order.form == "arrow" else "hdf5"))) is not None:
        from tracerec.salvaging.merged import repair_merged

        return repair_merged(order, processes, tick)
    return _sealed(order, tick)


def main() -> int:
    """Runs the process; returns its exit status."""
    order = Order.from_json(json.load(sys.stdin))
    # A library that prints must not disturb the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    last = [time.monotonic()]

    def tick() -> None:
        now = time.monotonic()
        if now - last[0] > _TICK_SECONDS:
            last[0] = now
            answers.write(".\n")
            answers.flush()

    try:
        done = work(order, tick)
    except (TracerecError, OSError) as error:
        answers.write(json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n")
        answers.flush()
        return 1
    answers.write(json.dumps(done.to_json()) + "\n")
    answers.flush()
    return 0


def _sealed(order: Order, tick: Callable[[], None]) -> Answer:
    """Salvages one file, or one Arrow folder."""
    findings = Findings(tick)
    opened = open_sealed(order.source, findings, deep=True)
    try:
        checks = check_opened(opened, order.source.name, findings)
        if not findings.counts and not order.always:
            return answer(findings, made=False, records=findings.records)
        attempts = None if opened.unchecked is None else attempts_of(opened.info, order.source.name, Findings())
        found = salvaged(checks, keep_suspect=order.keep_suspect, tick=tick, attempts=attempts)
        lost, notes = found.lost + opened.lost, found.notes
        if not found.streams and (lost or opened.losses or not opened.streams):
            message = f"{order.source}: nothing in it is known to be intact" + ("; " + notes[0] if notes else "")
            raise SealingError(message, path=str(order.source))
        if opened.unchecked is not None:
            notes.append(f"{order.source.name}: {opened.unchecked}")
        info = repaired_info(opened.info, found.streams, lost, [*opened.losses, *notes])
        compression = opened.compression if order.compression == "same" else order.compression
        write(SalvagedSource(str(order.source), info, found.streams), order.target, order.suffix, compression)
    finally:
        opened.close()
    return answer(findings, made=True, records=info.records, lost=lost, losses=opened.losses, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
