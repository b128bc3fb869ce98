"""The one place that touches names of JAX outside its public, documented API.

Each line says what the name is needed for and which public name would take its place. Everything here was run on
JAX 0.10.2 and 0.12.0.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache, partial
from typing import Any

import jax
import numpy as np

# Names of ``jax._src``. Primitives whose lowering is told the devices of the program: without it a record could not
# say on which device its data lived. And the tokens by which jax.effects_barrier waits: they are kept for each thread
# apart, so that what one thread dispatched cannot be waited for by another. No public way exists for either.
from jax._src.dispatch import RuntimeTokenSet, prim_requires_devices_during_lowering

# The rule by which JAX transposes a scan (`mend_transpose_of_scan`). jax.interpreters.ad does not have this table.
from jax._src.interpreters.ad import fancy_transposes
from jax.custom_batching import sequential_vmap

# Public, not yet documented as stable: primitives and jaxpr types (jax.extend.core), the rules of custom_jvp and
# custom_vjp as equations hold them (jax.extend.linear_util), MLIR (jax.extend.mlir).
from jax.extend import core as jex
from jax.extend import linear_util as lu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as hlo

# Differentiation rules of a primitive (ad), its batching rule (batching), its lowering (mlir) and its rule under
# jax.checkpoint (pe). No public way to register them exists; jax.extend.core has the primitive alone.
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

__all__ = [
    "CUSTOM_VMAP",
    "DEBUG_EFFECT",
    "ORDERED_EFFECT",
    "Branch",
    "HostCall",
    "ad",
    "batching",
    "emit_callback",
    "emit_callback_at_begin",
    "emit_partitioned_callback",
    "group_shardings",
    "hlo",
    "hoists_out_of_a_scan",
    "ir",
    "is_key_dtype",
    "is_tracer",
    "jex",
    "lanes_differ",
    "lower_each_call_apart",
    "lu",
    "mend_transpose_of_scan",
    "mlir",
    "one_each_device",
    "pe",
    "program_devices",
    "program_of",
    "replicated",
    "replicated_on",
    "shaped",
    "surroundings",
    "this_branch",
    "uint32_scalar",
    "wait_for_effects",
    "wants_devices",
    "with_lanes_that_differ",
    "wrap_batching_rule",
]

# JAX's debug effects keep a tap alive in every transformation (jit, scan, remat, partial evaluation). An effect of
# our own would need six private registries. They are read off a public jaxpr.
(DEBUG_EFFECT,) = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects
(ORDERED_EFFECT,) = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None, ordered=True))().effects

# The primitive of jax.custom_batching, read off the same way.
CUSTOM_VMAP: Any = jax.make_jaxpr(sequential_vmap(jax.numpy.sin))(0.0).eqns[0].primitive


def shaped(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Returns the aval of an operand that a lowering adds (``jax.core`` is public, and has no stub)."""
    return jax.core.ShapedArray(shape, dtype)  # pyright: ignore[reportAttributeAccessIssue]


uint32_scalar = shaped((), np.dtype("uint32"))


