"""Tolerances: how much two values may differ, by dtype and by tap."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tracerec.comparing.ordinals import is_float, mantissa_bits
from tracerec.errors import ComparisonError
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Tolerance", "Tolerances", "default", "defaults_text"]

Given = float | Mapping[str, float] | None
"""A tolerance as users give it: a number for all, or one for each dtype or pattern of taps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """How much two values may differ.

    ``|a - b| - rtol * max(|a|, |b|) <= atol`` passes, and so does a difference of at most ``ulp`` representable values.
    NaN or an infinity on one side only never passes.

    Attributes:
        rtol: relative to the larger magnitude of the two.
        atol: absolute.
        ulp: in units of the last place; 0: none.
        exact: whether all bits must be equal, but those of NaN.
    """

    rtol: float = 0.0
    atol: float = 0.0
    ulp: float = 0
    exact: bool = False

    def __str__(self) -> str:
        if self.exact:
            return "equal bits"
        ulp = f", or ulp {self.ulp:g}" if self.ulp else ""
        if not (self.rtol or self.atol):
            return f"ulp {self.ulp:g}" if self.ulp else "equal values"
        return f"rtol {self.rtol:g}, atol {self.atol:g}{ulp}"


_DEFAULTS = {
    "float64": Tolerance(1e-9, 1e-12),
    "float32": Tolerance(1e-5, 1e-7),
    "float16": Tolerance(2e-3, 1e-5),
    "bfloat16": Tolerance(1.6e-2, 1e-5),
    "complex64": Tolerance(1e-5, 1e-7),
    "complex128": Tolerance(1e-9, 1e-12),
}


def default(dtype: np.dtype[Any]) -> Tolerance:
    """Returns the tolerance of a dtype that nobody chose one for.

    Integers, bools and keys must be equal. Floats of eight bits and fewer may differ by two units of the last place.

    Example:
        >>> print(default(np.dtype("float32")), default(np.dtype("int32")), sep="; ")
        rtol 1e-05, atol 1e-07; equal values
    """
    if dtype.name in _DEFAULTS:
        return _DEFAULTS[dtype.name]
    if is_float(dtype):
        return Tolerance(2.0 * 2.0 ** -mantissa_bits(dtype), float(ml_dtypes.finfo(dtype).smallest_normal))
    return Tolerance()


def defaults_text() -> str:
    """Returns the defaults, a line a dtype."""
    names = [
        "float64",
        "float32",
        "bfloat16",
        "float16",
        *(n for n in dtypes.NAMES if n.startswith(("float8", "float4"))),
    ]
    lines = [f"{name:<20} {default(dtypes.from_name(name))}" for name in names]
    return "\n".join([*lines, "integers, bool, keys  equal values"])


class Tolerances:
    """What was asked for, by dtype and tap.

    Args:
        rtol: a number; or one for each dtype or pattern of taps: ``{"bfloat16": 1e-2, "encoder/*": 1e-3}``. Of patterns
            the first that matches counts, and a pattern before a dtype.
        atol: likewise.
        ulp: likewise. Where it is given alone, rtol and atol are 0.
        exact: whether all bits must be equal: everywhere, or for taps that match one of these patterns.

    Raises:
        ComparisonError: a tolerance is negative or no number.

    Example:
        >>> tolerances = Tolerances(rtol={"encoder/*": 1e-3})
        >>> print(tolerances.of("encoder/act", np.dtype("float32")))
        rtol 0.001, atol 1e-07
    """

    def __init__(
        self, rtol: Given = None, atol: Given = None, ulp: Given = None, *, exact: bool | Sequence[str] = False
    ) -> None:
        self._rtol, self._atol, self._ulp = (
            _checked(name, given) for name, given in (("rtol", rtol), ("atol", atol), ("ulp", ulp))
        )
        self._exact = exact if isinstance(exact, bool) else (exact,) if isinstance(exact, str) else tuple(exact)
        self._known: dict[tuple[str, str], Tolerance] = {}

    def of(self, tap: str, dtype: np.dtype[Any]) -> Tolerance:
        """Returns the tolerance of a tap's leaves of a dtype."""
        place = tap, dtype.name
        if place not in self._known:
            self._known[place] = self._found(tap, dtype)
        return self._known[place]

    def used(self) -> dict[str, str]:
        """Returns the tolerances that were asked for so far, as text, by dtype; several where taps have their own."""
        out: dict[str, dict[str, None]] = {}
        for (_, dtype), tolerance in self._known.items():
            out.setdefault(dtype, {})[str(tolerance)] = None
        return {dtype: " / ".join(texts) for dtype, texts in sorted(out.items())}

    def _found(self, tap: str, dtype: np.dtype[Any]) -> Tolerance:
        if self._exact is True or (self._exact and any(fnmatch.fnmatchcase(tap, p) for p in self._exact)):
            return Tolerance(exact=True)
        usual = default(dtype)
        rtol, atol, ulp = (_looked_up(given, tap, dtype.name) for given in (self._rtol, self._atol, self._ulp))
        if ulp is not None:
            return Tolerance(rtol or 0.0, atol or 0.0, ulp)
        return Tolerance(usual.rtol if rtol is None else rtol, usual.atol if atol is None else atol)


def _looked_up(given: Given, tap: str, dtype: str) -> float | None:
    if not isinstance(given, Mapping):
        return given
    for pattern, value in given.items():
        if pattern not in dtypes.CODES and fnmatch.fnmatchcase(tap, pattern):
            return value
    return given.get(dtype)


def _checked(name: str, given: Given) -> Given:
    for value in given.values() if isinstance(given, Mapping) else [] if given is None else [given]:
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            message = f"{name} is a number of at least 0, or one for each dtype or pattern of taps, not {value!r}"
            raise ComparisonError(message)
    return given
