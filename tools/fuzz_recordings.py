"""Fuzzing recordings: ``python -m tools.fuzz_recordings [--count N] [--format F ...] [--seed S] [--first K]``.

Small recordings of every form are damaged, and every verb of a reader runs on them: open, info, overview, records,
to_pandas, inspect, verify, repair. A fault is a crash, a hang, an exception that is none of tracerec's, memory out of
proportion, a value that is not the one recorded where a checksum covers it, a loss that nobody tells, or a repair whose
result is not sound. All of it happens in child processes whose memory and time are limited. Mutation K of a seed and a
format is the same in every run: ``--format F --first K --count 1`` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import functools
import io
import json
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.fuzzed_recordings import FORMATS, Recording, Truth, damage, is_cut_cleanly, made
from tracerec import repairing
from tracerec.errors import TracerecError
from tracerec.salvaging.process import run_order
from tracerec.salvaging.worker import work
from tracerec.trace import open_trace
from tracerec.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tracerec.formats.contract import RunInfo
    from tracerec.trace import Trace

MEMORY_BYTES = 1 << 30
"""What a child may have beside what it starts with."""
HANG_S = 60
"""A mutation takes a fraction of a second; one that takes this long is a hang."""
PROCESS_SHARE = 100
"""One repair of so many runs in the process that it has in real life; the others run here, which is faster."""
TEXT_SHARE = 8
"""One inspection of so many is drawn for a terminal too; the others are JSON, from the same reads."""


class FaultError(AssertionError):
    """A reader did something that it must not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutations in limited children; prints figures and faults; returns 0, or 1 when there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_recordings", description="Fuzzes recordings.")
    parser.add_argument("--count", type=int, default=20_000, help="mutations of each format; default: %(default)s")
    parser.add_argument("--format", action="append", choices=FORMATS, help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation; default: %(default)s")
    parser.add_argument("--in-process", action="store_true", help="no child and no limits, for a debugger")
    options = parser.parse_args(arguments)
    faults = 0
    for name in options.format or FORMATS:
        start = time.monotonic()
        span = Span(name, options.seed, options.first, options.count)
        if options.in_process:
            figures, found = collections.Counter[str](), list[dict[str, Any]]()
            fuzz(span, figures, found.append)
        else:
            figures, found = watch(span)
        shown = ", ".join(f"{key} {value}" for key, value in sorted(figures.items()))
        print(f"{name}: {shown}, seconds {time.monotonic() - start:.0f}", flush=True)
        for fault in found:
            print(f"FAULT: --format {name} --seed {options.seed} --first {fault['number']} --count 1: {fault['what']}")
        faults += len(found)
    return 1 if faults else 0


@dataclasses.dataclass(frozen=True)
class Span:
    """Some mutations.

    Attributes:
        name: the format.
        seed: any number.
        first: the number of the first.
        count: how many.
    """

    name: str
    seed: int
    first: int
    count: int


def watch(span: Span) -> tuple[collections.Counter[str], list[dict[str, Any]]]:
    """Runs children until all mutations are done: one that dies is followed by another, behind its last mutation."""
    figures, faults = collections.Counter[str](), list[dict[str, Any]]()
    end, at = span.first + span.count, span.first
    while at < end:
        done, died = _child(dataclasses.replace(span, first=at, count=end - at), figures, faults)
        if died is None:
            break
        faults.append({"number": done, "what": died})
        at = done + 1
    return figures, faults


def _child(span: Span, figures: collections.Counter[str], faults: list[dict[str, Any]]) -> tuple[int, str | None]:
    """Runs one child; returns the mutation it did last, and how it died, None when it did not."""
    command = [sys.executable, "-X", "faulthandler", "-c", "from tools import fuzz_recordings as f; f.child()"]
    given = json.dumps(dataclasses.astuple(span))
    # pyarrow's own allocator reserves a GiB of addresses at once, which the limit counts as memory.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    number = span.first
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*command, given], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        with process:
            for line in process.stdout:
                said = json.loads(line)
                number = said.get("number", number)
                if "figures" in said:
                    figures.update(said["figures"])
                if "what" in said:
                    faults.append(said)
        if process.returncode == 0:
            return number, None
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip()[-3000:]
    return number, f"the child ended with status {process.returncode}\n{last}"


