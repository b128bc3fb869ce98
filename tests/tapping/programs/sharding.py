"""Several devices: shard_map, pmap, sharded arrays under jit, partly manual meshes. Four devices.

Expected shards are cut out of the whole array with numpy.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.tapping.programs.program import COTANGENT, EAGER, JIT, TANGENT, Fired, Program, batch
from tracerec import tap

LINE = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
SQUARE = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
BACKWARDS = Mesh(np.array(jax.devices()[:4][::-1]), ("x",))

X = P("x")

ROW = np.arange(1, 9, dtype=np.float32)
GRID = np.arange(16, dtype=np.float32).reshape(4, 4)


def put(array: np.ndarray, mesh: Any, spec: Any) -> jax.Array:
    """The array, sharded."""
    return jax.device_put(array, NamedSharding(mesh, spec))


def over_line(function: Any, mesh: Any = LINE, out: Any = X) -> Any:
    """The function on each of four pieces."""
    return jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=out)


def double(x: Any) -> Any:
    """The simplest tap."""
    return tap(x * 2.0, "s")


def cube_sum(x: Any) -> Any:
    """U = 2x, the sum of u^3 over all devices: the cotangent of u is 3u^2."""
    return lax.psum((tap(x * 2.0, "s") ** 3).sum(), "x")


def pieces(array: np.ndarray, transforms: Any = (), devices: Any = range(4)) -> tuple[Fired, ...]:
    """One record for each quarter of an array, in mesh order."""
    return tuple(
        Fired("s", piece, transforms, device=device, where={"x": i})
        for i, (piece, device) in enumerate(zip(np.split(array, 4), devices, strict=True))
    )


def quarters(array: np.ndarray, transforms: Any = ()) -> tuple[Fired, ...]:
    """One record for each 2 by 2 piece of a 4 by 4 array."""
    return tuple(
        Fired(
            "s",
            array[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].copy(),
            transforms,
            device=2 * i + j,
            where={"x": i, "y": j},
        )
        for i in range(2)
        for j in range(2)
    )


def in_scan(x: Any) -> Any:
    """C -> 2c, twice."""
    return lax.scan(lambda c, _: (double(c), None), x, None, length=2)[0]


def replicated(x: Any) -> Any:
    """The sum is the same on each device."""
    return tap(lax.psum(x.sum(), "x"), "s")


def loss(x: Any) -> Any:
    """U = 2x, u^2: the cotangent of u is 2u."""
    return (double(x) ** 2).sum()


def partly(function: Any) -> Any:
    """Manual over x, left to XLA over y."""
    return jax.shard_map(function, mesh=SQUARE, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


def halves(array: np.ndarray, transforms: Any = ()) -> tuple[Fired, ...]:
    """One record for each upper and lower half, told by the device at the start of the axes left to XLA."""
    return tuple(
        Fired("s", half, transforms, device=2 * i, where={"x": i}) for i, half in enumerate(np.split(array, 2))
    )


JIT_ONLY = (JIT,)
TWO_MODES = (EAGER, JIT)
SPECS = [P(), P("x"), P("y"), P("x", "y"), P("y", "x"), P(None, "x"), P(("x", "y")), P(None, ("y", "x"))]

PROGRAMS = [
    Program("shard_map", over_line(double), (ROW,), pieces(ROW * 2), modes=TWO_MODES),
    Program(
        "shard_map, two axes",
        jax.shard_map(double, mesh=SQUARE, in_specs=P("x", "y"), out_specs=P("x", "y")),
        (GRID,),
        quarters(GRID * 2),
        modes=TWO_MODES,
    ),
    Program(
        "shard_map, devices in reverse",
        over_line(double, BACKWARDS),
        (put(ROW, BACKWARDS, P("x")),),
        pieces(ROW * 2, devices=[d.id for d in BACKWARDS.devices]),
        modes=JIT_ONLY,
    ),
    Program(
        "shard_map, replicated value",
        over_line(replicated, out=P()),
        (ROW,),
        tuple(Fired("s", 36.0, device=i, where={"x": i}) for i in range(4)),
        modes=TWO_MODES,
    ),
    Program("shard_map of scan", over_line(in_scan), (ROW,), (*pieces(ROW * 2), *pieces(ROW * 4)), modes=TWO_MODES),
    Program(
        "grad of shard_map",
        jax.grad(over_line(cube_sum, out=P())),
        (ROW,),
        (*pieces(ROW * 2), *pieces(3 * (ROW * 2) ** 2, COTANGENT)),
        modes=TWO_MODES,
    ),
    Program(
        "jvp of shard_map",
        lambda x: jax.jvp(over_line(double), (x,), (x,)),
        (ROW,),
        (*pieces(ROW * 2), *pieces(ROW * 2, TANGENT)),
        modes=TWO_MODES,
    ),
    Program(
        "shard_map of grad",
        over_line(jax.grad(loss)),
        (ROW,),
        (*pieces(ROW * 2), *pieces(ROW * 4, COTANGENT)),
        modes=TWO_MODES,
    ),
    Program(
        "grad of shard_map of checkpoint",
        jax.grad(over_line(jax.checkpoint(cube_sum), out=P())),
        (ROW,),
        (*pieces(ROW * 2), *pieces(3 * (ROW * 2) ** 2, COTANGENT)),
        modes=TWO_MODES,
    ),
    Program(
        "grad of shard_map of scan",
        jax.grad(lambda x: over_line(in_scan)(x).sum()),
        (ROW,),
        (*pieces(ROW * 2), *pieces(ROW * 4), *pieces(ROW * 0 + 1, COTANGENT), *pieces(ROW * 0 + 2, COTANGENT)),
        modes=TWO_MODES,
    ),
    Program(
        "vmap of shard_map",
        jax.vmap(over_line(double)),
        (np.stack([ROW, ROW * 4]),),
        tuple(
            Fired("s", np.stack([piece, piece * 4]), (batch(2, 0),), device=i, where={"x": i})
            for i, piece in enumerate(np.split(ROW * 2, 4))
        ),
        modes=TWO_MODES,
    ),
    Program("shard_map of vmap", over_line(jax.vmap(double)), (ROW,), pieces(ROW * 2, (batch(2, 0),)), modes=TWO_MODES),
    Program(
        "pmap",
        jax.pmap(double, axis_name="x"),
        (ROW[:4],),
        tuple(Fired("s", ROW[i] * 2, device=i, where={"x": i}) for i in range(4)),
        modes=TWO_MODES,
    ),
    Program(
        "pmap, axis without a name",
        jax.pmap(double),
        (ROW[:4],),
        tuple(Fired("s", ROW[i] * 2, device=i, where={"pmap": i}) for i in range(4)),
        modes=TWO_MODES,
    ),
    Program(
        "pmap of grad",
        jax.pmap(jax.grad(loss), axis_name="x"),
        (ROW[:4],),
        (
            *(Fired("s", ROW[i] * 2, device=i, where={"x": i}) for i in range(4)),
            *(Fired("s", ROW[i] * 4, COTANGENT, device=i, where={"x": i}) for i in range(4)),
        ),
        modes=TWO_MODES,
    ),
    *(
        Program(f"sharded jit, {spec}", double, (put(GRID, SQUARE, spec),), (Fired("s", GRID * 2),), modes=JIT_ONLY)
        for spec in SPECS
    ),
    Program(
        "sharded jit, explicit axes",
        double,
        (put(GRID, EXPLICIT, P("x", "y")),),
        (Fired("s", GRID * 2),),
        modes=JIT_ONLY,
    ),
    Program("sharded, eager", double, (put(GRID, SQUARE, P("x", "y")),), (Fired("s", GRID * 2),), modes=(EAGER,)),
    Program(
        "grad of sharded jit",
        jax.grad(loss),
        (put(GRID, SQUARE, P("x", "y")),),
        (Fired("s", GRID * 2), Fired("s", GRID * 4, COTANGENT)),
        modes=JIT_ONLY,
    ),
    Program(
        "scan of sharded jit",
        in_scan,
        (put(GRID, SQUARE, P("x")),),
        (Fired("s", GRID * 2), Fired("s", GRID * 4)),
        modes=JIT_ONLY,
    ),
    Program(
        "vmap of sharded jit",
        jax.vmap(double),
        (put(GRID, SQUARE, P("x", "y")),),
        (Fired("s", GRID * 2, (batch(4, 0),)),),
        modes=JIT_ONLY,
    ),
    Program(
        "shard_map, partly manual", partly(double), (put(GRID, SQUARE, P("x", "y")),), halves(GRID * 2), modes=JIT_ONLY
    ),
    Program(
        "grad of shard_map, partly manual",
        jax.grad(lambda x: (partly(double)(x) ** 2).sum()),
        (put(GRID, SQUARE, P("x", "y")),),
        (*halves(GRID * 2), *halves(GRID * 4, COTANGENT)),
        modes=JIT_ONLY,
    ),
    Program(
        "scan in shard_map, partly manual",
        partly(in_scan),
        (put(GRID, SQUARE, P("x", "y")),),
        (*halves(GRID * 2), *halves(GRID * 4)),
        modes=JIT_ONLY,
    ),
]
