"""From a tap in a jaxpr to a host callback in the program: on one device, in a mesh, partly manual, auto-sharded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from tracerec.errors import TapError
from tracerec.tapping._jax import (
    HostCall,
    emit_callback,
    emit_callback_at_begin,
    hlo,
    lower_each_call_apart,
    mlir,
    program_devices,
    program_of,
    replicated_on,
    surroundings,
    uint32_scalar,
)
from tracerec.tapping.emitters import Emitter, TapSpec, mark_emitter, new_program, program_emitter
from tracerec.tapping.shards import emit_local, records_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.outfeed.programs import Program

__all__ = ["emit", "emit_traced"]


def emit(ctx: Any, primitive: Any, args: Any, *, spec: TapSpec, transforms: Any, present: Any) -> None:
    """Emits the callback of one tap.

    Args:
        ctx: JAX's lowering context.
        primitive: the tap primitive, bound anew where a partly manual program is made fully manual.
        args: MLIR values of the operands.
        spec: the tap's parameter.
        transforms: the tap's parameter.
        present: the tap's parameter.
    """
    lower_each_call_apart(ctx)
    axes = ctx.module_context.axis_context
    bound = {"spec": spec, "transforms": transforms, "present": present}
    if not isinstance(axes, mlir.SPMDAxisContext):
        if axes.num_devices > 1 and records_shards(spec, ctx.avals_in[: len(present)]):
            _refuse_ordered(spec, axes.num_devices)
            emit_local(ctx, args, bound, **_place(ctx))
        else:
            _emit_one(ctx, args, axes.num_devices, bound)
        return
    rest = tuple(axis for axis in axes.mesh.axis_names if axis not in axes.manual_axes)
    if rest:
        _make_manual(ctx, primitive, args, rest, bound)
    else:
        _emit_shards(ctx, args, axes.mesh, bound)


def emit_traced(ctx: Any, function: Callable[..., None], args: Any) -> None:
    """Traces a function of a tap's operands, which has taps of its own, and lowers it in the tap's place.

    Args:
        ctx: JAX's lowering context.
        function: the function, which returns nothing.
        args: MLIR values of the operands.
    """

    def traced(*xs: Any) -> list[Any]:
        function(*xs)
        return []

    inner = ctx.replace(avals_out=[])
    mlir.lower_fun(traced, multiple_results=True)(inner, *args)
    if inner.tokens_out is not None:
        ctx.set_tokens_out(inner.tokens_out)


def _emit_one(ctx: Any, args: Any, num_devices: int, bound: Any) -> None:
    """One record of the logical value. XLA gathers an auto-sharded value to logical device 0 for it."""
    _refuse_ordered(bound["spec"], num_devices)
    emitter = _emitter(ctx, bound, devices=program_devices(ctx))
    sharding = replicated_on(0) if num_devices > 1 else None
    call = HostCall(emitter.callback(), list(args), list(ctx.avals_in), sharding)
    emit_callback(ctx, call, ordered=emitter.site.ordered)


def _emit_shards(ctx: Any, args: Any, mesh: Any, bound: Any) -> None:
    """One record a device: the partition's number rides along and gives the mesh coordinates."""
    _refuse_ordered(bound["spec"], mesh.size)
    kept = [i for i, axis in enumerate(mesh.axis_names) if axis not in bound["spec"].gathered]
    sizes = tuple((_axis_name(mesh.axis_names[i]), int(mesh.axis_sizes[i])) for i in kept)
    emitter = _emitter(ctx, bound, mesh=sizes, devices=_mesh_devices(ctx, mesh))
    operands = [*args, hlo.partition_id()]
    avals = [*ctx.avals_in, uint32_scalar]
    shards = None if len(kept) == len(mesh.axis_names) else _places(mesh, kept)
    call = HostCall(emitter.shard_callback(shards), operands, avals, replicated_on(None))
    emit_callback(ctx, call, ordered=emitter.site.ordered)


