"""The recordings of many processes as one trace: each in its own file, told apart by a number."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracerec.errors import TraceError
from tracerec.formats.contract import RECORDING_NOTE, RunInfo
from tracerec.formats.joined import JoinedSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracerec.formats.contract import TraceSource

__all__ = ["ProcessesInfo", "ProcessesSource", "numbered"]


@dataclasses.dataclass(frozen=True)
class ProcessesInfo(RunInfo):
    """What is known of a run of several processes. It is clean if all are; counts are sums over all processes.

    ``run_id`` is the processes' own if they share it, else a digest of theirs. ``attempts`` is empty, since each
    process has its own; ``host``, ``pid``, ``command`` and ``metadata`` are those of the first. Notes begin with the
    file.

    Attributes:
        files: what each file says of its process, in the order of their numbers.
    """

    files: tuple[RunInfo, ...] = ()

    @property
    def processes(self) -> tuple[RunInfo, ...]:
        """What each file says of its process, in the order of their numbers."""
        return self.files

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        whole = {field.name: getattr(self, field.name) for field in dataclasses.fields(RunInfo)}
        return RunInfo(**whole).to_json() | {"processes": [info.to_json() for info in self.files]}


class ProcessesSource(JoinedSource):
    """The sources of several processes as one, in the order of their numbers; closed with this.

    ``streams`` joins those of one site, for an overview; arrival, call and device numbers in it are each process's own.

    Args:
        path: what was opened, for messages.
        sources: the sources.
        numbers: the number of each process, ascending.
        names: what notes call each; None: the names of the files. Given for the processes of one merged recording.

    Attributes:
        numbers: as given.
        names: as given, or the names of the files.
        merged: whether all are in one merged recording.

    Raises:
        TraceError: two of them are of one recording.
    """

    def __init__(
        self, path: str, sources: Sequence[TraceSource], numbers: Sequence[int], names: Sequence[str] | None = None
    ) -> None:
        if names is None:
            _check_files(sources)
        self.numbers = tuple(numbers)
        self.merged = names is not None
        self.names = tuple(Path(source.path).name for source in sources) if names is None else tuple(names)
        _check_runs(sources, [source.path for source in sources] if names is None else self.names)
        super().__init__(path, _joined_info(sources, self.names), sources)


def numbered(paths: Sequence[str], *, ordered: bool) -> list[tuple[int, str]]:
    """Returns paths with the numbers of their processes, ascending.

    The number is that in the file's name, where names differ in one number alone (``run.0.h5``, ``run.1.h5``); else the
    path's place.

    Args:
        paths: the paths.
        ordered: whether their order means something; else they are sorted, with numbers in names by value.

    Example:
        >>> numbered(["run.10.h5", "run.9.h5"], ordered=False)
        [(9, 'run.9.h5'), (10, 'run.10.h5')]
        >>> numbered(["b.h5", "a.h5"], ordered=True)
        [(0, 'b.h5'), (1, 'a.h5')]
    """
    paths = list(paths) if ordered else sorted(paths, key=_natural)
    parts = [re.split(r"(\d+)", path) for path in paths]
    differing = {i for part in parts for i in range(len(part)) if part[i : i + 1] != parts[0][i : i + 1]}
    if len({len(part) for part in parts}) == len(differing) == 1:
        (at,) = differing
        found = [int(part[at]) if at % 2 else -1 for part in parts]
        if len(set(found)) == len(found) and min(found) >= 0 and max(found) <= _LARGEST:
            return sorted(zip(found, paths, strict=True))
    return list(enumerate(paths))


_LARGEST = 999_999
"""A larger number in a name is a date, or an id."""


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(re.split(r"(\d+)", path))]


def _check_files(sources: Sequence[TraceSource]) -> None:
    files: dict[tuple[int, int], str] = {}
    for source in sources:
        path = Path(source.path)
        if path.exists():
            status = path.stat()
            # Not by identity: two texts that are equal can be one object.
            first = files.get((status.st_dev, status.st_ino))
            if first is not None:
                same = "twice" if first == source.path else f"twice, as {first} and as {source.path}"
                message = f"{source.path} is given {same}; leave one out"
                raise TraceError(message, path=source.path)
            files[status.st_dev, status.st_ino] = source.path


def _check_runs(sources: Sequence[TraceSource], names: Sequence[str]) -> None:
    runs: dict[str, str] = {}
    for source, name in zip(sources, names, strict=True):
        first = runs.get(source.info.run_id)
        if first is not None:
            message = (
                f"{first} and {name} are of one process's recording, run {source.info.run_id}: one is a copy of "
                "the other, or an earlier state; leave one out"
            )
            raise TraceError(message, path=source.path)
        runs[source.info.run_id] = name


def _joined_info(sources: Sequence[TraceSource], names: Sequence[str]) -> ProcessesInfo:
    infos = [source.info for source in sources]
    ended = [info.ended for info in infos]
    first = infos[0]
    return ProcessesInfo(
        run_id=_run_id([info.run_id for info in infos]),
        started=min(info.started for info in infos),
        ended=None if None in ended else max(end for end in ended if end is not None),
        clean=all(info.clean for info in infos),
        host=first.host,
        pid=first.pid,
        command=first.command,
        versions=first.versions,
        devices=_devices(infos),
        metadata=first.metadata,
        records=sum(info.records for info in infos),
        dropped=_sum(info.dropped for info in infos),
        high_water_bytes=max(info.high_water_bytes for info in infos),
        retired=_sum(info.retired for info in infos),
        over_budget=_sum(info.over_budget for info in infos),
        notes=_notes(sources, names),
        format_version=max(info.format_version for info in infos),
        files=tuple(infos),
    )


def _run_id(ids: Sequence[str]) -> str:
    if len(set(ids)) == 1:
        return ids[0]
    return hashlib.blake2b("\n".join(sorted(ids)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _devices(infos: Sequence[RunInfo]) -> tuple[Mapping[str, Any], ...]:
    """Returns all devices, each once: in a distributed run every process lists those of all."""
    found: list[Mapping[str, Any]] = []
    for info in infos:
        found += [device for device in info.devices if device not in found]
    return tuple(found)


def _notes(sources: Sequence[TraceSource], names: Sequence[str]) -> tuple[str, ...]:
    notes: list[str] = []
    if any(source.info.state == "recording" for source in sources):
        notes.append(RECORDING_NOTE)
    for source, name in zip(sources, names, strict=True):
        notes += [f"{name}: {note}" for note in source.info.notes]
    return tuple(notes)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)
