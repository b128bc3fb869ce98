"""``record()``: a recording, from its first record to the sealed file."""

from __future__ import annotations

import atexit
import dataclasses
import enum
import logging
import os
import platform
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import jax
import numpy as np

from tracerec import outfeed, sealing, silence
from tracerec._version import __version__
from tracerec.budget import Budget
from tracerec.errors import RecordingClosed, RecordingError, RecordingIncomplete, TracerecError
from tracerec.formats.contract import RunInfo
from tracerec.gating import Gate
from tracerec.journal.writing import SEGMENT_BYTES
from tracerec.live import Limits, LiveJournal
from tracerec.outfeed import signals
from tracerec.outfeed.waiting import finish_computations
from tracerec.plans import Policy
from tracerec.recorder import Recorder
from tracerec.sealing import MAX_FILE_BYTES
from tracerec.structure import canonical
from tracerec.tapping import traced
from tracerec.tapping.context import announce

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["Recording", "RecordingSummary", "record"]

_log = logging.getLogger("tracerec")

_HDF5_COMPRESSIONS = ("lz4", "zstd", "gzip", None)
_ARROW_COMPRESSIONS = ("lz4", "zstd", None)
Compression = Literal["lz4", "zstd", "gzip"]

_SILENT_SECONDS = 60.0
"""A recording that has no record for so long says why."""


class _Unchanged(enum.Enum):
    UNCHANGED = "unchanged"


UNCHANGED = _Unchanged.UNCHANGED
"""What `Recording.set` leaves as it is."""

# A close that sees no record consumed for this long gives up waiting, and seals what there is.
_STALL_SECONDS = 120.0


