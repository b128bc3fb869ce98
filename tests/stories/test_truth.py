"""What is on disk is true: a small net written in numpy, and gradients found another way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import tracerec
from tests.support import run_python

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, WIDTH, BATCH, STEPS = 3, 5, 4, 6


def parameters() -> Any:
    """Small integers over 8: sums of products are exact in float32, so numpy and XLA agree bit for bit."""
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.integers(-4, 5, (LAYERS, WIDTH, WIDTH)) / 8, jnp.float32),
        "b": jnp.asarray(rng.integers(-4, 5, (LAYERS, WIDTH)) / 8, jnp.float32),
    }


def batch(step: int) -> np.ndarray:
    """The input of a step."""
    return (np.random.default_rng(step + 1).integers(-4, 5, (BATCH, WIDTH)) / 8).astype(np.float32)


def forward(params: Any, x: Any, step: Any, offset: Any = None) -> Any:
    """Relu layers in a scan; an offset is added where the taps are, to find cotangents another way."""

    def layer(x: Any, inputs: Any) -> Any:
        number, p, shift = inputs
        h = jnp.maximum(x @ p["w"] + p["b"], 0.0)
        h = tracerec.tap(h + shift, "net/act", layer=number, step=step)
        return h, None

    zeros = jnp.zeros((LAYERS, BATCH, WIDTH)) if offset is None else offset
    out, _ = lax.scan(layer, x, (jnp.arange(LAYERS), params, zeros))
    return tracerec.tap((out * out).sum(), "loss", step=step)


def recorded(path: Path, **options: Any) -> Path:
    """Records STEPS gradient steps."""
    step_fn = jax.jit(jax.value_and_grad(forward))
    with tracerec.record(path, **options):
        for step in range(STEPS):
            step_fn(parameters(), batch(step), step)
    return path


def numpy_activations() -> np.ndarray:
    """The forward pass, (steps, layers, batch, width), in float64 numpy."""
    w, b = (np.asarray(parameters()[k], np.float64) for k in ("w", "b"))
    out = np.empty((STEPS, LAYERS, BATCH, WIDTH))
    for step in range(STEPS):
        x = batch(step).astype(np.float64)
        for layer in range(LAYERS):
            x = out[step, layer] = np.maximum(x @ w[layer] + b[layer], 0)
    return out


PLAIN_H5PY = """
import json, sys, h5py, numpy as np
if sys.argv[2] == "plugin":
    import hdf5plugin
with h5py.File(sys.argv[1]) as file:
    for group in file["streams"].values():
        site = json.loads(group.attrs["site"])
        if site["name"] == "net/act" and not site["transforms"]:
            assert group["data_0"].attrs["dtype"].decode() == "float32"
            np.savez(sys.argv[3], step=group["index"]["step"], layer=group["kwarg_0"][:], data=group["data_0"][:])
