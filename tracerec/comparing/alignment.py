"""Which records of two runs belong together: by what the program says of them, never by their place in a file.

Records are in one *group* where tap, static kwargs, transforms and the names of integer kwargs agree. In a group they
are matched by the values of these kwargs (``step`` among them), by device or mesh coordinate, and by occurrence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.model import NO_SHARD
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.comparing.ordering import TraceIndex
    from tracerec.model import Column, Site
    from tracerec.trace.view import StreamView

__all__ = ["Group", "Series", "align", "group_of", "key_names", "static_kwargs"]

_MOST = 16
"""Numbers of one kwarg that are matched each by itself; of a larger array a digest is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """What records that can be matched have in common.

    Attributes:
        tap: the tap's name, in the second run.
        kwargs: the static kwargs, as canonical JSON.
        transforms: the names of the transforms, innermost first.
        keys: name, kind (``"i"`` or ``"f"``) and how many numbers, of each kwarg that records are matched by.
    """

    tap: str
    kwargs: str
    transforms: tuple[str, ...]
    keys: tuple[tuple[str, str, int], ...]

    @property
    def width(self) -> int:
        """How many numbers of a record are matched, besides its coordinate."""
        return sum(width for _, _, width in self.keys)


def group_of(site: Site, tap: str, wanted: frozenset[str] | None) -> Group:
    """Returns the group of a site's records.

    Args:
        site: the site.
        tap: the tap's name in the second run.
        wanted: names of the kwargs that records are matched by; None: all static and integer ones, and the step.
    """
    keys: list[tuple[str, str, int]] = []
    for column in sorted(_key_columns(site, wanted), key=lambda c: c.name):
        size = int(np.prod(column.shape, dtype=np.int64))
        kind = "f" if _is_float(column) else "i"
        keys.append((column.name, kind, size if size <= _MOST else 1))
    static = {k: v for k, v in static_kwargs(site).items() if wanted is None or k in wanted}
    text = json.dumps(static, sort_keys=True, separators=(",", ":"))
    return Group(tap, text, site.transform_names, tuple(keys))


def static_kwargs(site: Site) -> dict[str, Any]:
    """Returns the kwargs of a site that are the same for all its records, as structures; numbers are left out."""
    nodes: dict[str, Any] = json.loads(site.kwargs)
    return {name: _named(node, site.columns) for name, node in nodes.items() if set(_keys(node)) != {"slot"}}


def key_names(site: Site) -> list[str]:
    """Returns the names that ``key=`` can have for a site."""
    return [*json.loads(site.kwargs), *(column.name for column in site.columns if column.role is None)]


class Series:
    """The records of one group in one trace.

    Args:
        index: the trace's index rows.
        views: the numbers of the views.
        group: the group.

    Attributes:
        view: the number of each record's view, ``(n,)``.
        number: its row there, ``(n,)``.
        rows: its index row, ``(n,)``.
        keys: what it is matched by, ``(n, width)`` of int64.
    """

    def __init__(self, index: TraceIndex, views: Sequence[int], group: Group) -> None:
        self.index = index
        parts = [index.rows(number) for number in views]
        lengths = [len(part) for part in parts]
        self.view = np.repeat(np.array(views, np.int32), lengths)
        self.number = np.concatenate([np.arange(n) for n in lengths])
        self.rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.keys = np.concatenate(
            [_keys_of(index.views[v], rows, group) for v, rows in zip(views, parts, strict=True)]
        )

    def __len__(self) -> int:
        return len(self.number)

    @property
    def place(self) -> np.ndarray:
        """The place of each record in execution order."""
        if len(self) and (self.view == self.view[0]).all():
            return self.index.places(int(self.view[0]))[self.number]
        views = np.unique(self.view)
        out = np.empty(len(self), np.int64)
        for view in views.tolist():
            mine = self.view == view
            out[mine] = self.index.places(view)[self.number[mine]]
        return out

    def take(self, chosen: np.ndarray) -> Series:
        """Returns some of the records."""
        out = object.__new__(Series)
        out.index, out.view, out.number = self.index, self.view[chosen], self.number[chosen]
        out.rows, out.keys = self.rows[chosen], self.keys[chosen]
        return out


