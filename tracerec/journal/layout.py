"""Names in a live folder, and its manifest.

``run.h5.live/`` holds ``manifest.json`` (run information by `tracerec.formats.contract.RunInfo`) and
``segment-000000.frames`` and so on; frames are only ever appended to the last one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.formats.contract import FORMAT_VERSION, RunInfo

__all__ = ["live_folder", "read_manifest", "segment_path", "segments", "write_manifest"]

MANIFEST = "manifest.json"
_FORMAT = "tracerec-journal"


def live_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the folder that a recording to ``path`` lives in: ``run.h5.live`` for ``run.h5``."""
    return Path(os.fspath(path) + ".live")


def segment_path(folder: Path, number: int) -> Path:
    """Returns the path of a segment by its number, from 0."""
    return folder / f"segment-{number:06d}.frames"


def segments(folder: Path) -> list[Path]:
    """Returns the segments in order."""
    return sorted(folder.glob("segment-*.frames"))


def write_manifest(folder: Path, info: RunInfo) -> None:
    """Writes the manifest whole or not at all: a temporary file, fsync, rename."""
    temporary = folder / (MANIFEST + ".tmp")
    with temporary.open("w", encoding="ascii") as file:
        json.dump({"format": _FORMAT, "version": list(FORMAT_VERSION), "run": info.to_json()}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> RunInfo:
    """Returns the run information of a live folder.

    Raises:
        TraceNotFound: the folder has no manifest.
        TraceFormatError: the manifest is damaged or of a newer major version.
    """
    path = folder / MANIFEST
    try:
        data: Any = json.loads(path.read_text(encoding="ascii"))
        major = int(data["version"][0])
        if data["format"] == _FORMAT and major <= FORMAT_VERSION[0]:
            return RunInfo.from_json(data["run"])
    except FileNotFoundError:
        message = f"{folder}: no recording, it has no {MANIFEST}"
        raise TraceNotFound(message, path=str(folder)) from None
    except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
        message = f"{path}: damaged manifest: {error}"
        raise TraceFormatError(message, path=str(folder)) from error
    if data["format"] != _FORMAT:
        message = f"{path}: not the manifest of a tracerec journal"
    else:
        message = f"{path}: journal version {major} is newer than this tracerec reads ({FORMAT_VERSION[0]}); upgrade it"
    raise TraceFormatError(message, path=str(folder))
