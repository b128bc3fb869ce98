"""Which records a selection means: by step, device, call, attempt, time, process, transforms and the tap's kwargs."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import json
import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import lanes, structure
from tracerec.errors import SelectionError
from tracerec.model import FLAG_STEP, Transform
from tracerec.trace import times
from tracerec.trace.view import StreamView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "Static",
    "any_of",
    "counted",
    "has",
    "is_like",
    "kwarg_names",
    "kwargs_of",
    "matching",
    "names_like",
    "nearest",
    "with_transforms",
]


def with_transforms(views: Sequence[StreamView], wanted: Any, tap: str) -> list[StreamView]:
    """Returns the views whose records went through exactly these transformations, innermost first.

    Args:
        views: the views.
        wanted: a tuple of names and `Transform` values; ``()`` for records that went through none.
        tap: the tap's name, for messages.

    Raises:
        SelectionError: no view has them.
    """
    names = (wanted,) if isinstance(wanted, (str, Transform)) else tuple(wanted)
    found = [view for view in views if _same_transforms(view.site.transforms, names)]
    if not found:
        exist = tuple(dict.fromkeys(repr(view.site.transform_names) for view in views))
        message = f"tap {tap!r} has no records with transforms={names!r}; it has {any_of(exist)}"
        raise SelectionError(message, choices=exist)
    return found


def matching(views: Sequence[StreamView], name: str, wanted: Any, tap: str) -> list[StreamView]:
    """Returns the views with only the records of which a property or a kwarg has a value wanted.

    Args:
        views: the views.
        name: ``"step"``, ``"device"``, ``"call"``, ``"attempt"``, ``"time"``, ``"process"`` or a kwarg's name.
        wanted: a value; a slice of numbers, half-open as in Python; or an iterable of values.
        tap: the tap's name, for messages.

    Raises:
        SelectionError: the tap has no such kwarg, or no record matches.
    """
    candidates = [view for view in views if name in _OF_RECORDS or name in kwarg_names(view)]
    if not candidates and name == "step":
        message = f"tap {tap!r} was recorded without step=, so that no step can be selected"
        raise SelectionError(message)
    if not candidates:
        exist = tuple(dict.fromkeys(kwarg for view in views for kwarg in kwarg_names(view)))
        message = f"tap {tap!r} has no kwarg {name!r}; it has {any_of(exist) or 'none'}"
        raise SelectionError(message, choices=exist)
    test = _time_test(wanted) if name == "time" else _test(wanted)
    found = [view.take(_mask(view, name, test)) for view in candidates]
    found = [view for view in found if view.records]
    if not found and name == "step":
        raise SelectionError(_no_step(candidates, wanted, tap))
    if not found:
        message = f"tap {tap!r} has no record with {name}={_text(wanted)}; {_exist(candidates, name)}"
        raise SelectionError(message)
    return found


def has(views: Sequence[StreamView], name: str, wanted: Any) -> bool:
    """Returns whether `matching` would find a record; it looks no further than the first."""
    test = _time_test(wanted) if name == "time" else _test(wanted)
    candidates = (view for view in views if name in _OF_RECORDS or name in kwarg_names(view))
    return any(_mask(view, name, test).any() for view in candidates)


_OF_RECORDS = ("device", "call", "attempt", "time", "process")
"""What every record has; kwargs of these names cannot be selected by."""


def _no_step(views: Sequence[StreamView], wanted: Any, tap: str) -> str:
    """Returns what to say of a step that a tap with steps has not: never, not yet, or no longer."""
    going_on = [view.progress for view in views if view.progress is not None]
    low, high = _range(views, "step")
    so_far = " so far" if going_on else ""
    there = _exist(views, "step") if low is None else f"its steps{so_far} are {low}..{high}"
    if any(progress.may_bring(wanted) for progress in going_on):
        return f"step={_text(wanted)} of tap {tap!r} is not yet recorded: {there}"
    everything = [StreamView.of(view.source, raw=True) for view in views]
    if has(everything, "step", wanted):
        return (
            f"step={_text(wanted)} of tap {tap!r} is recorded, but no record of it counts and is selected here: {there}"
            "; .raw has what does not count"
        )
    owners = {id(view.owner): view.owner for view in views if view.owner is not None}
    retired = sum(owner.info.retired.get(tap, 0) for owner in owners.values())
    if retired and _reaches_below(wanted, _range(everything, "step")[0]):
        return (
            f"step={_text(wanted)} of tap {tap!r} is no longer there: the oldest records were retired, {retired:,} of "
            f"this tap; {there}"
        )
    return f"step={_text(wanted)} of tap {tap!r} was never recorded: {there}"


def _reaches_below(wanted: Any, low: Any) -> bool:
    """Returns whether a step that is wanted, or one of several, is less than the smallest there is."""
    if low is None:
        return True
    if isinstance(wanted, slice):
        return wanted.start is None or bool(wanted.start < low)
    steps = wanted if isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes)) else [wanted]
    return any(np.isscalar(step) and not isinstance(step, (str, bytes)) and bool(step < low) for step in steps)


@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """The value of a kwarg that all records of a site share.

    Attributes:
        value: the value.
    """

    value: Any


def kwargs_of(view: StreamView) -> dict[str, Static | int | Any]:
    """Returns a site's kwargs: a `Static`, the number of the column that is the kwarg, or a structure of both."""
    return {name: _kwarg(node) for name, node in json.loads(view.site.kwargs).items()}


