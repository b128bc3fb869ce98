"""``tracerec compare``: a verdict, the first divergence, a table, what did not match."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tracerec.cli import _as_json, _terminal
from tracerec.errors import ComparisonError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.cli._terminal import Terminal
    from tracerec.comparing import Comparison

__all__ = ["compare"]


class _Missing(enum.StrEnum):
    fail = "fail"
    warn = "warn"
    ignore = "ignore"


class _Sort(enum.StrEnum):
    order = "order"
    worst = "worst"


_PER = "A number, or one for a dtype or a pattern of taps: bfloat16=0.02. May be repeated."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The run that is taken to be right.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The other run.", show_default=False)],
    *,
    rtol: Annotated[list[str] | None, typer.Option(help=f"Relative tolerance. {_PER}", show_default=False)] = None,
    atol: Annotated[list[str] | None, typer.Option(help=f"Absolute tolerance. {_PER}", show_default=False)] = None,
    ulp: Annotated[
        list[str] | None, typer.Option(help=f"Tolerance in units of the last place. {_PER}", show_default=False)
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="All bits must be equal.")] = False,
    cast: Annotated[bool, typer.Option("--cast", help="Compare different dtypes in the lower precision.")] = False,
    noise: Annotated[
        str | None, typer.Option(metavar="RUN", help="A repeated run of A: its spread is no regression.")
    ] = None,
    noise_factor: Annotated[float, typer.Option(help="How many times that spread is allowed.")] = 2.0,
    key: Annotated[
        list[str] | None, typer.Option(help="Match records by this kwarg alone. May be repeated.", show_default=False)
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="B's name of a tap; * carries over; or a JSON file.", show_default=False),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Taps to leave out.", show_default=False)
    ] = None,
    missing: Annotated[_Missing, typer.Option(help="What records that have no partner do.")] = _Missing.fail,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first difference.")] = False,
    sort: Annotated[_Sort, typer.Option(help="The table's order.")] = _Sort.order,
    rows: Annotated[int, typer.Option(min=1, help="The most rows of the table.")] = 40,
    report: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Write a report: .html, .md, .jsonl or .xml (JUnit).", show_default=False),
    ] = None,
    defaults: Annotated[bool, typer.Option("--tolerances", help="Print the default tolerances, too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (schemas/compare.schema.json).")
    ] = False,
) -> None:
    """Say where two runs begin to differ.

    Records are matched by tap, leaf, kwargs, transforms, step, device and occurrence. The verdict comes first, then the
    first divergence with the values around its worst element, a table of the taps that differ, and what had no partner.
    Of leaves that were not kept whole, fingerprints, summaries or histograms are compared.

    Exit status: 0 equal; 1 different; 2 not comparable, or unreadable; 3 equal as far as compared, but records were
    dropped or retired.
    """
    from tracerec.comparing import compare as compared
    from tracerec.comparing import defaults_text

    found = compared(
        a,
        b,
        rtol=_tolerance("--rtol", rtol),
        atol=_tolerance("--atol", atol),
        ulp=_tolerance("--ulp", ulp),
        exact=exact,
        cast=cast,
        noise=noise,
        noise_factor=noise_factor,
        key=key or None,
        rename=_renamed(rename),
        ignore=ignore or (),
        # What there is to warn of is printed; status 3 says that there is something.
        missing="ignore" if missing is _Missing.ignore else "fail",
        first=first,
    )
    if missing is _Missing.warn:
        found.missing = "warn"
    for path in report or ():
        _write(found, path)
    with _terminal.terminal() as terminal:
        if as_json:
            terminal.console.file.write(_as_json.text(found.to_json(), indent=2))
        else:
            _show(found, sort.value, rows, terminal)
            if defaults:
                terminal.print(Text(f"\nDefaults:\n{defaults_text()}"))
    if found.status:
        raise typer.Exit(found.status)


def _show(found: Comparison, sort: str, rows: int, terminal: Terminal) -> None:
    from tracerec.comparing.text import lines

    styles = {"equal": ("yes", "green"), "different": ("no", "bold red")}
    glyph, style = styles.get(found.verdict, ("no", "yellow"))
    width = terminal.console.width if terminal.limited else None
    head, *rest = lines(found, "worst" if sort == "worst" else "order", rows, width)
    _print(terminal, f"{getattr(terminal.glyphs, glyph)} {head}", style)
    for line in rest:
        _print(terminal, line, "bold" if line.startswith("First divergence") else "")


def _print(terminal: Terminal, line: str, style: str) -> None:
    """Prints one line, however narrow the terminal: a path or a number that is broken cannot be copied."""
    terminal.console.print(Text(terminal.text(line), style=style), soft_wrap=True)


def _tolerance(option: str, given: Sequence[str] | None) -> float | dict[str, float] | None:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return _number(option, given[0])
    out: dict[str, float] = {}
    for each in given:
        name, sign, number = each.rpartition("=")
        # A number alone is for all other taps.
        out[name if sign else "*"] = _number(option, number)
    return {**{name: value for name, value in out.items() if name != "*"}, **{n: v for n, v in out.items() if n == "*"}}


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        message = f"{option} takes a number, or NAME=NUMBER, not {text!r}"
        raise ComparisonError(message) from None


def _renamed(given: Sequence[str] | None) -> dict[str, str] | str | None:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    out: dict[str, str] = {}
    for each in given:
        old, sign, new = each.partition("=")
        if not sign:
            message = f"--rename takes OLD=NEW, or one JSON file, not {each!r}"
            raise ComparisonError(message)
        out[old] = new
    return out


def _write(found: Comparison, path: str) -> None:
    try:
        found.report(path)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise ComparisonError(message) from error
