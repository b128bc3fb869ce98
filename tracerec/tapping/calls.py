"""The user's call: ``tap``."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, TypeVar, overload

import jax
import numpy as np

from tracerec.errors import TapError
from tracerec.keeping import parse
from tracerec.outfeed import HostFunction, raise_at_tap
from tracerec.plans import Choice, Plan
from tracerec.protocol import dtypes
from tracerec.tapping import traced
from tracerec.tapping._jax import is_key_dtype, is_tracer
from tracerec.tapping.context import in_scope, is_disabled, policies
from tracerec.tapping.deciding import ALWAYS, When, decision, is_integer_scalar
from tracerec.tapping.emitters import TapSpec
from tracerec.tapping.encode import encode_kwargs, encode_tree
from tracerec.tapping.masks import WHEN, encode_extents, encode_where
from tracerec.tapping.primitive import bind

__all__ = ["TapOptions", "tap", "tap_tree"]

T = TypeVar("T")
R = TypeVar("R")

Shards = Literal["auto", "gather", "local"]
Over = Literal["lanes", "batch"]


class _NotGiven:
    def __repr__(self) -> str:
        return "<not given>"


_NOT_GIVEN = _NotGiven()


@overload
def tap(
    value: T,
    name: str,
    *,
    when: Any = ...,
    every: Any = ...,
    first: Any = ...,
    steps: Any = ...,
    keep: Any = ...,
    over: Over = ...,
    where: Any = ...,
    logical_shapes: Any = ...,
    shards: Shards = ...,
    derivatives: bool = ...,
    ordered: bool = ...,
    **kwargs: Any,
) -> T: ...
@overload
def tap(
    value: Any,
    name: str,
    *,
    result: R,
    when: Any = ...,
    every: Any = ...,
    first: Any = ...,
    steps: Any = ...,
    keep: Any = ...,
    over: Over = ...,
    where: Any = ...,
    logical_shapes: Any = ...,
    shards: Shards = ...,
    derivatives: bool = ...,
    ordered: bool = ...,
    **kwargs: Any,
) -> R: ...
def tap(
    value: Any,
    name: str,
    *,
    result: Any = _NOT_GIVEN,
    when: Any = None,
    every: Any = None,
    first: Any = None,
    steps: Any = None,
    keep: Any = "full",
    over: Over = "lanes",
    where: Any = None,
    logical_shapes: Any = None,
    shards: Shards = "auto",
    derivatives: bool = True,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Records a value of a computation; the identity for the computation.

    Works eagerly and under jit, scan, while, cond, grad, jvp, vmap and checkpoint. Under differentiation the primals
    are recorded, and the tangents or cotangents of the *returned* value: use it in place of the one passed in. Under
    vmap one record holds the whole batch.

    Args:
        value: any pytree of JAX values, numpy arrays or Python scalars.
        name: the tap's name, such as ``"encoder/act"``; open scopes are put before it.
        result: returned in place of ``value`` when given; it is not recorded.
        when: a bool scalar, which may be traced: whether the value is recorded this time. What is not is not copied
            from the device. Under vmap each lane has its own, and a record says which lanes count; what comes back in
            a backward pass follows the decision of the forward pass. `nonfinite`, `above` and `changed` make such.
        every: records only at steps that this integer divides; it may be traced, as may the next two.
        first: records only steps below this one.
        steps: records only these steps: a slice, half-open, or a list or array. These three need the kwarg ``step``.
        keep: what of each leaf is recorded, made on the device before anything is copied: ``"full"``, ``"summary"``,
            ``"histogram"``, ``"fingerprint"``, a kind of `tracerec.keeping`, a function of the leaf that returns
            arrays, or a list of these. A recording's own ``keep=`` goes before it.
        over: whether under vmap what is kept is of each lane, ``"lanes"``, or of all together, ``"batch"``.
        where: a bool scalar: whether this record counts. Under vmap it is batched along and says which lanes do:
            give the predicate to taps inside a cond, and the condition to taps inside a while, that are vmapped.
        logical_shapes: the valid extent of padded leaves: a tuple with an int, a traced int or None (the whole axis) an
            axis; for a pytree, the same tree of such tuples, or None for a leaf that is not padded.
        shards: of a value that XLA shards by itself under jit: ``"gather"`` records the logical array once,
            ``"local"`` each device's shard with its place in the whole, without moving data between devices.
            ``"auto"`` gathers up to 64 KiB, where that is cheaper, and records larger values as shards.
        derivatives: whether tangents and cotangents are recorded as well.
        ordered: asks for total order of all ordered taps, on one device, at a higher cost.
        **kwargs: recorded with the value. Numbers (``step=7``, a loss, a loop index) and arrays ride along as
            operands, so that a changing value does not recompile; strings, bytes, bools, None, enums, and tuples,
            lists and dicts of them, are static.

    Returns:
        ``value``, or ``result`` when given.

    Raises:
        TapError: the name is empty, a kwarg is of a kind that a trace cannot give back exactly, or a mask or a logical
            shape does not fit the value.

    Example:
        >>> import jax, jax.numpy as jnp, tracerec
        >>> @jax.jit
        ... def layer(x, step):
        ...     return tracerec.tap(jnp.tanh(x), "layer/act", step=step)
        >>> layer(jnp.zeros(2), 0)
        Array([0., 0.], dtype=float32)
    """
    if not isinstance(name, str) or not name:
        message = f"tap: the name must be a string that is not empty, not {name!r}"
        raise TapError(message)
    if is_disabled():
        return value if isinstance(result, _NotGiven) else result
    if shards not in ("auto", "gather", "local"):
        message = f"tap {name!r}: shards={shards!r}; use 'auto', 'gather' or 'local'"
        raise TapError(message, tap=name)
    name, kwargs = in_scope(name, kwargs)
    fires = When(when, every, first, steps)
    options = TapOptions(where, logical_shapes, shards, ordered, derivatives, None, keep, over, fires)
    tapped = tap_tree(value, name, kwargs, options)
    return tapped if isinstance(result, _NotGiven) else result


