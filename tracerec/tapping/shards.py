"""``shards="local"``: each device's shard of a value that XLA shards by itself, with its place in the whole.

Nothing tells a callback which part of the whole it was given. So each leaf takes along an array of the same shape that
numbers the elements and is held to the same sharding (Shardy's sharding group): the first number of a shard is its
global start. Likewise an array of device numbers, one on each device, says on which device it was. The price is one
integer an element, computed where the shard is; the alternative, ``shards="gather"``, moves the value to one device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from tracerec import outfeed
from tracerec.outfeed.programs import EAGER, Program
from tracerec.tapping._jax import (
    HostCall,
    emit_partitioned_callback,
    group_shardings,
    mlir,
    one_each_device,
    program_devices,
    replicated,
    shaped,
)
from tracerec.tapping.emitters import (
    Emitter,
    TapSpec,
    physical_dtype,
    physical_shape,
    program_emitter,
    to_host,
)
from tracerec.tapping.encode import ColumnSpec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["emit_local", "fire_local", "records_shards"]

# On four simulated CPU devices gathering cost 0.8 times as much as shards at 1 KiB, 1.2 times at 1 MiB, 2.9 times at 16
# MiB, and it needs room for the whole on one device.
_GATHER_BYTES = 64 << 10

_INT32_MAX = np.iinfo(np.int32).max


def records_shards(spec: TapSpec, leaves: Any) -> bool:
    """Returns whether a tap of values that are sharded over several devices records each device's shard.

    Args:
        spec: the tap's parameter.
        leaves: anything with a shape and a dtype for each leaf. Eager leaves that lie on different sets of devices
            have no shards in common: they are gathered.
    """
    if len({frozenset(x.devices()) for x in leaves if isinstance(x, jax.Array) and len(x.devices()) > 1}) > 1:
        return False
    if spec.shards != "auto":
        return spec.shards == "local"
    return sum(math.prod(np.shape(x)) * _itemsize(x) for x in leaves) > _GATHER_BYTES


def emit_local(ctx: Any, args: Any, bound: Any, *, program: Program, position: int, once: bool) -> None:
    """Emits the callback of one tap of an auto-sharded program: one record a device.

    Args:
        ctx: JAX's lowering context.
        args: MLIR values of the operands.
        bound: the tap's parameters.
        program: the program being lowered.
        position: the tap's static position in it.
        once: whether the tap fires once a call.
    """
    n = len(bound["present"])
    avals = [shaped(physical_shape(a), np.dtype(physical_dtype(a))) for a in ctx.avals_in]
    count = ctx.module_context.axis_context.num_devices
    grids = [_grid(aval.shape, count) for aval in avals[:n]]
    numbers = [_numbered(ctx, *x) for x in zip(args[:n], (aval.shape for aval in avals[:n]), grids, strict=True)]
    where, where_aval = _device_numbers(ctx, count)
    operands = [
        *args[:n],
        *(value for value, _ in numbers),
        where,
        *(replicated(value, len(aval.shape), count) for value, aval in zip(args[n:], avals[n:], strict=True)),
    ]
    all_avals = [*avals[:n], *(aval for _, aval in numbers), where_aval, *avals[n:]]
    place = {"program": program, "position": position, "once": once, "devices": program_devices(ctx)}
    callback = _callback(bound, tuple(avals), grids, place)
    emit_partitioned_callback(ctx, HostCall(callback, operands, all_avals, None))


def fire_local(bound: Any, leaves: list[Any], operands: list[np.ndarray]) -> None:
    """Fires the records of an eager tap whose leaves lie on several devices: one a device.

    Args:
        bound: the tap's parameters.
        leaves: the tapped values.
        operands: the dynamic kwargs as numpy arrays.
    """
    avals = [jax.typeof(x) for x in leaves]
    shapes = [shaped(physical_shape(a), np.dtype(physical_dtype(a))) for a in avals]
    all_avals = (*shapes, *(shaped(x.shape, x.dtype) for x in operands))
    place = {"program": Program(EAGER.number), "position": 0, "once": True}
    devices = sorted({d for x in leaves if isinstance(x, jax.Array) for d in x.devices()}, key=lambda d: d.id)
    for number, device in enumerate(devices):
        parts = [_shard_on(device, x, aval.shape) for x, aval in zip(leaves, shapes, strict=True)]
        emitter = _shard_emitter(bound, all_avals, tuple(data.shape for data, _ in parts), place)
        record = (*(data for data, _ in parts), *operands, *(offset for _, offset in parts))
        outfeed.put(emitter, record, device.id, number)


def _shard_on(device: Any, leaf: Any, whole: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns a copy of a leaf's part on a device, and its global start; all of a leaf that is not sharded."""
    rank = len(whole)
    if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1:
        shard = next(s for s in leaf.addressable_shards if s.device == device)
        start = [piece.start or 0 for piece in shard.index] + [0] * (rank - leaf.ndim)
        return to_host(shard.data), np.array(start, np.int64)
    return to_host(leaf), np.zeros(rank, np.int64)


