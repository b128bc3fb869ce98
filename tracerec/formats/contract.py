"""What every form of a recording offers to the reader: HDF5, Arrow and the journal alike.

`tracerec.trace` is written against these protocols alone. A source never imports jax, follows no links out of
its file, and reads only what it is asked for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from tracerec.model import Site
    from tracerec.statistics import LeafSummary

__all__ = ["FORMAT_VERSION", "RECORDING_NOTE", "RunInfo", "State", "StreamSource", "TraceSource"]

FORMAT_VERSION = (1, 3)
"""Version of the recorded forms; a reader refuses a newer major version and reads every older one."""

RECORDING_NOTE = "the run is still being recorded"
"""Among the notes of a recording whose process lives and has not closed it."""

State = Literal["clean", "recording", "killed", "stopped early"]
"""What became of a recording; see `RunInfo.state`."""


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What is known of the run that a trace records.

    Attributes:
        run_id: random, 32 hexadecimal digits.
        started: nanoseconds since the Unix epoch, UTC.
        ended: the same, when the recording was closed; None when it was not.
        clean: whether the recording was closed; False for a killed run and for one that still runs.
        host: the machine's name.
        pid: the process that recorded.
        command: the command line, a word an item.
        versions: versions by library: ``tracerec``, ``jax``, ``jaxlib``, ``numpy``, ``python``.
        devices: one mapping a device: ``id``, ``kind``, ``platform``, ``process``.
        metadata: what the user passed to ``record(metadata=...)``, as JSON values.
        records: how many records were written.
        dropped: records not recorded, by tap name.
        high_water_bytes: the most bytes that waited in the outfeed at once.
        attempts: one mapping for each process's turn at the recording, the oldest first: ``first_arrival`` (its records
            have this arrival number or a later one), and ``started``, ``ended``, ``clean``, ``host``, ``pid``,
            ``command``, ``versions``, ``devices`` and ``metadata`` as above, which describe the newest attempt there.
            Empty before version 1.2, where there is one.
        retired: records that were written and then deleted to keep the newest alone, by tap name.
        over_budget: records not written because their tap or the recording had reached its budget, by tap name.
        notes: sentences for a reader about what is missing or damaged; empty for a whole trace.
        format_version: major and minor version of the form read.
    """

    run_id: str
    started: int
    ended: int | None = None
    clean: bool = True
    host: str = ""
    pid: int = 0
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    devices: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    records: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    high_water_bytes: int = 0
    attempts: Sequence[Mapping[str, Any]] = ()
    retired: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    over_budget: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    notes: tuple[str, ...] = ()
    format_version: tuple[int, int] = FORMAT_VERSION

    @property
    def state(self) -> State:
        """What became of the recording.

        ``"clean"``: it was closed, and nothing failed. ``"recording"``: its process is still at it. ``"killed"``:
        its process ended without closing it. ``"stopped early"``: it was closed, but from some moment on records
        could not be written; `notes` says why.

        Example:
            >>> RunInfo("0" * 32, 0, ended=1).state, RunInfo("0" * 32, 0, clean=False).state
            ('clean', 'killed')
        """
        if self.clean:
            return "clean"
        if self.ended is not None:
            return "stopped early"
        return "recording" if RECORDING_NOTE in self.notes else "killed"

    @property
    def processes(self) -> tuple[RunInfo, ...]:
        """What is known of each process: of a trace of several files one for each, else this alone."""
        return (self,)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunInfo:
        """Returns the information that `to_json` gave; fields of newer minor versions are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        fields = {key: value for key, value in data.items() if key in known}
        for name in ("command", "notes", "format_version", "devices", "attempts"):
            if name in fields:
                fields[name] = tuple(fields[name])
        return cls(**fields)


class StreamSource(Protocol):
    """All records of one site in one file. Ranges are half-open and within ``0 .. records``."""

    @property
    def site(self) -> Site: ...

    @property
    def records(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes that the stream takes in the file, after compression."""
        ...

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes that leaf ``number`` takes in the file, after compression."""
        ...

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf; a sealed file has them ready, a journal computes them."""
        ...

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table, in recorded order, as an array of `tracerec.model.INDEX_DTYPE`."""
        ...

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns leaf ``number`` of ``site.leaves`` as ``(stop - start, *shape)`` of the logical dtype."""
        ...

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns column ``number`` of ``site.columns`` as ``(stop - start, *shape)``.

        A column with ``in_index`` comes from the index table.
        """
        ...


class TraceSource(Protocol):
    """One opened file or folder. Streams are in first-seen order."""

    @property
    def path(self) -> str: ...

    @property
    def info(self) -> RunInfo: ...

    @property
    def streams(self) -> Sequence[StreamSource]: ...

    def close(self) -> None: ...


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
