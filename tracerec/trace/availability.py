"""What a recording that goes on may still bring: how far its program has got."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracerec import summaries
from tracerec.formats.joined import step_range
from tracerec.model import FLAG_STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.contract import StreamSource
    from tracerec.trace.attempts import Attempts

__all__ = ["Availability", "Progress"]

Availability = Literal["present", "never", "not yet"]
"""Whether something is there; of what is not, whether it still may come. What was retired never does."""

_ROWS = 1 << 16


class Progress:
    """How far a run that goes on had got when it was opened.

    Args:
        streams: all streams of the recording.
        attempts: its attempts; None when there is one.
    """

    def __init__(self, streams: Sequence[StreamSource], attempts: Attempts | None) -> None:
        self._streams = streams
        self._attempts = attempts

    def may_bring(self, wanted: Any) -> bool:
        """Returns whether one of these steps may still be recorded: it is none that the program has left behind.

        Args:
            wanted: a step, a half-open slice or an iterable of steps.
        """
        last = self.last_step
        if last is None:
            return True
        if isinstance(wanted, slice):
            return wanted.stop is None or bool(wanted.stop > last)
        if isinstance(wanted, (str, bytes)) or (not isinstance(wanted, Iterable) and not np.isscalar(wanted)):
            return False
        steps: list[Any] = list(wanted) if isinstance(wanted, Iterable) else [wanted]
        return any(not isinstance(step, str) and bool(step >= last) for step in steps)

    @cached_property
    def last_step(self) -> int | None:
        """The largest step that any tap recorded in the newest attempt; None when none had one."""
        if self._attempts is None:
            known = step_range(self._streams)
            return None if known is None else known[1]
        steps = summaries.StepRange()
        for stream in self._streams:
            for start in range(0, stream.records, _ROWS):
                rows = stream.index(start, min(start + _ROWS, stream.records))
                steps.add(
                    rows[(self._attempts.number(rows) == self._attempts.newest) & (rows["flags"] & FLAG_STEP > 0)]
                )
        return None if steps.range is None else steps.range[1]
