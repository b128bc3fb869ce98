"""Feeds a recording from numpy, without a computation: for trials and benchmarks of what comes after the callback."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracerec import outfeed
from tracerec.model import NO_SHARD, Column, Leaf, Site
from tracerec.outfeed.programs import EAGER
from tracerec.tapping.emitters import Emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Feed", "expected"]

_PRIME = 7919


def expected(stream: int, rows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns the values of a stream's records: ``(len(rows), *shape)`` of uint32, that tell stream, row and place."""
    size = int(np.prod(shape, dtype=np.int64))
    first = np.uint32(stream * 1_000_003) + rows.astype(np.uint32) * np.uint32(_PRIME)
    return (first[:, None] + np.arange(size, dtype=np.uint32)).reshape(len(rows), *shape)


@dataclasses.dataclass(slots=True)
class Feed:
    """One stream that is fed.

    Attributes:
        number: its number; the tap's name is ``"stream/<number>"``.
        shape: of a record.
        sent: how many records were put.
        dtype: of four bytes an element.
    """

    number: int
    shape: tuple[int, ...]
    sent: int = 0
    dtype: str = "uint32"
    _emitter: Emitter | None = None

    @property
    def name(self) -> str:
        """The tap's name."""
        return f"stream/{self.number}"

    def put(self, array: np.ndarray | None = None) -> None:
        """Puts the next record, whose step is its number; its values are `expected`'s, or those given."""
        if self._emitter is None:
            site = Site(
                self.name,
                (Leaf("", self.shape, self.dtype),),
                (Column("step", "int64", (), "int"),),
                kwargs='{"step":{"slot":0}}',
            )
            nbytes = 8 + 4 * int(np.prod(self.shape, dtype=np.int64))
            self._emitter = Emitter(
                site, EAGER, 0, once=True, is_mark=False, function=None, devices=(), words=(), nbytes=nbytes
            )
        if array is None:
            array = expected(self.number, np.array([self.sent]), self.shape)[0]
        outfeed.put(self._emitter, (array, np.int64(self.sent)), 0, NO_SHARD)  # type: ignore[arg-type]
        self.sent += 1
