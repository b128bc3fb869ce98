"""Records that a tail gives out: of a site, with their index rows and arrays, as copies."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.model import INDEX_DTYPE, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.formats.contract import StreamSource

__all__ = ["Gathered", "TailBatch", "batch_of_stream"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TailBatch:
    """Records of one site, in recorded order.

    Attributes:
        site: the site.
        rows: their rows of the index table, ``(n,)`` of `tracerec.model.INDEX_DTYPE`.
        leaves: one array ``(n, *shape)`` a leaf.
        columns: one array ``(n, *shape)`` a column.
    """

    site: Site
    rows: np.ndarray
    leaves: tuple[np.ndarray, ...]
    columns: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.rows)


class Gathered:
    """What was found and not given out yet, frames of a site joined."""

    def __init__(self) -> None:
        self._sites: dict[int, Site] = {}
        self._arrays: dict[int, list[Sequence[np.ndarray]]] = {}
        # the arrival number of the last record of each site that was given out or passed over
        self._last: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._sites)

    def add(self, site: Site, arrays: Sequence[np.ndarray]) -> None:
        """Adds records: the arrays of a frame, or of as many tables of another file; they are copied at the end."""
        self._sites[site.id] = site
        self._arrays.setdefault(site.id, []).append(arrays)

    def pass_over(self, site: Site, rows: np.ndarray) -> int:
        """Remembers records as seen, given their index table, and returns the arrival number of the last."""
        last = self._last[site.id] = _last_arrival(rows)
        return last

    def last_arrival(self, site: Site) -> int | None:
        """Returns the arrival number of the last record of a site that was ever seen; None when there is none."""
        waiting = self._arrays.get(site.id)
        return _last_arrival(waiting[-1][0]) if waiting else self._last.get(site.id)

    def batches(self) -> list[TailBatch]:
        """Returns the batches, and forgets them."""
        done = [_batch(site, self._arrays.pop(key)) for key, site in self._sites.items()]
        self._sites.clear()
        for batch in done:
            self.pass_over(batch.site, batch.rows)
        return done


def batch_of_stream(stream: StreamSource, start: int, stop: int) -> list[np.ndarray]:
    """Returns records of a stream as the arrays of a frame."""
    site = stream.site
    return [
        np.ascontiguousarray(stream.index(start, stop)).view(np.uint8).reshape(stop - start, -1),
        *(stream.leaf(number, start, stop) for number in range(len(site.leaves))),
        *(stream.column(number, start, stop) for number, column in enumerate(site.columns) if not column.in_index),
    ]


def _batch(site: Site, parts: list[Sequence[np.ndarray]]) -> TailBatch:
    # copied even if there is one part alone
    rows, *arrays = (np.concatenate(tables) for tables in zip(*parts, strict=True))
    index = rows.view(INDEX_DTYPE).reshape(-1)
    leaves = tuple(arrays[: len(site.leaves)])
    stored = iter(arrays[len(site.leaves) :])
    columns = tuple(_steps(index, column.dtype) if column.in_index else next(stored) for column in site.columns)
    return TailBatch(site, index, leaves, columns)


def _last_arrival(rows: np.ndarray) -> int:
    return int(rows[-1:].view(INDEX_DTYPE)["arrival"].reshape(-1)[0])


def _steps(index: np.ndarray, dtype: Any) -> np.ndarray:
    return index["step"].astype(dtype)
