"""id_tap, id_print, barrier_wait and outfeed_receiver."""

from __future__ import annotations

import io
import threading
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracerec
from tracerec.errors import ConsumerError, ReceiverTimeout, TapError


class Log:
    """A consumer that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self.calls.append((args, kwargs))
        return "ignored"

    def method(self, *args: Any, **kwargs: Any) -> None:
        """The same, as a bound method."""
        self(*args, **kwargs)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_arguments_arrive_as_the_same_pytrees_of_numpy_arrays(wrap: Any) -> None:
    """Positional pytrees keep their structure; integers among the kwargs are Python ints."""
    log = Log()

    def function(x: Any, step: Any) -> Any:
        return tracerec.id_tap(log, {"a": x, "b": (x + 1, None)}, x * 2, step=step, lr=0.5, tag="t", n=np.int8(3))

    out = wrap(function)(jnp.arange(2.0), 7)
    tracerec.barrier_wait()
    ((first, second), kwargs), *rest = log.calls
    assert rest == []
    assert list(first) == ["a", "b"]
    assert first["b"][1] is None
    for found, expected in [(first["a"], [0, 1]), (first["b"][0], [1, 2]), (second, [0, 2])]:
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, expected)
    assert kwargs == {"step": 7, "lr": 0.5, "tag": "t", "n": 3}
    assert type(kwargs["step"]) is type(kwargs["n"]) is int
    assert isinstance(out, tuple)
    np.testing.assert_array_equal(out[1], [0, 2])


def test_one_argument_is_returned_by_itself_and_result_in_its_place() -> None:
    """As host_callback did."""
    log = Log()
    assert float(tracerec.id_tap(log, 2.0)) == 2.0
    assert tracerec.id_tap(log, 1.0, 2.0) == (1.0, 2.0)
    assert tracerec.id_tap(log, 1.0, result="r") == "r"
    assert jax.jit(lambda x: tracerec.id_tap(log, x, result=x + 1))(1.0) == 2.0
    tracerec.barrier_wait()
    assert len(log.calls) == 4


def test_transformations_come_as_keyword_arguments() -> None:
    """Names, batch dims, logical shapes, masks, and the parameters of each level of a nest."""
    log = Log()

    def function(x: Any) -> Any:
        return tracerec.id_tap(log, x * 2.0, what="x") ** 2

    jax.jit(jax.vmap(jax.grad(function), in_axes=0))(jnp.array([1.0, 3.0]))
    jax.jit(jax.vmap(jax.vmap(function, in_axes=1), in_axes=(0,)))(jnp.ones((2, 3, 4)))
    jax.jvp(function, (1.0,), (5.0,))
    tracerec.barrier_wait()
    primal, cotangent, nested, jvp_primal, tangent = log.calls
    np.testing.assert_array_equal(primal[0][0], [2, 6])
    assert primal[1] == {"what": "x", "transforms": ("batch",), "batch_dims": (0,)}
    np.testing.assert_array_equal(cotangent[0][0], [4, 12])
    assert cotangent[1] == {
        "what": "x",
        "transforms": ("jvp", "transpose", "batch"),
        "batch_dims": (0,),
        "transform_params": ({}, {}, {"batch_size": 2, "batch_dims": (0,)}),
    }
    assert nested[1]["transforms"] == ("batch", "batch")
    assert nested[1]["transform_params"] == (
        {"batch_size": 4, "batch_dims": (1,)},
        {"batch_size": 2, "batch_dims": (0,)},
    )
    assert jvp_primal[1] == {"what": "x"}
    assert float(tangent[0][0]) == 10.0
    assert tangent[1] == {"what": "x", "transforms": ("jvp",)}


def test_lanes_of_a_vmapped_cond_come_with_their_mask() -> None:
    """The function is told which lanes count."""
    log = Log()
    branch = lambda p, x: lax.cond(p, lambda x: tracerec.id_tap(log, x), lambda x: x, x)  # noqa: E731
    jax.jit(jax.vmap(branch))(jnp.array([True, False]), jnp.ones(2))
    tracerec.barrier_wait()
    np.testing.assert_array_equal(log.calls[0][1]["where"], [True, False])


def test_a_leaf_without_a_cotangent_is_none() -> None:
    """The tree of a partial record keeps its shape."""
    log = Log()

    def function(x: Any) -> Any:
        x, _ = tracerec.id_tap(log, x, jnp.arange(2))
        return x * 3.0

    jax.grad(function)(1.0)
    tracerec.barrier_wait()
    (x, n), _ = log.calls[1]
    assert (float(x), n) == (3.0, None)


def test_functions_that_do_the_same_share_a_trace() -> None:
    """Partials and bound methods made anew for each step compile nothing."""
    log = Log()
    traces = []

    @partial(jax.jit, static_argnums=1)
    def step(x: Any, make: Any) -> Any:
        traces.append(1)
        return tracerec.id_tap(make(), x)

    def inner(x: Any) -> Any:
        @jax.jit
        def body(x: Any) -> Any:
            return tracerec.id_tap(partial(log.method, 1, key="v"), x)

        return body(x)

    for _ in range(5):
        inner(1.0)
        step(1.0, make)
    tracerec.barrier_wait()
    assert len(traces) == 1
    assert (len(log.calls), len(SHARED.calls)) == (5, 5)
    sites = {tracerec.outfeed.HostFunction(partial(log.method, 1, key="v"), None, {}) for _ in range(3)}  # type: ignore[arg-type]
    assert len(sites) == 1
    others = [partial(log.method, 2, key="v"), partial(log.method, 1, key="w"), partial(log.method, 1.0, key="v")]
    assert len({tracerec.outfeed.HostFunction(f, None, {}) for f in others} | sites) == 4  # type: ignore[arg-type]


def make() -> Any:
    """A new partial each time, of equal parts."""
    return partial(SHARED.method, 3)


SHARED = Log()


def test_calls_come_in_the_order_of_arrival_across_functions() -> None:
    """Two functions, one log."""
    order: list[int] = []
    first, second = (lambda x, **_: order.append(int(x))), (lambda x, **_: order.append(int(x)))

    @jax.jit
    def function(x: Any) -> Any:
        for i in range(10):
            x = tracerec.id_tap(first if i % 2 else second, x + 1)
        return x

    function(0)
    tracerec.barrier_wait()
    assert order == list(range(1, 11))


def test_print_writes_the_kwargs_sorted_and_then_each_array(capsys: pytest.CaptureFixture[str]) -> None:
    """To standard output as it is when it prints."""
    jax.jit(lambda x: tracerec.id_print({"b": x, "a": x + 1}, step=3, what="x"))(jnp.arange(2))
    jax.jit(tracerec.id_print)(jnp.ones(2, jnp.bfloat16))
    tracerec.barrier_wait()
    assert capsys.readouterr().out == "step: 3  what: x\n[1 2]\n[0 1]\n[1 1]\n"


def test_print_to_a_stream_with_a_threshold_under_vmap() -> None:
    """Above the threshold numpy summarises."""
    stream = io.StringIO()
    jax.jit(jax.vmap(lambda x: tracerec.id_print(x, output_stream=stream, threshold=5)))(jnp.arange(20))
    tracerec.barrier_wait()
    assert stream.getvalue() == "batch_dims: (0,)  transforms: ('batch',)\n[ 0  1  2 ... 17 18 19]\n"


def test_the_lines_of_a_record_come_out_together() -> None:
    """From several threads at once."""
    stream = io.StringIO()
    function = jax.jit(lambda x, i: tracerec.id_print(x, i, output_stream=stream, i=i))
    threads = [threading.Thread(target=lambda k=k: [function(k, i) for i in range(20)]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    tracerec.barrier_wait()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 240
    assert all(lines[n] == f"i: {lines[n + 2]}" for n in range(0, 240, 3))


def test_a_function_that_raises_is_reported_at_the_barrier_and_the_computation_is_right() -> None:
    """Once, with the first exception as its cause; afterwards all is well."""

    def bad(x: Any) -> None:
        message = f"no {float(x)}"
        raise ValueError(message)

    function = jax.jit(lambda x: tracerec.id_tap(bad, x) * 2)
    assert [float(function(float(i))) for i in range(3)] == [0.0, 2.0, 4.0]
    with pytest.raises(ConsumerError, match=r"the function '.*bad' failed on 3 records.*ValueError: no 0.0") as caught:
        tracerec.barrier_wait()
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.failures == 3
    tracerec.barrier_wait()


def test_a_consumer_may_call_jax_and_runs_on_the_receivers_thread() -> None:
    """Never on XLA's threads."""
    seen: list[Any] = []

    def consumer(x: Any) -> None:
        seen.append((threading.current_thread().name, float(jax.jit(jnp.sin)(x))))

    jax.jit(lambda x: tracerec.id_tap(consumer, x))(1.0)
    tracerec.barrier_wait()
    assert seen == [("tracerec-receiver", pytest.approx(np.sin(1.0)))]


