"""What the frames of a segment hold, checked: its head, definitions of sites, records, and the end of an attempt.

Everything wrong is a ValueError, to which the caller adds the file and the place.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import lanes
from tracerec.formats.headers import JSON_ERRORS
from tracerec.model import INDEX_DTYPE, Site
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracerec.model import Column, Leaf

__all__ = [
    "ROW_BYTES",
    "SegmentHead",
    "count_rows",
    "parse_definition",
    "parse_end",
    "row_sizes",
    "specs_fit",
    "stored_columns",
]

ROW_BYTES = INDEX_DTYPE.itemsize

_COUNTS = ("dropped", "lost", "over_budget", "retired")
"""Members of an end frame: numbers of records by tap name."""

_Specs = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentHead:
    """What a segment says of itself in its first frame, since version 1.2.

    Attributes:
        segment: its number.
        run_id: the run that it belongs to.
        attempt: which process's turn at the recording wrote it, from 0.
        before: the length of the segment before it; None where there is none, or it is not said.
    """

    segment: int
    run_id: str
    attempt: int
    before: int | None = None


def parse_definition(text: bytes) -> SegmentHead | Site:
    """Returns what a DEFINE frame defines; raises ValueError for what is neither."""
    try:
        data: Any = json.loads(text)
        if "segment" in data and "leaves" not in data:
            return _head(data)
        site = Site.from_json(data)
        lanes.check(site)
        row_sizes(site)
        # computed here, where it may fail
        _ = site.id
    except JSON_ERRORS as error:
        message = f"not the JSON that defines a site: {error!r:.200}"
        raise ValueError(message) from error
    return site


def parse_end(text: bytes) -> dict[str, Any]:
    """Returns the summary in an END frame; raises ValueError when it is none."""
    try:
        end: Any = json.loads(text)
    except JSON_ERRORS as error:
        message = f"not JSON: {error!r}"
        raise ValueError(message) from error
    if not isinstance(end, dict):
        message = "its JSON is no object"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not the program
    right = {
        **{name: _is_counts(end.get(name, {})) for name in _COUNTS},
        "ended": end.get("ended") is None or _is_count(end["ended"]),
        "high_water_bytes": _is_count(end.get("high_water_bytes", 0)),
        "failure": isinstance(end.get("failure"), str | None),
    }
    for name, fits in right.items():
        if not fits:
            message = f"{name} is {end[name]!r:.80}"
            raise ValueError(message)
    return end


def count_rows(specs: _Specs) -> int | None:
    """Returns how many records a frame holds by its index table, its first array; None where that is none."""
    if not specs:
        return None
    dtype, shape = specs[0]
    return shape[0] if dtype == np.uint8 and len(shape) == 2 and shape[1] == ROW_BYTES else None  # noqa: PLR2004


def specs_fit(site: Site, specs: _Specs) -> bool:
    """Returns whether a frame's arrays are those of a site."""
    count = count_rows(specs)
    arrays = [*site.leaves, *stored_columns(site)]
    return count is not None and [*specs[1:]] == [(dtypes.from_name(a.dtype), (count, *a.shape)) for a in arrays]


def row_sizes(site: Site) -> list[int]:
    """Returns the bytes of one record in each array of the site's frames."""
    arrays: Sequence[Leaf | Column] = [*site.leaves, *stored_columns(site)]
    return [ROW_BYTES, *(math.prod(a.shape) * dtypes.from_name(a.dtype).itemsize for a in arrays)]


def stored_columns(site: Site) -> list[Column]:
    """Returns the columns that have an array of their own."""
    return [column for column in site.columns if not column.in_index]


def _head(data: Mapping[str, Any]) -> SegmentHead:
    head = SegmentHead(data["segment"], data["run_id"], data.get("attempt", 0), data.get("before"))
    counts = [head.segment, head.attempt, *([] if head.before is None else [head.before])]
    if not (all(map(_is_count, counts)) and isinstance(head.run_id, str)):
        message = f"not the head of a segment: {dict(data)!r:.200}"
        raise ValueError(message)
    return head


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))
