"""Values without padding and without lanes that do not count: lists, since their shapes differ."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tracerec.lanes import LeafLanes, columns_of, is_batched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from tracerec.model import Record, Site
    from tracerec.trace.view import StreamView

__all__ = ["ragged", "ragged_records"]


def ragged(views: Sequence[StreamView], places: Sequence[np.ndarray]) -> list[Any]:
    """Returns the first leaf of each record, trimmed; under vmap a list of lanes a record.

    Args:
        views: views with one leaf.
        places: for each view the place of its records in the list.
    """
    out: list[Any] = [None] * sum(view.records for view in views)
    for view, place in zip(views, places, strict=True):
        site = counting(view.site, raw=view.raw)
        lanes, batched = LeafLanes(site, 0), is_batched(site)
        roles = [number for number, column in enumerate(site.columns) if column.role is not None]
        for start, stop in view.blocks(site.record_nbytes):
            block = view.leaf(0, start, stop)
            columns = {number: view.column(number, start, stop) for number in roles}
            for row in range(stop - start):
                parts = lanes.split(block[row, ...], lambda number, row=row, c=columns: c[number][row : row + 1])
                out[place[start + row]] = parts if batched else parts[0]
    return out


def ragged_records(whole: Iterable[tuple[Record, Any]], sites: dict[Site, Site]) -> list[Any]:
    """Returns arrays that were put together from shards, trimmed; under vmap a list of lanes each.

    Args:
        whole: records whose columns tell what counts, and the arrays.
        sites: the site that describes the array, for each record's.
    """
    out: list[Any] = []
    for record, array in whole:
        site = sites[record.site]
        parts = LeafLanes(site, 0).split(array, columns_of(record))
        out.append(parts if is_batched(site) else parts[0])
    return out


def counting(site: Site, *, raw: bool) -> Site:
    """Returns the site without the columns that say what counts, if everything shall."""
    if not raw:
        return site
    columns = tuple(dataclasses.replace(c, role=None) if c.role in ("where", "extent") else c for c in site.columns)
    return dataclasses.replace(site, columns=columns)
