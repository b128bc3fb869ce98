"""From the user's pytree and kwargs to what a site holds: structures, key paths, columns.

The result is hashable and equal for equal input, so that a tap traced again hits JAX's caches.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tracerec import structure
from tracerec.errors import TapError
from tracerec.tapping._jax import is_key_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ColumnSpec", "Encoded", "encode_kwargs", "encode_tree", "words_of"]

_WORD = np.dtype("uint32")
_INT64 = np.iinfo(np.int64)
_UINT64_MAX = np.iinfo(np.uint64).max


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A dynamic kwarg as the primitive carries it.

    Attributes:
        name: the kwarg's name and key path.
        python: the Python type to give back: ``"int"``, ``"float"``, ``"complex"`` or None.
        words: the logical dtype of a number that travels as 32-bit words in a trailing axis; None for an
            operand that is what it is. Words keep 64-bit numbers exact where ``jax_enable_x64`` is off.
        role: as `tracerec.model.Column.role`.
    """

    name: str
    python: str | None = None
    words: str | None = None
    role: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """Kwargs, split into what is static and what rides along.

    Attributes:
        text: canonical JSON of all kwargs, numbers as slots.
        columns: one spec a slot.
        operands: one number or array a slot.
    """

    text: str
    columns: tuple[ColumnSpec, ...]
    operands: tuple[Any, ...]


def encode_tree(value: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Returns a pytree's structure as canonical JSON, and its leaves with their key paths.

    Leaves are in JAX's flattening order, as ``jax.tree_util.tree_flatten`` gives them.
    """
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]]
    numbers = iter(range(len(leaves)))
    return structure.canonical(_node(value, numbers)), leaves


def encode_kwargs(kwargs: dict[str, Any], tap: str) -> Encoded:
    """Returns kwargs split into static JSON and dynamic operands.

    Strings, bytes, bools, None, enums, paths and dtypes are static, also inside tuples, lists and dicts; numbers
    and arrays become operands.

    Raises:
        TapError: a value that a trace cannot give back exactly; the message names the kwarg and the tap.
    """
    columns: list[ColumnSpec] = []
    operands: list[Any] = []

    def encode(value: Any, path: str) -> Any:
        static, node = _static(value)
        if static:
            return node
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [encode(item, f"{path}[{i}]") for i, item in enumerate(value)]}
        if type(value) is dict:
            return {"dict": [[_key(key, path, tap), encode(item, f"{path}[{key!r}]")] for key, item in value.items()]}
        spec, operand = _number(value, path, tap)
        columns.append(spec)
        operands.append(operand)
        return {"slot": len(columns) - 1}

    # sorted: the order in which a call names its kwargs makes no difference to its site
    text = structure.canonical({name: encode(kwargs[name], name) for name in sorted(kwargs)})
    return Encoded(text, tuple(columns), tuple(operands))


def words_of(array: np.ndarray) -> np.ndarray:
    """Returns an array of 8- or 16-byte numbers as little-endian 32-bit words in a new trailing axis."""
    little = np.array(array, order="C", dtype=array.dtype.newbyteorder("<"))
    return little.reshape((*little.shape, 1)).view(_WORD)


def _node(value: Any, numbers: Iterator[int]) -> Any:
    if value is None:
        return None
    children = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
    if len(children) == 1 and not children[0][0]:
        return {"slot": next(numbers)}
    nodes = [_node(child, numbers) for _, child in children]
    if type(value) in (tuple, list):
        return {type(value).__name__: nodes}
    keys = [path[0] for path, _ in children]
    if isinstance(value, dict):
        names = [key.key for key in keys]  # pyright: ignore[reportAttributeAccessIssue]
        return {"dict": [[_tree_key(name), node] for name, node in zip(names, nodes, strict=True)]}
    return {"object": [_class_name(type(value)), [jax.tree_util.keystr((key,)) for key in keys], nodes]}


def _tree_key(key: Any) -> Any:
    static, node = _static(key)
    if static:
        return node
    if isinstance(key, int):
        return {"int": str(key)}
    if isinstance(key, tuple):
        return {"tuple": [_tree_key(item) for item in key]}
    return repr(key)


def _key(key: Any, path: str, tap: str) -> Any:
    static, node = _static(key)
    if static:
        return node
    if type(key) is int:
        return {"int": str(key)}
    message = (
        f"tap {tap!r}: kwarg {path!r} has a dict key {key!r} of type {_class_name(type(key))}; use strings or ints"
    )
    raise TapError(message, tap=tap)


def _static(value: Any) -> tuple[bool, Any]:
    """Returns whether a value is static by itself, and its structure."""
    if value is None:
        return True, None
    for types, encode in _STATIC:
        if isinstance(value, types):
            return True, encode(value)
    if isinstance(value, type) and (issubclass(value, np.generic) or hasattr(value, "dtype")):
        return True, {"dtype": np.dtype(getattr(value, "dtype", value)).name}
    return False, None


def _number(value: Any, path: str, tap: str) -> tuple[ColumnSpec, Any]:
    if isinstance(value, jax.Array):
        if is_key_dtype(value.dtype):
            message = f"tap {tap!r}: kwarg {path!r} is a PRNG key; tap it as a value"
            raise TapError(message, tap=tap)
        return ColumnSpec(path), value
    if type(value) is int:
        return ColumnSpec(path, "int", *_int_dtype(value, path, tap)), words_of(_int_array(value))
    if type(value) is float:
        return ColumnSpec(path, "float", "float64"), words_of(np.array(value, np.float64))
    if type(value) is complex:
        return ColumnSpec(path, "complex", "complex128"), words_of(np.array(value, np.complex128))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcV":
        array = np.asarray(value)
        if array.dtype.name in ("int64", "uint64", "float64", "complex128"):
            return ColumnSpec(path, None, array.dtype.name), words_of(array)
        if array.dtype.names is None and array.dtype.name != "float0":
            return ColumnSpec(path), np.array(array)
    message = (
        f"tap {tap!r}: kwarg {path!r} is {_short(value)} of type {_class_name(type(value))}, "
        "which a trace cannot give back; use numbers, arrays, strings, bytes, bools, None, enums, "
        "or tuples, lists and dicts of them"
    )
    raise TapError(message, tap=tap)


def _int_dtype(value: int, path: str, tap: str) -> tuple[str]:
    if _INT64.min <= value <= _INT64.max:
        return ("int64",)
    if 0 <= value <= _UINT64_MAX:
        return ("uint64",)
    message = f"tap {tap!r}: kwarg {path!r} is {value}, which does not fit into 64 bits; pass it as a string"
    raise TapError(message, tap=tap)


def _int_array(value: int) -> np.ndarray:
    return np.array(value, np.int64 if value <= _INT64.max else np.uint64)


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


# In this order: an enum member may be a string or an int as well.
_STATIC: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: {"enum": [_class_name(type(value)), value.name]}),
    ((bool, np.bool_), bool),
    (str, str),
    ((bytes, bytearray), lambda value: {"bytes": bytes(value).hex()}),
    (os.PathLike, lambda value: {"path": os.fsdecode(value)}),
    (np.dtype, lambda value: {"dtype": value.name}),
)
