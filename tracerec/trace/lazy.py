"""A leaf's values as a Dask array, of which each block is read when it is computed."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tracerec.errors import MissingExtra, TraceError
from tracerec.protocol import dtypes
from tracerec.trace.blocks import Sorted
from tracerec.trace.view import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import dask.array as da

    from tracerec.model import Leaf
    from tracerec.trace.view import StreamView

__all__ = ["dask_array"]

_READING = threading.Lock()
"""One thread reads at a time: what a source keeps open is not made for several, nor is HDF5."""


def dask_array(views: Sequence[StreamView], places: Sequence[np.ndarray], tap: str, leaf: Leaf) -> da.Array:
    """Returns the array; `tracerec.trace.conversions.TapConversions.to_dask` says what it is.

    Args:
        views: views with one leaf of one shape and dtype.
        places: for each view the place of its records in program order.
        tap: the tap's name, which the array's name begins with.
        leaf: the leaf.

    Raises:
        MissingExtra: Dask is not installed.
    """
    array = _dask()
    source = _Lazy(Sorted(views, places), views, leaf)
    rows = tuple(stop - start for start, stop in source.records.ranges(BLOCK_BYTES)) or (0,)
    chunks = (rows, *((size,) for size in leaf.shape))
    name = f"tracerec-{tap}-{uuid.uuid4().hex}"
    meta = np.empty((0,) * source.ndim, source.dtype)
    return array.from_array(source, chunks=chunks, name=name, asarray=False, fancy=False, meta=meta)


class _Lazy:
    """A leaf as Dask takes an array: of a shape and dtype, with slices that are read when they are asked for."""

    def __init__(self, records: Sorted, views: Sequence[StreamView], leaf: Leaf) -> None:
        self.records = records
        self._views = views
        self.shape = (len(records), *leaf.shape)
        self.dtype = dtypes.from_name(leaf.dtype)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> np.ndarray:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if not isinstance(first, slice):
            return self._read(int(first), int(first) + 1)[(0, *rest)]
        start, stop, step = first.indices(len(self.records))
        wanted = range(start, stop, step)
        if not wanted:
            return self._read(0, 0)[(slice(None), *rest)]
        low, high = min(wanted), max(wanted) + 1
        return self._read(low, high)[(slice(None, None, step), *rest)]

    def __reduce__(self) -> NoReturn:
        message = (
            "the Dask array of a trace reads a file that this process has open, so that no other process can compute "
            "it: use threads (scheduler='threads'), or export the trace to Parquet or Zarr"
        )
        raise TraceError(message)

    def _read(self, start: int, stop: int) -> np.ndarray:
        with _READING:
            block = self.records.between(start, stop)
            return block.read(lambda stream, low, high: self._views[stream].leaf(0, low, high))


def _dask() -> ModuleType:
    try:
        import dask.array as da
    except ImportError as error:
        message = "lazy arrays need Dask, which is not installed: pip install 'tracerec[dask]'"
        raise MissingExtra(message, extra="dask") from error
    return da
