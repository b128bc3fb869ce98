"""What tables have beside the arrays: kwargs, each as a column of its own type."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import structure
from tracerec.model import FLAG_STEP
from tracerec.trace import selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.trace.view import StreamView

__all__ = [
    "Values",
    "as_text",
    "common",
    "constant",
    "jsonable",
    "kwarg",
    "kwargs",
    "plain",
    "static_kwargs",
    "well_formed",
]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Values:
    """One stream's values of a column that other streams may lack.

    Attributes:
        values: ``(n,)``, of a numpy dtype, or of objects.
        valid: which of them are there, ``(n,)``.
    """

    values: np.ndarray
    valid: np.ndarray


def kwargs(view: StreamView, start: int, stop: int) -> dict[str, Values]:
    """Returns one value a record for each kwarg of some records, ``step`` among them."""
    return {name: kwarg(view, what, start, stop) for name, what in selection.kwargs_of(view).items()}


def kwarg(view: StreamView, what: Any, start: int, stop: int) -> Values:
    """Returns one value a record for one kwarg, as `tracerec.trace.selection.kwargs_of` describes it."""
    records, columns = stop - start, view.site.columns
    if isinstance(what, selection.Static):
        return Values(constant(what.value, records), np.full(records, what.value is not None))
    if isinstance(what, int) and columns[what].in_index:
        rows = view.index(start, stop)
        return Values(rows["step"], (rows["flags"] & FLAG_STEP) != 0)
    if isinstance(what, int) and columns[what].shape == ():
        return Values(view.column(what, start, stop), np.ones(records, bool))
    return Values(_built(view, what, start, stop), np.ones(records, bool))


def static_kwargs(view: StreamView) -> dict[str, Any]:
    """Returns the kwargs that all records of a stream share."""
    found = selection.kwargs_of(view).items()
    return {name: kwarg.value for name, kwarg in found if isinstance(kwarg, selection.Static)}


def plain(values: np.ndarray) -> np.ndarray:
    """Returns values in a type that pandas and Arrow have an array for, exactly; complex numbers as objects."""
    name = values.dtype.name
    if values.dtype.kind == "c":
        return values.astype(object)
    if name.startswith(("bfloat", "float8", "float4")) or name == "float16":
        return values.astype(np.float32)
    if name in {"int2", "int4"}:
        return values.astype(np.int8)
    if name in {"uint2", "uint4"}:
        return values.astype(np.uint8)
    return values


def common(arrays: Sequence[np.ndarray]) -> np.dtype[Any]:
    """Returns the type of a column: that of all its arrays if it is one, else one that holds them exactly."""
    dtypes = {array.dtype for array in arrays}
    kinds = {dtype.kind for dtype in dtypes}
    if len(dtypes) == 1 and kinds <= set("bf"):
        return next(iter(dtypes))
    if "O" in kinds:
        return np.dtype(object)
    if kinds <= set("iu"):
        unsigned64 = np.dtype(np.uint64) in dtypes
        return np.dtype(object if unsigned64 and "i" in kinds else np.uint64 if unsigned64 else np.int64)
    inexact = any(a.dtype.kind in "iu" and a.size and _magnitude(a) > _EXACT_IN_FLOAT64 for a in arrays)
    return np.dtype(object if inexact else np.float64)


def constant(value: Any, count: int) -> np.ndarray:
    """Returns an array of objects that are all the same."""
    out = np.empty(count, object)
    # Slice assignment would take a sequence apart.
    out.fill(value)
    return out


def jsonable(value: Any) -> Any:
    """Returns a kwarg's value as JSON values; what JSON has no word for is text.

    Example:
        >>> jsonable((1, b"a", {"lr": np.float32(0.5)}))
        [1, "b'a'", {'lr': 0.5}]
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        plainer = plain(np.asarray(value))
        return str(value) if plainer.dtype.kind == "O" else plainer.tolist()
    if isinstance(value, (tuple, list)):
        return [jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    return str(value)


def as_text(value: Any) -> str:
    """Returns a kwarg's value as text: a string as it is, all else as JSON.

    Example:
        >>> as_text("train"), as_text(("a", 1))
        ('train', '["a", 1]')
    """
    return value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)


def well_formed(text: str) -> str:
    r"""Returns text as UTF-8, and so Arrow, can hold it: lone surrogates become escapes.

    Example:
        >>> print(well_formed("\ud800lone"))
        \ud800lone
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _built(view: StreamView, kwarg: Any, start: int, stop: int) -> np.ndarray:
    """Returns the values of a kwarg that is an array, or a container of numbers, as objects."""
    columns = [view.column(i, start, stop) for i in range(len(view.site.columns))]
    out = np.empty(stop - start, object)
    for row in range(stop - start):
        numbers = [c.to_python(x[row, ...]) for c, x in zip(view.site.columns, columns, strict=True)]
        node = {"slot": kwarg} if isinstance(kwarg, int) else kwarg
        out[row] = structure.build(node, numbers.__getitem__)
    return out


_EXACT_IN_FLOAT64 = 1 << 53


def _magnitude(integers: np.ndarray) -> int:
    return max(abs(int(integers.min())), abs(int(integers.max())))
