"""``id_tap`` and ``id_print``: taps for functions on the host, as JAX's ``host_callback`` had them (2020)."""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from tracerec.consumers.printing import print_record as _print
from tracerec.consuming import TRANSFORM_KWARGS
from tracerec.errors import TapError
from tracerec.outfeed.functions import HostFunction
from tracerec.outfeed.receiver import start_default_receiver
from tracerec.tapping.calls import TapOptions, tap_tree
from tracerec.tapping.context import in_scope_kwargs, is_disabled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from tracerec.consumers.printing import TextStream

__all__ = ["id_print", "id_tap"]


def id_tap(func: Callable[..., Any], *args: Any, result: Any = None, **kwargs: Any) -> Any:
    """Calls a function on the host with values of a computation; the identity for the computation.

    Works where `tracerec.tap` does. The function runs on the receiver's thread, one record after the other in the order
    of arrival; what it returns is ignored, what it raises is raised by `barrier_wait`, at the end of
    `outfeed_receiver`, or logged at exit.

    Args:
        func: called as ``func(*arrays, **kwargs)``, with each argument's pytree made of numpy arrays. For transformed
            values it gets keyword arguments that say so: ``transforms=("jvp", ...)``, and ``batch_dims``,
            ``logical_shapes``, ``where`` and ``transform_params`` where they apply.
        *args: pytrees of JAX values, numpy arrays or Python scalars.
        result: returned in place of the arguments, unless it is None.
        **kwargs: passed on to the function; numbers may be traced, and integers arrive as Python ints.

    Returns:
        ``result`` when given; else the arguments: one by itself, several as a tuple. Use what is returned where
        cotangents are to be seen.

    Raises:
        TapError: the function cannot be called, or a kwarg is of a kind that cannot be passed on, or has a name by
            which the function is told of transformations.

    Example:
        >>> import jax, tracerec
        >>> def show(x, *, what, **_):
        ...     print(what, float(x))
        >>> y = jax.jit(lambda x: tracerec.id_tap(show, x * 2, what="x"))(1.5)
        >>> tracerec.barrier_wait()
        x 3.0
    """
    if not callable(func):
        message = f"id_tap: {func!r} cannot be called"
        raise TapError(message)
    if is_disabled():
        return _returned(args, result)
    kwargs = in_scope_kwargs(kwargs)
    for name in TRANSFORM_KWARGS & kwargs.keys():
        message = f"id_tap: {name}= is what the function is told of transformations; give the kwarg another name"
        raise TapError(message)
    start_default_receiver()
    rebuild = _Rebuild(jax.tree_util.tree_structure(args))
    static = {name: copied for name, value in kwargs.items() if (copied := _copied(value)) is not _DYNAMIC}
    function = HostFunction(func, rebuild, static)
    options = TapOptions(function=function)
    tapped = tap_tree(args, f"id_tap {function.name}", kwargs, options)
    return _returned(tapped, result)


def id_print(
    *args: Any, result: Any = None, output_stream: TextStream | None = None, threshold: int = 1024, **kwargs: Any
) -> Any:
    """Prints values of a computation; the identity for the computation.

    A line with the kwargs, as sorted ``name: value`` pairs, when there are any, then each array as
    ``numpy.array2string`` writes it. The lines of one record come out together.

    Args:
        *args: pytrees of JAX values, numpy arrays or Python scalars.
        result: returned in place of the arguments, unless it is None.
        output_stream: where to print to; None: ``sys.stdout`` as it is when it prints.
        threshold: the number of elements above which an array is summarised.
        **kwargs: printed in the first line; transformations add theirs.

    Returns:
        As `id_tap`.

    Example:
        >>> import jax, tracerec
        >>> y = jax.jit(lambda x: tracerec.id_print(x, step=3, what="x"))(1.5)
        >>> tracerec.barrier_wait()
        step: 3  what: x
        1.5
    """
    return id_tap(partial(_print, output_stream, threshold), *args, result=result, **kwargs)


class _Rebuild:
    """Makes the positional arguments from a record's leaves; the structure is part of the site too."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def __call__(self, leaves: Mapping[int, np.ndarray]) -> tuple[Any, ...]:
        return jax.tree_util.tree_unflatten(self._tree, [leaves.get(i) for i in range(self._tree.num_leaves)])


_DYNAMIC = object()


def _copied(value: Any) -> Any:
    """Returns a static kwarg as the user passed it, containers copied; `_DYNAMIC` when there is a number in it."""
    if isinstance(value, (list, tuple, dict)):
        items: list[Any] = [_copied(x) for x in (value.values() if isinstance(value, dict) else value)]
        if type(value) not in (list, tuple, dict) or any(item is _DYNAMIC for item in items):
            return _DYNAMIC
        return dict(zip(value, items, strict=True)) if isinstance(value, dict) else type(value)(items)
    fixed = value is None or isinstance(value, (bool, str, bytes, enum.Enum))
    return value if fixed else _DYNAMIC


def _returned(args: tuple[Any, ...], result: Any) -> Any:
    if result is not None:
        return result
    return args[0] if len(args) == 1 else args
