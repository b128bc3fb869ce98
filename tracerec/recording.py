"""``record()``: the consumer that writes a journal, and the closing that seals it into one file."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import shutil
import socket
import sys
import threading
import time
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import jax
import numpy as np

from tracerec import outfeed, sealing
from tracerec._version import __version__
from tracerec.errors import RecordingClosed, RecordingError, RecordingExists
from tracerec.formats.contract import RunInfo
from tracerec.journal.layout import live_folder, write_manifest
from tracerec.journal.writing import JournalWriter
from tracerec.structure import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from tracerec.model import Site
    from tracerec.outfeed.batch import Batch, Group

__all__ = ["Recording", "record"]

_log = logging.getLogger("tracerec")

# Records of one site are joined into frames of about this size; a larger record has a frame of its own.
_FRAME_BYTES = 256 << 10

Compression = Literal["lz4", "zstd", "gzip"]


def record(
    path: str | os.PathLike[str],
    *,
    mode: Literal["x", "w"] = "x",
    metadata: Mapping[str, Any] | None = None,
    compression: Compression | None = "lz4",
    max_queue_bytes: int = 256 << 20,
    block_timeout: float | None = 10.0,
) -> Recording:
    """Starts recording every tap of this process to a file.

    While it runs the records are in the folder ``<path>.live``, where they survive a kill; closing seals them into
    ``path``. Use it as a context manager, or call `Recording.close`; a program that ends without either is closed at
    exit.

    Args:
        path: where to record to; its suffix is ``.h5`` (or ``.hdf5``).
        mode: ``"x"`` refuses a path that holds a recording, ``"w"`` deletes it first.
        metadata: anything that JSON can hold, stored with the run.
        compression: ``"lz4"`` (fast), ``"zstd"`` (small), ``"gzip"`` (readable without plugins) or None.
        max_queue_bytes: how many bytes may wait between the computation and the disk.
        block_timeout: seconds that the computation waits for a full queue before records are dropped and counted;
            None for ever.

    Returns:
        The running recording.

    Raises:
        RecordingExists: the path holds a recording and ``mode`` is ``"x"``.
        RecordingError: the folder cannot be made, the suffix is unknown, or the metadata is no JSON.

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
    _check_suffix(target)
    info = _run_info(target, dict(metadata or {}))
    folder = _make_live_folder(target, mode)
    try:
        write_manifest(folder, info)
        writer = JournalWriter(folder)
    except OSError as error:
        message = f"{folder}: cannot be written: {error}"
        raise RecordingError(message, path=str(target)) from error
    recording = Recording(target, folder, writer, compression)
    outfeed.add_consumer(recording.recorder, max_queue_bytes=max_queue_bytes, block_timeout=block_timeout)
    _open_recordings[id(recording)] = recording
    return recording


class Recording:
    """A running recording; made by `record`.

    Attributes:
        path: the file that closing makes.
        folder: where the records are until then.
        recorder: the consumer that writes them.
    """

    def __init__(self, path: Path, folder: Path, writer: JournalWriter, compression: Compression | None) -> None:
        self.path = path
        self.folder = folder
        self.recorder = _Recorder(writer)
        self._compression = compression
        self._lock = threading.RLock()
        self._closed = False

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
            ReceiverTimeout: the time was up.
            ConsumerError: records could not be written; raised by `close`.
        """
        if self._closed:
            message = f"{self.path}: flush after close"
            raise RecordingClosed(message, path=str(self.path))
        _finish_computations()
        outfeed.barrier(timeout)

    def close(self) -> None:
        """Ends the recording: waits for all records, then seals the journal into one file. Idempotent.

        Raises:
            ConsumerError: records could not be written; what was written is sealed all the same.
            SealingError: the file could not be made; the journal is intact, and readers read it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _open_recordings.pop(id(self), None)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"recording, {self.records} records"
        return f"<tracerec.Recording {str(self.path)!r}: {state}>"

    def _close(self) -> None:
        _finish_computations()
        outfeed.barrier()
        high_water = outfeed.high_water_bytes()
        dropped: dict[str, int] = {}
        try:
            dropped = outfeed.remove_consumer(self.recorder)
        finally:
            self.recorder.end({"ended": time.time_ns(), "dropped": dropped, "high_water_bytes": high_water})
            sealing.seal_in_process_of_its_own(self.folder, self.path, self._compression)
        if dropped:
            _log.warning(
                "%s: %d records were dropped because the queue was full: %s",
                self.path,
                sum(dropped.values()),
                ", ".join(f"{tap} {count}" for tap, count in sorted(dropped.items())),
            )


