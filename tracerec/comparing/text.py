"""A comparison as text for people: the verdict, the first divergence, a table, what did not match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tracerec.comparing.divergence import measured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.comparing.comparison import Comparison

__all__ = ["HEADINGS", "cells_of", "lines"]

HEADINGS = ("tap", "dtype", "shape", "differ", "max abs", "max rel", "max ulp", "passes with rtol", "first")


def lines(comparison: Comparison, sort: Literal["order", "worst"] = "order", most: int = 40) -> Iterator[str]:
    """Yields the text, line by line.

    Args:
        comparison: the comparison.
        sort: the order of the table, as in `Comparison.rows`.
        most: how many rows the table has, and how many lines the list of what did not match.
    """
    yield comparison.summary
    yield from _divergences(comparison)
    rows = [row for row in comparison.rows(sort) if row["different"]]
    if rows:
        yield ""
        yield from _table([HEADINGS, *(cells_of(row) for row in rows[:most])])
        if len(rows) > most:
            yield f"and {len(rows) - most:,} more"
    if comparison.unmatched:
        yield ""
        yield "Not compared:"
        yield from (f"  {each}" for each in comparison.unmatched[:most])
        if len(comparison.unmatched) > most:
            yield f"  and {len(comparison.unmatched) - most:,} more"
    yield from (f"note: {note}" for note in comparison.runs.notes)
    if comparison.compared:
        yield ""
        yield "Tolerances: " + "; ".join(f"{dtype}: {text}" for dtype, text in comparison.tolerances.items())


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns a row of `Comparison.rows` as the texts of the table's columns."""
    same = row["dtype_a"] == row["dtype_b"]
    dtype = row["dtype_a"] if same else f"{row['dtype_a']} | {row['dtype_b']}"
    shape = str(row["shape_a"]) if row["shape_a"] == row["shape_b"] else f"{row['shape_a']} | {row['shape_b']}"
    name = row["tap"] + (f" {row['leaf']}" if row["leaf"] else "")
    name += f" ({row['transforms']})" if row["transforms"] else ""
    numbers = ("" if row[n] is None else f"{row[n]:.3g}" for n in ("max_abs", "max_rel", "max_ulp", "need_rtol"))
    return (name, dtype, shape, f"{row['different']:,} of {row['compared']:,}", *numbers, _key(row))


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


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
