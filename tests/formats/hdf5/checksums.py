"""Checksums of sealed files, made by hand: for tests that change a file and then want to get past its checksums."""

from __future__ import annotations

import itertools
import json

import crc32c
import h5py
import numpy as np

__all__ = ["set_chunk_checksum", "set_sums", "stored_chunks"]


def set_sums(path):
    """Makes the root's attribute right for what the file now holds beside its streams."""
    with h5py.File(path, "r+") as file:
        texts = {name: file[name][:].tobytes() for name in ("checksums", "index", "summaries") if name in file}
        texts["run"] = file.attrs.get("run", b"")
        sums = {name: crc32c.crc32c(text) for name, text in texts.items()}
        file.attrs["crc32c"] = np.bytes_(json.dumps(sums))


def set_chunk_checksum(path, number, data):
    """Makes one item of /checksums that of some bytes."""
    with h5py.File(path, "r+") as file:
        file["checksums"][number] = crc32c.crc32c(data)
    set_sums(path)


def stored_chunks(dataset):
    """Yields the corner and the stored bytes of each chunk of an h5py dataset, in row-major order."""
    if dataset.chunks is None:
        return
    ranges = (range(0, n, c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    for corner in itertools.product(*ranges):
        yield corner, dataset.id.read_direct_chunk(corner)[1]
