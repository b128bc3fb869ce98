"""What verifying a recording found: faults, each with its invariant and its place, and what there was to look at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracerec.verifying.invariants import INVARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracerec.formats.contract import RunInfo, State

__all__ = ["SCHEMA", "Fault", "Findings", "Verification"]

SCHEMA = "1.0"
"""The version of ``schemas/verify.schema.json``."""

MAX_FAULTS = 1000
"""Faults that are kept; all are counted. One bad disk can make millions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One place where a recording is not as it should be.

    Attributes:
        invariant: the name of what does not hold, one of `INVARIANTS`.
        file: the file in which it does not.
        message: what was found there, and what it means.
        tap: the name of the tap that is concerned, where it is one.
        leaf: which array of it: ``"leaf ['w']"``, ``"kwarg lr"``, ``"index"``.
        records: the first record concerned and the one after the last, counted in the tap's stream in that file.
        offset: the byte of the file at which it begins, where that is known.
        nbytes: how many bytes are concerned, where that is known.
    """

    invariant: str
    file: str
    message: str
    tap: str | None = None
    leaf: str | None = None
    records: tuple[int, int] | None = None
    offset: int | None = None
    nbytes: int | None = None

    @property
    def place(self) -> str:
        """Where in the file, for people: tap, leaf, records, bytes, as far as they are known.

        Example:
            >>> Fault("chunk-whole", "run.h5", "it is missing", tap="act", leaf="index", records=(0, 8)).place
            "tap 'act', index, records 0 to 7"
        """
        parts = [] if self.tap is None else [f"tap {self.tap!r}"]
        if self.leaf is not None:
            parts.append(self.leaf)
        if self.records is not None:
            first, stop = self.records
            parts.append(f"record {first}" if stop == first + 1 else f"records {first} to {stop - 1}")
        if self.offset is not None:
            parts.append(f"byte {self.offset}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        data = dataclasses.asdict(self)
        return data | {"records": None if self.records is None else list(self.records), "place": self.place}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fault:
        """Returns the fault that `to_json` gave."""
        fields: dict[str, Any] = {field.name: data[field.name] for field in dataclasses.fields(cls)}
        fields["records"] = None if data["records"] is None else tuple(data["records"])
        return cls(**fields)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.place, self.message, self.invariant) if part)


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found.

    Attributes:
        path: the file or folder that was verified; of a run that was killed, its live folder.
        form: ``"hdf5"``, ``"arrow"``, ``"live"`` (the folder of a run that goes on or was killed) or ``"parts"`` (one
            that was closed and is a folder of parts).
        state: what became of the run, as `RunInfo.state`; None where its description cannot be read.
        run_id: the run, or None.
        format_version: of the recording, or None.
        streams: how many streams were looked at.
        records: how many records, whole or not.
        nbytes: bytes of the files.
        checked: the names of the invariants that were checked.
        faults: what does not hold; at most 1,000.
        counts: how many faults there are by the name of the invariant.
        notes: sentences about what is no fault but should be known: a torn end, records that the run did not record.
    """

    path: str
    form: str
    state: State | None
    run_id: str | None
    format_version: tuple[int, int] | None
    streams: int
    records: int
    nbytes: int
    checked: tuple[str, ...]
    faults: tuple[Fault, ...]
    counts: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every invariant that was checked holds."""
        return not self.counts

    @property
    def fault_count(self) -> int:
        """How many faults there are, also of those that `faults` has no room for."""
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, by ``schemas/verify.schema.json``."""
        return {
            "schema": SCHEMA,
            "path": self.path,
            "ok": self.ok,
            "form": self.form,
            "state": self.state,
            "run_id": self.run_id,
            "format_version": None if self.format_version is None else list(self.format_version),
            "streams": self.streams,
            "records": self.records,
            "bytes": self.nbytes,
            "checked": list(self.checked),
            "fault_count": self.fault_count,
            "counts": dict(self.counts),
            "faults": [fault.to_json() for fault in self.faults],
            "notes": list(self.notes),
        }


class Findings:
    """Collects what a verification finds.

    Args:
        tick: called now and then while records are read, to show that it goes on.

    Attributes:
        tick: as given; does nothing where nothing was.
        counts: faults by invariant.
        notes: what else should be known.
        streams: streams looked at.
        records: records looked at.
        nbytes: bytes of the files.
    """

    def __init__(self, tick: Callable[[], None] | None = None) -> None:
        self.tick: Callable[[], None] = tick or _nothing
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.streams = self.records = self.nbytes = 0
        self._faults: list[Fault] = []

    def add(self, invariant: str, file: str, message: str, **place: Any) -> None:
        """Adds a fault; ``place`` are the other fields of `Fault`."""
        if invariant not in INVARIANTS:
            text = f"there is no invariant {invariant!r}"
            raise KeyError(text)
        self.counts[invariant] += 1
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(Fault(invariant, file, message, **place))

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults, as many as are kept."""
        return tuple(self._faults)

    def absorb(self, other: Findings) -> None:
        """Adds all that another has found."""
        self.counts += other.counts
        self._faults += other.faults[: max(0, MAX_FAULTS - len(self._faults))]
        self.streams, self.records = self.streams + other.streams, self.records + other.records
        self.nbytes += other.nbytes
        for sentence in other.notes:
            self.note(sentence)

    def note(self, sentence: str) -> None:
        """Adds a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def verification(self, path: str, form: str, info: RunInfo | None, checked: tuple[str, ...]) -> Verification:
        """Returns all of it."""
        by_name = {name: self.counts[name] for name in INVARIANTS if self.counts[name]}
        return Verification(
            path=path,
            form=form,
            state=None if info is None else info.state,
            run_id=None if info is None else info.run_id,
            format_version=None if info is None else info.format_version,
            streams=self.streams,
            records=self.records,
            nbytes=self.nbytes,
            checked=checked,
            faults=self.faults,
            counts=by_name,
            notes=tuple(self.notes),
        )


def _nothing() -> None:
    """Nobody is waiting for a sign of life."""
