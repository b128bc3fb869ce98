"""A comparison as text for people: the verdict, the first divergence, a table, what did not match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tracerec.comparing.divergence import measured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.comparing.comparison import Comparison

__all__ = ["HEADINGS", "cells_of", "lines"]

HEADINGS = ("tap", "dtype", "shape", "differ", "max abs", "max rel", "max ulp", "passes with rtol", "first")


def lines(
    comparison: Comparison, sort: Literal["order", "worst"] = "order", most: int = 40, width: int | None = None
) -> Iterator[str]:
    """Yields the text, line by line, without control characters.

    Args:
        comparison: the comparison.
        sort: the order of the table, as in `Comparison.rows`.
        most: how many rows the table has, and how many lines the list of what did not match.
        width: how many characters the table's rows may have: columns that do not fit are left out; None: any number.
    """
    yield from map(_safe, _lines(comparison, sort, most, width))


def _lines(comparison: Comparison, sort: Literal["order", "worst"], most: int, width: int | None) -> Iterator[str]:
    yield comparison.summary
    yield from _divergences(comparison)
    rows = [row for row in comparison.rows(sort) if row["different"]]
    if rows:
        yield ""
        yield from _table([HEADINGS, *(tuple(map(_safe, cells_of(row))) for row in rows[:most])], width)
        if len(rows) > most:
            yield f"and {len(rows) - most:,} more"
    if comparison.unmatched:
        yield ""
        yield "Not compared:"
        yield from (f"  {each}" for each in comparison.unmatched[:most])
        if len(comparison.unmatched) > most:
            yield f"  and {len(comparison.unmatched) - most:,} more"
    yield from (f"note: {note}" for note in comparison.runs.notes)
    if comparison.compared and comparison.tolerances:
        yield ""
        yield "Tolerances: " + "; ".join(f"{dtype}: {text}" for dtype, text in comparison.tolerances.items())


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns a row of `Comparison.rows` as the texts of the table's columns."""
    same = row["dtype_a"] == row["dtype_b"]
    dtype = row["dtype_a"] if same else f"{row['dtype_a']} | {row['dtype_b']}"
    shape = str(row["shape_a"]) if row["shape_a"] == row["shape_b"] else f"{row['shape_a']} | {row['shape_b']}"
    name = row["tap"] + (f" {row['leaf']}" if row["leaf"] else "")
    name += f" ({row['transforms']})" if row["transforms"] else ""
    name += f" by {row['by']}" if row["by"] else ""
    differ = f"{row['different']:,} of {row['compared']:,}"
    statistics = [each for each in row["statistics"] if each != "digest"] if row["different"] else []
    differ += f" in {', '.join(statistics)}" if statistics else ""
    numbers = ("" if row[n] is None else f"{row[n]:.3g}" for n in ("max_abs", "max_rel", "max_ulp", "need_rtol"))
    return (name, dtype, shape, differ, *numbers, _key(row))


def _key(row: dict[str, Any]) -> str:
    """Returns the record of the first difference without what the row says already."""
    if row["first"] is None:
        return ""
    words = row["first"].split(" ")
    return " ".join(word for word in words if "=" in word or word.startswith("#"))


def _divergences(comparison: Comparison) -> Iterator[str]:
    first, culprit = comparison.first_divergence, comparison.culprit
    if first is None:
        return
    yield ""
    text = first.lines()
    yield f"First divergence: {text[0]}"
    yield from text[1:]
    if culprit is not None and culprit.place < first.place:
        apart = culprit.measures.get("max_abs", float("nan"))
        yield f"Values differ from here on: {culprit.record}: largest difference {measured(apart)}, within tolerance"


_LEAST = ("max ulp", "shape", "max rel", "dtype", "passes with rtol", "first", "max abs")
"""The columns that are left out where the width does not do, the first first."""


def _table(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    widths = {name: max(len(row[column]) for row in rows) for column, name in enumerate(HEADINGS)}
    full = sum(widths.values()) + 2 * len(widths) - 2
    hidden: list[str] = []
    while width is not None and len(hidden) < len(_LEAST) and sum(widths.values()) + 2 * len(widths) - 2 > width:
        hidden.append(_LEAST[len(hidden)])
        del widths[hidden[-1]]
    for row in rows:
        shown = zip(HEADINGS, row, strict=True)
        yield "  ".join(text.ljust(widths[name]) for name, text in shown if name in widths).rstrip()
    if hidden:
        left_out = ", ".join(name for name in HEADINGS if name in hidden)
        yield f"Not shown for want of width: {left_out} ({full} columns show all)."


def _safe(text: str) -> str:
    """Returns text in which no name from a trace can move a cursor, or make a line of its own."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
