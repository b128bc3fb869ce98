"""The table of streams: one row a stream and leaf, in as many columns as the terminal is wide.

A pipe gets all columns, and is written without rich, which takes seconds for thousands of rows.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tracerec.cli._terminal import number, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracerec.cli._terminal import Terminal

__all__ = ["SORTS", "StreamTable", "not_finite", "sorted_streams"]

SORTS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "order": lambda _: 0,
    "name": lambda stream: stream["tap"],
    "records": lambda stream: -stream["records"],
    "bytes": lambda stream: -stream["bytes"],
    "nan": lambda stream: -not_finite(stream),
}
"""Keys to sort streams by, smallest first; equal ones stay in the order in which they first fired."""


def sorted_streams(streams: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Returns the streams of an overview by one of `SORTS`."""
    return sorted(streams, key=SORTS[by])


def not_finite(stream: dict[str, Any]) -> int:
    """Returns how many NaN and infinities a stream has, as far as that is known."""
    summaries = [leaf["summary"] for leaf in stream["leaves"] if leaf["summary"] is not None]
    return sum(summary["nan"] + summary["posinf"] + summary["neginf"] for summary in summaries)


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """One leaf of one stream. Attributes: stream and leaf as in the overview; the tap's label; what repeats."""

    stream: dict[str, Any]
    leaf: dict[str, Any]
    label: str
    same_tap: bool
    same_stream: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """One column.

    Attributes:
        header: its heading.
        cell: the text of a row.
        right: whether numbers stand in it.
        fold: whether a long text goes on in the next line.
        once: ``"tap"`` or ``"stream"``: written only in the first row of each, on a terminal.
    """

    header: str
    cell: Callable[[_Row], Text]
    right: bool = False
    fold: bool = False
    once: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Cells:
    """A column filled. Attributes: the column; a text a row; how wide the widest is."""

    column: _Column
    texts: list[Text]
    width: int


_MARK = "?"
"""Behind the transforms of a stream whose lanes may be invalid."""

_ALL = (
    "tap",
    "transforms",
    "leaf",
    "shape",
    "dtype",
    "kept",
    "records",
    "steps",
    "size",
    "min",
    "mean",
    "max",
    "nan",
    "inf",
    "line",
)

_SOMETIMES = {"transforms", "leaf", "kept"}
"""Columns that are shown if they say something."""

_STEPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], int], ...] = (
    # What gives way as the terminal gets narrower: a name for what is lost, the columns that go, the column that
    # comes in the place of the first of them, and the width of the line from there on.
    ("", (), (), 48),
    ("", (), (), 32),
    ("", (), (), 24),
    ("", ("shape", "dtype"), ("array",), 24),
    ("size", ("size",), (), 24),
    ("", ("healthy",), (), 24),
    ("", (), (), 16),
    ("", ("tap", "transforms", "leaf"), ("stack",), 16),
    ("", ("array",), ("short",), 16),
    ("min and max", ("min", "max"), (), 16),
    ("steps", ("steps",), (), 16),
    ("", (), (), 10),
    ("records", ("records",), (), 10),
    ("what was kept", ("kept",), (), 10),
    ("shape and dtype", ("short",), (), 10),
    ("the mean over time", ("line",), (), 10),
)

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_SHORT_KEYS = {"key<threefry2x32>": "key<fry>", "key<unsafe_rbg>": "key<urbg>"}
"""The short names of types that JAX prints, as in ``f32[8,128]``."""


