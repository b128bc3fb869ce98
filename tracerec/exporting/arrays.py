"""A kind's records as named arrays, for forms that are made of arrays: npz, HDF5, Zarr."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.model import FLAG_STEP, INDEX_DTYPE
from tracerec.protocol import dtypes
from tracerec.trace import columns as kinds_of_columns
from tracerec.trace import selection
from tracerec.trace.columnar import attempts_of
from tracerec.trace.columns import as_text, jsonable, plain, static_kwargs, well_formed
from tracerec.trace.labelled import dimensions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracerec.exporting.job import Kind
    from tracerec.trace.blocks import Block

__all__ = ["Column", "attributes", "columns", "flat", "without_nul"]


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """One array over all records of a kind.

    Attributes:
        name: its name; a leaf's is ``value`` with the key path behind it.
        dtype: its dtype, one that numpy has; object for text.
        shape: the shape of one record.
        dims: names of the axes of a record.
        read: returns it for a block of records, ``(n, *shape)``.
        attributes: what a reader must know, JSON values.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    read: Callable[[Block], np.ndarray]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


def columns(kind: Kind) -> list[Column]:
    """Returns step, time, device, call, what changes of the kwargs, and the leaves.

    A column that some records lack has zeros, or empty texts, there, and one of bools beside it: ``NAME_valid``. Names
    differ, and have no NUL, which ends a name in HDF5 and in zip files.
    """
    views = kind.views
    found = [
        *_steps(kind),
        _index(kind, "time", {"units": "nanoseconds since 1970-01-01", "calendar": "proleptic_gregorian"}),
        _index(kind, "device"),
        _index(kind, "call"),
    ]
    if len({view.process for view in views}) > 1:
        numbers = _reader(kind, lambda view, low, high: np.full(high - low, view.process, np.int32))
        found.append(Column("process", np.dtype(np.int32), (), (), numbers))
    if any(view.attempts is not None for view in views):
        found.append(Column("attempt", np.dtype(np.int32), (), (), _reader(kind, attempts_of)))
    found += _kwargs(kind)
    axes = _axes(kind, {flat(column.name) for column in found})
    for number, (leaf, dims) in enumerate(zip(kind.site.leaves, axes, strict=True)):
        found.append(_leaf(kind, number, leaf.shape, dims))
    return _distinct(found)


def attributes(kind: Kind) -> dict[str, Any]:
    """Returns what all records of a kind share, as JSON values: tap, transforms, kwargs that do not change."""
    shared = {name: value for name, value in static_kwargs(kind.views[0]).items() if _is_shared(kind, name)}
    return {
        "tap": well_formed(kind.tap),
        "transforms": [str(transform) for transform in kind.site.transforms],
        "kwargs": {well_formed(name): _text(jsonable(value)) for name, value in shared.items()},
    }


def without_nul(text: str) -> str:
    r"""Returns text without NUL, which becomes an escape.

    Example:
        >>> print(without_nul("a\0b"))
        a\x00b
    """
    return text.replace("\0", "\\x00")


def flat(name: str) -> str:
    r"""Returns the name of a column that makes no groups: with slashes escaped, and backslashes, which Zarr turns.

    Example:
        >>> flat("value['a/b']")
        "value['a%2Fb']"
    """
    return name.replace("/", "%2F").replace("\\", "%5C")


def _distinct(found: Sequence[Column]) -> list[Column]:
    """Returns the columns with names that differ, also as `flat` gives them."""
    taken: set[str] = set()
    out: list[Column] = []
    for column in found:
        name, count = without_nul(column.name), 1
        while flat(name) in taken:
            count += 1
            name = f"{without_nul(column.name)}~{count}"
        taken.add(flat(name))
        out.append(dataclasses.replace(column, name=name))
    return out


def _axes(kind: Kind, columns_there: set[str]) -> list[tuple[str, ...]]:
    """Returns the names of the axes of each leaf, of which those with one name in a kind have one size.

    Lanes have the name of their vmap, which leaves share. Of several leaves each has its own names for the others:
    ``dim_0['w']``.
    """
    leaves = kind.site.leaves
    sizes: dict[str, int] = {}
    found: list[tuple[str, ...]] = []
    for number, leaf in enumerate(leaves):
        names: list[str] = []
        for dim, size in zip(dimensions(kind.site, number), leaf.shape, strict=True):
            own = dim.startswith("dim_") and len(leaves) > 1
            name = flat(well_formed(f"{dim}{leaf.path}" if own else dim))
            while name in columns_there or name in names or sizes.get(name, size) != size:
                name += "_"
            sizes[name] = size
            names.append(name)
        found.append(tuple(names))
    return found


