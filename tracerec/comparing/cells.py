"""The pairs of one leaf of two streams, and what comparing them found."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracerec.comparing.distances import lower_precision
from tracerec.comparing.kept import KeptSide
from tracerec.comparing.measures import MEASURES, measure, rel_l2
from tracerec.comparing.ordinals import is_float
from tracerec.comparing.reading import NotComparable, blocks, raw_chunks
from tracerec.comparing.telling import Asked, tell
from tracerec.trace.view import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.comparing.alignment import Group
    from tracerec.comparing.kept import By
    from tracerec.comparing.reading import Side
    from tracerec.comparing.spool import Handle, Spool
    from tracerec.comparing.tolerances import Tolerance

__all__ = [
    "BEYOND",
    "BITS",
    "DIFFERENT",
    "DTYPE",
    "EQUAL",
    "KINDS",
    "LANES",
    "MEASURES_EMPTY",
    "NOISE",
    "PAIR",
    "SAME",
    "SHAPE",
    "UNKNOWN",
    "WITHIN",
    "Cell",
    "Comparer",
    "Counts",
    "errors_of",
]

KINDS = (
    "equal",
    "equal values",
    "within tolerance",
    "within noise",
    "beyond tolerance",
    "dtype differs",
    "shape differs",
    "valid lanes differ",
    "not comparable",
    "bits differ",
)
"""What a pair can be, by number."""

EQUAL, SAME, WITHIN, NOISE, BEYOND, DTYPE, SHAPE, LANES, UNKNOWN, BITS = range(len(KINDS))

DIFFERENT = (BEYOND, DTYPE, SHAPE, LANES, BITS)
"""The kinds that make two runs different."""

_IS_DIFFERENT = np.isin(np.arange(len(KINDS)), DIFFERENT)

PAIR = np.dtype(
    [
        ("kind", "u1"),  # see KINDS
        ("measured", "<i8"),  # its row among the cell's measures, -1: none
        ("place", "<i8"),  # in the first run's order of execution
        ("number_a", "<i8"),  # what the sides read it by
        ("number_b", "<i8"),
        ("occurrence", "<i8"),
        ("call", "<u8"),
        ("device", "<i4"),
        ("shard", "<i4"),
        ("process", "<i4"),
    ]
)
"""One pair of records and leaf."""

MEASURES_EMPTY = np.empty(0, MEASURES)


@dataclasses.dataclass(slots=True)
class Counts:
    """How many pairs a cell has of each kind, and its worst.

    Attributes:
        kinds: by number of `KINDS`.
        worst: the largest of each measure.
        worst_error: the largest of `errors_of`.
        worst_pair: the pair that has it, -1: none differs.
        first_different: place of the first pair beyond, and its number; None: there is none.
        first_changed: the same of the first whose values differ at all and are not within noise.
        reasons: why pairs could not be compared.
        by_process: ``first_different`` of each process.
        statistics: of a cell that is compared by what was kept: in how many pairs each statistic is beyond.
    """

    kinds: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    worst: dict[str, float] = dataclasses.field(default_factory=dict)
    worst_error: float = 0.0
    worst_pair: int = -1
    first_different: tuple[int, int] | None = None
    first_changed: tuple[int, int] | None = None
    reasons: list[str] = dataclasses.field(default_factory=list)
    by_process: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    statistics: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Where a cell's pairs, keys and measures are.

    Attributes:
        spool: what holds them.
        pairs: the pairs.
        keys: what each record was matched by.
        measures: those of pairs that are not equal.
    """

    spool: Spool
    pairs: Handle
    keys: Handle
    measures: Handle


