"""The lists of a damaged HDF5 file, each as far as it can be read: groups of streams, lines of the index, checksums."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import crc32c
from h5py import h5d, h5g

from tracerec.errors import TraceFormatError
from tracerec.formats import headers
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.codecs import BLOSC
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Dataset, open_group
from tracerec.formats.hdf5.files import attribute
from tracerec.formats.headers import JSON_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np

    from tracerec.formats.hdf5.datasets import Grid, Place

__all__ = [
    "check_sum",
    "checksums_of",
    "compression_of",
    "groups_of",
    "lines_of",
    "rows_of",
    "sums_of",
    "tap_of",
]

_BLOSC_CODES = {1: "lz4", 5: "zstd"}
_COMPRESSOR = 6
"""Which of a Blosc filter's numbers says how it compresses."""


def groups_of(root: h5g.GroupID, place: Place) -> Iterator[tuple[str, h5g.GroupID]]:
    """Yields the groups of streams by name, those that can be opened.

    Raises:
        TraceFormatError: they cannot be listed.
    """
    inside = place.child(layout.STREAMS)
    streams = open_group(root, layout.STREAMS, inside)
    try:
        names = sorted(name.decode("ascii", "replace") for name in streams)
    except HDF5_ERRORS as error:
        raise inside.error(error) from error
    for name in names:
        with contextlib.suppress(TraceFormatError):
            if name.isascii() and name.isdigit():
                yield name, open_group(streams, name, inside.child(name))


def lines_of(root: h5g.GroupID, place: Place) -> list[layout.StreamLine]:
    """Returns the lines of ``/index`` that can be read; whether they are right is not looked at."""
    found: list[layout.StreamLine] = []
    try:
        dataset = Dataset(root, layout.text_table(layout.INDEX), None, place.child(layout.INDEX))
        text = dataset.read(0, dataset.records).tobytes()
    except TraceFormatError:
        return found
    for line in text.splitlines():
        with contextlib.suppress(*JSON_ERRORS):
            found += layout.stream_lines([line], {})
    return found


def tap_of(line: layout.StreamLine) -> str:
    """Returns the name of a line's tap; ``"?"`` where it does not say."""
    if line.tap is not None:
        return line.tap
    try:
        return str(headers.parse_json(line.site)["name"])
    except JSON_ERRORS:
        return "?"


def checksums_of(root: h5g.GroupID, place: Place) -> tuple[np.ndarray | None, bool]:
    """Returns the checksums of chunks, None where there are none, and whether they are what was written."""
    try:
        dataset = Dataset(root, layout.checksum_table(), None, place.child(layout.CHECKSUMS))
        values = dataset.read(0, dataset.records)
    except TraceFormatError:
        return None, False
    return values, sums_of(root, place).get(layout.CHECKSUMS) == crc32c.crc32c(values.tobytes())


def sums_of(root: h5g.GroupID, place: Place) -> dict[str, int]:
    """Returns the checksums of what a file holds beside its streams, by name; empty where it does not say."""
    try:
        sums = headers.parse_json(attribute(root, layout.CHECKSUMS_ATTRIBUTE, place) or "{}")
        return {name: value for name, value in sums.items() if type(value) is int}
    except (TraceFormatError, *JSON_ERRORS):
        return {}


def check_sum(sums: Mapping[str, int], name: str, data: bytes) -> None:
    """Raises ValueError where data have another checksum than the file says."""
    found = crc32c.crc32c(data)
    if sums.get(name, found) != found:
        message = f"{name}: its CRC-32C is {found:08x}, not {sums[name]:08x}: it is not what was written"
        raise ValueError(message)


def compression_of(grids: Iterable[Grid | None]) -> str | None:
    """Returns the compression of the first dataset that has one; None where none has."""
    for grid in grids:
        for code, values in () if grid is None else grid.filters:
            if code == BLOSC:
                return _BLOSC_CODES.get(values[_COMPRESSOR] if len(values) > _COMPRESSOR else 1, "lz4")
            return "gzip"
    return None


def rows_of(group: h5g.GroupID) -> int:
    """Returns how many rows a stream's group has, by the first of its datasets that can be opened; 0 if none can."""
    with contextlib.suppress(*HDF5_ERRORS):
        for name in sorted(group):
            with contextlib.suppress(*HDF5_ERRORS):
                return int(h5d.open(group, name).shape[0])
    return 0
