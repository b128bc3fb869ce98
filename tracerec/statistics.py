"""Statistics of a leaf: over finite values, in float64, whatever the dtype. Free of JAX.

`Moments` are those of one array. A `LeafSummary` describes a whole stream in a few hundred bytes; it is made
once, when the stream is sealed, so that looking at a trace does not read the tensors. What does not count (padding,
lanes that did not take the tap's branch) is left out; `tracerec.summaries` tells it from a stream's columns.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "COUNTS",
    "MEASURES",
    "SPARK_POINTS",
    "LeafSummary",
    "Moments",
    "Summarizer",
    "evenly_spread",
    "moments",
    "moments_by_row",
    "summarize",
]

COUNTS = ("count", "nan", "posinf", "neginf", "zeros")
"""The counts that tables show, in their order."""

MEASURES = ("min", "max", "mean", "std", "l2")
"""The measures that tables show, in their order."""

SPARK_POINTS = 48
"""How many means over the steps a summary keeps: the width of a sparkline."""

_BLOCK = 1 << 16
"""Elements worked on at once: their float64 copy (512 KiB) stays in a core's second-level cache."""

_SHORT_ROW = 1 << 13
"""Elements of a row that is worked on together with others; calling numpy once a row costs as much as so many."""

_SAFE = (1e-100, 1e100)
"""Magnitudes whose squares, summed, neither overflow nor underflow float64."""

_LARGEST_SUMMED = 1e300
"""Magnitudes of which a block can be summed in float64."""

_BELOW_ALL = -1100
"""An exponent below that of the smallest float64 number, 2**-1074."""

