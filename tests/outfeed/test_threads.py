"""Threads, collectives, the garbage collector, notebooks, and many recordings in one process."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import jax
import pytest

import tracerec
from tests.outfeed.watched import run_watched, steps_of
from tracerec.errors import ConsumerError, ReceiverTimeout

if TYPE_CHECKING:
    from pathlib import Path


def test_eight_threads_that_tap_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """Eager, in one jitted function for all, and in one a thread; each record with its own thread's numbers."""
    done = run_watched(
        tmp_path,
        """
THREADS, EACH = 8, 60
shared = jax.jit(lambda x, k, i: tracerec.tap(x + i, "shared", step=i, thread=k))
def work(k):
    own = jax.jit(lambda x, i: tracerec.tap(x + i, "own", step=i, thread=k))
    for i in range(EACH):
        tracerec.tap(np.full(3, i), "eager", step=i, thread=k)
        shared(np.full(3, k), k, i)
        own(np.full(3, k), i)
sys.setswitchinterval(1e-5)
with tracerec.record(path):
    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    [t.start() for t in threads]
    [t.join() for t in threads]
""",
    )
    assert done.returncode == 0, done.stderr
    expected = {(k, i) for k in range(8) for i in range(60)}
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert trace.info.dropped == {}
        for tap in ("eager", "shared", "own"):
            records = list(trace[tap])
            assert len(records) == len(expected)
            assert {(int(r.kwargs["thread"]), r.step) for r in records} == expected
            offset = 0 if tap == "eager" else 1
            assert all((r.value == offset * int(r.kwargs["thread"]) + r.step).all() for r in records)
        arrivals = [r.arrival for r in trace.records()]
    assert sorted(arrivals) == [*range(3 * len(expected))]


def test_a_barrier_while_another_thread_is_in_a_collective_returns(tmp_path: Path) -> None:
    """Four devices in a psum with taps before and behind it."""
    done = run_watched(
        tmp_path,
        """
assert len(jax.devices()) == 4
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
spec = jax.sharding.PartitionSpec("d")
def body(x, i):
    x = tracerec.tap(x, "before", step=i)
    return tracerec.tap(jax.lax.psum(x, "d"), "behind", step=i) + x
f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec, None), out_specs=spec))
N = 150
def collect():
    for i in range(N):
        f(np.arange(8), i)
rec = tracerec.record(path)
thread = threading.Thread(target=collect)
thread.start()
barriers = 0
while thread.is_alive():
    tracerec.barrier_wait(timeout=60)
    rec.flush()
    barriers += 1
thread.join()
rec.close()
print(barriers > 0)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
    for tap in ("before", "behind"):
        assert steps_of(tmp_path, tap) == [i for i in range(150) for _ in range(4)]
    with tracerec.open(tmp_path / "run.h5") as trace:
        # 0 + 2 + 4 + 6 and 1 + 3 + 5 + 7
        assert all(r.value.tolist() == [12, 16] for r in trace["behind"])


@pytest.mark.parametrize("wait", ["tracerec.barrier_wait()", "rec.flush()", "pass"])
def test_what_a_thread_has_dispatched_before_it_ended_is_recorded(tmp_path: Path, wait: str) -> None:
    """Its computations still run, nobody keeps their results, and another thread waits or closes."""
    done = run_watched(
        tmp_path,
        f"""
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
spec = jax.sharding.PartitionSpec("d")
def body(x, i):
    y = jax.lax.fori_loop(0, 200, lambda _, c: jnp.sin(c), x)
    return tracerec.tap(jax.lax.psum(y, "d"), "x", step=i)
f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec, None), out_specs=spec))
def work():
    for i in range(20):
        f(np.zeros((4, 20_000), np.float32), i)
rec = tracerec.record(path)
thread = threading.Thread(target=work)
thread.start()
thread.join()
{wait}
rec.close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path) == [i for i in range(20) for _ in range(4)]


def test_the_garbage_collector_at_every_allocation_harms_nothing(tmp_path: Path) -> None:
    """Threshold 1, with tap after tap in reference cycles."""
    done = run_watched(
        tmp_path,
        """
import gc
train(0, 1)
gc.set_threshold(1)
with tracerec.record(path):
    for i in range(40):
        cycle = [step(0, i)]
        cycle.append(cycle)
        tracerec.tap({"a": np.full(2, i), "b": cycle[0]}, "eager", step=i)
    gc.set_threshold(700)
""",
    )
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path) == [*range(40)]
    assert steps_of(tmp_path, "eager") == [*range(40)]


