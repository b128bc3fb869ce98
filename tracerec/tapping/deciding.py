"""When a tap fires: ``when``, ``every``, ``first`` and ``steps``, as one bool that the device looks at."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tracerec.errors import TapError
from tracerec.tapping._jax import is_key_dtype, is_tracer

__all__ = ["ALWAYS", "When", "above", "changed", "decision", "is_integer_scalar", "nonfinite"]


class When(NamedTuple):
    """When a tap fires: keyword arguments of ``tap``; None: they say nothing.

    Attributes:
        when: a bool scalar.
        every: only steps that this number divides. It may be traced, as all numbers here may.
        first: only steps below this number.
        steps: only these: a slice, or a sequence or array of steps.
    """

    when: Any = None
    every: Any = None
    first: Any = None
    steps: Any = None


ALWAYS = When()


def nonfinite(value: Any) -> Any:
    """Returns whether an array, or any leaf of a pytree, has a NaN or an infinity: a trigger for ``tap(when=)``.

    Args:
        value: a pytree of arrays or numbers; leaves that cannot be so (integers, bools, keys) have none.

    Returns:
        A bool scalar, traced where the value is.

    Example:
        >>> import jax.numpy as jnp, tracerec
        >>> bool(tracerec.nonfinite({"w": jnp.array([1.0, jnp.inf]), "n": 3}))
        True
    """
    leaves = [x for x in map(_number, jax.tree_util.tree_leaves(value)) if x is not None]
    return _any([jnp.any(~jnp.isfinite(x)) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)])


def above(value: Any, limit: Any) -> Any:
    """Returns whether an element of a pytree is larger than a limit in magnitude, or NaN: a trigger for ``tap(when=)``.

    Args:
        value: a pytree of arrays or numbers.
        limit: a number, which may be traced.

    Returns:
        A bool scalar.

    Example:
        >>> import jax.numpy as jnp, tracerec
        >>> bool(tracerec.above(jnp.array([1.0, -30.0]), 20))
        True
    """
    leaves = [x for x in map(_number, jax.tree_util.tree_leaves(value)) if x is not None]
    # not (x <= limit): of NaN nothing is true. min and max apart: the smallest integer has no magnitude of its kind.
    return _any([jnp.any(~_within(x, limit)) for x in leaves])


def changed(value: Any, before: Any) -> Any:
    """Returns whether a bit of a pytree is another than in an earlier value: a trigger for ``tap(when=)``.

    Args:
        value: a pytree of arrays, numbers or PRNG keys.
        before: the earlier value, a pytree of the same structure, shapes and dtypes, as a loop carries it.

    Returns:
        A bool scalar. -0.0 is another than 0.0, a NaN the same as one of the same bits.

    Raises:
        TapError: structures, shapes or dtypes differ, so that the question makes no sense.

    Example:
        >>> import jax.numpy as jnp, tracerec
        >>> bool(tracerec.changed(jnp.array([1, 2]), jnp.array([1, 2])))
        False
    """
    leaves, tree = jax.tree_util.tree_flatten(value)
    others, other_tree = jax.tree_util.tree_flatten(before)
    if tree != other_tree:
        message = f"changed: the value is {tree}, the one before {other_tree}"
        raise TapError(message)
    found: list[Any] = []
    for leaf, other in zip(map(jnp.asarray, leaves), map(jnp.asarray, others), strict=True):
        if leaf.shape != other.shape or leaf.dtype != other.dtype:
            message = f"changed: {leaf.dtype} of {leaf.shape} beside {other.dtype} of {other.shape}"
            raise TapError(message)
        found.append(jnp.any(_bits(leaf) != _bits(other)))
    return _any(found)


def decision(fires: When, step: Any, tap: str) -> Any:
    """Returns whether a tap fires: True or False where that is known already, else a bool scalar.

    Args:
        fires: what the caller said.
        step: the tap's kwarg.
        tap: the tap's name, for messages.

    Raises:
        TapError: ``when`` is no bool scalar, a number is out of its range, or steps are asked for of a tap without
            an integer ``step``.
    """
    conditions = [] if fires.when is None else [_checked_when(fires.when, tap)]
    if any(x is not None for x in fires[1:]):
        conditions += _of_step(fires, _checked_step(step, tap), tap)
    result: Any = True
    for condition in conditions:
        if isinstance(condition, (bool, np.bool_)):
            if not condition:
                return False
        else:
            result = condition if result is True else jnp.logical_and(result, condition)
    return result


def is_integer_scalar(value: Any) -> bool:
    """Returns whether a value, which may be traced, is one integer, and no bool."""
    if value is None or isinstance(value, bool) or np.shape(value) != ():
        return False
    return np.issubdtype(getattr(value, "dtype", type(value)), np.integer)


def _of_step(fires: When, step: Any, tap: str) -> list[Any]:
    _, every, first, steps = fires
    found: list[Any] = []
    if every is not None:
        found.append(operator.eq(_modulo(step, _checked_number(every, "every", 1, tap)), 0))
    if first is not None:
        found.append(operator.lt(*_alike(step, _checked_number(first, "first", 0, tap))))
    if isinstance(steps, slice):
        found += _in_slice(steps, step, tap)
    elif steps is not None:
        if not isinstance(steps, (Sequence, np.ndarray, jax.Array)) or isinstance(steps, (str, bytes)):
            message = f"tap {tap!r}: steps={steps!r}; give a slice, or a list or an array of steps"
            raise TapError(message, tap=tap)
        found.append(_is_among(step, steps))
    return [x if is_tracer(x) else bool(x) for x in found]


def _in_slice(steps: slice, step: Any, tap: str) -> list[Any]:
    found: list[Any] = []
    start = 0 if steps.start is None else steps.start
    if steps.start is not None:
        found.append(operator.ge(*_alike(step, _checked_number(steps.start, "steps.start", None, tap))))
    if steps.stop is not None:
        found.append(operator.lt(*_alike(step, _checked_number(steps.stop, "steps.stop", None, tap))))
    if steps.step is not None:
        behind = operator.sub(*_alike(step, start))
        found.append(operator.eq(_modulo(behind, _checked_number(steps.step, "steps.step", 1, tap)), 0))
    return found


def _is_among(step: Any, steps: Any) -> Any:
    if isinstance(steps, jax.Array):
        one, other = _alike(step, steps)
        return jnp.any(one == other)
    numbers: list[Any] = list(steps)
    if not any(map(is_tracer, (step, *numbers))):
        return any(int(number) == step for number in numbers)
    return _any([operator.eq(*_alike(step, number)) for number in numbers])


def _modulo(number: Any, by: Any) -> Any:
    return operator.mod(*_alike(number, by))


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Returns two integers of one dtype, also where JAX promotes none; Python's stay what they are.

    A Python integer beyond the other's dtype becomes its largest or smallest number.
    """
    if not isinstance(one, jax.Array) and not isinstance(other, jax.Array):
        return one, other
    if not isinstance(one, jax.Array):
        return _clipped(one, other.dtype), other
    if not isinstance(other, jax.Array):
        return one, _clipped(other, one.dtype)
    dtype = jax.dtypes.canonicalize_dtype(np.promote_types(one.dtype, other.dtype))
    return one.astype(dtype), other.astype(dtype)