def record(
    path: str | os.PathLike[str],
    *,
    mode: Literal["x", "w", "a"] = "x",
    metadata: Mapping[str, Any] | None = None,
    compression: Compression | Literal["default"] | None = "default",
    durability: Literal["process", "disk"] = "process",
    max_bytes: int | None = None,
    budget: Mapping[str, int] | None = None,
    taps: str | Sequence[str] | None = None,
    every: int | None = None,
    keep: object = None,
    derivatives: bool | None = None,
    retain_steps: int | None = None,
    retain_bytes: int | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    max_file_bytes: int = MAX_FILE_BYTES,
    max_queue_bytes: int = 256 << 20,
    on_full: Literal["block", "drop"] = "block",
    block_timeout: float | None = 10.0,
    on_error: Literal["warn", "raise"] = "warn",
) -> Recording:
    """Starts recording every tap of this process to a file.

    While it runs the records are in the folder ``<path>.live``, where they survive a kill. A process of its own seals
    what is full there, and closing makes ``path`` of all of it. Use the recording as a context manager, or call
    `Recording.close`; a program that ends without either is closed at exit, also on SIGTERM if the program has no
    handler of its own.

    Args:
        path: where to record to: a ``.h5`` (or ``.hdf5``) file, or a ``.arrow`` folder of Arrow IPC files.
        mode: ``"x"`` refuses a path that holds a recording, ``"w"`` deletes it first, ``"a"`` continues it, finished or
            killed: what is recorded now is a new attempt in the same trace, and steps that it records again are shown
            in its version. A recording that still runs is refused in each.
        metadata: a mapping of anything that JSON can hold, stored with the run.
        compression: ``"lz4"`` (fast, HDF5's default), ``"zstd"`` (small), ``"gzip"`` (HDF5 alone: readable without
            plugins) or None (Arrow's default: its files can be mapped into memory).
        durability: ``"process"``: what is flushed survives the end of the process; ``"disk"``: a power loss too.
        max_bytes: how much may be recorded, before compression; then recording stops, and what is not recorded is
            counted. What a step takes is logged (at level INFO) after the first.
        budget: the same for each tap whose name matches a pattern: ``{"encoder/*": 1 << 30}``. The first that matches
            holds.
        taps: patterns of the taps that are recorded, of which those that begin with ``!`` leave taps out:
            ``["encoder/*", "!*/debug"]``. What no recording wants is not in the compiled program at all: it, and the
            next three, are decided when functions are traced, so that what was traced before is traced anew.
        every: records only at steps that this number divides; taps without an integer ``step`` are not affected. It
            goes before a tap's own ``every``.
        keep: what is recorded of each leaf (see `tap`), or a mapping of patterns to that, of which the first that
            matches holds: ``{"encoder/*": "summary", "*": "fingerprint"}``. It goes before a tap's own ``keep``.
        derivatives: False leaves out tangents and cotangents.
        retain_steps: keep at least the records of the newest so many steps; whole segments of older ones are deleted,
            and counted as retired.
        retain_bytes: keep about so many of the newest bytes.
        segment_bytes: the size at which a segment of the journal is full, and is sealed.
        max_file_bytes: a larger recording becomes a folder of parts with the name of the file; readers read it alike.
        max_queue_bytes: how many bytes may wait between the computation and the disk.
        on_full: ``"block"`` makes the computation wait for a full queue, at most ``block_timeout``; ``"drop"`` does
            not. What finds no room is dropped, and counted in the file and in the summary.
        block_timeout: seconds, or None for ever. More than 40 s end a process whose computation has collectives.
        on_error: what happens when records cannot be written. ``"warn"``: it is logged, counted, and raised by
            ``flush`` and ``close``; ``"raise"``: the next eager tap raises it too.

    Returns:
        The running recording.

    Raises:
        RecordingExists: the path holds a recording, or is being recorded to.
        RecordingError: the folder cannot be made, or an argument is not one of those above.

    Example:
        >>> import tempfile, jax.numpy as jnp, tracerec
        >>> path = tempfile.mkdtemp() + "/run.h5"
        >>> with tracerec.record(path):
        ...     y = tracerec.tap(jnp.arange(3), "x", step=0)
        >>> with tracerec.open(path) as trace:
        ...     trace["x"].to_numpy()
        array([[0, 1, 2]], dtype=int32)
    """
    policy = Policy.parsed(taps, every, keep, derivatives)
    target = _target(path)
    if compression == "default":
        compression = None if target.suffix.lower() == sealing.ARROW_SUFFIX else "lz4"
    _check(target, mode=mode, compression=compression, durability=durability, on_full=on_full, on_error=on_error)
    sizes = {"max_bytes": max_bytes, "retain_steps": retain_steps, "retain_bytes": retain_bytes}
    sizes |= {"segment_bytes": segment_bytes, "max_file_bytes": max_file_bytes}
    sizes |= {"max_queue_bytes": max_queue_bytes}
    if not isinstance(budget, (Mapping, type(None))):
        message = f"{target}: budget={budget!r}; give bytes by patterns of tap names, such as {{'encoder/*': 1 << 30}}"
        raise RecordingError(message, path=str(target))
    if block_timeout is not None and not (isinstance(block_timeout, (int, float)) and block_timeout >= 0):
        message = f"{target}: block_timeout={block_timeout!r}; give seconds, 0 or more, or None for ever"
        raise RecordingError(message, path=str(target))
    _check_sizes(target, sizes | {f"budget[{pattern!r}]": size for pattern, size in (budget or {}).items()})
    limits = Limits(segment_bytes, durability == "disk", retain_steps, retain_bytes, max_file_bytes)
    info = _run_info(target, metadata or {})
    try:
        journal = LiveJournal(target, mode, info, compression, limits)
    except TracerecError:
        raise
    except OSError as error:
        message = f"{target}: cannot be recorded to: {error}"
        raise RecordingError(message, path=str(target)) from error
    allowance = Budget(str(target), max_bytes, budget or {})
    recording = Recording(journal, allowance, policy, raise_early=on_error == "raise")
    options = outfeed.QueueOptions(max_queue_bytes, on_full, block_timeout)
    outfeed.add_consumer(recording.recorder, options)
    _open_recordings[id(recording)] = recording
    _announce()
    return recording


def _announce() -> None:
    """Tells the taps what the open recordings want."""
    announce(tuple(recording.gate.policy for recording in list(_open_recordings.values())))


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingSummary:
    """What came of a recording.

    Attributes:
        path: the file, or the live folder when sealing failed.
        records: how many records were written.
        dropped: how many found no room in the queue, by tap name.
        lost: how many could not be written, by tap name.
        over_budget: how many were not written because a budget was reached, by tap name.
        retired: how many were deleted to keep the newest alone, by tap name.
        high_water_bytes: the most bytes that waited in the queue at once.
    """

    path: str
    records: int
    dropped: Mapping[str, int]
    lost: Mapping[str, int]
    over_budget: Mapping[str, int]
    retired: Mapping[str, int]
    high_water_bytes: int


