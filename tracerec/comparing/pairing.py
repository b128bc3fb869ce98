"""Two runs' records by group, and the pairs of each leaf of theirs: all that `walk` compares."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import structure
from tracerec.comparing import unmatched as lists
from tracerec.comparing.alignment import Group, Series, align, group_of, key_names, static_kwargs
from tracerec.comparing.cells import PAIR, Cell, Counts
from tracerec.comparing.distances import lower_precision
from tracerec.comparing.ordering import TraceIndex, streams_of
from tracerec.comparing.ordinals import is_float
from tracerec.comparing.reading import ColumnSide, LeafSide, WholeSide
from tracerec.comparing.renaming import ignored, nearest_name
from tracerec.errors import ComparisonError, SelectionError
from tracerec.model import NO_SHARD
from tracerec.trace.shards import firings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracerec.comparing.reading import Side
    from tracerec.comparing.renaming import Renaming
    from tracerec.comparing.tolerances import Tolerances
    from tracerec.model import Site
    from tracerec.trace import Trace

__all__ = ["Options", "Pairing", "Run"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Options:
    """What was asked for.

    Attributes:
        tolerances: by tap and dtype.
        cast: whether to compare in the lower precision, or the dtype to compare in.
        noise_factor: how many times the spread of the noise run is allowed.
        key: names of kwargs to match by; None: all static and integer ones.
        renaming: the names that taps of the first run have in the second.
        ignore: patterns of taps to leave out.
    """

    tolerances: Tolerances
    cast: bool | np.dtype[Any]
    noise_factor: float
    key: frozenset[str] | None
    renaming: Renaming
    ignore: tuple[str, ...]


class Run:
    """One trace's records by group.

    Args:
        trace: the trace.
        options: what was asked for.
        renamed: whether its taps' names are the old ones.

    Attributes:
        trace: the trace.
        index: its index rows.
        groups: the numbers of each group's views.
    """

    def __init__(self, trace: Trace, options: Options, *, renamed: bool) -> None:
        self.trace = trace
        new = options.renaming.new if renamed else str
        if renamed:
            options.renaming.check(trace, trace.path)
        names = {name: new(name) for name in trace}
        views = [
            view
            for view in streams_of(trace)
            if not (ignored(view.site.name, options.ignore) or ignored(names[view.site.name], options.ignore))
        ]
        self.index = TraceIndex(views)
        self.groups: dict[Group, list[int]] = {}
        for number, view in enumerate(views):
            if view.records:
                self.groups.setdefault(group_of(view.site, names[view.site.name], options.key), []).append(number)

    def sites(self, group: Group) -> list[Site]:
        """Returns the sites of a group."""
        return [self.index.views[number].site for number in self.groups[group]]

    def series(self, group: Group) -> Series:
        """Returns the records of a group."""
        return Series(self.index, self.groups[group], group)


class Pairing:
    """Which records of two runs belong together.

    Args:
        a: the first run.
        b: the second run.
        options: what was asked for.

    Attributes:
        unmatched: what has no partner, as far as the cells were asked for.

    Raises:
        ComparisonError: no tap has one of the kwargs to match by.
    """

    def __init__(self, a: Run, b: Run, options: Options) -> None:
        self._runs = (a, b)
        self._options = options
        self.unmatched: list[lists.Unmatched] = []
        self._check_key()

    def cells(self) -> Iterator[tuple[Cell, np.ndarray, np.ndarray]]:
        """Yields what is to be compared: each leaf of two streams, its pairs, and what they are matched by."""
        a, b = self._runs
        self._only(a, b)
        for group in a.groups:
            if group in b.groups:
                yield from self._cells(group)

    def _check_key(self) -> None:
        if self._options.key is None:
            return
        known = {n for run in self._runs for g in run.groups for site in run.sites(g) for n in key_names(site)}
        known |= {n for run in self._runs for view in run.index.views for n in key_names(view.site)}
        for name in sorted(self._options.key):
            if name not in known:
                message = f"key: no tap has a kwarg {name!r}; there are {', '.join(sorted(known)) or 'none'}"
                raise ComparisonError(message)

    def _only(self, a: Run, b: Run) -> None:
        """Lists the groups that one run has alone."""
        for mine, other, side in ((a, b, "a"), (b, a, "b")):
            alone = [group for group in other.groups if group not in mine.groups]
            for group in mine.groups:
                if group not in other.groups:
                    count = sum(mine.index.views[number].records for number in mine.groups[group])
                    near = lists.near_group(group, alone, other.groups)
                    self.unmatched.append(lists.only(side, group, "", count, near))

    def _cells(self, group: Group) -> Iterator[tuple[Cell, np.ndarray, np.ndarray]]:
        """Yields each cell of a group with its pairs and their keys; lists what has no partner."""
        a, b = self._runs[0].series(group), self._runs[1].series(group)
        sharded = any(
            leaf.global_shape is not None for run in self._runs[:2] for site in run.sites(group) for leaf in site.leaves
        )
        if sharded:
            yield from self._assembled(group, a, b)
            return
        numbers_a, numbers_b, occurrence = align(a, b)
        self.unmatched += lists.alone(group, a, b, numbers_a, numbers_b)
        pairs, keys = _pairs(a, b, numbers_a, numbers_b, occurrence), a.keys[numbers_a]
        for views, mine in _by_streams(a.view[numbers_a], b.view[numbers_b]):
            one = [run.index.views[number] for run, number in zip(self._runs, views, strict=False)]
            for leaf, sides in self._sides(group, one[0], one[1], len(mine)):
                yield self._cell(group, one[0].site, leaf, sides), pairs[mine], keys[mine]

    def _sides(self, group: Group, a: Any, b: Any, count: int) -> Iterator[tuple[str, tuple[Side, Side]]]:
        """Yields the leaves and float kwargs that two streams have in common; lists the others."""
        names = [{leaf.path: number for number, leaf in enumerate(view.site.leaves)} for view in (a, b)]
        for path, number in names[0].items():
            if path in names[1]:
                yield path, (LeafSide(a, number), LeafSide(b, names[1][path]))
        for mine, other, side in ((names[0], names[1], "a"), (names[1], names[0], "b")):
            for path in mine:
                if path not in other:
                    near = nearest_name(path, [p for p in other if p not in mine])
                    self.unmatched.append(lists.only(side, group, path, count, near))
        matched = {name for name, _, _ in group.keys}
        columns = [
            {c.name: n for n, c in enumerate(view.site.columns) if c.role is None and c.name not in matched}
            for view in (a, b)
        ]
        for name, number in columns[0].items():
            if name in columns[1] and self._options.key is None:
                yield f"kwargs.{name}", (ColumnSide(a, number), ColumnSide(b, columns[1][name]))

    def _assembled(self, group: Group, a: Series, b: Series) -> Iterator[tuple[Cell, np.ndarray, np.ndarray]]:
        sides: list[tuple[list[Any], Any, Series]] = []
        for run, series in ((self._runs[0], a), (self._runs[1], b)):
            views = [run.index.views[number] for number in run.groups[group]]
            try:
                rows = firings(views, [run.index.places(number) for number in run.groups[group]])
            except SelectionError as error:
                self.unmatched.append(lists.not_comparable(group, "", len(series), str(error)))
                return
            starts = np.concatenate([[0], np.cumsum([view.records for view in views])])
            heads = rows.starts[:-1]
            firsts = series.take(starts[rows.stream[heads]] + rows.number[heads])
            # A whole array is of no device.
            firsts.rows = firsts.rows.copy()
            firsts.rows["device"], firsts.rows["shard"] = 0, NO_SHARD
            sides.append((views, rows, firsts))
        (views_a, rows_a, one), (views_b, rows_b, other) = sides
        numbers_a, numbers_b, occurrence = align(one, other)
        self.unmatched += lists.alone(group, one, other, numbers_a, numbers_b)
        pairs = _pairs(one, other, numbers_a, numbers_b, occurrence)
        pairs["number_a"], pairs["number_b"] = numbers_a, numbers_b
        for leaf in views_a[0].site.leaves:
            if leaf.path in {each.path for each in views_b[0].site.leaves}:
                whole = WholeSide(views_a, rows_a, leaf.path), WholeSide(views_b, rows_b, leaf.path)
                yield self._cell(group, views_a[0].site, leaf.path, whole), pairs.copy(), one.keys[numbers_a]

    def _cell(self, group: Group, site: Site, leaf: str, sides: tuple[Side, Side]) -> Cell:
        a, b = sides
        looser = a.dtype if a.dtype == b.dtype else _looser(a.dtype, b.dtype)
        if isinstance(self._options.cast, np.dtype):
            looser = _looser(looser, self._options.cast)
        return Cell(
            group=group,
            tap_a=site.name,
            leaf=leaf,
            transforms=", ".join(map(str, site.transforms)),
            static=_texts(site, group),
            a=a,
            b=b,
            tolerance=self._options.tolerances.of(group.tap, looser),
            dtypes=(_dtype(a), _dtype(b)),
            shapes=(a.shape, b.shape),
            counts=Counts(),
        )


def _by_streams(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yields which two streams some pairs are of, and the numbers of these pairs."""
    if len(a) and (a == a[0]).all() and (b == b[0]).all():
        yield (int(a[0]), int(b[0])), np.arange(len(a))
        return
    most = int(b.max(initial=0)) + 1
    together = a.astype(np.int64) * most + b
    for each in np.unique(together).tolist():
        yield divmod(each, most), np.flatnonzero(together == each)


def _pairs(a: Series, b: Series, numbers_a: np.ndarray, numbers_b: np.ndarray, occurrence: np.ndarray) -> np.ndarray:
    out = np.zeros(len(numbers_a), PAIR)
    out["measured"] = -1
    out["place"] = a.place[numbers_a]
    out["number_a"], out["number_b"] = a.number[numbers_a], b.number[numbers_b]
    out["occurrence"] = occurrence
    for name in ("call", "device", "shard"):
        out[name] = a.rows[name][numbers_a]
    out["process"] = a.index.processes[a.view[numbers_a]]
    return out


def _looser(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    lower = lower_precision(a, b)
    if lower is not None:
        return lower
    return a if is_float(a) or a.kind == "c" else b


def _dtype(side: Side) -> str:
    return side.dtype.name if side.key_impl is None else f"key<{side.key_impl}>"


def _texts(site: Site, group: Group) -> dict[str, Any]:
    nodes: Mapping[str, Any] = static_kwargs(site)
    chosen = {name: node for name, node in nodes.items() if f'"{name}"' in group.kwargs}
    return {name: structure.build(node, str) if _is_static(node) else str(node) for name, node in chosen.items()}


def _is_static(node: Any) -> bool:
    return '{"slot":' not in structure.canonical(node)