def align(a: Series, b: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns which records belong together: their numbers in both series, ``(pairs,)`` each, and occurrences.

    They come in the order of the first series' rows. Records that none of the other series belongs to are left out.
    """
    one, other = _coordinates(a, b)
    keys_a, keys_b = np.column_stack([a.keys, one]), np.column_stack([b.keys, other])
    if _plain(a, b, keys_a, keys_b):
        numbers = np.arange(len(a))
        return numbers, numbers, np.zeros(len(a), np.int64)
    codes = _codes(np.concatenate([keys_a, keys_b]))
    codes_a, codes_b = codes[: len(a)], codes[len(a) :]
    times_a, times_b = _occurrences(codes_a, a.rows), _occurrences(codes_b, b.rows)
    most = int(max(times_a.max(initial=0), times_b.max(initial=0))) + 1
    _, found_a, found_b = np.intersect1d(
        codes_a * most + times_a, codes_b * most + times_b, assume_unique=True, return_indices=True
    )
    order = np.argsort(found_a, kind="stable")
    found_a, found_b = found_a[order], found_b[order]
    return found_a, found_b, times_a[found_a]


def _key_columns(site: Site, wanted: frozenset[str] | None) -> list[Column]:
    columns = [column for column in site.columns if column.role is None]
    if wanted is not None:
        return [column for column in columns if column.name in wanted]
    # Floats are compared; a step is a name, whatever its type.
    return [column for column in columns if column.name == "step" or not _is_float(column)]


def _is_float(column: Column) -> bool:
    dtype = dtypes.from_name(column.dtype)
    return dtype.kind in "fcV" or dtype.name.startswith(("bfloat", "float"))


def _keys(node: Any) -> list[str]:
    return list(node) if isinstance(node, dict) else []


def _named(node: Any, columns: Sequence[Column]) -> Any:
    """Returns a structure with the names of columns for their numbers, which depend on other kwargs."""
    if isinstance(node, list):
        return [_named(child, columns) for child in node]
    if isinstance(node, dict):
        if _keys(node) == ["slot"]:
            return {"slot": columns[int(node["slot"])].name}
        return {key: _named(child, columns) for key, child in node.items()}
    return node


def _keys_of(view: StreamView, rows: np.ndarray, group: Group) -> np.ndarray:
    out = np.empty((len(rows), group.width), np.int64)
    at = 0
    by_name = {column.name: number for number, column in enumerate(view.site.columns) if column.role is None}
    for name, kind, width in group.keys:
        number = by_name[name]
        column = view.site.columns[number]
        values = rows["step"] if column.in_index else view.column(number, 0, view.records)
        out[:, at : at + width] = _as_keys(values, kind, width)
        at += width
    return out


def _as_keys(values: np.ndarray, kind: str, width: int) -> np.ndarray:
    flat = np.ascontiguousarray(values).reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))
    if kind == "f":
        wide = flat.astype(np.complex128 if flat.dtype.kind == "c" else np.float64)
        # Both zeros are one step. Complex numbers do not fit, and are digested.
        flat = (wide + 0.0).view(np.int64)
    elif flat.dtype != np.uint64:
        flat = flat.astype(np.int64)
    else:
        # Modulo 2**64: numbers of 2**63 and more stand where no other key of this kwarg does in practice.
        flat = flat.view(np.int64)
    if flat.shape[1] == width:
        return flat
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in flat]
    return np.frombuffer(b"".join(digests), np.int64).reshape(len(flat), 1)


def _coordinates(a: Series, b: Series) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each record was made: its place in the mesh, or its device.

    Devices count by id where both runs used the same ones, else by rank: a run on device 1 is compared with one on
    device 0.
    """
    ids_a, ids_b = _devices(a.rows), _devices(b.rows)
    same_number = len(ids_a) == len(ids_b)
    return tuple(  # type: ignore[return-value]  # two of them
        np.where(
            series.rows["shard"] != NO_SHARD,
            series.rows["shard"].astype(np.int64),
            np.searchsorted(ids, series.rows["device"]) if same_number else series.rows["device"],
        )
        for series, ids in ((a, ids_a), (b, ids_b))
    )


def _devices(rows: np.ndarray) -> np.ndarray:
    devices = rows["device"][rows["shard"] == NO_SHARD]
    # Most groups are of one device.
    return devices[:1] if len(devices) and (devices == devices[0]).all() else np.unique(devices)


def _plain(a: Series, b: Series, keys_a: np.ndarray, keys_b: np.ndarray) -> bool:
    """Returns whether both have the same keys in the same order, each once, which is what two like runs have."""
    if len(a) != len(b) or not np.array_equal(keys_a, keys_b):
        return False
    if len(a) <= 1:
        return True
    changes = np.diff(keys_a, axis=0)
    rising = [axis for axis in range(changes.shape[1]) if (changes[:, axis] > 0).all()]
    return bool(rising)


def _codes(keys: np.ndarray) -> np.ndarray:
    """Returns one number for each distinct row of keys."""
    order = np.lexsort(keys.T[::-1])
    changes = (np.diff(keys[order], axis=0) != 0).any(axis=1)
    codes = np.empty(len(keys), np.int64)
    codes[order] = np.concatenate([np.zeros(min(len(keys), 1), np.int64), np.cumsum(changes)])
    return codes


def _occurrences(codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns how often each record's key had come before, in order of arrival."""
    order = np.lexsort((rows["arrival"], codes))
    changes = np.flatnonzero(np.diff(codes[order])) + 1
    starts = np.concatenate([[0], changes]).astype(np.int64)[: len(codes)]
    lengths = np.diff(np.append(starts, len(codes)))
    out = np.empty(len(codes), np.int64)
    out[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return out
