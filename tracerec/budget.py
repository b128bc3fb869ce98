"""How many bytes a recording, and each of its taps, may take. Free of JAX."""

from __future__ import annotations

import fnmatch
import logging
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracerec.model import FLAG_STEP, INDEX_DTYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracerec.model import Site

__all__ = ["Budget", "stored_nbytes"]

_log = logging.getLogger("tracerec")


def stored_nbytes(site: Site) -> int:
    """Returns the bytes of one record of a site, its row of the index table included, before compression."""
    return site.record_nbytes + INDEX_DTYPE.itemsize


class Budget:
    """Says how many records may still be written; what reaches its budget stops for good.

    Args:
        name: the recording's path, for messages.
        max_bytes: of the recording; None for no bound.
        of_taps: bytes for each tap whose name matches a pattern, by pattern (`fnmatch`); the first that matches holds.

    Attributes:
        refused: how many records were over budget, by tap name.

    Example:
        >>> from tracerec.model import Leaf, Site
        >>> budget = Budget("run.h5", None, {"big/*": 1000})
        >>> budget.take(Site("big/w", (Leaf("", (32,), "float32"),)), 100)  # 192 bytes each
        5
        >>> budget.refused
        Counter({'big/w': 95})
    """

    def __init__(self, name: str, max_bytes: int | None, of_taps: Mapping[str, int]) -> None:
        self.refused: Counter[str] = Counter()
        self._name = name
        self._max_bytes = max_bytes
        self._patterns = dict(of_taps)
        self._left: dict[str, int | None] = {}
        self._ended: set[str] = set()
        self._bytes = 0
        self._stopped = False
        self._first_step: int | None = None
        self._estimated = max_bytes is None and not of_taps

    def take(self, site: Site, count: int) -> int:
        """Returns how many of ``count`` records of a site may be written; the others are counted as refused."""
        if self._max_bytes is None and not self._patterns:
            return count
        nbytes = stored_nbytes(site)
        allowed = self._of_recording(nbytes, count)
        allowed = min(allowed, self._of_tap(site.name, nbytes, allowed))
        self._bytes += allowed * nbytes
        if allowed < count:
            self.refused[site.name] += count - allowed
        return allowed

    def see(self, rows: np.ndarray) -> None:
        """Takes the index rows of what is to be written: the first change of step tells what a step costs."""
        if self._estimated:
            return
        steps = np.unique(rows["step"][(rows["flags"] & FLAG_STEP) != 0])
        if not len(steps):
            return
        if self._first_step is None:
            self._first_step = int(steps[0])
        if int(steps[-1]) != self._first_step and self._bytes:
            self._estimated = True
            self._tell_estimate()

    def _tell_estimate(self) -> None:
        lasts = ""
        if self._max_bytes is not None:
            steps = self._max_bytes / self._bytes
            lasts = f"; max_bytes={self._max_bytes:,} lasts for about {steps:,.0f} such steps"
        _log.info("%s: the first step took about %s bytes%s", self._name, f"{self._bytes:,}", lasts)

    def _of_recording(self, nbytes: int, count: int) -> int:
        if self._max_bytes is None:
            return count
        if self._stopped:
            return 0
        allowed = min(count, (self._max_bytes - self._bytes) // nbytes)
        if allowed < count:
            self._stopped = True
            _log.warning(
                "%s: max_bytes=%d is reached; recording has stopped, the computation goes on, what is not recorded "
                "is counted",
                self._name,
                self._max_bytes,
            )
        return allowed

    def _of_tap(self, tap: str, nbytes: int, count: int) -> int:
        if tap not in self._left:
            found = (size for pattern, size in self._patterns.items() if fnmatch.fnmatchcase(tap, pattern))
            self._left[tap] = next(found, None)
        left = self._left[tap]
        if left is None:
            return count
        if tap in self._ended:
            return 0
        allowed = min(count, left // nbytes)
        self._left[tap] = left - allowed * nbytes
        if allowed < count:
            self._ended.add(tap)
            _log.warning("%s: tap %r has reached its budget; it is recorded no more, and counted", self._name, tap)
        return allowed