class Recording:
    """A running recording; made by `record`.

    Attributes:
        path: the file that closing makes.
        folder: where the records are until then.
        recorder: the consumer that writes them.
        gate: what is taken of what arrives.
    """

    def __init__(self, journal: LiveJournal, budget: Budget, policy: Policy, *, raise_early: bool) -> None:
        self.path = journal.target
        self.folder = journal.folder
        self.gate = Gate(policy, journal.folder)
        on_failure = self._raise_at_next_tap if raise_early else self._keep_quiet
        self.recorder = Recorder(
            journal.writer,
            str(self.path),
            lambda: journal.add_devices(_devices()),
            on_failure,
            budget,
            gate=self.gate,
            first_arrival=journal.previous.first_arrival,
            first_call=journal.previous.first_call,
        )
        self._journal = journal
        self._lock = threading.RLock()
        self._closed = False
        self._summary: RecordingSummary | None = None
        self._traced_before = traced.begin()
        self._watch = threading.Timer(_SILENT_SECONDS, self._warn_if_silent, ["after a minute"])
        self._watch.daemon = True
        self._watch.start()

    @property
    def closed(self) -> bool:
        """Whether the recording has ended."""
        return self._closed

    @property
    def records(self) -> int:
        """How many records have been written so far."""
        return self.recorder.records

    def pause(self) -> None:
        """Records nothing of what arrives from now on, until `resume`; nothing is traced or compiled anew.

        A computation that was dispatched before and still runs is cut where it is.

        Taps still hand their values to the host, where they are left out: a pause saves the disk, not the copy.
        """
        self.gate.set(outfeed.next_arrival(), paused=True)

    def resume(self) -> None:
        """Ends what `pause` began."""
        self.gate.set(outfeed.next_arrival(), paused=False)

    def set(self, *, every: int | _Unchanged | None = UNCHANGED, taps: Any = UNCHANGED) -> None:
        """Changes what is recorded from now on, and compiles nothing; ``tracerec ctl`` does the same from outside.

        Args:
            every: only records of steps that this number divides, and those without a step; None: of each step.
            taps: only taps that match patterns, as `record` takes them; None: all.

        Raises:
            RecordingError: an argument is none of these.

        Both only leave out of what the compiled program hands over: what `record` itself left out cannot come back.
        """
        given = {"every": every, "taps": taps}
        changes = {name: value for name, value in given.items() if value is not UNCHANGED}
        self.gate.set(outfeed.next_arrival(), **changes)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every record of every computation dispatched before is in the file system.

        Args:
            timeout: seconds to wait at most for the receiver; None for ever.

        Raises:
            RecordingClosed: the recording was closed.
            RecordingIncomplete: records could not be written.
            ReceiverTimeout: the time was up.
        """
        if self._closed:
            message = f"{self.path}: flush after close"
            raise RecordingClosed(message, path=str(self.path))
        finish_computations(timeout)
        outfeed.barrier(timeout)
        self._raise_if_incomplete()

    def close(self) -> RecordingSummary:
        """Ends the recording: waits for all records, then seals the journal into one file. Idempotent.

        Returns:
            What was recorded and what was not.

        Raises:
            RecordingIncomplete: records could not be written; what was written is sealed all the same.
            SealingError: the file could not be made; the journal is intact, and readers read it.
        """
        with self._lock:
            if self._summary is None:
                self._closed = True
                self._watch.cancel()
                self._summary = self._end()
                _open_recordings.pop(id(self), None)
                _announce()
                self._warn_if_silent("and is closed")
                self._seal(self._summary)
                self._raise_if_incomplete()
            return self._summary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What the body raised goes on, and says what else went wrong.
        try:
            self.close()
        except TracerecError as other:
            _log.error("%s", other)
            error.add_note(str(other))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"recording, records so far: {self.records}"
        return f"<tracerec.Recording {str(self.path)!r}: {state}>"

    def _end(self) -> RecordingSummary:
        finish_computations()
        try:
            outfeed.drain(_STALL_SECONDS)
        except TimeoutError as error:
            _log.error("%s: %s; what was written is sealed", self.path, error)
        farewell = outfeed.remove_consumer(self.recorder)
        if farewell.dropped:
            _log.warning(
                "%s: %d records were dropped because the queue was full or broken: %s",
                self.path,
                sum(farewell.dropped.values()),
                ", ".join(f"{tap} {count}" for tap, count in sorted(farewell.dropped.items())),
            )
        return RecordingSummary(
            str(self.path),
            self.records,
            dropped=farewell.dropped,
            lost=self.recorder.lost,
            over_budget=self.recorder.over_budget,
            retired=self._journal.retired,
            high_water_bytes=farewell.high_water_bytes,
        )

    def _seal(self, summary: RecordingSummary) -> None:
        failure = self.recorder.failure
        end = {
            "ended": time.time_ns(),
            "dropped": dict(summary.dropped),
            "lost": dict(summary.lost),
            "over_budget": dict(summary.over_budget),
            "retired": dict(summary.retired),
            "high_water_bytes": summary.high_water_bytes,
            "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
        }
        written = self.recorder.end(end)
        self._journal.seal(None if written else end)

    def _warn_if_silent(self, when: str) -> None:
        """Says why there is no record, when there is none."""
        if self.gate.seen == self.gate.skipped and not self.records:
            _log.warning(
                "%s has no record %s: %s", self.path, when, silence.reason(self.gate, traced.notes(self._traced_before))
            )

    def _raise_if_incomplete(self) -> None:
        failure = self.recorder.failure
        if failure is not None:
            raise self._incomplete(failure) from failure

    def _incomplete(self, failure: Exception) -> RecordingIncomplete:
        lost = self.recorder.lost
        total = sum(lost.values())
        message = (
            f"{self.path}: {total} of {total + self.records} records were not recorded: "
            f"{type(failure).__name__}: {failure}; the others are intact"
        )
        return RecordingIncomplete(message, path=str(self.path), lost=lost)

    def _raise_at_next_tap(self, failure: Exception) -> None:
        outfeed.raise_at_next_tap(self._incomplete(failure))

    def _keep_quiet(self, failure: Exception) -> None:
        """The recorder has logged it; flush and close raise it."""

    def forget_in_child(self) -> None:
        """In a forked child: the recording is the parent's alone."""
        self._closed = True
        self._summary = RecordingSummary(str(self.path), 0, {}, {}, {}, {}, 0)
        self._journal.forget()


