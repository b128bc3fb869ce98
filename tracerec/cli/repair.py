"""``tracerec repair``: a sound recording of a damaged one, or of what a killed run left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tracerec.cli import _terminal
from tracerec.cli.verify import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.cli._terminal import Terminal
    from tracerec.repairing import Repair

__all__ = ["repair"]

_REFUSED, _LOSS = 1, 3


def repair(
    path: Annotated[
        str, typer.Argument(help="A recording that is damaged, or what a killed run left.", show_default=False)
    ],
    *,
    out: Annotated[
        str | None,
        typer.Option(help="What to make; run.h5 of run.h5.live, else run.repaired.h5.", show_default=False),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Put the result in the place of what was damaged, which is deleted.")
    ] = False,
    compression: Annotated[str, typer.Option(help="lz4, zstd, gzip (HDF5 alone) or none; same: as it was.")] = "same",
    keep_suspect: Annotated[
        bool,
        typer.Option("--keep-suspect", help="Keep records of damaged Arrow files that can be read but may be wrong."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (schemas/repair.schema.json).")
    ] = False,
) -> None:
    """Seal what a killed run left, or take every intact record of a damaged recording into a new one.

    The result is verified before it has its name; nothing is deleted before that. A damaged recording stays as it is,
    and a damaged journal is kept aside, unless --in-place is given. An intact recording is left alone.

    Exit status: 0 the recording is whole; 3 done, but records were lost, and which is said; 1 the result was found
    faulty, and was deleted; 2 it could not be read or written, and is as it was.
    """
    from tracerec.repairing import repair as repair_one

    chosen = None if compression == "none" else compression
    done = repair_one(path, out, in_place=in_place, compression=chosen, keep_suspect=keep_suspect)  # pyright: ignore[reportArgumentType]  # it is checked there
    with _terminal.terminal() as terminal:
        if as_json:
            terminal.console.file.write(as_text(done.to_json()))
        else:
            _show(done, terminal)
    status = _REFUSED if done.action == "refused" else 0 if done.whole else _LOSS
    if status:
        raise typer.Exit(status)


def _show(done: Repair, terminal: Terminal) -> None:
    good = done.action != "refused" and done.whole
    sign = terminal.glyphs.yes if good else terminal.glyphs.no
    title = Text(terminal.text(done.path), style="bold")
    title.append(f"  {sign} {terminal.text(_outcome(done))}", style="not bold green" if good else "bold red")
    terminal.print(title)
    for line, style in _lines(done):
        terminal.print(Text(f"  {terminal.text(line)}", style=style))


def _outcome(done: Repair) -> str:
    if done.action == "none":
        return f"intact: {_count(done.records)}; nothing was done"
    if done.action == "refused":
        faults = 0 if done.verification is None else done.verification.fault_count
        return f"not repaired: the result had {faults} faults of its own, and was deleted; please report this"
    what = "sealed to" if done.action == "sealed" else "repaired:"
    return f"{what} {done.result}, {_count(done.records)}, verified"


def _lines(done: Repair) -> Iterator[tuple[str, str]]:
    """Yields what else there is to say, and its style."""
    lost = sum(done.lost.values())
    if lost:
        taps = ", ".join(
            f"{count:,} of {'unknown taps' if tap == '?' else repr(tap)}" for tap, count in done.lost.items()
        )
        yield f"lost: {_count(lost)}: {taps}", "bold red"
    for sentence in done.losses:
        yield f"lost: {sentence}", "bold red"
    if done.action == "refused" and done.verification is not None:
        for fault in done.verification.faults[:10]:
            yield f"fault: {fault}", "red"
    if done.fault_count and done.action != "refused":
        yield f"faults found: {done.fault_count:,}; tracerec verify lists them", ""
    if done.kept_aside is not None:
        yield f"the damaged journal is now {done.kept_aside}", ""
    for note in done.notes:
        yield f"note: {note}", "yellow"


def _count(records: int) -> str:
    return f"{records:,} record{'' if records == 1 else 's'}"
