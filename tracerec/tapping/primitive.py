"""The tap primitive: the identity on its leaves, with a host callback. One file, read top to bottom.

Operands are the tapped leaves, then the dynamic kwargs; outputs are the leaves. The rules follow the design that
``jax.experimental.host_callback`` began with ``id_tap`` (2020): differentiation binds further taps of the tangents
and cotangents, batching records the whole batch once, rematerialisation records once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from tracerec.errors import TapError
from tracerec.model import Transform
from tracerec.tapping import lowering
from tracerec.tapping._jax import (
    DEBUG_EFFECT,
    ORDERED_EFFECT,
    ad,
    batching,
    hoists_out_of_a_scan,
    is_key_dtype,
    jex,
    mlir,
    pe,
)
from tracerec.tapping.emitters import TapSpec, eager_emitter

__all__ = ["bind"]


def bind(spec: TapSpec, leaves: list[Any], operands: tuple[Any, ...]) -> list[Any]:
    """Returns the leaves, tapped.

    Args:
        spec: what is static.
        leaves: JAX values, numpy arrays or Python scalars.
        operands: the dynamic kwargs, one a column of the spec.
    """
    return tap_p.bind(
        *leaves,
        *operands,
        spec=spec,
        transforms=(),
        present=tuple(range(len(leaves))),
        mute=NOT_MUTED,
    )


# How much of a tap is silent. A rematerialised pass is silent throughout; its tangents, taken later, are not.
NOT_MUTED, PRIMAL_MUTED, MUTED = 0, 1, 2

tap_p = jex.Primitive("tap")
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
        emitter = eager_emitter(spec, transforms, present, args)
        if emitter is not None:
            # A copy: the user may overwrite a numpy array, or donate a JAX array, after the tap.
            emitter.fire(tuple(_to_host(a) for a in args), device=_device_of(given.leaves))
    return given.leaves


def _to_host(value: Any) -> np.ndarray:
    if isinstance(value, jax.Array) and is_key_dtype(value.dtype):
        value = jax.random.key_data(value)
    if isinstance(value, (bool, int, float, complex)):
        value = np.asarray(value, jax.dtypes.canonicalize_dtype(np.result_type(value)))
    array = np.array(value, order="C")
    array.flags.writeable = False
    return array


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
        mute=MUTED if mute == MUTED else NOT_MUTED,
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
        mute=mute,
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


def _batch(axis: Any, args: Any, dims: Any, *, spec: TapSpec, transforms: Any, present: Any, mute: int) -> Any:
    n = len(present)
    # Readers find a batched kwarg's lanes on axis 0; words keep their trailing axis.
    operands = [
        arg if dim is None else jax.numpy.moveaxis(arg, dim, 0) for arg, dim in zip(args[n:], dims[n:], strict=True)
    ]
    batch = Transform(
        "batch",
        size=int(axis.size),
        dims=tuple(dims[:n]),
        kwarg_dims=tuple(None if dim is None else 0 for dim in dims[n:]),
        axis_name=axis.name if isinstance(axis.name, str) else None,
    )
    out = tap_p.bind(*args[:n], *operands, spec=spec, transforms=(*transforms, batch), present=present, mute=mute)
    return out, list(dims[:n])


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
    if mute == NOT_MUTED:
        lowering.emit(ctx, tap_p, args, **params)
    return list(args[: len(params["present"])])


tap_p.def_impl(_impl)
tap_p.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[tap_p] = _jvp
ad.primitive_transposes[tap_p] = _transpose
batching.fancy_primitive_batchers[tap_p] = _batch
pe.partial_eval_jaxpr_custom_rules[tap_p] = _remat
pe.custom_partial_eval_rules[tap_p] = _partial_eval
# A cached lowering would sit in a function of its own, outside the block's chain of tokens.
mlir.register_lowering(tap_p, _lower, cacheable=False)
