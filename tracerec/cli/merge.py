"""``tracerec merge``: the recordings of several processes, or parts of one, become one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tracerec.cli import _terminal

if TYPE_CHECKING:
    from tracerec.merging import Merge

__all__ = ["merge"]

_LOSS = 3


def merge(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="The recordings: run.0.h5 run.1.h5, a quoted pattern 'run.*.h5', or one folder of parts.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        str,
        typer.Option("-o", "--out", help="The file to make, or the folder for an Arrow recording.", show_default=False),
    ],
    compression: Annotated[
        str, typer.Option(help="lz4, zstd, gzip (HDF5 alone) or none; same: as each recording is.")
    ] = "same",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a recording that has the name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (schemas/merge.schema.json).")] = False,
) -> None:
    """Make one recording of those of many processes, or one file of a recording in parts.

    Reading the result gives what reading the recordings together gives: records keep the numbers of their processes.
    What is stored is copied as it is, and compared with its checksums. The recordings stay as they are, and the result
    appears whole or not at all.

    Exit status: 0; 2 it cannot be read or written; 3 done, but recordings had lost records before: it says which.
    """
    from tracerec.merging import merge as merge_all

    chosen = None if compression == "none" else compression
    given = paths[0] if len(paths) == 1 else paths
    done = merge_all(given, out, compression=chosen, overwrite=overwrite)  # pyright: ignore[reportArgumentType]  # it is checked there
    with _terminal.terminal() as terminal:
        if as_json:
            terminal.console.file.write(json.dumps(done.to_json(), indent=2) + "\n")
        else:
            terminal.line(_said(done))
            for loss in done.losses:
                terminal.line(f"loss: {loss}")
    if done.losses:
        raise typer.Exit(_LOSS)


def _said(done: Merge) -> str:
    counts = [(done.records, "record"), (done.taps, "tap")]
    records, taps = (f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    size = _terminal.size(done.nbytes)
    count = len(done.processes)
    recordings = f"{count:,} recordings" if count > 1 else done.processes[0].path
    return f"{done.path}: {records} of {taps}, {size}, from {recordings}"
