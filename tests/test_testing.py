"""Traces in tests: the assertion, golden traces, the plugin as its users run it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracerec
from tests.support import ROOT
from tracerec.errors import ComparisonError
from tracerec.testing import MissingGolden, assert_traces_equal, content_hash, golden, write_golden


@jax.jit
def program(x, step):
    """A scan with taps and its gradient."""

    def body(c, i):
        return tracerec.tap(jnp.sin(c) * 1.5, "act", step=step, layer=i), None

    return tracerec.tap(jax.lax.scan(body, x, jnp.arange(3))[0].sum(), "loss", step=step)


def run(path, factor=1.0):
    """Records three steps."""
    with tracerec.record(path):
        for step in range(3):
            jax.grad(program)(jnp.arange(4.0) * factor, step)
    return path


def test_the_message_reads_like_a_diff(tmp_path):
    """The verdict, the first divergence with its values, the table."""
    a, b = run(tmp_path / "a.h5"), run(tmp_path / "b.h5", 1.01)
    assert_traces_equal(a, a, exact=True)
    with pytest.raises(AssertionError) as caught:
        assert_traces_equal(a, b)
    text = str(caught.value)
    assert text.startswith("traces are not equal\ndifferent: ")
    assert "First divergence: act step=0 layer=0" in text
    assert_traces_equal(a, b, rtol=1.0, atol=10)


def test_golden_traces_are_small_and_the_same_each_time(tmp_path):
    """Two runs of one program, written at other times: equal bytes, equal hashes; nothing of the machine inside."""
    a, b = run(tmp_path / "a.h5"), run(tmp_path / "b.h5")
    for source, target in ((a, "one.h5"), (b, "two.h5")):
        write_golden(source, tmp_path / target)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.h5", "two.h5"))
    assert one == two
    assert len(one) < 12_000
    assert content_hash(a) == content_hash(b) == content_hash(tmp_path / "one.h5")
    assert content_hash(a) != content_hash(run(tmp_path / "c.h5", 1 + 1e-6))
    with tracerec.open(a) as trace:
        assert trace.info.host.encode() not in one
    assert str(tmp_path).encode() not in one
    assert_traces_equal(a, tmp_path / "one.h5", exact=True)
    with tracerec.open(a) as trace, tracerec.open(tmp_path / "one.h5") as stable:
        for x, y in zip(trace.records(), stable.records(), strict=True):
            assert (x.tap, x.step, x.kwargs, x.transforms) == (y.tap, y.step, y.kwargs, y.transforms)
            assert np.asarray(x.value).tobytes() == np.asarray(y.value).tobytes()


def test_golden(tmp_path):
    """Written when told, compared else; what was recorded is kept beside it when they differ."""
    path = tmp_path / "deep" / "step.h5"
    with pytest.raises(FileNotFoundError, match="there is no golden trace"), golden(path, update=False):
        pass
    with golden(path, update=True):
        program(jnp.arange(4.0), 0)
    with golden(path, update=False) as result:
        program(jnp.arange(4.0), 0)
    assert result.comparison is not None
    assert result.comparison.ok
    with pytest.raises(AssertionError, match=r"differs from its golden trace(?s:.*)act step=0 layer=0") as caught:  # noqa: SIM117
        with golden(path, update=False, command="make golden"):
            program(jnp.arange(4.0) + 1, 0)
    assert str(path.with_name("step.new.h5")) in str(caught.value)
    assert str(caught.value).endswith("If it is right: make golden")
    assert not tracerec.compare(path, path.with_name("step.new.h5")).ok


def test_golden_traces_of_several_processes(tmp_path):
    """A file a process, compared as one trace; one file for all is refused, and the digest is that of all."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for number in (0, 3):
            run(tmp_path / folder / f"run.{number}.h5", 1.0 + number)
    runs = str(tmp_path / "one/run.*.h5")
    with pytest.raises(ComparisonError, match=r"is of 2 processes, each of which has a file: write to .*all\.\*\.h5"):
        write_golden(runs, tmp_path / "all.h5")
    assert not list(tmp_path.glob("all*"))
    write_golden(runs, tmp_path / "all.*.h5")
    assert sorted(path.name for path in tmp_path.glob("all*")) == ["all.0.h5", "all.3.h5"]
    golden_traces = str(tmp_path / "all.*.h5")
    assert_traces_equal(runs, golden_traces, exact=True)
    assert content_hash(runs) == content_hash(tmp_path / "two/run.*.h5") == content_hash(golden_traces)
    assert content_hash(runs) != content_hash(tmp_path / "one/run.0.h5")
    write_golden(tmp_path / "two/run.3.h5", tmp_path / "alone.h5")
    assert_traces_equal(tmp_path / "alone.h5", tmp_path / "all.3.h5", exact=True)
    with pytest.raises(ComparisonError, match=r"whose name ends in .h5, not .*x\.arrow"):
        write_golden(tmp_path / "two/run.3.h5", tmp_path / "x.arrow")
    with (
        pytest.raises(MissingGolden, match=r"no golden trace .*all\.h5; all\.0\.h5 is of a run of several processes"),
        golden(tmp_path / "all.h5", update=False),
    ):
        program(jnp.arange(4.0), 0)