def _itemsize(value: Any) -> int:
    return np.dtype(physical_dtype(value)).itemsize if hasattr(value, "dtype") else 8


def _callback(
    bound: Any, avals: tuple[Any, ...], grids: list[tuple[int, ...]], place: dict[str, Any]
) -> Callable[..., tuple[()]]:
    """Returns the host callback: leaves, their numbers, the device's number, kwargs."""
    n = len(bound["present"])
    wholes = [aval.shape for aval in avals[:n]]
    devices: tuple[int, ...] = place["devices"]
    emitters: dict[Any, Emitter] = {}

    def fire(*arrays: np.ndarray) -> tuple[()]:
        try:
            found = [_located(*x) for x in zip(arrays[:n], arrays[n : 2 * n], wholes, grids, strict=True)]
            shapes = tuple(leaf.shape for leaf, _ in found)
            emitter = emitters.get(shapes)
            if emitter is None:
                emitter = emitters[shapes] = _shard_emitter(bound, avals, shapes, place)
            (shard,) = arrays[2 * n].tolist()
            offsets = [offset for _, offset in found]
            record = (*(leaf for leaf, _ in found), *arrays[2 * n + 1 :], *offsets)
            outfeed.put(emitter, record, devices[shard] if devices else None, shard)
        except Exception as error:  # noqa: BLE001 - a callback that raises would end the user's computation
            outfeed.lost(bound["spec"].name, error)
        return ()

    return fire


def _shard_emitter(
    bound: Any, avals: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...], place: dict[str, Any]
) -> Emitter:
    spec: TapSpec = bound["spec"]
    n = len(shapes)
    shards = [shaped(shape, aval.dtype) for shape, aval in zip(shapes, avals[:n], strict=True)]
    offsets = [shaped((len(shape),), np.dtype(np.int64)) for shape in shapes]
    paths = [spec.paths[i] for i in bound["present"]]
    return program_emitter(
        spec.with_columns(ColumnSpec(path, role="offset") for path in paths),
        bound["transforms"],
        bound["present"],
        [*shards, *avals[n:], *offsets],
        wholes=tuple(aval.shape for aval in avals[:n]),
        **place,
    )


def _located(
    leaf: np.ndarray, numbers: np.ndarray, whole: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a shard and its global start; what XLA padded an uneven shard with is cut off."""
    if not numbers.size:
        return leaf, np.zeros(leaf.ndim, np.int64)
    start = np.array(np.unravel_index(int(numbers.flat[0]), grid), np.int64).reshape(leaf.ndim)
    if (start + leaf.shape <= whole).all():
        return leaf, start
    start = np.minimum(start, whole)
    inside = tuple(slice(0, size - at) for size, at in zip(whole, start.tolist(), strict=True))
    return np.ascontiguousarray(leaf[inside]), start


def _grid(shape: tuple[int, ...], num_devices: int) -> tuple[int, ...]:
    """Returns a shape in which also the padding of uneven shards, at most one a device, has numbers of its own."""
    return tuple(n + num_devices for n in shape)


def _numbered(ctx: Any, value: Any, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[Any, Any]:
    """Returns an array that numbers the elements of a value, held to the value's sharding, and its aval."""
    dtype = np.dtype(np.int32 if math.prod(grid) <= _INT32_MAX else np.int64)
    strides = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]

    def numbers() -> list[Any]:
        # one iota an axis: the partitioner computes each where it is, without moving anything
        with jax.enable_x64(True):  # noqa: FBT003
            axes = [lax.broadcasted_iota(dtype, shape, axis) * dtype.type(by) for axis, by in enumerate(strides)]
            return [sum(axes, start=lax.full(shape, 0, dtype))]

    aval = shaped(shape, dtype)
    (result,) = mlir.lower_fun(numbers, multiple_results=True)(ctx.replace(avals_in=[], avals_out=[aval]))
    group_shardings(ctx, value, result)
    return result, aval


def _device_numbers(ctx: Any, num_devices: int) -> tuple[Any, Any]:
    """Returns a vector with the number k on logical device k, and its aval."""
    aval = shaped((num_devices,), np.dtype(np.int32))

    def numbers() -> list[Any]:
        return [lax.iota(np.dtype(np.int32), num_devices)]

    (value,) = mlir.lower_fun(numbers, multiple_results=True)(ctx.replace(avals_in=[], avals_out=[aval]))
    return one_each_device(value, num_devices), aval
