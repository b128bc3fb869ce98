"""A merged recording, checked: which processes are in it, and each of them like a recording of its own."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING

import h5py
from h5py import h5g

from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats import merged
from tracerec.formats.arrow import processes as arrow_processes
from tracerec.formats.hdf5 import processes as hdf5_processes
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Place, open_group
from tracerec.salvaging.arrow import open_arrow
from tracerec.salvaging.hdf5 import open_hdf5
from tracerec.verifying.invariants import of_form
from tracerec.verifying.sealed import check_opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.formats.contract import State
    from tracerec.formats.merged import Process
    from tracerec.salvaging.forms import Found
    from tracerec.salvaging.opened import Opened
    from tracerec.verifying.report import Findings, Verification
    from tracerec.verifying.streams import StreamCheck

__all__ = ["CheckedProcess", "check_merged", "check_processes", "processes_of"]


@dataclasses.dataclass(frozen=True)
class CheckedProcess:
    """One process, checked. Whoever takes it closes what is opened.

    Attributes:
        process: its number and name.
        opened: its recording, as far as it can be opened; None where it cannot.
        checks: what was found of its streams.
    """

    process: Process
    opened: Opened | None
    checks: Sequence[StreamCheck] = ()


def processes_of(found: Found) -> Sequence[Process] | str | None:
    """Returns the processes that a merged recording lists, or what is wrong with its list; None of any other.

    Raises:
        TraceFormatError: it is of a newer major version.
    """
    if found.form == "arrow" and arrow_processes.is_merged(found.path):
        listed = arrow_processes.listed_processes
    elif found.form == "hdf5":
        listed = hdf5_processes.listed_processes
    else:
        return None
    try:
        return listed(found.path)
    except TraceNotFound:
        raise
    except TraceFormatError as error:
        if "reads up to" in str(error):
            raise
        # Any other file that cannot be opened is for those who look closer.
        return _reason(error) if found.form == "arrow" or merged.has_mark(found.path) else None


def check_merged(found: Found, processes: Sequence[Process] | str, findings: Findings) -> Verification:
    """Checks every process of a merged recording; arguments as `check_processes`."""
    states: list[State] = []
    for each in check_processes(found, processes, findings):
        if each.opened is not None:
            each.opened.close()
            if each.opened.info is not None:
                states.append(each.opened.info.state)
                for note in each.opened.info.notes:
                    findings.note(f"{each.process.name}: {note}")
    state = next((state for state in states if state != "clean"), "clean") if states else None
    done = findings.verification(str(found.path), found.form, None, of_form(found.form))
    major, minor = map(int, merged.VERSION.split("."))
    return dataclasses.replace(done, state=state, format_version=(major, minor))


def check_processes(
    found: Found, processes: Sequence[Process] | str, findings: Findings, *, deep: bool = False
) -> Iterator[CheckedProcess]:
    """Yields the processes of a merged recording, each checked.

    Args:
        found: the recording.
        processes: what `processes_of` gave. Where the list is damaged, those that are there are taken.
        findings: takes the faults.
        deep: as `open_hdf5`.
    """
    name = found.path.name
    if found.form == "hdf5":
        findings.nbytes += found.path.stat().st_size
    there = _there(found)
    if isinstance(processes, str):
        findings.add("processes-listed", name, processes)
        processes = [merged.Process(number, f"process {number}") for number in sorted(there)]
    for number in sorted(there - {process.number for process in processes}):
        findings.add("processes-listed", name, f"{_place(found, number)} is there, and is not in the list of processes")
    runs: dict[str, int] = {}
    for process in processes:
        checked = _checked(found, process, findings, deep=deep)
        info = None if checked.opened is None else checked.opened.info
        if info is not None and (first := runs.setdefault(info.run_id, process.number)) != process.number:
            message = f"processes {first} and {process.number} are of the same recording, {info.run_id}"
            findings.add("processes-listed", f"{name}/{_place(found, process.number)}", message)
        yield checked


def _checked(found: Found, process: Process, findings: Findings, *, deep: bool) -> CheckedProcess:
    label = f"{found.path.name}/{_place(found, process.number)}"
    try:
        opened = _opened(found, process.number, findings, deep=deep)
    except TraceError as error:
        findings.add("readable", label, f"{_reason(error)}: its records are lost")
        return CheckedProcess(process, None)
    try:
        return CheckedProcess(process, opened, check_opened(opened, label, findings))
    except BaseException:
        opened.close()
        raise


def _there(found: Found) -> set[int]:
    """Returns the numbers of the processes that are there, by their names."""
    if found.form == "arrow":
        names = [entry.name for entry in os.scandir(found.path) if merged.ARROW_FOLDER.fullmatch(entry.name)]
        return {int(re.sub("[^0-9]", "", name)) for name in names}
    try:
        with h5py.File(found.path, "r", rdcc_nbytes=0) as file:
            root = h5g.open(file.id, b"/")
            place = Place(str(found.path), found.path.stat().st_size)
            names = [name.decode("ascii", "replace") for name in open_group(root, merged.GROUPS, place)]
    except (*HDF5_ERRORS, TraceFormatError):
        # Then no process can be opened either, and that is reported.
        return set()
    return {int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= _DIGITS}


_DIGITS = 9


def _place(found: Found, number: int) -> str:
    return merged.arrow_folder(number) if found.form == "arrow" else merged.group_path(number)


def _opened(found: Found, number: int, findings: Findings, *, deep: bool) -> Opened:
    if found.form == "hdf5":
        return open_hdf5(str(found.path), findings, deep=deep, group=merged.group_path(number))
    folder = arrow_processes.inner_folder(found.path, number)
    return open_arrow(str(folder), findings, prefix=f"{folder.name}/")


def _reason(error: TraceError) -> str:
    return str(error).rpartition(" is no intact trace: ")[2]
