"""Histograms that the device kept, over the records: shares of all lanes' elements, in bins common to all records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import SelectionError
from tracerec.keeping.bins import histogram_edges
from tracerec.keeping.specs import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracerec.keeping.reading import Kind, Row
    from tracerec.trace.view import StreamView

__all__ = ["edges_of", "joined", "shares_of_kept", "trimmed"]


def shares_of_kept(
    views: Sequence[StreamView],
    places: Sequence[np.ndarray],
    told: Sequence[Row],
    column_of: Callable[[np.ndarray], np.ndarray],
    size: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the edges of the bins, the share of the elements in each bin and column, and what the bins are of.

    Elements outside the bins that were kept, and zeros by exponent, are not in it. Bins at the ends in which there is
    nothing are left out; neighbours are joined where there are more than rows. Bins whose edges each record has for
    itself are spread over bins of equal width, as if their elements were spread evenly.

    Args:
        views: the streams.
        places: for each stream the place of each record in program order.
        told: for each stream the leaf, of which a histogram was kept.
        column_of: returns the columns of the records at some places.
        size: the most rows, and the number of columns.

    Raises:
        SelectionError: the histograms of the streams have different bins.
    """
    kinds = [kind for row in told if (kind := row.kind("histogram")) is not None]
    keeps = {(kind.keep, row.leaf.dtype) for kind, row in zip(kinds, told, strict=True)}
    if len(keeps) > 1:
        message = f"tap {views[0].tap!r} kept histograms with different bins; choose one of its streams"
        raise SelectionError(message)
    ((keep, dtype),) = keeps
    exponents = isinstance(keep, Histogram) and keep.by == "exponent"
    rows, columns = size
    edges = _span(views, kinds, rows) if "edges" in keep.parts else _checked(edges_of(keep, dtype), views, kinds)
    table = np.zeros((columns, len(edges) - 1))
    for view, where, kind in zip(views, places, kinds, strict=True):
        for start, counts, own in _blocks(view, kind):
            found = counts.sum(axis=1) if own is None else _respread(counts, own, edges)
            np.add.at(table, column_of(where[start : start + len(counts)]), found)
    edges, table = joined(*trimmed(edges, table), rows)
    with np.errstate(all="ignore"):
        shares = (table / table.sum(axis=1, keepdims=True)).T
    return edges, shares, "magnitude" if exponents else "value"


def edges_of(keep: object, dtype: str) -> np.ndarray:
    """Returns the edges of a histogram whose bins are fixed; for one beyond float64, the largest number of that."""
    if not isinstance(keep, Histogram):
        message = f"{keep!r} is no histogram"
        raise SelectionError(message)
    return np.minimum(histogram_edges(keep, dtype), np.finfo(np.float64).max)


def _checked(edges: np.ndarray, views: Sequence[StreamView], kinds: Sequence[Kind]) -> np.ndarray:
    for view, kind in zip(views, kinds, strict=True):
        bins = view.site.leaves[kind.places["bins"]].shape[-1]
        if bins != len(edges) - 1:
            message = f"tap {view.tap!r} has histograms of {bins} bins where its description has {len(edges) - 1}"
            raise SelectionError(message)
    return edges


def _blocks(view: StreamView, kind: Kind) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """Yields the first record, the counts ``(n, lanes, bins)``, and the edges ``(n, lanes, bins + 1)`` if kept."""
    for start, stop in view.blocks(view.site.record_nbytes):
        counts = view.leaf(kind.places["bins"], start, stop)
        lanes = int(np.prod(counts.shape[1:-1], dtype=np.int64))
        edges = None
        if "edges" in kind.places:
            edges = view.leaf(kind.places["edges"], start, stop)
            edges = edges.reshape(stop - start, lanes, edges.shape[-1]).astype(np.float64)
        yield start, counts.reshape(stop - start, lanes, counts.shape[-1]).astype(np.int64), edges


def _span(views: Sequence[StreamView], kinds: Sequence[Kind], bins: int) -> np.ndarray:
    """Returns edges of bins of equal width that hold all records' bins that have elements."""
    low, high = np.inf, -np.inf
    for view, kind in zip(views, kinds, strict=True):
        for _, counts, edges in _blocks(view, kind):
            there = counts.sum(axis=2) > 0
            if edges is not None and there.any():
                low, high = min(low, float(edges[there, 0].min())), max(high, float(edges[there, -1].max()))
    return np.linspace(low, high, bins + 1) if low < high else np.linspace(0, 1, bins + 1)


def _respread(counts: np.ndarray, own: np.ndarray, edges: np.ndarray) -> np.ndarray:
    out = np.zeros((len(counts), len(edges) - 1))
    for record, lane in np.argwhere(counts.sum(axis=2) > 0).tolist():
        below = np.concatenate([[0], np.cumsum(counts[record, lane])])
        out[record] += np.diff(np.interp(edges, own[record, lane], below))
    return out


def trimmed(edges: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns edges and counts ``(n, bins)`` without the bins at the ends in which there is nothing."""
    there = np.flatnonzero(table.any(axis=0))
    if not len(there):
        return edges, table
    return edges[there[0] : there[-1] + 2], table[:, there[0] : there[-1] + 1]


def joined(edges: np.ndarray, table: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns edges and counts ``(n, bins)`` with neighbouring bins joined, so that there are no more than rows."""
    bins = len(edges) - 1
    together = -(-bins // rows)
    starts = np.arange(0, bins, together)
    return np.append(edges[starts], edges[-1]), np.add.reduceat(table, starts, axis=1)
