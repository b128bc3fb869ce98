"""What could not be compared: records that one run has alone, that were lost, or of which nothing can be said."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec.comparing.cells import UNKNOWN
from tracerec.comparing.renaming import nearest_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracerec.comparing.alignment import Group, Series
    from tracerec.comparing.cells import Cell
    from tracerec.comparing.pairing import Run

__all__ = [
    "ALONE",
    "LOST",
    "NOT_COMPARABLE",
    "Unmatched",
    "alone",
    "near_group",
    "not_comparable",
    "only",
    "unreadable",
    "with_losses",
]

ALONE = ("only in a", "only in b")
NOT_COMPARABLE = "not comparable"
LOST = ("dropped", "retired", "over budget")


@dataclasses.dataclass(frozen=True, slots=True)
class Unmatched:
    """Records of one tap that were not compared.

    Attributes:
        what: ``"only in a"``, ``"only in b"``, ``"not comparable"``; or what became of them in the run named in
            ``detail``: ``"dropped"``, ``"retired"``, ``"over budget"``.
        tap: the tap's name, as the second run has it where both have it.
        leaf: the leaf's key path, where the record itself has a partner; ``""``: all leaves.
        transforms: the transforms as text.
        records: how many.
        detail: which ones, or why.
        near: what was perhaps meant; None where nothing is near.
    """

    what: str
    tap: str
    leaf: str
    transforms: str
    records: int
    detail: str = ""
    near: str | None = None

    def __str__(self) -> str:
        name = " ".join([self.tap, *[self.leaf] * bool(self.leaf), *[f"({self.transforms})"] * bool(self.transforms)])
        count = f"{self.records:,} record{'' if self.records == 1 else 's'}"
        detail = f", {self.detail}" if self.detail else ""
        near = f"; near: {self.near}" if self.near else ""
        return f"{self.what}: {name}: {count}{detail}{near}"


def only(side: str, group: Group, leaf: str, records: int, near: str | None = None) -> Unmatched:
    """Returns that one run alone has a group, or a leaf of it."""
    return Unmatched(f"only in {side}", group.tap, leaf, ", ".join(group.transforms), records, _static(group), near)


def not_comparable(group: Group, leaf: str, records: int, reason: str) -> Unmatched:
    """Returns that records have partners and cannot be compared with them."""
    return Unmatched(NOT_COMPARABLE, group.tap, leaf, ", ".join(group.transforms), records, reason)


def alone(group: Group, a: Series, b: Series, found_a: np.ndarray, found_b: np.ndarray) -> list[Unmatched]:
    """Returns what a group has in one run alone, the other having the group too."""
    if len(found_a) == len(a) == len(b):
        return []
    left = [np.setdiff1d(np.arange(len(s)), f) for s, f in ((a, found_a), (b, found_b))]
    out: list[Unmatched] = []
    for side, mine, series, other, rest in (("a", left[0], a, b, left[1]), ("b", left[1], b, a, left[0])):
        if len(mine):
            steps, others = _steps(group, series, mine), _steps(group, other, rest)
            near = None if steps is None or others is None else _near_steps(group, steps, others)
            detail = _static(group) if steps is None else _range(steps)
            out.append(
                Unmatched(f"only in {side}", group.tap, "", ", ".join(group.transforms), len(mine), detail, near)
            )
    return out


def near_group(group: Group, candidates: Sequence[Group], others: Collection[Group]) -> str | None:
    """Returns what is most like a group that one run has alone: the same tap with other kwargs, or a like name."""
    same = [each for each in candidates or others if each.tap == group.tap]
    if same:
        return _difference(group, same[0])
    name = nearest_name(group.tap, dict.fromkeys(each.tap for each in candidates))
    return None if name is None else repr(name)


def unreadable(cells: Sequence[Cell]) -> list[Unmatched]:
    """Returns the pairs of cells that could not be compared."""
    out: list[Unmatched] = []
    for cell in cells:
        count = int(cell.counts.kinds[UNKNOWN])
        if count:
            reason = cell.counts.reasons[0] if cell.counts.reasons else _LANES
            out.append(not_comparable(cell.group, cell.leaf, count, reason))
    return out


def with_losses(found: Sequence[Unmatched], a: Run, b: Run) -> list[Unmatched]:
    """Returns a list with what each run lost itself; what one run has alone since the other lost it says so.

    Args:
        found: the list.
        a: the first run.
        b: the second run.
    """
    lost = {"a": _losses(a), "b": _losses(b)}
    out: list[Unmatched] = []
    told: set[tuple[str, str]] = set()
    for each in found:
        missing_in = {"only in a": "b", "only in b": "a"}.get(each.what)
        reasons = lost[missing_in].get(each.tap, {}) if missing_in else {}
        if missing_in is None or not reasons:
            out.append(each)
            continue
        told.add((missing_in, each.tap))
        what, count = next(iter(reasons.items()))
        detail = f"{what} in {missing_in} ({count:,} in all)" + (f", {each.detail}" if each.detail else "")
        out.append(dataclasses.replace(each, what=what, detail=detail))
    for side, taps in lost.items():
        for tap, reasons in taps.items():
            if (side, tap) not in told:
                out += [Unmatched(what, tap, "", "", count, f"in {side}") for what, count in reasons.items()]
    return out


_LANES = "lanes that never took the tap's branch may be in them, and nothing says which (tap with where=)"


def _losses(run: Run) -> dict[str, dict[str, int]]:
    """Returns what a run lost of the taps that are compared, by the names that they have in the second run."""
    info = run.trace.info
    out: dict[str, dict[str, int]] = {}
    counts: dict[str, Mapping[str, int]] = {
        "dropped": info.dropped,
        "retired": info.retired,
        "over budget": info.over_budget,
    }
    for what, taps in counts.items():
        for tap, count in taps.items():
            name = run.name_of(tap)
            if count and name is not None:
                kinds = out.setdefault(name, {})
                kinds[what] = kinds.get(what, 0) + count
    return out


def _static(group: Group) -> str:
    return "" if group.kwargs == "{}" else f"kwargs {group.kwargs}"


def _difference(group: Group, other: Group) -> str:
    """Returns in what two groups of one tap differ."""
    if group.transforms != other.transforms:
        return f"the same tap with transforms ({', '.join(other.transforms) or 'none'})"
    names = [{name for name, _, _ in each.keys} for each in (group, other)]
    if names[0] != names[1]:
        return f"the same tap with numbers {', '.join(sorted(names[1])) or 'none'} in its kwargs"
    return f"the same tap with kwargs {other.kwargs}"


def _steps(group: Group, series: Series, chosen: np.ndarray) -> np.ndarray | None:
    at = 0
    for name, kind, width in group.keys:
        if name == "step" and width == 1:
            steps = np.ascontiguousarray(series.keys[chosen, at])
            return np.unique(steps.view(np.float64) if kind == "f" else steps)
        at += width
    return None


def _range(steps: np.ndarray) -> str:
    texts = [repr(step) for step in steps.tolist()]
    return f"step {texts[0]}" if len(texts) == 1 else f"steps {texts[0]} to {texts[-1]}"


def _near_steps(group: Group, steps: np.ndarray, others: np.ndarray) -> str | None:
    """Returns what the other run's steps have to do with these, if it is plain."""
    if not len(others):
        return None
    if steps.dtype.kind == "f":
        apart = np.abs(others[None, :] - steps[:1, None])[0]
        nearest = others[int(apart.argmin())]
        close = apart.min() <= _NEAR * max(abs(float(steps[0])), abs(float(nearest)))
        return f"{group.tap} step={nearest!s} beside {steps[0]!s}: steps must be the same number" if close else None
    if len(steps) == len(others) and len(np.unique(others - steps)) == 1 and others[0] != steps[0]:
        shift = int(others[0] - steps[0])
        return f"{len(steps):,} of the same tap, {abs(shift):,} steps {'later' if shift > 0 else 'earlier'}"
    return None


_NEAR = 1e-6