def kwarg_names(view: StreamView) -> list[str]:
    """Returns the names of a site's kwargs, and those of numbers inside containers, such as ``lr['body']``."""
    columns = (column.name for column in view.site.columns if column.role is None)
    return list(dict.fromkeys([*json.loads(view.site.kwargs), *columns]))


def any_of(choices: Sequence[str], most: int = 12) -> str:
    """Returns choices as text, the first ones of a long list."""
    more = f" and {len(choices) - most} more" if len(choices) > most else ""
    return ", ".join(choices[:most]) + more


def names_like(pattern: str | re.Pattern[str], names: Sequence[str], path: str) -> list[str]:
    """Returns the names that match a name, a glob pattern (`fnmatch.fnmatchcase`) or a compiled regular expression.

    Raises:
        SelectionError: none does; the message has the nearest.
    """
    found = [name for name in names if name == pattern] or [name for name in names if is_like(name, pattern)]
    if not found:
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        hint = nearest(text, names, "its taps are")
        message = f"{path} has no tap that matches {text!r}; {hint}"
        raise SelectionError(message, choices=tuple(names))
    return found


def is_like(name: str, pattern: str | re.Pattern[str]) -> bool:
    """Returns whether a name is one, or matches a glob pattern or a compiled regular expression."""
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Returns a number and its noun, in the plural where it takes one.

    Example:
        >>> counted(1, "record"), counted(1200, "record")
        ('1 record', '1,200 records')
    """
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def nearest(name: str, names: Sequence[str], what: str) -> str:
    """Returns the end of a message about an unknown name: the names nearest to it, or the first ones."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [n for n in names if name and name in n and n not in near][: 3 - len(near)]
    if near:
        return "did you mean " + " or ".join(map(repr, near)) + "?"
    return f"{what} {any_of([repr(n) for n in names], 6)}" if names else f"{what} none"


def _kwarg(node: Any) -> Static | int | Any:
    if isinstance(node, dict) and set(node) == {"slot"}:
        return int(node["slot"])
    if '{"slot":' in structure.canonical(node):
        return node
    return Static(structure.build(node, _no_slot))


def _no_slot(number: int) -> Any:
    message = f"slot {number} in a static value"
    raise ValueError(message)


def _same_transforms(transforms: tuple[Transform, ...], wanted: tuple[Any, ...]) -> bool:
    return len(transforms) == len(wanted) and all(
        have == want if isinstance(want, Transform) else have.name == want
        for have, want in zip(transforms, wanted, strict=True)
    )