@dataclasses.dataclass(eq=False, slots=True)
class Cell:
    """The pairs of one leaf of two streams.

    Attributes:
        group: what the records have in common.
        tap_a: the tap's name in the first run.
        leaf: the leaf's key path; of a float kwarg ``kwargs.NAME``.
        transforms: the transforms as text.
        static: the static kwargs.
        a: the first side.
        b: the second side.
        tolerance: what counts as beyond.
        kept: what was found of each pair; None before they are compared.
        counts: what was found.
        dtypes: the names of both sides' dtypes; a key's has its implementation.
        shapes: both sides' shapes.
        first_place: the place of its first record in the first run's order of execution.
        by: how the leaf is compared, where it is not element by element; both sides are then `KeptSide`.
        opaque: whether the size of a difference means nothing.
    """

    group: Group
    tap_a: str
    leaf: str
    transforms: str
    static: dict[str, Any]
    a: Side
    b: Side
    tolerance: Tolerance
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    counts: Counts
    kept: Kept | None = None
    first_place: int = 0
    by: By | None = None
    opaque: bool = False

    @property
    def tap(self) -> str:
        """The tap's name in the second run."""
        return self.group.tap

    @property
    def pairs(self) -> np.ndarray:
        """The pairs, ``(n,)`` of `PAIR`."""
        return self._kept.spool.get(self._kept.pairs)

    @property
    def keys(self) -> np.ndarray:
        """What each record was matched by, ``(n, width)``."""
        return self._kept.spool.get(self._kept.keys)

    @property
    def measures(self) -> np.ndarray:
        """The measures of the pairs that are not equal, ``(m,)``."""
        return self._kept.spool.get(self._kept.measures)

    def keep(self, spool: Spool, pairs: np.ndarray, keys: np.ndarray, measures: np.ndarray) -> None:
        """Puts what was found of the pairs into the spool, and counts it."""
        _count(self, pairs, measures)
        self.kept = Kept(spool, spool.put(pairs), spool.put(keys), spool.put(measures))

    @property
    def _kept(self) -> Kept:
        if self.kept is None:
            message = f"the pairs of {self.tap!r} are not compared yet"
            raise RuntimeError(message)
        return self.kept


