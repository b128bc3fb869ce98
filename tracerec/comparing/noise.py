"""How much a run differs from a repeated or perturbed one: what no regression is."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from tracerec.comparing.alignment import align
from tracerec.comparing.cells import DTYPE, LANES, MEASURES_EMPTY, PAIR, SHAPE, UNKNOWN, Counts
from tracerec.comparing.kept import KeptSide, Stream, kept_side, tapped
from tracerec.comparing.pairing import wholes
from tracerec.comparing.reading import ColumnSide, LeafSide, Whole, WholeColumnSide, WholeSide
from tracerec.errors import SelectionError
from tracerec.trace.shards import whole_site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.comparing.alignment import Series
    from tracerec.comparing.cells import Cell, Comparer
    from tracerec.comparing.pairing import Run
    from tracerec.comparing.reading import Side
    from tracerec.trace.view import StreamView

__all__ = ["Noise"]


class Noise:
    """The differences between the first run and its noise run.

    Args:
        a: the first run.
        noise: the repeated or perturbed run.
        comparer: what measures.
    """

    def __init__(self, a: Run, noise: Run, comparer: Comparer) -> None:
        self._a, self._noise, self._comparer = a, noise, comparer

    def of(self, cell: Cell) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
        """Returns what measures some records of a cell, by number; None where the noise run has none of them.

        It returns the measures of each, and which of them the noise run has.
        """
        if cell.group not in self._noise.groups:
            return None
        partners = functools.cache(lambda: self._partners(cell))
        return lambda numbers: self._measured(cell, numbers, partners())

    def _partners(self, cell: Cell) -> list[tuple[Side, np.ndarray]]:
        """Returns the sides of the noise run, and the number there of each record of the first run; -1: none."""
        a, other = self._a.series(cell.group), self._noise.series(cell.group)
        read = next(iter(cell.a.parts.values())) if isinstance(cell.a, KeptSide) else cell.a
        if isinstance(read, (WholeSide, WholeColumnSide)):
            return self._whole_partners(cell, a, other)
        if not isinstance(read, (LeafSide, ColumnSide)):
            return []
        numbers_a, numbers_n, _ = align(a, other)
        mine = a.view[numbers_a] == self._a.index.views.index(read.view)
        numbers_a, numbers_n = a.number[numbers_a[mine]], numbers_n[mine]
        out: list[tuple[Side, np.ndarray]] = []
        for view in np.unique(other.view[numbers_n]).tolist():
            stream = self._noise.index.views[view]
            side = _side(stream, cell)
            if side is not None:
                there = other.view[numbers_n] == view
                partner = np.full(read.view.records, -1, np.int64)
                partner[numbers_a[there]] = other.number[numbers_n[there]]
                out.append((side, partner))
        return out

    def _whole_partners(self, cell: Cell, a: Series, other: Series) -> list[tuple[Side, np.ndarray]]:
        try:
            _, _, one = wholes(self._a, cell.group, a)
            views, rows, other = wholes(self._noise, cell.group, other)
        except SelectionError:
            # Nothing tells which records belong together: none of them excuses anything.
            return []
        numbers_a, numbers_n, _ = align(one, other)
        partner = np.full(len(one), -1, np.int64)
        partner[numbers_a] = numbers_n
        firsts = rows.stream[rows.starts[:-1]]
        out: list[tuple[Side, np.ndarray]] = []
        for first in np.unique(firsts).tolist():
            side = _whole_side(Whole(views, rows, first), cell)
            if side is not None:
                mine = (partner >= 0) & (firsts[partner] == first)
                out.append((side, np.where(mine, partner, -1)))
        return out

    def _measured(
        self, cell: Cell, numbers: np.ndarray, partners: Sequence[tuple[Side, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.zeros(len(numbers), MEASURES_EMPTY.dtype)
        there = np.zeros(len(numbers), bool)
        for side, partner in partners:
            mine = np.flatnonzero(partner[numbers] >= 0)
            pairs = np.zeros(len(mine), PAIR)
            pairs["measured"] = -1
            pairs["number_a"], pairs["number_b"] = numbers[mine], partner[numbers[mine]]
            again = dataclasses.replace(cell, b=side, shapes=(cell.a.shape, side.shape), counts=Counts(), kept=None)
            found = self._comparer.compare(again, pairs, None)
            there[mine] = ~np.isin(pairs["kind"], (DTYPE, SHAPE, LANES, UNKNOWN))
            measured = pairs["measured"] >= 0
            rows[mine[measured]] = found[pairs["measured"][measured]]
        return rows, there


def _side(stream: StreamView, cell: Cell) -> Side | None:
    """Returns the leaf, or the kwarg, of a stream that a cell compares; None: it has none."""
    if isinstance(cell.a, KeptSide):
        return _kept_side(Stream(stream.site, lambda place: LeafSide(stream, place)), cell, cell.a)
    if isinstance(cell.a, ColumnSide):
        names = [f"kwargs.{column.name}" if column.role is None else "" for column in stream.site.columns]
        return ColumnSide(stream, names.index(cell.leaf)) if cell.leaf in names else None
    paths = [leaf.path for leaf in stream.site.leaves]
    return LeafSide(stream, paths.index(cell.leaf)) if cell.leaf in paths else None


def _whole_side(whole: Whole, cell: Cell) -> Side | None:
    """Returns the same of arrays that are put together from shards."""
    if isinstance(cell.a, KeptSide):
        site = whole_site(whole.site)
        return _kept_side(Stream(site, lambda place: WholeSide(whole, site.leaves[place].path)), cell, cell.a)
    if isinstance(cell.a, WholeColumnSide):
        names = [f"kwargs.{column.name}" for column in whole.site.columns if column.role is None]
        return WholeColumnSide(whole, cell.leaf.removeprefix("kwargs.")) if cell.leaf in names else None
    return WholeSide(whole, cell.leaf) if any(leaf.path == cell.leaf for leaf in whole.site.leaves) else None


def _kept_side(stream: Stream, cell: Cell, a: KeptSide) -> KeptSide | None:
    """Returns what tells of a leaf in the noise run what is compared of it."""
    found = [row for row in tapped(stream.site).get(cell.leaf, ()) if row.leaf.path == cell.leaf]
    return kept_side(stream, found[0], cell.by.kind, a.lanes) if found and cell.by is not None else None
