"""What all commands share: the console, text that is safe to print, numbers for people, sparklines."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from typing import TYPE_CHECKING, TextIO

import typer
from rich.console import Console
from rich.segment import Segment, Segments

from tracerec.errors import TracerecError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from rich.console import RenderableType

__all__ = [
    "Glyphs",
    "Terminal",
    "duration",
    "failed",
    "flush",
    "number",
    "one_line",
    "print_error",
    "printable",
    "size",
    "terminal",
]

_PIPE_WIDTH = 100_000
"""The width of a pipe or a file: nothing is folded, as `grep` and `cut` like it. ``COLUMNS`` wins."""

_UNUSABLE = 2
"""The exit status for input that cannot be read and output that cannot be written."""

_BROKEN_PIPE = 141
"""128 + SIGPIPE, what a shell reports of a program that the signal ended."""


# Levels, bad, dash, yes, no, live, times and dot of `Glyphs`.
_UNICODE = ("▁▂▃▄▅▆▇█", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}", "✓", "✗", "●", "\N{MULTIPLICATION SIGN}", "·")
_ASCII = ("_.-=+*#%", "!", "-", "+", "!", "*", "x", ",")

_FRAME = "─"
"""What rich draws tables with."""


class Glyphs:
    """The characters to draw with: Unicode, or ASCII where the output cannot encode that.

    Attributes:
        unicode: whether Unicode is used.
        levels: of a sparkline, from low to high.
        bad: the sparkline's mark for a record without a finite value.
        dash: between two numbers.
        yes: before good news.
        no: before bad news.
        live: before what still goes on.
        times: between a number and a thing.
        dot: between two things.
    """

    def __init__(self, encoding: str) -> None:
        self.unicode = _encodes("".join(_UNICODE) + _FRAME, encoding)
        glyphs = _UNICODE if self.unicode else _ASCII
        self.levels, self.bad, self.dash, self.yes, self.no, self.live, self.times, self.dot = glyphs

    def sparkline(self, values: Sequence[float | None], width: int) -> str:
        """Returns a line of ``width`` characters or fewer, from the lowest value to the highest.

        Args:
            values: finite numbers, None where there is none.
            width: the most characters; more values than that are thinned evenly, a missing one always shown.

        Example:
            >>> Glyphs("utf-8").sparkline([0.0, 1.0, 3.5], 10), Glyphs("ascii").sparkline([1.0, None, 2.0], 10)
            ('▁▃█', '_!%')
        """
        values = _thinned(values, width)
        there = [v for v in values if v is not None]
        if not there:
            return self.bad * len(values)
        low, high = min(there), max(there)
        top = len(self.levels) - 1
        return "".join(self.bad if v is None else self.levels[_level(v, low, high, top)] for v in values)


class Terminal:
    """Standard output: a rich console, and what it can show.

    Attributes:
        console: the console. It interprets no markup, so that no name in a trace can style or link.
        glyphs: what to draw with.
        interactive: whether a person watches.
        limited: whether lines have a width, as a terminal's have; a pipe's have none.
    """

    def __init__(self, file: TextIO) -> None:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() and int(columns) > 0 else None
        self.interactive = file.isatty()
        self.limited = self.interactive or width is not None
        if width is None and not self.interactive:
            width = _PIPE_WIDTH
        self.encoding = file.encoding or "ascii"
        self.glyphs = Glyphs(self.encoding)
        self.console = _QuietConsole(file=file, width=width, highlight=False, markup=False, emoji=False)

    def print(self, shown: RenderableType = "") -> None:
        """Prints something with no spaces at the ends of its lines, where rich pads to the width of a column."""
        lines = self.console.render_lines(shown, pad=False)
        self.console.print(
            Segments([segment for line in lines for segment in (*_stripped(line), Segment.line())]), end=""
        )

    def line(self, text: str) -> None:
        """Prints a sentence as one line, however narrow the terminal: a path that is broken cannot be copied."""
        self.console.print(self.text(text), soft_wrap=True)

    def text(self, value: object) -> str:
        """Returns text from a trace as it may be printed here; see `printable`."""
        return printable(str(value), self.encoding)


def _stripped(line: list[Segment]) -> list[Segment]:
    """Returns a line without the spaces at its end."""
    line = list(line)
    while line:
        last = line.pop()
        if text := last.text.rstrip(" "):
            return [*line, Segment(text, last.style, last.control)]
    return line


class _QuietConsole(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this while it handles the BrokenPipeError; `terminal` handles it


@contextlib.contextmanager
def terminal() -> Generator[Terminal]:
    """Gives standard output, flushed at the end; output that fails ends the program as `flush` says."""
    try:
        yield Terminal(sys.stdout)
        sys.stdout.flush()
    except TracerecError:
        # Some are OSErrors, too: they are about a trace, not about the output.
        raise
    except OSError as error:
        raise typer.Exit(failed(error)) from None


def flush() -> int:
    """Flushes standard output; returns 0, or the exit status if that fails.

    A reader that has gone away is no news; anything else gets one line on standard error.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        return failed(error)
    return 0


