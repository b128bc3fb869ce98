"""Errors as pictures: SVG, drawn with the page's own colours."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LINES", "over_depth", "over_steps"]

LINES = 5
"""Taps whose error is drawn over steps."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 260, 56, 28, 10
_POINTS, _BARS = 400, 120
_COLOURS = ("#c0362c", "#2f6fde", "#1d7f4e", "#9a6700", "#8250df")


def over_steps(lines: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> str:
    """Returns the picture of errors over steps.

    Args:
        lines: a name, steps and errors each, the worst first.
    """
    drawn = [(name, *_thinned(steps, errors)) for name, steps, errors in lines]
    axis = _Axis(np.concatenate([errors for _, _, errors in drawn]))
    first = min(float(steps[0]) for _, steps, _ in drawn)
    last = max(float(steps[-1]) for _, steps, _ in drawn)
    out = [_opening("Error over steps"), axis.drawn()]
    for number, (name, steps, errors) in enumerate(drawn):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(_across(step, first, last), axis.y(error)) for step, error in zip(steps, errors, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in points if len(points) <= 60]  # noqa: PLR2004
        out.append(f'<text x="{_LEFT + 8}" y="{_TOP + 12 + 13 * number}" fill="{colour}">{_short(name)}</text>')
    out.append(_label(_LEFT, f"{first:g}", "start") + _label(_WIDTH - 8, f"{last:g}", "end"))
    return "".join([*out, "</svg>"])


def over_depth(errors: Sequence[tuple[str, float]]) -> str:
    """Returns the picture of errors along taps in order of execution.

    Args:
        errors: a name and an error each.
    """
    shown = list(errors)
    if len(shown) > _BARS:
        groups = np.array_split(np.arange(len(shown)), _BARS)
        shown = [max((shown[i] for i in group), key=lambda item: _rank(item[1])) for group in groups]
    axis = _Axis(np.array([error for _, error in shown] or [0.0]))
    step = (_WIDTH - _LEFT - 8) / max(len(shown), 1)
    out = [_opening("Error over depth"), axis.drawn()]
    for number, (name, error) in enumerate(shown):
        y = axis.y(error)
        colour = _COLOURS[0] if error > 0 or math.isnan(error) else _COLOURS[2]
        height = max(_HEIGHT - _BOTTOM - y, 1.5)
        x, top, width = _LEFT + number * step, _HEIGHT - _BOTTOM - height, max(step * 0.8, 1)
        out.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{_safe(name)}: {error:.3g}</title></rect>"
        )
    if shown:
        out.append(
            _label(_LEFT, _short(shown[0][0], 30), "start") + _label(_WIDTH - 8, _short(shown[-1][0], 30), "end")
        )
    return "".join([*out, "</svg>"])


class _Axis:
    """A logarithmic axis of errors. Zero lies on the ground, what is infinite or unknown at the top."""

    def __init__(self, errors: np.ndarray) -> None:
        there = errors[np.isfinite(errors) & (errors > 0)]
        low = math.floor(math.log10(there.min())) if len(there) else -1
        high = math.ceil(math.log10(there.max())) if len(there) else 0
        self._low, self._high = low - 1, max(high, low + 1)

    def y(self, error: float) -> float:
        """Returns how far down a value is."""
        if not math.isfinite(error):
            return _TOP
        at = self._low if error <= 0 else max(math.log10(error), self._low)
        return _TOP + (_HEIGHT - _BOTTOM - _TOP) * (1 - (at - self._low) / (self._high - self._low))

    def drawn(self) -> str:
        """Returns lines and numbers."""
        every = max(1, (self._high - self._low) // 6)
        out: list[str] = []
        for power in range(self._low, self._high + 1, every):
            y = self.y(10.0**power) if power > self._low else self.y(0.0)
            text = "0" if power == self._low else f"1e{power}"
            out.append(
                f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".12"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
            )
        return "".join(out)


def _thinned(steps: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns few enough points, each the worst of its share of steps."""
    if len(steps) <= _POINTS:
        return steps, errors
    starts = np.arange(_POINTS) * len(steps) // _POINTS
    return steps[starts], np.fmax.reduceat(errors, starts)


def _across(step: float, first: float, last: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 8) * ((float(step) - first) / (last - first) if last > first else 0.5)


def _opening(title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'


def _label(x: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{text}</text>'


def _short(name: str, most: int = 60) -> str:
    return _safe(name if len(name) <= most else "\u2026" + name[1 - most :])


def _safe(text: str) -> str:
    return html.escape("".join(c if c.isprintable() else "\ufffd" for c in text), quote=True)


def _rank(error: float) -> float:
    return math.inf if math.isnan(error) else error
