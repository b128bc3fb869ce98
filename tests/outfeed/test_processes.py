"""Other processes beside a recording: forked, forked to run a program, spawned, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import tracerec
from tests.outfeed.watched import environment, run_watched, steps_of, write_program

if TYPE_CHECKING:
    from pathlib import Path


def test_children_of_a_recording_process_change_nothing(tmp_path: Path) -> None:
    """Forked with and without a program, while another thread trains: every record once, none from a child."""
    done = run_watched(
        tmp_path,
        """
import subprocess, warnings
warnings.simplefilter("ignore")
rec = tracerec.record(path)
train(0, 1)
trainer = threading.Thread(target=train, args=(1, 400))
trainer.start()
for i in range(10):
    pid = os.fork()
    if pid == 0:
        summary = rec.close()
        os._exit(0 if rec.closed and not tracerec.outfeed.listening() and summary.records == 0 else 5)
    assert os.waitpid(pid, 0)[1] == 0
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    assert os.waitpid(pid, 0)[1] == 0
    subprocess.run([sys.executable, "-c", "import tracerec"], check=True)
trainer.join()
""",
    )
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path) == [*range(400)]
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.clean


@pytest.mark.parametrize("child", ["pass", "os.execv('/bin/sleep', ['sleep', '120'])"], ids=["fork", "exec"])
def test_a_child_that_outlives_its_killed_parent_does_not_hold_the_recording(tmp_path: Path, child: str) -> None:
    """The lock dies with the recording process: the path can be recorded to again."""
    program = write_program(
        tmp_path,
        f"""
import warnings
warnings.simplefilter("ignore")
rec = tracerec.record(path)
train(0, 5)
rec.flush()
pid = os.fork()
if pid == 0:
    os.close(1)
    {child}
    time.sleep(120)
    os._exit(0)
print(pid, flush=True)
time.sleep(120)
""",
    )
    path = tmp_path / "run.h5"
    process = subprocess.Popen(
        [sys.executable, str(program), str(path)], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    with process.stdout:
        orphan = int(process.stdout.readline())
    try:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        os.kill(orphan, 0)
        assert steps_of(tmp_path) == [*range(5)]
        with tracerec.record(path, mode="w"):
            tracerec.tap(1.0, "again")
    finally:
        os.kill(orphan, signal.SIGKILL)
    with tracerec.open(path) as trace:
        assert list(trace.taps) == ["again"]


def test_a_run_killed_at_full_speed_is_readable_without_a_gap(tmp_path: Path) -> None:
    """SIGKILL while records are being written: all up to some record, at least those of the last flush."""
    program = write_program(
        tmp_path,
        """
rec = tracerec.record(path)
@jax.jit
def many(i):
    body = lambda x, _: (tracerec.tap(x, "x", step=x) + 1, None)
    return jax.lax.scan(body, i, length=100)[0]
i = many(0)
rec.flush()
print(int(i), flush=True)
while True:
    i = many(i)
    if int(i) == 5000:
        print("on", flush=True)
""",
    )
    process = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path / "run.h5")], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    with process.stdout:
        flushed = int(process.stdout.readline())
        assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    steps = steps_of(tmp_path)
    assert steps == [*range(len(steps))]
    assert len(steps) >= flushed == 100


@pytest.mark.parametrize("mode", ["w", "x"])
def test_a_spawned_child_that_imports_the_script_leaves_the_recording_alone(tmp_path: Path, mode: str) -> None:
    """``record`` at the top of a script runs again in the child, where it is refused; the child alone fails."""
    done = run_watched(
        tmp_path,
        f"""
import multiprocessing
rec = tracerec.record(path, mode={mode!r})
def work():
    print("the child works")
if __name__ == "__main__":
    train(0, 10)
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print("child", child.exitcode)
    train(10, 20)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "child 1\n"
    assert "RecordingExists" in done.stderr
    assert "is being recorded to" in done.stderr
    assert steps_of(tmp_path) == [*range(20)]


def test_a_spawned_child_may_record_to_a_path_of_its_own(tmp_path: Path) -> None:
    """Two processes, two recordings."""
    done = run_watched(
        tmp_path,
        """
import multiprocessing
def work(path):
    with tracerec.record(path):
        train(100, 110)
if __name__ == "__main__":
    with tracerec.record(path):
        train(0, 10)
        child = multiprocessing.get_context("spawn").Process(target=work, args=(path.replace("run", "child"),))
        child.start()
        train(10, 20)
        child.join()
        print("child", child.exitcode)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "child 0\n"
    assert steps_of(tmp_path) == [*range(20)]
    with tracerec.open(tmp_path / "child.h5") as trace:
        assert [r.step for r in trace["x"]] == [*range(100, 110)]


@pytest.mark.parametrize("first", ["pool", "recording"])
def test_a_forked_pool_as_a_data_loader(tmp_path: Path, first: str) -> None:
    """Its workers are forked before or after the recording began; only the parent records."""
    steps = {"pool": "pool = make()", "recording": "rec = tracerec.record(path)\ntrain(0, 1)"}
    begin = [steps[first], *(text for name, text in steps.items() if name != first)]
    done = run_watched(
        tmp_path,
        """
import multiprocessing, warnings
warnings.simplefilter("ignore")
def load(i):
    return np.full(3, i)
def make():
    return multiprocessing.get_context("fork").Pool(2)
"""
        + "\n".join(begin)
        + """
print([int(step(batch[0], i)) for i, batch in enumerate(pool.imap(load, range(30)), start=1)][-1])
pool.close()
pool.join()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "118\n"
    assert steps_of(tmp_path) == [*range(31)]


def test_a_child_forked_while_the_receiver_prints_can_print_itself(tmp_path: Path) -> None:
    """A lock that was held at the fork is not held for ever in the child."""
    done = run_watched(
        tmp_path,
        """
import io, warnings
warnings.simplefilter("ignore")
inside, release = threading.Event(), threading.Event()
class Stream:
    def write(self, text):
        inside.set()
        release.wait(60)
tracerec.id_print(np.float32(1), output_stream=Stream())
inside.wait(60)
pid = os.fork()
if pid == 0:
    stream = io.StringIO()
    from tracerec.tapping import host_calls
    host_calls._print(stream, 10, np.float32(2))
    os._exit(0 if stream.getvalue() == "2.\\n" else 5)
print("child", os.waitpid(pid, 0)[1])
release.set()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "child 0\n"
