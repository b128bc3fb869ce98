"""What the reductions must give, computed anew: numpy, float64 or wider, nothing of tracerec's arithmetic."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tracerec.protocol import dtypes

WIDE = ("int64", "uint64", "float64", "complex128")
SHAPE = (2, 3, 4, 25)


def kind_of(name: str) -> str:
    """What numpy calls a kind: b, i, f or c."""
    if name == "bool":
        return "b"
    return "i" if "int" in name else "c" if name.startswith("complex") else "f"


def facts(name: str) -> Any:
    """The limits of a dtype; of a complex one, of its parts."""
    dtype = dtypes.from_name(name)
    if kind_of(name) == "i":
        return ml_dtypes.iinfo(dtype)
    return ml_dtypes.finfo(dtypes.from_name({"complex64": "float32", "complex128": "float64"}.get(name, name)))


def random_bits(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any values there are, NaN and infinities if there are any."""
    rng, dtype = np.random.default_rng(seed), dtypes.from_name(name)
    if kind_of(name) == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind_of(name) == "i":
        low, high = int(facts(name).min), int(facts(name).max)
        values = [int.from_bytes(rng.bytes(8), "little") % (high - low + 1) + low for _ in range(math.prod(shape))]
        return np.array(values, object).astype(np.int64 if low < 0 else np.uint64).astype(dtype).reshape(shape)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if name == "float4_e2m1fn":
        bits &= 15
    return bits.view(dtype).reshape(shape)


def leaves(name: str, shape: tuple[int, ...] = SHAPE) -> dict[str, np.ndarray]:
    """Arrays of one dtype and shape that are hard in different ways, by what they are."""
    rng, dtype = np.random.default_rng(7), dtypes.from_name(name)
    found = {"bits": random_bits(name, shape, 1)}
    if kind_of(name) in "bi":
        found["zeros"] = np.zeros(shape, dtype)
        found["few"] = rng.integers(0, 2, shape).astype(dtype)
        if kind_of(name) == "i":
            high = int(facts(name).max)
            found["near the end"] = (np.uint64(high) - rng.integers(0, min(3, high + 1), shape, np.uint64)).astype(
                dtype
            )
        return found
    limits = facts(name)
    real = name if kind_of(name) == "f" else {"complex64": "float32"}.get(name, "float64")

    def of(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return values.astype(dtypes.from_name(real))

    def both(values: np.ndarray, other: np.ndarray) -> np.ndarray:
        if kind_of(name) == "f":
            return values
        out = np.empty(shape, dtype)
        out.real, out.imag = values, other
        return out

    normal, second = rng.normal(size=shape), rng.normal(size=shape)
    if name == "float8_e8m0fnu":
        normal, second = np.abs(normal), np.abs(second)
    found["ordinary"] = both(of(normal), of(second))
    found["constant"] = both(of(np.full(shape, 0.1)), of(np.full(shape, 0.2)))
    small, large = float(limits.smallest_subnormal), float(limits.max)
    found["tiny"] = both(of(rng.integers(0, 6, shape) * small), of(rng.integers(-5, 6, shape) * small))
    found["huge"] = both(of(rng.uniform(0.4, 0.7, shape) * large), of(rng.uniform(-0.6, 0.6, shape) * large))
    found["far"] = both(of(np.full(shape, 1e4) + normal), of(normal))
    special = found["ordinary"].copy()
    flat = special.reshape(shape[0], -1)
    if name != "float4_e2m1fn":
        with np.errstate(all="ignore"):
            flat[:, 0:9:3] = np.array([np.nan, np.inf, -np.inf]).astype(dtypes.from_name(real))
    flat[:, 30:33] = np.array([0.0, -0.0, small]).astype(dtypes.from_name(real))
    found["special"] = special
    found["nothing finite"] = np.full(shape, flat[0, 0], dtype)
    return found


def plain(leaf: Any) -> np.ndarray:
    """The elements as long doubles, exactly; complex ones by magnitude, rounded to the parts' dtype."""
    if leaf.dtype.kind == "c":
        with np.errstate(all="ignore"):
            wide = leaf.astype(np.clongdouble)
            nan = np.isnan(wide.real) | np.isnan(wide.imag)
            exact = np.where(nan, np.nan, np.hypot(wide.real, wide.imag))
            part = leaf.real.dtype.type
            most = np.longdouble(np.finfo(part).max)
            rounded = np.where(np.isfinite(exact), np.minimum(exact, most), exact).astype(part)
            return rounded.astype(np.longdouble)
    if leaf.dtype.kind in "biu":
        return leaf.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if leaf.dtype.name.startswith(("int", "uint")):
            return leaf.astype(np.int64).astype(np.longdouble)
        return leaf.astype(np.float64).astype(np.longdouble)


def counts(leaf: np.ndarray, mask: np.ndarray) -> list[int]:
    """The six counts of one lane."""
    values = plain(leaf)[mask]
    smallest = 0.0 if kind_of(leaf.dtype.name) in "bi" else float(facts(leaf.dtype.name).smallest_normal)
    with np.errstate(all="ignore"):
        subnormal = (values != 0) & (np.abs(values) < smallest)
        return [
            values.size,
            int(np.isnan(values).sum()),
            int((values == np.inf).sum()),
            int((values == -np.inf).sum()),
            int((values == 0).sum()),
            int(subnormal.sum()),
        ]


def finite(leaf: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The finite elements of one lane that count, as long doubles."""
    values = plain(leaf)[mask]
    return values[np.isfinite(values)]


def measures(values: np.ndarray) -> dict[str, float]:
    """Mean, std, l1, l2, smallest and largest of finite values."""
    if not values.size:
        return dict.fromkeys(("min", "max", "mean", "std", "l1", "l2"), math.nan)
    mean = values.mean()
    return {
        "min": values.min(),
        "max": values.max(),
        "mean": mean,
        "std": np.sqrt(np.square(values - mean).mean()),
        "l1": np.abs(values).sum(),
        "l2": np.sqrt(np.square(values).sum()),
    }


def lane_masks(shape: tuple[int, ...], lanes: int) -> list[np.ndarray]:
    """Masks that broadcast to a shape: of elements, of whole lanes, and of nothing."""
    rng = np.random.default_rng(3)
    whole = (rng.random((*shape[:lanes], *(1,) * (len(shape) - lanes))) < 0.5).reshape(-1)
    whole[0] = False
    return [rng.random(shape) < 0.7, whole.reshape((*shape[:lanes], *(1,) * (len(shape) - lanes)))]
