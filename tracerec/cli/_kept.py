"""What the device kept of a leaf, for people and for programs: where a record does not hold the leaf itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from tracerec.cli import _as_json
from tracerec.keeping import OUTSIDE, summary_columns
from tracerec.keeping.reading import moments_at, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracerec.cli._terminal import Terminal
    from tracerec.consumers import Counts
    from tracerec.keeping.reading import Kind, Row
    from tracerec.model import Record
    from tracerec.statistics import Moments

__all__ = ["digest", "histogram", "kept_object", "kept_sections", "short_digest", "statistics", "statistics_object"]

_BINS = 16
_LANES = ("mean", "std", "min", "max", "nan")
_MOST_DIGESTS, _FEW_DIGESTS = 16, 4


def statistics(record: Record, row: Row) -> Moments:
    """Returns what was kept tells of a leaf of one record."""
    return moments_at(row.statistics(_reading(record)), 0)


def statistics_object(record: Record, row: Row) -> dict[str, Any]:
    """Returns the same as JSON; what is not known is null."""
    found = statistics(record, row).to_json()
    return found if row.zeros_known else found | {"zeros": None}


def digest(record: Record, row: Row) -> str | None:
    """Returns the digest of a leaf of one record, of lanes one each, between spaces; None where none was kept."""
    found = row.digests(_reading(record), lambda place: _valid(record, place))
    return None if found is None else found[0]


def short_digest(record: Record, row: Row) -> str:
    """Returns the same for a line, of many lanes the first ones; empty where none was kept."""
    texts = (digest(record, row) or "").split(" ")
    more = f" and {len(texts) - _FEW_DIGESTS:,} more" if len(texts) > _FEW_DIGESTS else ""
    return " ".join(texts[:_FEW_DIGESTS]) + more


def histogram(record: Record, row: Row) -> Counts | None:
    """Returns the histogram that was kept of a leaf of one record, over all lanes; None where none fits all."""
    from tracerec.consumers import Counts
    from tracerec.trace.kept_histograms import edges_of, trimmed

    kind = row.kind("histogram")
    if kind is None:
        return None
    counts = record.arrays[kind.places["bins"]]
    if "edges" in kind.places:
        own = record.arrays[kind.places["edges"]].astype(np.float64)
        own = own.reshape(int(np.prod(own.shape[:-1], dtype=np.int64)), own.shape[-1])
        if len(own) != 1:
            return None
        edges = own[0]
    else:
        edges = edges_of(kind.keep, row.leaf.dtype)
    counts = counts.sum(axis=tuple(range(counts.ndim - 1)), dtype=np.int64)
    if len(edges) != len(counts) + 1:
        return None
    edges, table = trimmed(edges, counts[None])
    outside = _outside(record, kind)
    bad = outside["nan"] + outside["posinf"] + outside["neginf"]
    return Counts(edges, table[0], outside["under"], outside["over"], bad)


def kept_object(record: Record) -> dict[str, Any] | None:
    """Returns all arrays that were kept of one tapped leaf, by their key paths in what stands for it; else None."""
    leaves = [leaf.kept for leaf in record.site.leaves]
    if None in leaves:
        return None
    said = zip(record.site.leaves, leaves, record.arrays, strict=True)
    return {
        leaf.path.removeprefix(kept.path).removeprefix("."): _as_json.plain(array)
        for leaf, kept, array in said
        if kept is not None and kept.part != "full"
    }


def kept_sections(
    record: Record, row: Row, terminal: Terminal, summary: Callable[[Moments, Terminal], Text]
) -> Iterator[Text]:
    """Yields lines for all that was kept of one tapped leaf.

    Args:
        record: the record, with the arrays of that leaf alone.
        row: the leaf.
        terminal: where the lines go.
        summary: returns statistics as a line.
    """
    for kind in row.kinds:
        if kind.keep.name == "summary":
            yield from _summary_lines(record, row, kind, terminal, summary)
        elif kind.keep.name == "fingerprint":
            yield from _fingerprint_lines(record, row, kind, terminal, summary)
        elif kind.keep.name == "histogram":
            yield from _histogram_lines(record, row, kind, terminal)
    for other in rows(record.site):
        if other is not row and other.places != row.places and other.array is not None:
            yield _head(terminal, ", ".join(other.kept), other.leaf.path.rpartition(".")[2])
            yield from _array_lines(record.arrays[other.array], terminal)


def _summary_lines(
    record: Record, row: Row, kind: Kind, terminal: Terminal, summary: Callable[[Moments, Terminal], Text]
) -> Iterator[Text]:
    yield _head(terminal, "summary")
    if kind is row.source:
        yield summary(statistics(record, row), terminal)
    if not kind.lanes:
        return
    parts = (record.arrays[kind.places[part]] for part in ("counts", "range", "moments"))
    lanes = summary_columns(*parts)
    for name in _LANES:
        values = lanes[name]
        if name != "nan" or values.any():
            yield from _array_lines(values, terminal, f"  {name} of each lane  ")


def _fingerprint_lines(
    record: Record, row: Row, kind: Kind, terminal: Terminal, summary: Callable[[Moments, Terminal], Text]
) -> Iterator[Text]:
    yield _head(terminal, "fingerprint")
    if kind is row.source:
        yield summary(statistics(record, row), terminal)
    texts = (digest(record, row) or "").split(" ")
    for text in texts[:_MOST_DIGESTS]:
        yield Text(f"  {text}")
    if len(texts) > _MOST_DIGESTS:
        yield Text(f"  and {len(texts) - _MOST_DIGESTS:,} more lanes; --json has all", "dim")


def _histogram_lines(record: Record, row: Row, kind: Kind, terminal: Terminal) -> Iterator[Text]:
    import dataclasses

    from tracerec.cli._histogram import histogram_lines
    from tracerec.trace.kept_histograms import joined

    yield _head(terminal, "histogram", "of magnitudes" if row.zeros_known else "")
    counts = histogram(record, row)
    if counts is None:
        yield Text("  the lanes have different bins; --json has them", "dim")
    elif counts.counts.any():
        edges, table = joined(counts.edges, counts.counts[None], _BINS)
        yield from histogram_lines(dataclasses.replace(counts, edges=edges, counts=table[0]), terminal)
    outside = {name: count for name, count in _outside(record, kind).items() if count}
    if outside:
        dot = f" {terminal.glyphs.dot} "
        yield Text("  " + dot.join(f"{count:,} {_OUTSIDE[name]}" for name, count in outside.items()))


_OUTSIDE = {
    "zeros": "zero",
    "under": "below the bins",
    "over": "above the bins",
    "nan": "NaN",
    "posinf": "Inf",
    "neginf": "-Inf",
}


def _outside(record: Record, kind: Kind) -> dict[str, int]:
    counts = record.arrays[kind.places["outside"]]
    sums = counts.sum(axis=tuple(range(counts.ndim - 1)), dtype=np.int64)
    return dict(zip(OUTSIDE, sums.tolist(), strict=True))


def _head(terminal: Terminal, *words: str) -> Text:
    return Text(terminal.text(" ".join(filter(None, words))), "bold")


def _array_lines(array: np.ndarray, terminal: Terminal, label: str = "  ") -> Iterator[Text]:
    width = min(120, terminal.console.width) - len(label)
    text = np.array2string(array, threshold=64, edgeitems=3, max_line_width=max(20, width))
    for number, line in enumerate(text.splitlines()):
        yield Text((label if not number else " " * len(label)) + line)


def _reading(record: Record) -> Callable[[int], np.ndarray]:
    return lambda place: record.arrays[place][None]


def _valid(record: Record, place: int) -> np.ndarray | None:
    from tracerec import lanes

    if all(column.role is None for column in record.site.columns):
        return None
    return lanes.LeafLanes(record.site, place).valid(lanes.columns_of(record))