def failed(error: OSError) -> int:
    """Gives up standard output after an error and returns the exit status."""
    _discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return _BROKEN_PIPE
    print_error(f"standard output cannot be written: {error.strerror or error}")
    return _UNUSABLE


def _discard(stream: TextIO) -> None:
    """Throws away what waits to be written; Python would try, and fail, once more when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def print_error(message: str) -> None:
    """Prints one line to standard error, if there is one."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # it is after 2>&-
        return
    try:
        sys.stderr.write(f"tracerec: {one_line(message, sys.stderr.encoding or 'ascii')}\n")
        sys.stderr.flush()
    except OSError:
        # The exit status alone has to tell.
        _discard(sys.stderr)


def one_line(message: str, encoding: str = "utf-8") -> str:
    r"""Returns a message on one line, safe to print.

    Example:
        >>> one_line("choose one:\n    a\n    b")
        'choose one: a b'
    """
    return printable(" ".join(line.strip() for line in message.splitlines()), encoding)


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""Returns text in which control characters, and others that do not show as themselves, are escapes.

    A name in a trace can hold anything, and a terminal obeys what it is sent. Format characters (right-to-left
    overrides, zero-width ones) are escaped too, and so are characters that ``encoding`` lacks.

    Example:
        >>> print(printable("act\x1b[2J"))
        act\x1b[2J
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() and _encodes(c, encoding) else _escape(c) for c in text)


def size(nbytes: int) -> str:
    """Returns a size in decimal units with three digits.

    Example:
        >>> size(999), size(1234), size(25_300_000)
        ('999 B', '1.23 kB', '25.3 MB')
    """
    if nbytes < _KILO:
        return f"{nbytes} B"
    value, unit = nbytes / _KILO, "kB"
    for larger in ("MB", "GB", "TB", "PB"):
        # 999.5 would be printed as 1000.
        if value < _KILO - 0.5:
            break
        value, unit = value / _KILO, larger
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"  # noqa: PLR2004


_KILO = 1000


def number(value: float | None) -> str:
    """Returns a number with four digits; nothing for None.

    Example:
        >>> number(0.123456), number(-12345678.0), number(3.0), number(None)
        ('0.1235', '-1.235e+07', '3', '')
    """
    return "" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Returns a time span for people.

    Example:
        >>> duration(0.0123), duration(12.3), duration(75), duration(93784)
        ('12 ms', '12.3 s', '1 min 15 s', '1 d 2 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part} {smaller}"
    return f"{whole} s"


def _thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    count = len(values)
    if count <= width:
        return list(values)
    out: list[float | None] = []
    for i in range(width):
        group = values[i * count // width : (i + 1) * count // width]
        # The last cell shows the last value, as the first shows the first.
        out.append(None if None in group else group[-1 if i == width - 1 else 0])
    return out


def _level(value: float, low: float, high: float, top: int) -> int:
    if high == low:
        return top // 2
    if math.isinf(high - low):
        value, low, high = value / 2, low / 2, high / 2
    share = (value - low) / (high - low)
    return max(0, min(top, round(share * top)))


def _encodes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004
