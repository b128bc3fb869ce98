"""A leaf's values as an xarray array: named dimensions, steps, times and kwargs as coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import MissingExtra, SelectionError
from tracerec.lanes import LeafLanes
from tracerec.model import NO_SHARD
from tracerec.protocol import dtypes
from tracerec.trace import columns as kinds
from tracerec.trace import selection, shards
from tracerec.trace.columnar import steps_of
from tracerec.trace.columns import common, jsonable, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    import xarray as xr

    from tracerec.model import Leaf, Site
    from tracerec.trace.view import StreamView

    Read = Callable[[int, int, int], np.ndarray]

__all__ = ["dimensions", "labelled"]


def labelled(
    views: Sequence[StreamView], places: Sequence[np.ndarray], tap: str, leaf: Leaf, *, assemble: bool
) -> xr.DataArray:
    """Returns the array; `tracerec.trace.conversions.TapConversions.to_xarray` says what it holds.

    Args:
        views: views with one leaf of one shape and dtype, and one chain of transforms.
        places: for each view the place of its records in program order.
        tap: the tap's name.
        leaf: the leaf.
        assemble: whether to put together what devices recorded at one firing.

    Raises:
        SelectionError: with ``assemble``: a device's record is missing.
        MissingExtra: xarray is not installed.
    """
    xarray = _xarray()
    site = views[0].site
    dims = dimensions(shards.whole_site(site) if assemble else site, 0)
    axes: list[str] = []
    if assemble and leaf.global_shape is None and site.mesh:
        rows, axes = _Meshed(views, places, tap), [name for name, _ in site.mesh]
    else:
        rows = _Assembled(views, places, tap, leaf) if assemble else _Rows(views, places)
    dims = ["record", *_distinct(axes, dims), *dims]
    array = xarray.DataArray(rows.values(), dims=dims, name=tap)
    coordinates = _coordinates(views, rows, dims)
    if not axes and not assemble:
        coordinates |= _mesh_positions(views, rows, set(coordinates) | set(dims))
    array = array.assign_coords(coordinates)
    array.attrs.update(_attributes(views, tap))
    return array.set_xindex("step") if "step" in coordinates else array


def dimensions(site: Site, leaf: int) -> list[str]:
    """Returns the name of each axis of a leaf: that of the vmap that made it, else ``dim_0`` and so on."""
    batches = [t for t in reversed(site.transforms) if t.name == "batch"]
    names: list[str | None] = [None] * len(site.leaves[leaf].shape)
    for level, axis in enumerate(LeafLanes(site, leaf).axes):
        if axis is not None:
            names[axis] = _lane_name(batches[level].axis_name, level, names)
    own = iter(range(len(names)))
    return [name or f"dim_{next(own)}" for name in names]


class _Rows:
    """Records in program order, one a row."""

    def __init__(self, views: Sequence[StreamView], places: Sequence[np.ndarray]) -> None:
        self._views = views
        self.places = list(places)
        self.count = sum(len(place) for place in places)

    def values(self) -> np.ndarray:
        return self.read(lambda stream, low, high: self._views[stream].leaf(0, low, high), self.count)

    def column(self, read: Read) -> np.ndarray:
        """Returns what is read of the records, a row each."""
        return self.read(read, self.count)

    def read(self, read: Read, count: int) -> np.ndarray:
        """Returns what is read, each record at its place among ``count``."""
        out: np.ndarray | None = None
        for stream, (view, places) in enumerate(zip(self._views, self.places, strict=True)):
            for low, high in view.blocks(view.site.record_nbytes):
                block = read(stream, low, high)
                if out is None:
                    out = np.empty((count, *block.shape[1:]), block.dtype)
                out[places[low:high]] = block
        return read(0, 0, 0) if out is None else out


class _Firings(_Rows):
    """What the records of one firing have in common, a firing a row: the first record speaks for it."""

    def __init__(self, views: Sequence[StreamView], places: Sequence[np.ndarray]) -> None:
        super().__init__(views, places)
        self.firings = shards.firings(views, places)
        self._first = self.firings.place[self.firings.starts[:-1]]

    def column(self, read: Read) -> np.ndarray:
        return self.read(read, self.count)[self._first]


class _Assembled(_Firings):
    """Shards of a whole, put together."""

    def __init__(self, views: Sequence[StreamView], places: Sequence[np.ndarray], tap: str, leaf: Leaf) -> None:
        super().__init__(views, places)
        self._tap, self._leaf = tap, leaf

    def values(self) -> np.ndarray:
        leaf = self._leaf
        out = np.empty((len(self.firings), *shards.whole_shape(leaf)), dtypes.from_name(leaf.dtype))
        for number, (_, array) in enumerate(shards.assembled(self._views, self.firings, self._tap)):
            out[number, ...] = array
        return out


class _Meshed(_Firings):
    """Records of single devices, with the axes of the mesh as dimensions."""

    def __init__(self, views: Sequence[StreamView], places: Sequence[np.ndarray], tap: str) -> None:
        super().__init__(views, places)
        self._sizes = tuple(size for _, size in views[0].site.mesh)
        devices = int(np.prod(self._sizes))
        firings = self.firings
        number = np.repeat(np.arange(len(firings)), np.diff(firings.starts))
        slots = number * devices + firings.shard
        whole = self.count == len(firings) * devices and len(np.unique(slots)) == len(slots)
        if not whole or np.any((firings.shard < 0) | (firings.shard >= devices)):
            counts = np.diff(firings.starts)
            message = (
                f"tap {tap!r} has firings with {counts.min()} to {counts.max()} records for a mesh of {devices} "
                "devices, so that they make no array over the mesh; without assemble=True each record is a row"
            )
            raise SelectionError(message)
        self._slots = np.empty(self.count, np.int64)
        self._slots[firings.place] = slots

    def values(self) -> np.ndarray:
        spread = _Rows(self._views, [self._slots[place] for place in self.places])
        values = spread.values()
        return values.reshape(len(self.firings), *self._sizes, *values.shape[1:])


def _lane_name(given: object, level: int, used: Sequence[str | None]) -> str:
    named = isinstance(given, str) and given not in (*_RESERVED, *used)
    return str(given) if named else f"batch_{level}"


_RESERVED = ("", "record", "step", "time", "device", "call", "process")


def _distinct(names: Sequence[str], used: Sequence[str]) -> list[str]:
    return [f"mesh_{name}" if name in (*used, *_RESERVED) else name for name in names]


def _coordinates(views: Sequence[StreamView], rows: _Rows, dims: Sequence[str]) -> dict[str, Any]:
    """Returns what all records have, along ``record``."""
    found: dict[str, Any] = {}
    steps = steps_of(views)
    if steps is not None and steps(0, 0, 0).ndim == 1:
        found["step"] = ("record", rows.column(steps))
    index = rows.column(lambda stream, low, high: views[stream].index(low, high))
    found["time"] = ("record", index["time"].astype("datetime64[ns]"))
    found["device"] = ("record", index["device"].astype(np.int64))
    found["call"] = ("record", index["call"].astype(np.int64))
    if len({view.process for view in views}) > 1:
        found["process"] = ("record", rows.column(lambda s, low, high: np.full(high - low, views[s].process)))
    described = [selection.kwargs_of(view) for view in views]
    constant = _constants(views)
    for name in described[0]:
        if name == "step" and "step" in found:
            continue
        if name not in constant and all(name in others for others in described):
            column = _kwarg(views, rows, described, name)
            if column is not None:
                label = f"kwargs.{name}" if name in (*_RESERVED, *dims) else name
                found[label] = ("record", column)
    return found


def _kwarg(views: Sequence[StreamView], rows: _Rows, described: Sequence[dict[str, Any]], name: str) -> Any:
    """Returns a kwarg's values; None where some records have none."""
    parts = [kinds.kwarg(view, what[name], 0, view.records) for view, what in zip(views, described, strict=True)]
    if not all(part.valid.all() for part in parts):
        return None
    arrays = [plain(part.values) for part in parts]
    dtype = common(arrays)
    values = [array.astype(dtype) for array in arrays]
    column = rows.column(lambda stream, low, high: values[stream][low:high])
    texts = dtype.kind == "O" and all(isinstance(value, str) for value in column)
    return column.astype(str) if texts else column


