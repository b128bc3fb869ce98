"""The ways in which consumers, the writer, the receiver and the program itself die: nothing hangs, all is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tracerec
from tests.outfeed.watched import run_watched, steps_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_consumer_that_raises_on_its_third_record_stops_nothing(tmp_path: Path) -> None:
    """The others are consumed and recorded, the result is right, and the end of the program says so."""
    done = run_watched(
        tmp_path,
        """
seen = []
def consumer(x):
    if x == 2:
        raise ValueError("the third")
    seen.append(int(x))
at_end("seen", seen)
rec = tracerec.record(path)
f = jax.jit(lambda x: tracerec.tap(tracerec.id_tap(consumer, x) * 2, "x", step=x))
print("results", [int(f(i)) for i in range(6)])
""",
    )
    assert done.returncode == 0, done.stderr
    assert "results [0, 2, 4, 6, 8, 10]" in done.stdout
    assert "seen [0, 1, 3, 4, 5]" in done.stdout
    assert "at exit: the function 'consumer' failed on 1 record, first" in done.stderr
    assert "ValueError: the third" in done.stderr
    assert steps_of(tmp_path) == [*range(6)]


def test_a_writer_that_raises_on_its_third_write_stops_that_recording_alone(tmp_path: Path) -> None:
    """What was written before is sealed, the rest is counted, flush and the end of the program say so."""
    done = run_watched(
        tmp_path,
        """
real, calls = os.writev, []
def third_fails(*args):
    calls.append(1)
    if len(calls) == 3:
        raise OSError(5, "Input/output error")
    return real(*args)
os.writev = third_fails
rec = tracerec.record(path)
for i in range(6):
    print("result", int(step(1, i)))
    try:
        rec.flush()
    except RecordingIncomplete as error:
        print("flush", error.lost)
""",
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "result" in line] == [f"result {2 * i + 2}" for i in range(6)]
    assert [line for line in done.stdout.splitlines() if "flush" in line] == [
        f"flush {{'x': {i}}}" for i in range(1, 5)
    ]
    assert done.stderr.count("recording has stopped, the computation goes on: OSError") == 1
    assert "4 of 6 records were not recorded" in done.stderr
    assert steps_of(tmp_path) == [0, 1]
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.dropped == {"x": 4}


def test_on_error_raise_raises_at_the_next_eager_tap_and_close_still_seals(tmp_path: Path) -> None:
    """Jitted steps go on; the eager tap raises, once."""
    done = run_watched(
        tmp_path,
        """
def fails(*_):
    raise OSError(28, "No space left on device")
rec = tracerec.record(path, on_error="raise")
train(0, 2)
rec.flush()
real, os.writev = os.writev, fails
print("results", train(2, 5))
tracerec.barrier_wait()
try:
    tracerec.tap(1.0, "eager")
except RecordingIncomplete as error:
    print("raised", error)
print("value", tracerec.tap(1.0, "eager"))
os.writev = real
try:
    rec.close()
except RecordingIncomplete as error:
    print("close", error.lost)
""",
    )
    assert done.returncode == 0, done.stderr
    assert "results [4, 6, 8]" in done.stdout
    assert "raised" in done.stdout
    assert "No space left on device" in done.stdout.partition("raised")[2]
    assert "value 1.0" in done.stdout
    assert "close {'x': 3, 'eager': 1}" in done.stdout
    assert steps_of(tmp_path) == [0, 1]


KILLED = """
import ctypes
def kill_receiver():
    thread = next(t for t in threading.enumerate() if t.name == "tracerec-receiver")
    ident = ctypes.c_ulong(thread.ident)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(GeneratorExit)) == 1
"""
BUG = """
from tracerec.outfeed.batch import Batcher
def kill_receiver():
    def bug(self, items):
        raise RuntimeError("a bug")
    Batcher.batch = bug
"""
AFTERWARDS = """
rec = tracerec.record(path)
train(0, 10)
rec.flush()
kill_receiver()
print("results", train(10, 30))
jax.effects_barrier()
try:
    tracerec.barrier_wait()
except ReceiverTimeout as error:
    print("barrier", error)
print("results", train(30, 40))
summary = rec.close()
print("accounted", rec.records + sum(summary.dropped.values()) + sum(summary.lost.values()))
"""


@pytest.mark.parametrize("how", [KILLED, BUG], ids=["killed", "bug"])
def test_training_goes_on_without_the_receiver_and_every_record_is_accounted_for(tmp_path: Path, how: str) -> None:
    """Whatever was not recorded is counted in the file and in the summary; nothing waits for the dead thread."""
    done = run_watched(tmp_path, how + AFTERWARDS)
    assert done.returncode == 0, done.stderr
    assert f"results {[2 * i for i in range(10, 30)]}" in done.stdout
    assert f"results {[2 * i for i in range(30, 40)]}" in done.stdout
    assert "the receiver has ended; from now on records are dropped and counted" in done.stderr
    assert "records were dropped because the queue was full or broken: x" in done.stderr
    steps = steps_of(tmp_path)
    assert steps[:10] == [*range(10)]
    assert len(set(steps)) == len(steps)
    assert "accounted 40" in done.stdout
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.dropped == {"x": 40 - len(steps)}


BUSY = """
def consumer(x):
    while not done:
        sum(range(100))
done = []
tracerec.id_tap(consumer, 1)
"""


def test_what_kills_a_consumer_inside_the_receiver_is_the_consumers_failure(tmp_path: Path) -> None:
    """The receiver goes on: the records that wait behind the one being consumed are recorded."""
    done = run_watched(
        tmp_path,
        KILLED
        + BUSY
        + """