"""


@pytest.mark.parametrize(("compression", "library"), [("lz4", "plugin"), ("gzip", "none"), (None, "none")])
def test_plain_h5py_shows_the_numbers_that_numpy_computes(tmp_path: Path, compression: Any, library: str) -> None:
    """Without tracerec: the stream of primals equals a forward pass written in numpy, layer by layer."""
    path = recorded(tmp_path / "run.h5", compression=compression)
    done = run_python(PLAIN_H5PY, str(path), library, str(tmp_path / "read.npz"))
    assert done.returncode == 0, done.stderr
    found = np.full((STEPS, LAYERS, BATCH, WIDTH), np.nan)
    with np.load(tmp_path / "read.npz") as read:
        found[read["step"], read["layer"]] = read["data"]
    np.testing.assert_array_equal(found, numpy_activations())


def test_cotangents_are_the_gradients_with_respect_to_an_added_zero(tmp_path: Path) -> None:
    """jax.grad of the untapped function with respect to a zero added at the tap."""
    path = recorded(tmp_path / "run.h5")
    with tracerec.open(path) as trace:
        found = np.full((STEPS, LAYERS, BATCH, WIDTH), np.nan)
        for record in trace["net/act"].sel(transforms=("jvp", "transpose")):
            found[record.step, record.kwargs["layer"]] = record.value
        losses = trace["loss"].sel(transforms=()).to_numpy()
    with tracerec.disabled():
        zero = jnp.zeros((LAYERS, BATCH, WIDTH))
        by_offset = jax.grad(forward, argnums=3)
        for step in range(STEPS):
            expected = by_offset(parameters(), batch(step), step, zero)
            np.testing.assert_array_equal(found[step], np.asarray(expected))
    np.testing.assert_array_equal(losses, (numpy_activations()[:, -1] ** 2).sum((1, 2)).astype(np.float32))


def train(*, tapped: bool) -> tuple[list[bytes], bytes]:
    """A training run with dropout, bfloat16 and Adam; returns its losses and parameters as bytes."""

    def tap(value: Any, *args: Any, **kwargs: Any) -> Any:
        return tracerec.tap(value, *args, **kwargs) if tapped else value

    def loss_fn(params: Any, x: jax.Array, key: jax.Array, step: jax.Array) -> jax.Array:
        def layer(h: jax.Array, inputs: Any) -> Any:
            p, k = inputs
            h = jnp.tanh(h @ p["w"].astype(jnp.bfloat16) + p["b"].astype(jnp.bfloat16))
            h = tap(h, "h", step=step)
            h = jnp.where(jax.random.bernoulli(k, 0.9, h.shape), h, jnp.zeros_like(h))
            return h, None

        keys = tap(jax.random.split(key, LAYERS), "keys", step=step)
        h, _ = lax.scan(layer, x.astype(jnp.bfloat16), (params, keys))
        return tap((h.astype(jnp.float32) ** 2).mean(), "loss", step=step)

    optimizer = optax.adam(1e-2)

    @jax.jit
    def step_fn(params: Any, state: Any, x: jax.Array, step: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(7), step)
        loss, grads = jax.value_and_grad(loss_fn)(params, x, key, step)
        grads = tap(grads, "grads", step=step)
        updates, state = optimizer.update(grads, state, params)
        return tap(optax.apply_updates(params, updates), "params", step=step), state, loss

    params = parameters()
    state = optimizer.init(params)
    losses = []
    for step in range(30):
        params, state, loss = step_fn(params, state, batch(step), jnp.int32(step))
        losses.append(np.asarray(loss).tobytes())
    return losses, b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((params, state)))


def test_training_with_recording_is_bit_identical_to_training_without(tmp_path: Path) -> None:
    """Losses, parameters and optimizer state, each bit."""
    with jax.numpy_dtype_promotion("standard"):  # optax relies on it
        plain = train(tapped=False)
        with tracerec.record(tmp_path / "run.h5"):
            recorded_run = train(tapped=True)
    assert recorded_run == plain
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert [len(trace[name].sel(transforms=())) for name in ("h", "keys", "loss", "grads", "params")] == [
            30 * LAYERS, 30, 30, 30, 30,
        ]  # fmt: skip
        assert trace["loss"].sel(transforms=()).to_numpy().tobytes() == b"".join(plain[0])


NO_JAX = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib"):
            raise ImportError("no jax here")
sys.meta_path.insert(0, Refuse())
import tracerec
with tracerec.open(sys.argv[1]) as trace:
    tap = trace["net/act"].sel(transforms=())
    print(tap.to_numpy().astype("float64").sum(), len(list(trace.records())), len(trace.to_pandas()))
"""


def test_a_trace_is_read_where_jax_cannot_be_imported(tmp_path: Path) -> None:
    """A laptop with pandas reads what a cluster wrote."""
    done = run_python(NO_JAX, str(recorded(tmp_path / "run.h5")))
    assert done.returncode == 0, done.stderr
    total, records, rows = done.stdout.split()
    assert float(total) == numpy_activations().sum()
    assert int(records) == int(rows) == STEPS * (2 * LAYERS + 2)


def test_importing_tracerec_imports_neither_jax_nor_anything_large() -> None:
    """The names are loaded when they are used."""
    done = run_python("import sys, tracerec; print('\\n'.join(sys.modules))")
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "tracerec" in loaded
    assert not loaded & {"jax", "jaxlib", "numpy", "h5py", "pyarrow", "pandas", "rich", "typer"}, done.stderr


def test_every_public_name_is_there_and_no_other() -> None:
    """The lazy names, the list of names and what type checkers see are one list."""
    assert tracerec.__all__ == sorted(tracerec.__all__, key=lambda n: (n.lower() == n, n))
    for name in tracerec.__all__:
        assert getattr(tracerec, name) is not None
    assert set(dir(tracerec)) == {*tracerec.__all__, "__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tracerec.nothing
    assert "jax" in sys.modules
