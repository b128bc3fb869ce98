"""What a recording wants of each tap, decided when functions are traced; and what is changed while it runs."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracerec
from tests.support import run_python
from tracerec.controlling import control
from tracerec.errors import RecordingError, TapError, TraceNotFound
from tracerec.gating import CONTROL_FILE
from tracerec.keeping import Fingerprint, Full, Slice, Summary
from tracerec.plans import Plan, Policy, matches

if TYPE_CHECKING:
    from pathlib import Path

X = np.array([1.0, 2.0, 3.0], np.float32)


def model() -> Any:
    """Returns a function with three taps that counts how often it is traced."""
    calls = {"traced": 0}

    @jax.jit
    def f(x: Any, step: Any) -> Any:
        calls["traced"] += 1
        x = tracerec.tap(x * 2, "encoder/act", step=step)
        x = tracerec.tap(x + 1, "encoder/debug", step=step)
        return tracerec.tap(x.sum(), "loss", step=step)

    return f, calls


def taps(path: Path) -> dict[str, list[int]]:
    """Returns the steps of each tap of a trace."""
    with tracerec.open(path) as trace:
        return {name: [int(r.step) for r in tap] for name, tap in trace.taps.items()}


def test_patterns_take_in_and_leave_out() -> None:
    """A name that is a pattern is itself."""
    assert matches("a/b", ["a/*"])
    assert matches("a*", ["a*"])
    assert not matches("a/b", ["a/*", "!*/b"])
    assert matches("c", ["!*/b"])
    assert not matches("c", ["a/*"])


def test_a_policy_makes_a_plan_of_what_the_tap_asks_for() -> None:
    """What it does not speak of stays."""
    policy = Policy.parsed(["*", "!x"], 5, {"a/*": "summary", "b": ["full", Slice(0)]}, derivatives=False)
    assert policy.plan("x", Plan()) is None
    assert policy.plan("a/b", Plan()) == Plan((Summary(),), "lanes", 5, derivatives=False)
    assert policy.plan("b", Plan((Fingerprint(),), "batch")) == Plan((Full(), Slice(0)), "batch", 5, derivatives=False)
    assert policy.plan("c", Plan((Fingerprint(),))) == Plan((Fingerprint(),), "lanes", 5, derivatives=False)
    assert Policy.parsed().plan("c", Plan((Fingerprint(),))) == Plan((Fingerprint(),))
    assert hash(policy) == hash(Policy.parsed(["*", "!x"], 5, {"a/*": "summary", "b": ["full", Slice(0)]}, False))  # noqa: FBT003


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"taps": []}, RecordingError, "taps="),
        ({"taps": [3]}, RecordingError, "taps="),
        ({"taps": "!"}, RecordingError, "taps="),
        ({"every": 0}, RecordingError, "every=0"),
        ({"every": 2.0}, RecordingError, "every=2.0"),
        ({"every": True}, RecordingError, "every=True"),
        ({"keep": {1: "full"}}, RecordingError, "no pattern"),
        ({"keep": {"*": "summry"}}, TapError, "summry"),
        ({"keep": "everything"}, TapError, "everything"),
        ({"derivatives": "no"}, RecordingError, "derivatives="),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    options: dict[str, Any], error: type, message: str, tmp_path: Path
) -> None:
    """Each names what is wrong."""
    with pytest.raises(error, match=message):
        tracerec.record(tmp_path / "run.h5", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_tap_left_out_is_not_in_the_compiled_program(tmp_path: Path) -> None:
    """The program is the untapped one."""
    f, _ = model()

    def text(**options: Any) -> str:
        with tracerec.record(tmp_path / f"{len(list(tmp_path.iterdir()))}.h5", **options):
            return f.lower(X, 0).as_text()

    with tracerec.disabled():
        untapped = f.lower(X, 0).as_text()
    assert text(taps=["nothing"]) == untapped
    assert text(taps=["!*"]) == untapped
    assert text(taps=["loss"]).count("custom_call") == 1
    assert text().count("custom_call") == 3


def test_changing_the_recording_traces_anew_once(tmp_path: Path) -> None:
    """What was traced for the same wishes is used again."""
    f, calls = model()
    plain = tmp_path / "plain.h5"
    with tracerec.record(plain):
        for step in range(3):
            f(X, step)
    assert calls["traced"] == 1
    for number in range(2):
        with tracerec.record(tmp_path / f"some{number}.h5", taps=["encoder/*", "!*/debug"], every=2):
            for step in range(5):
                f(X, step)
        assert taps(tmp_path / f"some{number}.h5") == {"encoder/act": [0, 2, 4]}
        assert calls["traced"] == 2
    with tracerec.record(tmp_path / "again.h5"):
        f(X, 7)
    assert calls["traced"] == 2
    assert taps(tmp_path / "again.h5") == {"encoder/act": [7], "encoder/debug": [7], "loss": [7]}


def test_two_recordings_get_what_each_wants(tmp_path: Path) -> None:
    """At the same time, of the same function."""
    f, _ = model()
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    with (
        tracerec.record(a, taps=["encoder/*"], keep="summary"),
        tracerec.record(b, every=2, derivatives=False),
        tracerec.record(c),
    ):
        for step in range(4):
            jax.grad(f)(X, step)
    assert set(taps(a)) == {"encoder/act", "encoder/debug"}
    with tracerec.open(a) as trace:
        assert {r.step for r in trace.records()} == {0, 1, 2, 3}
        leaves = [leaf for tap in trace.taps.values() for site in tap.sites for leaf in site.leaves]
        assert {leaf.kept.part for leaf in leaves if leaf.kept} == {"counts", "range", "moments"}
        assert {r.site.transform_names for r in trace.records()} == {(), ("jvp", "transpose")}
    with tracerec.open(b) as trace:
        assert [(r.tap, r.step, r.transforms) for r in trace.records() if r.tap == "loss"] == [
            ("loss", 0, ()),
            ("loss", 2, ()),
        ]
        assert len(trace) == 6
        np.testing.assert_array_equal(trace["encoder/act"].to_numpy(), np.stack([X * 2] * 2))
    with tracerec.open(c) as trace:
        assert len(trace) == 4 * 6
    for path in (a, b, c):
        assert tracerec.verify(path).ok


def test_a_recording_wins_over_the_tap(tmp_path: Path) -> None:
    """In what is kept and how often."""

    @jax.jit
    def f(x: Any, step: Any) -> Any:
        return tracerec.tap(x, "t", step=step, keep="summary", every=3)

    with tracerec.record(tmp_path / "full.h5", keep={"t": "full"}, every=2):
        for step in range(7):
            f(X, step)
    with tracerec.open(tmp_path / "full.h5") as trace:
        np.testing.assert_array_equal(trace["t"].to_numpy(), np.stack([X] * 4))
        assert trace["t"].steps.tolist() == [0, 2, 4, 6]


def test_every_thread_traces_for_the_recording(tmp_path: Path) -> None:
    """Not only the one that began it."""
    f, _ = model()
    with tracerec.record(tmp_path / "run.h5", taps="loss"):
        thread = threading.Thread(target=lambda: jax.block_until_ready(f(X, 1)))
        thread.start()
        thread.join()
    assert taps(tmp_path / "run.h5") == {"loss": [1]}


def test_what_was_compiled_before_the_recording_is_held_to_it_on_the_host(tmp_path: Path) -> None:
    """A compiled function knows of no recording."""
    f, _ = model()
    compiled = f.lower(X, 0).compile()
    with tracerec.record(tmp_path / "run.h5", taps=["loss"], every=2):
        for step in range(4):
            compiled(X, step)
            f(X, step)
    assert taps(tmp_path / "run.h5") == {"loss": [0, 0, 2, 2]}
    assert tracerec.verify(tmp_path / "run.h5").ok


def test_functions_and_eager_taps_are_their_own(tmp_path: Path) -> None:
    """A policy is for what is recorded."""
    seen: list[float] = []

    @jax.jit
    def f(x: Any) -> Any:
        x = tracerec.id_tap(lambda v: seen.append(float(v)), x)
        return tracerec.tap(x, "t")

    with tracerec.record(tmp_path / "run.h5", taps=["e"]):
        f(1.0)
        tracerec.tap(2.0, "e")
        tracerec.tap(3.0, "not")
        tracerec.barrier_wait()
    assert seen == [1.0]
    assert taps_without_steps(tmp_path / "run.h5") == {"e": 1}


def taps_without_steps(path: Path) -> dict[str, int]:
    """Returns how many records each tap of a trace has."""
    with tracerec.open(path) as trace:
        return {name: len(tap) for name, tap in trace.taps.items()}


def test_pause_resume_and_set_compile_nothing(tmp_path: Path) -> None:
    """They only leave out."""
    f, calls = model()
    path = tmp_path / "run.h5"
    with tracerec.record(path) as rec:
        f(X, 0)
        rec.flush()
        rec.pause()
        f(X, 1)
        rec.flush()
        rec.resume()
        rec.set(every=4, taps=["loss"])
        for step in range(2, 9):
            f(X, step)
        rec.flush()
        rec.set(taps=None)
        f(X, 9)
        f(X, 12)
        rec.flush()
        rec.set(every=None)
        f(X, 13)
        with pytest.raises(RecordingError, match="every=0"):
            rec.set(every=0)
    assert calls["traced"] == 1
    assert taps(path) == {"encoder/act": [0, 12, 13], "encoder/debug": [0, 12, 13], "loss": [0, 4, 8, 12, 13]}
    assert tracerec.verify(path).ok


def test_another_process_changes_it_within_a_second(tmp_path: Path) -> None:
    """By the command line."""
    f, calls = model()
    path = tmp_path / "run.h5"

    def ctl(*options: str) -> Any:
        done = run_python("from tracerec.cli import main; main()", "ctl", str(path), "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["recordings"]

    with tracerec.record(path) as rec:
        f(X, 0)
        rec.flush()
        assert ctl("--every", "10", "--taps", "encoder/*", "--taps", "!*/debug") == [
            {"path": str(path), "paused": False, "every": 10, "taps": ["encoder/*", "!*/debug"]}
        ]
        time.sleep(0.3)
        for step in range(1, 21):
            f(X, step)
        rec.flush()
        ctl("--pause")
        time.sleep(0.3)
        f(X, 30)
        rec.flush()
        ctl("--resume", "--every", "1", "--taps", "*")
        time.sleep(0.3)
        f(X, 31)
    assert calls["traced"] == 1
    assert taps(path) == {"encoder/act": [0, 10, 20, 31], "encoder/debug": [0, 31], "loss": [0, 31]}
    assert not (tmp_path / "run.h5.live").exists()


def test_control_says_what_is_wrong(tmp_path: Path) -> None:
    """In one sentence."""
    with pytest.raises(TraceNotFound, match="nothing is recorded to"):
        control(tmp_path / "run.h5")
    path = tmp_path / "run.h5"
    with tracerec.record(path) as rec:
        with pytest.raises(RecordingError, match="'evry' cannot be changed"):
            control(path, evry=3)
        with pytest.raises(RecordingError, match="every=-1"):
            control(path, every=-1)
        assert set(control(str(tmp_path / "run.*"), paused=True)) == {str(path)}
        (rec.folder / CONTROL_FILE).write_text("{")
        with pytest.raises(RecordingError, match="is no JSON"):
            control(path)
        tracerec.tap(1.0, "t")
    with pytest.raises(RecordingError, match="no process records to it any more"):
        control(path, paused=True)
    assert taps_without_steps(path) == {"t": 1}


def test_settings_of_a_killed_attempt_do_not_hold_for_the_next(tmp_path: Path) -> None:
    """The file in its folder is stale."""
    path = tmp_path / "run.h5"
    source = (
        "import os, sys, tracerec\n"
        "rec = tracerec.record(sys.argv[1]); tracerec.tap(1.0, 't', step=0); rec.flush()\n"
        "tracerec.control(sys.argv[1], paused=True); os.kill(os.getpid(), 9)\n"
    )
    run_python(source, str(path))
    with tracerec.record(path, mode="a"):
        tracerec.tap(2.0, "t", step=1)
    assert taps(path) == {"t": [0, 1]}


SILENT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing traced": (lambda: None, {}, "no tap was traced"),
    "left out": (lambda: tracerec.tap(1.0, "t"), {"taps": "x"}, "t: left out by taps="),
    "not now": (lambda: tracerec.tap(1.0, "t", step=1, every=2), {}, "t: when=, every=, first= or steps= said no"),
    "on the device": (
        lambda: jax.jit(lambda x: tracerec.tap(x, "t", when=x > 3))(1.0),
        {},
        "t: when=, every=, first= or steps= said no whenever it ran",
    ),
    "not run": (
        lambda: jax.jit(lambda x: tracerec.tap(x, "t")).lower(1.0),
        {},
        "t: traced, but its program did not run",
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_recording_without_a_record_says_why(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each reason."""
    from tracerec.tapping import traced

    monkeypatch.setattr(traced, "_notes", {})
    act, options, message = SILENT[case]
    with caplog.at_level(logging.WARNING, "tracerec"), tracerec.record(tmp_path / "run.h5", **options):
        act()
    (warning,) = [r.getMessage() for r in caplog.records if "has no record" in r.getMessage()]
    assert message in warning


