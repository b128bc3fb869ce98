"""Printing records, as ``id_print`` does."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracerec.consuming import TapConsumer, leaves_of

if TYPE_CHECKING:
    from tracerec.consuming import Firing

__all__ = ["Printer", "TextStream", "print_record"]


class TextStream(Protocol):
    """Where `tracerec.id_print` and `Printer` write to."""

    def write(self, text: str, /) -> object:
        """Writes a text."""
        ...


class Printer(TapConsumer):
    """Prints each record as `tracerec.id_print` does: a line of sorted ``name: value`` pairs, then each array.

    Args:
        stream: where to print to; None: ``sys.stdout`` as it is when it prints.
        threshold: the number of elements above which an array is summarised.
        names: whether the name of the tap comes first, as ``tap: NAME``.

    Example:
        >>> import numpy as np
        >>> Printer()(np.arange(3), step=7, what="x")
        step: 7  what: x
        [0 1 2]
    """

    def __init__(self, stream: TextStream | None = None, *, threshold: int = 1024, names: bool = False) -> None:
        self._stream = stream
        self._threshold = threshold
        self._names = names

    def take(self, firing: Firing) -> None:
        """Prints a record."""
        if self._names:
            kwargs = {name: value for name, value in firing.kwargs.items() if name != "tap" or value != firing.tap}
            _write(self._stream, self._threshold, firing.args, [f"tap: {firing.tap}", *_pairs(kwargs)])
        else:
            print_record(self._stream, self._threshold, *firing.args, **firing.kwargs)


def print_record(stream: TextStream | None, threshold: int, /, *args: Any, **kwargs: Any) -> None:
    """Prints the arguments of one record; the lines come out together.

    Args:
        stream: where to print to; None: ``sys.stdout``.
        threshold: the number of elements above which an array is summarised.
        *args: pytrees of arrays.
        **kwargs: for the first line.
    """
    _write(stream, threshold, args, _pairs(kwargs))


_printing = threading.Lock()


def _forget_in_child() -> None:
    # the parent's receiver may have been printing
    global _printing  # noqa: PLW0603
    _printing = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def _write(stream: TextStream | None, threshold: int, args: tuple[Any, ...], pairs: list[str]) -> None:
    arrays = [np.array2string(np.asarray(x), threshold=threshold) for _, x in leaves_of(args)]
    lines = ["  ".join(pairs), *arrays] if pairs else arrays
    with _printing:
        (sys.stdout if stream is None else stream).write("\n".join(lines) + "\n")


def _pairs(kwargs: dict[str, Any]) -> list[str]:
    return [f"{name}: {_text(kwargs[name])}" for name in sorted(kwargs)]


def _text(value: Any) -> str:
    return str(value.item()) if isinstance(value, np.generic) else str(value)