rec = tracerec.record(path)
print("results", train(0, 20))
jax.effects_barrier()
kill_receiver()
try:
    tracerec.barrier_wait()
except ConsumerError as error:
    print("barrier", error)
summary = rec.close()
print("accounted", rec.records, dict(summary.dropped))
""",
    )
    assert done.returncode == 0, done.stderr
    assert "barrier the function 'consumer' failed on 1 record" in done.stdout
    assert "accounted 20 {}" in done.stdout
    assert steps_of(tmp_path) == [*range(20)]


def test_a_consumer_that_exits_harms_no_one_else(tmp_path: Path) -> None:
    """``sys.exit`` in a consumer is its failure like any other: the receiver lives on."""
    done = run_watched(
        tmp_path,
        """
def consumer(x):
    sys.exit("I am out")
with tracerec.record(path) as rec:
    tracerec.id_tap(consumer, 1)
    train(0, 5)
try:
    tracerec.barrier_wait()
except ConsumerError as error:
    print("barrier", error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert "SystemExit: I am out" in done.stdout
    assert steps_of(tmp_path) == [*range(5)]


def test_a_slow_consumer_gets_all_it_was_sent_when_the_script_ends_at_once(tmp_path: Path) -> None:
    """20 ms a record: the end of the program waits."""
    done = run_watched(
        tmp_path,
        """
seen = []
def consumer(x):
    time.sleep(0.02)
    seen.append(int(x))
at_end("seen", seen)
rec = tracerec.record(path)
f = jax.jit(lambda x: tracerec.tap(tracerec.id_tap(consumer, x) * 2, "x", step=x))
for i in range(20):
    f(i)
""",
    )
    assert done.returncode == 0, done.stderr
    assert f"seen {[*range(20)]}" in done.stdout
    assert steps_of(tmp_path) == [*range(20)]


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('boom')", 1, "ValueError: boom"),
        ("sys.exit('no more')", 1, "no more"),
    ],
)
def test_an_id_tap_alone_is_consumed_whatever_the_exit(tmp_path: Path, ending: str, status: int, message: str) -> None:
    """Without any recording: the default receiver drains at exit."""
    done = run_watched(
        tmp_path,
        f"""
seen = []
def consumer(x):
    time.sleep(0.005)
    seen.append(int(x))
at_end("seen", seen)
f = jax.jit(lambda x: tracerec.id_tap(consumer, x))
for i in range(10):
    f(i)
{ending}
""",
    )
    assert done.returncode == status
    assert f"seen {[*range(10)]}" in done.stdout
    assert message in done.stderr


CYCLE = """
import gc
class Holder: pass
holder = Holder()
holder.me, holder.rec = holder, tracerec.record(path)
holder.rec.holder = holder
del holder
gc.collect()
"""


@pytest.mark.parametrize(
    "keep",
    [
        "tracerec.record(path)",
        "class Holder: pass\nkept = Holder()\nkept.rec = tracerec.record(path)",
        CYCLE,
    ],
    ids=["not kept", "global", "cycle"],
)
def test_a_recording_that_is_never_closed_is_whole_however_it_is_held(tmp_path: Path, keep: str) -> None:
    """Nothing depends on when an object is collected."""
    done = run_watched(tmp_path, f"{keep}\ntrain(0, 20)")
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path) == [*range(20)]
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.clean


def test_os_exit_leaves_what_was_flushed(tmp_path: Path) -> None:
    """No hook runs: the journal has at least the flushed records, and is read under the recording's path."""
    done = run_watched(tmp_path, "rec = tracerec.record(path)\ntrain(0, 20)\nrec.flush()\ntrain(20, 30)\nos._exit(7)")
    assert done.returncode == 7, done.stderr
    steps = steps_of(tmp_path)
    assert steps == [*range(len(steps))]
    assert len(steps) >= 20
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert not trace.info.clean


def test_block_timeout_and_drop_give_up_on_a_stuck_consumer_and_count(tmp_path: Path) -> None:
    """The computation goes on; recorded and dropped are all there were."""
    done = run_watched(
        tmp_path,
        """
release = threading.Event()
tracerec.id_tap(lambda x: release.wait(60), 1)
for options in ({"on_full": "drop"}, {"block_timeout": 0.02}):
    release.clear()
    with tracerec.record(path, mode="w", max_queue_bytes=5000, **options) as rec:
        tracerec.id_tap(lambda x: release.wait(60), 1)
        results = train(0, 30)
        release.set()
    dropped = rec.close().dropped
    print(results == [2 * i for i in range(30)], dropped["x"] > 0, rec.records > 0, rec.records + dropped["x"])
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True True 30"] * 2
    assert "the outfeed's queue (0 MiB) is full: consumers are slower than the computation" in done.stderr


def test_a_barrier_with_a_timeout_ends_though_a_computation_waits_for_a_full_queue(tmp_path: Path) -> None:
    """The result of the stuck computation is not even kept, and the queue blocks for ever."""
    done = run_watched(
        tmp_path,
        """
release = threading.Event()
rec = tracerec.record(path, max_queue_bytes=2000, block_timeout=None)
tracerec.id_tap(lambda x: release.wait(60), 1)
trainer = threading.Thread(target=train, args=(0, 30))
trainer.start()
while not tracerec.outfeed.hub._hub.queue._bytes >= 1500:
    time.sleep(0.01)
try:
    tracerec.barrier_wait(timeout=0.3)
except ReceiverTimeout as error:
    print("barrier", error)
release.set()
trainer.join()
""",
    )
    assert done.returncode == 0, done.stderr
    assert "barrier" in done.stdout
    assert steps_of(tmp_path) == [*range(30)]
