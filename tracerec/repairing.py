"""``tracerec.repair``: what a killed run left is sealed, what is damaged is salvaged, and the result is verified.

The work is done by a process of its own (`tracerec.salvaging.worker`): HDF5 can crash or hang the process it is in when
the disk is full. Nothing is deleted before what replaces it is verified and has its name. Free of JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracerec.errors import SealingError, TraceError
from tracerec.journal.layout import read_journal
from tracerec.journal.lock import JournalLock, is_locked
from tracerec.placing import free_name, move, remove, replace
from tracerec.salvaging.forms import Found, find
from tracerec.salvaging.orders import Answer, Order
from tracerec.salvaging.process import run_order
from tracerec.verifying import Verification, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracerec.verifying import Fault

__all__ = ["Compression", "Repair", "repair"]

Compression = Literal["lz4", "zstd", "gzip"]
_COMPRESSIONS = {".h5": ("lz4", "zstd", "gzip", None), ".arrow": ("lz4", "zstd", None)}

MAX_FILE_BYTES = 16 << 30
"""A recording that is larger is made a folder of parts, as closing it would have."""

SCHEMA = "1.0"
"""The version of ``schemas/repair.schema.json``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """What became of a recording that was to be repaired.

    Attributes:
        path: the file or folder that was looked at.
        action: ``"none"``: it was intact, and nothing was done; ``"sealed"``: the journal of a killed run became a
            recording; ``"salvaged"``: what is intact of a damaged one became another; ``"refused"``: the result was
            found faulty, and was deleted again.
        result: the new recording; None where there is none.
        kept_aside: where the damaged journal is that the result was made of; None where nothing was moved.
        records: how many records the recording has.
        lost: how many are left out because they were damaged, by tap name; ``"?"`` where it is not known of which.
        losses: sentences about what is lost of which not even the number of records is known.
        notes: sentences about what else should be known, such as bytes of the last frame that a kill cut off.
        faults: what was wrong; at most 1,000.
        fault_count: how many faults there were.
        verification: what verifying the result found; None where there is none.
    """

    path: str
    action: Literal["none", "sealed", "salvaged", "refused"]
    result: str | None
    kept_aside: str | None
    records: int
    lost: Mapping[str, int]
    losses: tuple[str, ...]
    notes: tuple[str, ...]
    faults: tuple[Fault, ...]
    fault_count: int
    verification: Verification | None

    @property
    def whole(self) -> bool:
        """Whether no record was lost to damage."""
        return not sum(self.lost.values()) and not self.losses

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, by ``schemas/repair.schema.json``."""
        return {
            "schema": SCHEMA,
            "path": self.path,
            "action": self.action,
            "result": self.result,
            "kept_aside": self.kept_aside,
            "whole": self.whole,
            "records": self.records,
            "lost": dict(self.lost),
            "losses": list(self.losses),
            "notes": list(self.notes),
            "fault_count": self.fault_count,
            "faults": [fault.to_json() for fault in self.faults],
            "verification": None if self.verification is None else self.verification.to_json(),
        }


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    in_place: bool = False,
    compression: Compression | Literal["same"] | None = "same",
    keep_suspect: bool = False,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Repair:
    """Makes a sound recording of one that is damaged, or of the journal that a killed run left.

    A journal (``run.h5.live``) becomes the recording that it was for (``run.h5``), and is deleted once that is
    verified; where records were lost to damage it is kept aside. Of a damaged recording every record that is intact,
    with all its leaves, goes into a new one; the damaged one is left as it is.

    Args:
        path: the recording, or the live folder.
        out: what to make; None: ``run.h5`` for the journal ``run.h5.live``, whatever it was recorded as, and
            ``run.repaired.h5`` for a damaged recording. Nothing may be there.
        in_place: the result takes the place of the damaged recording, which is deleted; a damaged journal is deleted,
            too. It happens at once, after the result was verified.
        compression: as `tracerec.record`; ``"same"``: as it was, as far as that can be told.
        keep_suspect: keep records, too, that can be read but of which some may be wrong: an Arrow file has one checksum
            for all its records.
        max_file_bytes: the journal of a larger recording becomes a folder of parts.

    Returns:
        What was done. Its ``whole`` says that no record was lost, its ``verification`` that the result is sound.

    Raises:
        TraceNotFound: there is nothing at the path.
        TraceFormatError: what is there is no recording, is of a newer major version, or may not be read.
        TraceError: the recording is still running.
        SealingError: the result cannot be written, or something is in its place already; nothing was changed.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("run.h5"):
        ...     _ = tracerec.tap(np.float32(0.5), "loss", step=0)
        >>> tracerec.repair("run.h5").action
        'none'
    """
    found = find(path)
    if in_place and out is not None:
        message = f"{found.path}: in_place=True and out= exclude each other"
        raise SealingError(message, path=str(found.path))
    if found.form == "live":
        return _with_lock(found, out, in_place=in_place, **_options(compression, keep_suspect, max_file_bytes))
    suffix = ".arrow" if found.form == "arrow" or _has_arrow_parts(found) else ".h5"
    target = Path(out) if out is not None else _beside(found.path)
    return _Repairing(found, target, suffix, in_place=in_place).run(
        **_options(compression, keep_suspect, max_file_bytes)
    )


def _options(compression: str | None, keep_suspect: bool, max_file_bytes: int) -> dict[str, Any]:  # noqa: FBT001
    return {"compression": compression, "keep_suspect": keep_suspect, "max_file_bytes": max_file_bytes}


def _with_lock(found: Found, out: str | os.PathLike[str] | None, *, in_place: bool, **options: Any) -> Repair:
    """Repairs a live folder that no process records into, and that none can take up meanwhile."""
    folder = found.path
    running = f"{folder} is still being recorded into; it is sealed when its program closes the recording"
    if is_locked(folder):
        raise TraceError(running, path=str(folder))
    try:
        lock = JournalLock(folder)
    except BlockingIOError:
        raise TraceError(running, path=str(folder)) from None
    except OSError as error:
        message = f"{folder} cannot be locked: {error.strerror or error}"
        raise SealingError(message, path=str(folder)) from error
    try:
        target = Path(out) if out is not None else _target_of(folder)
        if out is None and (left := _left_behind(folder, target)) is not None:
            return left
        suffix = ".arrow" if target.suffix.lower() == ".arrow" else ".h5"
        return _Repairing(found, target, suffix, in_place=in_place).run(**options)
    finally:
        lock.forget()


def _left_behind(folder: Path, target: Path) -> Repair | None:
    """Deletes a journal whose recording is whole: closing it was interrupted at its last step.

    Returns:
        What was done; None where the journal is needed, or it cannot be told.
    """
    if not os.path.lexists(target):
        return None
    try:
        whole, rest = verify(target), verify(folder)
    except TraceError:
        return None
    if not whole.ok or rest.run_id is None or rest.run_id != whole.run_id or rest.records > whole.records:
        return None
    shutil.rmtree(folder)
    note = f"{target} was there, and is whole: the journal was what an interrupted closing had left, and was deleted"
    return Repair(
        path=str(folder),
        action="sealed",
        result=str(target),
        kept_aside=None,
        records=whole.records,
        lost={},
        losses=(),
        notes=(note,),
        faults=(),
        fault_count=0,
        verification=whole,
    )


class _Repairing:
    """One repair: an order is carried out, the result verified, and then put into its place."""

    def __init__(self, found: Found, target: Path, suffix: str, *, in_place: bool) -> None:
        self._found, self._target, self._suffix, self._in_place = found, target, suffix, in_place
        self._live = found.form == "live"
        name = f"{target.name}.tmp-{uuid.uuid4().hex}"
        self._made, self._work = target.with_name(name), target.with_name(f"{name}-parts")

    def run(self, **options: Any) -> Repair:
        """Does it."""
        self._check(options["compression"])
        order = Order(self._found.path, self._found.form, self._made, self._work, self._suffix, **options)
        try:
            answer = self._carried_out(order)
            if not answer.made:
                return self._repair(answer, "none", None, None)
            verification = verify(self._made)
            if not _is_sound(verification, answer):
                return self._repair(answer, "refused", None, verification)
            aside = self._commit(intact=not answer.fault_count)
        finally:
            remove(self._made)
            remove(self._work)
        verification = dataclasses.replace(verification, path=str(self._place))
        return self._repair(answer, "sealed" if self._live else "salvaged", aside, verification)

    def _carried_out(self, order: Order) -> Answer:
        try:
            return run_order(order)
        except (SealingError, TraceError) as error:
            # What was written, and read meanwhile, had names of its own.
            message = (
                str(error).replace(str(self._work), str(self._found.path)).replace(str(self._made), str(self._place))
            )
            raise type(error)(message, path=error.path) from error

    @property
    def _place(self) -> Path:
        return self._found.path if self._in_place and not self._live else self._target

    def _check(self, compression: str | None) -> None:
        """Raises SealingError for what would fail at the end."""
        if compression not in ("same", *_COMPRESSIONS[self._suffix]):
            known = ", ".join(map(repr, _COMPRESSIONS[self._suffix]))
            message = f"{self._target}: unknown compression {compression!r}; there are {known}"
            raise SealingError(message, path=str(self._target))
        if os.path.lexists(self._target) and self._place == self._target:
            message = f"{self._target} exists; move it away, or choose another name with out= (--out)"
            raise SealingError(message, path=str(self._target))
        if not self._target.parent.is_dir():
            message = f"{self._target}: there is no folder {self._target.parent}"
            raise SealingError(message, path=str(self._target))

    def _commit(self, *, intact: bool) -> Path | None:
        """Gives the result its name; returns where the damaged journal is now, if it was kept."""
        try:
            if self._place != self._target:
                replace(self._made, self._place)
                return None
            move(self._made, self._target)
            if not self._live:
                return None
            if intact or self._in_place:
                remove(self._found.path)
                return None
            aside = free_name(self._target.with_name(f"{self._target.name}.damaged"))
            self._found.path.rename(aside)
        except OSError as error:
            message = f"{self._place}: the result cannot be given its name: {error.strerror or error}"
            raise SealingError(message, path=str(self._place)) from error
        return aside

    def _repair(
        self,
        answer: Answer,
        action: Literal["none", "sealed", "salvaged", "refused"],
        aside: Path | None,
        verification: Verification | None,
    ) -> Repair:
        notes = answer.notes
        if action in ("sealed", "salvaged") and verification is not None and not verification.ok:
            notes = (*notes, f"kept as it was recorded, although {', '.join(verification.counts)} does not hold")
        return Repair(
            path=str(self._found.path),
            action=action,
            result=str(self._place) if action in ("sealed", "salvaged") else None,
            kept_aside=None if aside is None else str(aside),
            records=answer.records,
            lost=answer.lost,
            losses=answer.losses,
            notes=notes,
            faults=answer.faults,
            fault_count=answer.fault_count,
            verification=verification,
        )


def _is_sound(verification: Verification, answer: Answer) -> bool:
    """Returns whether a result has no fault but that of numbers which were recorded so, and were kept."""
    recorded = {fault.invariant for fault in answer.faults} & _KEPT
    return set(verification.counts) <= recorded


_KEPT = {"number-monotone"}
"""What no repair changes, where checksums say that it was recorded so."""


def _target_of(folder: Path) -> Path:
    """Returns what is to be made of a live folder: its name says it, also where it was copied or renamed.

    Of the manifest, which may be anybody's, only the form is taken, and only where the folder's name has none.
    """
    name = folder.name.removesuffix(".live")
    if name and name != folder.name:
        return folder.with_name(name)
    target = None
    with contextlib.suppress(TraceError):
        target = read_journal(folder).target
    return folder.with_name(f"{folder.name}{'.arrow' if str(target).lower().endswith('.arrow') else '.h5'}")


def _beside(path: Path) -> Path:
    """Returns ``run.repaired.h5`` for ``run.h5``."""
    return path.with_name(f"{path.stem}.repaired{path.suffix}")


def _has_arrow_parts(found: Found) -> bool:
    return found.form == "parts" and any(found.path.glob("part-*.arrow"))
