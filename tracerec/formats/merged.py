"""Which processes are in a merged recording: one file, or folder, that has those of several processes.

HDF5 has a group ``/processes/000003`` for process 3, laid out like the root of a whole file, Arrow a folder
``process-000003.arrow``. Both list them in the same JSON text: HDF5 in the root's attribute ``processes``, Arrow in the
file ``processes.json``.
"""

from __future__ import annotations

import dataclasses
import mmap
import re
from typing import TYPE_CHECKING

import crc32c

from tracerec.formats.headers import JSON_ERRORS, parse_json, parse_version
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "ARROW_FOLDER",
    "ATTRIBUTE",
    "GROUPS",
    "LARGEST",
    "LIST",
    "VERSION",
    "Process",
    "arrow_folder",
    "group_path",
    "has_mark",
    "parsed",
    "text_of",
]

VERSION = "1.3"
"""The format version of a merged recording; what is in it of each process has its own."""

ATTRIBUTE = GROUPS = "processes"
LIST = "processes.json"
ARROW_FOLDER = re.compile(r"process-[0-9]{6,12}\.arrow", re.ASCII)

LARGEST = 999_999_999
"""The largest number of a process."""

_FORMAT = "tracerec-processes"


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process of a merged recording.

    Attributes:
        number: its number.
        name: the name of the recording that it was merged from, for messages.
    """

    number: int
    name: str


def text_of(processes: Sequence[Process]) -> str:
    """Returns the text that lists processes."""
    listed = [dataclasses.asdict(process) for process in processes]
    return canonical({"format": _FORMAT, "version": VERSION, "processes": listed, "crc32c": _checksum(listed)})


def parsed(text: str) -> list[Process]:
    """Returns the processes that a text lists, in the order of their numbers; raises ValueError where it lists none.

    Example:
        >>> parsed(text_of([Process(0, "run.0.h5"), Process(3, "run.3.h5")]))
        [Process(number=0, name='run.0.h5'), Process(number=3, name='run.3.h5')]
    """
    try:
        value = parse_json(text)
        if value["format"] != _FORMAT:
            message = f"its format is {value['format']!r:.40}"
            raise ValueError(message)
        parse_version(value["version"])
        listed = value["processes"]
        processes = [Process(each["number"], each["name"]) for each in listed]
        checksum = value["crc32c"]
    except JSON_ERRORS as error:
        message = f"the list of processes is missing or damaged: {error}"
        raise ValueError(message) from error
    numbers = [process.number for process in processes]
    good = all(type(number) is int and 0 <= number <= LARGEST for number in numbers)
    if not good or not all(isinstance(process.name, str) for process in processes):
        message = "the list of processes is damaged"
        raise ValueError(message)
    if checksum != _checksum(listed):
        message = f"the list of processes: its CRC-32C is {_checksum(listed)}, not {checksum!r:.40}"
        raise ValueError(message)
    if not numbers or sorted(set(numbers)) != numbers:
        message = f"the list of processes has the numbers {numbers!s:.80}"
        raise ValueError(message)
    return processes


def group_path(number: int) -> str:
    """Returns where in an HDF5 file a process is: ``"processes/000003"``."""
    return f"{GROUPS}/{number:06}"


def arrow_folder(number: int) -> str:
    """Returns the name of a process's folder: ``"process-000003.arrow"``."""
    return f"process-{number:06}.arrow"


def has_mark(path: Path) -> bool:
    """Returns whether a file that cannot be opened was a merged recording once: whether its list is in it."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(f'"format":"{_FORMAT}"'.encode()) >= 0
    except (OSError, ValueError):
        return False


def _checksum(listed: list[dict[str, object]]) -> str:
    return f"{crc32c.crc32c(canonical(listed).encode()):08x}"
