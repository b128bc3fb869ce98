"""Pytrees and kwargs as JSON: what a reader needs to build the same Python value back, without JAX.

A structure is plain JSON. Strings, true, false and null stand for themselves; everything else is an object
with one key that says what it is:

    {"slot": 3}                                    leaf number 3, or column number 3 of the kwargs
    {"tuple": [...]}, {"list": [...]}
    {"dict": [[key, value], ...]}                  keys are structures too, in the user's order
    {"object": ["module:Class", [key path, ...], [...]]}   a namedtuple or a registered pytree class
    {"bytes": "hex"}, {"enum": ["module:Class", "NAME"]}, {"dtype": "float32"}, {"path": "/tmp/x"}
    {"int": "7"}                                   an integer dict key; numbers elsewhere are slots
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

__all__ = ["EnumMember", "PyTreeNode", "build", "build_kwargs", "canonical"]


@dataclasses.dataclass(frozen=True, slots=True)
class EnumMember:
    """An enum member that a trace names; the reader does not import the user's class.

    Attributes:
        cls: ``"module:Class"``.
        name: the member's name.
    """

    cls: str
    name: str

    def __str__(self) -> str:
        return f"{self.cls.rpartition(':')[2]}.{self.name}"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class PyTreeNode:
    """A node of a named tuple or a user's own pytree class, which the reader does not import.

    Children are attributes, and items in their order.

    Attributes:
        cls: ``"module:Class"``.
        children: the children by the key path that JAX gives them, such as ``".weight"``.

    Example:
        >>> node = PyTreeNode("optax:State", {".mu": 1.0, ".nu": 2.0})
        >>> node.mu, node[1], list(node)
        (1.0, 2.0, [1.0, 2.0])
        >>> node
        State(mu=1.0, nu=2.0)
    """

    cls: str
    children: dict[str, Any]

    def __getitem__(self, number: int) -> Any:
        return list(self.children.values())[number]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.children.values())

    def __len__(self) -> int:
        return len(self.children)

    def __repr__(self) -> str:
        said = ", ".join(f"{path.removeprefix('.')}={child!r}" for path, child in self.children.items())
        return f"{self.cls.rpartition(':')[2].rpartition('.')[2]}({said})"

    def __getattr__(self, name: str) -> Any:
        try:
            return self.children["." + name]
        except KeyError:
            message = f"{self.cls} has no recorded child {name!r}; it has {list(self.children)}"
            raise AttributeError(message) from None


def canonical(value: Any) -> str:
    """Returns JSON text that is equal for equal values: sorted keys, no spaces, ASCII (RFC 8259).

    Lone surrogates and NUL survive as escapes.

    Example:
        >>> canonical({"b": None, "a": ["x"]})
        '{"a":["x"],"b":null}'
    """
    return _encoder.encode(value)


# json.dumps with arguments makes one for every value.
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def build(node: Any, slot: Callable[[int], Any]) -> Any:
    """Returns the Python value of a structure.

    Args:
        node: the structure, parsed from JSON.
        slot: gives the value of a slot by its number.

    Raises:
        ValueError: the structure has a node that this version does not know.

    Example:
        >>> build({"tuple": [{"slot": 0}, "mean"]}, [1.5].__getitem__)
        (1.5, 'mean')
    """
    if node is None or isinstance(node, (str, bool)):
        return node
    if not isinstance(node, dict) or len(node) != 1:
        message = f"not a structure: {node!r}"
        raise ValueError(message)
    ((kind, body),) = node.items()
    try:
        builder = _BUILDERS[kind]
    except KeyError:
        message = f"unknown structure {kind!r}; the trace was written by a newer version"
        raise ValueError(message) from None
    return builder(body, slot)


def build_kwargs(node: dict[str, Any], slot: Callable[[int], Any]) -> dict[str, Any]:
    """Returns kwargs from their JSON object, whose values are structures."""
    return {name: build(value, slot) for name, value in node.items()}


def _children(nodes: Sequence[Any], slot: Callable[[int], Any]) -> list[Any]:
    return [build(node, slot) for node in nodes]


def _dict(body: Any, slot: Callable[[int], Any]) -> dict[Any, Any]:
    return {build(key, slot): build(value, slot) for key, value in body}


def _object(body: Any, slot: Callable[[int], Any]) -> PyTreeNode:
    cls, keys, nodes = body
    return PyTreeNode(cls, dict(zip(keys, _children(nodes, slot), strict=True)))


def _path(body: Any, _: Callable[[int], Any]) -> Any:
    from pathlib import PurePath

    return PurePath(body)


def _dtype(body: Any, _: Callable[[int], Any]) -> np.dtype[Any]:
    from tracerec.protocol import dtypes

    return dtypes.from_name(body)


_BUILDERS: dict[str, Callable[[Any, Callable[[int], Any]], Any]] = {
    "slot": lambda body, slot: slot(body),
    "tuple": lambda body, slot: tuple(_children(body, slot)),
    "list": _children,
    "dict": _dict,
    "object": _object,
    "bytes": lambda body, _: bytes.fromhex(body),
    "enum": lambda body, _: EnumMember(*body),
    "int": lambda body, _: int(body),
    "dtype": _dtype,
    "path": _path,
}
