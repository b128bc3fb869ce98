"""Pictures drawn with characters: lines of braille dots, meshes of shaded blocks; ASCII where that is all there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from tracerec.cli._terminal import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.cli._terminal import Terminal
    from tracerec.trace.pictures import Picture

__all__ = ["HEIGHT", "columns_of", "drawn"]

HEIGHT = 16
"""Lines of a picture, its axis excepted."""

_WIDEST = 100
_LABELS = 12
"""Room for the numbers at the left."""

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character's dots, by row and column (Unicode, chapter 21.1)."""

_SHADES, _ASCII_SHADES = " ░▒▓█", " .:+#"
_MISSING, _ASCII_MISSING = "\N{MULTIPLICATION SIGN}", "x"


def columns_of(terminal: Terminal) -> int:
    """Returns how many characters wide a picture is."""
    return max(10, min(_WIDEST, terminal.console.width) - _LABELS - 2)


def drawn(picture: Picture, terminal: Terminal) -> Iterator[Text]:
    """Yields the lines of a picture: its name, its rows with numbers at the left, its axis, and what means what."""
    yield Text(terminal.text(picture.name), "bold")
    if picture.kind == "line":
        yield from _line(picture, terminal)
    else:
        yield from _mesh(picture, terminal)


def _line(picture: Picture, terminal: Terminal) -> Iterator[Text]:
    width, mean = columns_of(terminal), picture.measures["mean"]
    low, high = picture.measures["min"], picture.measures["max"]
    there = np.isfinite(mean)
    if not there.any():
        yield Text("  no record has a finite value", "bold red")
        return
    scalar = picture.scalar and len(mean) == picture.records
    least, most = (float(x) for x in ((mean if scalar else low)[there].min(), (mean if scalar else high)[there].max()))
    if least == most:
        least, most = least - (abs(least) or 1) / 2, most + (abs(most) or 1) / 2
    fine = terminal.glyphs.unicode
    dots = _Dots(width, HEIGHT, fine=fine)
    dots.line(_places(len(mean), dots.width), _heights(mean, least, most, dots.height))
    band = np.zeros((HEIGHT, width), bool)
    if not scalar:
        x = _places(len(mean), width)
        tops, bottoms = _heights(high, least, most, HEIGHT), _heights(low, least, most, HEIGHT)
        for column, top, bottom in zip(x.tolist(), tops.tolist(), bottoms.tolist(), strict=True):
            if top >= 0:
                band[top : bottom + 1, column] = True
    labels = np.linspace(most, least, HEIGHT)
    for row in range(HEIGHT):
        text = Text(_label(labels[row]) if row % 5 == 0 else " " * _LABELS, "dim").append("┤" if fine else "|", "dim")
        for column in range(width):
            mark = dots.character(row, column)
            shaded = band[row, column] and mark is None
            text.append(("░" if fine else ".") if shaded else mark or " ", "not dim blue" if shaded else "not dim cyan")
        yield text
    yield from _axis(picture, width, fine=fine)
    means = "value" if picture.scalar else "mean"
    note = [f"line: {means}", *([] if scalar else ["shade: min to max"])]
    if picture.missing:
        note.append(f"{picture.missing:,} of {picture.records:,} records have no finite value")
    yield Text(" " * (_LABELS + 1) + "; ".join(note), "dim")


class _Dots:
    """A canvas of dots: eight a character, or one where there are no braille characters."""

    def __init__(self, columns: int, rows: int, *, fine: bool) -> None:
        self._fine = fine
        self.width, self.height = (columns * 2, rows * 4) if fine else (columns, rows)
        self._set = np.zeros((self.height, self.width), bool)

    def line(self, x: np.ndarray, y: np.ndarray) -> None:
        """Joins points; those with a negative height are left out, and so are the lines to them."""
        for i in range(len(x)):
            if y[i] < 0:
                continue
            self._set[y[i], x[i]] = True
            if i and y[i - 1] >= 0:
                steps = max(abs(int(x[i]) - int(x[i - 1])), abs(int(y[i]) - int(y[i - 1])), 1)
                share = np.arange(steps + 1) / steps
                rows = np.rint(y[i - 1] + share * (y[i] - y[i - 1])).astype(int)
                self._set[rows, np.rint(x[i - 1] + share * (x[i] - x[i - 1])).astype(int)] = True

    def character(self, row: int, column: int) -> str | None:
        """Returns what stands at a place; None where there is no dot."""
        if not self._fine:
            return "*" if self._set[row, column] else None
        cell = self._set[row * 4 : row * 4 + 4, column * 2 : column * 2 + 2]
        bits = sum(_DOTS[i][j] for i, j in np.argwhere(cell).tolist())
        return chr(0x2800 + bits) if bits else None


def _mesh(picture: Picture, terminal: Terminal) -> Iterator[Text]:
    fine, width = terminal.glyphs.unicode, columns_of(terminal)
    shades, missing = (_SHADES, _MISSING) if fine else (_ASCII_SHADES, _ASCII_MISSING)
    values = picture.values[::-1] if picture.kind == "histogram" else picture.values
    finite = np.isfinite(values)
    if not finite.any():
        yield Text("  no record has a finite value", "bold red")
        return
    least, most = float(values[finite].min()), float(values[finite].max())
    if picture.kind == "histogram":
        least = 0.0
    starts = picture.y[:-1][::-1] if picture.kind == "histogram" else picture.y
    source = np.arange(width) * values.shape[1] // width
    for row, label in enumerate(starts.tolist()):
        text = Text(_label(label) if row % 4 == 0 else " " * _LABELS, "dim").append("┤" if fine else "|", "dim")
        for value in values[row, source].tolist():
            text.append(
                missing if not np.isfinite(value) else shades[_shade(value, least, most, len(shades))], "not dim cyan"
            )
        yield text
    yield from _axis(picture, width, fine=fine)
    what = "mean" if picture.kind == "heatmap" else "share of the values"
    key = "  ".join(f"{shade!r} {number(least + (most - least) * i / len(shades))}" for i, shade in enumerate(shades))
    yield Text(f"{' ' * (_LABELS + 1)}{what} from  {key}" + (f"  {missing} none" if not finite.all() else ""), "dim")


def _shade(value: float, least: float, most: float, count: int) -> int:
    if most == least:
        return count // 2
    level = int((value - least) / (most - least) * count)
    # What is there is seen, however little.
    return max(1 if value > least else 0, min(count - 1, level))


def _axis(picture: Picture, width: int, *, fine: bool) -> Iterator[Text]:
    corner, line = ("└", "─") if fine else ("+", "-")
    yield Text(" " * _LABELS + corner + line * width, "dim")
    first, last = (str(int(x)) for x in (picture.x[0], picture.x[-1]))
    room = max(1, width - len(first) - len(last))
    yield Text(" " * (_LABELS + 1) + first + picture.x_name.center(room) + last, "dim")


def _places(count: int, width: int) -> np.ndarray:
    """Returns the column of each of so many points."""
    return np.arange(count) * (width - 1) // max(count - 1, 1)


def _heights(values: np.ndarray, least: float, most: float, rows: int) -> np.ndarray:
    """Returns the row of each value, from the top; -1 where there is none."""
    there = np.isfinite(values)
    share = (np.where(there, values, least) / 2 - least / 2) / (most / 2 - least / 2)
    return np.where(there, np.clip(np.rint((1 - share) * (rows - 1)), 0, rows - 1), -1).astype(int)


def _label(value: float) -> str:
    return f"{number(value):>{_LABELS - 1}} "
