"""The objects of an HDF5 file, found by what their headers look like, where nothing leads to them any more."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5r, h5s

from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.datasets import HDF5_ERRORS
from tracerec.salvaging.patched import PatchedFile, object_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Objects", "find_objects"]

_MEMBER = re.compile(rb"index|data_[0-9]+|kwarg_[0-9]+")
_CHECKSUM_BYTES = 4


@dataclasses.dataclass
class Objects:
    """What was found.

    Attributes:
        file: the file, to be kept open as long as the rest is used; its root is one of the groups.
        groups: the groups of streams, in the order of their places in the file.
        checksums: datasets that may be that of the checksums.
    """

    file: h5py.File
    groups: list[h5g.GroupID]
    checksums: list[np.ndarray]


def find_objects(path: str) -> Objects | None:
    """Returns the groups of streams in a file, and what may be its checksums; None where there is no group."""
    addresses = list(object_headers(path))
    file = next(_openable(path, addresses), None)
    if file is None:
        return None
    found = Objects(file, [], [])
    for target in _dereferenced(file, addresses):
        if isinstance(target, h5g.GroupID) and _is_stream(target):
            found.groups.append(target)
        elif isinstance(target, h5d.DatasetID) and (values := _checksums(target, file)) is not None:
            found.checksums.append(values)
    return found


def _openable(path: str, addresses: list[int]) -> Iterator[h5py.File]:
    """Yields the file with each group as its root."""
    for address in addresses:
        patched = PatchedFile(path, address)
        try:
            file = h5py.File(patched, "r", rdcc_nbytes=0)
            h5g.open(file.id, b"/")
        except HDF5_ERRORS:
            patched.close()
            continue
        yield file


def _dereferenced(file: h5py.File, addresses: list[int]) -> Iterator[object]:
    """Yields the objects at these addresses, of those where there is one.

    An object reference is an address; only HDF5 can make one, from bytes in a dataset of references.
    """
    with h5py.File("references", "w", driver="core", backing_store=False) as memory:
        stored = memory.create_dataset("all", (len(addresses),), h5py.ref_dtype, chunks=(max(1, len(addresses)),))
        if addresses:
            stored.id.write_direct_chunk((0,), np.array(addresses, "<u8").tobytes())
        for number in range(len(addresses)):
            try:
                yield h5r.dereference(stored[number], file.id)
            except HDF5_ERRORS:
                continue


def _is_stream(group: h5g.GroupID) -> bool:
    try:
        names = list(group)
        return layout.INDEX.encode() in names and all(map(_MEMBER.fullmatch, names))
    except HDF5_ERRORS:
        return False


def _checksums(dataset: h5d.DatasetID, file: h5py.File) -> np.ndarray | None:
    """Returns a dataset's elements if it can be that of the checksums: a line of uint32 without filters."""
    try:
        kind = dataset.get_type()
        plain = kind.get_size() == _CHECKSUM_BYTES and dataset.dtype == np.uint32 and dataset.rank == 1
        properties = dataset.get_create_plist()
        outside = properties.get_layout() == h5d.VIRTUAL or properties.get_external_count()
        if not plain or outside or properties.get_nfilters() or h5a.get_num_attrs(dataset):
            return None
        if dataset.shape[0] * _CHECKSUM_BYTES > file.id.get_filesize():
            return None
        values = np.empty(dataset.shape, "<u4")
        dataset.read(h5s.ALL, h5s.ALL, values)
    except HDF5_ERRORS:
        return None
    return values
