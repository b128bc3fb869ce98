"""Kills recordings at random moments, and looks at what is left.

Each trial is a real process that records numbered values over streams that are added all the while, into segments so
small that they rotate and are sealed all the while, then closes. It says what was flushed. It is killed with SIGKILL
at a random moment, or its sealing process is, or both are; then what is left is opened: nothing may be unreadable,
every record that was flushed must be there with its value, and what is lost must be said. Then the recording is
repaired, or continued, and read again.

    python -m tools.trials --count 200 --format h5
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tracerec
from tools.feeding import Feed, expected
from tracerec.model import FLAG_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Outcome", "main", "sealing_processes", "trial"]

KINDS = ("recording", "closing", "sealer", "both")

_SHAPES = ((), (64,), (4096,))
_RECORD_SECONDS = 1.5
_CLOSE_SECONDS = 1.5
_LIMIT_SECONDS = 90.0
_SEGMENT_BYTES = 256 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one trial.

    Attributes:
        kind: when and what was killed.
        state: how the recording was found: ``"killed"``, ``"clean"``, ...
        flushed: how many records had been flushed.
        read: how many were read.
        form: ``"journal"``, ``"parts and journal"`` or ``"sealed"``.
        faults: what is wrong; empty when all is well.
    """

    kind: str
    state: str
    flushed: int
    read: int
    form: str
    faults: tuple[str, ...]


def trial(path: Path, kind: str, seed: int, *, after: str = "repair") -> Outcome:
    """Runs one trial.

    Args:
        path: where to record to; ``.h5`` or ``.arrow``.
        kind: one of `KINDS`.
        seed: of the moment.
        after: ``"repair"``, ``"continue"`` or ``"nothing"``: what is done with what is left.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    flushed, ended = _run_and_kill(path, kind, chance)
    form = _form(path)
    faults: list[str] = []
    state, read = "gone", 0
    try:
        state, read = _check(path, flushed, faults)
        # One that is being closed has all its records, and says so.
        if kind in ("recording", "both") and not ended and state == "clean" and read < sum(flushed.values()):
            faults.append("a recording that was killed is said to be clean")
        if kind == "sealer" and (state != "clean" or not ended):
            faults.append(f"killing the sealing process alone made the recording {state}")
        _take_up(path, after, flushed, faults)
    except Exception:  # noqa: BLE001 - whatever is raised is a fault that is reported
        faults.append(traceback.format_exc())
    return Outcome(kind, state, sum(flushed.values()), read, form, tuple(faults))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs trials, prints a table, and returns 1 when there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--format", choices=("h5", "arrow"), default="h5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder to keep recordings with faults in")
    options = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    for number in range(options.count):
        kind = KINDS[number % len(KINDS)]
        after = ("repair", "continue", "nothing")[number // len(KINDS) % 3]
        folder = Path(tempfile.mkdtemp(prefix="trial-"))
        outcome = trial(folder / f"run.{options.format}", kind, options.seed + number, after=after)
        outcomes.append(outcome)
        if outcome.faults:
            _print(f"seed {options.seed + number}, {kind}, {after}: {'; '.join(outcome.faults)}")
            if options.keep is not None:
                shutil.copytree(folder, options.keep / f"{options.seed + number}")
        shutil.rmtree(folder)
    _print(summary(outcomes))
    return int(any(outcome.faults for outcome in outcomes))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns a table of what came of the trials."""
    lines = ["kind        trials  faults  flushed records  found as"]
    for kind in KINDS:
        mine = [outcome for outcome in outcomes if outcome.kind == kind]
        forms = ", ".join(f"{n} {form}" for form, n in sorted(Counter(f"{o.form} ({o.state})" for o in mine).items()))
        faults = sum(bool(o.faults) for o in mine)
        lines.append(f"{kind:<11} {len(mine):>6}  {faults:>6}  {sum(o.flushed for o in mine):>15,}  {forms}")
    return "\n".join(lines)


def _run_and_kill(path: Path, kind: str, chance: random.Random) -> tuple[dict[str, int], bool]:
    """Returns how many records of each tap had been flushed, and whether the program came to its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(lambda: _record(path, writing, streams_every=chance.choice((2, 20))))
    os.close(writing)
    told = _Told(reading)
    wait_for = "closing" if kind == "closing" else "begun"
    told.until(wait_for)
    told.for_seconds(chance.uniform(0, _CLOSE_SECONDS if kind == "closing" else _RECORD_SECONDS))
    sealers = sealing_processes(child)
    victims = {"sealer": sealers, "both": [*sealers, child]}.get(kind, [child])
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    told.until("ended")
    os.close(reading)
    _, status = os.waitpid(child, 0)
    _wait_for_orphans(sealers)
    return told.flushed, status == 0


def _be_child(work: Callable[[], None]) -> None:
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - the child ends here
        traceback.print_exc()
        status = 1
    os._exit(status)


def _record(path: Path, pipe: int, *, streams_every: int) -> None:
    def tell(**what: Any) -> None:
        os.write(pipe, (json.dumps(what) + "\n").encode())

    recording = tracerec.record(path, segment_bytes=_SEGMENT_BYTES)
    feeds: list[Feed] = []
    tell(said="begun")
    end = time.monotonic() + _RECORD_SECONDS
    turn = 0
    while time.monotonic() < end:
        if turn % streams_every == 0 and len(feeds) < 200:  # noqa: PLR2004
            feeds.append(Feed(len(feeds), _SHAPES[len(feeds) % len(_SHAPES)]))
        for feed in feeds[-40:]:
            feed.put()
        turn += 1
        if turn % 5 == 0:
            sent = {feed.name: feed.sent for feed in feeds}
            recording.flush()
            tell(said="flushed", counts=sent)
    recording.flush()
    tell(said="flushed", counts={feed.name: feed.sent for feed in feeds})
    tell(said="closing")
    recording.close()
    tell(said="closed")


class _Told:
    """What the child has said, over a pipe."""

    def __init__(self, pipe: int) -> None:
        self.flushed: dict[str, int] = {}
        self._pipe = pipe
        self._partial = b""
        self._limit = time.monotonic() + _LIMIT_SECONDS

    def until(self, word: str) -> None:
        """Listens until the child says a word, or has ended."""
        while self._listen(max(0.0, self._limit - time.monotonic())) not in (word, "ended"):
            if time.monotonic() > self._limit:
                message = f"the child hung before it said {word!r}"
                raise TimeoutError(message)

    def for_seconds(self, seconds: float) -> None:
        """Listens for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._listen(left) == "ended":
                time.sleep(left)
                return

    def _listen(self, timeout: float) -> str | None:
        if not select.select([self._pipe], [], [], timeout)[0]:
            return None
        data = os.read(self._pipe, 1 << 16)
        *lines, self._partial = (self._partial + data).split(b"\n")
        said = "ended" if not data else None
        for line in lines:
            what = json.loads(line)
            said = what["said"] if said != "closing" else said
            self.flushed = what.get("counts", self.flushed)
        return said


