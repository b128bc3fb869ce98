"""The answer: are two runs equal, where do they begin to differ, and how does the difference grow."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracerec.comparing import pictures
from tracerec.comparing.cells import DIFFERENT, DTYPE, EQUAL, KINDS, SAME, SHAPE
from tracerec.comparing.divergence import divergence, key_values, record_text
from tracerec.comparing.growth import Growth
from tracerec.comparing.unmatched import ALONE, NOT_COMPARABLE
from tracerec.errors import ComparisonError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from tracerec.comparing.cells import Cell
    from tracerec.comparing.divergence import Divergence
    from tracerec.comparing.pictures import Picture
    from tracerec.comparing.tolerances import Tolerances
    from tracerec.comparing.unmatched import Unmatched

__all__ = ["Comparison", "Runs", "Verdict"]

Verdict = Literal["equal", "different", "not comparable", "incomplete"]


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """The two runs.

    Attributes:
        a: the first one's path.
        b: the second one's path.
        records_a: how many records the first has.
        records_b: how many the second has.
        notes: what is to be known of their ends, a sentence each.
    """

    a: str
    b: str
    records_a: int
    records_b: int
    notes: tuple[str, ...] = ()


class Comparison:
    """What comparing two traces found; see `tracerec.compare`. It stays valid when the traces are closed.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("run.h5"):
        ...     _ = tracerec.tap(np.float32(0.5), "loss", step=0)
        >>> print(tracerec.compare("run.h5", "run.h5").summary)
        equal: all 1 of 1 compared are equal, run.h5 and run.h5
    """

    def __init__(
        self,
        runs: Runs,
        cells: Sequence[Cell],
        unmatched: Sequence[Unmatched],
        missing: str,
        tolerances: Tolerances,
        *,
        stopped: bool = False,
    ) -> None:
        self.runs = runs
        self.stopped = stopped
        self.missing = missing
        self._cells = sorted(cells, key=lambda cell: cell.first_place)
        self._unmatched = tuple(unmatched)
        self._tolerances = tolerances
        # These read the traces, which may be closed later.
        self._first = self._described("first_different")
        self._culprit = self._described("first_changed")
        self._by_process = self._first_by_process()
        self._pictures = pictures.of_worst(self._cells)

    @property
    def verdict(self) -> Verdict:
        """What came out.

        ``"different"``: a record is beyond tolerance, or (with ``missing="fail"``) only one run has it. ``"not
        comparable"``: nothing could be compared, or something could not although both runs have it. ``"incomplete"``:
        all that was compared is equal, but not everything was.
        """
        kinds = {each.what for each in self._unmatched}
        if self.different or (self.missing == "fail" and kinds.intersection(ALONE) and self.compared):
            return "different"
        if self.missing == "ignore" and (kinds or self.compared):
            return "equal"
        if not self.compared and (kinds or self.runs.records_a or self.runs.records_b):
            return "not comparable"
        if self.missing == "fail" and NOT_COMPARABLE in kinds:
            return "not comparable"
        return "incomplete" if kinds else "equal"

    @property
    def ok(self) -> bool:
        """Whether the runs are equal within tolerance, and as complete as ``missing=`` asks for."""
        return self.verdict == "equal" or (self.verdict == "incomplete" and self.missing != "fail")

    @property
    def status(self) -> int:
        """The exit status of ``tracerec compare``: 0 equal, 1 different, 2 not comparable, 3 compared with loss."""
        return {"equal": 0, "different": 1, "not comparable": 2, "incomplete": 3}[self.verdict]

    @property
    def compared(self) -> int:
        """How many pairs of records and leaves were compared."""
        return int(sum(cell.counts.kinds.sum() for cell in self._cells))

    @property
    def different(self) -> int:
        """How many of them differ beyond tolerance, or in dtype, shape, valid lanes, or the bits of a fingerprint."""
        return sum(self.kinds[KINDS[kind]] for kind in DIFFERENT)

    @property
    def kinds(self) -> dict[str, int]:
        """How many of them are equal, within tolerance, and so on."""
        counts = np.sum([cell.counts.kinds for cell in self._cells], axis=0) if self._cells else [0] * len(KINDS)
        return {kind: int(count) for kind, count in zip(KINDS, counts, strict=True)}

    @property
    def unmatched(self) -> tuple[Unmatched, ...]:
        """What was not compared: only in one run, dropped, retired, not comparable."""
        return self._unmatched

    @property
    def tolerances(self) -> dict[str, str]:
        """The tolerances used, as text, by dtype."""
        return self._tolerances.used()

    @property
    def first_divergence(self) -> Divergence | None:
        """The earliest record that differs beyond tolerance, in the first run's order of execution; None: none does.

        That is the order of the program on each device: call by call, forward before backward, loop by loop.
        """
        return self._first

    @property
    def first_by_process(self) -> dict[int, Divergence]:
        """For each process of the first run the earliest record beyond tolerance, in its own order of execution."""
        return self._by_process

    @property
    def culprit(self) -> Divergence | None:
        """The earliest record whose values differ at all although those before it in its call agree.

        It may be within tolerance: a small difference that has grown by the time of `first_divergence`. What a noise
        run explains does not count. None where no value differs.
        """
        return self._culprit

    @property
    def growth(self) -> Growth:
        """The difference along the steps of a tap, and along the taps of a step."""
        return Growth(self._cells)

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        runs = f"{self.runs.a} and {self.runs.b}"
        if not self.compared:
            nothing = self._unmatched or self.runs.records_a or self.runs.records_b
            return f"{self.verdict}: nothing was compared, {runs}" if nothing else f"equal: both empty, {runs}"
        if self.different:
            found = f"{self.different:,} of {self.compared:,} compared differ"
            more = " up to the first difference" if self.stopped else ""
            first = f"; first: {self._first.record}" if self._first else ""
            return f"different: {found}{self._by()}{more}, {runs}{first}"
        kinds = self.kinds
        equal = kinds.pop(KINDS[EQUAL])
        every = "all " if equal == self.compared else ""
        words = [f"{every}{equal:,} of {self.compared:,} compared are equal"]
        words += [f"{count:,} {_IN_SUMMARY.get(kind, kind)}" for kind, count in kinds.items() if count]
        alone = sum(each.records for each in self._unmatched if each.what in ALONE)
        but = f", but {alone:,} record{'s are' if alone > 1 else ' is'} in one run alone" * bool(alone)
        return f"{self.verdict}: {', '.join(words)}{self._by()}{but}, {runs}"

    def _by(self) -> str:
        """Returns how many pairs were not compared element by element, as text."""
        counts: dict[str, int] = {}
        for cell in self._cells:
            if cell.by is not None:
                counts[str(cell.by)] = counts.get(str(cell.by), 0) + int(cell.counts.kinds.sum())
        words = [f"{count:,} by {by}" for by, count in counts.items() if count]
        return f" ({', '.join(words)})" if words else ""

    def rows(self, sort: Literal["order", "worst"] = "order") -> list[dict[str, Any]]:
        """Returns one mapping a tap, leaf and transforms: how many records, how many differ, the worst measures.

        Args:
            sort: ``"order"``: as they are executed first; ``"worst"``: the largest difference first.
        """
        out = [self._row(cell) for cell in self._cells]
        if sort == "worst":
            out.sort(key=lambda row: (not row["different"], -_rank(row)))
        return out

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table, one row a pair of records and leaf, in order of execution.

        Columns: ``tap``, ``leaf``, ``transforms``, ``step`` and the other kwargs that records are matched by,
        ``device``, ``shard``, ``process``, ``call``, ``occurrence``, ``kind``, ``dtype_a``, ``dtype_b``, ``shape_a``,
        ``shape_b``, ``size``, ``differing``, ``share``, ``beyond``, ``max_abs``, ``max_rel``, ``max_ulp`` with
        ``_at``, ``_a`` and ``_b`` (flat index and both values), ``mean_abs``, ``cosine``, ``snr_db``, ``rel_l2``,
        ``nan``, ``posinf``, ``neginf``, ``lanes``, ``need_rtol``, ``need_atol``; and ``by`` if something else than
        elements was compared: ``"fingerprint"``, ``"summary (of the full leaf in a)"``, else ``""``.

        Raises:
            MissingExtra: pandas is not installed.
        """
        from tracerec.comparing.tables import table

        return table(self._cells)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a report; the name's end says which.

        ``.html``: one file that opens offline, with pictures and a table that filters. ``.md``: Markdown. ``.jsonl``:
        a JSON object a line, the first with the verdict, then one a tap and leaf, then what was not compared.
        ``.xml``: JUnit, a test case a tap and leaf.

        Raises:
            ComparisonError: the name ends in none of these.
            OSError: the file cannot be written.
        """
        from tracerec.comparing.reports import WRITERS

        text = os.fspath(path)
        for suffix, write in WRITERS.items():
            if text.endswith(suffix):
                content = write(self)
                break
        else:
            message = f"a report's name ends in {', '.join(WRITERS)}, not {text!r}"
            raise ComparisonError(message)
        with open(text, "w", encoding="utf-8", newline="\n") as file:  # noqa: PTH123 - any path-like
            file.write(content)

    def to_json(self) -> dict[str, Any]:
        """Returns what ``tracerec compare --json`` prints, by ``schemas/compare.schema.json``."""
        from tracerec.comparing.reports import as_object

        return as_object(self)

    @property
    def cells(self) -> Sequence[Cell]:
        """What was compared, a leaf of two streams each, in order of execution; for reports."""
        return self._cells

    @property
    def pictures(self) -> Sequence[Picture]:
        """The worst tensors of both runs and their difference, small enough to draw."""
        return self._pictures

    def __str__(self) -> str:
        from tracerec.comparing.text import lines

        return "\n".join(lines(self))

    def __repr__(self) -> str:
        return f"<tracerec.Comparison {self.summary}>"

    def _described(self, name: str) -> Divergence | None:
        found = [(getattr(cell.counts, name), number) for number, cell in enumerate(self._cells)]
        there = [(first[0], number, first[1]) for first, number in found if first is not None]
        if not there:
            return None
        _, number, pair = min(there)
        return divergence(self._cells[number], pair)

    def _first_by_process(self) -> dict[int, Divergence]:
        best: dict[int, tuple[int, int, int]] = {}
        for number, cell in enumerate(self._cells):
            for process, (place, pair) in cell.counts.by_process.items():
                best[process] = min(best.get(process, (place, number, pair)), (place, number, pair))
        return {p: divergence(self._cells[n], pair) for p, (_, n, pair) in sorted(best.items())}

    def _row(self, cell: Cell) -> dict[str, Any]:
        counts = cell.counts
        first = counts.first_different
        return {
            "tap": cell.tap,
            "tap_a": cell.tap_a,
            "leaf": cell.leaf,
            "transforms": cell.transforms,
            "kwargs": {name: str(value) for name, value in cell.static.items()},
            "dtype_a": cell.dtypes[0],
            "dtype_b": cell.dtypes[1],
            "shape_a": cell.shapes[0],
            "shape_b": cell.shapes[1],
            "compared": int(counts.kinds.sum()),
            "different": int(counts.kinds[list(DIFFERENT)].sum()),
            "kinds": {kind: int(count) for kind, count in zip(KINDS, counts.kinds, strict=True) if count},
            "error": counts.worst_error if counts.worst_pair >= 0 else 0.0,
            **{name: counts.worst.get(name) for name in ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol")},
            "first": None if first is None else self._record(cell, first[1]),
            "worst": None if counts.worst_pair < 0 else self._record(cell, counts.worst_pair),
            "tolerance": str(cell.tolerance),
            "by": "" if cell.by is None else str(cell.by),
            "statistics": dict(counts.statistics),
        }

    def _record(self, cell: Cell, number: int) -> str:
        occurrence = int(cell.pairs[number]["occurrence"])
        key = {**cell.static, **key_values(cell, cell.keys[number])}
        return record_text(cell.tap, cell.leaf, cell.transforms, key, occurrence)


_IN_SUMMARY = {KINDS[SAME]: "equal in value, not in bits"}


def _rank(row: dict[str, Any]) -> float:
    """Returns how bad a row is; what differs in dtype or shape is worse than any number."""
    measured = row["kinds"].keys().isdisjoint({KINDS[DTYPE], KINDS[SHAPE]})
    return row["error"] if measured else np.inf
