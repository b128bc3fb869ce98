"""Ctrl-C and SIGTERM while jitted code with taps runs: the program sees what it would see without taps."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import tracerec
from tests.outfeed.watched import run_watched

if TYPE_CHECKING:
    from pathlib import Path

# Most of the time is spent in the taps' callbacks, so that the signal mostly comes there.
TAPS = 200
LOOP = f"""
@jax.jit
def busy(x, i):
    body = lambda x, _: (tracerec.tap(x + 1, "x", step=i), None)
    return jax.lax.scan(body, x, length={TAPS})[0]
rec = tracerec.record(path)
busy(0, 0).block_until_ready()
at_end("the end")
"""


def loop_until(name: str, call: str) -> str:
    """Calls in a loop, and sends the program a signal until the loop has ended: JAX's hooks may swallow one."""
    return f"""
ended = threading.Event()
def send():
    while not ended.wait(0.2):
        os.kill(os.getpid(), signal.{name})
threading.Thread(target=send, daemon=True).start()
try:
    for i in range(1, 10**6):
        {call}
finally:
    ended.set()
"""


def check_whole_calls(folder: Path) -> None:
    """The calls are those up to some number; all but the last, which the signal may have stopped, are whole."""
    with tracerec.open(folder / "run.h5") as trace:
        count = Counter(r.step for r in trace["x"])
        assert trace.info.clean
    assert sorted(count) == [*range(len(count))]
    assert set([count[i] for i in sorted(count)][:-1]) <= {TAPS}


def test_ctrl_c_is_a_keyboard_interrupt_and_loses_no_record(tmp_path: Path) -> None:
    """Twenty times in one process, at any moment: never an error of the computation, never half a call."""
    done = run_watched(
        tmp_path,
        LOOP
        + """
from collections import Counter
armed, kinds, n = threading.Event(), Counter(), 1
def send():
    while True:
        armed.wait()
        time.sleep(0.02)
        if armed.is_set():
            os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send, daemon=True).start()
for _ in range(20):
    try:
        armed.set()
        while True:
            n += 1
            busy(0, n - 1).block_until_ready()
    except BaseException as error:
        armed.clear()
        kinds[type(error).__name__] += 1
    try:
        time.sleep(0.1)
    except KeyboardInterrupt:
        pass
print(dict(kinds), flush=True)
rec.close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "{'KeyboardInterrupt': 20}"
    with tracerec.open(tmp_path / "run.h5") as trace:
        count = Counter(r.step for r in trace["x"])
        assert set(count.values()) == {TAPS}
        assert trace.info.dropped == {}


def test_an_uncaught_ctrl_c_ends_the_program_as_ever_and_seals(tmp_path: Path) -> None:
    """Its status is that of a program killed by SIGINT."""
    done = run_watched(tmp_path, LOOP + loop_until("SIGINT", "busy(0, i)"))
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.rstrip().splitlines()[-1] == "KeyboardInterrupt"
    assert "the end" in done.stdout
    check_whole_calls(tmp_path)


@pytest.mark.parametrize("call", ["busy(0, i)", "busy(0, i).block_until_ready()"], ids=["async", "sync"])
def test_sigterm_without_a_handler_ends_the_program_with_143_and_seals(tmp_path: Path, call: str) -> None:
    """As ``sys.exit(143)`` in the main thread does."""
    done = run_watched(tmp_path, LOOP + loop_until("SIGTERM", call))
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "the end" in done.stdout
    check_whole_calls(tmp_path)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_users_own_handler_of_sigterm_is_left_alone(tmp_path: Path, when: str) -> None:
    """Set before or after the recording began: it is called, and nothing else happens."""
    set_handler = """
stop = []
def mine(number, frame):
    stop.append(number)
signal.signal(signal.SIGTERM, mine)
"""
    program = {"before": set_handler + LOOP, "after": LOOP + set_handler}[when]
    done = run_watched(
        tmp_path,
        program
        + """
os.kill(os.getpid(), signal.SIGTERM)
for i in range(1, 5):
    busy(0, i)
print(stop, signal.getsignal(signal.SIGTERM) is mine)
""",
    )
    assert done.returncode == 0, done.stderr
    assert "[15] True" in done.stdout
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert len(trace["x"]) == 5 * TAPS


def test_recording_in_another_thread_leaves_sigterm_as_it_was(tmp_path: Path) -> None:
    """Handlers are the main thread's; the signal then ends the program at once, and the journal is readable."""
    done = run_watched(
        tmp_path,
        """
recs = []
thread = threading.Thread(target=lambda: recs.append(tracerec.record(path)))
thread.start()
thread.join()
train(0, 5)
recs[0].flush()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert [r.step for r in trace["x"]] == [*range(5)]
        assert not trace.info.clean
