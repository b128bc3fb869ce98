"""A sealed file or folder, checked: what is stored of it, each stream, and all streams together."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from tracerec.keeping import reading
from tracerec.salvaging.described import attempts_fault, run_fault
from tracerec.verifying.arrivals import Seen, check_arrivals
from tracerec.verifying.stored import check_stored
from tracerec.verifying.streams import StreamCheck, check_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.contract import RunInfo
    from tracerec.salvaging.opened import Opened, OpenedStream
    from tracerec.verifying.report import Findings

__all__ = ["ORDERED_VERSION", "Before", "attempts_of", "check_opened", "check_streams"]

ORDERED_VERSION = (1, 2)
"""Since this version records of a stream are in the order of their arrival numbers, whichever program made them."""


@dataclasses.dataclass
class Before:
    """What is known from the files of the same recording that come before one.

    Attributes:
        last: the arrival number of each site's last record, by the site's id.
        seen: all arrival numbers; None where there is one file alone.
    """

    last: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    seen: Seen | None = None


def check_opened(opened: Opened, file: str, findings: Findings, before: Before | None = None) -> list[StreamCheck]:
    """Checks all that can be read of a sealed recording or part.

    Args:
        opened: the recording.
        file: its name, for reports.
        findings: takes the faults.
        before: what came before it, and takes what is in it.
    """
    info = opened.info
    checks = check_streams(opened.streams, file, findings, info, before)
    for check in checks:
        check_stored(check, findings)
    if opened.unchecked is not None:
        findings.note(f"{file}: {opened.unchecked}")
    if info is not None:
        records = sum(check.opened.stream.records for check in checks) + opened.lost.total()
        if info.records != records:
            message = f"the run says that it has {info.records} records; there are {records}"
            findings.add("counts-true", file, message)
    return checks


def check_streams(
    streams: Sequence[OpenedStream], file: str, findings: Findings, info: RunInfo | None, before: Before | None
) -> list[StreamCheck]:
    """Checks streams, one by one and together; arguments as `check_opened`."""
    before = before or Before()
    attempts = attempts_of(info, file, findings)
    in_order = info is None or info.format_version >= ORDERED_VERSION
    checks: list[StreamCheck] = []
    seen: dict[int, str] = {}
    for opened in streams:
        site = opened.stream.site
        if site.id in seen:
            message = f"two streams are of the same site {site.id:016x}: readers take them for two taps"
            findings.add("streams-listed", opened.file, message, tap=site.name)
        seen[site.id] = site.name
        if (contradiction := reading.fault(site)) is not None:
            message = f"what the site says that was kept of a leaf contradicts its arrays: {contradiction}"
            findings.add("shape-declared", opened.file, message, tap=site.name)
        check = check_stream(
            opened,
            findings,
            in_order=in_order,
            first_arrival=attempts[0] if attempts else 0,
            after=before.last.get(site.id, -1),
        )
        before.last[site.id] = check.last_arrival
        checks.append(check)
        findings.streams += 1
        findings.records += opened.stream.records
    rising = [check.opened.stream for check in checks if check.rising and not check.bad]
    check_arrivals(rising, file, findings, attempts=attempts, seen=before.seen)
    return checks


def attempts_of(info: RunInfo | None, file: str, findings: Findings) -> list[int]:
    """Returns the first arrival number of each attempt; reports a description of the run, or of those, that is none."""
    if info is None:
        return []
    for fault in (run_fault(info), wrong := attempts_fault(info)):
        if fault is not None:
            findings.add("run-described", file, fault)
    if wrong is not None:
        return []
    firsts: list[int] = [attempt["first_arrival"] for attempt in info.attempts]
    for number, (one, other) in enumerate(itertools.pairwise(firsts), start=1):
        if other < one:
            message = f"attempt {number} begins at arrival number {other}, the one before it at {one}"
            findings.add("attempts-ordered", file, message)
            return []
    return firsts