class TapOptions(NamedTuple):
    """How a value is tapped: the keyword arguments of ``tap``, and the function of an ``id_tap``."""

    where: Any = None
    logical_shapes: Any = None
    shards: Shards = "auto"
    ordered: bool = False
    derivatives: bool = True
    function: HostFunction | None = None
    keep: Any = "full"
    over: Over = "lanes"
    fires: When = ALWAYS


def tap_tree(value: Any, name: str, kwargs: dict[str, Any], options: TapOptions) -> Any:
    """Returns a pytree, tapped.

    Args:
        value: the pytree.
        name: the tap's full name.
        kwargs: all kwargs, those of scopes included.
        options: the rest.

    Raises:
        TapError: as `tap`.
    """
    raise_at_tap()
    for plan, choice in _plans(name, options):
        value = _tapped(value, _Call(name, kwargs, options), plan, choice)
    return value


class _Call(NamedTuple):
    """A call of ``tap``: its full name, all kwargs, those of scopes included, and its options."""

    name: str
    kwargs: dict[str, Any]
    options: TapOptions


def _plans(name: str, options: TapOptions) -> list[tuple[Plan, Choice | None]]:
    """Returns what recordings want of a tap, each plan once. Functions get what the tap gives."""
    if options.over not in ("lanes", "batch"):
        message = f"tap {name!r}: over={options.over!r}; use 'lanes' or 'batch'"
        raise TapError(message, tap=name)
    try:
        asked = Plan(_FULL if options.keep == "full" else parse(options.keep), options.over, None, options.derivatives)
    except TapError as error:
        message = f"tap {name!r}: {error}"
        raise TapError(message, tap=name) from error
    known = policies()
    if options.function is not None or not known:
        traced.note(name, "traced")
        return [(asked, None)]
    plans = dict.fromkeys(policy.plan(name, asked) for policy in known)
    traced.note(name, "left out" if set(plans) == {None} else "traced")
    return [(plan, Choice(known, asked, plan)) for plan in plans if plan is not None]


_FULL = Plan().keep


