"""A replayed function's log is that of the live one."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracerec
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import training
from tracerec.consumers import Printer
from tracerec.errors import ConsumerError, SelectionError, TraceError
from tracerec.model import Column, Leaf, Site
from tracerec.trace import Trace, replaying


class Log:
    """A consumer that keeps its calls, bit for bit."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append(exact((args, kwargs)))


def exact(value: Any) -> Any:
    """Returns something that is equal for values that are the same in type, shape, dtype and every bit."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(exact(item) for item in value)
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype, value.shape, value.tobytes()
    return type(value), value


def both(live: Any, value: Any, name: str, **kwargs: Any) -> Any:
    """Taps a value twice: for the file, and for a live function."""
    return tracerec.id_tap(live, tracerec.tap(value, name, **kwargs), **kwargs)


def replayed(path: Any, **options: Any) -> list[Any]:
    """Returns the log of a replay."""
    log = Log()
    with tracerec.open(path) as trace:
        count = trace.replay(log, **options)
    assert count == len(log.calls)
    return log.calls


def network(live: Any, *, steps: int) -> Any:
    """Returns a program with vmap, grad, scan, cond, and taps of pytrees with all kinds of kwargs."""

    def layer(x: Any, w: Any, step: Any) -> Any:
        h = both(live, {"h": jnp.tanh(x * w), "pair": (x, None)}, "act", step=step, phase="train", lr=0.1)
        return both(live, h["h"] + h["pair"][0], "sum", step=step, flag=True, nothing=None, names=("a", b"b"), n=2**40)

    def branch(p: Any, x: Any) -> Any:
        return lax.cond(p, lambda x: both(live, x, "yes", weight=x), lambda x: both(live, -x, "no"), x)

    def loss(w: Any, xs: Any, step: Any) -> Any:
        return jax.vmap(layer, in_axes=(0, None, None))(xs, w, step).sum()

    @jax.jit
    def program(w: Any, xs: Any) -> Any:
        def body(w: Any, step: Any) -> Any:
            value, grad = jax.value_and_grad(loss)(w, xs, step)
            grad = both(live, grad.astype(jnp.bfloat16), "grad", step=step).astype(w.dtype)
            jax.vmap(jax.vmap(branch), in_axes=1)(xs > 0, xs)
            jax.vmap(branch)(step > jnp.full(3, 1), xs[0])
            return w - 0.1 * grad, value

        return lax.scan(body, w, jnp.arange(steps))

    return program


def test_log_of_a_program_with_vmap_grad_and_scan(tmp_path) -> None:
    """In arrival order, exactly; in program order the same calls."""
    live = Log()
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
    with tracerec.record(tmp_path / "run.h5"):
        jax.block_until_ready(network(live, steps=4)(jnp.float32(0.5), xs))
        tracerec.barrier_wait()
    assert len(live.calls) > 30
    assert any(kwargs.get("transforms") == ("batch", "jvp", "transpose") for _, kwargs in transforms_of(live.calls))
    assert any("where" in kwargs for _, kwargs in live.calls)
    assert replayed(tmp_path / "run.h5", order="arrival") == live.calls
    assert sorted(map(repr, replayed(tmp_path / "run.h5"))) == sorted(map(repr, live.calls))


def transforms_of(calls: list[Any]) -> list[Any]:
    """Returns the calls with the names of their transforms as plain strings."""
    plain = lambda names: tuple(name for _, name in names)  # noqa: E731
    return [(args, {**kw, "transforms": plain(kw["transforms"])} if "transforms" in kw else kw) for args, kw in calls]


def test_logs_of_other_taps(tmp_path) -> None:
    """Eager taps, scalars, PRNG keys, a partial cotangent, zero-size arrays, several dtypes."""
    live = Log()
    with tracerec.record(tmp_path / "run.arrow"):
        both(live, 2.5, "number", step=1)
        both(live, jax.random.key(3), "key")
        both(live, jnp.zeros((0, 2)), "empty", array=np.arange(3), z=1 + 2j)
        both(live, [jnp.asarray([1, 7], jnp.int4), True], "small", options={"a": 1, "b": [2.0, "c"]})
        jax.grad(lambda x: both(live, (x, jnp.arange(2)), "partial")[0] * 3.0)(1.0)
        jax.jvp(lambda x: both(live, x * 2, "tangent"), (1.0,), (5.0,))
        tracerec.barrier_wait()
    assert len(live.calls) == 8
    assert replayed(tmp_path / "run.arrow", order="arrival") == live.calls


def test_batches_without_a_lane_are_replayed_and_records_that_do_not_count_are_not(tmp_path) -> None:
    """As a live function is called with a batch whatever its mask is; it is told the mask."""
    live = Log()
    with tracerec.record(tmp_path / "run.h5"):
        branch = lambda p, x: lax.cond(p, lambda x: both(live, x, "t"), lambda x: x, x)  # noqa: E731
        jax.jit(jax.vmap(branch))(jnp.zeros(2, bool), jnp.ones(2))
        for keep in (True, False):
            tracerec.tap(np.float32(keep), "some", where=keep)
        tracerec.barrier_wait()
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert len(trace["t"]) == 0
        batches, counted, everything = Log(), Log(), Log()
        assert trace.replay({"t": batches, "some": counted}) == 2
        assert trace.raw.replay({"some": everything}) == 2
    assert batches.calls == live.calls
    assert len(live.calls) == len(counted.calls) == 1


def test_printing_is_that_of_id_print(tmp_path) -> None:
    """The same lines."""
    live = io.StringIO()

    @jax.jit
    def function(x: Any, step: Any) -> Any:
        x = tracerec.tap(x, "x", what="x", step=step)
        return tracerec.id_print(x, output_stream=live, what="x", step=step)

    with tracerec.record(tmp_path / "run.h5"):
        for step in range(3):
            jax.vmap(function, in_axes=(0, None))(jnp.arange(4.0) * step, step)
        tracerec.barrier_wait()
    stream = io.StringIO()
    with tracerec.open(tmp_path / "run.h5") as trace:
        trace.replay(Printer(stream))
    assert stream.getvalue() == live.getvalue()
    assert live.getvalue().count("\n") == 6


class TestConsumers:
    def test_patterns(self) -> None:
        """Each record goes to the functions whose patterns match, in the order of the mapping."""
        got: list[tuple[str, int]] = []
        consumers = {
            "l*": lambda *_, step, **__: got.append(("glob", step)),
            re.compile("lo+ss"): lambda *_, step, **__: got.append(("regex", step)),
            "loss": lambda *_, step, **__: got.append(("name", step)),
        }
        count = Trace(training()).replay(consumers)
        assert count == 20
        assert got[:4] == [("glob", 0), ("glob", 0), ("glob", 0), ("regex", 0)]
        assert [step for who, step in got if who == "regex"] == [s for who, s in got if who == "name"]
        assert len([1 for who, _ in got if who == "name"]) == 8

    @pytest.mark.parametrize("pattern", ["los", re.compile("lo.s."), "lossy*"])
    def test_pattern_that_matches_nothing(self, pattern) -> None:
        """The nearest names are told, and nothing is called."""
        log = Log()
        with pytest.raises(
            SelectionError, match=r"<memory> has no tap that matches '.*'; did you mean 'loss'\?"
        ) as caught:
            Trace(training()).replay({"*": log, pattern: log})
        assert caught.value.choices == ("layer", "loss", "ragged")
        assert log.calls == []

    @pytest.mark.parametrize("consumer", [None, {"loss": 3}])
    def test_what_cannot_be_called(self, consumer) -> None:
        """It is refused before the first record."""
        with pytest.raises(SelectionError, match="cannot be called; give a function"):
            Trace(training()).replay(consumer)

    def test_error(self) -> None:
        """The replay ends; the message names the record, and the cause is there."""
        seen: list[int] = []

        def fragile(*_: Any, step: int, **__: Any) -> None:
            seen.append(step)
            if step == 30:
                message = "too large"
                raise ValueError(message)

        with pytest.raises(
            ConsumerError, match=r"fragile' failed on a record of tap 'loss' \(step 30, arrival 32\)"
        ) as e:
            Trace(training()).replay({"loss": fragile})
        assert seen[-1] == 30
        assert (e.value.tap, str(e.value.__cause__)) == ("loss", "too large")
        assert str(e.value).endswith(": ValueError: too large")

    def test_interrupts_pass(self) -> None:
        """Ctrl-C is no error of the consumer."""

        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Trace(training()).replay(interrupt)

    def test_closed_trace(self) -> None:
        """As for all that reads."""
        trace = Trace(training())
        trace.close()
        with pytest.raises(TraceError, match="is closed"):
            trace.replay(print)

    def test_a_kwarg_named_as_what_functions_are_told(self) -> None:
        """It gives way; nothing is passed twice."""
        site = Site("t", (Leaf("", (), "float32"),), kwargs='{"transforms":"mine"}')
        batched = dataclasses.replace(site, transforms=training().streams[1].site.transforms)
        log: list[Any] = []
        source = MemorySource([make_stream(site, [[1.0]]), make_stream(batched, [[1.0]], first=9)])
        Trace(source).replay(lambda *_, **kwargs: log.append(kwargs["transforms"]))
        assert log == ["mine", ("jvp", "transpose")]

    def test_order(self) -> None:
        """An order that is none is told."""
        with pytest.raises(ValueError, match="order is 'program' or 'arrival', not 'x'"):
            Trace(training()).replay(print, order="x")  # type: ignore[arg-type]


class FakeClock(replaying.Clock):
    """A clock that moves when someone sleeps."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class TestRealtime:
    def replay(self, realtime: Any, work: float = 0.0) -> list[float]:
        site = Site("t", (Leaf("", (), "float32"),), (Column("step", "int64", python="int"),), '{"step":{"slot":0}}')
        times = [10**18, 10**18 + 10**9, 10**18 + 4 * 10**9]
        stream = make_stream(site, [[0.0, 1.0, 2.0]], numbers=[[0, 1, 2]])
        stream.rows["time"] = times
        clock = FakeClock()

        def busy(*_: Any, **__: Any) -> None:
            clock.time += work

        views = Trace(MemorySource([stream]))._views
        assert replaying.replay(views, busy, where="", realtime=realtime, clock=clock) == 3
        return clock.slept

    def test_as_recorded(self) -> None:
        """Seconds between the records."""
        assert self.replay(True) == [1, 3]  # noqa: FBT003
        assert self.replay(False) == []  # noqa: FBT003

    def test_faster(self) -> None:
        """A factor divides them."""
        assert self.replay(2) == [0.5, 1.5]

    def test_slow_consumer(self) -> None:
        """Its time counts; one that is late is not made later."""
        assert self.replay(True, work=0.25) == [0.75, 2.75]  # noqa: FBT003
        assert self.replay(1.0, work=1.5) == [1.0]

    @pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), "fast"])
    def test_no_factor(self, factor) -> None:
        """It is refused."""
        with pytest.raises(SelectionError, match="realtime is True, False or a positive factor"):
            self.replay(factor)