def is_key_dtype(dtype: Any) -> bool:
    """Returns whether a dtype is that of typed PRNG keys (documented, but not marked as exported)."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)  # pyright: ignore[reportPrivateImportUsage]


_HOISTING = frozenset({"_scan_known_hoisting", "_scan_partial_eval_custom"})


def hoists_out_of_a_scan() -> bool:
    """Returns whether JAX is moving what does not change out of a scan's body, as a partial evaluation does.

    A tap must stay: it fires in every iteration. JAX moves effects as well (jax-ml/jax#16637) and a rule is not
    told why it is asked, so this looks for the names of the two functions that move things, in
    ``jax._src.lax.control_flow.loops``, on the stack. Wanted: a public way to say "not loop-invariant".
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in _HOISTING:
            return True
        frame = frame.f_back
    return False


def wrap_batching_rule(primitive: Any, wrapper: Any) -> None:
    """Puts a function around JAX's batching rule of a primitive; it gets the rule and the rule's arguments."""
    rule = batching.fancy_primitive_batchers[primitive]
    batching.fancy_primitive_batchers[primitive] = partial(wrapper, rule)


def mend_transpose_of_scan() -> None:
    """Has JAX 0.10 transpose a scan of which a stacked output has no cotangent, as later versions do.

    JAX drops what is not used, but for what has an effect: the tangent of a tap, in second-order differentiation.
    Its rule then takes the shape of the whole output for that of one iteration ("Expected cotangent type float32[] but
    got float32[3]"). To go with JAX 0.10.
    """
    fancy_transposes[jax.lax.scan_p] = partial(_transpose_scan, fancy_transposes[jax.lax.scan_p])


def _transpose_scan(rule: Any, cts: Any, *args: Any, **params: Any) -> Any:
    try:
        return rule(cts, *args, **params)
    except ValueError:
        carry, stacked = cts[: params["num_carry"]], cts[params["num_carry"] :]
        if not any(isinstance(ct, ad.Zero) for ct in stacked):
            raise
        return rule([*carry, *(_of_one_iteration(ct, params["length"]) for ct in stacked)], *args, **params)


def _of_one_iteration(ct: Any, length: int) -> Any:
    return ad.Zero(jex.mapped_aval(length, 0, ct.aval)) if isinstance(ct, ad.Zero) else ct


def with_lanes_that_differ(axis: Any) -> Any:
    """Returns the axis of a vmap, marked: lanes do not all run what is batched with it.

    ``axis`` is what JAX hands to a batching rule (``AxisData``), and the rule to all that it batches, at once or
    later: custom rules are batched only when something differentiates them. It is part of the key of JAX's caches. So
    a mark on it reaches every tap that is inside, and no other. The mark is the class, a subclass, as equality is
    that of the class. Wanted: a public way to tell a batching rule what its batching is for.
    """
    if lanes_differ(axis):
        return dataclasses.replace(axis, before=True)
    fields = {field.name: getattr(axis, field.name) for field in dataclasses.fields(axis)}
    return _marked(type(axis))(**fields, before=False)


def lanes_differ(axis: Any) -> bool:
    """Returns whether `with_lanes_that_differ` marked the axis."""
    return hasattr(axis, "before")


@cache
def _marked(kind: type) -> Any:
    """Returns the class of marked axes. ``before``: whether it was marked already, by a loop or branch further out."""
    return dataclasses.make_dataclass("LanesThatDiffer", [("before", bool)], bases=(kind,), frozen=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a vmapped cond with a predicate a lane, while it is evaluated.

    Attributes:
        taken: which lanes take it, bool of ``(lanes,)``.
        certain: whether nothing further out makes lanes invalid.
    """

    taken: Any
    certain: bool


def this_branch() -> Branch | None:
    """Returns the branch that is being evaluated, when a primitive's ``bind`` calls this; None when in none.

    When a cond's predicate is batched, JAX evaluates every branch right in its batching rule, one equation after the
    other, with the lanes that take it in the variable ``predicate``. Frames are found by name, and the variables
    of that one alone are read: reading makes a copy, which keeps tracers alive (``jax.checking_leaks``).
    """
    frame = inspect.currentframe()
    names: list[str] = []
    while frame is not None and len(names) <= _FRAMES_TO_COND:
        names.append(frame.f_code.co_name)
        if names[-1] == "_cond_batching_rule":
            direct = names[-3:] == ["eval_jaxpr", "jaxpr_as_fun", "_cond_batching_rule"]
            return _branch(frame.f_locals) if direct else None
        frame = frame.f_back
    return None


# this function, its caller in `bind`, bind, eval_jaxpr, jaxpr_as_fun, the rule
_FRAMES_TO_COND = 7


def _branch(local: Any) -> Branch | None:
    taken = local.get("predicate")
    return None if taken is None else Branch(taken, certain=not getattr(local.get("axis_data"), "before", True))


def is_tracer(value: Any) -> bool:
    """Returns whether a value is being traced (``jax.core.Tracer`` is public, and has no stub)."""
    return isinstance(value, jax.core.Tracer)  # pyright: ignore[reportAttributeAccessIssue]


def wants_devices(primitive: Any) -> None:
    """Asks JAX to tell a primitive's lowering which devices the program runs on."""
    prim_requires_devices_during_lowering.add(primitive)


def wait_for_effects() -> None:
    """Waits for the host callbacks of everything that was dispatched, by any thread.

    ``jax.effects_barrier`` waits for its own thread's alone.

    Raises:
        Exception: what a computation had failed with.
    """
    # Computations are in order on a device: waiting for the last is waiting for all.
    tokens = list(_last_tokens.items())
    for device, token in tokens:
        token.block_until_ready()
        if _last_tokens.get(device) is token:
            del _last_tokens[device]
    jax.effects_barrier()


_last_tokens: dict[Any, Any] = {}


def _keep_last_tokens() -> None:
    original = RuntimeTokenSet.set_output_runtime_token

    def set_output_runtime_token(self: Any, device: Any, token: Any) -> None:
        _last_tokens[device] = token
        original(self, device, token)

    RuntimeTokenSet.set_output_runtime_token = set_output_runtime_token


_keep_last_tokens()


def program_devices(ctx: Any) -> tuple[int, ...]:
    """Returns the ids of the devices that a program is lowered for, in its logical order; empty when not told."""
    assignment = getattr(ctx.module_context.axis_context, "device_assignment", None)
    return tuple(device.id for device in assignment or ())


@dataclasses.dataclass(frozen=True, slots=True)
class HostCall:
    """A host callback to be emitted.

    Attributes:
        callback: the function on the host; returns an empty tuple.
        operands: MLIR values, or functions that make them at the place of the call.
        avals: their abstract values.
        sharding: the ``sdy.sharding`` attribute, or None on one device.
    """

    callback: Any
    operands: list[Any]
    avals: list[Any]
    sharding: Any


def emit_callback(ctx: Any, call: HostCall, *, ordered: bool) -> None:
    """Emits a host callback at the current place of the program.

    Taps of one block are chained by a token, so that they fire in program order: XLA runs independent callbacks
    concurrently. ``mlir.emit_python_callback`` has no public equal with a token (``jax.pure_callback`` and
    ``jax.experimental.io_callback`` are 20 times as slow a call).
    """
    if ordered:
        token = _emit(ctx, call, ctx.tokens_in.get(ORDERED_EFFECT))
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED_EFFECT: token})))
        return
    tokens = _block_tokens(ctx)
    tokens.set(_emit(ctx, call, tokens.get() or hlo.create_token()))


