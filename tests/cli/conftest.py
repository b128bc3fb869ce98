"""A recording for the commands to look at."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import COTANGENT, LAYER, STEP, training
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site, Transform

HOSTILE = "evil\x1b]0;title\x07\u202e\n/name"


def with_faults() -> MemorySource:
    """Returns a killed run with NaN, Inf, drops, a note, a long name and one full of control characters."""
    base = training()
    steps = np.arange(4)
    bad = np.zeros((4, 8), np.float32)
    bad[1, :3], bad[2, 0], bad[3, 1] = np.nan, np.inf, -np.inf
    long = Site(
        "encoder/layers/block_11/self_attention/attention_weights",
        leaves=(Leaf("", (8,), "float32"),),
        columns=(STEP,),
        kwargs='{"step":{"slot":0}}',
        transforms=COTANGENT,
    )
    hostile = dataclasses.replace(LAYER, name=HOSTILE, columns=(), kwargs='{"mode":"\\u001b[1m"}')
    streams = [
        *base.streams,
        make_stream(long, [bad], numbers=[steps], first=1000),
        make_stream(hostile, [np.zeros((1, 3)), np.zeros((1, 2, 3))], first=2000),
    ]
    info = dataclasses.replace(
        base.info,
        clean=False,
        ended=None,
        records=sum(s.records for s in streams),
        dropped={HOSTILE: 3},
        notes=("the last segment ends in a torn frame",),
        metadata={"model": "mlp\x1b[31m", "rate": 0.1},
        high_water_bytes=12345,
    )
    return MemorySource(streams, info=info)


def with_masks() -> MemorySource:
    """Returns a run with a tap of which a third counts, and one in a vmapped branch, with NaN, without a mask."""
    where = Column("where", "bool", (), role="where")
    some = Site("some", (Leaf("", (2,), "float32"),), (where,))
    batch = Transform("batch", size=4, dims=(0,), kwarg_dims=(), lanes_may_be_invalid=True)
    unknown = Site("branch", (Leaf("", (4,), "float32"),), transforms=(batch,))
    streams = [
        make_stream(some, [[[1, 2], [np.nan, 1], [np.inf, 1]] * 3], [[True, False, False] * 3]),
        make_stream(unknown, [[[1, 2, 3, 30], [1, np.nan, 2, 3]]], first=100),
    ]
    return MemorySource(streams)


@pytest.fixture
def masked(tmp_path):
    """A sealed recording with masks, and with lanes that lack one."""
    path = tmp_path / "masked.h5"
    seal(with_masks(), path)
    return path


@pytest.fixture
def recording(tmp_path):
    """A sealed recording of a run that ended well."""
    path = tmp_path / "run.h5"
    seal(training(), path)
    return path


@pytest.fixture
def faulty(tmp_path):
    """A sealed recording of the run with faults."""
    path = tmp_path / "faulty.h5"
    seal(with_faults(), path)
    return path
