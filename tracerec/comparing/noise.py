"""How much a run differs from a repeated or perturbed one: what no regression is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec.comparing.alignment import align
from tracerec.comparing.cells import MEASURES_EMPTY, PAIR, Counts
from tracerec.comparing.reading import LeafSide

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.comparing.alignment import Series
    from tracerec.comparing.cells import Cell, Comparer
    from tracerec.comparing.pairing import Run

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
        side = cell.a
        if not isinstance(side, LeafSide) or cell.group not in self._noise.groups:
            return None
        return lambda numbers: self._found(cell, side, numbers)

    def _found(self, cell: Cell, side: LeafSide, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, other = self._a.series(cell.group), self._noise.series(cell.group)
        numbers_a, numbers_n, _ = align(a, other)
        mine = a.view[numbers_a] == self._a.index.views.index(side.view)
        partner = np.full(side.view.records, -1, np.int64)
        partner[a.number[numbers_a[mine]]] = numbers_n[mine]
        return self._measured(cell, side, numbers, partner[numbers], other)

    def _measured(
        self, cell: Cell, side: LeafSide, numbers: np.ndarray, partners: np.ndarray, other: Series
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.zeros(len(numbers), MEASURES_EMPTY.dtype)
        there = partners >= 0
        views = np.where(there, other.view[partners], -1)
        for view in np.unique(views[there]).tolist():
            stream = self._noise.index.views[view]
            mine = np.flatnonzero(views == view)
            leaf = next((n for n, x in enumerate(stream.site.leaves) if x.path == cell.leaf), None)
            if leaf is None or stream.site.leaves[leaf].shape != side.shape:
                there[mine] = False
                continue
            noisy = LeafSide(stream, leaf)
            pairs = np.zeros(len(mine), PAIR)
            pairs["measured"] = -1
            pairs["number_a"], pairs["number_b"] = numbers[mine], other.number[partners[mine]]
            again = dataclasses.replace(cell, b=noisy, shapes=(side.shape, noisy.shape), counts=Counts(), kept=None)
            found = self._comparer.compare(again, pairs, None)
            measured = pairs["measured"] >= 0
            rows[mine[measured]] = found[pairs["measured"][measured]]
        return rows, there
