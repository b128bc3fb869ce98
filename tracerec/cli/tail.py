"""``tracerec tail``: the last records, one line each, and with ``-f`` those that come."""

from __future__ import annotations

import reprlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tracerec.cli import _as_json, _terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracerec.cli._terminal import Terminal
    from tracerec.keeping.reading import Row
    from tracerec.model import Leaf, Record

__all__ = ["tail"]

_PAUSE = 0.1
"""Seconds between two looks at a recording that goes on."""

_MOST_VALUES = 6
"""Arrays of more elements are shown by their statistics."""

_WITH_LOSS = 3


def tail(
    path: Annotated[
        str,
        typer.Argument(
            help="A recording, sealed (run.h5) or live, killed or running, or a pattern of several ('run.*.h5').",
            show_default=False,
        ),
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with the records that come, until the run ends.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many records to begin with.")] = 10,
    taps: Annotated[
        list[str] | None,
        typer.Option("--tap", metavar="PATTERN", help="Only taps of this name or pattern (encoder/*); several."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a record and line (schemas/tail.schema.json).")
    ] = False,
) -> None:
    """Print the last records, one line each, in order of arrival.

    A line has the time (UTC), the step, the tap, the transforms, the other kwargs, and each array: its values where it
    is small, else its statistics, over what counts; of a leaf of which a summary or a fingerprint was kept, these. With
    -f a recording that goes on is followed by reading only what is new.

    Exit status: 0, with -f once the recording is closed; 3 with -f when it ends without being closed.
    """
    from tracerec.trace import open_trace

    patterns = tuple(taps or ())
    with _terminal.terminal() as terminal, open_trace(path) as trace:
        several = len(trace.processes) > 1
        if not follow or trace.info.state != "recording":
            _show(trace.last(lines, *patterns), terminal, as_json=as_json, several=several)
            if follow and not trace.info.clean:
                _end_with_loss(trace.info.notes)
            return
        with trace.follow(*patterns) as coming:
            there = [pattern for pattern in patterns if any(_is_like(name, pattern) for name in trace)]
            if there or not patterns:
                _show(trace.last(lines, *there), terminal, as_json=as_json, several=several)
            while True:
                # asked first: what came before the end is then all read
                ended = coming.ended
                found = coming.poll()
                _show(found, terminal, as_json=as_json, several=several)
                if ended and not found:
                    break
                if not found:
                    time.sleep(_PAUSE)
            notes = coming.notes
    if notes:
        _end_with_loss(notes)


def _is_like(name: str, pattern: str) -> bool:
    from tracerec.trace.selection import is_like

    return is_like(name, pattern)


def _end_with_loss(notes: Iterable[str]) -> None:
    for note in notes:
        _terminal.print_error(note)
    raise typer.Exit(_WITH_LOSS)


def _show(records: list[Record], terminal: Terminal, *, as_json: bool, several: bool) -> None:
    for record in records:
        if as_json:
            line = {"schema": "1.0"} | _as_json.record_object(record) | {"leaves": _leaves_object(record)}
            terminal.console.file.write(_as_json.text(line))
        else:
            terminal.console.print(_line(record, terminal, several=several), soft_wrap=True)
    if records:
        terminal.console.file.flush()


def _line(record: Record, terminal: Terminal, *, several: bool) -> Text:
    import numpy as np

    from tracerec.cli import _kept
    from tracerec.keeping.reading import rows

    line = Text(f"{np.datetime_as_string(record.time, unit='us').replace('T', ' ')}", style="dim")
    if several:
        line.append(f"  process {record.process}")
    if record.step is not None:
        line.append(terminal.text(f"  step {_short(record.step)}"), style="not dim")
    line.append(terminal.text(f"  {record.tap}"), style="not dim bold")
    if record.transforms:
        line.append(terminal.text(f"  {', '.join(map(str, record.transforms))}"), style="not dim cyan")
    kwargs = {name: value for name, value in record.kwargs.items() if name != "step"}
    if kwargs:
        line.append(terminal.text("  " + " ".join(f"{name}={_short(v)}" for name, v in kwargs.items())), style="dim")
    for row in rows(record.site):
        line.append(terminal.text(f"  {_kind(row.leaf)}"), style="dim")
        content = _kept_content(record, row) if row.array is None else _content(record, row.array)
        digest = _kept.short_digest(record, row)
        if said := ", ".join(filter(None, [content, digest])):
            line.append(terminal.text(f" {said}"), style="not dim")
    return line


def _kind(leaf: Leaf) -> str:
    kind = leaf.dtype if leaf.key_impl is None else f"key<{leaf.key_impl}>"
    shape = f"[{','.join(map(str, leaf.shape))}]" if leaf.shape else ""
    return f"{leaf.path} {kind}{shape}".lstrip()


def _kept_content(record: Record, row: Row) -> str:
    """Returns what was kept tells of a leaf: the value of a scalar, else statistics."""
    value = row.scalars(lambda place: record.arrays[place][None])
    if value is not None:
        return _value(value[0])
    statistics = _kept_statistics(record, row)
    if statistics is None:
        return "lanes may be invalid" if record.site.lanes_may_be_invalid else ""
    if row.kind("summary"):
        return _said(statistics)
    return ", ".join(filter(None, [*row.kept, _said_of_counts(statistics)]))


def _kept_statistics(record: Record, row: Row) -> dict[str, Any] | None:
    from tracerec.cli import _kept

    unknown = row.leaf.key_impl is not None or record.site.lanes_may_be_invalid
    return None if unknown else _kept.statistics_object(record, row)


def _content(record: Record, number: int) -> str:
    """Returns the values of a small array, or what there is to say of a larger one."""
    array, statistics = record.arrays[number], _statistics(record, number)
    if array.size <= _MOST_VALUES:
        return " ".join(_value(value) for value in array.reshape(-1)) if array.size else "empty"
    if statistics is None:
        unknown = record.site.lanes_may_be_invalid
        return "lanes may be invalid" if unknown else ""
    return _said(statistics)


def _said(statistics: dict[str, Any]) -> str:
    shown = [f"{name} {_terminal.number(statistics[name])}" for name in ("mean", "std", "min", "max")]
    shown = shown if statistics["mean"] is not None else ["no finite value"]
    return ", ".join(filter(None, [*shown, _said_of_counts(statistics)]))


def _said_of_counts(statistics: dict[str, Any]) -> str:
    return ", ".join(f"{statistics[name]:,} {text}" for name, text in _BAD.items() if statistics[name])


_BAD = {"nan": "NaN", "posinf": "+Inf", "neginf": "-Inf"}


def _value(value: Any) -> str:
    import numpy as np

    if isinstance(value, (bool, np.bool_, int, np.integer)) or value.dtype.kind == "c":
        return str(value)
    return _terminal.number(float(value)) if value.dtype.name not in _SMALL_INTEGERS else str(int(value))


_SMALL_INTEGERS = {"int2", "int4", "uint2", "uint4"}


def _leaves_object(record: Record) -> list[dict[str, Any]]:
    from tracerec.keeping.reading import rows

    return [_leaf_object(record, row) for row in rows(record.site)]


def _leaf_object(record: Record, row: Row) -> dict[str, Any]:
    from tracerec.cli import _kept

    leaf, array = row.leaf, None if row.array is None else record.arrays[row.array]
    value = row.scalars(lambda place: record.arrays[place][None]) if array is None else array
    if array is None and value is not None:
        value = value[0]
    found = _kept_statistics(record, row) if row.array is None else _statistics(record, row.array)
    said = {"kept": list(row.kept), "digest": _kept.digest(record, row)} if row.kinds else {}
    return {
        "path": leaf.path,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "key_impl": leaf.key_impl,
        "value": _as_json.plain(value) if value is not None and value.size <= _MOST_VALUES else None,
        "statistics": _as_json.plain(found),
        **said,
    }


def _statistics(record: Record, number: int) -> dict[str, Any] | None:
    """Returns the moments of an array over what counts; None of keys, and where nothing says what counts."""
    import dataclasses

    import numpy as np

    from tracerec import lanes
    from tracerec.statistics import moments

    site, array = record.site, record.arrays[number]
    if site.leaves[number].key_impl is not None or site.lanes_may_be_invalid:
        return None
    valid = None
    if any(column.role is not None for column in site.columns):
        valid = lanes.LeafLanes(site, number).valid(lanes.columns_of(record))
    if valid is not None:
        array = array[np.broadcast_to(valid, (1, *array.shape))[0]]
    return dataclasses.asdict(moments(array))


def _short(value: Any) -> str:
    """Returns a kwarg's value as one line of bounded length."""
    import numpy as np

    if isinstance(value, np.generic):
        return str(value)
    if isinstance(value, np.ndarray):
        with np.printoptions(threshold=_MOST_VALUES, edgeitems=2, linewidth=10_000):
            return " ".join(str(value).split())
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)
