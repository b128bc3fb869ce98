"""Records of several devices that belong together: the shards of one firing, joined or compared."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import SelectionError, TraceError
from tracerec.model import FLAG_STEP, NO_SHARD
from tracerec.protocol import dtypes
from tracerec.trace.records import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracerec.model import Leaf, Record, Site
    from tracerec.trace.view import StreamView

__all__ = ["Firings", "assembled", "firings", "replicated", "whole_shape", "whole_site"]

_BLOCK = 4 << 20
"""The most bytes read at once of one stream."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Firings:
    """All records of some views, sorted by firing.

    Attributes:
        stream: the number of each record's view, ``(n,)``.
        number: its row in that view, ``(n,)``.
        place: its place in program order, ``(n,)``.
        starts: where each firing's records begin, and the end, ``(firings + 1,)``.
        shard: its position in the mesh, ``(n,)``.
    """

    stream: np.ndarray
    number: np.ndarray
    place: np.ndarray
    starts: np.ndarray
    shard: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yields the view and the row of each record of a firing."""
        for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            yield list(zip(self.stream[start:stop].tolist(), self.number[start:stop].tolist(), strict=True))


def firings(views: Sequence[StreamView], places: Sequence[np.ndarray]) -> Firings:
    """Returns the records by firing: those of one position and iteration in one call, whatever their device.

    Calls have numbers of their own in each process, which runs the same programs as the others, but perhaps more. So of
    several processes those records belong together which have one position, iteration and step, and of which the
    process had as many calls before.

    Args:
        views: the views.
        places: for each view the place of its records in program order; firings come in the order of their first.
    """
    index = [view.index(0, view.records) for view in views]
    rows = np.concatenate(index)
    call = rows["call"].astype(np.int64)
    process = np.repeat([view.process for view in views], [len(part) for part in index])
    if len(np.unique(process)) > 1:
        call = _common_calls(rows, process)
    keys = np.stack([call, *(rows[name].astype(np.int64) for name in ("position", "iteration"))], axis=1)
    place = np.concatenate(places)
    _, firing = np.unique(keys, axis=0, return_inverse=True)
    firing = firing.reshape(-1)
    first = np.full(len(rows), len(rows), np.int64)
    np.minimum.at(first, firing, place)
    order = np.lexsort((place, first[firing]))
    changes = np.flatnonzero(np.diff(first[firing][order])) + 1
    return Firings(
        stream=np.repeat(np.arange(len(views)), [len(part) for part in index])[order],
        number=np.concatenate([np.arange(len(part)) for part in index])[order],
        place=place[order],
        starts=np.concatenate([[0], changes, [len(rows)] * bool(len(rows))]).astype(np.int64),
        shard=rows["shard"][order],
    )


def _common_calls(rows: np.ndarray, process: np.ndarray) -> np.ndarray:
    """Returns numbers of calls that processes have in common, counted by step, for each row: ``(n,)`` of int64.

    Raises:
        SelectionError: records have no step, and the processes have different numbers of them.
    """
    stepped = (rows["flags"] & FLAG_STEP) != 0
    step = np.where(stepped, rows["step"], 0)
    kind = [stepped.astype(np.int64), step, rows["position"].astype(np.int64), rows["iteration"].astype(np.int64)]
    keys = np.stack([*kind, process, rows["call"].astype(np.int64)], axis=1)
    firings, inverse = np.unique(keys, axis=0, return_inverse=True)
    starts = np.flatnonzero(np.append(True, np.any(firings[1:, :5] != firings[:-1, :5], axis=1)))
    counts = np.diff(np.append(starts, len(firings)))
    _check_counts(firings[starts], counts)
    ordinal = np.arange(len(firings)) - np.repeat(starts, counts)
    _, common = np.unique(np.column_stack([firings[:, :2], ordinal]), axis=0, return_inverse=True)
    return common.reshape(-1)[inverse.reshape(-1)]


def _check_counts(groups: np.ndarray, counts: np.ndarray) -> None:
    """Raises SelectionError where records without a step are of different numbers in the processes."""
    plain = groups[:, 0] == 0
    for key in np.unique(groups[plain][:, 2:4], axis=0):
        same = plain & np.all(groups[:, 2:4] == key, axis=1)
        if len(np.unique(counts[same])) > 1:
            firings = ", ".join(f"process {p} has {n}" for p, n in zip(groups[same][:, 4], counts[same], strict=True))
            message = (
                f"nothing tells which records of several processes belong together: they have no step, and {firings}. "
                "Select one process, or tap with step="
            )
            raise SelectionError(message)


def assembled(views: Sequence[StreamView], rows: Firings, tap: str) -> Iterator[tuple[Record, np.ndarray]]:
    """Yields, for each firing, its first record and the whole array of its first leaf, put together from the shards.

    Args:
        views: views with one leaf, of one dtype and whole shape.
        rows: their firings.
        tap: the tap's name, for messages.

    Raises:
        SelectionError: an element of the whole is in no shard; or the records are no shards with places in a whole.
        TraceError: copies of one element differ, or a shard lies outside the whole.
    """
    readers = [Reader(view, _BLOCK) for view in views]
    for firing in rows:
        shards = [readers[s].record(views[s].index(n, n + 1)[0], n) for s, n in firing]
        yield shards[0], _joined(shards, tap)


def replicated(views: Sequence[StreamView], places: Sequence[np.ndarray], tap: str) -> np.ndarray:
    """Returns, in program order, which records have the same bits on all devices of their firing: ``(n,)`` of bool.

    Args:
        views: the views; all their leaves are compared.
        places: as for `firings`.
        tap: the tap's name, for messages.

    Raises:
        SelectionError: no record is of a mesh.
    """
    rows = firings(views, places)
    if not np.any(rows.shard != NO_SHARD) and all(_offset(view.site) is None for view in views):
        message = f"tap {tap!r} has no records of single devices (of shard_map, pmap or shards='local')"
        raise SelectionError(message)
    digests = [_digests(view) for view in views]
    same = [len({digests[s][n] for s, n in firing}) == 1 for firing in rows]
    out = np.empty(len(rows.place), bool)
    out[rows.place] = np.repeat(np.array(same, bool), np.diff(rows.starts))
    return out


def whole_shape(leaf: Leaf) -> tuple[int, ...]:
    """Returns the shape of the array that a leaf is a shard of; its own shape when it is none."""
    if leaf.global_shape is None:
        return leaf.shape
    # Key data have trailing axes that no device splits.
    return (*leaf.global_shape, *leaf.shape[len(leaf.global_shape) :])


def whole_site(site: Site) -> Site:
    """Returns the site as it would be had its leaves been recorded whole."""
    leaves = tuple(dataclasses.replace(leaf, shape=whole_shape(leaf), global_shape=None) for leaf in site.leaves)
    columns = tuple(dataclasses.replace(c, role=None) if c.role == "offset" else c for c in site.columns)
    return dataclasses.replace(site, leaves=leaves, columns=columns)


def _joined(shards: Sequence[Record], tap: str) -> np.ndarray:
    leaf = shards[0].site.leaves[0]
    whole = np.empty(whole_shape(leaf), dtypes.from_name(leaf.dtype))
    bits = dtypes.as_bits(whole)
    filled = np.zeros(whole.shape, bool)
    for shard in shards:
        start = _start(shard, tap)
        array = dtypes.as_bits(np.ascontiguousarray(shard.arrays[0]).reshape(shard.arrays[0].shape))
        stops = [min(low + n, size) for low, n, size in zip(start, array.shape, whole.shape, strict=True)]
        if any(low < 0 for low in start):
            message = f"tap {tap!r}, call {shard.call}: a shard of shape {array.shape} begins at {start}"
            raise TraceError(message)
        region = tuple(slice(low, max(low, stop)) for low, stop in zip(start, stops, strict=True))
        # XLA pads the last shard of an axis that does not divide evenly.
        array = array[tuple(slice(max(0, stop - low)) for low, stop in zip(start, stops, strict=True))]
        seen = filled[region]
        if seen.any() and _bytes(bits[region][seen]) != _bytes(array[seen]):
            message = (
                f"tap {tap!r}, call {shard.call}: the copy at offset {start} on device {shard.device} differs from "
                "that of another device; the program's replicas do not agree"
            )
            raise TraceError(message)
        bits[region] = array
        filled[region] = True
    if not filled.all():
        missing = tuple(map(int, np.unravel_index(int(np.argmin(filled)), filled.shape)))
        offsets = ", ".join(str(_start(shard, tap)) for shard in shards)
        message = (
            f"tap {tap!r}, call {shards[0].call}: no shard holds element {missing} of {whole.shape}; there are shards "
            f"at {offsets}. Select all devices; of a recording with losses, select other calls"
        )
        raise SelectionError(message)
    return whole


def _start(record: Record, tap: str) -> tuple[int, ...]:
    number = _offset(record.site)
    rank = len(record.site.leaves[0].shape)
    if number is not None:
        offset = np.asarray(record.numbers[number])
        return (*map(int, offset), *(0 for _ in range(rank - len(offset))))
    if int(record.row["shard"]) != NO_SHARD:
        message = (
            f"tap {tap!r} has records of shard_map or pmap: each is a device's own value, and nothing says how they "
            "join. assemble=True is for taps with shards='local'"
        )
        raise SelectionError(message)
    return (0,) * rank


def _offset(site: Site) -> int | None:
    return site.column("offset", site.leaves[0].path) if site.leaves else None


def _bytes(array: np.ndarray) -> bytes:
    # NaN payloads and the sign of zero count.
    return np.ascontiguousarray(array).tobytes()


def _digests(view: StreamView) -> list[bytes]:
    """Returns a digest of each record's leaves and their places: BLAKE2b, so that no two values share one."""
    out: list[bytes] = []
    offsets = [number for number, column in enumerate(view.site.columns) if column.role == "offset"]
    for start, stop in view.blocks(view.site.record_nbytes):
        parts = [view.leaf(number, start, stop) for number in range(len(view.site.leaves))]
        parts += [view.column(number, start, stop) for number in offsets]
        for row in range(stop - start):
            digest = hashlib.blake2b(digest_size=16)
            for part in parts:
                digest.update(f"{part.dtype.name}{part.shape[1:]}".encode())
                digest.update(_bytes(part[row]))
            out.append(digest.digest())
    return out