def emit_callback_at_begin(ctx: Any, call: HostCall, block: Any) -> None:
    """Emits a host callback at the begin of a block that is being filled, apart from the chain of its taps."""
    with ir.InsertionPoint.at_block_begin(block):
        _emit(ctx, call, hlo.create_token())


def emit_partitioned_callback(ctx: Any, call: HostCall) -> None:
    """Emits a host callback that runs on each device of an auto-sharded program, with its shards of the operands.

    XLA takes no token there (it aborts: ``Check failed: has_layout()``), so such taps are not chained.
    """
    sub = ctx.replace(avals_in=call.avals, avals_out=[])
    mlir.emit_python_callback(
        sub, call.callback, None, call.operands, call.avals, [],
        has_side_effect=True, returns_token=False, partitioned=True,
    )  # fmt: skip


def group_shardings(ctx: Any, *values: Any) -> None:
    """Holds values of one shape to one sharding, whatever the partitioner chooses."""
    notes = program_of(ctx)
    group = notes["groups"] = notes.get("groups", _FIRST_GROUP) + 1
    for value in values:
        sdy.ShardingGroupOp(value, group)


# Group numbers of the user's own program, if any, start at 0.
_FIRST_GROUP = 1 << 20


def one_each_device(value: Any, num_devices: int) -> Any:
    """Returns a vector of ``num_devices`` elements with element k on logical device k."""
    axis = sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get("device")], is_closed=True)
    return sdy.ShardingConstraintOp(value, sdy.TensorShardingAttr.get(_all_devices(num_devices), [axis])).result


def replicated(value: Any, rank: int, num_devices: int) -> Any:
    """Returns a value of which every device has the whole."""
    whole = [sdy.DimensionShardingAttr.get([], is_closed=True)] * rank
    return sdy.ShardingConstraintOp(value, sdy.TensorShardingAttr.get(_all_devices(num_devices), whole)).result


def _all_devices(num_devices: int) -> Any:
    return sdy.MeshAttr.get([sdy.MeshAxisAttr.get("device", num_devices)])


def _emit(ctx: Any, call: HostCall, token: Any) -> Any:
    sub = ctx.replace(avals_in=call.avals, avals_out=[])
    operands: list[Any] = [x() if callable(x) else x for x in call.operands]
    _, token, _ = mlir.emit_python_callback(
        sub, call.callback, token, operands, call.avals, [], has_side_effect=True, returns_token=True
    )
    if call.sharding is not None:
        # The function's own sharding argument wants private classes.
        token.owner.attributes["sdy.sharding"] = call.sharding
    return token


