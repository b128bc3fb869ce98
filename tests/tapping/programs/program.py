"""What a row of the program table is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JVP = Transform("jvp")
TRANSPOSE = Transform("transpose")
TANGENT = (JVP,)
COTANGENT = (JVP, TRANSPOSE)


def f32(value: Any) -> np.ndarray:
    """Returns an array of float32."""
    return np.asarray(value, np.float32)


def i32(value: Any) -> np.ndarray:
    """Returns an array of int32."""
    return np.asarray(value, np.int32)


EAGER, JIT, DISABLE_JIT = "eager", "jit", "disable_jit"
EVERY_MODE = (EAGER, JIT, DISABLE_JIT)


def batch(size: int, *dims: int | None, kwargs: tuple[int | None, ...] | None = None, axis: str | None = None) -> Any:
    """Returns the transform of one vmap level; ``kwargs`` None: the dims of kwargs are not compared."""
    return Transform("batch", size=size, dims=dims, kwarg_dims=kwargs, axis_name=axis)


@dataclasses.dataclass(frozen=True)
class Fired:
    """Records that a program must make.

    Attributes:
        tap: the tap's name.
        value: the pytree recorded. Python floats stand for float32, ints for int32; nested lists are arrays.
        transforms: the whole nest, innermost first.
        kwargs: all kwargs of the record, by the values the reader gives back; arrays as lists.
        times: how many equal records.
        device: the device's place in ``jax.devices()``; None: not compared.
        where: the mesh coordinates; None: not compared.
        lanes: which lanes count, by ``where=``; None where the tap does not say.
        live: which lanes have values to compare, where ``lanes`` does not say: the others are JAX's affair.
        uncertain: whether the record is marked as one that may hold lanes which do not count.
    """

    tap: str
    value: Any
    transforms: tuple[Transform, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    times: int = 1
    device: int | None = None
    where: Mapping[str, int] | None = None
    lanes: Any = None
    live: Any = None
    uncertain: bool = False


@dataclasses.dataclass(frozen=True)
class Program:
    """One row of the table: a program and every record that one call of it makes, in no order.

    Attributes:
        name: unique; ``docs/transforms.md`` names it.
        function: called with ``args``.
        args: arrays and pytrees of them; numpy arrays become JAX arrays first.
        expected: the records; a function of no arguments where they take a while to compute.
        modes: how the program is run: as it is, under ``jax.jit``, under ``jax.disable_jit()``.
        rtol: relative tolerance of values; 0: bit for bit.
        checks: False where JAX's own checks (``JAX_ENABLE_CHECKS``) fail on the program without taps.
        limit: one sentence on what JAX leaves no way to do right; the records expected are what really happens.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    expected: tuple[Fired, ...] | Callable[[], tuple[Fired, ...]]
    modes: tuple[str, ...] = EVERY_MODE
    rtol: float = 0.0
    checks: bool = True
    limit: str = ""

    def records(self) -> tuple[Fired, ...]:
        """The records expected."""
        return self.expected() if callable(self.expected) else self.expected