def _places(mesh: Any, kept: list[int]) -> list[int]:
    """Returns each partition's place in the mesh of the axes that are kept."""
    coordinates = np.indices(mesh.axis_sizes).reshape(len(mesh.axis_sizes), -1)[kept]
    flat: np.ndarray = np.asarray(np.ravel_multi_index(tuple(coordinates), [mesh.axis_sizes[i] for i in kept]))
    return flat.tolist()


def _mesh_devices(ctx: Any, mesh: Any) -> tuple[int, ...]:
    """Returns the device id of each partition. An inner mesh is abstract: its devices are those of the outer one."""
    known = program_of(ctx).setdefault("mesh devices", {})
    key = (mesh.axis_names, mesh.axis_sizes)
    if isinstance(mesh, jax.sharding.Mesh):
        known[key] = tuple(d.id for d in mesh.devices.flat)
    return known.get(key, ())


def _make_manual(ctx: Any, primitive: Any, args: Any, rest: tuple[str, ...], bound: Any) -> None:
    """Inside a shard_map over some axes only: maps over the others too, and lets one shard of them report."""
    _mesh_devices(ctx, ctx.module_context.axis_context.mesh)
    bound = {**bound, "spec": dataclasses.replace(bound["spec"], gathered=tuple(map(str, rest)))}
    whole = PartitionSpec()

    def report(*xs: Any) -> tuple[()]:
        primitive.bind(*xs, **bound, mute=0)
        return ()

    def first_reports(*xs: Any) -> list[Any]:
        lax.cond(lax.axis_index(rest) == 0, report, lambda *_: (), *xs)
        return []

    def manual(*xs: Any) -> list[Any]:
        jax.shard_map(first_reports, in_specs=(whole,) * len(xs), out_specs=[], check_vma=False, axis_names=set(rest))(
            *xs
        )
        return []

    mlir.lower_fun(manual, multiple_results=True)(ctx.replace(avals_out=[]), *args)


def _emitter(ctx: Any, bound: Any, **where: Any) -> Emitter:
    return program_emitter(bound["spec"], bound["transforms"], bound["present"], ctx.avals_in, **_place(ctx), **where)


def _place(ctx: Any) -> dict[str, Any]:
    """Returns where in which program a tap is being lowered; marks the begin of calls where that is needed."""
    program = _program(ctx)
    place = surroundings(ctx)
    if not place.straight and place.home is not None and not program.has_mark:
        _emit_mark(ctx, program, place.home)
    return {"program": program, "position": len(ctx.module_context.host_callbacks), "once": place.straight}


def _program(ctx: Any) -> Program:
    notes = program_of(ctx)
    if "program" not in notes:
        module = ctx.module_context
        axes = module.axis_context
        devices = axes.mesh.size if isinstance(axes, mlir.SPMDAxisContext) else axes.num_devices
        notes["program"] = new_program(may_wait=devices == 1 or module.platforms[0] != "cpu")
    return notes["program"]


def _emit_mark(ctx: Any, program: Program, home: Any) -> None:
    """Tells the host when a call begins, before the first loop, branch or inner function with a tap."""
    axes = ctx.module_context.axis_context
    emitter = mark_emitter(program)
    if isinstance(axes, mlir.SPMDAxisContext):
        call = HostCall(emitter.shard_callback(), [hlo.partition_id], [uint32_scalar], replicated_on(None))
    else:
        call = HostCall(emitter.callback(), [], [], replicated_on(0) if axes.num_devices > 1 else None)
    emit_callback_at_begin(ctx, call, home)


def _refuse_ordered(spec: TapSpec, num_devices: int) -> None:
    if spec.ordered and num_devices > 1:
        message = (
            f"tap {spec.name!r}: ordered=True gives a total order on one device, and this program runs on "
            f"{num_devices}; leave it out: records carry what is needed to sort them for each device"
        )
        raise TapError(message, tap=spec.name)


def _axis_name(name: Any) -> str:
    # pmap's own name for an axis that the user did not name.
    return "pmap" if str(name) == "_internal_pmap_axis_name" else str(name)
