"""What the process that repairs is told, and what it answers, as JSON values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracerec.verifying.report import Fault, Findings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Answer", "Order", "answer"]


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What is to be repaired.

    Attributes:
        source: the file or folder.
        form: as `tracerec.salvaging.forms.Found`.
        target: what to make; nothing is there.
        work: a folder to make for what is needed meanwhile; nothing is there.
        suffix: ``".h5"`` or ``".arrow"``: the form of what is made.
        compression: of what is made; ``"same"``: as it was, as far as that can be told.
        keep_suspect: whether to keep records that can be read but may be wrong.
        max_file_bytes: a larger recording becomes a folder of parts.
        always: make the target also where nothing is wrong.
    """

    source: Path
    form: str
    target: Path
    work: Path
    suffix: str
    compression: str | None = "same"
    keep_suspect: bool = False
    max_file_bytes: int = 16 << 30
    always: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the order as JSON values."""
        paths = {name: str(getattr(self, name)) for name in ("source", "target", "work")}
        return {**dataclasses.asdict(self), **paths}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Order:
        """Returns the order that `to_json` gave."""
        fields: dict[str, Any] = dict(data)
        for name in ("source", "target", "work"):
            fields[name] = Path(data[name])
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What came of it.

    Attributes:
        made: whether there is a target: not where nothing was wrong.
        records: how many records it has.
        lost: how many are left out, by tap name; ``"?"`` where that is not known.
        losses: sentences about what is lost of which not even the number of records is known.
        notes: sentences about what else should be known.
        faults: what was wrong.
        fault_count: how many faults there are.
    """

    made: bool
    records: int
    lost: Mapping[str, int]
    losses: tuple[str, ...]
    notes: tuple[str, ...]
    faults: tuple[Fault, ...]
    fault_count: int

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as JSON values."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**own, "faults": [fault.to_json() for fault in self.faults]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """Returns the answer that `to_json` gave."""
        fields: dict[str, Any] = dict(data)
        fields["faults"] = tuple(Fault.from_json(fault) for fault in data["faults"])
        fields["losses"], fields["notes"] = tuple(data["losses"]), tuple(data["notes"])
        return cls(**fields)


def answer(
    findings: Findings,
    *,
    made: bool,
    records: int,
    lost: Mapping[str, int] | None = None,
    losses: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Answer:
    """Returns the answer with what was found; arguments as the fields of `Answer`."""
    more = [note for note in findings.notes if note not in (*losses, *notes)]
    return Answer(
        made=made,
        records=records,
        lost=dict(lost or {}),
        losses=tuple(losses),
        notes=(*notes, *more),
        faults=findings.faults,
        fault_count=findings.counts.total(),
    )
