"""Where the bins of a histogram begin and end."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import TapError
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from tracerec.keeping.specs import Histogram

__all__ = ["LINEAR_BINS", "exponent_bins", "exponent_of", "exponents_of_dtype", "histogram_edges"]

LINEAR_BINS = 64
"""Bins by value where the caller names no number."""

_WIDEST = (-126, 127)
"""The powers of two of float32's normal numbers: as many bins as a histogram has without being told."""


def histogram_edges(keep: Histogram, dtype: str) -> np.ndarray:
    """Returns the edges of a histogram's bins.

    Args:
        keep: the histogram; by value with a range: without one, each record holds its edges.
        dtype: the leaf's logical dtype.

    Returns:
        float64 ``(bins + 1,)``: bin ``i`` has the elements (by exponent: the magnitudes) from edge ``i`` to below
        edge ``i + 1``. By value the edges are numbers of the dtype in which elements are compared, float32 or for
        64-bit leaves float64, and the last bin has its upper edge too.

    Raises:
        TapError: the edges are in the records, or the range holds more bins than numbers.

    Example:
        >>> from tracerec.keeping import Histogram
        >>> histogram_edges(Histogram(range=(-2, 1)), "float32").tolist()
        [0.25, 0.5, 1.0, 2.0, 4.0]
        >>> histogram_edges(Histogram(bins=2, by="linear", range=(0, 1)), "bfloat16").tolist()
        [0.0, 0.5, 1.0]
    """
    if keep.by == "exponent":
        low, high, bins = exponent_bins(keep, dtype)
        width = high - low + 1
        exponents = [low + -(-number * width // bins) for number in range(bins)] + [high + 1]
        with np.errstate(over="ignore"):
            return np.ldexp(1.0, np.array(exponents))
    if keep.range is None:
        message = f"{keep!r} has no range: the edges of its bins are in the records, in the part 'edges'"
        raise TapError(message)
    kind = np.float64 if is_wide(dtype) else np.float32
    bins = keep.bins or LINEAR_BINS
    with np.errstate(over="ignore"):
        edges = np.linspace(*keep.range, bins + 1).astype(kind)
    if not (np.isfinite(edges).all() and (np.diff(edges.astype(np.float64)) > 0).all()):
        message = f"{keep!r} of a {dtype} leaf: {bins} bins in this range have edges that {kind.__name__} cannot hold"
        raise TapError(message)
    return edges.astype(np.float64)


def exponent_bins(keep: Histogram, dtype: str) -> tuple[int, int, int]:
    """Returns the lowest and the highest power of two of a histogram by exponent, and how many bins they share.

    Raises:
        TapError: there are more bins than powers of two.
    """
    low, high = map(int, keep.range) if keep.range is not None else exponents_of_dtype(dtype)
    width = high - low + 1
    if keep.bins is not None and keep.bins > width:
        message = f"{keep!r} of a {dtype} leaf: its range has {width} powers of two, and no bin is narrower than one"
        raise TapError(message)
    return low, high, keep.bins or width


def exponents_of_dtype(dtype: str) -> tuple[int, int]:
    """Returns the lowest and the highest power of two of a dtype's normal numbers, at most -126 to 127."""
    if dtype == "bool":
        return 0, 0
    if "int" in dtype:
        return 0, int(dtype.removeprefix("u").removeprefix("int")) - 1
    lowest, highest = _float_exponents(dtype)
    return max(lowest, _WIDEST[0]), min(highest, _WIDEST[1])


@cache
def _float_exponents(dtype: str) -> tuple[int, int]:
    import ml_dtypes

    name = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    facts = ml_dtypes.finfo(dtypes.from_name(name))
    extra = 1 if dtype.startswith("complex") else 0  # a magnitude is up to sqrt(2) times the larger part
    return exponent_of(float(facts.smallest_normal)), exponent_of(float(facts.max)) + extra


def exponent_of(number: float) -> int:
    """Returns the power of two at or below a positive number: ``2**e <= number < 2**(e + 1)``.

    Example:
        >>> exponent_of(1.0), exponent_of(0.75), exponent_of(5e-324)
        (0, -1, -1074)
    """
    return int(np.frexp(number)[1]) - 1


def is_wide(dtype: str) -> bool:
    """Returns whether a leaf's numbers are float64: those of types that JAX has with x64 alone."""
    return dtype in {"int64", "uint64", "float64", "complex128"}


def is_whole(dtype: str) -> bool:
    """Returns whether a dtype is one of integers, or of bools."""
    return dtype.startswith(("int", "uint", "bool"))
