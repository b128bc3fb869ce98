"""``tracerec.verify``: a recording in, what is wrong with it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.salvaging.forms import find, live_of
from tracerec.verifying.invariants import of_form
from tracerec.verifying.live import check_folder, open_sealed
from tracerec.verifying.merged import check_merged, processes_of
from tracerec.verifying.report import Findings, Verification
from tracerec.verifying.sealed import check_opened

if TYPE_CHECKING:
    import os

    from tracerec.salvaging.forms import Found

__all__ = ["verify"]

_LOOKS = 5
"""How often a recording is looked at that changes its form meanwhile, as one does that is being closed."""


def verify(path: str | os.PathLike[str]) -> Verification:
    """Checks a recording: every invariant of ``docs/format.md``, over all its bytes.

    It reads everything, a few megabytes at a time. A run that was killed, and one that goes on, are no faults: what
    they have not finished is in the notes.

    Args:
        path: a recording of any form; for a run that was killed or goes on the path that it records to, or the folder
            ``run.h5.live``.

    Returns:
        What was found. Its ``ok`` says whether all holds.

    Raises:
        TraceNotFound: there is nothing at the path.
        TraceFormatError: what is there is no recording, is of a newer major version, or may not be read.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("run.h5"):
        ...     _ = tracerec.tap(np.float32(0.5), "loss", step=0)
        >>> found = tracerec.verify("run.h5")
        >>> found.ok, found.records, found.faults
        (True, 1, ())
    """
    for look in range(_LOOKS):
        found = find(path)
        try:
            return _verified(found)
        except FileNotFoundError as error:
            # The run may have been closed since: then its file is there, and its journal is not.
            if look == _LOOKS - 1 or find(path) == found:
                message = f"{found.path} cannot be read: {error}"
                raise TraceNotFound(message, path=str(found.path)) from error
        except OSError as error:
            message = f"{found.path} cannot be read: {error.strerror or error}"
            raise TraceFormatError(message, path=str(found.path)) from error
    raise AssertionError


def _verified(found: Found) -> Verification:
    findings = Findings()
    if found.form in ("live", "parts"):
        info = check_folder(found.path, found.form, findings)
        parts = "arrow" if ".arrow" in found.path.suffixes else "hdf5"
        checked = of_form(parts, "folder", *(["journal"] if found.form == "live" else []))
        return findings.verification(str(found.path), found.form, info, checked)
    if (live := live_of(found.path)).is_dir():
        findings.note(f"{live} is there, too: the recording is being continued, or closing it was interrupted")
    if (processes := processes_of(found)) is not None:
        return check_merged(found, processes, findings)
    opened = open_sealed(found.path, findings)
    try:
        check_opened(opened, found.path.name, findings)
    finally:
        opened.close()
    for note in () if opened.info is None else opened.info.notes:
        findings.note(note)
    return findings.verification(str(found.path), found.form, opened.info, of_form(found.form))
