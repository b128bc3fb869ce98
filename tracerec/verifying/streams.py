"""Checks of one stream, whatever its form: its records are read, all of them, a few megabytes at a time.

What cannot be read is narrowed down to the chunk. The rows that are bad are kept, so that `tracerec.salvaging` can take
the others.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import TraceFormatError
from tracerec.salvaging.opened import OpenedStream, Table, tables_of
from tracerec.summaries import StepRange, summarizers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.salvaging.opened import BadRows
    from tracerec.statistics import LeafSummary
    from tracerec.summaries import LeafSummarizer
    from tracerec.verifying.report import Findings

__all__ = ["Rows", "StreamCheck", "check_stream", "invalid_rows"]

READ_BYTES = 8 << 20
"""Bytes of records read at once."""

_LARGEST = {"bool": 1, "int2": 3, "uint2": 3, "int4": 15, "uint4": 15, "float4_e2m1fn": 15}
"""The largest byte that an element of these types is; all bytes are elements of the others."""


class Rows:
    """A set of rows of a stream: ranges that are added in any order."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []

    def add(self, start: int, stop: int) -> None:
        """Adds a range."""
        self._parts.append(np.array([[start, stop]], np.int64))

    def add_rows(self, rows: np.ndarray) -> None:
        """Adds single rows, in order."""
        if len(rows):
            breaks = np.flatnonzero(np.diff(rows) != 1)
            starts = rows[np.concatenate([[0], breaks + 1])]
            stops = rows[np.concatenate([breaks, [len(rows) - 1]])] + 1
            self._parts.append(np.stack([starts, stops], axis=1).astype(np.int64))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges, in order, none touching another."""
        if not self._parts:
            return []
        every = np.concatenate(self._parts)
        every = every[np.argsort(every[:, 0], kind="stable")]
        reach = np.maximum.accumulate(every[:, 1])
        first = np.concatenate([[True], every[1:, 0] > reach[:-1]])
        stops = reach[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(every) - 1]])]
        return list(zip(every[first, 0].tolist(), stops.tolist(), strict=True))

    def rest(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges between two rows that are not in the set."""
        for first, last in self.ranges:
            if start < min(first, stop):
                yield start, min(first, stop)
            start = max(start, last)
        if start < stop:
            yield start, stop

    def __bool__(self) -> bool:
        return bool(self._parts)


@dataclasses.dataclass
class StreamCheck:
    """What checking a stream found out.

    Attributes:
        opened: the stream.
        tap: the tap's name.
        bad: the rows of which something cannot be read, or is no value of its type.
        steps: the smallest and the largest step of the rows that can be read.
        rising: whether arrival numbers rise from row to row, over those that can be read.
        last_arrival: of the last row; -1 where there is none.
        summaries: made from the records, where all can be read.
    """

    opened: OpenedStream
    tap: str
    bad: Rows = dataclasses.field(default_factory=Rows)
    steps: tuple[int, int] | None = None
    rising: bool = True
    last_arrival: int = -1
    summaries: list[LeafSummary] | None = None


def check_stream(
    opened: OpenedStream, findings: Findings, *, in_order: bool = True, first_arrival: int = 0, after: int = -1
) -> StreamCheck:
    """Reads all of a stream and reports what is wrong with its records.

    Args:
        opened: the stream.
        findings: takes the faults.
        in_order: whether arrival numbers must rise.
        first_arrival: no record has an earlier number.
        after: the arrival number of the site's last record in the files before this one.
    """
    checker = _Checker(opened, findings, in_order=in_order, first_arrival=first_arrival, after=after)
    checker.run()
    return checker.found


def invalid_rows(block: np.ndarray, dtype: str) -> np.ndarray | None:
    """Returns which rows of a block hold what is no value of a dtype; None where all are.

    Example:
        >>> invalid_rows(np.array([[0, 1], [2, 0]], np.uint8).view(bool), "bool")
        array([1])
    """
    largest = _LARGEST.get(dtype)
    if largest is None or not block.size:
        return None
    bits = np.ascontiguousarray(block).view(np.uint8).reshape(len(block), -1)
    return np.flatnonzero(bits.max(axis=1) > largest) if bits.max() > largest else None