def test_a_consumer_that_taps_does_not_wait_for_itself() -> None:
    """Its own record comes after."""
    seen: list[float] = []

    def consumer(x: Any) -> None:
        seen.append(float(x))
        if x < 3:
            tracerec.id_tap(consumer, x + 1)

    tracerec.id_tap(consumer, np.float32(1))
    tracerec.barrier_wait()
    tracerec.barrier_wait()
    tracerec.barrier_wait()
    assert seen == [1.0, 2.0, 3.0]


def test_barrier_wait_is_refused_while_tracing() -> None:
    """There is nothing to wait for yet."""
    with pytest.raises(ConsumerError, match="barrier_wait: called while tracing"):
        jax.jit(lambda x: (tracerec.barrier_wait(), x)[1])(1.0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_numbers_inside_containers_are_those_of_each_call(wrap: Any) -> None:
    """Containers are rebuilt with the numbers that came along; nothing is remembered from another call."""
    log = Log()

    def function(x: Any, i: Any) -> Any:
        return tracerec.id_tap(log, x, opts={"i": i, "name": "n"}, pair=(i, [i + 1]), fixed=("a", ["b", None]))

    function = wrap(function)
    for i in range(3):
        function(1.0, i)
    tracerec.barrier_wait()
    assert [kwargs["opts"] for _, kwargs in log.calls] == [{"i": i, "name": "n"} for i in range(3)]
    assert [kwargs["pair"] for _, kwargs in log.calls] == [(i, [i + 1]) for i in range(3)]
    assert {repr(kwargs["fixed"]) for _, kwargs in log.calls} == {"('a', ['b', None])"}


def test_a_container_that_is_changed_after_the_call_arrives_as_it_was() -> None:
    """A kwarg is what it was at the tap."""
    log = Log()
    names = ["a"]
    tracerec.id_tap(log, 1.0, names=names)
    names.append("b")
    tracerec.barrier_wait()
    assert log.calls[0][1]["names"] == ["a"]


@pytest.mark.parametrize("name", ["transforms", "transform_params", "batch_dims", "where", "logical_shapes"])
def test_kwargs_that_tell_of_transformations_are_refused_by_name(name: str) -> None:
    """They would collide once there is a transformation."""
    with pytest.raises(TapError, match=f"id_tap: {name}= is what the function is told"):
        tracerec.id_tap(Log(), 1.0, **{name: "x"})


@pytest.mark.parametrize(
    "values",
    [
        (0.0, -0.0),
        (1, True, 1.0),
        ((1,), (True,), (1.0,)),
        (frozenset([1]), frozenset([True])),
        ((0.0, (1,)), (-0.0, (1,)), (0.0, (True,))),
    ],
)
def test_partials_of_equal_but_different_values_are_told_apart(values: tuple[Any, ...]) -> None:
    """What arrives is what the partial holds."""
    got: list[str] = []

    def consumer(held: Any, _: Any) -> None:
        got.append(repr(held))

    for value in values:
        tracerec.id_tap(partial(consumer, value), 1.0)
    tracerec.barrier_wait()
    assert got == [repr(value) for value in values]


def test_what_the_body_of_a_receiver_raised_goes_before_what_a_consumer_did() -> None:
    """The consumer's error is in its notes."""

    def bad(_: Any) -> None:
        raise KeyError

    with pytest.raises(KeyboardInterrupt) as caught, tracerec.outfeed_receiver():  # noqa: PT012
        tracerec.id_tap(bad, 1.0)
        raise KeyboardInterrupt
    assert "bad' failed on 1 record" in caught.value.__notes__[0]
    tracerec.barrier_wait()


def test_failures_of_values_without_a_device_are_every_receivers() -> None:
    """A Python scalar lies on none."""

    def bad(_: Any) -> None:
        raise KeyError

    with pytest.raises(ConsumerError, match="bad"), tracerec.outfeed_receiver(backends="cpu"):
        tracerec.id_tap(bad, 1.0)


def test_a_receiver_is_refused_while_tracing() -> None:
    """It would end before anything inside it runs."""

    def function(x: Any) -> Any:
        with tracerec.outfeed_receiver():
            return tracerec.id_tap(Log(), x)

    with pytest.raises(ConsumerError, match="outfeed_receiver: called while tracing"):
        jax.jit(function)(1.0)


class Unprintable(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException, Unprintable])
def test_a_consumer_that_raises_what_ends_programs_ends_neither_program_nor_receiver(
    error: type[BaseException],
) -> None:
    """It is a failure like any other."""
    log = Log()

    def bad(_: Any) -> None:
        raise error

    def function(x: Any) -> Any:
        return tracerec.id_tap(log, tracerec.id_tap(bad, x))

    jax.jit(function)(1.0)
    with pytest.raises(ConsumerError, match=r"bad.*failed on 1 record, first") as caught:
        tracerec.barrier_wait(60)
    assert isinstance(caught.value.__cause__, error)
    assert len(log.calls) == 1


