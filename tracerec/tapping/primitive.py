"""The tap primitive: the identity on its leaves, with a host callback. One file, read top to bottom.

Operands are the tapped leaves, then the dynamic kwargs; outputs are the leaves. The rules follow the design that
``jax.experimental.host_callback`` began with ``id_tap`` (2020): differentiation binds further taps of the tangents
and cotangents, batching records the whole batch once, rematerialisation records once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from tracerec import outfeed
from tracerec.errors import TapError
from tracerec.model import Transform
from tracerec.tapping import control_flow, lowering
from tracerec.tapping._jax import (
    DEBUG_EFFECT,
    ORDERED_EFFECT,
    Branch,
    ad,
    batching,
    hoists_out_of_a_scan,
    jex,
    mend_transpose_of_scan,
    mlir,
    pe,
    this_branch,
    wait_for_effects,
    wants_devices,
)
from tracerec.tapping.emitters import TapSpec, eager_emitter, to_host
from tracerec.tapping.masks import TAKEN, WHERE
from tracerec.tapping.reduced import Plain, fire_eagerly, fire_when, is_plain
from tracerec.tapping.shards import fire_local, records_shards

__all__ = ["bind"]


def bind(spec: TapSpec, leaves: list[Any], operands: tuple[Any, ...], *, masked: bool = False) -> list[Any]:
    """Returns the leaves, tapped.

    Args:
        spec: what is static.
        leaves: JAX values, numpy arrays or Python scalars.
        operands: the dynamic kwargs, one a column of the spec.
        masked: whether leaves have logical shapes.
    """
    return tap_p.bind(
        *leaves,
        *operands,
        spec=spec,
        transforms=(Transform("mask"),) if masked else (),
        present=tuple(range(len(leaves))),
        mute=NOT_MUTED,
    )


# How much of a tap is silent: nothing; its values, but not what comes back through it; all. The recomputation under
# jax.checkpoint is silent. Its tangents were recorded in the first pass; a cotangent that comes back through it, as in
# second-order differentiation, comes back nowhere else.
NOT_MUTED, FORWARD_MUTED, MUTED = 0, 1, 2


class _Tap(jex.Primitive):
    """The tap primitive. In a branch of a vmapped cond it learns which lanes take the branch."""

    def bind(self, *args: Any, **params: Any) -> list[Any]:
        batched = params["transforms"] and params["transforms"][-1].name == "batch"
        branch = this_branch() if batched else None
        if branch is not None:
            args, params = _masked(args, branch, **params)
        if control_flow.marks():
            params["transforms"] = control_flow.marked_transforms(params["spec"], params["transforms"])
        return super().bind(*args, **params)


tap_p = _Tap("tap")
tap_p.multiple_results = True


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """Operands, split into leaves and dynamic kwargs."""

    leaves: list[Any]
    operands: list[Any]


def _split(args: Any, present: tuple[int, ...]) -> _Split:
    n = len(present)
    return _Split(list(args[:n]), list(args[n:]))


def _impl(*args: Any, spec: TapSpec, transforms: Any, present: Any, mute: int) -> list[Any]:
    given = _split(args, present)
    if mute == NOT_MUTED:
        _fire(given, args, {"spec": spec, "transforms": transforms, "present": present})
    return given.leaves


def _fire(given: _Split, args: Any, bound: Any) -> None:
    spec: TapSpec = bound["spec"]
    if spec.function is None and not outfeed.listening():
        return
    if not is_plain(spec):
        fire_eagerly(args, _fire_plain, Plain(spec, bound["transforms"], bound["present"]))
        return
    if any(isinstance(x, jax.Array) and len(x.devices()) > 1 for x in given.leaves) and records_shards(
        spec, given.leaves
    ):
        fire_local(bound, given.leaves, [to_host(x) for x in given.operands])
        return
    emitter = eager_emitter(spec, bound["transforms"], bound["present"], args)
    emitter.fire(tuple(to_host(a) for a in args), device=_device_of(given.leaves))


def _fire_plain(plain: Plain, args: list[Any]) -> None:
    _fire(_split(args, plain.present), args, _bound(plain))


def _bound(plain: Plain) -> dict[str, Any]:
    return {"spec": plain.spec, "transforms": plain.transforms, "present": plain.present}


def _device_of(leaves: list[Any]) -> int | None:
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            return min(device.id for device in leaf.devices())
    return None


def _abstract(*avals: Any, spec: TapSpec, present: Any, mute: int, **_: Any) -> tuple[list[Any], set[Any]]:
    effects: set[Any] = set()
    if mute == NOT_MUTED:
        effects = {ORDERED_EFFECT if spec.ordered else DEBUG_EFFECT}
    return list(avals[: len(present)]), effects


def _jvp(primals: Any, tangents: Any, *, spec: TapSpec, transforms: Any, present: Any, mute: int) -> Any:
    out = tap_p.bind(*primals, spec=spec, transforms=transforms, present=present, mute=mute)
    given = _split(tangents, present)
    tangents_out = _tap_live(
        given.leaves,
        primals[len(present) :],
        spec=spec,
        transforms=(*transforms, Transform("jvp")),
        present=present,
        mute=NOT_MUTED if mute == NOT_MUTED else FORWARD_MUTED,
    )
    return out, tangents_out


def _transpose(cotangents: Any, *args: Any, spec: TapSpec, transforms: Any, present: Any, mute: int) -> list[Any]:
    given = _split(args, present)
    for column, operand in zip(spec.columns, given.operands, strict=True):
        if ad.is_undefined_primal(operand):
            message = (
                f"tap {spec.name!r}: kwarg {column.name!r} depends on a tangent, so its value is not known in the "
                "backward pass; pass a value that is not being differentiated (jax.lax.stop_gradient)"
            )
            raise TapError(message, tap=spec.name)
    tapped = _tap_live(
        list(cotangents),
        given.operands,
        spec=spec,
        transforms=(*transforms, Transform("transpose")),
        present=present,
        mute=MUTED if mute == MUTED else NOT_MUTED,
    )
    leaves = [ct if ad.is_undefined_primal(leaf) else None for ct, leaf in zip(tapped, given.leaves, strict=True)]
    return [*leaves, *(None for _ in given.operands)]


def _tap_live(
    values: list[Any], operands: Any, *, spec: TapSpec, transforms: Any, present: Any, mute: int
) -> list[Any]:
    """Taps those values that are not symbolically zero; the others are passed on unrecorded."""
    live = [i for i, value in enumerate(values) if type(value) is not ad.Zero]
    if not live or not spec.derivatives:
        return values
    # batch dims are kept one a leaf, so a subset of the leaves takes a subset of the dims
    tapped = tap_p.bind(
        *(values[i] for i in live),
        *operands,
        spec=spec,
        transforms=tuple(_take(t, live) for t in transforms),
        present=tuple(present[i] for i in live),
        mute=mute,
    )
    out = list(values)
    for i, value in zip(live, tapped, strict=True):
        out[i] = value
    return out


def _take(transform: Transform, live: list[int]) -> Transform:
    if transform.dims is None or len(live) == len(transform.dims):
        return transform
    return dataclasses.replace(transform, dims=tuple(transform.dims[i] for i in live))


def _masked(args: Any, branch: Branch, *, spec: TapSpec, transforms: Any, **params: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the arguments of a tap, batched just now, with the lanes that take its branch as its mask."""
    taken = branch.taken
    batch = dataclasses.replace(transforms[-1], lanes_may_be_invalid=not branch.certain)
    kwarg_dims = batch.kwarg_dims or ()
    n = len(args) - len(spec.columns)
    mask = next((i for i, column in enumerate(spec.columns) if column.role == "where"), None)
    if mask is None:
        args = (*args, taken)
        inner = tuple(
            t if t.kwarg_dims is None else dataclasses.replace(t, kwarg_dims=(*t.kwarg_dims, None))
            for t in transforms[:-1]
        )
        spec = spec.with_columns([TAKEN])
        batch = dataclasses.replace(batch, kwarg_dims=(*kwarg_dims, 0))
    else:
        known = args[n + mask]
        lanes = known if kwarg_dims[mask] == 0 else jax.numpy.broadcast_to(known, (batch.size, *jax.numpy.shape(known)))
        both = lanes & taken.reshape(taken.shape + (1,) * (jax.numpy.ndim(lanes) - 1))
        args = (*args[: n + mask], both, *args[n + mask + 1 :])
        inner = transforms[:-1]
        batch = dataclasses.replace(batch, kwarg_dims=tuple(0 if i == mask else d for i, d in enumerate(kwarg_dims)))
    return args, {"spec": spec, "transforms": (*inner, batch), **params}


