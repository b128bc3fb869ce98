"""``tracerec inspect``: the run, and one row a stream and leaf."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from tracerec.cli import _terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.cli._terminal import Terminal

__all__ = ["inspect"]

_SHOWN = 50
"""Streams that a terminal is shown of a recording that has more; a pipe gets all."""


def inspect(
    path: Annotated[
        str, typer.Argument(help="A recording, sealed (run.h5) or live, killed or running.", show_default=False)
    ],
    *,
    taps: Annotated[
        list[str] | None,
        typer.Option("--tap", metavar="PATTERN", help="Only taps of this name or pattern (encoder/*); several."),
    ] = None,
    sort: Annotated[
        Literal["order", "name", "records", "bytes", "nan"],
        typer.Option(
            help="Streams as they first fired, by name, or those with most records, bytes, NaN and Inf first."
        ),
    ] = "order",
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show all streams; a terminal is shown the first {_SHOWN}, a pipe gets all.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (schemas/inspect.schema.json).")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show the statistics of streams whose lanes may be invalid, too.")
    ] = False,
) -> None:
    """Show what a recording holds: the run, its taps, their course and their health.

    The table has one row for each stream and leaf. The size is what the leaf takes in the file. min, mean and max
    are those of the last record, over finite values; of complex numbers, those of the magnitudes. NaN and Inf are
    counted over all records. The line at the end of a row is the mean, from the first record to the last. Padding,
    and lanes and records that a tap's where= rules out, do not count. Of a tap that kept a summary, a fingerprint or a
    histogram the row is the tapped leaf, with the numbers that the device computed; other arrays that were kept have
    rows of their own. No tensor is read, so that the size of the file makes no difference.
    """
    from tracerec.cli._streams import sorted_streams
    from tracerec.trace import open_trace

    with open_trace(path) as trace:
        overview = (trace.raw if raw else trace).overview(*(taps or ()))
    overview["streams"] = sorted_streams(overview["streams"], sort)
    with _terminal.terminal() as terminal:
        if as_json:
            terminal.console.file.write(_as_text(overview))
        else:
            _show(overview, terminal, everything=everything)


def _as_text(overview: dict[str, Any]) -> str:
    """Returns the overview as JSON with one stream a line: indenting thousands of them takes a second."""
    head = json.dumps({**overview, "streams": []}, indent=2, allow_nan=False)
    streams = ",\n".join("    " + json.dumps(stream, allow_nan=False) for stream in overview["streams"])
    if streams:
        head = head.removesuffix("[]\n}") + "[\n" + streams + "\n  ]\n}"
    # DEL is the one control character that JSON leaves as it is.
    return head.replace("\x7f", "\\u007f") + "\n"


def _show(overview: dict[str, Any], terminal: Terminal, *, everything: bool) -> None:
    from tracerec.cli._streams import StreamTable

    terminal.print(_title(overview, terminal))
    terminal.print(_run(overview, terminal))
    streams = overview["streams"]
    if not streams:
        terminal.print("\nNothing was recorded.")
        return
    shown = streams if everything or not terminal.limited else streams[:_SHOWN]
    table = StreamTable(shown, terminal, partial=len(shown) < len(streams))
    terminal.print()
    if terminal.limited:
        rich_table, note = table.fitted(terminal.console.width)
        terminal.print(rich_table)
    else:
        text, note = table.plain()
        terminal.console.file.write(text)
    if note:
        terminal.print(Text(note, style="dim"))
    if left_out := _left_out(overview, shown):
        terminal.print(Text(left_out, style="bold"))


def _left_out(overview: dict[str, Any], shown: list[dict[str, Any]]) -> str:
    """Returns a sentence about the streams that are not shown; none if all are."""
    from tracerec.cli._streams import not_finite

    streams, in_all = overview["streams"], overview["streams_in_all"]
    if len(shown) == in_all:
        return ""
    asked = f" of the taps asked for, {in_all:,} in all" if len(streams) < in_all else ""
    if len(shown) == len(streams):
        return f"{len(shown):,} of {_plural(in_all, 'stream')} are shown: those of the taps asked for."
    bad = sum(not_finite(stream) > 0 for stream in streams[len(shown) :])
    health = f"{bad:,} of the others have NaN or Inf (--sort nan)" if bad else "the others have no NaN and no Inf"
    return (
        f"{len(shown):,} of {_plural(len(streams), 'stream')}{asked} are shown; {health}. "
        "--all shows all, --tap PATTERN some."
    )


def _title(overview: dict[str, Any], terminal: Terminal) -> Text:
    glyphs = terminal.glyphs
    title = Text(terminal.text(overview["path"]), style="bold")
    if overview["bytes"] is not None:
        title.append(f"  {_terminal.size(overview['bytes'])}", style="not bold")
    sign, words, style = {
        "clean": (glyphs.yes, "ended cleanly", "not bold green"),
        "recording": (glyphs.live, "still recording", "bold cyan"),
        "killed": (glyphs.no, "did not end cleanly", "bold red"),
        "stopped early": (glyphs.no, "recording stopped early", "bold red"),
    }[overview["run"]["state"]]
    title.append(f"  {sign} {words}", style=style)
    if lost := sum(overview["run"]["dropped"].values()):
        title.append(f"  {glyphs.no} {_plural(lost, 'record')} missing", style="bold red")
    return title


def _run(overview: dict[str, Any], terminal: Terminal) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text, style in _facts(overview, terminal):
        grid.add_row(label, Text(terminal.text(text), style=style))
    return grid


def _facts(overview: dict[str, Any], terminal: Terminal) -> Iterator[tuple[str, str, str]]:
    """Yields label, text and style of each line about the run; lines without content are left out."""
    run, dot = overview["run"], f" {terminal.glyphs.dot} "
    stopped = run["state"] == "stopped early"
    if stopped:
        yield from (("note", note, "bold red") for note in run["notes"])
    yield from _not_there(run)
    yield from _turns(run, dot)
    yield "run", run["run_id"], ""
    yield "started", _times(run), ""
    if run["host"]:
        yield "host", f"{run['host']}, process {run['pid']}", ""
    if run["command"]:
        yield "command", shlex.join(run["command"]), ""
    if run["versions"]:
        yield "versions", dot.join(f"{name} {version}" for name, version in run["versions"].items()), ""
    if run["devices"]:
        yield "devices", dot.join(_devices(run["devices"], terminal.glyphs.times)), ""
    if run["metadata"]:
        yield "metadata", dot.join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in run["metadata"].items()), ""
    yield "records", _records(overview), ""
    if stored := _stored(overview):
        yield "stored", stored, ""
    if not stopped:
        yield from (("note", note, "yellow") for note in run["notes"])


def _turns(run: dict[str, Any], dot: str) -> Iterator[tuple[str, str, str]]:
    if len(run["attempts"]) > 1:
        yield "attempts", dot.join(_attempts(run["attempts"])), ""
    if len(run["processes"]) > 1:
        yield "processes", dot.join(_processes(run["processes"])), ""


def _not_there(run: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if any(run["dropped"].values()):
        yield "missing", _counts(run["dropped"], "not recorded"), "bold red"
    if any(run["over_budget"].values()):
        yield "budget", _counts(run["over_budget"], "over budget and not recorded"), "yellow"
    if any(run["retired"].values()):
        yield "retired", _counts(run["retired"], "deleted to keep the newest"), "yellow"


def _counts(records: dict[str, int], what: str) -> str:
    taps = ", ".join(f"{count:,} of {name!r}" for name, count in records.items() if count)
    return f"{_plural(sum(records.values()), 'record')} {what}: {taps}"


def _attempts(attempts: list[dict[str, Any]]) -> Iterator[str]:
    for number, attempt in enumerate(attempts):
        last = number == len(attempts) - 1
        end = "" if attempt["clean"] or last else ", did not end cleanly"
        yield f"{number}: {attempt['started'][:19].replace('T', ' ')}, process {attempt['pid']}{end}"


def _times(run: dict[str, Any]) -> str:
    started = run["started"][:19].replace("T", " ") + " UTC"
    if run["duration_s"] is None:
        return started
    length = _terminal.duration(run["duration_s"])
    return f"{started}, ran {length}" if run["ended"] else f"{started}, last record after {length}"


def _devices(devices: list[dict[str, Any]], times: str) -> Iterator[str]:
    kinds = Counter(str(device.get("kind", device.get("platform", "unknown"))) for device in devices)
    return (f"{count} {times} {kind}" for kind, count in kinds.items())


def _records(overview: dict[str, Any]) -> str:
    streams, run = overview["streams"], overview["run"]
    taps = len({stream["tap"] for stream in streams})
    text = f"{run['records']:,}"
    if len(streams) == overview["streams_in_all"]:
        text += f" of {_plural(taps, 'tap')} in {_plural(len(streams), 'stream')}"
    if run["records_per_s"]:
        text += f", {_rate(run['records_per_s'])} a second"
    if run["high_water_bytes"]:
        text += f"; at most {_terminal.size(run['high_water_bytes'])} waited to be written"
    return text


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"  # noqa: PLR2004


def _stored(overview: dict[str, Any]) -> str:
    """Returns how well the records are compressed: of those streams that are there."""
    stored = sum(stream["bytes"] for stream in overview["streams"])
    raw = sum(stream["raw_bytes"] for stream in overview["streams"])
    if not stored:
        return ""
    return f"{_terminal.size(raw)} of records in {_terminal.size(stored)}, {raw / stored:.2f} to 1"


def _processes(processes: list[dict[str, Any]]) -> Iterator[str]:
    for process in processes:
        end = "" if process["state"] == "clean" else f", {process['state']}"
        yield f"{process['host']} {process['pid']}, {_plural(process['records'], 'record')}{end}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
