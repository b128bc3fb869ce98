"""What a sealed file says of a stream beside its records: is it true?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracerec.errors import TraceFormatError
from tracerec.statistics import moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.formats.contract import StreamSource
    from tracerec.statistics import LeafSummary, Moments
    from tracerec.verifying.report import Findings
    from tracerec.verifying.streams import StreamCheck

__all__ = ["check_stored", "same_summary"]

_TOLERANCE = 1e-9
"""Means differ in their last digits with the order in which they are summed."""

_READ_BYTES = 8 << 20


def check_stored(check: StreamCheck, findings: Findings) -> None:
    """Compares the stored steps and summaries of a stream with those of its records.

    Args:
        check: the stream, with its records' own.
        findings: takes the faults.
    """
    opened, tap = check.opened, check.tap
    if not opened.stored or check.bad:
        return
    if opened.steps != check.steps:
        message = f"steps {_range(opened.steps)} are listed, the records have {_range(check.steps)}"
        findings.add("steps-true", opened.file, message, tap=tap)
    if check.summaries is None:
        return
    try:
        stored = opened.stream.summaries()
    except TraceFormatError as error:
        findings.add("summary-true", opened.file, f"{_reason(error)}: there is no summary", tap=tap)
        return
    for number, (one, other) in enumerate(zip(stored, check.summaries, strict=True)):
        if not same_summary(one, other, lambda number=number: _magnitude(opened.stream, number)):
            leaf = f"leaf {opened.stream.site.leaves[number].path or number}"
            message = f"the summary that is stored is not that of the records: {_difference(one, other)}"
            findings.add("summary-true", opened.file, message, tap=tap, leaf=leaf)


def same_summary(stored: LeafSummary, made: LeafSummary, scale: Callable[[], float]) -> bool:
    """Returns whether a stored summary says what one made from the records does, but for rounding.

    Args:
        stored: read from the file.
        made: from the records.
        scale: returns the largest finite magnitude of the leaf; called where rounding could explain a difference.
    """
    if stored == made:
        return True
    if any(getattr(stored, name) != getattr(made, name) for name in _COUNTS):
        return False
    if any(getattr(stored.last, name) != getattr(made.last, name) for name in _EXACT):
        return False
    if len(stored.spark) != len(made.spark):
        return False
    slack = _TOLERANCE * scale()
    pairs = zip((*_rounded(stored.last), *stored.spark), (*_rounded(made.last), *made.spark), strict=True)
    return all(_close(a, b, slack) for a, b in pairs)


_COUNTS = ("records", "nan", "posinf", "neginf")
_EXACT = ("count", "finite", "nan", "posinf", "neginf", "zeros", "min", "max")


def _rounded(last: Moments) -> tuple[float | None, ...]:
    return last.mean, last.std, last.l2


def _close(a: float | None, b: float | None, slack: float) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= max(slack, _TOLERANCE * max(abs(a), abs(b)))


def _magnitude(stream: StreamSource, leaf: int) -> float:
    """Returns the largest finite magnitude of a leaf; it reads all of it."""
    largest = 0.0
    step = max(1, _READ_BYTES // max(1, stream.site.record_nbytes))
    for start in range(0, stream.records, step):
        found = moments(stream.leaf(leaf, start, min(start + step, stream.records)))
        largest = max(largest, abs(found.min or 0.0), abs(found.max or 0.0))
    return largest


def _difference(stored: LeafSummary, made: LeafSummary) -> str:
    for name in _COUNTS:
        if getattr(stored, name) != getattr(made, name):
            return f"{name} is {getattr(stored, name)}, not {getattr(made, name)}"
    for name in (*_EXACT, "mean", "std", "l2"):
        if getattr(stored.last, name) != getattr(made.last, name):
            return f"{name} of the last record is {getattr(stored.last, name)}, not {getattr(made.last, name)}"
    return "the means over the records differ"


def _range(steps: tuple[int, int] | None) -> str:
    return "none" if steps is None else f"{steps[0]} to {steps[1]}"


def _reason(error: TraceFormatError) -> str:
    return str(error).rpartition(" is no intact trace: ")[2]
