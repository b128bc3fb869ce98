"""``tracerec.control``: changes what a recording of another process takes, while it runs. Free of JAX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tracerec.errors import RecordingError, TraceNotFound
from tracerec.gating import Settings, read_settings, write_settings
from tracerec.journal.lock import is_locked
from tracerec.trace.finding import LIVE_SUFFIX, is_pattern, matches

__all__ = ["control"]


def control(path: str | os.PathLike[str], **changes: Any) -> dict[str, Settings]:
    """Changes what running recordings take; each notices it with the next record, at the latest 0.25 s later.

    Nothing is compiled anew, and what a recording left out when its program was compiled cannot come back. The settings
    hold until they are changed again or the recording ends.

    Args:
        path: a recording's path, ``run.h5``; or a pattern, such as ``run.*.h5`` for those of many processes.
        **changes: ``paused``: whether nothing is recorded; ``every``: only records of steps that this number divides,
            None for each; ``taps``: patterns of tap names, as `tracerec.record` takes them, None for all. What is not
            given stays as it is.

    Returns:
        The settings that hold now, by path.

    Raises:
        TraceNotFound: nothing is recorded there.
        RecordingError: the recording does not run any more, a change is no such, or cannot be written.

    Example:
        >>> import tracerec
        >>> with tracerec.record("controlled.h5"):
        ...     control("controlled.h5", every=10)
        {'controlled.h5': Settings(paused=False, every=10, taps=())}
    """
    unknown = sorted(changes.keys() - {"paused", "every", "taps"})
    if unknown:
        message = f"control: {unknown[0]!r} cannot be changed; paused, every and taps can"
        raise RecordingError(message, path=os.fspath(path))
    text = os.fspath(path)
    folders = _running(text)
    return {name: _changed(name, folder, changes) for name, folder in folders.items()}


def _running(text: str) -> dict[str, Path]:
    """Returns the live folders of recordings that run, by the recording's path."""
    names = [text] if not is_pattern(text) or os.path.lexists(text + LIVE_SUFFIX) else matches(text)
    names = [name.removesuffix(LIVE_SUFFIX) for name in names]
    folders = {name: Path(name + LIVE_SUFFIX) for name in names}
    running = {name: folder for name, folder in folders.items() if is_locked(folder)}
    if running:
        return running
    if any(folder.is_dir() or Path(name).exists() for name, folder in folders.items()):
        message = f"{text}: no process records to it any more; there is nothing to change"
        raise RecordingError(message, path=text)
    message = f"nothing is recorded to {text}"
    raise TraceNotFound(message, path=text)


def _changed(name: str, folder: Path, changes: dict[str, Any]) -> Settings:
    try:
        settings = read_settings(folder).changed(**changes)
        write_settings(folder, settings)
    except OSError as error:
        message = f"{name}: its settings cannot be changed: {error}"
        raise RecordingError(message, path=name) from error
    return settings
