from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracerec
from tests.support import ROOT, run_python
from tracerec import sealing
from tracerec.errors import (
    RecordingClosed,
    RecordingError,
    RecordingExists,
    RecordingIncomplete,
)

if TYPE_CHECKING:
    from pathlib import Path


@jax.jit
def train_step(x: jax.Array, step: Any) -> jax.Array:
    """A step with two taps."""
    y = tracerec.tap(x * 2, "double", step=step)
    return tracerec.tap({"sum": y.sum(), "bf16": y.astype(jnp.bfloat16)}, "out", step=step, phase="train")["sum"]


def test_a_recording_becomes_one_file_with_every_record(tmp_path: Path) -> None:
    """While it runs there is a live folder; afterwards the file alone, with values bit for bit."""
    path = tmp_path / "run.h5"
    with tracerec.record(path, metadata={"seed": 3}) as rec:
        for i in range(50):
            train_step(jnp.full(4, float(i)), i)
        rec.flush()
        assert rec.records == 100
        assert [p.name for p in tmp_path.iterdir()] == ["run.h5.live"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    assert rec.closed
    with tracerec.open(path) as trace:
        assert list(trace.taps) == ["double", "out"]
        x = np.arange(50, dtype=np.float32).repeat(4).reshape(50, 4)
        np.testing.assert_array_equal(trace["double"].to_numpy(), x * 2, strict=True)
        bf16 = trace["out"].leaf("['bf16']").to_numpy()
        assert bf16.dtype == jnp.bfloat16
        np.testing.assert_array_equal(bf16.astype(np.float32), x * 2)
        np.testing.assert_array_equal(trace["out"].leaf("['sum']").to_numpy(), x[:, 0] * 8)
        assert [r.step for r in trace["double"]] == list(range(50))
        assert trace["out"][7].kwargs == {"step": 7, "phase": "train"}
        info = trace.info
    assert info.clean
    assert info.records == 100
    assert info.metadata == {"seed": 3}
    assert info.versions["jax"] == jax.__version__
    assert info.versions["tracerec"] == tracerec.__version__
    assert [d["id"] for d in info.devices] == [d.id for d in jax.devices()]
    assert info.pid == os.getpid()
    assert info.ended is not None
    assert info.started < info.ended


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip", None])
def test_every_compression_reads_back(tmp_path: Path, compression: Any) -> None:
    """The values are those that were tapped."""
    with tracerec.record(tmp_path / "run.h5", compression=compression):
        tracerec.tap(jnp.arange(1000), "x")
    with tracerec.open(tmp_path / "run.h5") as trace:
        np.testing.assert_array_equal(trace["x"].to_numpy(), np.arange(1000, dtype=np.int32)[None], strict=True)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}])
def test_an_arrow_recording_is_a_folder_that_pyarrow_reads(tmp_path: Path, options: dict[str, Any]) -> None:
    """The same records, in the other format; mode="w" deletes the folder."""
    import pyarrow.ipc

    path = tmp_path / "run.arrow"
    for _ in range(2):
        with tracerec.record(path, mode="w", **options):
            for i in range(20):
                train_step(jnp.full(4, float(i)), i)
    assert [p.name for p in tmp_path.iterdir()] == ["run.arrow"]
    with tracerec.open(path) as trace:
        assert list(trace.taps) == ["double", "out"]
        x = np.arange(20, dtype=np.float32).repeat(4).reshape(20, 4)
        np.testing.assert_array_equal(trace["double"].to_numpy(), x * 2, strict=True)
        assert trace.info.clean
    table = pyarrow.ipc.open_file(path / "streams.arrow").read_all()
    assert table.num_rows == 2


