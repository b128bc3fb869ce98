"""Trains a small transformer on handwritten digits and records what happens inside it.

    python examples/digits.py                  writes run.h5
    tracerec inspect run.h5                    looks at it
    python examples/digits.py --no-record      the same training, bit for bit, without a recording

The data are scikit-learn's 1797 images of 8 by 8 pixels; the package ships them. A picture is read as a
sequence of eight rows. Parameters are float32, activations bfloat16.

The lines that matter are the calls of `tracerec.tap`. Each is the identity, inside jit, scan and grad alike,
and each puts a record into the file every time it is reached:

    encoder/act        the output of every layer in every step and, since the value goes on, its cotangent
    encoder/dropout    the random key of every layer
    loss, grads, params    once a step; the last two are pytrees, with one array a leaf in the file
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import tracerec

LAYERS, WIDTH, HEADS, HIDDEN, CLASSES = 3, 32, 4, 64, 10
BATCH, DROPOUT, PEAK_LEARNING_RATE = 32, 0.1, 4e-3
HELD_OUT = 360

type_of_activations = jnp.bfloat16


# The data ------------------------------------------------------------------------------------------------


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns training images (1437, 8, 8) and labels, then the held-out ones; pixels are in -1 .. 1."""
    pixels, targets = (np.asarray(array) for array in load_digits(return_X_y=True))
    order = np.random.default_rng(0).permutation(len(targets))
    images = (pixels[order].reshape(-1, 8, 8) / 8.0 - 1.0).astype(np.float32)
    labels = targets[order].astype(np.int32)
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


# The model -----------------------------------------------------------------------------------------------


def init(key: jax.Array) -> dict[str, Any]:
    """Returns the parameters, float32; those of the layers are stacked, the layer first."""

    def matrix(key: jax.Array, *shape: int) -> jax.Array:
        return jax.random.normal(key, shape, jnp.float32) * shape[-2] ** -0.5

    keys = iter(jax.random.split(key, 7))
    return {
        "embed": matrix(next(keys), 8, WIDTH),
        "position": 0.5 * matrix(next(keys), 8, WIDTH),
        "layers": {
            "norm": jnp.ones((LAYERS, 2, WIDTH), jnp.float32),
            "qkv": matrix(next(keys), LAYERS, WIDTH, 3 * WIDTH),
            "out": matrix(next(keys), LAYERS, WIDTH, WIDTH),
            "up": matrix(next(keys), LAYERS, WIDTH, HIDDEN),
            "down": matrix(next(keys), LAYERS, HIDDEN, WIDTH),
        },
        "head": {"w": matrix(next(keys), WIDTH, CLASSES), "b": jnp.zeros((CLASSES,), jnp.float32)},
    }


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divides by the root mean square over the width, computed in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype) * scale


def attention(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    """Self-attention over the eight rows."""
    q, k, v = jnp.split((x @ p["qkv"]).reshape(*x.shape[:-1], HEADS, -1), 3, axis=-1)
    return jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ p["out"]


def dropout(x: jax.Array, key: jax.Array | None) -> jax.Array:
    """Zeroes a tenth of the values and scales up the rest; without a key, returns the input."""
    if key is None:
        return x
    keep = jax.random.bernoulli(key, 1 - DROPOUT, x.shape)
    return jnp.where(keep, x / (1 - DROPOUT), jnp.zeros_like(x))


def logits(params: dict[str, Any], images: jax.Array, step: jax.Array | int, key: jax.Array | None) -> jax.Array:
    """Returns one float32 logit a class, (batch, 10); a key turns dropout on."""
    params = jax.tree.map(lambda leaf: leaf.astype(type_of_activations), params)

    def layer(x: jax.Array, inputs: tuple[jax.Array, dict[str, jax.Array]]) -> tuple[jax.Array, None]:
        number, p = inputs
        layer_key = None
        if key is not None:
            layer_key = tracerec.tap(jax.random.fold_in(key, number), "dropout", layer=number)
        x = x + attention(normalize(x, p["norm"][0]), p)
        x = x + dropout(jax.nn.gelu(normalize(x, p["norm"][1]) @ p["up"]) @ p["down"], layer_key)
        # One record a layer and step. Going on with what tap returns makes its cotangent a record, too.
        return tracerec.tap(x, "act", layer=number), None

    x = images.astype(type_of_activations) @ params["embed"] + params["position"]
    with tracerec.scope("encoder", step=step):
        x, _ = jax.lax.scan(layer, x, (jnp.arange(LAYERS), params["layers"]))
    return (x.mean(axis=1) @ params["head"]["w"] + params["head"]["b"]).astype(jnp.float32)


# The training --------------------------------------------------------------------------------------------


def make_train_step(optimizer: optax.GradientTransformation) -> Any:
    """Returns the jitted step: (params, state, images, labels, step) to (params, state, loss)."""

    @jax.jit
    def train_step(params: Any, state: Any, images: jax.Array, labels: jax.Array, step: jax.Array) -> Any:
        def loss_of(params: Any) -> jax.Array:
            key = jax.random.fold_in(jax.random.key(1), step)
            scores = logits(params, images, step, key)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        tracerec.tap(loss, "loss", step=step)
        grads = tracerec.tap(grads, "grads", step=step)
        updates, state = optimizer.update(grads, state, params)
        params = tracerec.tap(optax.apply_updates(params, updates), "params", step=step)
        return params, state, loss

    return train_step


@jax.jit
def accuracy(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the share of images whose largest logit is the label's."""
    with tracerec.disabled():
        scores = logits(params, images, 0, None)
    return (scores.argmax(axis=-1) == labels).mean()


def train(steps: int) -> float:
    """Trains for some steps and returns the accuracy on the held-out digits."""
    images, labels, held_out_images, held_out_labels = load()
    schedule = optax.warmup_cosine_decay_schedule(0.0, PEAK_LEARNING_RATE, steps // 10, steps)
    optimizer = optax.adamw(schedule, weight_decay=1e-2)
    params = init(jax.random.key(0))
    state = optimizer.init(params)
    train_step = make_train_step(optimizer)
    order = np.random.default_rng(1)
    for step in range(steps):
        batch = order.choice(len(labels), BATCH, replace=False)
        params, state, loss = train_step(params, state, images[batch], labels[batch], jnp.int32(step))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}   loss {loss:.4f}", flush=True)
    return float(accuracy(params, held_out_images, held_out_labels))


def main() -> None:
    """Reads the command line, trains, prints the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small transformer on digits and record it.")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--out", default="run.h5", help="the recording (default: %(default)s)")
    parser.add_argument("--no-record", action="store_true", help="train without recording")
    options = parser.parse_args()

    settings = {"layers": LAYERS, "width": WIDTH, "batch": BATCH, "learning_rate": PEAK_LEARNING_RATE}
    recording = contextlib.nullcontext()
    if not options.no_record:
        recording = tracerec.record(options.out, mode="w", metadata=settings)
    begun = time.perf_counter()
    with recording:
        share = train(options.steps)
    taken = time.perf_counter() - begun
    print(f"{options.steps} steps in {taken:.1f} s; {share:.1%} of {HELD_OUT} held-out digits are right")


if __name__ == "__main__":
    main()
