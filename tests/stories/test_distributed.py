"""A distributed run: two processes of JAX with two devices each, each with its own recording, read as one trace."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

import tracerec
from tests.support import ROOT
from tracerec.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = pytest.mark.slow

STEPS = 4
SHAPE = (8, 4096)

PROGRAM = """
import faulthandler, os, signal, sys

faulthandler.dump_traceback_later(100, exit=True)
number, port, folder, fails = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    f"127.0.0.1:{port}", num_processes=2, process_id=number, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=5
)
import tracerec

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
specs = [P("x", "y"), P("y"), P(None, "x"), P()]


def loss(x, step):
    x = tracerec.tap(x * 2.0, "act", step=step, shards="local")
    few = tracerec.tap(x[:2, :3] + 1.0, "few", step=step)
    return (x * x).mean() + 0.0 * few.sum()


@jax.jit
def train_step(x, step):
    value, grads = jax.value_and_grad(loss)(x, step)
    return tracerec.tap(value, "loss", step=step), grads


@jax.jit
def on_each(x, step):
    def body(x):
        return tracerec.tap(x + 1.0, "own", step=step)

    return jax.shard_map(body, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))(x)


values = []
with tracerec.record(f"{folder}/run.{number}.h5", metadata={"process": number}) as recording:
    for step, whole in enumerate(np.load(f"{folder}/wholes.npy")):
        if fails != "no" and number == 1 and step == 2:
            recording.flush()
            if fails == "raises":
                raise ValueError("broken batch")
            os.kill(os.getpid(), signal.SIGKILL)
        sharding = NamedSharding(mesh, specs[step])
        x = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
        value, grads = train_step(x, step)
        values.append(np.asarray(value.addressable_data(0)))
        jax.block_until_ready((grads, on_each(x, step)))
        recording.flush()
np.save(f"{folder}/losses.{number}.npy", values)
jax.distributed.shutdown()
"""


class Ended(NamedTuple):
    """What became of one process."""

    status: int
    said: str


@contextlib.contextmanager
def started(folder: Path, fails: str) -> Generator[list[subprocess.Popen[str]]]:
    """Starts both processes; what still runs at the end is killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    processes: list[subprocess.Popen[str]] = []
    try:
        for number in range(2):
            command = [sys.executable, "-c", PROGRAM, str(number), port, str(folder), fails]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run(folder: Path, fails: str = "no") -> tuple[np.ndarray, list[Ended]]:
    """Runs the program in two processes; returns what was sharded, and how they ended."""
    wholes = np.random.default_rng(0).standard_normal((STEPS, *SHAPE)).astype(np.float32)
    np.save(folder / "wholes.npy", wholes)
    with started(folder, fails) as processes:
        said = [process.communicate(timeout=110)[0] for process in processes]
        return wholes, [Ended(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def test_a_global_array_is_one(tmp_path: Path) -> None:
    """Every sharding, primal and cotangent, what is gathered and what each device has: bit for bit, also merged."""
    wholes, ended = run(tmp_path)
    assert [each.status for each in ended] == [0, 0], ended
    losses = [np.load(tmp_path / f"losses.{number}.npy") for number in range(2)]
    assert losses[0].tobytes() == losses[1].tobytes()
    done = tracerec.merge(tmp_path / "run.*.h5", tmp_path / "all.h5")
    assert done.losses == ()
    assert tracerec.verify(tmp_path / "all.h5").ok
    for path in (tmp_path / "run.*.h5", tmp_path / "all.h5"):
        with tracerec.open(path) as trace:
            assert trace.processes == (0, 1)
            assert trace.info.clean
            assert trace.info.notes == ()
            assert [info.metadata["process"] for info in trace.info.processes] == [0, 1]
            assert sorted(device["process"] for device in trace.info.devices) == [0, 0, 1, 1]
            act = trace["act"]
            primal = act.sel(transforms=()).to_numpy(assemble=True)
            cotangent = act.sel(transforms=("jvp", "transpose")).to_numpy(assemble=True)
            few = trace["few"].sel(transforms=()).to_numpy()
            loss = trace["loss"].to_numpy()
            own = [(r.step, int(r.row["shard"]), r.value) for r in trace["own"]]
            assert {r.process for r in trace["act"]} == {r.process for r in trace["own"]} == {0, 1}
            steps = [r.step for r in trace.records() if r.tap == "loss"]
        np.testing.assert_array_equal(primal, wholes * 2, strict=True)
        np.testing.assert_allclose(cotangent, wholes * np.float32(4 / np.prod(SHAPE)), rtol=1e-6)
        np.testing.assert_array_equal(few, wholes[:, :2, :3] * 2 + 1, strict=True)
        assert loss.tobytes() == losses[0].tobytes()
        assert steps == [*range(STEPS)]
        assert sorted((step, shard) for step, shard, _ in own) == [(s, n) for s in range(STEPS) for n in range(4)]
        for step, shard, value in own:
            rows, columns = 4 * (shard // 2), 2048 * (shard % 2)
            np.testing.assert_array_equal(value, wholes[step][rows : rows + 4, columns : columns + 2048] + 1)


@pytest.mark.parametrize("fails", ["raises", "is killed"])
def test_a_process_that_fails(tmp_path: Path, fails: str) -> None:
    """What both had flushed before is whole; the trace says which process did not end, and which shard is missing."""
    wholes, ended = run(tmp_path, fails)
    assert ended[1].status != 0
    if fails == "raises":
        assert "ValueError: broken batch" in ended[1].said
    else:
        assert ended[1].status == -signal.SIGKILL
    # JAX ends the other one, or raises an error in it: it waits for what never comes.
    assert ended[0].status != 0
    with tracerec.open(tmp_path / "run.*.h5") as trace:
        states = [info.state for info in trace.info.processes]
        assert states[1] == ("clean" if fails == "raises" else "killed")
        unclean = [number for number, state in enumerate(states) if state != "clean"]
        assert [note.split(":")[0] for note in trace.info.notes] == [f"run.{number}.h5.live" for number in unclean]
        act = trace["act"].sel(transforms=())
        np.testing.assert_array_equal(act.sel(step=[0, 1]).to_numpy(assemble=True), wholes[:2] * 2, strict=True)
        assert {(r.process, r.step) for r in act} >= {(p, s) for p in (0, 1) for s in (0, 1)}
        assert trace.availability("act", 3) == "never"
        third = [r for r in act if r.step == 2]
        assert {r.process for r in third} <= {0}
        if third:
            with pytest.raises(SelectionError, match="no shard holds element"):
                act.to_numpy(assemble=True)
    done = tracerec.merge(tmp_path / "run.*.h5", tmp_path / "all.h5")
    assert len(done.losses) == len(unclean)
