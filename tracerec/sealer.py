"""The sealing process as the recording process sees it: started when there is something to seal, gone at the end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tracerec import sealing
from tracerec.errors import SealingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.sealing import Order

__all__ = ["Sealer", "seal_in_process_of_its_own"]

_log = logging.getLogger("tracerec")

_STALL_SECONDS = 120.0
"""A sealing process that writes nothing for so long is stuck: HDF5 can hang on a full disk."""

_POLL_SECONDS = 0.5
_MOST_SENT = 4
_QUIT_SECONDS = 5.0

_IN_MEMORY_BYTES = 1 << 30
"""The largest HDF5 file that is made in memory, where no process can be started."""


class Sealer:
    """Seals a recording's segments while it goes on, and all of it at its end. One thread at a time uses it.

    A failure leaves the journal as it is. It is logged once; sealing then rests until the end.

    Args:
        order: of the recording.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._process: _Process | None = None
        self._resting = False
        self._waiting: deque[tuple[str, list[int]]] = deque()
        self._sent = 0

    def part(self, number: int) -> None:
        """Has a full segment sealed, some time. Never raises, never waits."""
        self._ask("part", [number])

    def retire(self, numbers: list[int]) -> None:
        """Has segments deleted, whether they are sealed or not. Never raises."""
        self._waiting = deque(job for job in self._waiting if not (job[0] == "part" and job[1][0] in numbers))
        if self._process is None or self._resting:
            # What cannot be deleted the manifest disowns: it costs room, and readers leave it out.
            with contextlib.suppress(OSError):
                sealing.retire(self._order, numbers)
        else:
            # Behind those that are being sealed.
            self._ask("retire", numbers)

    def finish(self, order: Order) -> None:
        """Seals the recording, and waits for it.

        Args:
            order: as that of the recording, with its end.

        Raises:
            SealingError: the file could not be made; the journal is as it was.
        """
        try:
            self._finish(order)
        except SealingError as error:
            message = f"{order.folder}: not sealed: {error}{_where(order)}"
            raise SealingError(message, path=str(order.target)) from error
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def forget(self) -> None:
        """In a forked child: the process is the parent's."""
        process, self._process = self._process, None
        if process is not None:
            process.forget()

    def _ask(self, job: str, numbers: list[int]) -> None:
        if self._resting:
            return
        self._waiting.append((job, numbers))
        try:
            if self._process is None:
                self._process = _Process()
            for answer in self._process.answers():
                self._sent -= 1
                _raise_if_failed(answer)
            # No more than the pipe holds, however far behind the process is: nothing here may wait for it.
            while self._waiting and self._sent < _MOST_SENT:
                self._process.send(self._waiting[0][0], self._order, self._waiting[0][1])
                self._waiting.popleft()
                self._sent += 1
        except SealingError as error:
            self._resting = True
            self.stop()
            _log.warning(
                "%s: sealing has stopped, and is tried again at the end; recording goes on: %s",
                self._order.target,
                error,
            )

    def _finish(self, order: Order) -> None:
        if self._process is not None:
            try:
                self._process.finish(order)
            except _Died as error:
                self.stop()
                if not self._resting:
                    _log.warning("%s: %s; sealing is tried again", order.target, error)
            else:
                return
        try:
            self._process = _Process()
        except SealingError as error:
            _log.info("%s: sealed in this process: %s", order.target, error)
            _finish_here(order)
        else:
            self._process.finish(order)


def seal_in_process_of_its_own(order: Order) -> None:
    """Runs `tracerec.sealing.seal` in a spawned process and waits for it.

    Raises:
        SealingError: the file could not be made; the message says why.
    """
    Sealer(order).finish(order)


class _Died(SealingError):
    """The sealing process has ended, or had to be ended, without an answer."""


