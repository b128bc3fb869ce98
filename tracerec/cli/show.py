"""``tracerec show``: one record of a tap: its values, their statistics, a histogram."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tracerec.cli import _terminal
from tracerec.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from tracerec.cli._terminal import Terminal
    from tracerec.consumers import Counts
    from tracerec.keeping.reading import Row
    from tracerec.model import Leaf, Record
    from tracerec.statistics import Moments
    from tracerec.trace import Tap

__all__ = ["show"]

SCHEMA_VERSION = "1.0"
"""The version of ``schemas/show.schema.json``."""

_SUMMARISED, _EDGE_ITEMS = 1024, 3
"""As `tracerec.id_print` has it: arrays of more elements are summarised, this many at each end of an axis."""

_WIDEST_LINE = 120
_BINS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class _Shown:
    """One leaf of one record, or a part of it.

    Attributes:
        whole: the record, with all that was kept of this leaf.
        record: the record, with the array that is shown alone.
        number: its place among the records selected.
        records: how many were selected.
        row: the leaf that is shown.
        index: what ``--slice`` takes; None: all.
        array: the values.
        valid: which of them count, of the array's shape; None: all.
    """

    whole: Record
    record: Record
    number: int
    records: int
    row: Row
    index: tuple[int | slice, ...] | None
    array: np.ndarray
    valid: np.ndarray | None

    @property
    def is_key(self) -> bool:
        return self.row.leaf.key_impl is not None

    def counted(self) -> np.ndarray:
        """The values that count."""
        return self.array if self.valid is None else self.array[self.valid]


def show(
    path: Annotated[
        str, typer.Argument(help="A recording, sealed (run.h5) or live, killed or running.", show_default=False)
    ],
    tap: Annotated[str, typer.Argument(help="The full name of a tap; inspect lists them.", show_default=False)],
    *,
    step: Annotated[int | None, typer.Option(help="Only records of this step.", show_default=False)] = None,
    record: Annotated[
        int | None,
        typer.Option(
            help="The number of a record among those selected, from 0, in program order; -1 is the last.",
            show_default="the last",
        ),
    ] = None,
    leaf: Annotated[
        str | None, typer.Option(help="The key path of a leaf of the pytree, such as \"['w']\".", show_default=False)
    ] = None,
    transforms: Annotated[
        str | None,
        typer.Option(help="The chain, innermost first: none, or names such as jvp,transpose.", show_default=False),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--slice", help="A part of the array: '0,:,::2', '-1', '...,3'.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print all values of a large array.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (schemas/show.schema.json).")] = False,
) -> None:
    """Show one record of a tap: what is known of it, its values, their statistics, a histogram.

    Values are printed as numpy prints them. Statistics are over finite values that count, in float64; of complex
    numbers, those of the magnitudes. With --slice all is of that part alone. Of a tap that kept something else than
    its value, what was kept is shown: statistics of a summary, the digest of a fingerprint, the bins of a histogram.
    """
    from tracerec.cli import _as_json, _choosing
    from tracerec.trace import open_trace

    with open_trace(path) as trace:
        kind = _choosing.one_kind(trace[tap], transforms, leaf)
        shown = _chosen(kind if step is None else kind.sel(step=step), record, part)
    with _terminal.terminal() as terminal:
        if as_json:
            made = _object(shown) if isinstance(shown, _Shown) else _kept_object(shown)
            terminal.console.file.write(_as_json.text(made, indent=2))
        elif isinstance(shown, _Shown):
            _print(shown, terminal, everything=everything)
        else:
            _print_kept(shown, terminal)


@dataclasses.dataclass(frozen=True, eq=False)
class _Kept:
    """A leaf of one record of which something else was kept. Attributes: as of `_Shown`, and which leaf it is."""

    record: Record
    number: int
    records: int
    row: Row


def _chosen(tap: Tap, number: int | None, part: str | None) -> _Shown | _Kept:
    import numpy as np

    from tracerec.cli import _choosing
    from tracerec.trace.single import main_rows
    from tracerec.trace.view import with_places

    count = len(tap)
    if not count:
        message = f"tap {tap.name!r} has no record that counts"
        raise SelectionError(message)
    at = count - 1 if number is None else number
    if not -count <= at < count:
        message = f"--record {number}: there are {count:,} records to choose from, 0 to {count - 1}"
        raise SelectionError(message)
    whole = tap[at]
    row = main_rows(whole.site)[0]
    if row.array is None:
        if part is not None:
            message = f"--slice takes a part of an array, and of tap {tap.name!r} was kept: {', '.join(row.kept)}"
            raise SelectionError(message)
        return _Kept(whole, at % count, count, row)
    array = whole.arrays[row.array]
    record = dataclasses.replace(whole, site=with_places(whole.site, [row.array]), arrays=(array,))
    index = None if part is None else _choosing.parsed_slice(part, array.shape)
    valid = _valid(record)
    if index is not None:
        array, valid = array[index], None if valid is None else valid[index]
    return _Shown(whole, record, at % count, count, row, index, np.asarray(array), valid)


def _valid(record: Record) -> np.ndarray | None:
    import numpy as np

    from tracerec import lanes

    if all(column.role is None for column in record.site.columns):
        return None
    valid = lanes.LeafLanes(record.site, 0).valid(lanes.columns_of(record))
    return None if valid is None else np.broadcast_to(valid[0], record.arrays[0].shape)


def _statistics(shown: _Shown) -> tuple[Moments, Counts] | None:
    """Returns statistics and histogram; None of keys, whose bits are no numbers."""
    from tracerec.consumers.histogram import Counter
    from tracerec.statistics import moments

    if shown.is_key:
        return None
    counter = Counter(_BINS)
    counter.add(shown.counted())
    return moments(shown.counted()), counter.counts()


def _object(shown: _Shown) -> dict[str, Any]:
    from tracerec.cli import _as_json, _choosing, _kept

    leaf, found = shown.row.leaf, _statistics(shown)
    return {
        "schema": SCHEMA_VERSION,
        **_as_json.record_object(shown.record),
        "record": shown.number,
        "records": shown.records,
        "leaf": leaf.to_json(),
        "kept": _kept.kept_object(shown.whole),
        "slice": None if shown.index is None else _choosing.slice_text(shown.index),
        "shape": list(shown.array.shape),
        "values": _as_json.plain(shown.array),
        "valid": None if shown.valid is None else shown.valid.tolist(),
        "statistics": None if found is None else found[0].to_json(),
        "histogram": None if found is None else {"edges": found[1].edges.tolist(), "counts": found[1].counts.tolist()},
    }


def _kept_object(shown: _Kept) -> dict[str, Any]:
    from tracerec.cli import _as_json, _kept

    leaf, counts = shown.row.leaf, _kept.histogram(shown.record, shown.row)
    return {
        "schema": SCHEMA_VERSION,
        **_as_json.record_object(shown.record),
        "record": shown.number,
        "records": shown.records,
        "leaf": leaf.to_json(),
        "kept": _kept.kept_object(shown.record),
        "slice": None,
        "shape": list(leaf.shape),
        "values": None,
        "valid": None,
        "statistics": None if leaf.key_impl is not None else _kept.statistics_object(shown.record, shown.row),
        "histogram": None if counts is None else {"edges": counts.edges.tolist(), "counts": counts.counts.tolist()},
    }


def _print_kept(shown: _Kept, terminal: Terminal) -> None:
    from tracerec.cli import _kept

    terminal.print(_title(shown.record, shown.row.leaf, (shown.number, shown.records), terminal))
    _print_facts(_facts_of(shown.record), terminal)
    terminal.print()
    for line in _kept.kept_sections(shown.record, shown.row, terminal, _summary):
        terminal.print(line)


def _print_facts(facts: Iterator[tuple[str, str]], terminal: Terminal) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts:
        grid.add_row(label, terminal.text(text))
    terminal.print(grid)


def _print(shown: _Shown, terminal: Terminal, *, everything: bool) -> None:
    terminal.print(_title(shown.record, shown.row.leaf, (shown.number, shown.records), terminal))
    _print_facts(_facts(shown), terminal)
    terminal.print()
    _print_values(shown, terminal, everything=everything)
    found = _statistics(shown)
    if found is None:
        return
    from tracerec.cli._histogram import histogram_lines

    terminal.print()
    terminal.print(_summary(found[0], terminal))
    for line in histogram_lines(found[1], terminal) if found[0].finite > 1 else ():
        terminal.print(line)


def _title(record: Record, leaf: Leaf, place: tuple[int, int], terminal: Terminal) -> Text:
    number, records = place
    kind = leaf.dtype if leaf.key_impl is None else f"key<{leaf.key_impl}>"
    title = Text(terminal.text(" ".join(filter(None, [record.tap, leaf.path]))), "bold")
    title.append(f"  {terminal.text(kind)}[{','.join(map(str, leaf.shape))}]", "not bold")
    is_last = number == records - 1
    return title.append(f"  record {number}{', the last' if is_last else ''} of {records:,}", "not bold")


def _facts_of(record: Record) -> Iterator[tuple[str, str]]:
    if record.step is not None:
        yield "step", str(record.step)
    if record.transforms:
        yield "transforms", ", ".join(map(str, record.transforms))
    kwargs = {name: value for name, value in record.kwargs.items() if name != "step"}
    if kwargs:
        yield "kwargs", "  ".join(f"{name}={_kwarg(value)}" for name, value in kwargs.items())
    yield "time", f"{str(record.time)[:23].replace('T', ' ')} UTC"
    place = [f"device {record.device}"] if record.device >= 0 else []
    if record.mesh_position is not None:
        place.append("mesh " + ", ".join(f"{axis}={at}" for axis, at in record.mesh_position.items()))
    yield "from", ", ".join([*place, f"call {record.call}", f"arrival {record.arrival}"])
    if record.site.lanes_may_be_invalid:
        yield "note", "lanes that did not take the tap's branch may be in it"


def _facts(shown: _Shown) -> Iterator[tuple[str, str]]:
    from tracerec.cli import _choosing, _kept

    yield from _facts_of(shown.record)
    if shown.row.kinds:
        yield "kept", ", ".join(shown.row.kept)
    if digest := _kept.short_digest(shown.whole, shown.row):
        yield "digest", digest
    leaf = shown.record.site.leaves[0]
    if leaf.global_shape is not None:
        yield "shard", f"of an array of shape {leaf.global_shape}"
    if shown.index is not None:
        yield "slice", f"{_choosing.slice_text(shown.index)}, of shape {shown.array.shape}"
    if shown.valid is not None and not shown.valid.all():
        counts = int(shown.valid.sum())
        yield "counted", f"{counts:,} of {shown.valid.size:,} values; the others are padding or lanes that do not count"


def _kwarg(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _print_values(shown: _Shown, terminal: Terminal, *, everything: bool) -> None:
    import numpy as np

    threshold = sys.maxsize if everything else _SUMMARISED
    text = np.array2string(
        shown.array,
        threshold=threshold,
        edgeitems=_EDGE_ITEMS,
        max_line_width=min(_WIDEST_LINE, terminal.console.width),
    )
    terminal.console.file.write(text + "\n")
    if shown.array.size > threshold:
        seen = math.prod(min(n, 2 * _EDGE_ITEMS) for n in shown.array.shape)
        note = f"{seen:,} of {shown.array.size:,} values are shown; --slice shows a part, --all shows all"
        terminal.print(Text(note, "dim"))


def _summary(found: Moments, terminal: Terminal) -> Text:
    measures = {name: getattr(found, name) for name in ("mean", "std", "min", "max", "l2")}
    parts = [f"{found.count:,} value{'' if found.count == 1 else 's'}"]
    parts += [f"{name} {_terminal.number(value)}" for name, value in measures.items() if value is not None]
    parts += [f"{found.zeros:,} zero"] if found.zeros else []
    line = Text(f" {terminal.glyphs.dot} ".join(parts))
    bad = [f"{n:,} {name}" for n, name in ((found.nan, "NaN"), (found.posinf, "Inf"), (found.neginf, "-Inf")) if n]
    return line.append(f" {terminal.glyphs.dot} " + ", ".join(bad), "bold red") if bad else line
