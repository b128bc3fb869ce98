"""The worst tensors of a comparison, made small enough to draw."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec.comparing.divergence import key_values, record_text
from tracerec.comparing.reading import NotComparable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.comparing.cells import Cell

__all__ = ["Picture", "of_worst"]

_MOST = 6
_ACROSS = 48
_LARGEST = 64 << 20
"""Bytes of the largest record drawn."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """One record of both runs as grids.

    Attributes:
        record: the record as text.
        shape: the record's shape.
        a: the first run's values, ``(rows, columns)`` of float64, NaN where a value is not finite; a large array's
            cells are means.
        b: the second run's values.
        difference: the largest absolute difference in each cell, infinite where one side only is not finite.
    """

    record: str
    shape: tuple[int, ...]
    a: np.ndarray
    b: np.ndarray
    difference: np.ndarray


def of_worst(cells: Sequence[Cell]) -> list[Picture]:
    """Returns pictures of the worst record of the worst cells; reads these records."""
    bad = [cell for cell in cells if cell.counts.worst_pair >= 0 and cell.counts.first_different is not None]
    bad.sort(key=lambda cell: -cell.counts.worst_error)
    found = (_picture(cell) for cell in bad if _drawable(cell))
    out: list[Picture] = []
    for picture in found:
        if len(out) == _MOST:
            break
        if picture is not None:
            out.append(picture)
    return out


def _drawable(cell: Cell) -> bool:
    if cell.by is not None or cell.opaque:
        return False
    size = int(np.prod(cell.shapes[0], dtype=np.int64))
    return cell.shapes[0] == cell.shapes[1] and 1 < size <= _LARGEST // 16 and cell.a.key_impl is None


def _picture(cell: Cell) -> Picture | None:
    number = cell.counts.worst_pair
    pair = cell.pairs[number]
    try:
        a, b = (
            _plane(side.read(np.array([pair[which]]))[0][0])
            for side, which in ((cell.a, "number_a"), (cell.b, "number_b"))
        )
    except NotComparable:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
        apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
        apart[np.isnan(apart)] = np.inf
    key = {**cell.static, **key_values(cell, cell.keys[number])}
    record = record_text(cell.tap, cell.leaf, cell.transforms, key, int(pair["occurrence"]))
    return Picture(record, cell.shapes[0], _mean(a), _mean(b), _reduced(apart, np.maximum.reduceat))


def _plane(array: np.ndarray) -> np.ndarray:
    """Returns an array as two axes, the last one across; complex numbers by magnitude."""
    values = np.abs(array) if array.dtype.kind == "c" else array
    wide = values.astype(np.float64)
    if wide.ndim == 1:
        side = int(np.ceil(np.sqrt(wide.size))) if wide.size > _ACROSS else wide.size
        filled = np.full(-(-wide.size // side) * side, np.nan)
        filled[: wide.size] = wide
        return filled.reshape(-1, side)
    return wide.reshape(-1, wide.shape[-1])


def _mean(plane: np.ndarray) -> np.ndarray:
    there = np.isfinite(plane)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _reduced(np.where(there, plane, 0.0), np.add.reduceat) / _reduced(there.astype(float), np.add.reduceat)


def _reduced(plane: np.ndarray, reduce: np.ufunc | object) -> np.ndarray:
    for axis in (0, 1):
        size = plane.shape[axis]
        starts = np.unique(np.arange(_ACROSS) * size // _ACROSS) if size > _ACROSS else np.arange(size)
        plane = reduce(plane, starts, axis=axis)  # type: ignore[operator]  # a reduceat
    return plane
