"""The kinds of what can be kept of a leaf, and the layout of what each makes.

In the layouts, ``...`` are the record's lane axes (none without ``vmap``); all axes after them are reduced. An
element that does not count (padding, a lane that is not live) is left out of every count, sum, digest and choice.
Numbers of "64-bit leaves" (int64, uint64, float64, complex128, which JAX has with x64 on) are float64, those of all
others float32. Complex elements go by their magnitude: one with a NaN part is NaN, one with an infinite part
otherwise is a positive infinity; a magnitude beyond the largest number counts as that number. Bools are 0 and 1.
PRNG keys are their uint32 key data.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from tracerec.errors import TapError
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import EllipsisType

    from numpy.typing import DTypeLike

__all__ = [
    "COUNTED",
    "MOMENTS",
    "OUTSIDE",
    "Cast",
    "Fingerprint",
    "Full",
    "Function",
    "Histogram",
    "Keep",
    "Norms",
    "Quantiles",
    "Sample",
    "Slice",
    "Summary",
    "TopK",
]

COUNTED = ("count", "nan", "posinf", "neginf", "zeros", "subnormals")
"""What the six numbers of a part ``counts`` count, in order."""

MOMENTS = ("mean", "std", "l1", "l2", "exponent")
"""What the five numbers of a summary's part ``moments`` are, in order."""

OUTSIDE = ("zeros", "under", "over", "nan", "posinf", "neginf")
"""What the six numbers of a histogram's part ``outside`` count, in order."""


class Keep:
    """What to keep of a leaf: the base of the kinds, which are frozen, hashable, and equal if they keep the same."""

    name: ClassVar[str]
    """The kind's name, as in ``keep="summary"`` and on disk; that of a function is its own."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the arrays that it makes of a leaf, in order."""
        return (self.name,)

    def to_json(self) -> dict[str, Any]:
        """Returns its name and its parameters as JSON values; `tracerec.keeping.from_json` reads them."""
        data: Any = self
        return {"kind": self.name} | {
            field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(data)
        }


@dataclasses.dataclass(frozen=True)
class Full(Keep):
    """The leaf itself, bit for bit.

    Parts:
        ``full``: the leaf.

    Example:
        >>> Full().to_json(), Full().parts
        ({'kind': 'full'}, ('full',))
    """

    name: ClassVar[str] = "full"


@dataclasses.dataclass(frozen=True)
class Summary(Keep):
    """Counts and statistics, those of `tracerec.statistics`; `tracerec.keeping.summary_columns` reads them.

    Parts:
        ``counts``: uint32 ``(..., 6)``, in the order of `COUNTED`: elements that count, and of these NaN, positive
        and negative infinities, zeros (-0.0 among them) and subnormal numbers (the dtype's own; of complex
        elements the magnitude). All but the three that are not finite are what the next two parts speak of.

        ``range``: ``(..., 2)``, the smallest and the largest finite element, exact, in the leaf's own dtype (for
        complex leaves the magnitudes' float32 or float64, rounded). -0.0 is below 0.0 here. Where no element is
        finite: NaN if the dtype has one, else 0. The largest absolute value follows: no other number says it.

        ``moments``: float32 ``(..., 5)``, float64 for 64-bit leaves, in the order of `MOMENTS`: over the finite
        elements the mean, the standard deviation (of the population), the sum of magnitudes and the square root of
        the sum of squares, all four in units of ``2**exponent``, the fifth number. The exponent is 0 unless the
        numbers themselves would not fit: their values lie near the ends of the dtype's range. NaN, with exponent 0,
        where no element is finite.

    Example:
        >>> Summary().parts
        ('counts', 'range', 'moments')
    """

    name: ClassVar[str] = "summary"

    @property
    def parts(self) -> tuple[str, ...]:
        """Counts, range and moments."""
        return ("counts", "range", "moments")


