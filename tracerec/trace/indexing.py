"""Which records ``tap[...]`` means: slices, masks and arrays of numbers, as numpy takes them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.trace.view import StreamView

__all__ = ["numbers", "picked", "text"]


def numbers(key: Any, count: int, tap: str) -> np.ndarray:
    """Returns the numbers of the records meant, in the order wanted: ``(n,)`` of int64, each in ``0 .. count - 1``.

    Args:
        key: a slice; a mask, ``(count,)`` of bool; or integers, ``(n,)``, negative ones counted from the end.
        count: how many records there are.
        tap: the tap's name, for messages.

    Raises:
        SelectionError: a mask is of another length, or an array has several axes.
        IndexError: there is no record of a number.
        TypeError: it is none of these.
        ValueError: the step of a slice is 0.
    """
    if isinstance(key, slice):
        try:
            return np.arange(*key.indices(count), dtype=np.int64)
        except TypeError:
            message = f"tap {tap!r}: a slice takes integers, not {key!r}; .sel(step=slice(...)) selects steps"
            raise TypeError(message) from None
    if isinstance(key, (str, bytes, tuple, dict, bool, np.bool_)) or not isinstance(key, Iterable):
        raise _no_index(key, tap)
    try:
        array = np.asarray(key if hasattr(key, "__array__") else list(key))
    except ValueError:
        raise _no_index(key, tap) from None
    if array.ndim != 1:
        message = f"tap {tap!r}: its records have one axis; an array of shape {array.shape} cannot choose among them"
        raise SelectionError(message)
    if array.dtype.kind == "b":
        if len(array) != count:
            message = f"tap {tap!r} has {count} records; a mask of {len(array)} does not fit"
            raise SelectionError(message)
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu" and len(array):
        raise _no_index(key, tap)
    wrong = (array < -count) | (array >= count) if len(array) else np.zeros(0, bool)
    if wrong.any():
        message = f"record {array[wrong][0]} of tap {tap!r}, which has {count}"
        raise IndexError(message)
    found = array.astype(np.int64)
    return np.where(found < 0, found + count, found)


def picked(views: Sequence[StreamView], inverse: np.ndarray, wanted: np.ndarray) -> list[StreamView]:
    """Returns the views of some records, in the order wanted; views that have none of them go.

    Args:
        views: the views.
        inverse: the view and the row of each record, ``(records, 2)``.
        wanted: the numbers of records, ``(n,)``.
    """
    # Ascending numbers keep the order that there is.
    keeps = bool(np.all(np.diff(wanted) > 0))
    places = inverse[wanted]
    out: list[StreamView] = []
    for stream, view in enumerate(views):
        mine = np.flatnonzero(places[:, 0] == stream)
        rows = places[mine, 1]
        order = np.argsort(rows, kind="stable")
        out.append(view.pick(rows[order], None if keeps else mine[order]))
    return [view for view in out if view.records] or out


def text(key: Any) -> str:
    """Returns an index as it is written, a long one abridged."""
    if isinstance(key, slice):
        parts = ["" if part is None else repr(part) for part in (key.start, key.stop, key.step)]
        return ":".join(parts if parts[2] else parts[:2])
    return reprlib.repr(key.tolist() if isinstance(key, np.ndarray) else key)


def _no_index(key: Any, tap: str) -> TypeError:
    message = (
        f"tap {tap!r} takes the number of a record, a slice, a mask or an array of numbers, not {key!r}; "
        ".sel(step=...) selects steps"
    )
    return TypeError(message)