def test_an_existing_recording_is_refused_and_overwritten_only_when_told(tmp_path: Path) -> None:
    """Neither the file nor a running recording is ever truncated by accident."""
    path = tmp_path / "run.h5"
    rec = tracerec.record(path)
    for mode in ("x", "w"):
        with pytest.raises(RecordingExists, match=r"run\.h5 is being recorded to: .*live is in use; choose another"):
            tracerec.record(path, mode=mode)
    tracerec.tap(jnp.zeros(1), "first")
    rec.close()
    before = path.read_bytes()
    with pytest.raises(RecordingExists, match=r"run\.h5 exists: choose another path, mode='a' to continue"):
        tracerec.record(path)
    assert path.read_bytes() == before
    with tracerec.record(path, mode="w"):
        tracerec.tap(jnp.zeros(1), "second")
    with tracerec.open(path) as trace:
        assert list(trace.taps) == ["second"]


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("run.txt", {}, r"unknown suffix '\.txt'; name it something\.h5 or something\.arrow"),
        ("run.arrow", {"compression": "gzip"}, "compression='gzip'; use one of 'lz4', 'zstd', None"),
        ("run.h5", {"mode": "r"}, "mode='r'; use one of 'x', 'w'"),
        ("run.h5", {"metadata": {"a": object()}}, "metadata must be a mapping of values that JSON can hold"),
        ("run.h5", {"metadata": [1]}, "metadata must be a mapping"),
        ("run.h5", {"compression": "foo"}, "compression='foo'; use one of 'lz4', 'zstd', 'gzip', None"),
        ("run.h5", {"on_full": "wait"}, "on_full='wait'; use one of"),
        ("x" * 300 + ".h5", {}, "cannot be recorded to: .*File name too long"),
        ("file/run.h5", {}, "cannot be recorded to"),
    ],
)
def test_what_cannot_be_recorded_to_is_said_before_the_training_starts(
    tmp_path: Path, path: str, options: dict[str, Any], message: str
) -> None:
    """One clear error, and nothing is left listening."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match=message):
        tracerec.record(tmp_path / path, **options)
    assert not tracerec.recording.outfeed.listening()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_close_twice_is_once_and_flush_after_close_is_an_error(tmp_path: Path) -> None:
    """Taps after close are not recorded."""
    rec = tracerec.record(tmp_path / "run.h5")
    tracerec.tap(jnp.zeros(1), "in")
    rec.close()
    rec.close()
    tracerec.tap(jnp.zeros(1), "out")
    with pytest.raises(RecordingClosed, match="flush after close"):
        rec.flush()
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert list(trace.taps) == ["in"]


def test_two_recordings_at_once_each_hold_everything(tmp_path: Path) -> None:
    """They may overlap in any way."""
    with tracerec.record(tmp_path / "a.h5"):
        tracerec.tap(jnp.zeros(1), "one")
        second = tracerec.record(tmp_path / "b.h5")
        tracerec.tap(jnp.zeros(1), "two")
    tracerec.tap(jnp.zeros(1), "three")
    second.close()
    taps = []
    for name in ("a.h5", "b.h5"):
        with tracerec.open(tmp_path / name) as trace:
            taps.append(list(trace.taps))
    assert taps == [["one", "two"], ["two", "three"]]


def test_an_exception_inside_the_context_still_seals(tmp_path: Path) -> None:
    """The user's exception comes out, the records are there."""
    with pytest.raises(ZeroDivisionError), tracerec.record(tmp_path / "run.h5"):  # noqa: PT012
        tracerec.tap(jnp.zeros(1), "x")
        raise ZeroDivisionError
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert len(trace["x"]) == 1


ENDINGS = {
    "end of script": "",
    "sys.exit": "import sys; sys.exit(3)",
    "exception": "raise ValueError('boom')",
    "thread still in a step": "import threading; threading.Thread(target=train).start()",
}

PROGRAM = """
import sys, jax, jax.numpy as jnp, tracerec
rec = tracerec.record(sys.argv[1])
@jax.jit
def step(x, i):
    return tracerec.tap(x + i, "x", step=i)
def train():
    for i in range(20):
        step(jnp.zeros(3), i)
train()
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_without_a_main_guard_that_never_closes_has_every_record(tmp_path: Path, ending: str) -> None:
    """Closing happens at exit, whatever the exit."""
    done = run_python(PROGRAM + ENDINGS[ending], str(tmp_path / "run.h5"))
    expected_status = {"sys.exit": 3, "exception": 1}.get(ending, 0)
    assert done.returncode == expected_status, done.stderr
    with tracerec.open(tmp_path / "run.h5") as trace:
        steps = [r.step for r in trace["x"]]
        assert sorted(steps) == sorted([*range(20)] * (2 if "thread" in ending else 1))
        assert trace.info.clean


KILLED = """
import os, sys, jax, jax.numpy as jnp, tracerec
rec = tracerec.record(sys.argv[1], metadata={"name": "killed"})
step = jax.jit(lambda x, i: tracerec.tap({"v": x + i, "key": jax.random.key(3), "ok": x < 1}, "x", step=i))
for i in range(30):
    step(jnp.zeros(3, jnp.bfloat16), i)