@dataclasses.dataclass(frozen=True)
class Fingerprint(Keep):
    """A 64-bit digest of the elements' bits, and the counts of health; `tracerec.keeping.fingerprint` computes it.

    Equal for equal bits, dtype, shape (lane axes excluded) and mask, whatever the backend, layout or sharding.

    Parts:
        ``digest``: uint32 ``(..., 2)``: the low word, the high word.

        ``counts``: as of `Summary`.

    Example:
        >>> Fingerprint().parts
        ('digest', 'counts')
    """

    name: ClassVar[str] = "fingerprint"

    @property
    def parts(self) -> tuple[str, ...]:
        """Digest and counts."""
        return ("digest", "counts")


@dataclasses.dataclass(frozen=True)
class Histogram(Keep):
    """How many elements lie in each bin; `tracerec.keeping.histogram_edges` gives the bins' edges.

    Args:
        bins: how many; None: one a power of two, or 64 by value.
        by: ``"exponent"``: by the power of two at or below an element's magnitude; ``"linear"``: by its value, in
            bins of equal width, each with its lower edge, the last with its upper one too.
        range: by exponent: the lowest and the highest power of two, integers, both included; None: those of the
            dtype's normal numbers, at most -126 to 127. Linear: the lowest and the highest edge; None: the smallest
            and the largest finite element of each record, whose edges the record then holds.

    Parts:
        ``bins``: uint32 ``(..., bins)``: the elements of each.

        ``outside``: uint32 ``(..., 6)``, in the order of `OUTSIDE`: zeros (by exponent; by value they are numbers
        like others), elements below and above the range, NaN, positive and negative infinities. With the bins, they
        add up to the elements that count.

        ``edges``, only if linear without a range: float32 ``(..., bins + 1)``, float64 for 64-bit leaves. Where all
        finite elements are equal, 0.5 to each side; where there is none, 0 to 1.

    Example:
        >>> Histogram(bins=4, by="linear", range=(0, 1)).to_json()
        {'kind': 'histogram', 'bins': 4, 'by': 'linear', 'range': [0.0, 1.0]}
    """

    bins: int | None = None
    by: str = "exponent"
    range: tuple[float, float] | None = None

    name: ClassVar[str] = "histogram"

    def __post_init__(self) -> None:
        if self.by not in {"exponent", "linear"}:
            message = f"Histogram(by={self.by!r}): choose 'exponent' or 'linear'"
            raise TapError(message)
        if self.bins is not None:
            _set(self, bins=_integer(self.bins, "Histogram(bins=...)", least=1, most=1 << 16))
        if self.range is not None:
            _set(self, range=self._checked_range())

    def _checked_range(self) -> tuple[float, float]:
        exponents = self.by == "exponent"
        convert: Any = operator.index if exponents else float
        kind = "integers, powers of two from -1074 to 1023" if exponents else "finite numbers"
        given: Any = self.range
        try:
            low, high = (convert(end) for end in given)
        except (TypeError, ValueError):
            message = f"Histogram(range={given!r}, by={self.by!r}): a range is two {kind}: the lowest, the highest"
            raise TapError(message) from None
        limits = (-1074, 1023) if exponents else (-sys.float_info.max, sys.float_info.max)
        if not (limits[0] <= low <= high <= limits[1] and (exponents or low < high)):
            message = f"Histogram(range={given!r}, by={self.by!r}): a range is two {kind}, the lowest first"
            raise TapError(message)
        return low, high

    @property
    def parts(self) -> tuple[str, ...]:
        """Bins and what lies outside; edges where they are not fixed beforehand."""
        return ("bins", "outside", *(("edges",) if self.by == "linear" and self.range is None else ()))


