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
from tracerec.comparing.kept import Pair, Stream, has_kept, kept_text, pairs_of, tapped
from tracerec.comparing.ordering import TraceIndex, streams_of
from tracerec.comparing.ordinals import is_float
from tracerec.comparing.reading import ColumnSide, LeafSide, Whole, WholeColumnSide, WholeSide
from tracerec.comparing.renaming import ignored, nearest_name
from tracerec.comparing.tolerances import Tolerance
from tracerec.errors import ComparisonError, SelectionError
from tracerec.keeping.bins import is_wide
from tracerec.model import NO_SHARD
from tracerec.trace.shards import firings, whole_site

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracerec.comparing.reading import Side
    from tracerec.comparing.renaming import Renaming
    from tracerec.comparing.tolerances import Tolerances
    from tracerec.model import Site
    from tracerec.trace import Trace
    from tracerec.trace.shards import Firings
    from tracerec.trace.view import StreamView

__all__ = ["Options", "Pairing", "Run", "wholes"]


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
        self._new, self._ignore = options.renaming.new if renamed else str, options.ignore
        if renamed:
            options.renaming.check(trace, trace.path)
        names = {name: self.name_of(name) for name in trace}
        self.index = TraceIndex([view for view in streams_of(trace) if names[view.site.name] is not None])
        self.groups: dict[Group, list[int]] = {}
        for number, view in enumerate(self.index.views):
            name = names[view.site.name]
            if view.records and name is not None:
                self.groups.setdefault(group_of(view.site, name, options.key), []).append(number)

    def name_of(self, tap: str) -> str | None:
        """Returns the name that one of its taps has in the second run; None: it is to be left out."""
        new = self._new(tap)
        return None if ignored(tap, self._ignore) or ignored(new, self._ignore) else new

    def sites(self, group: Group) -> list[Site]:
        """Returns the sites of a group."""
        return [self.index.views[number].site for number in self.groups.get(group, ())]

    def series(self, group: Group) -> Series:
        """Returns the records of a group."""
        return Series(self.index, self.groups[group], group)


def wholes(run: Run, group: Group, series: Series) -> tuple[list[StreamView], Firings, Series]:
    """Returns the records of a group put together from shards.

    Args:
        run: the run.
        group: the group.
        series: its records in the run.

    Returns:
        The group's views, their firings, and the first record of each firing, which stands for it.

    Raises:
        SelectionError: nothing tells which records of several processes belong together.
    """
    views = [run.index.views[number] for number in run.groups[group]]
    starts = np.concatenate([[0], np.cumsum([view.records for view in views])])
    # Places among the records of the group, not of the trace.
    places = np.concatenate([run.index.places(number) for number in run.groups[group]])
    ranks = np.empty(len(places), np.int64)
    ranks[np.argsort(places, kind="stable")] = np.arange(len(places))
    rows = firings(views, np.split(ranks, starts[1:-1]))
    heads = rows.starts[:-1]
    firsts = series.take(starts[rows.stream[heads]] + rows.number[heads])
    # A whole array is of no device.
    firsts.rows = firsts.rows.copy()
    firsts.rows["device"], firsts.rows["shard"] = 0, NO_SHARD
    return views, rows, firsts


