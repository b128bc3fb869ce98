"""From the parts of summaries to the columns that tables of statistics have."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracerec.keeping.specs import COUNTED
from tracerec.statistics import COUNTS, MEASURES

__all__ = ["MORE_MEASURES", "summary_columns"]

MORE_MEASURES = ("l1", "largest")
"""The measures that summaries have beyond `tracerec.statistics.MEASURES`."""

_NONFINITE = slice(1, 4)
"""Where the counts that are not of finite elements stand in `COUNTED`."""


def summary_columns(
    counts: np.ndarray,
    ranges: np.ndarray,
    moments: np.ndarray,
    *,
    lanes: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the statistics of many records from the three parts of `tracerec.keeping.Summary`.

    They are what `tracerec.statistics.moments` says of the leaves themselves, as near as the device computed them.

    Args:
        counts: uint32 ``(*records, *lanes, 6)``.
        ranges: ``(*records, *lanes, 2)`` in the leaf's dtype.
        moments: float32 or float64 ``(*records, *lanes, 5)``.
        lanes: how many of the axes before the last are lane axes, which are put together: the statistics are then
            those of all lanes' elements.

    Returns:
        Arrays ``(*records,)``: int64 for each of `tracerec.statistics.COUNTS` and ``subnormals``, float64 for each
        of `tracerec.statistics.MEASURES` and of `MORE_MEASURES`, where NaN stands for what is not there: no element
        is finite, or the number is beyond float64.

    Example:
        >>> counts = np.array([[3, 1, 0, 0, 0, 0]], np.uint32)
        >>> ranges = np.array([[-4.0, 3.0]], np.float32)
        >>> moments = np.array([[-0.5, 3.5, 7.0, 5.0, 0.0]], np.float32)
        >>> found = summary_columns(counts, ranges, moments)
        >>> found["nan"].tolist(), found["l2"].tolist(), found["largest"].tolist()
        ([1], [5.0], [4.0])
    """
    axes = tuple(range(-lanes, 0))
    counts, ranges, moments = (np.asarray(part) for part in (counts, ranges, moments))
    numbers = counts.astype(np.int64)
    finite = numbers[..., 0] - numbers[..., _NONFINITE].sum(axis=-1)
    out: dict[str, Any] = {name: numbers[..., place].sum(axis=axes) for place, name in enumerate(COUNTED)}
    with np.errstate(all="ignore"):
        measures = _measures(finite, ranges.astype(np.float64), moments.astype(np.float64), axes)
    none = finite.sum(axis=axes) == 0
    for name, values in measures.items():
        out[name] = np.where(none, np.nan, values)
    return {name: out[name] for name in (*COUNTS, *MEASURES, "subnormals", *MORE_MEASURES)}


def _measures(finite: np.ndarray, ends: np.ndarray, moments: np.ndarray, axes: tuple[int, ...]) -> dict[str, Any]:
    """Returns the measures; what they are where nothing is finite does not matter."""
    some = finite > 0
    low = np.where(some, ends[..., 0], np.inf).min(axis=axes, initial=np.inf)
    high = np.where(some, ends[..., 1], -np.inf).max(axis=axes, initial=-np.inf)
    # Lanes have exponents of their own; what is lost to underflow is too small beside the others to matter.
    exponents = np.where(some, moments[..., 4], -np.inf).max(axis=axes, keepdims=True, initial=-np.inf)
    common = np.where(np.isfinite(exponents), exponents, 0).astype(np.int64)
    down = np.where(some, moments[..., 4] - common, 0).astype(np.int64)
    mean, std, l1, l2 = (np.ldexp(np.where(some, moments[..., place], 0), down) for place in range(4))
    total = np.maximum(finite.sum(axis=axes, keepdims=True), 1)
    middle = (mean * (finite / total)).sum(axis=axes, keepdims=True)
    # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    spread = ((np.square(std) + np.square(mean - middle)) * (finite / total)).sum(axis=axes)
    back = common.reshape(low.shape)
    found = {
        "mean": middle.reshape(low.shape),
        "std": np.sqrt(spread),
        "l1": l1.sum(axis=axes),
        "l2": np.sqrt(np.square(l2).sum(axis=axes)),
    }
    out = {name: _finite(np.ldexp(values, back)) for name, values in found.items()}
    # A sum of float32 may end a little outside of what it is the mean of.
    out["mean"] = np.clip(out["mean"], low, high)
    return {"min": low, "max": high, **out, "largest": np.maximum(np.abs(low), np.abs(high))}


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)