def _tapped(value: Any, call: _Call, plan: Plan, choice: Choice | None) -> Any:
    """Returns a pytree, tapped as one plan has it."""
    name, kwargs, options = call
    structure, with_paths = encode_tree(value)
    leaves = [_checked(leaf, name) for _, leaf in with_paths]
    # A float0 leaf is "no tangent": it has no data to record.
    numbers = [i for i, leaf in enumerate(leaves) if getattr(leaf, "dtype", None) != jax.dtypes.float0]
    if not numbers:
        return value
    tree = jax.tree_util.tree_structure(value)
    encoded = encode_kwargs(kwargs, name)
    decided = decision(_fires(options.fires, plan, kwargs), kwargs.get("step"), name)
    if decided is False:
        traced.note(name, "not now")
        return value
    masks = [*encode_where(options.where, name), *encode_extents(options.logical_shapes, tree, with_paths, name)]
    if decided is not True:
        traced.note(name, "decided on the device")
        masks.append((WHEN, decided))
    spec = TapSpec(
        name=name,
        kwargs=encoded.text,
        structure=structure,
        paths=tuple(with_paths[i][0] for i in numbers),
        numbers=tuple(numbers),
        key_impls=tuple(_key_impl(leaves[i]) for i in numbers),
        columns=(*encoded.columns, *(column for column, _ in masks)),
        ordered=options.ordered,
        derivatives=plan.derivatives,
        shards=options.shards,
        function=options.function,
        keep=() if plan.keeps_all else plan.keep,
        over=plan.over,
        choice=choice,
    )
    operands = (*encoded.operands, *(operand for _, operand in masks))
    masked = options.logical_shapes is not None
    for i, leaf in zip(numbers, bind(spec, [leaves[i] for i in numbers], operands, masked=masked), strict=True):
        # Eagerly a leaf is returned as the very object that was passed in.
        if is_tracer(leaf):
            leaves[i] = leaf
    return jax.tree_util.tree_unflatten(tree, leaves)


def _fires(asked: When, plan: Plan, kwargs: dict[str, Any]) -> When:
    """Returns when a tap fires: what a recording says of steps goes before what the tap says, if it has a step."""
    step = kwargs.get("step")
    if plan.every is None or not is_integer_scalar(step):
        return asked
    return asked._replace(every=plan.every)


def _checked(leaf: Any, name: str) -> Any:
    """Returns a leaf that JAX takes; raises TapError for others, warns of 64-bit numbers that JAX would change."""
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic)):
        array = np.asarray(leaf)
        if array.dtype == jax.dtypes.float0 or array.dtype.name in dtypes.CODES:
            _warn_of_change(leaf, array, name)
            return array.astype(array.dtype.newbyteorder("=")) if array.dtype.byteorder == ">" else leaf
    message = (
        f"tap {name!r}: a leaf is {type(leaf).__name__} {leaf!r:.60}, not an array or a number that JAX has; "
        "pass strings and the like as kwargs"
    )
    raise TapError(message, tap=name)


def _warn_of_change(leaf: Any, array: np.ndarray, name: str) -> None:
    kept = jax.dtypes.canonicalize_dtype(array.dtype)
    if kept == array.dtype or array.dtype.kind == "c":
        return
    with np.errstate(all="ignore"):
        same = np.array_equal(array.astype(kept).astype(array.dtype), array, equal_nan=array.dtype.kind == "f")
    if same or array.dtype.kind == "f":
        return
    if isinstance(leaf, int):
        message = f"tap {name!r}: {leaf} does not fit into {kept}; pass it as a kwarg, or enable x64"
        raise TapError(message, tap=name)
    message = (
        f"tap {name!r}: numbers of {array.dtype} do not fit into {kept}, which JAX makes of them; "
        "pass them as a kwarg, or enable x64"
    )
    warnings.warn(message, RuntimeWarning, stacklevel=5)


def _key_impl(leaf: Any) -> str | None:
    if isinstance(leaf, jax.Array) and is_key_dtype(leaf.dtype):
        return str(jax.random.key_impl(leaf))
    return None