class Comparer:
    """Compares the pairs of cells.

    Args:
        cast: whether to compare in the lower of two precisions; or the dtype to compare in.
        noise_factor: how many times the difference of a noise run is excused.
    """

    def __init__(self, *, cast: bool | np.dtype[Any], noise_factor: float) -> None:
        self._cast, self._noise_factor = cast, noise_factor
        # The C library hands back freed memory beyond twice the largest block that was freed, and reads then get pages
        # that the system zeroes: a sixth of the time. A block larger than all others, never touched, raises that.
        _ = np.empty(3 * BLOCK_BYTES, np.uint8)

    def compare(
        self, cell: Cell, pairs: np.ndarray, noise: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None
    ) -> np.ndarray:
        """Compares pairs, sets their kinds, and returns the measures of those that are not equal.

        Args:
            cell: whose pairs they are.
            pairs: the pairs, changed in place.
            noise: returns how far some records of the first run, by number, are from those of a noise run: their
                measures, and which of them there are; None: there is no noise run.
        """
        if not len(pairs):
            return MEASURES_EMPTY
        if cell.shapes[0] != cell.shapes[1]:
            pairs["kind"] = SHAPE
            return MEASURES_EMPTY
        if cell.a.key_impl != cell.b.key_impl:
            pairs["kind"] = DTYPE
            return np.empty(0, MEASURES)
        if cell.by is not None and cell.a.dtype != cell.b.dtype and not self._cast:
            # A digest, or the smallest element, of one dtype says nothing of another.
            pairs["kind"] = DTYPE
            return MEASURES_EMPTY
        raw = raw_chunks(cell.a, cell.b, pairs["number_a"], pairs["number_b"])
        measured: list[np.ndarray] = []
        done = 0
        for start, stop in blocks(cell.a, cell.b, len(pairs), raw):
            block = pairs[start:stop]
            known = None if raw is None else raw.equal(start, stop)
            for some in _unknown(block, known):
                rows = self._block(cell, some, noise)
                some["measured"][some["measured"] >= 0] += done
                measured.append(rows)
                done += len(rows)
        if len(measured) == 1:
            return measured[0]
        return np.concatenate(measured) if measured else np.empty(0, MEASURES)

    def compare_together(self, some: Sequence[tuple[Cell, np.ndarray]]) -> list[np.ndarray]:
        """Does what `compare` does of each of some cells, which `tracerec.comparing.together` found to be alike."""
        sides = [(cell.a.read(pairs["number_a"])[0], cell.b.read(pairs["number_b"])[0]) for cell, pairs in some]
        a, b = (np.concatenate(side) for side in zip(*sides, strict=True))
        tolerance = some[0][0].tolerance
        rows = measure(a, b, tolerance)
        kind = _kinds(rows, tolerance)
        found: list[np.ndarray] = []
        start = 0
        for _, pairs in some:
            stop = start + len(pairs)
            found.append(_settled(pairs, rows[start:stop], kind[start:stop]))
            start = stop
        return found

    def _block(
        self, cell: Cell, pairs: np.ndarray, noise: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None
    ) -> np.ndarray:
        try:
            rows, kind = self._told(cell, pairs) if cell.by is not None else self._measured(cell, pairs)
        except NotComparable as error:
            if len(pairs) > 1:
                return self._one_by_one(cell, pairs, noise)
            pairs["kind"] = UNKNOWN
            cell.counts.reasons.append(str(error))
            return np.empty(0, MEASURES)
        if cell.a.unknown or cell.b.unknown:
            kind[kind != EQUAL] = UNKNOWN
        if noise is not None and (kind == BEYOND).any():
            self._excuse(pairs, rows, kind, noise)
        return _settled(pairs, rows, kind)

    def _measured(self, cell: Cell, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the measures and kinds of pairs whose elements are compared."""
        a, valid_a = cell.a.read(pairs["number_a"])
        b, valid_b = cell.b.read(pairs["number_b"])
        retyped = a.dtype != b.dtype
        if self._cast:  # a dtype is true, too
            a, b = _cast(a, b, self._cast)
        opaque = cell.opaque or cell.a.key_impl is not None
        rows = measure(a, b, cell.tolerance, valid=(valid_a, valid_b), key=opaque)
        kind = _kinds(rows, cell.tolerance)
        if retyped and not self._cast:
            kind[:] = DTYPE
        elif retyped:
            kind = np.maximum(kind, SAME)
        return rows, kind

    def _told(self, cell: Cell, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the measures and kinds of pairs that are compared by what was kept."""
        if cell.by is None or not (isinstance(cell.a, KeptSide) and isinstance(cell.b, KeptSide)):
            message = f"{cell.tap!r} {cell.leaf} is not compared by what was kept"
            raise RuntimeError(message)
        retyped = cell.a.dtype != cell.b.dtype
        if retyped and cell.by.kind != "summary":
            message = f"a {cell.by.kind} of {cell.dtypes[0]} says nothing of {cell.dtypes[1]}"
            raise NotComparable(message)
        numbers = pairs["number_a"], pairs["number_b"]
        found = tell(Asked(cell.by.kind, cell.a, cell.b, numbers, cell.tolerance, cast=retyped))
        for name, mask in found.beyond.items():
            count = int(mask.reshape(len(pairs), mask[:1].size).any(axis=1).sum())
            if count:
                cell.counts.statistics[name] = cell.counts.statistics.get(name, 0) + count
        kind = _kinds(found.rows, cell.tolerance)
        if cell.by.kind == "fingerprint":
            kind[kind == BEYOND] = BITS
        return found.rows, kind

    def _one_by_one(self, cell: Cell, pairs: np.ndarray, noise: Any) -> np.ndarray:
        found: list[np.ndarray] = []
        done = 0
        for number in range(len(pairs)):
            one = pairs[number : number + 1]
            rows = self._block(cell, one, noise)
            one["measured"][one["measured"] >= 0] += done
            done += len(rows)
            found.append(rows)
        return np.concatenate(found)

    def _excuse(
        self,
        pairs: np.ndarray,
        rows: np.ndarray,
        kind: np.ndarray,
        noise: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Marks what differs no more than a noise run does, by its largest difference and by its norm."""
        beyond = np.flatnonzero(kind == BEYOND)
        spread, there = noise(pairs["number_a"][beyond])
        ours, factor = rows[beyond], self._noise_factor
        finite = np.isfinite(ours["max_abs"]) & (ours["nan"] + ours["posinf"] + ours["neginf"] == 0)
        small = (ours["max_abs"] <= factor * spread["max_abs"]) & (ours["dd"] <= factor**2 * spread["dd"])
        kind[beyond[there & finite & small]] = NOISE


def _settled(pairs: np.ndarray, rows: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Sets the kinds of pairs; returns the measures of those that are not equal."""
    pairs["kind"] = kind
    kept = np.flatnonzero(kind != EQUAL)
    pairs["measured"][kept] = np.arange(len(kept))
    return rows if len(kept) == len(rows) else rows[kept]


def _count(cell: Cell, pairs: np.ndarray, rows: np.ndarray) -> None:
    counts = cell.counts
    cell.first_place = int(pairs["place"].min()) if len(pairs) else 0
    counts.kinds += np.bincount(pairs["kind"], minlength=len(KINDS))
    errors = errors_of(pairs, rows)
    ranked = np.where(np.isnan(errors), 0.0, errors)
    if len(errors) and ranked.max() > 0:
        counts.worst_pair = int(ranked.argmax())
        counts.worst_error = float(errors[counts.worst_pair])
    for name in ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol"):
        most = float(np.fmax.reduce(rows[name], initial=np.nan))
        if not math.isnan(most):
            counts.worst[name] = max(most, counts.worst.get(name, 0.0))
    if not len(pairs) or pairs["kind"].max() == EQUAL:
        return
    different = _IS_DIFFERENT[pairs["kind"]]
    counts.first_different = _earliest(pairs, different, counts.first_different)
    changed = different | (pairs["kind"] == WITHIN)
    counts.first_changed = _earliest(pairs, changed, counts.first_changed)
    processes = pairs["process"][different]
    alone = bool((processes[1:] == processes[:-1]).all())
    for process in (processes[:1] if alone else np.unique(processes)).tolist():
        mine = different if alone else different & (pairs["process"] == process)
        found = _earliest(pairs, mine, counts.by_process.get(process))
        if found is not None:
            counts.by_process[process] = found


def errors_of(pairs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns how far each pair is apart: the norm of the difference over that of the first side.

    Infinite where NaN or an infinity is on one side only; of keys and what was not measured, the share that differs.
    """
    out = np.zeros(len(pairs))
    there = pairs["measured"] >= 0
    found = pairs["measured"][there]
    error = rel_l2(rows)
    error[rows["nan"] + rows["posinf"] + rows["neginf"] > 0] = np.inf
    keys = np.isnan(rows["max_abs"])
    error[keys] = rows["differing"][keys] / np.maximum(rows["size"][keys], 1)
    out[there] = error[found]
    if not there.all():
        out[~there & np.isin(pairs["kind"], (DTYPE, SHAPE))] = np.nan
    return out


def _earliest(pairs: np.ndarray, mask: np.ndarray, known: tuple[int, int] | None) -> tuple[int, int] | None:
    chosen = np.flatnonzero(mask)
    if not len(chosen):
        return known
    number = int(chosen[np.argmin(pairs["place"][chosen])])
    found = int(pairs["place"][number]), number
    return found if known is None else min(found, known)


def _unknown(block: np.ndarray, known: np.ndarray | None) -> Sequence[np.ndarray]:
    """Returns the runs of a block that are not known to be equal."""
    if known is None:
        return [block]
    if known.all():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[True], known, [True]]).astype(np.int8)))
    return [block[start:stop] for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


def _kinds(rows: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    kind = np.full(len(rows), BEYOND, np.uint8)
    if not tolerance.exact:
        kind[rows["beyond"] == 0] = WITHIN
        kind[rows["differing"] == 0] = SAME
    kind[(rows["differing"] == 0) & (rows["bits"] == 0)] = EQUAL
    kind[rows["lanes"] > 0] = LANES
    return kind


def _cast(a: np.ndarray, b: np.ndarray, to: Literal[True] | np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(to, np.dtype):
        return tuple(x.astype(to) if is_float(x.dtype) else x for x in (a, b))  # type: ignore[return-value]  # two
    lower = lower_precision(a.dtype, b.dtype)
    return (a, b) if lower is None else (a.astype(lower, copy=False), b.astype(lower, copy=False))