def child() -> None:
    """What a child runs: the mutations that its last argument tells, under limits."""
    span = Span(*json.loads(sys.argv[-1]))
    _warm_up()
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file, the kernel's answer
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    cpu = 120 + span.count
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def say(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    figures = collections.Counter[str]()
    fuzz(span, figures, lambda fault: say(**fault), begins=lambda number: say(number=number))
    say(figures=figures)


def fuzz(
    span: Span,
    figures: collections.Counter[str],
    report: Callable[[dict[str, Any]], None],
    *,
    begins: Callable[[int], None] = lambda _: None,
) -> None:
    """Runs mutations of one format; counts outcomes, and reports faults."""
    recording = made(span.name)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of our own is made in it
    with _silenced(), tempfile.TemporaryDirectory(dir=base) as folder:
        for number in range(span.first, span.first + span.count):
            begins(number)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            place = Path(folder) / str(number)
            place.mkdir()
            case = Case(recording, place, random.Random(f"{span.name}:{span.seed}:{number}"), figures)  # noqa: S311 - repeatable
            try:
                case.run()
            except FaultError as error:
                report({"number": number, "what": f"{'+'.join(case.done)}: {error}"})
            finally:
                faulthandler.cancel_dump_traceback_later()
                shutil.rmtree(place, ignore_errors=True)
    figures["mutations"] += span.count
    figures["peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class Case:
    """One damaged recording, on which every verb runs.

    Attributes:
        done: the names of what was done to it.
    """

    def __init__(
        self, recording: Recording, folder: Path, rng: random.Random, figures: collections.Counter[str]
    ) -> None:
        self._recording, self._folder, self._figures = recording, folder, figures
        self._notes, self._state = _said_of(recording)
        files, self.done, self._forged = damage(rng, recording)
        self._same = files == recording.files
        self._cut_cleanly = is_cut_cleanly(recording, files)
        self._in_process = rng.randrange(PROCESS_SHARE) > 0
        self._shown = rng.randrange(TEXT_SHARE) == 0
        self._path = recording.write(folder, files)

    def run(self) -> None:
        """Runs everything; raises FaultError for what must not be."""
        read = self._read()
        verified = self._guarded("verify", lambda: verify(self._path))
        self._check_read(read, verified)
        self._guarded("inspect", lambda: _inspect(self._path, text=self._shown))
        self._repair()

    def _read(self) -> tuple[Truth, RunInfo] | None:
        """Returns all records that a reader gives, and the run; None where it refuses."""

        def read() -> tuple[Truth, RunInfo]:
            with open_trace(self._path) as trace:
                trace.overview()
                trace.raw.overview()
                trace.to_pandas()
                return _records(trace.raw), trace.info

        return self._guarded("read", read)

    def _check_read(self, read: tuple[Truth, RunInfo] | None, verified: Any) -> None:
        """Compares what was read with what was recorded, and both with what verify says."""
        truth = self._recording.truth
        if self._same:
            _require(verified is not None and verified.ok, f"an intact recording is faulty: {verified}")
        _require(verified is None or not verified.ok or read is not None or self._forged, "verify finds nothing")
        if read is None:
            self._figures["refused"] += 1
            return
        found, info = read
        wrong = [n for n, record in found.items() if truth.get(n) != record]
        told = verified is None or not verified.ok
        if self._forged:
            self._figures["forged, read"] += 1
            return
        checked_when_read = "arrow" not in self._recording.name
        _require(not wrong or (told and not checked_when_read), f"records {wrong[:5]} are read wrong, untold")
        lost = len(truth.keys() - found.keys())
        untold = lost and not told and not set(info.notes) - set(self._notes) and info.state == self._state
        _require(not untold or self._cut_cleanly, f"{lost} records are missing, and nothing says so")
        self._figures["wrong, told by verify" if wrong else "read with loss, told" if lost else "read whole"] += 1

    def _repair(self) -> None:
        """Repairs a copy, and compares the result with what was recorded."""
        out = self._folder / f"out{'.arrow' if 'arrow' in self._recording.name else '.h5'}"
        with _instead(_run_here if self._in_process else run_order):
            done = self._guarded("repair", lambda: repairing.repair(self._path, out))
        if done is None:
            self._figures["not repaired"] += 1
            return
        _require(done.action != "refused" or self._forged, f"the result of a repair is faulty: {done.verification}")
        self._figures[f"repair: {done.action}{'' if done.whole else ' with loss'}"] += 1
        if done.result is None or self._forged:
            return
        with open_trace(done.result) as trace:
            found = _records(trace.raw)
        truth = self._recording.truth
        wrong = [n for n, record in found.items() if truth.get(n) != record]
        unproven = any("taken for right" in note for note in done.notes)
        _require(not wrong or unproven, f"records {wrong[:5]} are wrong in the repaired recording")
        lost = len(truth.keys() - found.keys())
        # Of a journal that was cut between two frames nobody can know that it was longer: it only has no end.
        cut_off = self._recording.name.endswith(".live") and done.verification.state == "killed"
        told = not done.whole or done.notes or cut_off or self._cut_cleanly
        _require(not lost or told, f"{lost} records are missing in the repaired recording, and nothing says so")

    def _guarded(self, verb: str, call: Callable[[], Any]) -> Any:
        """Returns what a call gives, None where it refuses; raises FaultError for any other exception."""
        try:
            return call()
        except TracerecError as error:
            text = "".join(traceback.format_exception(error))
            _require("MemoryError" not in text, f"{verb}: out of memory: {text[-1500:]}")
            return None
        except FaultError:
            raise
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            message = f"{verb}: {text[-2500:]}"
            raise FaultError(message) from error


@functools.cache
def _said_before(name: str, files: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, ...], str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Recording(name, dict(files), {}).write(Path(folder))
        with open_trace(path) as trace:
            return trace.info.notes, trace.info.state


def _said_of(recording: Recording) -> tuple[tuple[str, ...], str]:
    """Returns the notes and the state of a recording that is intact."""
    return _said_before(recording.name, tuple(recording.files.items()))


def _records(trace: Trace) -> Truth:
    """Returns all records of a trace."""
    found: Truth = {}
    for record in trace.records():
        arrays = [np.ascontiguousarray(array).tobytes() for array in record.arrays]
        columns = [
            np.asarray(value, column.dtype).tobytes()
            for value, column in zip(record.numbers, record.site.columns, strict=True)
        ]
        found[record.arrival] = (record.site.id, record.row.tobytes(), (*arrays, *columns))
    return found


def _inspect(path: Path, *, text: bool) -> None:
    """Runs ``tracerec inspect`` here."""
    from tracerec.cli import app

    for option in ((), ("--json",)) if text else (("--json",),):
        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            app(["inspect", str(path), *option], standalone_mode=False)
        output.flush()
        shown = output.detach().getvalue().decode()
        _require("\x1b" not in shown, "a control character reached the terminal")


@contextlib.contextmanager
def _silenced() -> Generator[None]:
    """Logs nothing meanwhile."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _instead(run: Callable[[Any], Any]) -> Generator[None]:
    """Has repairs carry their orders out by a function, meanwhile."""
    before = repairing.run_order
    repairing.run_order = run
    try:
        yield
    finally:
        repairing.run_order = before


def _run_here(order: Any) -> Any:
    """Carries out an order for a repair in this process."""
    from tracerec.errors import SealingError

    try:
        return work(order, lambda: None)
    except (TracerecError, OSError) as error:
        message = f"not repaired: {error}"
        raise SealingError(message, path=str(order.source)) from error


def _warm_up() -> None:
    """Imports what is imported late, so that the limit of memory is that of the data."""
    for name in ("h5py", "pandas", "pyarrow", "tracerec.cli", "tracerec.formats.hdf5.merge"):
        import_module(name)


def _require(condition: object, fault: str) -> None:
    """Raises FaultError unless the condition holds; also under ``python -O``."""
    if not condition:
        raise FaultError(fault)


if __name__ == "__main__":
    sys.exit(main())
