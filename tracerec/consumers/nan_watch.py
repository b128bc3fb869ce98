"""Watching for the first NaN or infinity."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.consumers.running import Key, key_of
from tracerec.consuming import TapConsumer
from tracerec.errors import NotFinite
from tracerec.statistics import finite_values, moments

if TYPE_CHECKING:
    from tracerec.consuming import Firing
    from tracerec.statistics import Moments

__all__ = ["Finding", "NaNWatch"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A leaf of a record with elements that are not finite.

    Attributes:
        tap: the tap's name.
        leaf: the leaf's key path; ``""`` for a bare array.
        transforms: the names of the transformations, innermost first.
        step: the kwarg ``step``, or None.
        nan: how many elements are NaN.
        posinf: positive infinities.
        neginf: negative infinities.
        count: elements that count.
        arrival: the record's arrival number; None of a consumer called by hand.
        lanes_may_be_invalid: whether lanes that never took the tap's branch may be meant.
    """

    tap: str
    leaf: str
    transforms: tuple[str, ...]
    step: Any
    nan: int
    posinf: int
    neginf: int
    count: int
    arrival: int | None = None
    lanes_may_be_invalid: bool = False

    def __str__(self) -> str:
        what = [f"{n:,} {name}" for n, name in ((self.nan, "NaN"), (self.posinf, "+Inf"), (self.neginf, "-Inf")) if n]
        place = f"tap {self.tap!r}" + (f" leaf {self.leaf}" if self.leaf else "")
        step = "" if self.step is None else f" at step {self.step}"
        chain = f" ({', '.join(self.transforms)})" if self.transforms else ""
        unknown = "; lanes that never took its branch may be meant" if self.lanes_may_be_invalid else ""
        return f"{place}{chain}{step}: {', '.join(what)} of {self.count:,} elements{unknown}"


class NaNWatch(TapConsumer):
    """Notes the first record with an element that is not finite, in order of the calls, and counts the others.

    Args:
        raises: whether to raise `NotFinite` at the first one. Live it is raised by `tracerec.barrier_wait`, as the
            cause of a `ConsumerError`; a replay ends there.

    Attributes:
        first: the first finding; None while all is finite.
        by_leaf: the first finding of each tap, leaf and chain of transforms, in the order of the calls.
        records: how many leaves of records had any.

    Example:
        >>> import numpy as np
        >>> watch = NaNWatch()
        >>> for step, x in enumerate([1.0, 0.0, -1.0]):
        ...     with np.errstate(all="ignore"):
        ...         watch(np.log(np.float32(x)), tap="log", step=step)
        >>> print(watch.first)
        tap 'log' at step 1: 1 -Inf of 1 elements
        >>> watch.records
        2
    """

    def __init__(self, *, raises: bool = False) -> None:
        self.first: Finding | None = None
        self.by_leaf: dict[Key, Finding] = {}
        self.records = 0
        self._raises = raises
        self._lock = threading.Lock()

    def take(self, firing: Firing) -> None:
        """Looks at a record."""
        for path, elements in firing.counted():
            if _all_finite(elements):
                continue
            finding = _finding(firing, path, moments(elements))
            with self._lock:
                self.records += 1
                self.by_leaf.setdefault(key_of(firing, path), finding)
                is_first, self.first = self.first is None, self.first or finding
            if is_first and self._raises:
                raise NotFinite(str(finding), tap=finding.tap, step=finding.step)

    def __repr__(self) -> str:
        return f"<NaNWatch: {'all is finite' if self.first is None else self.first}>"


def _all_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biufc":
        return array.dtype.kind in "biu" or bool(np.isfinite(array).all())
    return not any(others for _, others in finite_values(array))


def _finding(firing: Firing, path: str, found: Moments) -> Finding:
    record = firing.record
    return Finding(
        tap=firing.tap,
        leaf=path,
        transforms=firing.transforms,
        step=firing.step,
        nan=found.nan,
        posinf=found.posinf,
        neginf=found.neginf,
        count=found.count,
        arrival=None if record is None else record.arrival,
        lanes_may_be_invalid=record is not None and record.site.lanes_may_be_invalid,
    )
