"""From what a caller wrote, and from JSON, to kinds of keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracerec.errors import TapError
from tracerec.keeping import specs
from tracerec.keeping.specs import Fingerprint, Full, Function, Histogram, Keep, Slice, Summary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WORDS", "from_json", "parse"]

WORDS: dict[str, Keep] = {
    "full": Full(),
    "summary": Summary(),
    "histogram": Histogram(),
    "fingerprint": Fingerprint(),
}
"""What the words stand for."""

_KINDS: dict[str, type[Keep]] = {
    kind.name: kind
    for kind in (
        Full,
        Summary,
        Fingerprint,
        Histogram,
        Slice,
        specs.Sample,
        specs.Quantiles,
        specs.TopK,
        specs.Cast,
        specs.Norms,
    )
}


def parse(keep: object) -> tuple[Keep, ...]:
    """Returns what a caller's ``keep=`` asks for.

    Args:
        keep: one of `WORDS`, a `Keep`, a function of the leaf, or a list or tuple of these, each asked for once.

    Raises:
        TapError: it is something else, or asks for nothing.

    Example:
        >>> parse("summary")
        (Summary(),)
        >>> [k.name for k in parse(["fingerprint", Slice(0), abs])]
        ['fingerprint', 'slice', 'abs']
    """
    if isinstance(keep, Sequence) and not isinstance(keep, (str, bytes)):
        found = tuple(_one(item) for item in keep)
        if not found:
            message = f"keep={keep!r} keeps nothing; {_CHOICES}"
            raise TapError(message)
        twice = [k for k in found if found.count(k) > 1]
        if twice:
            message = f"keep={keep!r} asks for {twice[0]!r} more than once"
            raise TapError(message)
        return found
    return (_one(keep),)


def from_json(data: Mapping[str, Any]) -> Keep:
    """Returns the kind whose ``to_json`` gave the data; a `Function` without its function.

    Raises:
        ValueError: no kind of this version gives such data.

    Example:
        >>> from_json(Slice(0, ..., slice(None, None, 2)).to_json()) == Slice(0, ..., slice(None, None, 2))
        True
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str):
        message = f"not a kind of keeping: {data!r}"
        raise ValueError(message)  # noqa: TRY004 - what reads JSON expects it, whatever was wrong
    values = {name: value for name, value in data.items() if name != "kind"}
    try:
        if kind == "function":
            return Function(None, **values)
        if kind == "slice":
            return Slice(*map(_index_from_json, values.pop("index")), **values)
        return _KINDS[kind](**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
    except KeyError as missing:
        message = f"unknown kind of keeping {kind!r}" if kind not in _KINDS else f"kind {kind!r} without {missing}"
        raise ValueError(message) from None
    except TypeError as error:  # TapError is one
        message = f"not parameters of {kind!r}: {values!r} ({error})"
        raise ValueError(message) from None


_CHOICES = (
    f"choose {', '.join(repr(word) for word in WORDS)}, a kind of tracerec.keeping (Histogram(...), Slice(...), "
    "Sample(...), Quantiles(...), TopK(...), Cast(...), Norms(...)), a function of the leaf, or a list of these"
)


def _one(keep: object) -> Keep:
    if isinstance(keep, str):
        if keep in WORDS:
            return WORDS[keep]
    elif isinstance(keep, Keep):
        if type(keep) is not Keep:
            return keep
    elif isinstance(keep, type):
        if issubclass(keep, Keep):
            message = f"keep={keep.__name__} is a class: write {keep.__name__}(...)"
            raise TapError(message)
    elif callable(keep):
        function: Callable[..., Any] = keep
        return Function(function)
    message = f"keep={keep!r} is not known; {_CHOICES}"
    raise TapError(message)


def _index_from_json(item: Any) -> Any:
    if item == "...":
        return Ellipsis
    return slice(*item) if isinstance(item, list) else item