class Pairing:
    """Which records of two runs belong together.

    Args:
        a: the first run.
        b: the second run.
        options: what was asked for.
        noise: the noise run, if there is one.

    Attributes:
        unmatched: what has no partner, as far as the cells were asked for.

    Raises:
        ComparisonError: no tap has one of the kwargs to match by.
    """

    def __init__(self, a: Run, b: Run, options: Options, noise: Run | None = None) -> None:
        self._runs = (a, b)
        self._all = (a, b) if noise is None else (a, b, noise)
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
            leaf.global_shape is not None for run in self._all for site in run.sites(group) for leaf in site.leaves
        )
        if sharded:
            yield from self._assembled(group, a, b)
            return
        numbers_a, numbers_b, occurrence = align(a, b)
        self.unmatched += lists.alone(group, a, b, numbers_a, numbers_b)
        pairs, keys = _pairs(a, b, numbers_a, numbers_b, occurrence), a.keys[numbers_a]
        for views, mine in _by_streams(a.view[numbers_a], b.view[numbers_b]):
            one = [run.index.views[number] for run, number in zip(self._runs, views, strict=False)]
            for pair in self._sides(group, one[0], one[1], len(mine)):
                # Of rows as wide as these an index takes three times as long.
                yield self._cell(group, one[0].site, pair), np.take(pairs, mine), np.take(keys, mine, axis=0)

    def _sides(self, group: Group, a: Any, b: Any, count: int) -> Iterator[Pair]:
        """Yields the leaves and float kwargs that two streams have in common; lists the others."""
        if has_kept(a.site) or has_kept(b.site):
            streams = [Stream(view.site, lambda place, of=view: LeafSide(of, place)) for view in (a, b)]
            yield from self._kept(group, streams[0], streams[1], count)
        else:
            names = [{leaf.path: number for number, leaf in enumerate(view.site.leaves)} for view in (a, b)]
            for path in self._common(group, names[0], names[1], count):
                yield Pair(path, LeafSide(a, names[0][path]), LeafSide(b, names[1][path]))
        columns = [self._columns(group, view.site) for view in (a, b)]
        for name, number in columns[0].items():
            if name in columns[1]:
                yield Pair(f"kwargs.{name}", ColumnSide(a, number), ColumnSide(b, columns[1][name]))

    def _kept(self, group: Group, a: Stream, b: Stream, count: int) -> Iterator[Pair]:
        """Yields what two streams have in common of each leaf; lists leaves of which that is nothing."""
        one, other = tapped(a.site), tapped(b.site)
        for path in self._common(group, one, other, count):
            found = list(pairs_of(a, b, one[path], other[path]))
            yield from found
            if not found:
                reason = f"kept as {kept_text(one[path])} and as {kept_text(other[path])}"
                self.unmatched.append(lists.not_comparable(group, path, count, reason))

    def _common(self, group: Group, a: Mapping[str, Any], b: Mapping[str, Any], count: int) -> Iterator[str]:
        """Yields the paths of the leaves that both have; lists the others."""
        yield from (path for path in a if path in b)
        for mine, other, side in ((a, b, "a"), (b, a, "b")):
            for path in mine:
                if path not in other:
                    near = nearest_name(path, [p for p in other if p not in mine])
                    self.unmatched.append(lists.only(side, group, path, count, near))

    def _columns(self, group: Group, site: Site) -> dict[str, int]:
        """Returns the kwargs that are compared: those that records are not matched by."""
        matched = {name for name, _, _ in group.keys}
        if self._options.key is not None:
            return {}
        return {c.name: n for n, c in enumerate(site.columns) if c.role is None and c.name not in matched}

    def _whole_sides(self, group: Group, wholes: tuple[Whole, Whole], count: int) -> Iterator[Pair]:
        """Yields as `_sides` does, of arrays that are put together from shards."""
        a, b = wholes
        if has_kept(a.site) or has_kept(b.site):
            streams = [
                Stream(whole_site(whole.site), lambda place, of=whole: WholeSide(of, of.site.leaves[place].path))
                for whole in wholes
            ]
            yield from self._kept(group, streams[0], streams[1], count)
        else:
            names = [{leaf.path: number for number, leaf in enumerate(whole.site.leaves)} for whole in wholes]
            for path in self._common(group, names[0], names[1], count):
                yield Pair(path, WholeSide(a, path), WholeSide(b, path))
        for name in self._columns(group, a.site):
            if name in self._columns(group, b.site):
                yield Pair(f"kwargs.{name}", WholeColumnSide(a, name), WholeColumnSide(b, name))

    def _assembled(self, group: Group, a: Series, b: Series) -> Iterator[tuple[Cell, np.ndarray, np.ndarray]]:
        try:
            views_a, rows_a, one = wholes(self._runs[0], group, a)
            views_b, rows_b, other = wholes(self._runs[1], group, b)
        except SelectionError as error:
            self.unmatched.append(lists.not_comparable(group, "", max(len(a), len(b)), str(error)))
            return
        numbers_a, numbers_b, occurrence = align(one, other)
        self.unmatched += lists.alone(group, one, other, numbers_a, numbers_b)
        pairs = _pairs(one, other, numbers_a, numbers_b, occurrence)
        pairs["number_a"], pairs["number_b"] = numbers_a, numbers_b
        firsts = (rows_a.stream[rows_a.starts[:-1]][numbers_a], rows_b.stream[rows_b.starts[:-1]][numbers_b])
        for (first_a, first_b), mine in _by_streams(*firsts):
            sides = (Whole(views_a, rows_a, first_a), Whole(views_b, rows_b, first_b))
            for pair in self._whole_sides(group, sides, len(mine)):
                site = views_a[first_a].site
                yield self._cell(group, site, pair), pairs[mine], one.keys[numbers_a[mine]]

    def _tolerance(self, tap: str, pair: Pair) -> Tolerance:
        a, b = pair.a, pair.b
        measured = pair.by is None or pair.by.kind == "summary"
        if pair.opaque or not measured or (pair.by is not None and a.key_impl is not None):
            return Tolerance(exact=True)
        looser = a.dtype if a.dtype == b.dtype else _looser(a.dtype, b.dtype)
        if isinstance(self._options.cast, np.dtype):
            looser = _looser(looser, self._options.cast)
        if pair.of is not None:
            looser = _looser(looser, pair.of)
        if pair.by is not None and not (is_float(looser) or looser.kind == "c"):
            # The moments of integers are floats.
            looser = np.dtype("float64" if is_wide(looser.name) else "float32")
        return self._options.tolerances.of(tap, looser)

    def _cell(self, group: Group, site: Site, pair: Pair) -> Cell:
        a, b = pair.a, pair.b
        return Cell(
            group=group,
            tap_a=site.name,
            leaf=pair.path,
            transforms=", ".join(map(str, site.transforms)),
            static=_texts(site, group),
            a=a,
            b=b,
            tolerance=self._tolerance(group.tap, pair),
            dtypes=(_dtype(a), _dtype(b)),
            shapes=(a.shape, b.shape),
            counts=Counts(),
            by=pair.by,
            opaque=pair.opaque,
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