class _Recorder:
    """The consumer: writes batches to the journal, many small records to a frame."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._failed = False
        self.records = 0

    def consume(self, batch: Batch) -> None:
        if self._failed:
            message = "not recorded: an earlier write had failed"
            raise RecordingError(message)
        try:
            for group in batch.groups:
                self._append(group)
            self._writer.flush()
        except OSError:
            self._failed = True
            raise
        self.records += batch.count

    def end(self, summary: dict[str, Any]) -> None:
        if self._failed:
            self._writer.close()
        else:
            self._writer.end(summary)

    def _append(self, group: Group) -> None:
        site = group.site
        stored = _stored_arrays(site)
        per_frame = max(1, _FRAME_BYTES // max(1, site.record_nbytes))
        for first in range(0, len(group.arrays), per_frame):
            part = slice(first, first + per_frame)
            rows = group.rows[part].view(np.uint8).reshape(-1, group.rows.dtype.itemsize)
            members = group.arrays[part]
            self._writer.append(site, [rows, *(_stack([record[k] for record in members]) for k in stored)])


def _stored_arrays(site: Site) -> list[int]:
    n = len(site.leaves)
    return [*range(n), *(n + i for i, column in enumerate(site.columns) if not column.in_index)]


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    first = arrays[0]
    if len(arrays) == 1:
        return first[None]
    if not first.nbytes:
        return np.empty((len(arrays), *first.shape), first.dtype)
    # 3 to 5 times as fast as np.stack for many small arrays
    data = b"".join([a.tobytes() for a in arrays])
    return np.frombuffer(data, np.uint8).view(first.dtype).reshape(len(arrays), *first.shape)


def _make_live_folder(target: Path, mode: str) -> Path:
    folder = live_folder(target)
    if mode not in ("x", "w"):
        message = f"{target}: mode {mode!r}; use 'x' to refuse an existing recording or 'w' to overwrite it"
        raise RecordingError(message, path=str(target))
    if mode == "w":
        target.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    for existing in (target, folder):
        if existing.exists():
            message = f"{existing} exists: choose another path, or mode='w' to delete it first"
            raise RecordingExists(message, path=str(target))
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        message = f"{folder} exists: another process records to this path"
        raise RecordingExists(message, path=str(target)) from None
    except OSError as error:
        message = f"{folder}: cannot be made: {error}"
        raise RecordingError(message, path=str(target)) from error
    return folder


def _check_suffix(target: Path) -> None:
    if target.suffix.lower() not in (".h5", ".hdf5"):
        message = f"{target}: unknown suffix {target.suffix!r}; name the file something.h5"
        raise RecordingError(message, path=str(target))


def _run_info(target: Path, metadata: dict[str, Any]) -> RunInfo:
    try:
        canonical(metadata)
    except (TypeError, ValueError) as error:
        message = f"{target}: metadata must be values that JSON can hold: {error}"
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
        devices=tuple(
            {"id": d.id, "kind": d.device_kind, "platform": d.platform, "process": d.process_index}
            for d in jax.devices()
        ),
        metadata=metadata,
    )


def _finish_computations() -> None:
    try:
        jax.effects_barrier()
    except Exception as error:  # noqa: BLE001 - the user's computation failed, and said so there
        _log.warning("a computation had failed before the recording was flushed: %s", error)


_open_recordings: dict[int, Recording] = {}


def _close_all() -> None:
    # Registered after JAX's own hooks and so run before them: records still in flight are waited for in close.
    for recording in list(_open_recordings.values()):
        try:
            recording.close()
        except Exception:  # noqa: BLE001 - the others are closed all the same
            _log.exception("%s: closing at exit failed", recording.path)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open_recordings.clear)
