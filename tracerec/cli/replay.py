"""``tracerec replay``: a recording's records again, in order, as text."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracerec.cli import _terminal
from tracerec.errors import ConsumerError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tracerec.cli._terminal import Terminal
    from tracerec.consuming import Firing

__all__ = ["replay"]


def replay(
    path: Annotated[
        str, typer.Argument(help="A recording, sealed (run.h5) or live, killed or running.", show_default=False)
    ],
    *,
    printing: Annotated[
        bool, typer.Option("--print", help="Print each record: the tap and its kwargs, then each array.")
    ] = False,
    taps: Annotated[
        list[str] | None,
        typer.Option("--tap", metavar="PATTERN", help="Only taps of this name or pattern (encoder/*); several."),
    ] = None,
    order: Annotated[
        Literal["program", "arrival"],
        typer.Option(help="The program's order, or that in which records reached the host."),
    ] = "program",
    realtime: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR", help="Wait between records as the program did; 10: ten times as fast.", show_default=False
        ),
    ] = None,
    threshold: Annotated[int, typer.Option(help="Arrays of more elements are summarised.")] = 1024,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a record and line (schemas/replay.schema.json).")
    ] = False,
) -> None:
    """Print the records of a run again, as id_print would have while it ran.

    Records that do not count (where= was False, superseded steps) are left out. tracerec.Trace.replay calls functions
    of your own in the same way.
    """
    from tracerec.trace import open_trace

    if not (printing or as_json):
        message = "say what to do with the records: --print or --json"
        raise typer.BadParameter(message, param_hint="'--print'")
    with _terminal.terminal() as terminal, open_trace(path) as trace:
        consumer = _json_lines(terminal) if as_json else _printer(terminal, threshold)
        # A record that matches two patterns is printed once.
        wanted = dict.fromkeys(trace.taps(*taps), consumer) if taps else consumer
        with _own_errors():
            trace.replay(wanted, order=order, realtime=False if realtime is None else realtime)


class _SafeLines:
    """Standard output, through which no character goes that a terminal would obey."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def write(self, text: str) -> None:
        self._terminal.console.file.write("\n".join(map(self._terminal.text, text.split("\n"))))
        if self._terminal.interactive:
            self._terminal.console.file.flush()


def _printer(terminal: Terminal, threshold: int) -> Callable[..., Any]:
    from tracerec.consumers import Printer

    return Printer(_SafeLines(terminal), threshold=threshold, names=True)


def _json_lines(terminal: Terminal) -> Callable[..., Any]:
    from tracerec.cli import _as_json
    from tracerec.consuming import TapConsumer

    class JsonLines(TapConsumer):
        """Writes an object a record."""

        def take(self, firing: Firing) -> None:
            record = firing.record
            assert record is not None  # noqa: S101 - a replay has one
            leaves = [
                {"path": leaf.path, "shape": list(leaf.shape), "dtype": leaf.dtype, "values": _as_json.plain(array)}
                for leaf, array in zip(record.site.leaves, record.arrays, strict=True)
            ]
            terminal.console.file.write(
                _as_json.text({"schema": "1.0"} | _as_json.record_object(record) | {"leaves": leaves})
            )

    return JsonLines()


@contextlib.contextmanager
def _own_errors() -> Generator[None]:
    """Raises what went wrong with standard output as it was: it is no consumer's failure."""
    try:
        yield
    except ConsumerError as error:
        raise (error if error.__cause__ is None else error.__cause__) from None