rec.flush()
print("flushed", flush=True)
import time; time.sleep(600)
"""


def test_a_killed_run_is_readable_up_to_its_last_flush(tmp_path: Path) -> None:
    """SIGKILL leaves the journal; every verb opens it under the recording's own path, and says what it is."""
    path = tmp_path / "run.h5"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    with tracerec.open(path) as trace:
        assert not trace.info.clean
        assert trace.info.metadata == {"name": "killed"}
        values = trace["x"].leaf("['v']").to_numpy()
        assert values.dtype == jnp.bfloat16
        np.testing.assert_array_equal(values.astype(np.float32)[:, 0], np.arange(30))
        record = trace["x"][29]
        assert record.value["ok"].tolist() == [True, True, True]
        np.testing.assert_array_equal(record.value["key"], jax.random.key_data(jax.random.key(3)))
        assert "key_impl" in json.dumps(record.site.to_json())
    inspected = subprocess.run(
        [sys.executable, "-m", "tracerec", "inspect", str(path)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert inspected.returncode == 0, inspected.stderr
    assert "did not end cleanly" in inspected.stdout
    sealing.seal(sealing.Order(path.with_name("run.h5.live"), path))
    with tracerec.open(path) as trace:
        assert not trace.info.clean
        np.testing.assert_array_equal(trace["x"].leaf("['v']").to_numpy().astype(np.float32)[:, 0], np.arange(30))


def test_a_write_that_fails_never_reaches_the_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on to its end; close says what was lost, and what was written before is there."""
    rec = tracerec.record(tmp_path / "run.h5")
    train_step(jnp.ones(2), 0)
    rec.flush()

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    results = [float(train_step(jnp.ones(2), i)) for i in range(1, 5)]
    assert results == [4.0] * 4
    jax.effects_barrier()
    with pytest.raises(RecordingIncomplete, match=r"8 of 10 records were not recorded: OSError.*No space left") as e:
        rec.close()
    assert e.value.lost == {"double": 4, "out": 4}
    monkeypatch.undo()
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert [r.step for r in trace["double"]] == [0]
        assert not trace.info.clean
        assert trace.info.dropped == {"double": 4, "out": 4}
        assert "recording stopped early: OSError: [Errno 28] No space left on device" in trace.info.notes


def test_dropped_records_are_counted_in_the_file_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No record goes missing without a count and a message."""
    rec = tracerec.record(tmp_path / "run.h5", max_queue_bytes=1000, block_timeout=0)
    monkey = rec.recorder.consume

    def slow(batch: Any) -> None:
        time.sleep(0.2)
        monkey(batch)

    rec.recorder.consume = slow  # type: ignore[method-assign]
    for i in range(20):
        tracerec.tap(jnp.full(100, i), "x", step=i)
    rec.close()
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.dropped["x"] + len(trace["x"]) == 20
        assert 0 < trace.info.dropped["x"] < 20
        assert trace.info.high_water_bytes <= 1000
    assert f"{trace.info.dropped['x']} records were dropped because the queue was full or broken: x" in caplog.text


def test_bounds_of_a_recording_end_with_it(tmp_path: Path) -> None:
    """A function's records afterwards are not dropped for want of room in a queue that a recording had made small."""
    with tracerec.record(tmp_path / "run.h5", max_queue_bytes=1, on_full="drop"):
        pass
    seen: list[int] = []
    for i in range(50):
        tracerec.id_tap(lambda x, **_: seen.append(int(x)), i)
    tracerec.barrier_wait()
    assert seen == list(range(50))


def test_a_forked_child_neither_writes_nor_closes(tmp_path: Path) -> None:
    """The parent's recording is whole."""
    program = (
        PROGRAM
        + """
import os, warnings
warnings.simplefilter("ignore")
pid = os.fork()
if pid == 0:
    tracerec.tap(__import__("numpy").zeros(3), "child")
    tracerec.recording._close_all()
    os._exit(0)  # JAX itself crashes at the normal exit of a forked child
assert os.waitpid(pid, 0)[1] == 0
step(jnp.zeros(3), 20)
"""
    )
    done = run_python(program, str(tmp_path / "run.h5"))
    assert done.returncode == 0, done.stderr
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert list(trace.taps) == ["x"]
        assert [r.step for r in trace["x"]] == list(range(21))
