"""``tracerec ctl``: change what a running recording takes."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tracerec.cli import _terminal
from tracerec.errors import RecordingError

__all__ = ["ctl"]


def ctl(
    path: Annotated[
        str, typer.Argument(help="A recording that runs (run.h5), or a pattern (run.*.h5).", show_default=False)
    ],
    *,
    every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Record only steps that N divides; 1: each step again.", show_default=False),
    ] = None,
    taps: Annotated[
        list[str] | None,
        typer.Option(
            "--taps",
            metavar="PATTERN",
            help="Record only taps like `encoder/*`, or not `!*/debug`; several. `*`: all.",
        ),
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Record nothing until --resume.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Record again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (schemas/ctl.schema.json).")] = False,
) -> None:
    """Change what a running recording takes; without an option, show what it takes.

    The recording notices within a second. Nothing is compiled anew: this only leaves out of what the program hands
    over. Nothing listens on a network; the settings are a small file in the live folder.
    """
    from tracerec.controlling import control

    if pause and resume:
        message = f"{path}: --pause and --resume exclude each other"
        raise RecordingError(message, path=path)
    changes: dict[str, Any] = {}
    if every is not None:
        changes["every"] = None if every == 1 else every
    if taps:
        changes["taps"] = None if taps == ["*"] else taps
    if pause or resume:
        changes["paused"] = pause
    found = control(path, **changes)
    with _terminal.terminal() as terminal:
        if as_json:
            listed = [{"path": name, **settings.to_json()} for name, settings in found.items()]
            text = json.dumps({"schema": "1.0", "recordings": listed}, indent=2)
            terminal.console.file.write(text.replace("\x7f", "\\u007f") + "\n")
            return
        for name, settings in found.items():
            state = "paused" if settings.paused else "recording"
            steps = "every step" if settings.every is None else f"steps that {settings.every} divides"
            of = ", ".join(settings.taps) or "all taps"
            terminal.print(terminal.text(f"{name}: {state}: {of}, {steps}"))
