"""How a difference grows: along the steps of one tap, and along the taps of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracerec.comparing.cells import errors_of
from tracerec.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.comparing.cells import Cell

__all__ = ["Growth", "label", "steps_of"]


class Growth:
    """The error of records: the norm of the difference over the norm of the first run's values.

    It is infinite where NaN or an infinity is on one side only, and NaN where nothing could be measured.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells

    @property
    def labels(self) -> list[str]:
        """What there is an error of: each tap, with leaf and transforms, in order of execution."""
        return list(dict.fromkeys(label(cell) for cell in self._cells))

    def along_steps(self, tap: str, leaf: str = "", transforms: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Returns the steps of a tap, ascending, and the largest error at each: two arrays of one length.

        Args:
            tap: the tap's name.
            leaf: the leaf's key path.
            transforms: the transforms as text: ``"jvp, transpose"``.

        Raises:
            SelectionError: nothing of the kind was compared.
        """
        wanted = [c for c in self._cells if (c.tap, c.leaf, c.transforms) == (tap, leaf, transforms)]
        if not wanted:
            message = f"nothing was compared of tap {tap!r}, leaf {leaf!r}, transforms {transforms!r}"
            raise SelectionError(message, choices=tuple(self.labels))
        return self.of_cells(wanted)

    def along_taps(self, step: float | None = None) -> list[tuple[str, float]]:
        """Returns each tap in order of execution, and its largest error at a step.

        Args:
            step: the step; None: over all records.
        """
        found: dict[str, tuple[int, float]] = {}
        for cell in self._cells:
            pairs, errors = self._errors(cell)
            steps = steps_of(cell)
            mine = np.ones(len(pairs), bool) if step is None or steps is None else steps == step
            if step is not None and steps is None:
                mine[:] = False
            if mine.any():
                place, error = int(pairs["place"][mine].min()), _largest(errors[mine])
                known = found.get(label(cell), (place, error))
                found[label(cell)] = min(place, known[0]), _largest(np.array([error, known[1]]))
        return [(name, error) for name, (_, error) in sorted(found.items(), key=lambda item: item[1][0])]

    def of_cells(self, cells: Sequence[Cell]) -> tuple[np.ndarray, np.ndarray]:
        """Returns steps, ascending, and the largest error at each, of some cells; without steps: records counted."""
        steps: list[np.ndarray] = []
        errors: list[np.ndarray] = []
        for cell in cells:
            mine = steps_of(cell)
            found = self._errors(cell)[1]
            steps.append(np.arange(len(found)) if mine is None else mine)
            errors.append(found)
        every, each = np.concatenate(steps), np.concatenate(errors)
        unique, inverse = np.unique(every, return_inverse=True)
        out = np.full(len(unique), np.nan)
        np.fmax.at(out, inverse, each)
        return unique, out

    def _errors(self, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
        pairs = cell.pairs
        return pairs, errors_of(pairs, cell.measures)


def label(cell: Cell) -> str:
    """Returns how a cell is called: tap, leaf and transforms."""
    leaf = f" {cell.leaf}" if cell.leaf else ""
    return cell.tap + leaf + (f" ({cell.transforms})" if cell.transforms else "")


def steps_of(cell: Cell) -> np.ndarray | None:
    """Returns the step of each pair of a cell; None where there is none, or more than one a record."""
    at = 0
    for name, kind, width in cell.group.keys:
        if name == "step" and width == 1:
            column = np.ascontiguousarray(cell.keys[:, at])
            return column.view(np.float64) if kind == "f" else column
        at += width
    return None


def _largest(errors: np.ndarray) -> float:
    there = errors[~np.isnan(errors)]
    return float(there.max()) if len(there) else float("nan")
