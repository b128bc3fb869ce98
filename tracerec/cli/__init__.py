"""The command line. A command is a file; all that it does, a call of the library does too.

Exit status: 0; 2 for bad usage and for input that cannot be read, with one line on standard error; 130 for
Ctrl-C; 141 when the reader of a pipe has gone.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from tracerec._version import __version__
from tracerec.cli import _terminal
from tracerec.cli.inspect import inspect
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


def main() -> NoReturn:
    """Runs the command line on ``sys.argv`` and exits."""
    try:
        app()
    except TracerecError as error:
        _terminal.print_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


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
