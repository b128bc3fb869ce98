"""Writes tests/fixtures/frames-v1.bin: a stream of frames as version 1 of the protocol has them.

``python -m tools.make_frames_fixture FILE``. The content never changes: tests read the file that was written when
the version was new, whatever the code has become since. A new version of the protocol gets a fixture of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from tracerec.model import FLAG_STEP, INDEX_DTYPE, NO_SHARD, Column, Leaf, Site, Transform
from tracerec.protocol import dtypes, frames
from tracerec.structure import canonical

RECORDS = 2
SHAPE = (2, 3)
MANY = 300


def main() -> None:
    """Writes the fixture to the file named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.make_frames_fixture", description="Writes frames-v1.bin.")
    parser.add_argument("file", type=Path)
    parser.parse_args().file.write_bytes(fixture())


def fixture() -> bytes:
    """Returns the stream: a definition, a frame of every dtype, one of many arrays, an empty one, the end."""
    site = every_dtype()
    every = [rows(), *(pattern(dtypes.from_name(leaf.dtype), leaf.shape) for leaf in site.leaves)]
    end = {"ended": 1, "dropped": {"a": 3}, "lost": {}, "high_water_bytes": 4096, "failure": None}
    parts = [
        frames.encode(frames.DEFINE, [text(canonical(site.to_json()))]),
        frames.encode(site.id, [*every, np.array([0.5, -0.0])]),
        frames.encode(2**64 - 1, [np.full((k % 3,), k, np.int16) for k in range(MANY)]),
        frames.encode(2, []),
        frames.encode(frames.END, [text(json.dumps(end))]),
    ]
    return b"".join(b"".join(part) for part in parts)


def every_dtype() -> Site:
    """Returns a site with a leaf of every dtype, a scalar, an empty leaf and two columns."""
    shapes = {"int8": (), "float32": (0, 4)}
    leaves = tuple(Leaf(f"['{n}']", shapes.get(n, SHAPE), n, number=k) for k, n in enumerate(dtypes.NAMES))
    columns = (Column("step", "int64", python="int"), Column("lr", "float64", python="float"))
    kwargs = canonical({"step": {"slot": 0}, "lr": {"slot": 1}, "phase": "train"})
    structure = canonical({"dict": [[name, {"slot": k}] for k, name in enumerate(dtypes.NAMES)]})
    return Site("every dtype", leaves, columns, kwargs, structure, transforms=(Transform("jvp"),))


def rows() -> np.ndarray:
    """Returns the index table as the bytes of its rows."""
    index = np.zeros(RECORDS, INDEX_DTYPE)
    for k, name in enumerate(INDEX_DTYPE.names or ()):
        index[name] = [k + 1, 100 * (k + 1)]
    index["shard"], index["flags"] = NO_SHARD, FLAG_STEP
    return index.view(np.uint8).reshape(RECORDS, INDEX_DTYPE.itemsize)


def pattern(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array of all records whose bytes count up in steps of 37."""
    nbytes = RECORDS * int(np.prod(shape)) * dtype.itemsize
    bits = (np.arange(nbytes) * 37 + 11).astype(np.uint8)
    return (bits & mask(dtype.name)).view(dtype).reshape(RECORDS, *shape)


def mask(name: str) -> int:
    """Returns the bits of a byte that a dtype uses."""
    return {"bool": 1, "int2": 3, "uint2": 3, "int4": 15, "uint4": 15, "float4_e2m1fn": 15}.get(name, 255)


def text(value: str) -> np.ndarray:
    """Returns ASCII text as an array of bytes."""
    return np.frombuffer(value.encode("ascii"), np.uint8)


if __name__ == "__main__":
    main()
