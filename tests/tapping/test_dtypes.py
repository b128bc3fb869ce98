"""Every dtype that JAX has, bit for bit: tapped eagerly and jitted, through the file and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import tracerec
from tests.support import records_of, run_python
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from pathlib import Path

WIDE = {"int64", "uint64", "float64", "complex128"}


def every_bit_pattern(name: str, count: int = 512) -> np.ndarray:
    """Random bits, and zeros and ones: NaN payloads, -0.0, subnormals, all that there is."""
    dtype = dtypes.from_name(name)
    rng = np.random.default_rng(1)
    if name == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if name.startswith(("int2", "uint2", "int4", "uint4")):
        low, high = ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max
        return rng.integers(int(low), int(high) + 1, count).astype(dtype)
    bits = rng.integers(0, 256, (count, dtype.itemsize), np.uint8)
    if name == "float4_e2m1fn":
        bits &= 15
    bits[0], bits[1] = 0, 255 if name != "float4_e2m1fn" else 15
    return bits.view(dtype).reshape(count)


SMALL = [name for name in dtypes.NAMES if name not in WIDE]


@pytest.mark.parametrize("name", SMALL)
def test_bits_survive_the_callback_and_the_file(name: str, tmp_path: Path) -> None:
    """Eager equals jitted equals what was put in, in dtype, shape and bits."""
    array = every_bit_pattern(name)
    with tracerec.record(tmp_path / "run.h5"):
        tracerec.tap(jnp.asarray(array), "eager")
        jax.jit(lambda x: tracerec.tap(x, "jit"))(array)
    with tracerec.open(tmp_path / "run.h5") as trace:
        for tap in ("eager", "jit"):
            back = trace[tap].to_numpy()
            assert back.dtype == array.dtype
            assert back[0].tobytes() == array.tobytes()
        eager, jitted = (trace[tap][0].site for tap in ("eager", "jit"))
    assert eager.to_json() | {"name": "jit"} == jitted.to_json()


X64 = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np, tracerec
rng = np.random.default_rng(1)
arrays = {n: rng.integers(0, 256, (64, np.dtype(n).itemsize), np.uint8).view(n).reshape(64)
          for n in ("int64", "uint64", "float64", "complex128")}
with tracerec.record(sys.argv[1]):
    for name, array in arrays.items():
        tracerec.tap(jax.numpy.asarray(array), "eager/" + name)
        jax.jit(lambda x: tracerec.tap(x, "jit/" + name, step=2**40, lr=0.1))(array)
with tracerec.open(sys.argv[1]) as trace:
    for name, array in arrays.items():
        for way in ("eager/", "jit/"):
            back = trace[way + name].to_numpy()
            assert (back.dtype, back.tobytes()) == (array.dtype, array.tobytes()), (way, name)
        assert trace["jit/" + name][0].kwargs == {"step": 2**40, "lr": 0.1}
print("equal")
"""


def test_64_bit_types_with_x64_on(tmp_path: Path) -> None:
    """In a process of its own: the switch is global."""
    done = run_python(X64, str(tmp_path / "run.h5"), JAX_NUMPY_DTYPE_PROMOTION="standard")
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 0, 2), (1, 1, 1), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "bool", "int4"])
def test_any_shape(shape: tuple[int, ...], name: str, tmp_path: Path) -> None:
    """Scalars and empty arrays are arrays like others."""
    array = np.resize(every_bit_pattern(name), shape) if np.prod(shape) else np.empty(shape, dtypes.from_name(name))
    with tracerec.record(tmp_path / "run.h5"):
        for function in (lambda x: tracerec.tap(x, "t"), jax.jit(lambda x: tracerec.tap(x, "t"))):
            function(jnp.asarray(array))
    with tracerec.open(tmp_path / "run.h5") as trace:
        back = trace["t"].to_numpy()
    assert (back.shape, back.dtype) == ((2, *shape), array.dtype)
    assert back.tobytes() == array.tobytes() * 2


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_every_implementation(impl: str, tmp_path: Path) -> None:
    """As key data with the implementation's name; eager equals jitted, batched too."""
    keys = jax.random.split(jax.random.key(5, impl=impl), 3)
    with tracerec.record(tmp_path / "run.h5"):
        tracerec.tap({"k": keys}, "eager")
        jax.jit(lambda k: tracerec.tap({"k": k}, "jit"))(keys)
        jax.jit(jax.vmap(lambda k: tracerec.tap(k, "vmap")))(keys)
    data = np.asarray(jax.random.key_data(keys))
    with tracerec.open(tmp_path / "run.h5") as trace:
        for tap in ("eager", "jit", "vmap"):
            np.testing.assert_array_equal(trace[tap].to_numpy()[0], data, strict=True)
            (leaf,) = trace[tap][0].site.leaves
            assert leaf.key_impl == impl


def test_float0_is_never_data() -> None:
    """Tangents and cotangents of integers are float0: there is nothing to record of them."""

    def function(x: Any, n: Any) -> Any:
        out = tracerec.tap({"x": x, "n": n}, "t")
        return out["x"] * 2.0

    float0 = np.zeros((), jax.dtypes.float0)
    records = records_of(lambda: jax.jvp(function, (1.0, 3), (1.0, float0)))
    assert [[leaf.dtype for leaf in r.site.leaves] for r in records] == [["int32", "float32"], ["float32"]]
    (only,) = records_of(lambda: tracerec.tap({"a": np.zeros(2, jax.dtypes.float0), "b": jnp.ones(1)}, "t"))
    assert [leaf.path for leaf in only.site.leaves] == ["['b']"]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x.T,
        lambda x: jnp.broadcast_to(x[:1], (5, 6)),
        lambda x: x[1:3, 2:5],
        lambda x: x.reshape(3, 8),
    ],
    ids=["every second row", "reversed columns", "transposed", "broadcast", "slice", "reshaped"],
)
def test_strided_and_transposed_views(view: Any) -> None:
    """The record is the value in C order, whatever layout XLA chose, also in a scan."""
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)

    def scanned(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c, tracerec.tap(view(c), "t")), x, None, length=2)[1]

    for function, count in ((jax.jit(lambda x: tracerec.tap(view(x), "t")), 1), (jax.jit(scanned), 2)):
        records = records_of(function, whole)
        assert len(records) == count
        for record in records:
            np.testing.assert_array_equal(record.value, np.asarray(view(jnp.asarray(whole))), strict=True)