def test_barrier_wait_gives_up_after_its_timeout_naming_the_device() -> None:
    """A stuck consumer."""
    release = threading.Event()
    jax.jit(lambda x: tracerec.id_tap(lambda _: release.wait(60), x))(1.0)
    try:
        with pytest.raises(ReceiverTimeout, match=r"not consumed within 0.1 s: 1 record, 1 from device 0"):
            tracerec.barrier_wait(timeout=0.1)
    finally:
        release.set()
    tracerec.barrier_wait(timeout=60)


def test_a_receiver_waits_at_its_end_and_raises_there() -> None:
    """Everything sent inside has been consumed."""
    log = Log()
    function = jax.jit(lambda x: tracerec.id_tap(log, x))
    with tracerec.outfeed_receiver(receiver_name="r"):
        for i in range(50):
            function(i)
    assert [int(args[0]) for args, _ in log.calls] == list(range(50))

    def bad(_: Any) -> None:
        raise KeyError

    with pytest.raises(ConsumerError, match="bad"), tracerec.outfeed_receiver():
        jax.jit(lambda x: tracerec.id_tap(bad, x))(1.0)


def test_a_receiver_of_other_devices_leaves_a_failure_to_one_of_this() -> None:
    """Failures belong to the devices of their records."""

    def bad(_: Any) -> None:
        raise KeyError

    first, second = jax.devices()[:2]
    with pytest.raises(ConsumerError, match="bad"):  # noqa: SIM117, PT012 - the outer one raises
        with tracerec.outfeed_receiver(devices=[first]):
            with tracerec.outfeed_receiver(devices=[second]):
                jax.jit(lambda x: tracerec.id_tap(bad, x))(jax.device_put(1.0, first))
    with tracerec.outfeed_receiver(backends="cpu"):
        pass


