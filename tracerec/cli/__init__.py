"""The command line. A command is a file; all that it does, a call of the library does too.

Exit status: 0; 1 where a fault was found; 2 for bad usage, and, with one line on standard error, for input that
cannot be read and output that cannot be written; 3 where something was done with loss; 130 for Ctrl-C; 141 when the
reader of a pipe has gone.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from tracerec._version import __version__
from tracerec.cli import _terminal
from tracerec.cli.compare import compare
from tracerec.cli.ctl import ctl
from tracerec.cli.export import export
from tracerec.cli.inspect import inspect
from tracerec.cli.merge import merge
from tracerec.cli.plot import plot
from tracerec.cli.repair import repair
from tracerec.cli.replay import replay
from tracerec.cli.show import show
from tracerec.cli.stats import stats
from tracerec.cli.tail import tail
from tracerec.cli.verify import verify
from tracerec.errors import TracerecError

__all__ = ["app", "main"]

app = typer.Typer(
    name="tracerec",
    help="Look at recorded tensor traces of JAX programs. Reading needs neither JAX nor an accelerator.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(inspect)
app.command()(show)
app.command()(plot)
app.command()(replay)
app.command()(tail)
app.command()(stats)
app.command()(export)
app.command()(merge)
app.command()(compare)
app.command()(ctl)
app.command()(verify)
app.command()(repair)


def main() -> NoReturn:
    """Runs the command line on ``sys.argv`` and exits."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # it is after >&-
        _terminal.print_error("standard output is closed")
        sys.exit(2)
    status = _run()
    sys.exit(_terminal.flush() or status)


def _run() -> int | str | None:
    try:
        app()
    except SystemExit as ended:
        return ended.code
    except TracerecError as error:
        _terminal.print_error(str(error))
        return 2
    except OSError as error:
        # What help and version write; the commands say themselves what their own output ran into.
        return _terminal.failed(error)
    except KeyboardInterrupt:
        return 130
    return 0


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if wanted:
        typer.echo(f"tracerec {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