def _mesh_positions(views: Sequence[StreamView], rows: _Rows, used: set[str]) -> dict[str, Any]:
    """Returns the position of each record on each axis of the mesh."""
    mesh = views[0].site.mesh
    if not mesh or any(view.site.mesh != mesh for view in views):
        return {}
    shard = rows.column(lambda stream, low, high: views[stream].index(low, high)["shard"])
    names, sizes = zip(*mesh, strict=True)
    if np.any((shard == NO_SHARD) | (shard < 0) | (shard >= int(np.prod(sizes)))):
        return {}
    positions = np.unravel_index(shard, sizes)
    return {
        name: ("record", position) for name, position in zip(_distinct(names, sorted(used)), positions, strict=True)
    }


def _constants(views: Sequence[StreamView]) -> dict[str, Any]:
    """Returns the kwargs that are the same for all records of all streams."""
    first, *others = [kinds.static_kwargs(view) for view in views]
    return {name: value for name, value in first.items() if all(name in o and _same(value, o[name]) for o in others)}


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _attributes(views: Sequence[StreamView], tap: str) -> dict[str, Any]:
    site = views[0].site
    leaf = site.leaves[0]
    about: dict[str, Any] = {"tap": tap, "leaf": leaf.path, "transforms": [str(t) for t in site.transforms]}
    if leaf.key_impl is not None:
        about["key_impl"] = leaf.key_impl
    for name, value in _constants(views).items():
        about[f"kwargs.{name}" if name in about else name] = jsonable(value)
    return about


def _xarray() -> ModuleType:
    try:
        import xarray as xr
    except ImportError as error:
        message = "labelled arrays need xarray, which is not installed: pip install 'tracerec[xarray]'"
        raise MissingExtra(message, extra="xarray") from error
    return xr
