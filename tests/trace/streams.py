"""Streams that the tests of this folder read: a small training run, made by hand."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tests.memory_source import MemorySource, MemoryStream, make_stream
from tracerec.formats.contract import RunInfo
from tracerec.journal.layout import write_manifest
from tracerec.journal.writing import JournalWriter
from tracerec.model import Column, Leaf, Site, Transform

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracerec.formats.contract import StreamSource

STEP = Column("step", "int64", python="int")
COTANGENT = (Transform("jvp"), Transform("transpose"))
BATCH = Transform("batch", size=4, dims=(0,))
RECORDS = 6

LOSS = Site(
    "loss",
    leaves=(Leaf("", (), "float32"),),
    columns=(STEP, Column("lr", "float64", python="float")),
    kwargs='{"lr":{"slot":1},"phase":"train","step":{"slot":0}}',
)
EVAL_LOSS = dataclasses.replace(LOSS, kwargs=LOSS.kwargs.replace("train", "eval"))
LAYER = Site(
    "layer",
    leaves=(Leaf("['b']", (3,), "bfloat16", 0), Leaf("['w']", (2, 3), "float32", 1)),
    columns=(STEP,),
    kwargs='{"step":{"slot":0}}',
    structure='{"dict":[["b",{"slot":0}],["w",{"slot":1}]]}',
)
# Only one of the two leaves has a cotangent.
LAYER_COTANGENT = dataclasses.replace(LAYER, leaves=LAYER.leaves[1:], transforms=COTANGENT)
RAGGED = Site("ragged", leaves=(Leaf("", (2,), "int32"),))
RAGGED_WIDER = Site("ragged", leaves=(Leaf("", (5,), "int32"),))


def training() -> MemorySource:
    """Returns a run of six steps, in each of which two layers, a cotangent and a loss are recorded."""
    rng = np.random.default_rng(7)
    calls = np.arange(RECORDS) + 1
    bits = rng.integers(0, 1 << 16, (RECORDS, 3), dtype=np.uint16)
    bits[2, 1] = 0x7FC5  # a NaN with a payload
    w, cotangent = rng.normal(size=(2, RECORDS, 2, 3)).astype(np.float32)
    losses = np.linspace(3, 1, RECORDS, dtype=np.float32)
    steps = np.arange(RECORDS) * 10
    rates = np.linspace(0.1, 0.2, RECORDS)

    def stream(site: Site, arrays: Sequence[np.ndarray], place: int, **kwargs: Any) -> MemoryStream:
        rows = np.arange(len(arrays[0])) * 10 + place
        return make_stream(site, arrays, arrival=rows, position=place, call=calls[: len(arrays[0])], **kwargs)

    return MemorySource(
        [
            stream(LAYER, [bits.view(ml_dtypes.bfloat16), w], 0, numbers=[steps]),
            stream(LAYER_COTANGENT, [cotangent], 1, numbers=[steps], device=1),
            stream(LOSS, [losses], 2, numbers=[steps, rates]),
            stream(EVAL_LOSS, [losses[:2] + 1], 3, numbers=[steps[:2], rates[:2]]),
            stream(RAGGED, [rng.integers(0, 9, (2, 2))], 4),
            stream(RAGGED_WIDER, [rng.integers(0, 9, (3, 5))], 5),
        ]
    )


def journal(path: Path, *, end: dict[str, Any] | None = None) -> Path:
    """Writes the journal of two losses, closed with an end frame if that is given. Returns its folder."""
    folder = path.with_name(path.name + ".live")
    folder.mkdir()
    write_manifest(folder, RunInfo(run_id="1" * 32, started=5, pid=os.getpid()))
    stream = make_stream(LOSS, [[0.5, 0.25]], numbers=[[0, 1], [0.1, 0.2]])
    writer = JournalWriter(folder)
    writer.append(LOSS, [stream.rows.view(np.uint8).reshape(2, 64), stream.arrays[0], stream.column(1, 0, 2)])
    writer.flush()
    if end is not None:
        writer.end(end)
    writer.close()
    return folder


def leaf(source: MemorySource, stream: int, number: int = 0) -> np.ndarray:
    """Returns all of a leaf of a stream."""
    return source.streams[stream].leaf(number, 0, source.streams[stream].records)


class CountingStream:
    """A stream that counts what is read of it.

    Attributes:
        index_rows: rows of the index table read.
        leaf_rows: rows of leaves read.
        reads: reads of leaves.
    """

    def __init__(self, stream: StreamSource) -> None:
        self.stream = stream
        self.site, self.records, self.nbytes = stream.site, stream.records, stream.nbytes
        self.index_rows = self.leaf_rows = self.reads = 0

    def summaries(self):
        return self.stream.summaries()

    def leaf_nbytes(self, number: int) -> int:
        return self.stream.leaf_nbytes(number)

    def index(self, start: int, stop: int) -> np.ndarray:
        self.index_rows += stop - start
        return self.stream.index(start, stop)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        self.leaf_rows += stop - start
        self.reads += 1
        return self.stream.leaf(number, start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        return self.stream.column(number, start, stop)