def test_a_notebook_that_redefines_its_function_in_every_cell(tmp_path: Path) -> None:
    """Each cell's records are its own, and what tracerec holds of dead functions does not grow with the cells."""
    done = run_watched(
        tmp_path,
        """
import gc
cell = '''
def consumer(x):
    seen.append(int(x))
@jax.jit
def function(x, i):
    x = tracerec.id_tap(consumer, tracerec.tap(x + CELL, "x", step=i))
    return jax.lax.scan(lambda c, _: (tracerec.tap(c + 1, "loop"), None), x, length=3)[0]
for i in range(3):
    function(0, 10 * CELL + i)
'''
def alive():
    # what JAX's own caches keep, tapped functions among it, is bounded by them
    jax.clear_caches()
    gc.collect()
    return Counter(type(o).__name__ for o in gc.get_objects() if str(type(o).__module__).startswith("tracerec."))
from collections import Counter
notebook = {"jax": jax, "tracerec": tracerec, "seen": []}
counts = []
with tracerec.record(path) as rec:
    for number in range(40):
        exec(cell.replace("CELL", str(number)), notebook)
        if number in (9, 39):
            rec.flush()
            counts.append(alive())
print("seen", notebook["seen"] == [n for n in range(40) for _ in range(3)])
print("grown", {name: (n, counts[1][name]) for name, n in counts[0].items() if counts[1][name] > n + 3})
""",
    )
    assert done.returncode == 0, done.stderr
    assert "seen True" in done.stdout
    assert steps_of(tmp_path) == [10 * n + i for n in range(40) for i in range(3)]
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert [int(r.value) for r in trace["x"]] == [n for n in range(40) for _ in range(3)]
        assert [int(r.value) for r in trace["loop"]] == [n + k for n in range(40) for _ in range(3) for k in (1, 2, 3)]
    assert "grown {}" in done.stdout


MANY = """
from pathlib import Path
from tracerec import sealer, sealing
def one(number):
    path = f"{sys.argv[1]}-{number}.h5"
    with tracerec.record(path):
        step(0, number)
        tracerec.tap(number, "eager", step=number)
    with tracerec.open(path) as trace:
        assert [r.step for r in trace["x"]] == [r.step for r in trace["eager"]] == [number]
    Path(path).unlink()
    return len(os.listdir("/proc/self/fd")), threading.active_count()
"""


@pytest.mark.slow
def test_recordings_opened_and_closed_200_times_leave_no_thread_and_no_open_file(tmp_path: Path) -> None:
    """8 sealed by a process of their own, as ever, the others by this one, to save time."""
    done = run_watched(
        tmp_path,
        MANY
        + """
first = [one(i) for i in range(8)]
sealer.Sealer.finish = lambda _, order: sealing.seal(order)
rest = [one(i) for i in range(8, 200)]
print(first[1] == first[-1], rest[1] == rest[-1], len(tracerec.recording._open_recordings))
assert not tracerec.outfeed.listening()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True 0\n"
    assert [p.name for p in tmp_path.iterdir()] == ["program.py"]


def test_two_recorders_from_two_threads_hold_all_that_ran_while_they_did(tmp_path: Path) -> None:
    """Begun and ended by their own threads, in any order."""

    def work(name: str) -> None:
        with tracerec.record(tmp_path / f"{name}.h5"):
            for i in range(100):
                tracerec.tap(i, name, step=i)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for name in "ab":
        with tracerec.open(tmp_path / f"{name}.h5") as trace:
            assert [r.step for r in trace[name]] == [*range(100)]


def test_a_stuck_consumer_is_told_of_by_device_and_count() -> None:
    """A record from each of four devices, and none of them through."""
    release = threading.Event()
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    tapped = jax.shard_map(
        lambda x: tracerec.id_tap(lambda _: release.wait(60), x), mesh=mesh, in_specs=spec, out_specs=spec
    )
    jax.jit(tapped)(jax.numpy.arange(4)).block_until_ready()
    try:
        with pytest.raises(ReceiverTimeout, match=r"4 records, 1 from device 0, 1 from device 1, .* device 3") as e:
            tracerec.barrier_wait(timeout=0.2)
        assert e.value.pending == 4
    finally:
        release.set()
    tracerec.barrier_wait(timeout=60)


def test_receivers_nested_and_in_two_threads_each_see_all_that_was_sent_before_their_end() -> None:
    """A failure is raised by the inner one that ends first, once."""
    seen: list[int] = []
    function = jax.jit(lambda x: tracerec.id_tap(lambda v: seen.append(int(v)), x))

    def work(k: int) -> None:
        with tracerec.outfeed_receiver(receiver_name=f"outer {k}"):
            for n in range(10):
                with tracerec.outfeed_receiver(receiver_name=f"inner {k}"):
                    function(100 * k + n)
                assert 100 * k + n in seen
            function(100 * k + 10)
        assert 100 * k + 10 in seen
        finished.append(k)

    finished: list[int] = []
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(finished) == [0, 1]
    assert Counter(seen) == Counter([*range(11), *range(100, 111)])

    def bad(_: Any) -> None:
        message = "bad"
        raise ValueError(message)

    with tracerec.outfeed_receiver():
        with pytest.raises(ConsumerError, match="ValueError: bad"), tracerec.outfeed_receiver():
            jax.jit(lambda x: tracerec.id_tap(bad, x))(1.0)
        function(7)
    assert seen[-1] == 7
