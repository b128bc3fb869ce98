"""Emitters: what a compiled (or eager) tap holds on the host side, ready to put records on the outfeed."""

from __future__ import annotations

import dataclasses
import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tracerec import outfeed
from tracerec.model import NO_SHARD, Column, Kept, Leaf, Site, Transform
from tracerec.outfeed.programs import EAGER, Program
from tracerec.tapping._jax import is_key_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracerec.keeping import Keep
    from tracerec.outfeed.functions import HostFunction
    from tracerec.plans import Choice
    from tracerec.tapping.encode import ColumnSpec

__all__ = [
    "Emitter",
    "TapSpec",
    "eager_emitter",
    "mark_emitter",
    "new_program",
    "physical_dtype",
    "physical_shape",
    "program_emitter",
    "site_of",
    "to_host",
]


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
        shards: what is recorded of a value that XLA shards by itself: ``"gather"``, ``"local"`` or ``"auto"``.
        gathered: mesh axes over which the value was gathered, so that they are no coordinates of the record.
        function: the function on the host that gets the records; None: recorders do.
        keep: what is kept of each leaf before it is copied; empty: all of it.
        over: as `tracerec.plans.Plan.over`.
        kept: for each leaf what it is, in the spec of a tap whose leaves have been reduced; else empty.
        choice: what recordings had chosen when the tap was traced; None: no recording had.
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
    shards: str = "auto"
    gathered: tuple[str, ...] = ()
    function: HostFunction | None = None
    keep: tuple[Keep, ...] = ()
    over: str = "lanes"
    kept: tuple[Kept | None, ...] = ()
    choice: Choice | None = None

    def with_columns(self, columns: Iterable[ColumnSpec]) -> TapSpec:
        """Returns the spec with further columns behind its own."""
        return dataclasses.replace(self, columns=(*self.columns, *columns))


@dataclasses.dataclass(eq=False, slots=True)
class Emitter:
    """Puts the records of one site, at one place of one program, on the outfeed.

    Attributes:
        site: the site.
        program: the program.
        position: the tap's static position in the program, in lowering order.
        once: whether the tap is outside every loop: it fires at most once a call.
        is_mark: whether this is no tap but the mark that a call begins.
        function: the function on the host that gets the records; None: recorders do.
        devices: the device id of each shard of the mesh; empty outside one.
        words: which operands travel as 32-bit words, with their dtype.
        nbytes: bytes of one record's arrays.
        choice: as `TapSpec.choice`.
    """

    site: Site
    program: Program
    position: int
    once: bool
    is_mark: bool
    function: HostFunction | None
    devices: tuple[int, ...]
    words: tuple[tuple[int, np.dtype[Any]], ...]
    nbytes: int
    choice: Choice | None = None

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

    def shard_callback(self, shards: Sequence[int] | None = None) -> Callable[..., tuple[()]]:
        """Returns the host callback of a manually sharded program; its last operand is the partition's number.

        Args:
            shards: the place in the site's mesh of each partition; None when it is the partition's number.
        """
        put = outfeed.put
        devices = self.devices

        def fire(*arrays: np.ndarray) -> tuple[()]:
            partition = int(arrays[-1])
            shard = partition if shards is None else shards[partition]
            put(self, arrays[:-1], devices[partition] if devices else None, shard)
            return ()

        return fire


_programs = itertools.count(1)
_MARK_SITE = Site("", ())


def new_program(*, may_wait: bool) -> Program:
    """Returns a program that is being lowered, with a number that is unique in this process.

    Args:
        may_wait: as `tracerec.outfeed.programs.Program.may_wait`.
    """
    return Program(next(_programs), may_wait=may_wait)


def mark_emitter(program: Program) -> Emitter:
    """Returns the emitter of the mark that a call of a program begins."""
    program.has_mark = True
    return Emitter(_MARK_SITE, program, 0, True, True, None, (), (), 0)  # noqa: FBT003


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
    wholes: tuple[tuple[int, ...], ...] | None = None,
) -> Emitter:
    """Returns the emitter of one tap of a program.

    Args:
        spec: the tap's parameter.
        transforms: the tap's parameter.
        present: the tap's parameter.
        avals: a shape and a dtype for each operand.
        program: the program.
        position: the tap's static position in it.
        once: whether the tap fires once a call.
        mesh: names and sizes of the mesh axes of a manually sharded program.
        devices: the id of each logical device.
        wholes: for shards: the shape of each leaf's whole array.
    """
    shapes = tuple((physical_shape(a), physical_dtype(a)) for a in avals)
    site = site_of(spec, transforms, present, shapes, mesh)
    if wholes is not None:
        leaves = (dataclasses.replace(x, global_shape=whole) for x, whole in zip(site.leaves, wholes, strict=True))
        site = dataclasses.replace(site, leaves=tuple(leaves))
    n = len(present)
    words = tuple((n + i, np.dtype(column.words)) for i, column in enumerate(spec.columns) if column.words is not None)
    nbytes = site.record_nbytes
    return Emitter(site, program, position, once, False, spec.function, devices, words, nbytes, spec.choice)  # noqa: FBT003


def eager_emitter(
    spec: TapSpec, transforms: tuple[Transform, ...], present: tuple[int, ...], args: Sequence[Any]
) -> Emitter:
    """Returns the emitter of an eager tap."""
    return _eager(spec, transforms, present, tuple((jax.numpy.shape(a), _dtype_of(a)) for a in args))


@lru_cache(maxsize=4096)
def _eager(
    spec: TapSpec, transforms: tuple[Transform, ...], present: tuple[int, ...], avals: tuple[Any, ...]
) -> Emitter:
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
    return program_emitter(spec, transforms, present, structs, program=EAGER, position=0, once=True)


def site_of(
    spec: TapSpec,
    transforms: tuple[Transform, ...],
    present: tuple[int, ...],
    shapes: Sequence[tuple[tuple[int, ...], str]],
    mesh: tuple[tuple[str, int], ...] = (),
) -> Site:
    """Returns the site of a tap.

    Args:
        spec: the tap's parameter.
        transforms: the tap's parameter.
        present: the tap's parameter.
        shapes: the shape and the dtype's name of each operand, as the host gets it.
        mesh: as `program_emitter` takes it.
    """
    n = len(present)
    leaves = tuple(
        Leaf(spec.paths[i], shape, dtype, spec.numbers[i], spec.key_impls[i], kept=spec.kept[i] if spec.kept else None)
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


def to_host(value: Any) -> np.ndarray:
    """Returns a copy of an eager value as a read-only numpy array, as a program's callback would get it.

    A copy: the user may overwrite a numpy array, or donate a JAX array, after the tap.
    """
    if isinstance(value, jax.Array) and is_key_dtype(value.dtype):
        value = jax.random.key_data(value)
    if isinstance(value, (bool, int, float, complex)):
        value = np.asarray(value, jax.dtypes.canonicalize_dtype(np.result_type(value)))
    array = np.array(value, order="C")
    array.flags.writeable = False
    return array


def physical_shape(aval: Any) -> tuple[int, ...]:
    """Returns the shape of an operand as the host gets it: that of the key data, for a PRNG key."""
    if is_key_dtype(aval.dtype):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype)).shape
    return tuple(int(n) for n in aval.shape)


def physical_dtype(aval: Any) -> str:
    """Returns the dtype's name of an operand as the host gets it."""
    return "uint32" if is_key_dtype(aval.dtype) else np.dtype(aval.dtype).name
