"""The example that `make demo` runs: it learns, and what it records is what it computed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracerec

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, LAYERS, BATCH, ROWS, WIDTH = 60, 3, 32, 8, 32


def script(name: str, *arguments: str, cwd: Path) -> str:
    """Returns what an example prints, run as its reader would run it: without the tests' settings of JAX."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS" and not k.startswith("JAX_")}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short recorded training: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("digits")
    return script("digits.py", "--steps", str(STEPS), cwd=folder), folder


@pytest.fixture
def trace(run):
    """The recording of the short training."""
    with tracerec.open(str(run[1] / "run.h5")) as trace:
        yield trace


def without_time(printed: str) -> str:
    """Returns what was printed, less the seconds it took."""
    return re.sub(r"in [\d.]+ s", "", printed)


@pytest.mark.slow
def test_it_learns(tmp_path):
    """The whole training gets more than 95 % of the held-out digits right, while recording."""
    printed = script("digits.py", cwd=tmp_path)
    (share,) = re.findall(r"([\d.]+)% of 360 held-out digits", printed)
    assert float(share) > 95
    assert (tmp_path / "run.h5").stat().st_size < 100e6


def test_recording_changes_nothing(run, tmp_path):
    """Without a recording, the same losses and the same accuracy are printed, and no file is written."""
    printed = script("digits.py", "--steps", str(STEPS), "--no-record", cwd=tmp_path)
    assert without_time(printed) == without_time(run[0])
    assert list(tmp_path.iterdir()) == []


def test_the_recorded_losses_are_those_printed(run, trace):
    """One loss a step, in order; the file's agree with the text to its four digits."""
    losses = trace["loss"].to_numpy()
    assert losses.shape == (STEPS,)
    shown = re.findall(r"step +(\d+) +loss ([\d.]+)", run[0])
    assert [int(step) for step, _ in shown] == [0, 50, STEPS - 1]
    for step, loss in shown:
        assert f"{losses[int(step)]:.4f}" == loss


def test_every_layer_of_every_step_is_recorded(trace):
    """Activations and cotangents, bfloat16, once each a layer and step; cotangents from the last layer down."""
    for transforms, layers in (((), [0, 1, 2]), (("jvp", "transpose"), [2, 1, 0])):
        act = trace["encoder/act"].sel(transforms=transforms)
        assert act.to_numpy().shape == (STEPS * LAYERS, BATCH, ROWS, WIDTH)
        assert act.to_numpy().dtype.name == "bfloat16"
        records = list(act)
        assert [r.step for r in records] == list(np.repeat(np.arange(STEPS), LAYERS))
        assert [r.kwargs["layer"] for r in records] == layers * STEPS


def test_gradients_and_parameters_are_whole_trees(trace):
    """Each record is the pytree that was tapped, and the parameters moved against the gradient's last bias."""
    grads, params = (list(trace[name]) for name in ("grads", "params"))
    assert len(grads) == len(params) == STEPS
    for record in (grads[-1], params[-1]):
        assert set(record.value) == {"embed", "position", "layers", "head"}
        assert record.value["layers"]["qkv"].shape == (LAYERS, WIDTH, 3 * WIDTH)
        assert record.value["head"]["b"].dtype == np.float32
    # Adam's second step, the first with a learning rate above 0, follows the sign of steady gradients.
    first, second = (record.value["head"]["b"] for record in grads[:2])
    steady = (np.sign(first) == np.sign(second)) & (np.minimum(abs(first), abs(second)) > 1e-3)
    moved = params[1].value["head"]["b"] - params[0].value["head"]["b"]
    assert steady.sum() >= 3
    assert (np.sign(moved[steady]) == -np.sign(first[steady])).all()


def test_every_layer_has_its_own_dropout_key(trace):
    """The keys are recorded as key data, all different."""
    keys = trace["encoder/dropout"].to_numpy()
    assert keys.dtype == np.uint32
    assert len({key.tobytes() for key in keys}) == STEPS * LAYERS


def test_the_read_back_prints_tables(run, trace):
    """``examples/readback.py`` prints the means that numpy computes from the arrays."""
    printed = script("readback.py", "run.h5", cwd=run[1])
    losses = trace["loss"].to_numpy().astype(np.float64)
    act = trace["encoder/act"].sel(transforms=(), layer=2, step=slice(0, 50)).to_numpy().astype(np.float64)
    for expected in (losses[:50].mean(), losses[50:].mean(), act.std(axis=(1, 2, 3)).mean()):
        assert f"{expected:.4f}".rstrip("0") in printed
    assert "['layers']['qkv']" in printed