def _clipped(number: Any, dtype: Any) -> Any:
    info = jnp.iinfo(dtype)
    return np.asarray(max(int(info.min), min(int(number), int(info.max))), dtype)


def _checked_when(when: Any, tap: str) -> Any:
    dtype = np.dtype(bool) if isinstance(when, bool) else getattr(when, "dtype", None)
    if dtype != np.dtype(bool) or np.shape(when) != ():
        message = (
            f"tap {tap!r}: when must be a bool scalar (a lane's own under vmap), not {type(when).__name__} "
            f"of shape {np.shape(when)} and dtype {dtype}"
        )
        raise TapError(message, tap=tap)
    # An array is not looked at here: an eager tap would wait for it before it is known that anybody listens.
    return bool(when) if isinstance(when, (bool, np.bool_)) else when


def _checked_step(step: Any, tap: str) -> Any:
    if not is_integer_scalar(step):
        message = f"tap {tap!r}: every, first and steps need the kwarg step, an integer; it is {step!r:.60}"
        raise TapError(message, tap=tap)
    return step if is_tracer(step) else int(step)


def _checked_number(number: Any, name: str, least: int | None, tap: str) -> Any:
    good = is_integer_scalar(number)
    if good and is_tracer(number):
        return number
    if not good or (least is not None and int(number) < least):
        what = "an integer" if least is None else f"an integer, {least} or more"
        message = f"tap {tap!r}: {name}={number!r:.60}; give {what}"
        raise TapError(message, tap=tap)
    return int(number)


def _integers_within(x: Any, limit: Any) -> Any:
    """Returns where integers are within a limit, which may be more or less than their dtype has."""
    info = jnp.iinfo(x.dtype)
    if is_tracer(limit):
        wide = x.astype(jnp.int32) if info.bits < _FLOAT32_BITS else x
        return (wide <= limit) & ((wide >= -limit) | (info.min == 0))
    number = float(limit)
    if not number >= 0:
        return jnp.zeros(x.shape, bool)
    highest = info.max if number >= info.max else math.floor(limit)
    lowest = info.min if number >= -info.min else -math.floor(limit)
    return (x <= np.asarray(highest, x.dtype)) & (x >= np.asarray(lowest, x.dtype))


_FLOAT32_BITS = 32


def _number(leaf: Any) -> Any:
    array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    return None if is_key_dtype(array.dtype) else array


def _within(x: Any, limit: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.abs(x) <= limit
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return _integers_within(x, limit)
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < _FLOAT32_BITS:
        x = x.astype(jnp.float32)
    return (x <= limit) & (x >= -limit)


def _bits(array: Any) -> Any:
    if is_key_dtype(array.dtype):
        array = jax.random.key_data(array)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag])
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{jnp.finfo(array.dtype).bits}"))


def _any(conditions: list[Any]) -> Any:
    result: Any = jnp.zeros((), bool)
    for condition in conditions:
        result = result | condition
    return result
