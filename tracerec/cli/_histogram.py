"""A histogram drawn with characters: one line a bin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tracerec.cli._terminal import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.cli._terminal import Terminal
    from tracerec.consumers import Counts

__all__ = ["histogram_lines"]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_WIDEST = 60


def histogram_lines(counts: Counts, terminal: Terminal) -> Iterator[Text]:
    """Yields a line a bin: its lower edge, a bar, how many values; as wide as the terminal, at most 80 columns."""
    if not counts.counts.size:
        return
    labels = [number(float(edge)) for edge in counts.edges[:-1]]
    figures = [f"{count:,}" for count in counts.counts.tolist()]
    left, right = max(map(len, labels)), max(map(len, figures))
    room = max(4, min(_WIDEST, terminal.console.width - left - right - 6))
    most = int(counts.counts.max())
    for label, count, figure in zip(labels, counts.counts.tolist(), figures, strict=True):
        bar = _bar(count / most, room, blocks=terminal.glyphs.unicode)
        line = Text(f"  {label:>{left}}  ", "dim").append(bar, "not dim cyan")
        yield line.append(f" {figure}" if bar else figure, "not dim" if count else "dim")


def _bar(share: float, room: int, *, blocks: bool) -> str:
    """Returns a bar of a share of the room; what is there is seen, however little."""
    if not share:
        return ""
    if not blocks:
        return "#" * max(1, round(share * room))
    eighths = max(1, round(share * room * 8))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