@dataclasses.dataclass(frozen=True, init=False)
class Slice(Keep):
    """Part of the leaf, by basic indexing of its own axes (lane axes excluded).

    Args:
        *index: what stands between the brackets of ``leaf[...]``: integers, slices and at most one Ellipsis.
            Numpy's ``np.s_[:4, ..., 0]`` does too.

    Parts:
        ``slice``: the elements, in the leaf's dtype; those that do not count are zero.

    Example:
        >>> Slice(slice(4), ..., 0) == Slice((slice(None, 4), ..., 0))
        True
        >>> Slice(slice(4), ..., 0).to_json()
        {'kind': 'slice', 'index': [[None, 4, None], '...', 0]}
    """

    index: tuple[int | str | tuple[int | None, int | None, int | None], ...]
    """The index in a form that can be hashed: integers, ``"..."``, and ``(start, stop, step)``."""

    name: ClassVar[str] = "slice"

    def __init__(self, *index: int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]) -> None:
        items: Any = index[0] if len(index) == 1 and isinstance(index[0], tuple) else index
        if not items:
            message = "Slice() keeps nothing away: say what of the leaf, as in Slice(slice(0, 4), ..., 0)"
            raise TapError(message)
        found = tuple(_index_item(item) for item in items)
        if found.count("...") > 1:
            message = f"Slice{tuple(items)!r}: an index has one Ellipsis at most"
            raise TapError(message)
        _set(self, index=found)

    @property
    def key(self) -> tuple[Any, ...]:
        """The index as numpy takes it."""
        return tuple(
            Ellipsis if item == "..." else slice(*item) if isinstance(item, tuple) else item for item in self.index
        )


@dataclasses.dataclass(frozen=True)
class Sample(Keep):
    """Elements at positions that chance chose once; `tracerec.keeping.sample_positions` says which.

    Args:
        n: how many; a leaf with fewer elements is kept whole.
        seed: another seed, other positions.

    Parts:
        ``sample``: ``(..., n)`` in the leaf's dtype, in row-major order; elements that do not count are zero.

    Example:
        >>> Sample(10).to_json()
        {'kind': 'sample', 'n': 10, 'seed': 0}
    """

    n: int
    seed: int = 0

    name: ClassVar[str] = "sample"

    def __post_init__(self) -> None:
        _set(self, n=_integer(self.n, "Sample(n=...)", least=1, most=1 << 31))
        _set(self, seed=_integer(self.seed, "Sample(seed=...)", least=0, most=(1 << 64) - 1))


@dataclasses.dataclass(frozen=True)
class Quantiles(Keep):
    """Quantiles of the finite elements, between two elements by linear interpolation as numpy's.

    Args:
        q: which, from 0 to 1.

    Parts:
        ``quantiles``: float32 ``(..., len(q))``, float64 for 64-bit leaves; NaN where no element is finite.

    Example:
        >>> Quantiles(0.5).q
        (0.5,)
    """

    q: float | Sequence[float] = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

    name: ClassVar[str] = "quantiles"

    def __post_init__(self) -> None:
        q: Any = self.q
        try:
            numbers = (float(q),) if not hasattr(q, "__iter__") else tuple(float(x) for x in q)
        except (TypeError, ValueError):
            numbers = ()
        if not numbers or not all(0 <= x <= 1 for x in numbers):
            message = f"Quantiles(q={self.q!r}): q is one or more numbers from 0 to 1"
            raise TapError(message)
        _set(self, q=numbers)


@dataclasses.dataclass(frozen=True)
class TopK(Keep):
    """The elements of largest magnitude, and where they are.

    NaN is above the infinities, these above all others; of equal ones the first in row-major order comes first.

    Args:
        k: how many; a leaf with fewer elements gives them all.

    Parts:
        ``values``: ``(..., k)`` in the leaf's dtype, the largest first; 0 where fewer elements count.

        ``positions``: uint32 ``(..., k)``, the elements' row-major positions; 2**32 - 1 where fewer elements count.

    Example:
        >>> TopK(3).parts
        ('values', 'positions')
    """

    k: int

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        _set(self, k=_integer(self.k, "TopK(k=...)", least=1, most=1 << 31))

    @property
    def parts(self) -> tuple[str, ...]:
        """Values and positions."""
        return ("values", "positions")


