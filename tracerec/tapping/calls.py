"""The user's call: ``tap``."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import jax
import numpy as np

from tracerec.errors import TapError
from tracerec.tapping._jax import is_key_dtype, is_tracer
from tracerec.tapping.context import in_scope, is_disabled
from tracerec.tapping.emitters import TapSpec
from tracerec.tapping.encode import encode_kwargs, encode_tree
from tracerec.tapping.primitive import bind

__all__ = ["tap"]

T = TypeVar("T")
R = TypeVar("R")


class _NotGiven:
    def __repr__(self) -> str:
        return "<not given>"


_NOT_GIVEN = _NotGiven()


@overload
def tap(value: T, name: str, *, derivatives: bool = ..., ordered: bool = ..., **kwargs: Any) -> T: ...
@overload
def tap(value: Any, name: str, *, result: R, derivatives: bool = ..., ordered: bool = ..., **kwargs: Any) -> R: ...
def tap(
    value: Any,
    name: str,
    *,
    result: Any = _NOT_GIVEN,
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
        derivatives: whether tangents and cotangents are recorded as well.
        ordered: asks for total order of all ordered taps, on one device, at a higher cost.
        **kwargs: recorded with the value. Numbers (``step=7``, a loss, a loop index) and arrays ride along as
            operands, so that a changing value does not recompile; strings, bytes, bools, None, enums, and tuples,
            lists and dicts of them, are static.

    Returns:
        ``value``, or ``result`` when given.

    Raises:
        TapError: the name is empty, or a kwarg is of a kind that a trace cannot give back exactly.

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
    tapped = _tap(value, *in_scope(name, kwargs), ordered=ordered, derivatives=derivatives)
    return tapped if isinstance(result, _NotGiven) else result


def _tap(value: Any, name: str, kwargs: dict[str, Any], *, ordered: bool, derivatives: bool) -> Any:
    structure, with_paths = encode_tree(value)
    leaves = [leaf for _, leaf in with_paths]
    # A float0 leaf is "no tangent": it has no data to record.
    numbers = [i for i, leaf in enumerate(leaves) if _dtype(leaf, name) != jax.dtypes.float0]
    if not numbers:
        return value
    encoded = encode_kwargs(kwargs, name)
    spec = TapSpec(
        name=name,
        kwargs=encoded.text,
        structure=structure,
        paths=tuple(with_paths[i][0] for i in numbers),
        numbers=tuple(numbers),
        key_impls=tuple(_key_impl(leaves[i]) for i in numbers),
        columns=encoded.columns,
        ordered=ordered,
        derivatives=derivatives,
    )
    for i, leaf in zip(numbers, bind(spec, [leaves[i] for i in numbers], encoded.operands), strict=True):
        # Eagerly a leaf is returned as the very object that was passed in.
        if is_tracer(leaf):
            leaves[i] = leaf
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(value), leaves)


def _dtype(leaf: Any, name: str) -> Any:
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        return getattr(leaf, "dtype", None)
    message = (
        f"tap {name!r}: a leaf is {type(leaf).__name__} {leaf!r:.60}, not an array or a number; "
        "pass strings and the like as kwargs"
    )
    raise TapError(message, tap=name)


def _key_impl(leaf: Any) -> str | None:
    if isinstance(leaf, jax.Array) and is_key_dtype(leaf.dtype):
        return str(jax.random.key_impl(leaf))
    return None