def _devices() -> list[dict[str, Any]]:
    return [
        {"id": d.id, "kind": d.device_kind, "platform": d.platform, "process": d.process_index} for d in jax.devices()
    ]


def _target(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fspath(path):
        message = f"record({path!r}): not a path; name a file, such as 'run.h5' or 'run.arrow'"
        raise RecordingError(message)
    return Path(path).absolute()


def _check(target: Path, **options: Any) -> None:
    suffix = target.suffix.lower()
    if suffix not in (".h5", ".hdf5", sealing.ARROW_SUFFIX):
        message = f"{target}: unknown suffix {target.suffix!r}; name it something.h5 or something.arrow"
        raise RecordingError(message, path=str(target))
    allowed = {
        "mode": ("x", "w", "a"),
        "durability": ("process", "disk"),
        "compression": _ARROW_COMPRESSIONS if suffix == sealing.ARROW_SUFFIX else _HDF5_COMPRESSIONS,
        "on_full": ("block", "drop"),
        "on_error": ("warn", "raise"),
    }
    for name, value in options.items():
        if value not in allowed[name]:
            message = f"{target}: {name}={value!r}; use one of {', '.join(map(repr, allowed[name]))}"
            raise RecordingError(message, path=str(target))


def _check_sizes(target: Path, sizes: Mapping[str, Any]) -> None:
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or size < 1):
            message = (
                f"{target}: {name}={size!r}; it is a number of {'steps' if 'steps' in name else 'bytes'}, 1 or more"
            )
            raise RecordingError(message, path=str(target))


def _run_info(target: Path, metadata: Mapping[str, Any]) -> RunInfo:
    try:
        plain = dict(metadata)
        canonical(plain)
    except (TypeError, ValueError) as error:
        message = f"{target}: metadata must be a mapping of values that JSON can hold: {error}"
        raise RecordingError(message, path=str(target)) from error
    return RunInfo(
        run_id=uuid.uuid4().hex,
        started=time.time_ns(),
        host=socket.gethostname(),
        pid=os.getpid(),
        command=tuple(sys.argv),
        versions={
            "tracerec": __version__,
            "jax": jax.__version__,
            "jaxlib": version("jaxlib"),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        metadata=plain,
    )


_open_recordings: dict[int, Recording] = {}


def _close_all() -> None:
    signals.ignore_termination()
    # Registered after JAX's own hooks and so run before them: records still in flight are waited for in close.
    for recording in list(_open_recordings.values()):
        try:
            recording.close()
        except BaseException:  # noqa: BLE001 - the others are closed all the same, also after another Ctrl-C
            _log.exception("%s: closing at exit failed", recording.path)


def _forget_in_child() -> None:
    for recording in list(_open_recordings.values()):
        recording.forget_in_child()
    _open_recordings.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)
