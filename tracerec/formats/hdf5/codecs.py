"""Compression of chunks outside HDF5: what a filter pipeline would have made, made and undone by us.

Chunks are compressed in threads, since HDF5 does one thing at a time, and decompressed with every size checked
first, since HDF5's filters believe the chunk. Any HDF5 library reads the result: ``gzip`` without a plugin, the
others with the Blosc filter (32001, in hdf5plugin).
"""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5z

# numcodecs warns on import that crc32c is installed beside it, past any filter. The user can do nothing about it.
with warnings.catch_warnings(record=True):
    from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

if TYPE_CHECKING:
    from collections.abc import Callable

    from h5py import h5p

    _Filter = tuple[int, int, tuple[int, ...], bytes]
    """Number, flags, client data and name."""

__all__ = ["COMPRESSIONS", "MAX_RATIO", "Codec", "codec_of", "decompress", "filters_of"]

BLOSC = 32001
"""The Blosc filter's number in the HDF Group's registry."""

MAX_RATIO = 2000
"""No codec here shrinks a chunk more: 1 MiB of zeros is 1,020 times (gzip) to 1,190 times (zstd) smaller."""

_BLOSC_HEADER = 16
_GZIP_LEVEL = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """One way to compress chunks.

    Attributes:
        add_filters: describes the compression to HDF5: takes the dataset's creation properties, the element's
            size and the chunk's bytes.
        compress: takes the chunk, C-contiguous, and the element's size; returns the bytes to store. Must not run
            in the main thread, where Blosc uses threads of its own and its output is not the same every time.
    """

    add_filters: Callable[[h5p.PropDCID, int, int], None]
    compress: Callable[[np.ndarray, int], bytes]


def decompress(pipeline: tuple[int, ...], chunk: np.ndarray, out: np.ndarray, itemsize: int) -> None:
    """Fills ``out`` with a decompressed chunk.

    Args:
        pipeline: the dataset's filters, as `codec_of` returns them.
        chunk: the stored bytes, 1-D uint8.
        out: 1-D uint8, contiguous, as long as a whole chunk.
        itemsize: the element's size.

    Raises:
        ValueError: the chunk is damaged.
    """
    if not pipeline:
        if chunk.size != out.size:
            message = f"{chunk.size} bytes where {out.size} should be"
            raise ValueError(message)
        out[:] = chunk
    elif pipeline == (BLOSC,):
        _check_blosc(chunk, out.size)
        try:
            blosc.decompress(chunk, out)
        except RuntimeError as error:
            message = f"Blosc cannot decompress it: {error}"
            raise ValueError(message) from None
    else:
        raw = np.frombuffer(_inflate(chunk, out.size), np.uint8)
        shuffled = h5z.FILTER_SHUFFLE in pipeline
        out[:] = raw.reshape(itemsize, -1).T.reshape(-1) if shuffled else raw


def codec_of(
    properties: h5p.PropDCID, itemsize: int
) -> tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]]:
    """Returns the filters of a dataset by their numbers, in order, and as `filters_of` does.

    Raises:
        ValueError: the filters are none that tracerec writes.
    """
    filters = _filters(properties)
    pipeline = tuple(code for code, *_ in filters)
    if pipeline not in {(), (BLOSC,), (h5z.FILTER_DEFLATE,), (h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE)}:
        message = f"unknown filters {pipeline}"
        raise ValueError(message)
    for code, _, values, _ in filters:
        if code == h5z.FILTER_SHUFFLE and tuple(values) != (itemsize,):
            message = f"shuffle filter for elements of {values} bytes, not {itemsize}"
            raise ValueError(message)
    return pipeline, _compared(filters)


def filters_of(properties: h5p.PropDCID) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns the filters of a dataset: the number and the client data of each. Equal ones make chunks alike."""
    return _compared(_filters(properties))


def _filters(properties: h5p.PropDCID) -> list[_Filter]:
    return [properties.get_filter(number) for number in range(properties.get_nfilters())]


def _compared(filters: list[_Filter]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    # HDF5 adds the element's size to the shuffle filter when it makes the dataset.
    return tuple(
        (int(code), () if code == h5z.FILTER_SHUFFLE else tuple(map(int, values))) for code, _, values, _ in filters
    )


def _check_blosc(chunk: np.ndarray, nbytes: int) -> None:
    """Checks the sizes in a Blosc 1 header: little-endian uint32 at 4 (decompressed), 12 (compressed)."""
    if chunk.size < _BLOSC_HEADER:
        message = f"{chunk.size} bytes are no Blosc chunk"
        raise ValueError(message)
    whole, compressed = int(chunk[4:8].view("<u4")[0]), int(chunk[12:16].view("<u4")[0])
    if (whole, compressed) != (nbytes, chunk.size):
        message = f"Blosc chunk of {compressed} bytes for {whole}, stored as {chunk.size} for {nbytes}"
        raise ValueError(message)


def _inflate(chunk: np.ndarray, nbytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than expected, so that a chunk which holds more shows it.
        raw = inflater.decompress(chunk.data, nbytes + 1)
    except zlib.error as error:
        message = f"gzip cannot decompress it: {error}"
        raise ValueError(message) from None
    if len(raw) != nbytes or not inflater.eof:
        message = f"gzip chunk of {len(raw)} bytes where {nbytes} should be"
        raise ValueError(message)
    return raw


def _blosc(name: bytes, code: int, level: int, shuffle: int) -> Codec:
    def add_filters(properties: h5p.PropDCID, itemsize: int, nbytes: int) -> None:
        # The filter's client data: its revision, Blosc's format, element, chunk, then how it was compressed.
        values = (2, 2, itemsize, nbytes, level, shuffle, code)
        properties.set_filter(BLOSC, h5z.FLAG_OPTIONAL, values)

    def compress(chunk: np.ndarray, itemsize: int) -> bytes:
        return blosc.compress(chunk.reshape(-1).view(np.uint8), name, level, shuffle, typesize=itemsize)

    return Codec(add_filters, compress)


def _gzip() -> Codec:
    def add_filters(properties: h5p.PropDCID, itemsize: int, nbytes: int) -> None:
        del nbytes
        if itemsize > 1:
            properties.set_shuffle()
        properties.set_deflate(_GZIP_LEVEL)

    def compress(chunk: np.ndarray, itemsize: int) -> bytes:
        raw = chunk.reshape(-1).view(np.uint8)
        shuffled = np.ascontiguousarray(raw.reshape(-1, itemsize).T)
        return zlib.compress(shuffled.data, _GZIP_LEVEL)

    return Codec(add_filters, compress)


COMPRESSIONS: dict[str | None, Codec | None] = {
    "lz4": _blosc(b"lz4", 1, 5, blosc.BITSHUFFLE),
    "zstd": _blosc(b"zstd", 5, 1, blosc.SHUFFLE),
    "gzip": _gzip(),
    None: None,
}
"""The compressions by name: fast, small, readable everywhere, none."""
