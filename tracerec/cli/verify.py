"""``tracerec verify``: is it intact? One line a recording, and a table of its faults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tracerec.cli import _terminal
from tracerec.errors import TracerecError

if TYPE_CHECKING:
    from tracerec.cli._terminal import Terminal
    from tracerec.verifying import Verification

__all__ = ["as_text", "verify"]

_SHOWN = 50
"""Faults of one recording that people are shown; ``--json`` has up to 1,000."""

_FAULTY, _UNREADABLE = 1, 2


def verify(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Recordings, sealed (run.h5) or live, killed or running.", show_default=False
        ),
    ],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (schemas/verify.schema.json).")
    ] = False,
) -> None:
    """Check that recordings are intact: every byte, every record, everything that is stored twice.

    Each fault is listed with the invariant that does not hold (docs/format.md has them), the file, the place in it, and
    what it means. A run that was killed is no fault: what its end lost is said below.

    Exit status: 0 all is intact; 1 a fault was found; 2 something could not be read at all.
    """
    from tracerec.verifying import verify as verify_one

    found: list[Verification] = []
    errors: list[dict[str, str]] = []
    for path in paths:
        try:
            found.append(verify_one(path))
        except TracerecError as error:
            errors.append({"path": path, "message": str(error)})
    with _terminal.terminal() as terminal:
        if as_json:
            terminal.console.file.write(as_text(_object(found, errors)))
        else:
            for verification in found:
                _show(verification, terminal)
    for error in errors:
        _terminal.print_error(error["message"])
    status = _UNREADABLE if errors else _FAULTY if any(not each.ok for each in found) else 0
    if status:
        raise typer.Exit(status)


def as_text(value: dict[str, Any]) -> str:
    """Returns JSON for standard output, without a character that a terminal would obey."""
    # DEL is the one control character that JSON leaves as it is.
    return json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f") + "\n"


def _object(found: list[Verification], errors: list[dict[str, str]]) -> dict[str, Any]:
    from tracerec.verifying.report import SCHEMA

    return {
        "schema": SCHEMA,
        "ok": not errors and all(verification.ok for verification in found),
        "recordings": [verification.to_json() for verification in found],
        "errors": errors,
    }


def _show(verification: Verification, terminal: Terminal) -> None:
    terminal.print(_title(verification, terminal))
    if verification.faults:
        terminal.print(_table(verification, terminal))
    more = verification.fault_count - min(len(verification.faults), _SHOWN)
    if more:
        terminal.print(Text(f"and {_count(more, 'fault')} more; --json lists up to 1,000", style="dim"))
    for note in verification.notes:
        terminal.print(Text(f"  note: {terminal.text(note)}", style="yellow"))
    if verification.faults:
        path = terminal.text(verification.path)
        terminal.print(Text(f"  tracerec repair {path} takes every record that is intact", style="dim"))


def _title(verification: Verification, terminal: Terminal) -> Text:
    glyphs = terminal.glyphs
    title = Text(terminal.text(verification.path), style="bold")
    if verification.ok:
        title.append(f"  {glyphs.yes} intact", style="not bold green")
    else:
        title.append(f"  {glyphs.no} {_count(verification.fault_count, 'fault')}", style="bold red")
    title.append(
        f"  {_count(verification.records, 'record')} in {_count(verification.streams, 'stream')}, "
        f"{_terminal.size(verification.nbytes)}, {len(verification.checked)} invariants",
        style="not bold",
    )
    return title


def _table(verification: Verification, terminal: Terminal) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="red", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for fault in verification.faults[:_SHOWN]:
        where = ": ".join(part for part in (fault.file, fault.place) if part)
        table.add_row(f"  {fault.invariant}", terminal.text(where), terminal.text(fault.message))
    return table


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
