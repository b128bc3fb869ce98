"""Emitters: what a compiled (or eager) tap holds on the host side, ready to put records on the outfeed."""

from __future__ import annotations

import dataclasses
import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tracerec import outfeed
from tracerec.model import NO_SHARD, Column, Leaf, Site, Transform
from tracerec.outfeed.programs import EAGER, Program
from tracerec.tapping._jax import is_key_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracerec.tapping.encode import ColumnSpec

__all__ = ["Emitter", "TapSpec", "eager_emitter", "mark_emitter", "new_program", "program_emitter"]


@dataclasses.dataclass(frozen=True, slots=True)
class TapSpec:
    """What is static of one call of ``tap``: hashable, equal for equal calls. A parameter of the primitive.

    Attributes:
        name: the full name, scopes included.
        kwargs: canonical JSON of the kwargs, numbers as slots.
        structure: canonical JSON of the pytree.
        paths: one key path a leaf that is recorded.
        numbers: each such leaf's place in the flattened pytree.
        key_impls: for each leaf, the implementation's name when it is a PRNG key.
        columns: one a dynamic kwarg.
        ordered: whether total order was asked for.
        derivatives: whether tangents and cotangents are recorded too.
        shards: what is recorded of a value that XLA shards by itself: ``"gather"`` or ``"local"``.
    """

    name: str
    kwargs: str
    structure: str
    paths: tuple[str, ...]
    numbers: tuple[int, ...]
    key_impls: tuple[str | None, ...]
    columns: tuple[ColumnSpec, ...]
    ordered: bool = False
    derivatives: bool = True
    shards: str = "gather"

    @property
    def has_where(self) -> bool:
        """Whether a column says which lanes count."""
        return any(column.role == "where" for column in self.columns)


@dataclasses.dataclass(eq=False, slots=True)
class Emitter:
    """Puts the records of one site, at one place of one program, on the outfeed.

    Attributes:
        site: the site.
        program: the program.
        position: the tap's static position in the program, in lowering order.
        once: whether the tap is outside every loop, branch and inner function: it fires once a call.
        is_mark: whether this is no tap but the mark that a call begins.
        devices: the device id of each shard of the mesh; empty outside one.
        words: which operands travel as 32-bit words, with their dtype.
        nbytes: bytes of one record's arrays.
    """

    site: Site
    program: Program
    position: int
    once: bool
    is_mark: bool
    devices: tuple[int, ...]
    words: tuple[tuple[int, np.dtype[Any]], ...]
    nbytes: int

    def fire(self, arrays: tuple[np.ndarray, ...], *, device: int | None = None, shard: int = NO_SHARD) -> None:
        """Enqueues one record; never raises, never calls jax, keeps the arrays as they are."""
        outfeed.put(self, arrays, device, shard)

    def callback(self) -> Callable[..., tuple[()]]:
        """Returns the host callback of a program on one logical device."""
        put = outfeed.put
        device = self.devices[0] if self.devices else None

        def fire(*arrays: np.ndarray) -> tuple[()]:
            put(self, arrays, device, NO_SHARD)
            return ()

        return fire

    def shard_callback(self) -> Callable[..., tuple[()]]:
        """Returns the host callback of a manually sharded program; its last operand is the partition's number."""
        put = outfeed.put
        devices = self.devices

        def fire(*arrays: np.ndarray) -> tuple[()]:
            shard = int(arrays[-1])
            put(self, arrays[:-1], devices[shard] if devices else None, shard)
            return ()

        return fire


_programs = itertools.count(1)
_MARK_SITE = Site("", ())


def new_program() -> Program:
    """Returns a program that is being lowered, with a number that is unique in this process."""
    return Program(next(_programs))


def mark_emitter(program: Program) -> Emitter:
    """Returns the emitter of the mark that a call of a program begins."""
    program.has_mark = True
    return Emitter(_MARK_SITE, program, 0, True, True, (), (), 0)  # noqa: FBT003


def program_emitter(
    spec: TapSpec,
    transforms: tuple[Transform, ...],
    present: tuple[int, ...],
    avals: Sequence[Any],
    *,
    program: Program,
    position: int,
    once: bool,
    mesh: tuple[tuple[str, int], ...] = (),
    devices: tuple[int, ...] = (),
) -> Emitter:
    """Returns the emitter of one tap of a program; ``avals`` has a shape and a dtype for each operand."""
    shapes = tuple((_physical_shape(a), _physical_dtype(a)) for a in avals)
    site = _site(spec, transforms, present, shapes, mesh)
    n = len(present)
    words = tuple((n + i, np.dtype(column.words)) for i, column in enumerate(spec.columns) if column.words is not None)
    return Emitter(site, program, position, once, False, devices, words, site.record_nbytes)  # noqa: FBT003


def eager_emitter(
    spec: TapSpec, transforms: tuple[Transform, ...], present: tuple[int, ...], args: Sequence[Any]
) -> Emitter | None:
    """Returns the emitter of an eager tap, or None when nobody listens."""
    if not outfeed.listening():
        return None
    return _eager(spec, transforms, present, tuple((jax.numpy.shape(a), _dtype_of(a)) for a in args))


@lru_cache(maxsize=4096)
def _eager(
    spec: TapSpec, transforms: tuple[Transform, ...], present: tuple[int, ...], avals: tuple[Any, ...]
) -> Emitter:
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
    return program_emitter(spec, transforms, present, structs, program=EAGER, position=0, once=True)


def _site(
    spec: TapSpec,
    transforms: tuple[Transform, ...],
    present: tuple[int, ...],
    shapes: tuple[tuple[tuple[int, ...], str], ...],
    mesh: tuple[tuple[str, int], ...],
) -> Site:
    n = len(present)
    leaves = tuple(
        Leaf(spec.paths[i], shape, dtype, spec.numbers[i], spec.key_impls[i])
        for i, (shape, dtype) in zip(present, shapes[:n], strict=True)
    )
    columns = tuple(
        Column(c.name, c.words or dtype, shape if c.words is None else shape[:-1], c.python, c.role)
        for c, (shape, dtype) in zip(spec.columns, shapes[n:], strict=True)
    )
    return Site(spec.name, leaves, columns, spec.kwargs, spec.structure, transforms, mesh, spec.ordered)


def _dtype_of(value: Any) -> Any:
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value.dtype
    return jax.dtypes.canonicalize_dtype(np.result_type(value))


def _physical_shape(aval: Any) -> tuple[int, ...]:
    if is_key_dtype(aval.dtype):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype)).shape
    return tuple(int(n) for n in aval.shape)


def _physical_dtype(aval: Any) -> str:
    return "uint32" if is_key_dtype(aval.dtype) else np.dtype(aval.dtype).name
