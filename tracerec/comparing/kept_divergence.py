"""One pair of records that are compared by what was kept of them, for people: which statistics differ."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing.cells import BITS, KINDS
from tracerec.comparing.kept import KeptSide
from tracerec.comparing.reading import NotComparable
from tracerec.comparing.telling import Asked, tell
from tracerec.comparing.tolerances import Tolerance
from tracerec.keeping.bins import is_whole
from tracerec.keeping.specs import COUNTED
from tracerec.statistics import moments_by_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.comparing.cells import Cell
    from tracerec.comparing.divergence import Divergence

__all__ = ["found", "lines", "reason"]


def found(cell: Cell, pair: Any) -> dict[str, Any]:
    """Returns the fields of a `Divergence` that say by what a pair is compared, and in what it differs; reads it."""
    out: dict[str, Any] = {"by": str(cell.by)}
    a, b = cell.a, cell.b
    if pair["measured"] < 0 or cell.by is None or not (isinstance(a, KeptSide) and isinstance(b, KeptSide)):
        return out
    numbers = np.array([pair["number_a"]]), np.array([pair["number_b"]])
    try:
        told = tell(Asked(cell.by.kind, a, b, numbers, cell.tolerance, cast=a.dtype != b.dtype))
    except NotComparable:
        return out
    masks = {name: mask[0] for name, mask in told.beyond.items()}
    anywhere = np.any(list(masks.values()), axis=0)
    lane = tuple(int(i) for i in np.unravel_index(int(anywhere.argmax()), anywhere.shape)) if anywhere.size else ()
    out["differing"] = tuple(name for name, mask in masks.items() if mask.any())
    values = {name: (one[(0, *lane)], other[(0, *lane)]) for name, (one, other) in told.values.items()}
    if cell.by.kind == "fingerprint":
        _count_whole((a, b), numbers, lane, values)
    if cell.by.kind != "histogram":
        out["statistics"] = tuple((name, *pair) for name, pair in _known(values).items())
    if anywhere.ndim:
        out["index"] = lane
        out["lanes"] = int(anywhere.sum()), int(anywhere.size)
    return out


def reason(divergence: Divergence) -> str:
    """Returns in what a record differs, in a few words."""
    lanes = ""
    if divergence.index is not None and divergence.lanes[1]:
        first = ", ".join(map(str, divergence.index))
        lanes = f" in {divergence.lanes[0]:,} of {divergence.lanes[1]:,} lanes, the first [{first}]"
    how = f"compared by {divergence.by}"
    if divergence.kind == KINDS[BITS]:
        return f"bits differ: {divergence.dtypes[0]} {divergence.shapes[0]}{lanes}; {how}"
    names = divergence.differing
    if not names:
        return f"{divergence.kind}; {how}"
    verb = "differs" if len(names) == 1 else "differ"
    measured = _MEASURED if is_whole(divergence.dtypes[0]) else (*_MEASURED, "min", "max")
    exact = [name for name in names if name not in measured]
    must = f" ({_listed(tuple(exact))} must be equal)" if divergence.tolerance != _EQUAL and exact else ""
    allowed = "" if divergence.tolerance == _EQUAL else f"; allowed of elements: {divergence.tolerance}{must}"
    return f"{_listed(names)} {verb}{lanes}; {how}{allowed}"


def lines(divergence: Divergence) -> Iterator[str]:
    """Yields the statistics of both runs, a line each; counts that are 0 in both are left out."""
    shown = [each for each in divergence.statistics if each[0] in _ALWAYS or each[1] or each[2]]
    if shown:
        yield f"  {'':<16} {'a':>24} {'b':>24}"
    for name, a, b in shown:
        mark = "<" if name in divergence.differing else ""
        texts = [_shown(value, exactly=name in divergence.differing) for value in (a, b)]
        yield f"  {name:<16} {texts[0]:>24} {texts[1]:>24} {mark}".rstrip()


_EQUAL = str(Tolerance(exact=True))
_MEASURED = ("mean", "std", "l1", "l2")
_ALWAYS = ("digest", "count", "min", "max", *_MEASURED)


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shown(value: Any, *, exactly: bool) -> str:
    return f"{value:.9g}" if isinstance(value, float) and not exactly else str(value)


def _plain(name: str, value: Any) -> Any:
    """Returns a digest as hexadecimal digits, a count as an integer."""
    if name == "digest":
        return f"{int(value):016x}"
    return int(value) if value.dtype.kind in "iu" else float(value)


def _known(values: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Returns the statistics that both sides tell, as Python values."""
    out = {name: (_plain(name, a), _plain(name, b)) for name, (a, b) in values.items()}
    lacking = {name for name, pair in out.items() if name in COUNTED and min(pair) < 0}
    lacking |= {name for name, pair in out.items() if any(isinstance(n, float) and math.isnan(n) for n in pair)}
    return {name: pair for name, pair in out.items() if name not in lacking}


def _count_whole(
    sides: tuple[KeptSide, KeptSide],
    numbers: tuple[np.ndarray, np.ndarray],
    lane: tuple[int, ...],
    values: dict[str, tuple[Any, Any]],
) -> None:
    """Puts in the counts of a side that has the whole leaf: they stand beside the digest."""
    for place, (side, number) in enumerate(zip(sides, numbers, strict=True)):
        if not side.is_whole:
            continue
        array, valid = side.whole(number)
        elements = array[(0, *lane)] if valid is None else array[(0, *lane)][valid[(0, *lane)]]
        for name, count in moments_by_row(np.asarray(elements)[None]).items():
            if name in values:
                pair = list(values[name])
                pair[place] = np.int64(count[0])
                values[name] = pair[0], pair[1]