class _Process:
    """A running sealing process; raises SealingError when it cannot be started."""

    def __init__(self) -> None:
        if not Path(sys.executable or "").name.startswith(("python", "pypy")):
            message = f"this program is no Python interpreter that could be started: {sys.executable!r}"
            raise SealingError(message)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            # -P: the user's working folder must not shadow a library of ours. A session of its own: Ctrl-C in the
            # terminal is for the program alone.
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracerec.sealing"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(),
                start_new_session=True,
                # A buffer that is copied by a fork could be written twice.
                bufsize=0,
            )
        except OSError as error:
            self._errors.close()
            message = f"the sealing process could not be started: {error}"
            raise SealingError(message) from error
        assert self._child.stdin is not None  # noqa: S101 - a pipe was asked for
        assert self._child.stdout is not None  # noqa: S101
        self._jobs, self._answers = self._child.stdin, self._child.stdout
        os.set_blocking(self._answers.fileno(), False)
        self._partial = b""

    def send(self, job: str, order: Order, numbers: list[int]) -> None:
        """Sends a job; raises SealingError when the process has died."""
        line = json.dumps({"job": job, "order": order.to_json(), "numbers": numbers}) + "\n"
        try:
            data = memoryview(line.encode("ascii"))
            while data:
                data = data[self._jobs.write(data) :]
        except OSError as error:
            raise self._died() from error

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yields the answers that have come; raises SealingError when the process has died."""
        while (data := self._read()) is not None:
            if not data:
                raise self._died()
            *lines, self._partial = (self._partial + data).split(b"\n")
            yield from map(json.loads, lines)

    def finish(self, order: Order) -> None:
        """Has the recording sealed, and waits; raises SealingError, `_Died` when it did not say why."""
        self.send("finish", order, [])
        written, since = _written(order), time.monotonic()
        while True:
            select.select([self._answers], [], [], _POLL_SECONDS)
            for answer in self.answers():
                if answer["job"] == "finish":
                    _raise_if_failed(answer)
                    return
            now = _written(order)
            if now != written:
                written, since = now, time.monotonic()
            elif time.monotonic() - since > _STALL_SECONDS:
                self._child.kill()
                message = f"the sealing process wrote nothing for {_STALL_SECONDS:.0f} s and was ended"
                raise _Died(message)

    def stop(self) -> None:
        """Ends the process: at once when it is idle; else it is killed."""
        with contextlib.suppress(OSError):
            self._jobs.close()
        try:
            self._child.wait(_QUIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._answers.close()
        self._errors.close()

    def forget(self) -> None:
        """In a forked child: closes the pipes, so that the process notices when the parent ends."""
        self._jobs.close()
        self._answers.close()
        # It is the parent's child: there is nothing to wait for.
        self._child.returncode = 0

    def _read(self) -> bytes | None:
        """Returns what has come, b"" at the end, None when there is nothing yet."""
        try:
            return os.read(self._answers.fileno(), 1 << 16)
        except BlockingIOError:
            return None

    def _died(self) -> _Died:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_QUIT_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        reason = f": {lines[-1]}" if lines else ""
        return _Died(f"the sealing process ended with status {self._child.returncode}{reason}")


def _finish_here(order: Order) -> None:
    import dataclasses

    from tracerec.errors import TracerecError

    limit = min(order.max_file_bytes, _IN_MEMORY_BYTES) if sealing.suffix_of(order.target) == ".h5" else None
    here = order if limit is None else dataclasses.replace(order, max_file_bytes=limit)
    try:
        sealing.seal(here, in_memory=True)
    except (TracerecError, OSError) as error:
        raise SealingError(str(error), path=str(order.target)) from error


def _raise_if_failed(answer: dict[str, Any]) -> None:
    if answer["failed"] is not None:
        raise SealingError(answer["failed"])


def _written(order: Order) -> tuple[int, int]:
    """Returns what the process has written so far, as a number that changes while it writes: files, and bytes."""
    files = nbytes = 0
    for folder, begins in ((order.folder, ""), (order.target.parent, f"{order.target.name}.tmp-")):
        for name, size in _sizes(folder):
            if name.startswith(begins):
                files, nbytes = files + 1, nbytes + size
    return files, nbytes


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    # Files come and go meanwhile.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                inside = sum(size for _, size in _sizes(Path(entry.path))) if entry.is_dir() else entry.stat().st_size
                yield entry.name, inside


def _where(order: Order) -> str:
    if order.folder.is_dir():
        return f"; the records are in {order.folder}, and readers open it"
    return f"; {order.folder} is gone: it was deleted or moved"


def _environment() -> dict[str, str]:
    # The child must find this very package, however the parent found it.
    ours = str(Path(__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ours, known] if known else [ours])}
