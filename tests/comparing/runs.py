"""Runs made by hand, for the tests of this folder."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import tracerec
from tests.memory_source import MemorySource, make_stream
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Column, Leaf, Site
from tracerec.trace import open_trace

STEP = Column("step", "int64", python="int")
LAYER = Column("layer", "int32")


def site(name, shape=(), dtype="float32", columns=(STEP,), **fields):
    """A site with one leaf; kwargs are those of its columns and ``static``."""
    static = fields.pop("static", "")
    slots = ",".join(f'"{c.name}":{{"slot":{n}}}' for n, c in enumerate(columns) if c.role is None)
    kwargs = "{" + ",".join(filter(None, [slots, static])) + "}"
    leaves = fields.pop("leaves", (Leaf("", shape, dtype),))
    return Site(name, leaves, tuple(columns), kwargs=kwargs, **fields)


def compare(*args: Any, **options: Any) -> Any:
    """Returns `tracerec.compare`, of which a test knows that there is a first divergence."""
    return tracerec.compare(*args, **options)


class Written:
    """Writes sealed recordings into a folder, and opens them."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0
        self.opened = []

    def __call__(self, *streams, **info):
        """Returns the path of a recording of these streams."""
        self.count += 1
        path = self.folder / f"run{self.count}.h5"
        source = MemorySource(list(streams))
        if info:
            source.info = dataclasses.replace(source.info, **info)
        seal(source, path)
        return path

    def trace(self, *streams, **info):
        """Returns an open trace of these streams."""
        self.opened.append(open_trace(self(*streams, **info)))
        return self.opened[-1]


def chain(values, names=("first", "second", "third"), *, first=0):
    """Streams of taps that run one after the other in each step; ``values`` is ``(taps, steps, *shape)``."""
    taps, steps = values.shape[:2]
    out = []
    for number, name in enumerate(names):
        arrival = first + np.arange(steps) * taps + number
        out.append(
            make_stream(
                site(name, values.shape[2:], values.dtype.name),
                [values[number]],
                numbers=[np.arange(steps)],
                arrival=arrival,
                call=np.arange(steps) + 1,
                position=number,
            )
        )
    return out