def test_paused_is_a_reason_too_and_a_recording_with_records_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute, here a shorter one."""
    from tracerec import recording

    monkeypatch.setattr(recording, "_SILENT_SECONDS", 0.2)
    with tracerec.record(tmp_path / "a.h5") as rec:
        rec.pause()
        time.sleep(0.5)
        assert "has no record after a minute: it is paused" in caplog.text
    caplog.clear()
    with tracerec.record(tmp_path / "b.h5"):
        tracerec.tap(1.0, "t")
        tracerec.barrier_wait()
        time.sleep(0.4)
    assert "has no record" not in caplog.text


def test_disabled_and_scopes_go_with_policies(tmp_path: Path) -> None:
    """Patterns match the whole name."""

    @jax.jit
    def f(x: Any) -> Any:
        with tracerec.scope("inner"):
            return tracerec.tap(jnp.sin(x), "t")

    with tracerec.record(tmp_path / "run.h5", taps="inner/*"):
        f(1.0)
        with tracerec.disabled():
            f(2.0)
    assert taps_without_steps(tmp_path / "run.h5") == {"inner/t": 1}


def test_what_arrived_before_a_change_is_held_to_what_held_then(tmp_path: Path) -> None:
    """Although it still waits in the queue when the change is made."""
    f, _ = model()
    path = tmp_path / "run.h5"
    with tracerec.record(path, taps="loss") as rec:
        jax.block_until_ready([f(X, 0), f(X, 2)])
        rec.set(every=5)
        jax.block_until_ready([f(X, 3), f(X, 5)])
        rec.pause()
        jax.block_until_ready(f(X, 10))
        rec.resume()
        rec.set(taps="zzz")
        jax.block_until_ready(f(X, 15))
        rec.set(taps=None)
        jax.block_until_ready(f(X, 20))
    assert taps(path) == {"loss": [0, 2, 5, 20]}


def test_silence_speaks_of_taps_of_its_own_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not of those of earlier recordings."""
    with tracerec.record(tmp_path / "a.h5"):
        tracerec.tap(1.0, "earlier")
    with tracerec.record(tmp_path / "b.h5"):
        tracerec.tap(1.0, "own", step=1, every=2)
    assert "own: when=" in caplog.text
    assert "earlier" not in caplog.text


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (123, {}, "not a path"),
        ("a\0b.h5", {}, "not a path"),
        ("a.h5", {"budget": 3}, "budget=3"),
        ("a.h5", {"max_queue_bytes": 0}, "max_queue_bytes=0"),
        ("a.h5", {"block_timeout": -1}, "block_timeout=-1"),
    ],
)
def test_other_wrong_arguments_are_refused_in_a_sentence(path: Any, options: Any, message: str, tmp_path: Path) -> None:
    """No error of Python's own."""
    given = tmp_path / path if path == "a.h5" else path
    with pytest.raises(RecordingError, match=message):
        tracerec.record(given, **options)
