"""``tracerec export``: records in a form that other programs read."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated

import typer

from tracerec.cli import _terminal

if TYPE_CHECKING:
    from tracerec.exporting import Exported

__all__ = ["export", "parsed_steps"]

_LOSS = 3


class Form(enum.StrEnum):
    """The forms, as `tracerec.exporting.TARGETS` has them."""

    PARQUET = "parquet"
    ARROW = "arrow"
    NPZ = "npz"
    ZARR = "zarr"
    TENSORBOARD = "tensorboard"
    HDF5 = "hdf5"


def export(
    path: Annotated[
        str, typer.Argument(help="A recording, sealed (run.h5) or live, killed or running.", show_default=False)
    ],
    *,
    to: Annotated[Form, typer.Option("--to", help="The form to export to.", show_default=False)],
    out: Annotated[
        str | None,
        typer.Option(
            "-o", "--out", help="The file or folder to write. By default the recording's name in this folder."
        ),
    ] = None,
    taps: Annotated[
        list[str] | None,
        typer.Option("--tap", metavar="NAME", help="A tap, or a glob such as 'encoder/*'; repeatable."),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="A:B", help="A step, or steps from A up to B, B left out.")
    ] = None,
    transforms: Annotated[
        str | None,
        typer.Option("--transforms", metavar="NAMES", help="A chain such as 'jvp,transpose'; '' for none."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Also records that do not count.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file, or the folder of an earlier export.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object about what was written.")] = False,
) -> None:
    """Export records to Parquet, Arrow, npz, Zarr, TensorBoard or plain HDF5.

    parquet: a folder tap=NAME/part-0.parquet that DuckDB, polars, Dask and Spark read as one table.
    arrow: a folder of Arrow files, one a tap. npz: one file for numpy.load. zarr: a Zarr v3 folder, for xarray.
    hdf5: one plain file. tensorboard: scalars and histograms.

    The result appears whole or not at all. Padding, and records that a tap's where= rules out, are left out.

    Exit status: 0; 2 it cannot be read or written; 3 written, but the form cannot hold everything: it says what.
    """
    from tracerec.exporting import export as export_trace
    from tracerec.trace import open_trace

    with open_trace(path) as trace:
        done = export_trace(
            trace.raw if raw else trace,
            out,
            to.value,
            taps=taps or None,
            steps=None if step is None else parsed_steps(step),
            transforms=None if transforms is None else tuple(t.strip() for t in transforms.split(",") if t.strip()),
            force=force,
        )
    with _terminal.terminal() as terminal:
        if as_json:
            terminal.console.file.write(json.dumps(done.to_json(), indent=2) + "\n")
        else:
            terminal.line(_said(done))
            for note in done.left_out:
                terminal.line(f"left out: {note}")
    if done.left_out:
        raise typer.Exit(_LOSS)


def parsed_steps(text: str) -> int | slice:
    """Returns the steps that a text such as ``"3"``, ``"10:20"``, ``"10:"`` or ``"::5"`` means.

    Example:
        >>> parsed_steps("10:20"), parsed_steps("7")
        (slice(10, 20, None), 7)
    """
    parts = text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] is not None:
        return numbers[0]
    start, stop, step = [*numbers, None, None, None][:3]
    if not 2 <= len(numbers) <= 3 or (step is not None and step < 1):  # noqa: PLR2004 - start, stop, step
        message = f"{text!r} is no step, and no range of steps such as 100:200"
        raise typer.BadParameter(message, param_hint="--step")
    return slice(start, stop, step)


def _said(done: Exported) -> str:
    records = f"{done.records:,} record{'' if done.records == 1 else 's'}"
    taps = f"{done.taps:,} tap{'' if done.taps == 1 else 's'}"
    return f"{done.path}: {records} of {taps}, {_terminal.size(done.nbytes)}"