def test_a_receiver_takes_backends_or_devices_not_both() -> None:
    """As host_callback did."""
    with pytest.raises(ValueError, match="give backends or devices, not both"):  # noqa: SIM117
        with tracerec.outfeed_receiver(backends="cpu", devices=jax.devices()):
            pass


def test_a_receiver_times_out_with_its_name() -> None:
    """It says what is missing from which device."""
    release = threading.Event()
    function = jax.jit(lambda x: tracerec.id_tap(lambda _: release.wait(60), x))
    with pytest.raises(ReceiverTimeout, match=r"outfeed_receiver 'mine': not consumed .* 1 record, 1 from device 0"):  # noqa: SIM117
        with tracerec.outfeed_receiver(receiver_name="mine", timeout_sec=0.1):
            function(1.0)
    release.set()
    tracerec.barrier_wait()


def test_shard_map_calls_the_function_once_a_device() -> None:
    """In any order of devices."""
    log = Log()
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    jax.jit(jax.shard_map(lambda x: tracerec.id_tap(log, x), mesh=mesh, in_specs=spec, out_specs=spec))(jnp.arange(8))
    tracerec.barrier_wait()
    assert sorted(args[0].tolist() for args, _ in log.calls) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_recorders_do_not_get_what_functions_do(tmp_path: Any) -> None:
    """An id_tap is for its function; a tap is for recorders."""
    log = Log()
    with tracerec.record(tmp_path / "run.h5"):
        jax.jit(lambda x: tracerec.tap(tracerec.id_tap(log, x), "t"))(1.0)
    with tracerec.open(tmp_path / "run.h5") as trace:
        assert list(trace.taps) == ["t"]
    assert len(log.calls) == 1


def test_what_cannot_be_called_is_refused_and_disabled_leaves_the_program_untouched() -> None:
    """At the call."""
    with pytest.raises(TapError, match="id_tap: 3 cannot be called"):
        tracerec.id_tap(3, 1.0)  # type: ignore[arg-type]
    with tracerec.disabled():
        assert "custom_call" not in jax.jit(tracerec.id_print).lower(1.0).as_text()


def test_numbers_that_jax_would_change_are_refused_or_warned_of() -> None:
    """An int beyond int32 with x64 off; the same in an array."""
    with pytest.raises(TapError, match="tap 't': 1099511627776 does not fit into int32; pass it as a kwarg"):
        tracerec.tap(2**40, "t")
    with pytest.warns(RuntimeWarning, match="tap 't': numbers of int64 do not fit into int32"):
        tracerec.tap(np.array([2**40]), "t")
    with pytest.raises(TapError, match="tap 't': a leaf is ndarray"):
        tracerec.tap(np.array([object()]), "t")
    np.testing.assert_array_equal(tracerec.tap(np.arange(3, dtype=">i4"), "t"), [0, 1, 2])
