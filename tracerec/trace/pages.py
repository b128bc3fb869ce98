"""What a notebook shows of a trace and of a tap: a compact table. No tensor is read.

All text of a trace is escaped. A closed trace shows what is known without reading.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from tracerec.errors import TraceError
from tracerec.formats.contract import RECORDING_NOTE
from tracerec.keeping.reading import rows as rows_of
from tracerec.trace.selection import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracerec.formats.contract import RunInfo
    from tracerec.keeping.reading import Row
    from tracerec.model import Site
    from tracerec.statistics import LeafSummary
    from tracerec.trace.view import StreamView

__all__ = ["tap_page", "trace_page"]

_SHOWN = 20

_STATES = {
    "clean": "ended cleanly",
    "recording": "still being recorded",
    "killed": "did not end cleanly",
    "stopped early": "recording stopped early",
}

_BARS = "▁▂▃▄▅▆▇█"
_BAD = "\N{MULTIPLICATION SIGN}"

_CELL = "text-align:left;padding:0.1em 0.8em 0.1em 0"
_FIGURE = "text-align:right;padding:0.1em 0.8em 0.1em 0"


def trace_page(path: str, info: RunInfo, views: Mapping[str, Sequence[StreamView]], *, closed: bool) -> str:
    """Returns the page of a trace: the run, and a row a tap.

    Args:
        path: the file or folder.
        info: what is known of the run.
        views: the streams of each tap.
        closed: whether nothing can be read any more.
    """
    state = "closed" if closed else _STATES[info.state]
    records = sum(view.shown_records for group in views.values() for view in group)
    head = f"<b>tracerec.Trace</b> {_text(path)}: {counted(records, 'record')}, {counted(len(views), 'tap')}, {state}"
    rows = [_tap_row(name, group) for name, group in list(views.items())[:_SHOWN]]
    lost = [f"{counted(sum(info.dropped.values()), 'record')} missing"] if sum(info.dropped.values()) else []
    notes = [note for note in info.notes if note != RECORDING_NOTE]
    lines = [head, *map(_text, [*lost, *notes])]
    return _page(lines, ["tap", "records", "transforms", "arrays"], rows, (len(views), "tap"))


def tap_page(name: str, views: Sequence[StreamView]) -> str:
    """Returns the page of a tap: a row a stream and leaf, with the last record's statistics and the means over time.

    Args:
        name: the tap's name.
        views: its streams.
    """
    records = sum(view.shown_records for view in views)
    head = f"<b>tracerec.Tap</b> {_text(name)}: {counted(records, 'record')}, {counted(len(views), 'stream')}"
    pairs = [(view, row) for view in views for row in rows_of(view.site)]
    rows = [_leaf_row(view, row) for view, row in pairs[:_SHOWN]]
    columns = ["transforms", "leaf", "array", "records", "min", "mean", "max", "NaN", "Inf", "mean over time"]
    return _page([head], columns, rows, (len(pairs), "row"))


def _page(heads: Iterable[str], columns: Sequence[str], rows: Sequence[Sequence[str]], of: tuple[int, str]) -> str:
    """Returns lines of HTML, a table, and how many rows there would be of what."""
    lines = [f"<div>{head}</div>" for head in heads]
    if rows:
        names = "".join(f'<th style="{_style(name)}">{name}</th>' for name in columns)
        body = "".join(
            "<tr>"
            + "".join(f'<td style="{_style(n)}">{cell}</td>' for n, cell in zip(columns, row, strict=True))
            + "</tr>"
            for row in rows
        )
        lines.append(f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>")
    if of[0] > len(rows):
        lines.append(f"<div>{len(rows)} of {counted(*of)} are shown</div>")
    return "\n".join(lines)


def _style(column: str) -> str:
    return _FIGURE if column in {"records", "min", "max", "mean", "NaN", "Inf"} else _CELL


def _tap_row(name: str, views: Sequence[StreamView]) -> list[str]:
    chains = dict.fromkeys(_chain(view.site) for view in views)
    arrays = dict.fromkeys(_array(row) for view in views for row in rows_of(view.site))
    records = sum(view.shown_records for view in views)
    return [f"<b>{_text(name)}</b>", f"{records:,}", _listed(list(chains), "; "), _listed(list(arrays), ", ")]


def _leaf_row(view: StreamView, row: Row) -> list[str]:
    summary = _summary(view, row)
    cells = [_text(_chain(view.site)), _text(row.leaf.path), _text(_array(row)), f"{view.shown_records:,}"]
    if summary is None:
        return [*cells, *[""] * 6]
    last, infinite = summary.last, summary.posinf + summary.neginf
    cells += [_number(last.min), _number(last.mean), _number(last.max), _bad(summary.nan), _bad(infinite)]
    return [*cells, _sparkline(summary.spark)]


def _summary(view: StreamView, row: Row) -> LeafSummary | None:
    """Returns the summary of a leaf; None where it is of other records than the view, or the trace is closed."""
    if view.site.lanes_may_be_invalid and not view.raw:
        return None
    numbers = [leaf.number for leaf in view.source.site.leaves]
    try:
        summary = view.source.summaries()[numbers.index(view.site.leaves[row.summary_place].number)]
        records = view.records
    except TraceError:
        return None
    # A part of the records that count, of the same length, is all of them.
    return summary if summary.records == records else None


def _chain(site: Site) -> str:
    return ", ".join(map(str, site.transforms)) or "none"


def _array(row: Row) -> str:
    leaf = row.leaf
    kept = f" as {', '.join(row.kept)}" if row.kinds and leaf.kept is None else ""
    kind = leaf.dtype if leaf.key_impl is None else f"key<{leaf.key_impl}>"
    return f"{kind}[{','.join(map(str, leaf.shape))}]{kept}"


def _listed(texts: Sequence[str], between: str, most: int = 3) -> str:
    more = f"{between}{len(texts) - most} more" if len(texts) > most else ""
    return between.join(map(_text, texts[:most])) + more


def _sparkline(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return _BAD * len(values)
    low, high = min(there), max(there)
    top = len(_BARS) - 1

    def bar(value: float | None) -> str:
        if value is None:
            return _BAD
        if high == low:
            return _BARS[top // 2]
        # Halves, so that the widest range of float64 does not overflow.
        return _BARS[round((value / 2 - low / 2) / (high / 2 - low / 2) * top)]

    return "".join(map(bar, values))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _bad(count: int) -> str:
    return f'<b style="color:#c00">{count:,}</b>' if count else "0"


def _text(value: Any) -> str:
    """Returns text from a trace as HTML; what does not print is an escape, as a repr has it."""
    text = str(value)
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return html.escape(shown)