def program_of(ctx: Any) -> dict[str, Any]:
    """Returns a dict that lives as long as the module being lowered and is its own: the program's notes."""
    # ModuleContext takes no weak reference; this cache of its own is keyed by primitives, never by a string.
    return ctx.module_context.cached_primitive_lowerings.setdefault("tracerec", {})


def lower_each_call_apart(ctx: Any) -> None:
    """Has JAX lower every call of an inner function that has taps anew, so that each tap has a position of its own.

    JAX lowers an inner function (a jit, the body of an unrolled scan) once and calls it wherever it is used; XLA then
    makes copies of it, which run in any order and could not be told apart. The two dicts that keep what was lowered
    are attributes of the module context.
    """
    # the notes go into the dict that is there now, which other copies of the module context share
    program_of(ctx)
    module = ctx.module_context
    for name in ("lowering_cache", "cached_primitive_lowerings"):
        known = getattr(module, name)
        if not isinstance(known, _WithoutTaps):
            setattr(module, name, _WithoutTaps(known))


class _WithoutTaps(dict[Any, Any]):
    """A cache of lowered functions that does not keep those with taps."""

    def __setitem__(self, key: Any, value: Any) -> None:
        parts = [key, *key] if isinstance(key, tuple) else [key]
        if not any(_EFFECTS & set(getattr(part, "effects", ())) for part in parts):
            super().__setitem__(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            super().__setitem__(key, default)
        return self[key]


_EFFECTS = {DEBUG_EFFECT, ORDERED_EFFECT}


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """Where in the program a tap is being lowered.

    Attributes:
        straight: outside every loop: it fires at most once a call. Inner functions are lowered for each of their calls.
        home: the block at whose begin something fires before the tap, once a call; None when it is not known.
    """

    straight: bool
    home: Any


def surroundings(ctx: Any) -> Surroundings:
    """Returns where the current place is.

    An inner function or the body of a loop is lowered into an MLIR function of its own before anything calls it. But
    the lowering rules of what it is in are on the Python stack, so this looks for their names there.
    """
    manual = isinstance(ctx.module_context.axis_context, mlir.SPMDAxisContext)
    home: Any = None
    straight = True
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_name
        if name == "_while_lowering":
            straight = False
            # a home inside of this loop is begun in every iteration
            home = None
        elif name == "_shard_map_lowering_shardy" and home is None:
            home = _block_of_shard_map(frame.f_locals)
        frame = frame.f_back
    return Surroundings(straight, home if manual else _main_block(ctx))


def _block_of_shard_map(local: Any) -> Any:
    """Returns the body's block of a shard_map that is being lowered; None where XLA shards over some axes itself."""
    operation = local.get("manual_computation_op")
    whole = set(local["mesh"].axis_names) == set(local["newly_manual_axes"])
    return operation.body.blocks[0] if operation is not None and whole else None


def _main_block(ctx: Any) -> Any:
    for op in ctx.module_context.module.body.operations:
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return op.regions[0].blocks[0] if op.regions[0].blocks else None
    return None


def replicated_on(device: int | None) -> Any:
    """Returns the sharding attribute of an op without results: on one logical device, or manual when None."""
    mesh = sdy.MeshAttr.get([]) if device is None else sdy.MeshAttr.get([], device_ids=[device])
    return sdy.TensorShardingPerValueAttr.get([sdy.TensorShardingAttr.get(mesh, [])])


def _block() -> Any:
    point: Any = ir.InsertionPoint.current
    return point.block


class _BlockTokens:
    """The last token of each block that is being filled.

    A block is known by the call of ``jaxpr_subcomp`` that fills it, and by itself. By itself alone would not do: JAX
    inlines some functions and frees their blocks, and a new block may then lie where an old one, with its tokens, lay.
    Holding the call's frame keeps it from being mistaken for a later one.
    """

    def __init__(self) -> None:
        self._tokens: dict[Any, tuple[Any, Any]] = {}

    def get(self) -> Any:
        block, token = self._tokens.get(_filling_call(), (None, None))
        return token if block is not None and block == _block() else None

    def set(self, token: Any) -> None:
        self._tokens[_filling_call()] = (_block(), token)


def _filling_call() -> Any:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "jaxpr_subcomp":
        frame = frame.f_back
    return frame


def _block_tokens(ctx: Any) -> _BlockTokens:
    return program_of(ctx).setdefault("tokens", _BlockTokens())