_COUNTS = ("count", "finite", "nan", "posinf", "neginf", "zeros")
_NUMBERS = ("min", "max", "mean", "std", "l2")


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of one array.

    Bools count as 0 and 1, complex numbers by their magnitude. A complex number with a NaN part is NaN, one
    with an infinite part otherwise is a positive infinity.

    Attributes:
        count: elements; the sum of the next four.
        finite: elements that are neither NaN nor infinite.
        nan: elements that are NaN.
        posinf: positive infinities.
        neginf: negative infinities.
        zeros: elements equal to zero, -0.0 included.
        min: the smallest finite element, as float64 like all that follow. None where there is no finite
            element, and where the number itself is beyond float64 (an l2 norm can be).
        max: the largest finite element.
        mean: the mean of the finite elements.
        std: their standard deviation (of the population: no Bessel correction).
        l2: the square root of the sum of their squares.

    Example:
        >>> moments(np.array([3.0, -4.0, np.nan], np.float32))
        Moments(count=3, finite=2, nan=1, posinf=0, neginf=0, zeros=0, min=-4.0, max=3.0, mean=-0.5, std=3.5, l2=5.0)
    """

    count: int
    finite: int
    nan: int
    posinf: int
    neginf: int
    zeros: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    l2: float | None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values; float64 numbers survive exactly."""
        return {name: getattr(self, name) for name in (*_COUNTS, *_NUMBERS)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Moments:
        """Returns the moments that `to_json` gave; raises KeyError, TypeError or ValueError on other input."""
        counts = {name: int(data[name]) for name in _COUNTS}
        numbers: dict[str, Any] = {name: _number(data[name]) for name in _NUMBERS}
        return cls(**counts, **numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class LeafSummary:
    """What a sealed file knows of one leaf of a stream without reading it.

    Attributes:
        records: how many records count: of a stream with a mask, those of which a lane does.
        nan: elements that are NaN, over all records.
        posinf: positive infinities, over all records.
        neginf: negative infinities, over all records.
        last: the moments of the last record; counts of zero where there is none.
        spark: means of at most `SPARK_POINTS` records evenly spread over the stream, first and last included;
            None for a record without a finite element. Empty for PRNG keys, whose bits have no mean.
    """

    records: int
    nan: int
    posinf: int
    neginf: int
    last: Moments
    spark: tuple[float | None, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values; float64 numbers survive exactly."""
        return {
            "records": self.records,
            "nan": self.nan,
            "posinf": self.posinf,
            "neginf": self.neginf,
            "last": self.last.to_json(),
            "spark": list(self.spark),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LeafSummary:
        """Returns the summary that `to_json` gave; raises KeyError, TypeError or ValueError on other input."""
        return cls(
            records=int(data["records"]),
            nan=int(data["nan"]),
            posinf=int(data["posinf"]),
            neginf=int(data["neginf"]),
            last=Moments.from_json(data["last"]),
            spark=tuple(_number(x) for x in data["spark"]),
        )


def moments(array: np.ndarray) -> Moments:
    """Returns the moments of an array of any shape and of any dtype in `tracerec.protocol.dtypes.NAMES`.

    Memory stays bounded whatever the size. Blocks are merged as in Chan, Golub and LeVeque, "Updating formulae
    and a pairwise algorithm for computing sample variances" (1979); float64 values whose squares would
    overflow or underflow are scaled by a power of two first.

    Example:
        >>> moments(np.array([1e300, -1e300])).l2
        1.4142135623730952e+300
        >>> moments(np.array([], np.float32)).mean is None
        True
    """
    running = RunningMoments()
    running.add(array)
    return running.moments()


class RunningMoments:
    """The moments of arrays that come one after the other, as if they were one; see `moments`.

    Example:
        >>> running = RunningMoments()
        >>> running.add(np.array([1.0, 2.0], np.float32))
        >>> running.add(np.array([6, 7]))
        >>> running.moments().mean, running.moments().count
        (4.0, 4)
    """

    def __init__(self) -> None:
        self._total = _Total()
        self._count = 0

    def add(self, array: np.ndarray) -> None:
        """Takes an array of any shape and dtype."""
        # Casting a signalling NaN sets the processor's flag for invalid operations.
        with np.errstate(all="ignore"):
            for block in _blocks(array):
                self._total.add(_plain(block))
        self._count += array.size

    def moments(self) -> Moments:
        """Returns the moments of what came so far."""
        return self._total.moments(self._count)


def finite_values(array: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yields an array's finite elements as float64, block by block, and how many others each block has.

    Complex numbers are their magnitudes, bools 0 and 1, as in `moments`.

    Example:
        >>> [(values.tolist(), others) for values, others in finite_values(np.array([1.0, np.nan, 3.0]))]
        [([1.0, 3.0], 1)]
    """
    for block in _blocks(array):
        with np.errstate(all="ignore"):
            plain = _plain(block)
            values = np.abs(plain) if plain.dtype.kind == "c" else plain.astype(np.float64)
        if not np.isfinite(values).all():
            values = values[np.isfinite(values)]
        yield values, block.size - values.size


def moments_by_row(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the moments of each row of an array, many short rows at once.

    Args:
        rows: ``(n, *shape)`` of any dtype in `tracerec.protocol.dtypes.NAMES`.

    Returns:
        For each of `COUNTS` an int64 array ``(n,)``, for each of `MEASURES` a float64 array, NaN where `moments` has
        None. They are those of `moments`, l2 to the last bit or two.

    Example:
        >>> found = moments_by_row(np.array([[3.0, -4.0], [np.nan, 1.0]], np.float32))
        >>> found["l2"].tolist(), found["nan"].tolist()
        ([5.0, 1.0], [0, 1])
    """
    out: dict[str, np.ndarray] = {name: np.zeros(len(rows), np.int64) for name in COUNTS}
    out |= {name: np.full(len(rows), np.nan) for name in MEASURES}
    size = rows[:1].size
    together = 0 < size <= _SHORT_ROW and rows.dtype.kind != "c"
    step = max(1, _BLOCK // max(size, 1))
    alone = [] if together else range(len(rows))
    if together:
        with np.errstate(all="ignore"):
            flat = np.ascontiguousarray(rows).reshape(len(rows), size)
            found = [_short_rows(flat[start : start + step], start, out) for start in range(0, len(rows), step)]
        alone = [number for numbers in found for number in numbers]
    for number in alone:
        one = moments(rows[number, ...])
        for name in (*COUNTS, *MEASURES):
            value = getattr(one, name)
            out[name][number] = np.nan if value is None else value
    return out


class Summarizer:
    """Makes a `LeafSummary` of records that come in blocks.

    Args:
        records: how many records will come.
        key: whether the leaf is PRNG key data: then elements are counted and nothing else.

    Example:
        >>> summarizer = Summarizer(3)
        >>> summarizer.add(np.array([[1.0, 3.0]], np.float32))
        >>> summarizer.add(np.array([[2.0, 2.0], [np.inf, 5.0]], np.float32))
        >>> summary = summarizer.summary()
        >>> summary.spark, summary.posinf, summary.last.max
        ((2.0, 2.0, 5.0), 1, 5.0)
    """

    def __init__(self, records: int, *, key: bool = False) -> None:
        self._records = records
        self._key = key
        self._picks = evenly_spread(records)
        self._seen = 0
        self._bad = np.zeros(3, np.int64)
        self._spark: list[float | None] = []
        self._last = _EMPTY

    def add(self, block: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Takes the next records.

        Args:
            block: the records, ``(n, *shape)``.
            valid: which elements count, bools that broadcast to the block; None: all.

        Raises:
            ValueError: these are more records than were announced.
        """
        start, self._seen = self._seen, self._seen + len(block)
        if self._seen > self._records:
            message = f"{self._seen} records for a summary of {self._records}"
            raise ValueError(message)
        ends = len(block) > 0 and self._seen == self._records
        mask = None if valid is None else np.broadcast_to(valid, block.shape)
        if self._key:
            if ends:
                size = block[-1].size if mask is None else int(np.count_nonzero(mask[-1]))
                self._last = dataclasses.replace(_EMPTY, count=size, finite=size)
            return
        low, high = np.searchsorted(self._picks, (start, self._seen))
        picks = self._picks[low:high] - start
        with np.errstate(all="ignore"):
            self._bad += _count_nonfinite(block if mask is None else block[mask])
            if mask is not None:
                self._spark += [moments(block[pick][mask[pick]]).mean for pick in picks]
            elif low < high:
                self._spark += _means(block, picks)
        if ends:
            self._last = moments(block[-1:] if mask is None else block[-1][mask[-1]])

    def summary(self) -> LeafSummary:
        """Returns the summary; raises ValueError when fewer records came than were announced."""
        if self._seen != self._records:
            message = f"{self._seen} records for a summary of {self._records}"
            raise ValueError(message)
        nan, posinf, neginf = map(int, self._bad)
        return LeafSummary(self._records, nan, posinf, neginf, self._last, tuple(self._spark))


def summarize(blocks: Iterable[np.ndarray], records: int, *, key: bool = False) -> LeafSummary:
    """Returns the summary of a leaf whose records come in blocks.

    Args:
        blocks: arrays ``(n, *shape)``, in recorded order; one is in memory at a time.
        records: the sum of all ``n``.
        key: whether the leaf is PRNG key data: then elements are counted and nothing else.

    Raises:
        ValueError: the blocks do not hold ``records`` records.

    Example:
        >>> summarize([np.ones((2, 4), np.float32)], 2).spark
        (1.0, 1.0)
    """
    summarizer = Summarizer(records, key=key)
    for block in blocks:
        summarizer.add(block)
    return summarizer.summary()


class _Total:
    """Running moments. ``mean`` and ``m2`` (squared deviations) are in units of 2**exponent and its square."""

    def __init__(self) -> None:
        self.nan = self.posinf = self.neginf = self.zeros = self.finite = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = self.m2 = 0.0
        self.exponent: int | None = None

    def add(self, block: np.ndarray) -> None:
        """Takes a 1-D, non-empty block of a plain numpy dtype."""
        if block.dtype.kind == "c":
            self.zeros += block.size - int(np.count_nonzero(block))
            self._add_complex(block)
            return
        low, high = block.min(), block.max()
        if not (low > 0 or high < 0):
            # Of numbers, np.count_nonzero is four times as slow.
            self.zeros += int(np.count_nonzero(block == 0))
        if block.dtype.kind == "f" and not (math.isfinite(low) and math.isfinite(high)):
            self.nan += int(np.count_nonzero(np.isnan(block)))
            self.posinf += int(np.count_nonzero(block == np.inf))
            self.neginf += int(np.count_nonzero(block == -np.inf))
            block = block[np.isfinite(block)]
            if not block.size:
                return
            low, high = block.min(), block.max()
        self._range(float(low), float(high))
        largest = max(abs(float(low)), abs(float(high)))
        exponent = _exponent(largest)
        values = block.astype(np.float64)
        self._merge(np.ldexp(values, -exponent) if exponent and largest else values, exponent)

    def _add_complex(self, block: np.ndarray) -> None:
        nan, inf = np.isnan(block), np.isinf(block)
        self.nan += int(np.count_nonzero(nan))
        self.posinf += int(np.count_nonzero(inf & ~nan))
        parts = block[~(nan | inf)].view(np.float64)
        if not parts.size:
            return
        exponent = _exponent(float(np.abs(parts).max()))
        magnitudes = np.abs(np.ldexp(parts, -exponent).view(np.complex128))
        self._range(_unscaled(float(magnitudes.min()), exponent), _unscaled(float(magnitudes.max()), exponent))
        self._merge(magnitudes, exponent)

    def _range(self, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)

    def _merge(self, values: np.ndarray, exponent: int) -> None:
        """Merges float64 values, in units of 2**exponent; overwrites them."""
        count = values.size
        mean = float(values.sum()) / count
        values -= mean
        m2 = float(np.square(values, out=values).sum())
        if self.exponent is None:
            self.exponent = exponent
        common = max(self.exponent, exponent)
        # What is lost to underflow here is too small beside the other side to matter.
        down, self.exponent = self.exponent - common, common
        self.mean, self.m2 = math.ldexp(self.mean, down), math.ldexp(self.m2, 2 * down)
        down = exponent - common
        mean, m2 = math.ldexp(mean, down), math.ldexp(m2, 2 * down)
        total = self.finite + count
        delta = mean - self.mean
        self.mean += delta * (count / total)
        self.m2 += m2 + delta * delta * (self.finite * (count / total))
        self.finite = total

    def moments(self, count: int) -> Moments:
        exponent, n = self.exponent or 0, self.finite
        some = n > 0
        return Moments(
            count=count,
            finite=n,
            nan=self.nan,
            posinf=self.posinf,
            neginf=self.neginf,
            zeros=self.zeros,
            min=_finite(self.low) if some else None,
            max=_finite(self.high) if some else None,
            mean=_finite(_unscaled(self.mean, exponent)) if some else None,
            std=_finite(_unscaled(math.sqrt(self.m2 / n), exponent)) if some else None,
            l2=_finite(_unscaled(math.sqrt(self.m2 + n * self.mean**2), exponent)) if some else None,
        )


_EMPTY = Moments(0, 0, 0, 0, 0, 0, None, None, None, None, None)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the elements in row-major order, in 1-D blocks; only strided arrays are copied."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            yield flat[start : start + _BLOCK]
    elif array.ndim > 1:
        for part in array:
            yield from _blocks(part)
    else:
        for start in range(0, array.size, _BLOCK):
            yield np.ascontiguousarray(array[start : start + _BLOCK])


def _plain(block: np.ndarray) -> np.ndarray:
    """Returns the elements, exactly, in a dtype that numpy computes with at full speed."""
    name = block.dtype.name
    if name == "bool":
        return block.view(np.uint8)
    if name in {"float16", "bfloat16"}:
        return block.astype(np.float32)
    if name in _SMALL:
        return _table(name).take(block.view(np.uint8))
    return block.astype(np.complex128) if block.dtype.kind == "c" else block


_SMALL = frozenset(
    name for name in dtypes.NAMES if dtypes.itemsize(name) == 1 and name not in {"int8", "uint8", "bool"}
)


@cache
def _table(name: str) -> np.ndarray:
    """Returns the 256 values of a one-byte ml_dtypes type as float32, which holds each of them exactly."""
    return np.arange(256, dtype=np.uint8).view(dtypes.from_name(name)).astype(np.float32)


def _count_nonfinite(array: np.ndarray) -> np.ndarray:
    """Returns how many elements are NaN, +inf and -inf."""
    counts = np.zeros(3, np.int64)
    if not _can_be_nonfinite(array.dtype.name):
        return counts
    for block in _blocks(array):
        values = _plain(block)
        if values.dtype.kind == "c":
            nan, inf = np.isnan(values), np.isinf(values)
            counts += np.array([np.count_nonzero(nan), np.count_nonzero(inf & ~nan), 0])
        elif not (math.isfinite(values.min()) and math.isfinite(values.max())):
            tests = (np.isnan(values), values == np.inf, values == -np.inf)
            counts += np.array([np.count_nonzero(test) for test in tests])
    return counts


def _can_be_nonfinite(name: str) -> bool:
    if name in _SMALL:
        return not np.isfinite(_table(name)).all()
    return "float" in name or "complex" in name


def _means(block: np.ndarray, picks: np.ndarray) -> list[float | None]:
    """Returns the means over finite elements of the records picked."""
    size = block[:1].size
    if size > _BLOCK:
        return [moments(block[pick]).mean for pick in picks]
    if not size:
        return [None] * len(picks)
    rows = _plain(block[picks].reshape(-1)).reshape(len(picks), size)
    if rows.dtype.kind == "c":
        return [moments(row).mean for row in rows]
    wide = rows.astype(np.float64)
    # Row by row, so that a record's mean does not depend on which other records are in the block. A NaN is neither.
    summed = (wide.min(axis=1) >= -_LARGEST_SUMMED) & (wide.max(axis=1) <= _LARGEST_SUMMED)
    means: list[float] = wide.mean(axis=1).tolist()
    return [mean if good else moments(row).mean for mean, good, row in zip(means, summed, rows, strict=True)]


def _short_rows(block: np.ndarray, start: int, out: dict[str, np.ndarray]) -> list[int]:
    """Fills in the moments of rows ``(n, size)``; returns the numbers of those that need `moments`."""
    n, size = block.shape
    values = _plain(block.reshape(-1)).reshape(n, size)
    low, high = values.min(axis=1).astype(np.float64), values.max(axis=1).astype(np.float64)
    wide = values.astype(np.float64)
    largest = np.maximum(np.abs(low), np.abs(high))
    # A NaN is neither.
    good = ((largest > _SAFE[0]) & (largest < _SAFE[1])) | (largest == 0)
    here = slice(start, start + n)
    out["count"][here] = size
    out["zeros"][here] = np.add.reduce((values == 0).view(np.uint8), axis=1, dtype=np.int64)
    mean = wide.sum(axis=1) / size
    wide -= mean[:, None]
    squares = np.square(wide, out=wide).sum(axis=1)
    out["min"][here], out["max"][here], out["mean"][here] = low, high, mean
    out["std"][here] = np.sqrt(squares / size)
    out["l2"][here] = np.sqrt(squares + size * (mean * mean))
    return (start + np.flatnonzero(~good)).tolist()


def evenly_spread(records: int) -> np.ndarray:
    """Returns the numbers of at most `SPARK_POINTS` records, first and last among them."""
    if records <= SPARK_POINTS:
        return np.arange(records)
    return np.arange(SPARK_POINTS) * (records - 1) // (SPARK_POINTS - 1)


def _exponent(largest: float) -> int:
    """Returns by which power of two to divide before squaring: 0 nearly always."""
    if _SAFE[0] < largest < _SAFE[1]:
        return 0
    # Zeros take the unit of whatever they are merged with.
    return math.frexp(largest)[1] if largest else _BELOW_ALL


def _unscaled(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        message = f"not a finite number: {value!r}"
        raise ValueError(message)
    return number
