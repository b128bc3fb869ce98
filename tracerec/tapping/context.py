"""What holds while a function is traced: scopes, and whether taps are there at all.

Both are part of JAX's cache key (``jax.make_user_context``), so a function that was traced under one scope is traced
anew under another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import jax

from tracerec.errors import TapError
from tracerec.plans import PLAIN, Policy

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "announce",
    "batching_under",
    "disabled",
    "in_scope",
    "in_scope_kwargs",
    "is_batching_under",
    "is_disabled",
    "policies",
    "scope",
]

_context = jax.make_user_context(default_value=None)

_policies = jax.make_user_context(default_value=None)
"""Those of the recordings that run, for all threads alike; None: all take what the taps give."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Key:
    """What of the context a compiled program depends on."""

    disabled: bool = False
    scopes: tuple[Any, ...] = ()
    control_flow: tuple[Any, ...] = ()


class _Kwargs(threading.local):
    """Kwargs of the open scopes, outermost first. Not in the cache key: tracers must not be kept alive by it."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, dict[str, Any]]] = []


_kwargs = _Kwargs()


@contextlib.contextmanager
def scope(name: str, /, **kwargs: Any) -> Generator[None]:
    """Gives every tap traced inside a name prefix and kwargs.

    Scopes nest: names are joined by ``/``; an inner scope's kwargs, and a tap's own, win over outer ones.

    A jitted function that is *called* inside a scope is traced once for each different scope, numbers included:
    give a changing step as a traced value, inside the jitted function.

    Args:
        name: the prefix, such as ``"encoder"``.
        **kwargs: as for ``tap``.

    Raises:
        TapError: the name is empty or no string.

    Example:
        >>> import tracerec
        >>> with tracerec.scope("encoder", phase="train"):
        ...     y = tracerec.tap(1.0, "act")  # recorded as "encoder/act"
    """
    if not isinstance(name, str) or not name:
        message = f"scope: the name must be a string that is not empty, not {name!r}"
        raise TapError(message)
    key = _key()
    entered = dataclasses.replace(key, scopes=(*key.scopes, (name, *map(_freeze, sorted(kwargs.items())))))
    stack = _kwargs.stack
    stack.append((name, kwargs))
    try:
        with _context(entered):
            yield
    finally:
        stack.pop()


@contextlib.contextmanager
def disabled() -> Generator[None]:
    """Removes every tap from what is traced inside, so that the compiled program is the untapped one.

    Functions that were traced before, with taps, are traced anew inside; afterwards they are as before.

    Example:
        >>> import tracerec
        >>> with tracerec.disabled():
        ...     y = tracerec.tap(1.0, "act")  # the identity, nothing else
    """
    with _context(dataclasses.replace(_key(), disabled=True)):
        yield


def batching_under(what: tuple[Any, ...]) -> Any:
    """Returns a context in which JAX's caches are apart from those outside; ``what`` tells them from each other."""
    key = _key()
    return _context(dataclasses.replace(key, control_flow=(*key.control_flow, what)))


def is_batching_under(what: tuple[Any, ...]) -> bool:
    """Returns whether this point is in such a context of `batching_under`."""
    return what in _key().control_flow


def announce(policies: tuple[Policy, ...]) -> None:
    """Tells all threads what the recordings that run want; what was traced for others is traced anew."""
    distinct = tuple(dict.fromkeys(policies))
    value = distinct if any(policy != PLAIN for policy in distinct) else None
    if _policies.get_global() != value:
        _policies.set_global(value)


def policies() -> tuple[Policy, ...]:
    """Returns what the recordings that run want, each policy once; empty when they take what the taps give."""
    return _policies.value or ()


def is_disabled() -> bool:
    """Returns whether taps are left out at this point."""
    return _key().disabled


def in_scope_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns kwargs under the open scopes."""
    return in_scope("", kwargs)[1]


def in_scope(name: str, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a tap's full name and kwargs under the open scopes."""
    stack = _kwargs.stack
    if not stack:
        return name, kwargs
    merged: dict[str, Any] = {}
    for _, outer in stack:
        merged |= outer
    return "/".join([*(prefix for prefix, _ in stack), name]), merged | kwargs


def _key() -> _Key:
    key = _context.value
    return key if isinstance(key, _Key) else _Key()


def _freeze(item: tuple[str, Any]) -> tuple[Any, ...]:
    name, value = item
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return name, type(value), value
    # Anything else, tracers above all, is known by a token of its own: no trace made for one is used for another.
    return name, object()