class _Checker:
    """Checks one stream."""

    def __init__(
        self, opened: OpenedStream, findings: Findings, *, in_order: bool, first_arrival: int, after: int
    ) -> None:
        self._stream, self._opened, self._findings = opened.stream, opened, findings
        self._in_order, self._first_arrival = in_order, first_arrival
        self.found = StreamCheck(opened, self._stream.site.name, last_arrival=after)
        self._steps = StepRange()

    def run(self) -> None:
        """Reads and checks everything."""
        bad = self.found.bad
        leaves = self._summarizers()
        for number, table in enumerate(tables_of(self._stream)):
            summarizer = leaves[number - 1] if leaves and 1 <= number <= len(leaves) else None
            for start, block in self._blocks(number, table):
                if number == 0:
                    self._index(block, start)
                    continue
                self._elements(table, block, start)
                if summarizer is not None and not bad:
                    summarizer.add(block)
        self.found.steps = self._steps.range
        if leaves is not None and not bad:
            self.found.summaries = [leaf.summary() for leaf in leaves]

    def _summarizers(self) -> list[LeafSummarizer] | None:
        try:
            return summarizers(self._stream)
        except TraceFormatError:
            # A mask that cannot be read is reported when it is read for itself.
            return None

    def _blocks(self, number: int, table: Table) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the blocks that can be read; reports the rows that cannot."""
        size = max(1, READ_BYTES // max(1, table.row_nbytes))
        starts = iter(range(0, self._stream.records, size))
        for start in starts:
            self._findings.tick()
            try:
                yield start, table.read(start, min(start + size, self._stream.records))
            except TraceFormatError as error:
                yield from self._rest(number, table, start, size, error)
                return

    def _rest(
        self, number: int, table: Table, start: int, size: int, error: TraceFormatError
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the blocks from one on that can be read, once one could not."""
        bad = Rows()
        for part in _together(self._opened.bad_rows(number)):
            self.found.bad.add(part.start, part.stop)
            bad.add(part.start, part.stop)
            which = "this record" if part.stop == part.start + 1 else f"these {part.stop - part.start} records"
            self._add(part.invariant, f"{part.reason}; {which} cannot be read", table, part.start, part.stop)
        if not bad:
            # It was read the second time: the disk cannot be trusted, nor these records.
            stop = min(start + size, self._stream.records)
            self.found.bad.add(start, stop)
            bad.add(start, stop)
            self._add("readable", f"{error}: at first these records could not be read", table, start, stop)
        for first, last in bad.rest(start, self._stream.records):
            for at in range(first, last, size):
                self._findings.tick()
                yield at, table.read(at, min(at + size, last))

    def _elements(self, table: Table, block: np.ndarray, start: int) -> None:
        rows = invalid_rows(block, table.dtype)
        if rows is not None:
            self.found.bad.add_rows(rows + start)
            message = f"{len(rows)} of these records hold bits that are no {table.dtype}"
            self._add("dtype-valid", message, table, start + int(rows[0]), start + int(rows[-1]) + 1)

    def _index(self, rows: np.ndarray, start: int) -> None:
        """Checks a block of the index table, and remembers what the next one needs."""
        arrivals = rows["arrival"]
        falls = np.flatnonzero(arrivals[1:] <= arrivals[:-1]) + 1
        if int(arrivals[0]) <= self.found.last_arrival:
            falls = np.concatenate([[0], falls])
        if len(falls):
            self.found.rising = False
        if len(falls) and self._in_order:
            at, end = int(falls[0]), int(falls[-1]) + 1
            message = (
                f"arrival number {int(arrivals[at])} is not larger than the one before it, {len(falls)} such in all: "
                "records are not in the order in which they arrived, or are there twice"
            )
            self._add("arrival-monotone", message, None, start + at, start + end)
        early = np.flatnonzero(arrivals < self._first_arrival)
        if len(early):
            at, end = int(early[0]), int(early[-1]) + 1
            message = f"arrival number {int(arrivals[at])} comes before the first attempt, {self._first_arrival}"
            self._add("attempts-ordered", message, None, start + at, start + end)
        self.found.last_arrival = int(arrivals[-1])
        self._steps.add(rows)

    def _add(self, invariant: str, message: str, table: Table | None, start: int, stop: int) -> None:
        leaf = "index" if table is None else table.label
        tap = self.found.tap
        self._findings.add(invariant, self._opened.file, message, tap=tap, leaf=leaf, records=(start, stop))


def _together(parts: Iterator[BadRows]) -> Iterator[BadRows]:
    """Yields the same rows, neighbours together of which the same is said."""
    whole: BadRows | None = None
    for part in parts:
        alike = whole is not None and (whole.invariant, whole.reason) == (part.invariant, part.reason)
        if whole is not None and alike and whole.stop == part.start:
            whole = dataclasses.replace(whole, stop=part.stop)
            continue
        if whole is not None:
            yield whole
        whole = part
    if whole is not None:
        yield whole