def sealing_processes(parent: int) -> list[int]:
    """Returns the sealing processes of a process."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                ppid = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if b"tracerec.sealing" in words and ppid == parent:
                    found.append(int(entry.name))
    return found


def _wait_for_orphans(sealers: list[int]) -> None:
    """Sealing processes end when their parent has; one that goes on could change what is being looked at."""
    deadline = time.monotonic() + 10
    while any(_is_alive(pid) for pid in sealers):
        if time.monotonic() > deadline:
            message = f"sealing processes {sealers} outlived their parent"
            raise TimeoutError(message)
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        # a zombie has no command line
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _form(path: Path) -> str:
    live = Path(f"{path}.live")
    if path.exists():
        return "sealed"
    parts = any(entry.name.startswith("part-") and ".tmp-" not in entry.name for entry in live.iterdir())
    return "parts and journal" if parts else "journal"


def _check(path: Path, flushed: dict[str, int], faults: list[str]) -> tuple[str, int]:
    """Reads a recording and adds what is wrong with it; returns its state and how many records it has."""
    read = 0
    with tracerec.open(path) as trace:
        raw = trace.raw
        state = trace.info.state
        for name, count in flushed.items():
            if count and name not in raw.taps:
                faults.append(f"{name}: {count} flushed records are missing")
        for name, tap in raw.taps.items():
            values = tap.to_numpy()
            rows = _steps(tap)
            read += len(values)
            stream = int(name.split("/")[1])
            per_attempt = _attempts(rows)
            if per_attempt[0] < flushed.get(name, 0):
                faults.append(f"{name}: {per_attempt[0]} records, {flushed[name]} were flushed")
            if not np.array_equal(values, expected(stream, rows, values.shape[1:])):
                faults.append(f"{name}: values are wrong")
            if not np.array_equal(rows, np.concatenate([np.arange(n) for n in per_attempt])):
                faults.append(f"{name}: records are not the first ones, in order")
        if state == "killed" and not trace.info.notes:
            faults.append("nothing is said of the end")
        if trace.info.dropped:
            faults.append(f"records are said to be missing: {dict(trace.info.dropped)}")
    return state, read


def _steps(tap: Any) -> np.ndarray:
    rows = np.concatenate([view.index(0, view.records) for view in tap._views])  # noqa: SLF001
    if not (rows["flags"] & FLAG_STEP).all():
        message = "a record has no step"
        raise ValueError(message)
    return rows["step"]


def _attempts(rows: np.ndarray) -> list[int]:
    """Returns how many records there are from each 0 on."""
    starts = np.flatnonzero(rows == 0)
    return np.diff(np.append(starts, len(rows))).tolist() or [0]


def _take_up(path: Path, after: str, flushed: dict[str, int], faults: list[str]) -> None:
    """Repairs or continues what is left, and checks that it is whole then."""
    if after == "nothing":
        return
    if after == "continue":
        child = os.fork()
        if child == 0:
            _be_child(lambda: _continue(path))
        _, status = os.waitpid(child, 0)
        if status:
            faults.append("it could not be continued")
            return
    elif not path.exists():
        tracerec.repair(Path(f"{path}.live"))
    state, _ = _check(path, flushed, faults)
    if not path.exists() or Path(f"{path}.live").exists():
        faults.append(f"after {after} the live folder is still there")
    verified = tracerec.verify(path)
    if not verified.ok:
        faults.append(f"after {after}: {verified.faults}")
    if after == "continue":
        with tracerec.open(path) as trace:
            if len(trace.info.attempts) != 2 or state != "clean":  # noqa: PLR2004
                faults.append(f"after continuing there are {len(trace.info.attempts)} attempts, {state}")


def _continue(path: Path) -> None:
    with tracerec.record(path, mode="a", segment_bytes=_SEGMENT_BYTES):
        feeds = [Feed(number, _SHAPES[number % len(_SHAPES)]) for number in range(6)]
        for _ in range(20):
            for feed in feeds:
                feed.put()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