def _batch(axis: Any, args: Any, dims: Any, *, spec: TapSpec, transforms: Any, present: Any, mute: int) -> Any:
    n = len(present)
    operands, kwarg_dims = _batch_kwargs(args[n:], dims[n:], spec, int(axis.size))
    batch = Transform(
        "batch",
        size=int(axis.size),
        dims=tuple(dims[:n]),
        kwarg_dims=kwarg_dims,
        axis_name=axis.name if isinstance(axis.name, str) else None,
        lanes_may_be_invalid=_told_dim(spec, dims[n:]) is None and control_flow.may_be_invalid(axis),
    )
    out = tap_p.bind(*args[:n], *operands, spec=spec, transforms=(*transforms, batch), present=present, mute=mute)
    return out, list(dims[:n])


def _batch_kwargs(args: Any, dims: Any, spec: TapSpec, size: int) -> tuple[list[Any], tuple[int | None, ...]]:
    """Returns the dynamic kwargs with their lanes, if any, on axis 0, where readers find them."""
    out: list[Any] = []
    dims_out: list[int | None] = []
    for arg, dim, column in zip(args, dims, spec.columns, strict=True):
        if dim is None:
            out.append(arg)
            dims_out.append(None)
        elif column.words is not None and size:
            # A number from Python is the same in all lanes; JAX had broadcast it, for a branch of a vmapped cond.
            out.append(jax.lax.index_in_dim(arg, 0, dim, keepdims=False))
            dims_out.append(None)
        else:
            out.append(jax.numpy.moveaxis(arg, dim, 0))
            dims_out.append(0)
    return out, tuple(dims_out)


