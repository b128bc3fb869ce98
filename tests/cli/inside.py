"""Runs the command line in this process: quick, and enough for what needs no terminal and no pipe of its own."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple
from unittest import mock

from tracerec.cli import main

__all__ = ["Done", "inside"]


class Done(NamedTuple):
    status: int
    out: str
    err: str


def inside(*args, columns=None) -> Done:
    """Returns what a command did."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    environment = {"NO_COLOR": "1", "COLUMNS": "" if columns is None else str(columns)}
    with (
        mock.patch.object(sys, "argv", ["tracerec", *map(str, args)]),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        mock.patch.dict("os.environ", environment),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    return Done(int(status or 0), *(x.buffer.getvalue().decode() for x in (out, err)))  # type: ignore[attr-defined]