class StreamTable:
    """The streams of an overview as a table.

    Args:
        streams: the overview's entries that are shown.
        terminal: where the table goes.
        partial: whether there are others.
    """

    def __init__(self, streams: Sequence[dict[str, Any]], terminal: Terminal, *, partial: bool = False) -> None:
        self._terminal = terminal
        self._partial = partial
        self._rows = _rows(streams, terminal)
        marked = [stream for stream in streams if stream["lanes_may_be_invalid"]]
        self._marked = bool(marked)
        self._unknown = any(leaf["summary"] is None for stream in marked for leaf in stream["leaves"])
        self._line_width = 0
        self._cells: dict[tuple[str, int], _Cells] = {}

    def plain(self) -> tuple[str, str]:
        """Returns the table with all columns as text, and a sentence about it."""
        names = [name for name in _ALL if name not in _SOMETIMES or self._said(name)]
        self._line_width = _STEPS[0][3]
        lines = _plain_lines([self._column_cells(name) for name in names], self._terminal.glyphs.unicode)
        return "\n".join(lines) + "\n", self._note([], 0, names)

    def fitted(self, width: int) -> tuple[Table, str]:
        """Returns the widest table that fits so many columns, and a sentence about what it leaves out."""
        names = [name for name in _ALL if name not in _SOMETIMES or self._said(name)]
        hidden: list[str] = []
        full = 0
        for title, gone, come, self._line_width in _STEPS:
            names = _replaced(names, self._healthy() if gone == ("healthy",) else gone, come)
            hidden += [title] if title else []
            needed = sum(self._column_cells(name).width for name in names) + _GAP * (len(names) - 1)
            full = full or needed
            if needed <= width:
                break
        return self._table(names), self._note(hidden, full, names)

    def _table(self, names: Sequence[str]) -> Table:
        frame = box.SIMPLE_HEAD if self._terminal.glyphs.unicode else _ASCII_FRAME
        table = Table(box=frame, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        cells = [self._column_cells(name) for name in names]
        for column in (c.column for c in cells):
            table.add_column(
                column.header,
                justify="right" if column.right else "left",
                overflow="fold" if column.fold else "ellipsis",
                no_wrap=not column.fold,
                vertical="bottom" if "stack" in names else "top",
            )
        for row in zip(*(c.texts for c in cells), strict=True):
            table.add_row(*row)
        return table

    def _column_cells(self, name: str) -> _Cells:
        key = name, self._line_width if name == "line" else 0
        if key not in self._cells:
            column = self._column(name)
            texts = [self._cell(column, row) for row in self._rows]
            width = max(
                cell_len(line) for text in (column.header, *(t.plain for t in texts)) for line in text.split("\n")
            )
            self._cells[key] = _Cells(column, texts, width)
        return self._cells[key]

    def _cell(self, column: _Column, row: _Row) -> Text:
        # In a pipe every line stands for itself, for grep.
        repeats = (column.once == "tap" and row.same_tap) or (column.once == "stream" and row.same_stream)
        return Text() if repeats and self._terminal.interactive else column.cell(row)

    def _said(self, name: str) -> bool:
        return any(text.plain for text in self._column_cells(name).texts)

    def _healthy(self) -> tuple[str, ...]:
        """Returns which of the columns NaN and Inf hold nothing but zeros."""
        counts = {
            "nan": sum(_nan(row) or 0 for row in self._rows),
            "inf": sum(_infinite(row) or 0 for row in self._rows),
        }
        return tuple(name for name, count in counts.items() if not count)

    def _note(self, hidden: Sequence[str], full: int, names: Sequence[str]) -> str:
        sentences: list[str] = []
        good = " and ".join(text for name, text in (("nan", "no NaN"), ("inf", "no Inf")) if name not in names)
        if good and any(row.leaf["summary"] is not None for row in self._rows):
            where = [f"streams without {_MARK}"] if self._unknown else ["these"] if self._partial else []
            sentences.append(f"There is {good}{''.join(f' in {text}' for text in where)}.")
        if hidden:
            sentences.append(f"Not shown for want of width: {', '.join(hidden)} ({full} columns or --json show all).")
        if any(row.leaf["dtype"].startswith("complex") and row.leaf["summary"] is not None for row in self._rows):
            sentences.append("The numbers of complex leaves are those of their magnitudes.")
        if self._marked:
            also = "no statistics are shown (--raw shows them)" if self._unknown else "statistics count them"
            sentences.append(
                f"{_MARK}: the tap is in a branch or loop that vmap runs for all lanes, so that lanes that did not "
                f"take it are in its records; {also}. With where=, the tap tells them apart."
            )
        return " ".join(sentences)

    def _column(self, name: str) -> _Column:
        dash = self._terminal.glyphs.dash
        return {
            "tap": _Column("tap", lambda r: Text(r.label, "bold"), fold=True, once="tap"),
            "transforms": _Column("transforms", self._transforms, fold=True, once="stream"),
            "leaf": _Column("leaf", lambda r: Text(self._terminal.text(r.leaf["path"])), fold=True),
            "shape": _Column("shape", lambda r: Text(_shape(r.leaf["shape"]))),
            "dtype": _Column("dtype", lambda r: Text(self._dtype(r.leaf))),
            "kept": _Column("kept", lambda r: Text(self._terminal.text(", ".join(r.leaf.get("kept", ()))))),
            "array": _Column("array", lambda r: Text(self._dtype(r.leaf) + _dims(r.leaf["shape"]))),
            "short": _Column("array", lambda r: Text(_short(self._dtype(r.leaf)) + _dims(r.leaf["shape"])), fold=True),
            "records": _Column("records", lambda r: Text(_records(r)), right=True, once="stream"),
            "steps": _Column("steps", lambda r: Text(_steps(r.stream["steps"], dash)), right=True, once="stream"),
            "size": _Column("size", lambda r: Text(size(_bytes(r))), right=True),
            "min": _Column("min", lambda r: Text(_last(r, "min")), right=True),
            "mean": _Column("mean", lambda r: Text(_last(r, "mean")), right=True),
            "max": _Column("max", lambda r: Text(_last(r, "max")), right=True),
            "nan": _Column("NaN", lambda r: _count(_nan(r)), right=True),
            "inf": _Column("Inf", lambda r: _count(_infinite(r)), right=True),
            "line": _Column("mean over time" if self._line_width > len("mean over time") else "trend", self._line),
            "stack": _Column("tap", self._stacked, fold=True),
        }[name]

    def _transforms(self, row: _Row) -> Text:
        names = ", ".join(_transform(t) for t in row.stream["transforms"])
        text = Text(self._terminal.text(names), "magenta")
        return text.append(f" {_MARK}", "bold yellow") if row.stream["lanes_may_be_invalid"] else text

    def _stacked(self, row: _Row) -> Text:
        """Returns the tap with transforms and leaf below it: a column in the place of three."""
        below = [self._transforms(row)] if row.stream["transforms"] else []
        below += [Text(self._terminal.text(row.leaf["path"]))] if row.leaf["path"] else []
        if not below:
            return Text(row.label, "bold")
        detail = Text("  ").append_text(Text(" ").join(below))
        if row.same_tap and self._terminal.interactive:
            return detail
        return Text("\n").join([Text(row.label, "bold"), detail])

    def _dtype(self, leaf: dict[str, Any]) -> str:
        kind = leaf["dtype"] if "key_impl" not in leaf else f"key<{leaf['key_impl']}>"
        return self._terminal.text(kind)

    def _line(self, row: _Row) -> Text:
        glyphs = self._terminal.glyphs
        if row.leaf["summary"] is None:
            return Text()
        line = Text(glyphs.sparkline(row.leaf["summary"]["spark"], self._line_width), "cyan")
        line.highlight_words([glyphs.bad], "bold red")
        return line


_GAP = 2
"""What stands between two columns: padding, and the frame's divider, which is a space."""


def _plain_lines(cells: Sequence[_Cells], blocks: bool) -> Iterator[str]:  # noqa: FBT001 - one call
    """Yields heading, rule and rows of a table, without spaces at their ends."""
    heads = [Text(c.column.header) for c in cells]
    rows = [heads, *zip(*(c.texts for c in cells), strict=True)]
    for number_of_row, row in enumerate(rows):
        parts: list[str] = []
        for c, text in zip(cells, row, strict=True):
            space = " " * (c.width - cell_len(text.plain))
            parts.append(space + text.plain if c.column.right else text.plain + space)
        yield (" " * _GAP).join(parts).rstrip(" ")
        if not number_of_row:
            yield ("─" if blocks else "-") * (sum(c.width for c in cells) + _GAP * (len(cells) - 1))


_ASCII_FRAME = box.Box("    \n    \n -- \n" + "    \n" * 5, ascii=True)


def _rows(streams: Sequence[dict[str, Any]], terminal: Terminal) -> list[_Row]:
    rows: list[_Row] = []
    labels = _labels(streams)
    for stream, label in zip(streams, labels, strict=True):
        safe = terminal.text(label)
        for number_of_leaf, leaf in enumerate(stream["leaves"]):
            same_tap = bool(rows) and rows[-1].label == safe
            rows.append(_Row(stream, leaf, safe, same_tap, number_of_leaf > 0))
    return rows


def _labels(streams: Sequence[dict[str, Any]]) -> list[str]:
    """Returns each stream's tap, with the static kwargs in which streams of one tap differ."""
    by_tap: dict[str, list[dict[str, str]]] = {}
    statics = [_static(stream["kwargs"]) for stream in streams]
    for stream, static in zip(streams, statics, strict=True):
        by_tap.setdefault(stream["tap"], []).append(static)
    labels: list[str] = []
    for stream, static in zip(streams, statics, strict=True):
        others = by_tap[stream["tap"]]
        telling = [f"{k}={v}" for k, v in static.items() if any(o.get(k) != v for o in others)]
        labels.append(" ".join([stream["tap"], *telling]))
    return labels


def _static(kwargs: dict[str, Any]) -> dict[str, str]:
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in kwargs.items()}
    return {name: text for name, text in texts.items() if '{"slot":' not in text}


