"""``tracerec stats``: the tidy table, one row a record and leaf, to the terminal or a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tracerec.cli import _terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from tracerec.cli._terminal import Terminal
    from tracerec.trace.trace import Trace

__all__ = ["stats"]

_SHOWN = 50
"""Rows shown unless told otherwise."""

_SUFFIXES = (".parquet", ".csv", ".jsonl")

_HIDDEN = ("time", "device", "call")
"""Columns of the file that the terminal has no room for."""


def stats(
    path: Annotated[
        str, typer.Argument(help="A recording, sealed (run.h5) or live, killed or running.", show_default=False)
    ],
    *,
    taps: Annotated[
        list[str] | None,
        typer.Option("--tap", metavar="NAME", help="A tap, or a glob such as 'encoder/*'; repeatable."),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="The most rows to show.")] = _SHOWN,
    every: Annotated[bool, typer.Option("--all", help="Show all rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON lines.")] = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Write all rows to a file: .parquet, .csv or .jsonl.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Count everything: also records, lanes and padding that do not count.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of -o.")] = False,
) -> None:
    """Show statistics of every record: count, NaN, Inf, zeros, min, max, mean, std and l2.

    They are over finite elements that count, in float64; a scalar has its value. One row is one record and leaf, in
    the order of the program. To the terminal go the first 50 rows, and the last line says of how many; CSV, JSON lines
    and files have all rows, with time, device and call.
    """
    if sum((as_csv, as_json, out is not None)) > 1:
        message = "--csv, --json and -o are three places for one table; choose one"
        raise typer.BadParameter(message)
    suffix = _suffix(out) if out is not None else ""
    from tracerec.trace import open_trace

    with open_trace(path) as trace:
        if out is not None:
            _check(out, trace, force=force)
        table = (trace.raw if raw else trace).to_pandas(taps or None)
    if out is not None:
        _write(table, Path(out), suffix)
    with _terminal.terminal() as terminal:
        if out is not None:
            terminal.line(f"{out}: {_rows(len(table))}, {_terminal.size(Path(out).stat().st_size)}")
        elif as_csv:
            _csv(table, terminal.console.file, terminal if terminal.interactive else None)
        elif as_json:
            _json_lines(table, terminal.console.file)
        else:
            _show(table, terminal, len(table) if every else rows)


def _suffix(out: str) -> str:
    """Returns the suffix of a file, which says what is written to it."""
    suffix = Path(out).suffix.lower()
    if suffix not in _SUFFIXES:
        message = f"{out}: the suffix says which form it is; there are {', '.join(_SUFFIXES)}"
        raise typer.BadParameter(message, param_hint="-o")
    return suffix


def _check(out: str, trace: Trace, *, force: bool) -> None:
    """Raises ExportError for a file that may not be written."""
    from tracerec.exporting import output

    output.check_free(Path(out), force=force, inputs=trace.paths)


def _write(table: pd.DataFrame, path: Path, suffix: str) -> None:
    from tracerec.exporting import output

    with output.written(path) as place:
        if suffix == ".parquet":
            import pyarrow.parquet as pq

            from tracerec.trace.frames import arrow_table

            pq.write_table(arrow_table(table), place, compression="zstd")
            return
        with place.open("w", encoding="utf-8", newline="") as file:
            (_csv if suffix == ".csv" else _json_lines)(table, file)


def _csv(table: pd.DataFrame, file: IO[str], terminal: Terminal | None = None) -> None:
    """Writes CSV; to a terminal with no character that it would obey."""
    import csv

    writer = csv.writer(file, lineterminator="\n")
    show = str if terminal is None else terminal.text
    writer.writerow([show(str(name)) for name in table.columns])
    for row in _values(table):
        writer.writerow(["" if value is None else show(_text(value)) for value in row])


def _json_lines(table: pd.DataFrame, file: IO[str]) -> None:
    from tracerec.trace.columns import jsonable

    names = [str(name) for name in table.columns]
    for row in _values(table):
        values = {name: _finite(jsonable(value)) for name, value in zip(names, row, strict=True)}
        # DEL is the one control character that JSON leaves as it is.
        file.write(json.dumps(values, allow_nan=False).replace("\x7f", "\\u007f") + "\n")


def _finite(value: Any) -> Any:
    """Returns a JSON value in which NaN and infinities, for which JSON has no number, are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return {key: _finite(item) for key, item in value.items()} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    from tracerec.trace.columns import as_text, well_formed

    if isinstance(value, float):
        return repr(value)
    return well_formed(as_text(value) if isinstance(value, (dict, list, tuple, str, bool)) else str(value))


def _values(table: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yields rows of Python values; None where there is none, times as ISO 8601."""
    columns: list[list[Any]] = []
    for name in table.columns:
        column = table[name]
        if name == "time":
            columns.append([time.isoformat() for time in column])
            continue
        mask = getattr(column.array, "_mask", None)
        values = column.tolist()
        # A float that was recorded as NaN is a value, what is missing is none.
        missing = mask if mask is not None else [v is None or (isinstance(v, float) and math.isnan(v)) for v in values]
        columns.append([None if gone else value for value, gone in zip(values, missing, strict=True)])
    return zip(*columns, strict=True)


def _show(table: pd.DataFrame, terminal: Terminal, most: int) -> None:
    if not len(table):
        terminal.print("Nothing was recorded.")
        return
    shown = table.iloc[:most]
    names = [name for name in shown.columns if name not in _HIDDEN and not shown[name].isna().all()]
    names = [name for name in names if not ((shown[name] == "").all() and name in ("leaf", "transforms"))]
    rows = [[terminal.text(_cell(value)) for value in row] for row in _values(shown[names])]
    cells = {name: [terminal.text(name), *column] for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    kept = _fitting(cells, terminal.console.width)
    grid = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="bold")
    for name in kept:
        left = str(shown[name].dtype) in ("str", "object")
        # What does not fit is folded: a number that is cut is another number.
        grid.add_column(Text(cells[name][0]), justify="left" if left else "right", overflow="fold")
    for number in range(len(shown)):
        grid.add_row(*(Text(cells[name][number + 1]) for name in kept))
    terminal.print(grid)
    notes = [f"{len(shown):,} of {_rows(len(table))} (--all)"] if len(shown) < len(table) else []
    if gone := [cells[name][0] for name in names if name not in kept]:
        notes.append(f"no room for {', '.join(gone)}")
    if notes:
        terminal.print(Text("; ".join([*notes, "--csv, --json and -o have everything"]), style="dim"))


def _fitting(cells: dict[str, list[str]], width: int) -> list[str]:
    """Returns the columns that fit side by side, the less telling ones left out first."""
    widths = {name: max(map(cell_len, texts)) + _BETWEEN for name, texts in cells.items()}
    kept = list(cells)
    kwargs = [name for name in kept if name not in (*_KEPT, *_LEFT_OUT)]
    for name in (*_LEFT_OUT[:_BEFORE_KWARGS], *reversed(kwargs), *_LEFT_OUT[_BEFORE_KWARGS:]):
        if sum(widths[each] for each in kept) - _BETWEEN <= width:
            break
        if name in kept:
            kept.remove(name)
    return kept


_BETWEEN = 1
"""Spaces between two columns."""

_KEPT = ("tap", "leaf", "step", "value", "mean")

_LEFT_OUT = ("neginf", "posinf", "zeros", "count", "std", "l2", "transforms", "nan", "min", "max")
"""What gives way on a narrow terminal, in this order; kwargs do so after `_BEFORE_KWARGS` of them."""

_BEFORE_KWARGS = 5


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _terminal.number(value) if isinstance(value, float) else _text(value)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
