"""A bar for work that takes long: on standard error, only where a person watches, only after a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Progress"]

_PATIENCE = 1.0
"""Seconds before the bar is shown."""


class Progress:
    """Shows how much of some work is done. It is used in a ``with``, and leaves nothing on a terminal.

    Args:
        what: the work, in a word or two.
        total: how much there is to do, in bytes.
        show: True: from the start, wherever standard error goes; False: never; None: after a second, on a terminal.

    Example:
        >>> with Progress("reading", 100, show=False) as progress:
        ...     progress.advance(50)
        >>> progress.done
        50
    """

    def __init__(self, what: str, total: int, *, show: bool | None = None) -> None:
        self._what, self._total = what, total
        self._wanted = _is_watched() if show is None else show
        self._due = time.monotonic() + (0.0 if show else _PATIENCE)
        self._bar: Any = None
        self._task: Any = None
        self.done = 0

    def advance(self, count: int) -> None:
        """Says that so many more bytes are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)
        elif self._wanted and time.monotonic() >= self._due:
            self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._wanted = False

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        # Where nothing can be erased the bar is drawn once, at the end.
        self._bar = Bar(*columns, console=console, transient=console.is_terminal)
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=max(self._total, self.done), completed=self.done)


def _is_watched() -> bool:
    # It is None after 2>&-.
    stream: Any = sys.stderr
    return stream is not None and stream.isatty()