def _replaced(names: list[str], gone: Sequence[str], come: Sequence[str]) -> list[str]:
    """Returns the names with those that come in the place of the first of those that go."""
    out: list[str] = []
    for name in names:
        if name in gone:
            out += come if name == gone[0] else ()
        else:
            out.append(name)
    return out


def _transform(transform: dict[str, Any]) -> str:
    return transform["name"] + (f"({transform['size']})" if "size" in transform else "")


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _short(dtype: str) -> str:
    if dtype in _SHORT_KEYS:
        return _SHORT_KEYS[dtype]
    kind = dtype.rstrip("0123456789")
    return _SHORT[kind] + dtype[len(kind) :] if kind in _SHORT else dtype


def _steps(steps: dict[str, int] | None, dash: str) -> str:
    if steps is None:
        return ""
    first, last = steps["first"], steps["last"]
    return str(first) if first == last else f"{first}{dash}{last}"


def _records(row: _Row) -> str:
    """Returns how many records there are, and how many of them count if not all do."""
    records, summary = row.stream["records"], row.leaf["summary"]
    if summary is None or summary["records"] == records:
        return f"{records:,}"
    return f"{summary['records']:,} of {records:,}"


def _bytes(row: _Row) -> int:
    """Returns what the leaf takes in the file; an only leaf stands for its stream, with kwargs and index."""
    return row.stream["bytes"] if len(row.stream["leaves"]) == 1 else row.leaf["bytes"]


def _last(row: _Row, name: str) -> str:
    summary = row.leaf["summary"]
    return "" if summary is None else number(summary["last"][name])


def _nan(row: _Row) -> int | None:
    summary = row.leaf["summary"]
    return None if summary is None else summary["nan"]


def _infinite(row: _Row) -> int | None:
    summary = row.leaf["summary"]
    return None if summary is None else summary["posinf"] + summary["neginf"]


def _count(count: int | None) -> Text:
    if count is None:
        return Text()
    return Text(f"{count:,}", "bold red" if count else "dim")
