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


# Nearly all of the time the main thread is in callbacks, so that only the end of a call lets a signal through.
LONG_CALLS = """
@jax.jit
def long(x):
    return jax.lax.fori_loop(0, 20_000, lambda i, x: tracerec.tap(x + 1, "x"), x)
rec = tracerec.record(path)
long(0).block_until_ready()
begun = 0
sent = []
def send(number):
    time.sleep(0.3)
    sent.append(begun)
    os.kill(os.getpid(), number)
def run():
    global begun
    while True:
        begun += 1
        {call}
"""


@pytest.mark.parametrize(
    "call", ["long(0)", "long(0).block_until_ready()", "print(end=str(long(0))[:0])", "jax.vmap(long)(jnp.arange(2))"]
)
def test_a_signal_waits_for_no_more_than_the_call_that_runs(tmp_path: Path, call: str) -> None:
    """In whatever way it is called; and again after the first, which left nothing behind."""
    done = run_watched(
        tmp_path,
        LONG_CALLS.format(call=call)
        + """
for _ in range(5):
    threading.Thread(target=send, args=(signal.SIGINT,)).start()
    try:
        run()
    except KeyboardInterrupt:
        print(begun - sent[-1], sys.gettrace(), flush=True)
threading.Thread(target=send, args=(signal.SIGTERM,)).start()
try:
    run()
except SystemExit as error:
    print(begun - sent[-1], error.code)
""",
    )
    assert done.returncode == 0, done.stderr
    *interrupts, end = [line.split() for line in done.stdout.splitlines()]
    assert len(interrupts) == 5
    # a call may begin between the count and the signal
    assert all(int(more) <= 1 and tracer == "None" for more, tracer in interrupts)
    assert int(end[0]) <= 1
    assert end[1] == "143"


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """Calls that C code makes leave no moment between them: who insists ends the one that runs, as XLA's error."""
    done = run_watched(
        tmp_path,
        LONG_CALLS.format(call="pass")
        + """
def insist():
    for _ in range(3):
        time.sleep(1.2)
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=insist, daemon=True).start()
try:
    print(len(list(map(long, range(3000)))))
except BaseException as error:
    print(type(error).__name__, "KeyboardInterrupt" in str(error) or type(error) is KeyboardInterrupt, flush=True)
os._exit(0)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"


def test_a_signal_in_a_callback_within_a_users_callback_is_no_error_of_the_computation(tmp_path: Path) -> None:
    """The outermost call is waited for."""
    done = run_watched(
        tmp_path,
        LONG_CALLS.format(call="pass")
        + """
def inner(x):
    return np.asarray(long(x))
@jax.jit
def outer(x):
    return jax.experimental.io_callback(inner, jax.ShapeDtypeStruct((), jnp.int32), x)
import jax.experimental
threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        outer(jnp.int32(0)).block_until_ready()
except BaseException as error:
    print(type(error).__name__, flush=True)
os._exit(0)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["KeyboardInterrupt"]


def test_a_forked_child_ends_at_sigterm_as_ever(tmp_path: Path) -> None:
    """The handler is the parent's: it has recordings to close."""
    done = run_watched(
        tmp_path,
        """
rec = tracerec.record(path)
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-15"]


def test_a_signal_comes_through_where_a_debugger_traces(tmp_path: Path) -> None:
    """The program's own tracer stays, and the signal is not lost."""
    done = run_watched(
        tmp_path,
        LOOP
        + """
tracer = lambda frame, event, argument: None
sys.settrace(tracer)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        busy(0, 1).block_until_ready()
except KeyboardInterrupt:
    print(sys.gettrace() is tracer)
""",
    )
    assert done.returncode == 0, done.stderr
    assert "True" in done.stdout


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
