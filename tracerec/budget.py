"""How many bytes a recording, and each of its taps, may take. Free of JAX."""

from __future__ import annotations

import fnmatch
import logging
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracerec.model import FLAG_STEP, INDEX_DTYPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        >>> import numpy as np
        >>> from tracerec.model import INDEX_DTYPE, Leaf, Site
        >>> budget = Budget("run.h5", None, {"big/*": 1000})
        >>> site = Site("big/w", (Leaf("", (32,), "float32"),))  # a record takes 192 bytes
        >>> budget.take([(site, np.zeros(100, INDEX_DTYPE))])
        [5]
        >>> budget.refused
        Counter({'big/w': 95})
    """

    def __init__(self, name: str, max_bytes: int | None, of_taps: Mapping[str, int]) -> None:
        self.refused: Counter[str] = Counter()
        self._name = name
        self._max_bytes = max_bytes
        self._budgets = dict(of_taps)
        self._patterns: dict[str, str | None] = {}
        self._left: dict[str, int | None] = {}
        self._ended: set[str] = set()
        self._bytes = 0
        self._stopped = False
        self._first_step: _FirstStep | None = _FirstStep()

    def take(self, groups: Sequence[tuple[Site, np.ndarray]]) -> list[int]:
        """Returns how many records of each group may be written, its first ones; the others are counted as refused.

        Records of all groups are taken in the order of their arrival numbers.

        Args:
            groups: the records that came together: their site, and their rows of the index table, ``(n,)`` of
                `INDEX_DTYPE` in order of arrival.
        """
        if self._max_bytes is None and not self._budgets:
            return [len(rows) for _, rows in groups]
        if self._first_step is not None and self._first_step.add(groups):
            self._tell_estimate(self._first_step.nbytes)
            self._first_step = None
        allowed = self._all_that_fit(groups)
        if allowed is None:
            allowed = self._one_by_one(groups)
        for (site, rows), count in zip(groups, allowed, strict=True):
            if count < len(rows):
                self.refused[site.name] += len(rows) - count
        return allowed

    def _all_that_fit(self, groups: Sequence[tuple[Site, np.ndarray]]) -> list[int] | None:
        """Takes all records of taps that have not ended; returns None, having taken none, if a budget ends in them."""
        wanted = Counter[str]()
        for site, rows in groups:
            if not self._has_ended(site.name):
                wanted[site.name] += stored_nbytes(site) * len(rows)
        if self._max_bytes is not None and wanted.total() > self._max_bytes - self._bytes:
            return None
        lefts = {tap: self._left_of(tap) for tap in wanted}
        if any(left is not None and wanted[tap] > left for tap, left in lefts.items()):
            return None
        for tap, left in lefts.items():
            self._left[tap] = None if left is None else left - wanted[tap]
        self._bytes += wanted.total()
        return [0 if self._has_ended(site.name) else len(rows) for site, rows in groups]

    def _one_by_one(self, groups: Sequence[tuple[Site, np.ndarray]]) -> list[int]:
        """Takes records in the order of arrival until a budget ends, and then those of taps that have not ended."""
        allowed = [0] * len(groups)
        numbers = np.repeat(np.arange(len(groups)), [len(rows) for _, rows in groups])
        arrivals = np.concatenate([rows["arrival"] for _, rows in groups])
        for number in numbers[np.argsort(arrivals, kind="stable")].tolist():
            site = groups[number][0]
            if self._takes(site.name, stored_nbytes(site)):
                allowed[number] += 1
        return allowed

    def _takes(self, tap: str, nbytes: int) -> bool:
        """Returns whether one record more is taken; a budget that it does not fit into ends."""
        if self._has_ended(tap):
            return False
        left = self._left_of(tap)
        if left is not None and left < nbytes:
            self._ended.add(tap)
            _log.warning("%s: tap %r has reached its budget; it is recorded no more, and counted", self._name, tap)
            return False
        if self._max_bytes is not None and self._max_bytes - self._bytes < nbytes:
            self._stopped = True
            _log.warning(
                "%s: max_bytes=%d is reached; recording has stopped, the computation goes on, what is not recorded "
                "is counted",
                self._name,
                self._max_bytes,
            )
            return False
        self._left[tap] = None if left is None else left - nbytes
        self._bytes += nbytes
        return True

    def _has_ended(self, tap: str) -> bool:
        return self._stopped or tap in self._ended

    def _pattern_of(self, tap: str) -> str | None:
        if tap not in self._patterns:
            found = (pattern for pattern in self._budgets if fnmatch.fnmatchcase(tap, pattern))
            self._patterns[tap] = next(found, None)
        return self._patterns[tap]

    def _left_of(self, tap: str) -> int | None:
        """Returns how many bytes a tap's own budget has left; None: it has none."""
        if tap not in self._left:
            pattern = self._pattern_of(tap)
            self._left[tap] = None if pattern is None else self._budgets[pattern]
        return self._left[tap]

    def _tell_estimate(self, nbytes: Counter[str]) -> None:
        """Logs what the first step took, and for how many such steps each budget lasts."""
        lasts: list[str] = []
        if self._max_bytes is not None:
            lasts.append(f"max_bytes={self._max_bytes:,} lasts for {_steps(self._max_bytes, nbytes.total())}")
        for pattern, size in self._budgets.items():
            # each tap has the budget for itself: it lasts as long as for the one that takes most
            taps = [tap for tap in nbytes if self._pattern_of(tap) == pattern]
            if taps:
                most = max(taps, key=nbytes.__getitem__)
                lasts.append(f"budget {pattern!r}: {size:,} lasts for {_steps(size, nbytes[most])} of tap {most!r}")
        _log.info("%s: the first step took about %s bytes; %s", self._name, f"{nbytes.total():,}", "; ".join(lasts))


class _FirstStep:
    """Adds up what the records of the first step take, by tap name.

    Those are the records that have its number; and of those that have none, those that came between its first record
    and the first of another step.
    """

    def __init__(self) -> None:
        self.nbytes: Counter[str] = Counter()
        self._step: int | None = None

    def add(self, groups: Sequence[tuple[Site, np.ndarray]]) -> bool:
        """Takes what came together; returns whether another step has begun."""
        stepped = [(rows["flags"] & FLAG_STEP) != 0 for _, rows in groups]
        begin = 0
        if self._step is None:
            firsts = [rows[have][0] for (_, rows), have in zip(groups, stepped, strict=True) if have.any()]
            if not firsts:
                return False
            first = min(firsts, key=lambda row: int(row["arrival"]))
            self._step, begin = int(first["step"]), int(first["arrival"])
        others = [
            int(rows["arrival"][other][0])
            for (_, rows), have in zip(groups, stepped, strict=True)
            if (other := have & (rows["step"] != self._step)).any()
        ]
        end = min(others, default=None)
        for (site, rows), have in zip(groups, stepped, strict=True):
            mine = have & (rows["step"] == self._step)
            between = ~have & (rows["arrival"] >= np.uint64(begin))
            if end is not None:
                between &= rows["arrival"] < np.uint64(end)
            self.nbytes[site.name] += int(np.count_nonzero(mine | between)) * stored_nbytes(site)
        self.nbytes = +self.nbytes
        return end is not None


def _steps(size: int, nbytes: int) -> str:
    steps = size // nbytes
    return f"about {steps:,} such step{'' if steps == 1 else 's'}" if steps else "less than one such step"
