"""``tracerec plot``: the course of a tap's values, as a picture file or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracerec.cli import _terminal
from tracerec.errors import TraceError

if TYPE_CHECKING:
    from tracerec.trace.pictures import Picture

__all__ = ["plot"]


def plot(
    path: Annotated[
        str, typer.Argument(help="A recording, sealed (run.h5) or live, killed or running.", show_default=False)
    ],
    tap: Annotated[str, typer.Argument(help="The full name of a tap; inspect lists them.", show_default=False)],
    *,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="A file to draw to: .png, .svg or .pdf (needs tracerec[plot]).",
            show_default="the terminal",
        ),
    ] = None,
    kind: Annotated[
        Literal["line", "heatmap", "histogram"] | None,
        typer.Option(help="What to draw.", show_default="a heatmap for vectors, else a line"),
    ] = None,
    leaf: Annotated[
        str | None, typer.Option(help="The key path of a leaf of the pytree, such as \"['w']\".", show_default=False)
    ] = None,
    transforms: Annotated[
        str | None,
        typer.Option(help="The chain, innermost first: none, or names such as jvp,transpose.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (schemas/plot.schema.json).")] = False,
) -> None:
    """Draw the course of a tap's values over its records: in the terminal, or with matplotlib to a file.

    line: the mean, with a band of the standard deviation (in files) and one from the least to the largest value; of
    scalars the value. heatmap: each element over the records. histogram: how the values are spread, over the records.
    Of a tap that kept a summary, the line is that of the summaries; of one that kept a histogram, the histogram.
    Tensors are read a block at a time; long runs are thinned to columns that stand for several records each.
    """
    from tracerec.cli import _choosing
    from tracerec.cli._drawing import HEIGHT, columns_of, drawn
    from tracerec.trace import open_trace
    from tracerec.trace.pictures import usual_kind

    with _terminal.terminal() as terminal, open_trace(path) as trace:
        chosen = _choosing.one_kind(trace[tap], transforms, leaf)
        if as_json:
            terminal.console.file.write(_as_json(chosen.picture(kind)))
        elif out is not None:
            _save(chosen.picture(kind), out)
        else:
            kind = kind or usual_kind(chosen.sites)
            # Two dots of a line are as wide as one character.
            columns = columns_of(terminal) * (2 if kind == "line" else 1)
            picture = chosen.picture(kind, columns=columns, rows=HEIGHT)
            for line in drawn(picture, terminal):
                terminal.print(line)


def _save(picture: Picture, out: str) -> None:
    """Draws to a file.

    Raises:
        TraceError: the file cannot be written, or its kind is not known.
    """
    axes = picture.draw()
    try:
        axes.figure.savefig(Path(out), dpi=150)
    except OSError as error:
        message = f"{out} cannot be written: {error.strerror or error}"
        raise TraceError(message, path=out) from error
    except ValueError as error:
        message = f"{out}: matplotlib cannot draw to it: {str(error).splitlines()[0]}"
        raise TraceError(message, path=out) from error


def _as_json(picture: Picture) -> str:
    from tracerec.cli import _as_json

    value: dict[str, Any] = {
        "schema": "1.0",
        "name": picture.name,
        "kind": picture.kind,
        "records": picture.records,
        "missing": picture.missing,
        "x_name": picture.x_name,
        "x": _as_json.plain(picture.x),
        "measures": _as_json.plain(picture.measures),
        "y": _as_json.plain(picture.y),
        "values": _as_json.plain(picture.values),
        "y_name": picture.y_name,
    }
    return _as_json.text(value)
