"""Which recordings a glob pattern means: sealed ones, and those of killed and running processes."""

from __future__ import annotations

import glob
import os
from pathlib import PurePath

__all__ = ["LIVE_SUFFIX", "is_pattern", "matches"]

LIVE_SUFFIX = ".live"
"""What the folder of a recording that is not sealed has behind the recording's name."""


def is_pattern(text: str) -> bool:
    """Returns whether a path has one of the characters ``*``, ``?`` and ``[`` of a glob pattern."""
    return glob.has_magic(text)


def matches(pattern: str) -> list[str]:
    """Returns the paths of recordings that match a pattern, each once, sorted.

    A recording that is not sealed yet has the name that it will have: ``run.*.h5`` finds the folder
    ``run.3.h5.live`` as ``run.3.h5``. The parts inside of a recording are none.

    Args:
        pattern: as `glob.glob` takes it; ``**`` stands for any number of folders.
    """
    # Path.glob takes no absolute pattern.
    paths = [path for each in (pattern, pattern + LIVE_SUFFIX) for path in glob.glob(each, recursive=True)]  # noqa: PTH207
    found = {path.removesuffix(LIVE_SUFFIX) for path in paths}
    return sorted(path for path in found if not _is_inside(path, found))


def _is_inside(path: str, found: set[str]) -> bool:
    """Returns whether a path is a file within one of the recordings found, or within a live folder."""
    folders = [os.fspath(folder) for folder in PurePath(path).parents]
    return any(folder in found or folder.endswith(LIVE_SUFFIX) for folder in folders)
