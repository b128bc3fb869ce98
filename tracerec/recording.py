"""``record()``: a recording, from its first record to the sealed file."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import platform
import shutil
import socket
import sys
import threading
import time
import uuid
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import jax
import numpy as np

from tracerec import outfeed, sealing
from tracerec._version import __version__
from tracerec.errors import RecordingClosed, RecordingError, RecordingExists, RecordingIncomplete
from tracerec.formats.contract import RunInfo
from tracerec.journal.layout import MANIFEST, live_folder, write_manifest
from tracerec.journal.lock import JournalLock, is_locked
from tracerec.journal.writing import JournalWriter
from tracerec.outfeed import signals
from tracerec.outfeed.waiting import finish_computations
from tracerec.recorder import Recorder
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Recording", "RecordingSummary", "record"]

_log = logging.getLogger("tracerec")

# JAX must know the taps' context before the first function with a tap is traced, or it traces that one twice.
import_module("tracerec.tapping")

_HDF5_COMPRESSIONS = ("lz4", "zstd", "gzip", None)
_ARROW_COMPRESSIONS = ("lz4", "zstd", None)
Compression = Literal["lz4", "zstd", "gzip"]

# A close that sees no record consumed for this long gives up waiting, and seals what there is.
_STALL_SECONDS = 120.0


def record(
    path: str | os.PathLike[str],
    *,
    mode: Literal["x", "w"] = "x",
    metadata: Mapping[str, Any] | None = None,
    compression: Compression | Literal["default"] | None = "default",
    max_queue_bytes: int = 256 << 20,
    on_full: Literal["block", "drop"] = "block",
    block_timeout: float | None = 10.0,
    on_error: Literal["warn", "raise"] = "warn",
) -> Recording:
    """Starts recording every tap of this process to a file.

    While it runs the records are in the folder ``<path>.live``, where they survive a kill; closing seals them into
    ``path``. Use it as a context manager, or call `Recording.close`; a program that ends without either is closed at
    exit, also on SIGTERM if the program has no handler of its own.

    Args:
        path: where to record to: a ``.h5`` (or ``.hdf5``) file, or a ``.arrow`` folder of Arrow IPC files.
        mode: ``"x"`` refuses a path that holds a recording, ``"w"`` deletes it first. A recording that still runs is
            refused in either.
        metadata: a mapping of anything that JSON can hold, stored with the run.
        compression: ``"lz4"`` (fast, HDF5's default), ``"zstd"`` (small), ``"gzip"`` (HDF5 alone: readable without
            plugins) or None (Arrow's default: its files can be mapped into memory).
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
    target = Path(path).absolute()
    if compression == "default":
        compression = None if target.suffix.lower() == sealing.ARROW_SUFFIX else "lz4"
    _check(target, mode=mode, compression=compression, on_full=on_full, on_error=on_error)
    info = _run_info(target, metadata or {})
    try:
        journal = _Journal(target, mode, info)
    except RecordingError:
        raise
    except OSError as error:
        message = f"{target}: cannot be recorded to: {error}"
        raise RecordingError(message, path=str(target)) from error
    recording = Recording(journal, compression, raise_early=on_error == "raise")
    options = outfeed.QueueOptions(max_queue_bytes, on_full, block_timeout)
    outfeed.add_consumer(recording.recorder, options)
    _open_recordings[id(recording)] = recording
    return recording


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingSummary:
    """What came of a recording.

    Attributes:
        path: the file, or the live folder when sealing failed.
        records: how many records were written.
        dropped: how many found no room in the queue, by tap name.
        lost: how many could not be written, by tap name.
        high_water_bytes: the most bytes that waited in the queue at once.
    """

    path: str
    records: int
    dropped: Mapping[str, int]
    lost: Mapping[str, int]
    high_water_bytes: int


class _Journal:
    """The live folder of a recording: locked, with its manifest and its writer."""

    def __init__(self, target: Path, mode: str, info: RunInfo) -> None:
        self.target = target
        self.info = info
        self.folder = live_folder(target)
        _make_room(target, self.folder, mode)
        self.folder.mkdir(parents=True)
        self.lock = JournalLock(self.folder)
        write_manifest(self.folder, info)
        self.writer = JournalWriter(self.folder)

    def add_devices(self) -> None:
        """Completes the manifest: starting a recording must not start JAX's backends, so this is done later."""
        devices = tuple(
            {"id": d.id, "kind": d.device_kind, "platform": d.platform, "process": d.process_index}
            for d in jax.devices()
        )
        self.info = dataclasses.replace(self.info, devices=devices)
        write_manifest(self.folder, self.info)


class Recording:
    """A running recording; made by `record`.

    Attributes:
        path: the file that closing makes.
        folder: where the records are until then.
        recorder: the consumer that writes them.
    """

    def __init__(self, journal: _Journal, compression: Compression | None, *, raise_early: bool) -> None:
        self.path = journal.target
        self.folder = journal.folder
        on_failure = self._raise_at_next_tap if raise_early else self._keep_quiet
        self.recorder = Recorder(journal.writer, str(self.path), journal.add_devices, on_failure)
        self._journal = journal
        self._compression = compression
        self._lock = threading.RLock()
        self._closed = False
        self._summary: RecordingSummary | None = None

    @property
    def closed(self) -> bool:
        """Whether the recording has ended."""
        return self._closed

    @property
    def records(self) -> int:
        """How many records have been written so far."""
        return self.recorder.records

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
                _open_recordings.pop(id(self), None)
                self._summary = self._end()
                self._seal(self._summary)
                self._raise_if_incomplete()
            return self._summary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

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
        lost = self.recorder.lost
        return RecordingSummary(str(self.path), self.records, farewell.dropped, lost, farewell.high_water_bytes)

    def _seal(self, summary: RecordingSummary) -> None:
        failure = self.recorder.failure
        end = {
            "ended": time.time_ns(),
            "dropped": dict(summary.dropped),
            "lost": dict(summary.lost),
            "high_water_bytes": summary.high_water_bytes,
            "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
        }
        written = self.recorder.end(end)
        try:
            order = sealing.Order(
                self.folder, self.path, self._compression, self._journal.info.run_id, None if written else end
            )
            sealing.seal_in_process_of_its_own(order)
        finally:
            self._journal.lock.forget()

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
        self._summary = RecordingSummary(str(self.path), 0, {}, {}, 0)
        self.recorder.forget()
        self._journal.lock.forget()


def _make_room(target: Path, folder: Path, mode: str) -> None:
    """Makes sure that nothing is at the path, or raises RecordingExists."""
    if is_locked(folder):
        message = f"{target} is being recorded to: {folder} is in use; choose another path"
        raise RecordingExists(message, path=str(target))
    if mode == "w":
        if folder.is_dir() and not (folder / MANIFEST).is_file() and any(folder.iterdir()):
            message = f"{folder} is no recording: it has files but no {MANIFEST}; move it away or choose another path"
            raise RecordingExists(message, path=str(target))
        _delete(target)
        shutil.rmtree(folder, ignore_errors=True)
    for existing in (target, folder):
        if existing.exists():
            message = f"{existing} exists: choose another path, or mode='w' to delete it first"
            raise RecordingExists(message, path=str(target))


def _delete(target: Path) -> None:
    """Deletes a sealed recording: a file, or a folder that is one."""
    from tracerec.formats.arrow import layout

    if target.is_dir() and layout.is_trace(target):
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _check(target: Path, **options: Any) -> None:
    suffix = target.suffix.lower()
    if suffix not in (".h5", ".hdf5", sealing.ARROW_SUFFIX):
        message = f"{target}: unknown suffix {target.suffix!r}; name it something.h5 or something.arrow"
        raise RecordingError(message, path=str(target))
    allowed = {
        "mode": ("x", "w"),
        "compression": _ARROW_COMPRESSIONS if suffix == sealing.ARROW_SUFFIX else _HDF5_COMPRESSIONS,
        "on_full": ("block", "drop"),
        "on_error": ("warn", "raise"),
    }
    for name, value in options.items():
        if value not in allowed[name]:
            message = f"{target}: {name}={value!r}; use one of {', '.join(map(repr, allowed[name]))}"
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
