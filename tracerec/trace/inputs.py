"""The files that are read of a trace: where nothing may be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracerec.trace.finding import LIVE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracerec.formats.contract import TraceSource

__all__ = ["files", "in_the_way"]


def files(source: TraceSource) -> tuple[str, ...]:
    """Returns the files and folders that a source reads: its own, and those of its processes and parts."""
    parts: Sequence[TraceSource] = getattr(source, "sources", ())
    return tuple(dict.fromkeys([source.path, *(path for part in parts for path in files(part))]))


def in_the_way(out: Path, inputs: Iterable[str]) -> str | None:
    """Returns why nothing may be written to a path, or None if it may, whatever is there.

    Args:
        out: the path; it may be spelled in another way than the inputs, or lead through links.
        inputs: the files and folders that are being read.
    """
    real = Path(os.path.realpath(out))
    for path in inputs:
        read = Path(os.path.realpath(path))
        if real == read or _is_same(out, path):
            return "is a recording that is read here" if out.name == Path(path).name else f"is {path}, which is read"
        if read in real.parents and read.is_dir():
            return f"is in the recording {path}, which is read"
        if real in read.parents:
            return f"is a folder with the recording {path} in it, which is read"
    live = Path(os.fspath(out) + LIVE_SUFFIX)
    return f"is being recorded to, or was: {live} is there" if os.path.lexists(live) else None


def _is_same(one: Path, other: str) -> bool:
    """Returns whether two paths are of one file: they can be hard links."""
    try:
        return one.samefile(other)
    except OSError:
        # One of them is not there.
        return False
