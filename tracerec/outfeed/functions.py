"""Functions as consumers: what `tracerec.id_tap` and `tracerec.id_print` call on the host.

Functions that do the same share a site, so that a tap traced again is not compiled again: two bound methods of one
object are equal, and so are two ``functools.partial`` of equal parts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tracerec.consuming import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from tracerec.model import Record

__all__ = ["HostFunction"]


class HostFunction:
    """A function on the host, equal to another when they do the same.

    Args:
        function: called as ``function(*arrays, **kwargs)`` on the receiver's thread.
        rebuild: makes the positional arguments from a record's leaves by their number; a leaf that the record does
            not hold is None.
        static: static kwargs as the user passed them. They are part of the site by their JSON, not compared here.
    """

    __slots__ = ("_key", "function", "rebuild", "static")

    def __init__(
        self,
        function: Callable[..., Any],
        rebuild: Callable[[Mapping[int, np.ndarray]], tuple[Any, ...]],
        static: Mapping[str, Any],
    ) -> None:
        self.function = function
        self.rebuild = rebuild
        self.static = static
        self._key = _key_of(function)

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        inner: Any = self.function
        while isinstance(inner, functools.partial):
            inner = inner.func  # pyright: ignore[reportUnknownMemberType]
        return getattr(inner, "__qualname__", type(inner).__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostFunction) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, record: Record) -> None:
        """Calls the function with a record's arrays and kwargs; raises what it raises."""
        leaves = {leaf.number: array for leaf, array in zip(record.site.leaves, record.arrays, strict=True)}
        call(self.function, self.rebuild(leaves), record, static=self.static)


def _key_of(value: Any) -> Any:
    """Returns something hashable that is equal for callables that do the same."""
    if isinstance(value, functools.partial):
        whole: Any = value  # pyright: ignore[reportUnknownVariableType]
        keywords = tuple((name, _key_of(item)) for name, item in sorted(whole.keywords.items()))
        return ("partial", _key_of(whole.func), tuple(map(_key_of, whole.args)), keywords)
    try:
        hash(value)
    except TypeError:
        return ("object", _Identity(value))
    return (type(value), _exact(value))


def _exact(value: Any) -> Any:
    """Returns something that tells apart what is equal and does not do the same: 1, 1.0 and True; 0.0 and -0.0."""
    if isinstance(value, (float, complex)):
        return repr(value)
    if isinstance(value, tuple):
        return tuple(map(_key_of, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, frozenset):
        return frozenset(map(_key_of, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value


class _Identity:
    """Compares by identity; keeps the object alive so that its id stays its own."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