def _text(value: Any) -> Any:
    return well_formed(value) if isinstance(value, str) else value


def _reader(kind: Kind, read: Callable[[Any, int, int], np.ndarray]) -> Callable[[Block], np.ndarray]:
    return lambda block: block.read(lambda stream, low, high: read(kind.views[stream], low, high))


def _index(kind: Kind, name: str, attributes: Mapping[str, Any] | None = None) -> Column:
    read = _reader(kind, lambda view, low, high: np.ascontiguousarray(view.index(low, high)[name]))
    return Column(name, INDEX_DTYPE[name], (), (), read, attributes or {})


def _steps(kind: Kind) -> list[Column]:
    """Returns the steps of the index table, if any record has one."""
    flags = [
        (view.index(low, high)["flags"] & FLAG_STEP) != 0
        for view in kind.views
        for low, high in view.blocks(INDEX_DTYPE.itemsize)
    ]
    if not any(part.any() for part in flags):
        return []
    valid = _reader(kind, lambda view, low, high: (view.index(low, high)["flags"] & FLAG_STEP) != 0)
    beside = [] if all(part.all() for part in flags) else [Column("step_valid", np.dtype(bool), (), (), valid)]
    return [_index(kind, "step"), *beside]


def _kwargs(kind: Kind) -> list[Column]:
    described = [selection.kwargs_of(view) for view in kind.views]
    found: list[Column] = []
    for name in dict.fromkeys(name for each in described for name in each):
        if name == "step" and all(_is_in_index(kind, i, each.get(name)) for i, each in enumerate(described)):
            continue
        if not _is_shared(kind, name):
            found += _kwarg(kind, described, name)
    return found


def _is_in_index(kind: Kind, view: int, what: Any) -> bool:
    return what is None or (isinstance(what, int) and kind.views[view].site.columns[what].in_index)


def _is_shared(kind: Kind, name: str) -> bool:
    """Returns whether a kwarg is static and the same everywhere."""
    found = [static_kwargs(view) for view in kind.views]
    return all(name in each for each in found) and len({repr(each[name]) for each in found}) == 1


def _kwarg(kind: Kind, described: Sequence[Mapping[str, Any]], name: str) -> list[Column]:
    """Returns the column of a kwarg that changes: numbers of one type, else text."""
    types = {_type(kind, view, each[name]) for view, each in enumerate(described) if name in each}
    dtype = types.pop() if len(types) == 1 else np.dtype(object)
    missing = any(not isinstance(what, int) for what in (each.get(name, _NONE) for each in described))
    partial = missing and any(each.get(name, _NONE) == _NONE for each in described)

    def values(stream: int, low: int, high: int) -> np.ndarray:
        out = np.full(high - low, "", object) if dtype.kind == "O" else np.zeros(high - low, dtype)
        what = described[stream].get(name, _NONE)
        if what == _NONE or low == high:
            return out
        read = kinds_of_columns.kwarg(kind.views[stream], what, low, high).values
        out[:] = [well_formed(as_text(value)) for value in read] if dtype.kind == "O" else plain(read)
        return out

    def valid(stream: int, low: int, high: int) -> np.ndarray:
        return np.full(high - low, described[stream].get(name, _NONE) != _NONE)

    label = well_formed(f"kwargs.{name}" if name in _TAKEN or name.startswith("value") else name)
    found = [Column(label, dtype, (), (), lambda block: block.read(values))]
    if partial:
        found.append(Column(f"{label}_valid", np.dtype(bool), (), (), lambda block: block.read(valid)))
    return found


_NONE = selection.Static(None)

_TAKEN = ("step", "time", "device", "call", "process", "attempt")


def _type(kind: Kind, view: int, what: Any) -> np.dtype[Any]:
    columns_there = kind.views[view].site.columns
    if isinstance(what, int) and columns_there[what].shape == ():
        return plain(np.empty(0, dtypes.from_name(columns_there[what].dtype))).dtype
    return np.dtype(object)


def _leaf(kind: Kind, number: int, shape: tuple[int, ...], dims: tuple[str, ...]) -> Column:
    leaf = kind.site.leaves[number]
    dtype = dtypes.from_name(leaf.dtype)
    wide = dtype if dtype.kind == "c" or dtype == np.float16 else plain(np.empty(0, dtype)).dtype
    read = _reader(kind, lambda view, low, high: view.leaf(number, low, high).astype(wide, copy=False))
    about = {"leaf": well_formed(leaf.path), "dtype": leaf.dtype}
    if leaf.key_impl is not None:
        about["key_impl"] = well_formed(leaf.key_impl)
    return Column(well_formed(f"value{leaf.path}"), wide, shape, dims, read, about)