def _test(wanted: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the test of an array of values: a mask of the same shape."""
    if isinstance(wanted, slice):
        return lambda values: _in_slice(values, wanted)
    if isinstance(wanted, np.ndarray) or (
        isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes, dict, structure.PyTreeNode))
    ):
        choices = list(wanted)
        # A static kwarg can itself be a tuple.
        return lambda values: _is_in(values, [*choices, wanted] if values.dtype.kind == "O" else choices)
    return lambda values: _equal(values, wanted)


def _time_test(wanted: Any) -> Callable[[np.ndarray], np.ndarray]:
    ranges = times.ranges(wanted)

    def test(values: np.ndarray) -> np.ndarray:
        nanoseconds = values.view(np.int64)
        mask = np.zeros(values.shape, bool)
        for start, stop in ranges:
            mask |= (nanoseconds >= start) & (nanoseconds < stop)
        return mask

    return test


def _in_slice(values: np.ndarray, wanted: slice) -> np.ndarray:
    mask = np.ones(values.shape, bool)
    if wanted.start is not None:
        mask &= values >= wanted.start
    if wanted.stop is not None:
        mask &= values < wanted.stop
    if wanted.step is not None:
        mask &= (values - (wanted.start or 0)) % wanted.step == 0
    return mask


def _is_in(values: np.ndarray, choices: list[Any]) -> np.ndarray:
    if values.dtype.kind in "iu" and all(isinstance(c, (int, np.integer)) for c in choices):
        return np.isin(values, np.array([c for c in choices if _fits(c, values.dtype)], values.dtype))
    mask = np.zeros(values.shape, bool)
    for choice in choices:
        mask |= _equal(values, choice)
    return mask


def _equal(values: np.ndarray, wanted: Any) -> np.ndarray:
    if values.dtype.kind == "O":
        # A static value, which can be of any type: Python's own equality.
        return np.array([bool(np.all(value == wanted)) for value in values.flat]).reshape(values.shape)
    if not isinstance(wanted, (bool, int, float, complex, np.generic)):
        return np.zeros(values.shape, bool)
    return np.asarray(values == wanted)


def _fits(number: Any, dtype: np.dtype) -> bool:
    return np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


_ROWS = 1 << 16
"""Rows looked at at once."""


def _mask(view: StreamView, name: str, test: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    mask = np.zeros(view.records, bool)
    for start in range(0, view.records, _ROWS):
        stop = min(start + _ROWS, view.records)
        values, valid = _values(view, name, start, stop)
        hits = test(values)
        # A batched number matches where any lane does that counts.
        hits = hits & valid
        mask[start:stop] = hits.reshape(len(hits), int(np.prod(hits.shape[1:]))).any(axis=1)
    return mask


def _values(view: StreamView, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | bool]:
    """Returns the values of some records, and which of them are there and count: bools that broadcast to them."""
    if name in _OF_RECORDS:
        return _of_records(view, name, start, stop), True
    for number, column in enumerate(view.site.columns):
        if column.name == name and column.role is None:
            if column.in_index:
                rows = view.index(start, stop)
                return rows["step"], (rows["flags"] & FLAG_STEP) != 0
            values = view.column(number, start, stop)
            return values, True if view.raw else _lanes(view, number, start, stop)
    kwarg = kwargs_of(view)[name]
    values = np.empty(stop - start, object)
    if isinstance(kwarg, Static):
        values[:] = [kwarg.value] * (stop - start)
        return values, True
    columns = [view.column(i, start, stop) for i in range(len(view.site.columns))]
    for row in range(stop - start):
        numbers = [c.to_python(x[row, ...]) for c, x in zip(view.site.columns, columns, strict=True)]
        values[row] = structure.build(kwarg, numbers.__getitem__)
    return values, True


def _of_records(view: StreamView, name: str, start: int, stop: int) -> np.ndarray:
    if name == "process":
        return np.full(stop - start, view.process)
    if name == "attempt" and view.attempts is None:
        return np.zeros(stop - start, np.int64)
    rows = view.index(start, stop)
    if name == "attempt" and view.attempts is not None:
        return view.attempts.number(rows)
    return rows["time"].view("datetime64[ns]") if name == "time" else rows[name]


def _lanes(view: StreamView, number: int, start: int, stop: int) -> np.ndarray | bool:
    """Returns which lanes of a kwarg count."""
    valid = lanes.valid_in_column(view.site, number, lambda column: view.column(column, start, stop))
    return True if valid is None else valid


def _exist(views: Sequence[StreamView], name: str) -> str:
    """Returns a sentence about the values that there are."""
    seen: dict[str, None] = {}
    for view in views:
        for values in _blocks(view, name):
            if values.dtype.kind == "O":
                seen.update(dict.fromkeys(map(repr, values[:1])))
    if seen:
        return f"it has {any_of(list(seen))}"
    low, high = _range(views, name)
    return "no record has one" if low is None else f"they go from {low} to {high}"


def _range(views: Sequence[StreamView], name: str) -> tuple[Any, Any]:
    """Returns the smallest and the largest number that there is; None twice when there is none."""
    low: Any = None
    high: Any = None
    for view in views:
        for values in _blocks(view, name):
            if values.dtype.kind != "O" and values.size:
                low = values.min() if low is None else min(low, values.min())
                high = values.max() if high is None else max(high, values.max())
    return low, high


def _blocks(view: StreamView, name: str) -> Iterator[np.ndarray]:
    """Yields the values that there are and that count."""
    for start in range(0, view.records, _ROWS):
        values, valid = _values(view, name, start, min(start + _ROWS, view.records))
        yield values if valid is True else values[np.broadcast_to(valid, values.shape)]


def _text(wanted: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(wanted)