@dataclasses.dataclass(frozen=True)
class Cast(Keep):
    """The leaf in another dtype, rounded to nearest as JAX does.

    Args:
        dtype: a name such as ``"bfloat16"``, or anything that numpy takes for a dtype.

    Parts:
        ``cast``: the leaf; elements that do not count are zero.

    Example:
        >>> Cast(float).dtype, Cast("bfloat16").dtype
        ('float64', 'bfloat16')
    """

    dtype: DTypeLike

    name: ClassVar[str] = "cast"

    def __post_init__(self) -> None:
        import numpy as np

        dtype: Any = self.dtype
        if not (isinstance(dtype, str) and dtype in dtypes.CODES):
            try:
                found = np.dtype(dtype).name
            except (TypeError, ValueError):
                found = ""
            if found not in dtypes.CODES:
                message = f"Cast({dtype!r}): choose a dtype of {', '.join(dtypes.NAMES)}"
                raise TapError(message)
            dtype = found
        _set(self, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Norms(Keep):
    """The square root of the sum of squares along some axes, as `numpy.linalg.norm` gives it: NaN and inf show.

    Args:
        axis: which of the leaf's own axes (lane axes excluded) are summed over: one, several, or None for all.

    Parts:
        ``norms``: float32, float64 for 64-bit leaves: the leaf's shape without those axes.

    Example:
        >>> Norms(axis=-1).axis
        (-1,)
    """

    axis: int | Sequence[int] | None = None

    name: ClassVar[str] = "norms"

    def __post_init__(self) -> None:
        axis: Any = self.axis
        if axis is None:
            return
        axes: Iterable[Any] = axis if isinstance(axis, (tuple, list)) else (axis,)
        found = tuple(_integer(x, "Norms(axis=...)") for x in axes)
        if not found or len(set(found)) != len(found):
            message = f"Norms(axis={axis!r}): axis is one or more of the leaf's axes, each once, or None for all"
            raise TapError(message)
        _set(self, axis=found)


@dataclasses.dataclass(frozen=True)
class Function(Keep):
    """What a function makes of the leaf.

    Args:
        func: takes one leaf, lane axes excluded, and returns an array or a pytree of arrays. None in what was read
            from a recording: the name alone is on disk.
        name: its name in the recording; the function's own unless told.
        where: whether it takes, as the keyword argument ``where``, which elements count: bools of the leaf's shape,
            or None when all do. Without, it sees padding like anything else.

    Parts:
        ``value`` for one array; for several, their key paths, with dots: known when the function is traced.

    Example:
        >>> Function(abs).to_json()
        {'kind': 'function', 'name': 'abs'}
    """

    func: Callable[..., Any] | None
    name: str = ""  # pyright: ignore[reportIncompatibleVariableOverride] - a function's kind is its own name
    where: bool = False

    def __post_init__(self) -> None:
        if self.func is not None and not callable(self.func):
            message = f"Function({self.func!r}): not a function"
            raise TapError(message)
        name = self.name or _function_name(self.func)
        if not isinstance(name, str) or not name:
            message = f"Function(name={self.name!r}): a name is a string that is not empty"
            raise TapError(message)
        _set(self, name=name, where=bool(self.where))

    @property
    def parts(self) -> tuple[str, ...]:
        """The one array of a function that returns one; `tracerec.tapping.reductions.reduce` tells of several."""
        return ("value",)

    def to_json(self) -> dict[str, Any]:
        """Returns the function's name; the function itself is not data."""
        return {"kind": "function", "name": self.name}


def _set(keep: Keep, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(keep, name, value)


def _plain(value: Any) -> Any:
    return [_plain(x) for x in value] if isinstance(value, tuple) else value


def _integer(value: Any, what: str, *, least: int | None = None, most: int | None = None) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        message = f"{what} takes an integer, not {value!r}"
        raise TapError(message)
    if (least is not None and number < least) or (most is not None and number > most):
        message = f"{what} takes {least} to {most}, not {number}"
        raise TapError(message)
    return number


def _index_item(item: Any) -> int | str | tuple[int | None, int | None, int | None]:
    if item is Ellipsis:
        return "..."
    what = "an index of Slice"
    if isinstance(item, slice):
        ends = (item.start, item.stop, item.step)
        start, stop, step = (None if x is None else _integer(x, what) for x in ends)
        if step == 0:
            message = f"Slice({item!r}): a step cannot be 0"
            raise TapError(message)
        return (start, stop, step)
    return _integer(item, what)


def _function_name(func: Any) -> str:
    while hasattr(func, "func"):  # functools.partial
        func = func.func
    return str(getattr(func, "__name__", None) or type(func).__name__) if func is not None else ""
