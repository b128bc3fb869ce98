"""The measures once more, element by element in Python's exact numbers: slow, plain, and the tests' reference."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

INF = math.inf


def number(value):
    """An element as a Python number, and as a fraction where it is finite."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if np.asarray(value).dtype.kind in "iu" or np.asarray(value).dtype.name.startswith(("int", "uint")):
        return int(value)
    return float(value)


def parts(array):
    """The elements of an array, each as a list of its real parts."""
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return [[float(x.real), float(x.imag)] for x in flat]
    return [[number(x)] for x in flat]


def apart(x, y):
    """The absolute and the relative difference of two real numbers."""
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0, 0.0
    if not (math.isfinite(x) and math.isfinite(y)):
        return INF, INF
    exact = abs(Fraction(x) - Fraction(y))
    return float(exact), float(exact / max(abs(Fraction(x)), abs(Fraction(y))))


def all_values(dtype):
    """All finite values of a small float, in order."""
    bits = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        values = bits.astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def ulps(x, y, dtype):
    """How many steps of the dtype lie between two floats, counted by walking or in its table of values."""
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0
    if not (math.isfinite(x) and math.isfinite(y)):
        return INF
    if dtype.itemsize <= 2:
        values = all_values(dtype)
        return abs(int(np.searchsorted(values, x)) - int(np.searchsorted(values, y)))
    # IEEE 754: the bits of positive floats count up.
    word = f"i{dtype.itemsize}"
    one, other = (int(math.copysign(1, v)) * int(np.abs(np.array(v, dtype)).view(word)) for v in (x, y))
    return abs(one - other)


def measure(a, b):
    """Returns what `tracerec.comparing.measures.measure` must say of two arrays of one shape, as a dict."""
    left, right = parts(a), parts(b)
    complex_ = max((len(p) for p in (*left, *right)), default=1)
    left, right = ([p + [0.0] * (complex_ - len(p)) for p in side] for side in (left, right))
    out = {"size": len(left), "differing": 0, "max_abs": 0.0, "max_rel": 0.0, "abs_at": -1, "nan": 0, "posinf": 0}
    out["neginf"] = 0
    finite = []
    for place, (x, y) in enumerate(zip(left, right, strict=True)):
        found = [apart(u, v) for u, v in zip(x, y, strict=True)]
        worst, relative = max(f[0] for f in found), max(f[1] for f in found)
        out["differing"] += worst > 0
        out["nan"] += any(math.isnan(u) != math.isnan(v) for u, v in zip(x, y, strict=True))
        out["posinf"] += any((u == INF) != (v == INF) for u, v in zip(x, y, strict=True))
        out["neginf"] += any((u == -INF) != (v == -INF) for u, v in zip(x, y, strict=True))
        if worst > out["max_abs"]:
            out["max_abs"], out["abs_at"] = worst, place
        out["max_rel"] = max(out["max_rel"], relative)
        finite += [(u, v) for u, v in zip(x, y, strict=True) if math.isfinite(u) and math.isfinite(v)]
    out["count"] = len(finite)
    out["sum_abs"] = math.fsum(float(abs(Fraction(u) - Fraction(v))) for u, v in finite)
    out["ab"] = math.fsum(float(u) * float(v) for u, v in finite)
    away = [float(abs(Fraction(u) - Fraction(v))) for u, v in finite]
    out["dd"] = math.fsum(x * x for x in away)  # inf where ** would raise
    if a.dtype == b.dtype and (a.dtype.kind == "f" or a.dtype.name.startswith(("bf", "float"))):
        out["max_ulp"] = max((ulps(x[0], y[0], a.dtype) for x, y in zip(left, right, strict=True)), default=0)
    return out


def is_ml(dtype):
    """Whether a dtype is one of ml_dtypes."""
    return hasattr(ml_dtypes, dtype.name)