def _told_dim(spec: TapSpec, dims: Any) -> int | None:
    """Returns the batch axis of the user's mask, None when there is no mask or it is the same for all lanes."""
    return next((dim for column, dim in zip(spec.columns, dims, strict=True) if column == WHERE), None)


def _remat(_saveable: Any, unknown: Any, in_inst: Any, eqn: Any) -> Any:
    """Under jax.checkpoint: record in the first pass, be a silent identity in the recomputation."""
    residuals = [v for v, inst in zip(eqn.invars, in_inst, strict=True) if not inst and isinstance(v, jex.Var)]
    k = len(eqn.outvars)
    if any(unknown):
        return None, eqn, [True] * k, [True] * k, residuals
    silent = eqn.replace(params={**eqn.params, "mute": MUTED}, effects=jex.no_effects)
    return eqn, silent, [False] * k, [True] * k, residuals


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
    """Under partial evaluation: as any primitive, but never moved out of a scan's body."""
    if hoists_out_of_a_scan():
        tracers = tuple(map(trace.instantiate_const, tracers))
    return trace.default_process_primitive(tap_p, tracers, params)


def _lower(ctx: Any, *args: Any, mute: int, **params: Any) -> list[Any]:
    plain = Plain(params["spec"], params["transforms"], params["present"])
    if mute == NOT_MUTED and is_plain(plain.spec):
        lowering.emit(ctx, tap_p, args, **params)
    elif mute == NOT_MUTED:
        lowering.emit_traced(ctx, lambda *xs: fire_when(xs, _bind_plain, plain), args)
    return list(args[: len(params["present"])])


def _bind_plain(plain: Plain, args: list[Any]) -> None:
    # not the bind above: it would look whether the tap is being batched, as what is lowered may well be just now
    jex.Primitive.bind(tap_p, *args, **_bound(plain), mute=NOT_MUTED)


control_flow.install(tap_p)
mend_transpose_of_scan()
outfeed.wait_with(wait_for_effects)
wants_devices(tap_p)
tap_p.def_impl(_impl)
tap_p.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[tap_p] = _jvp
ad.primitive_transposes[tap_p] = _transpose
batching.fancy_primitive_batchers[tap_p] = _batch
pe.partial_eval_jaxpr_custom_rules[tap_p] = _remat
pe.custom_partial_eval_rules[tap_p] = _partial_eval
# A cached lowering would sit in a function of its own, outside the block's chain of tokens.
mlir.register_lowering(tap_p, _lower, cacheable=False)
