"""Starting the process that repairs, and waiting for it as long as it shows signs of life."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracerec.errors import SealingError, TraceError, TraceFormatError, TraceNotFound
from tracerec.salvaging.orders import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.salvaging.orders import Order

__all__ = ["run_order"]

_POLL_SECONDS = 0.5

STALL_SECONDS = 600.0
"""A process that neither reads nor writes for so long hangs. Making a large file permanent can take minutes."""

FULL_SECONDS = 10.0
"""The same where the disk is full: HDF5 can hang on that."""

_FULL_BYTES = 1 << 20


def run_order(order: Order) -> Answer:
    """Has an order carried out; returns the answer.

    Raises:
        TraceError: the recording cannot be read; as `tracerec.salvaging.worker.work`.
        SealingError: the result cannot be written, or the process could not be started, died or hung.
    """
    # -P: the user's working folder must not shadow a library of ours
    command = [sys.executable, "-P", "-m", "tracerec.salvaging.worker"]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=_environment()
            )
        except OSError as error:
            message = f"{order.source}: the repairing process could not be started: {error}"
            raise SealingError(message, path=str(order.source)) from error
        with process:
            try:
                lines, reason = _watch(process, order)
            finally:
                process.kill()
        said: Any = {}
        with contextlib.suppress(ValueError):
            said = json.loads(lines[-1]) if lines and lines[-1].startswith(b"{") else {}
        if reason is None and process.returncode == 0 and said:
            return Answer.from_json(said)
        if reason is None and "error" in said:
            raise _ERRORS.get(said["error"], SealingError)(said["message"], path=str(order.source))
        if reason is None:
            errors.seek(0)
            reason = _ended(process.returncode, errors.read().decode(errors="replace"), order)
    message = f"{order.source} was not repaired, and is as it was: {reason}"
    raise SealingError(message, path=str(order.source))


_ERRORS: dict[str, type[TraceError | SealingError]] = {
    "TraceError": TraceError,
    "TraceFormatError": TraceFormatError,
    "TraceNotFound": TraceNotFound,
}
"""What the process may fail with, but for errors in writing."""


def _watch(process: subprocess.Popen[bytes], order: Order) -> tuple[list[bytes], str | None]:
    """Returns the lines that the process wrote, and why it was ended, if it was."""
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(order.to_json()).encode("ascii"))
    lines: list[bytes] = []
    partial = b""
    written, since = _written(order), time.monotonic()
    while True:
        if select.select([process.stdout], [], [], _POLL_SECONDS)[0]:
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                process.wait()
                return lines, None
            *whole, partial = (partial + data).split(b"\n")
            # Only the last is an answer.
            lines = (lines + whole)[-1:]
            since = time.monotonic()
        now = _written(order)
        if now != written:
            written, since = now, time.monotonic()
        quiet = time.monotonic() - since
        if quiet > FULL_SECONDS and _is_full(order):
            return lines, f"there is no space left for {order.target.parent}"
        if quiet > STALL_SECONDS:
            return lines, f"the repairing process did nothing for {quiet:.0f} s and was ended"


def _ended(status: int, errors: str, order: Order) -> str:
    full = f"; there is no space left in {order.target.parent}" if _is_full(order) else ""
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    last = errors.strip().splitlines()[-1:]
    return f"the repairing process ended {how}{full}" + "".join(f": {line}" for line in last)


def _is_full(order: Order) -> bool:
    with contextlib.suppress(OSError):
        if shutil.disk_usage(order.target.parent).free < _FULL_BYTES:
            return True
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return limit != resource.RLIM_INFINITY and any(size >= limit - _FULL_BYTES for _, size in _files(order))


def _written(order: Order) -> tuple[int, int]:
    """Returns what has been written so far, as numbers that change while something is written."""
    sizes = [size for _, size in _files(order)]
    return len(sizes), sum(sizes)


def _files(order: Order) -> Iterator[tuple[str, int]]:
    """Yields the files that the process makes, with their sizes."""
    waiting = [entry for entry in _entries(order.target.parent) if entry.name.startswith(order.target.name)]
    while waiting:
        entry = waiting.pop()
        # They come and go.
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                waiting += _entries(Path(entry.path))
            else:
                yield entry.path, entry.stat(follow_symlinks=False).st_size


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _environment() -> dict[str, str]:
    # The child must find this very package, however the parent found it.
    ours = str(Path(__file__).resolve().parent.parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ours, known] if known else [ours])}