def test_a_write_that_fails_leaves_the_golden_trace(tmp_path, monkeypatch):
    """Whole, and nothing beside it."""
    source = run(tmp_path / "a.h5")
    write_golden(source, tmp_path / "golden.h5")
    before = (tmp_path / "golden.h5").read_bytes()

    def full(_, path, **__):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracerec.formats.hdf5.seal.seal", full)
    with pytest.raises(OSError, match="No space"):
        write_golden(source, tmp_path / "golden.h5")
    assert (tmp_path / "golden.h5").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "golden.h5"]


DISTRIBUTED = """
import sys
import jax
import numpy as np
import tracerec
from tracerec.testing import MissingGolden, golden

def step(loss):
    tracerec.tap(np.float32(loss + jax.process_index()), "loss", step=0)

number, port = int(sys.argv[1]), sys.argv[2]
with golden("step.h5", update=True):
    # As late as a user's test would.
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=number)
    step(1)
with golden("step.h5", update=False) as result:
    step(1)
assert result.comparison.ok
try:
    with golden("step.h5", update=False):
        step(2)
except AssertionError as error:
    assert f"What was recorded is in step.new.{number}.h5." in str(error), error
else:
    raise SystemExit("equal")
try:
    with golden("other.h5", update=False):
        step(1)
except MissingGolden as error:
    assert f"other.{number}.h5; other.h5 is of a run of one process" in str(error), error
else:
    raise SystemExit("found")
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_golden_traces_where_jax_is_distributed(tmp_path):
    """Each process has its own, and none writes that of another."""
    write_golden(run(tmp_path / "run.h5"), tmp_path / "other.h5")
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED, str(number), port],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for each in started:
            text, _ = each.communicate(timeout=120)
            assert each.returncode == 0, text
    finally:
        for each in started:
            each.kill()
            each.wait()
    there = {path.name for path in tmp_path.glob("step*")}
    assert there == {"step.0.h5", "step.1.h5", "step.new.0.h5", "step.new.1.h5"}
    with tracerec.open(tmp_path / "step.[01].h5") as trace:
        assert trace.processes == (0, 1)
        assert sorted(trace["loss"].to_numpy().tolist()) == [1, 2]


def pytest_of(folder, *arguments, **variables):
    """Runs pytest as a user does, with the plugin loaded once whether or not it is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:tracerec"]
    command += ["-p", "tracerec.integrations.pytest_plugin", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_the_plugin(tmp_path):
    """A missing golden fails with the command that makes it; the option makes it; then runs are compared with it."""
    source = """
        import numpy as np, os, tracerec

        def test_same(trace_golden):
            with trace_golden("golden/same.h5"):
                tracerec.tap(np.float32(1), "loss", step=0)

        def test_step(trace_golden):
            with trace_golden("golden/step.h5", rtol=1e-3):
                tracerec.tap(np.float32(os.environ.get("LOSS", "1")), "loss", step=0)
    """
    (tmp_path / "test_x.py").write_text(textwrap.dedent(source))
    missing = pytest_of(tmp_path)
    assert missing.returncode == 1
    assert "there is no golden trace golden/step.h5; make it with: pytest --trace-golden-update" in missing.stdout
    assert "test_x.py::test_step" in missing.stdout
    assert pytest_of(tmp_path, "--trace-golden-update").returncode == 0
    assert (tmp_path / "golden/same.h5").read_bytes() == (tmp_path / "golden/step.h5").read_bytes()
    differs = pytest_of(tmp_path, LOSS="2")
    assert differs.returncode == 1
    assert "1 failed, 1 passed" in differs.stdout
    assert "First divergence: loss step=0" in differs.stdout
    assert "step.new.h5" in differs.stdout
