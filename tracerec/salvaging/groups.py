"""A stream of an HDF5 file, read from its group alone: for a file whose list of streams cannot be believed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
from h5py import h5d

from tracerec.errors import TraceFormatError
from tracerec.formats.hdf5 import layout
from tracerec.formats.hdf5.datasets import HDF5_ERRORS, Dataset
from tracerec.formats.hdf5.files import attribute
from tracerec.protocol import dtypes
from tracerec.salvaging.opened import BadRows
from tracerec.summaries import summarizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from h5py import h5g

    from tracerec.formats.hdf5.datasets import Place
    from tracerec.model import Site
    from tracerec.statistics import LeafSummary

__all__ = ["Checksums", "GroupStream", "bad_rows_of", "classify", "open_stream", "reason_of"]

_SAMPLES = 8
"""Chunks of a dataset by which its checksums are found."""


class Checksums:
    """The checksums of all chunks of a file, dataset after dataset; each finds its own among them.

    Args:
        values: the checksums, or None where the file has none.
        proven: whether they are what was written. Else those that are right still prove a chunk; where none of a
            dataset's is right, they are taken for damaged, and the dataset is read without.

    Attributes:
        unused: whether a dataset is read without checksums.
    """

    def __init__(self, values: np.ndarray | None, *, proven: bool) -> None:
        self._values, self._proven = values, proven
        self._next: int | None = 0
        self.unused = values is None

    def skip(self) -> None:
        """Notes that a dataset could not be opened: how many of the checksums are its own is not known."""
        self._next = None

    def use(self, dataset: Dataset, rows: int, hint: int | None) -> bool:
        """Gives a dataset its checksums; returns False where it must have some and they cannot be found.

        Args:
            dataset: the dataset.
            rows: its rows, those before the first record included.
            hint: where the list of streams says that they begin.
        """
        if self._values is None or dataset.grid is None:
            return True
        samples = list(_samples(dataset, rows))
        places = [hint, self._next]
        for number, found in samples:
            places += [int(place) - number for place in np.flatnonzero(self._values == found)[:_SAMPLES]]
        right = next((p for p in places if p is not None and self._fits(p, dataset.chunks, samples)), None)
        if right is None and self._proven and self._next is not None:
            # Its own, although no chunk that was looked at is right.
            right = self._next
        if right is None or not 0 <= right <= len(self._values) - dataset.chunks:
            self._next = None if self._next is None else self._next + dataset.chunks
            self.unused = self.unused or not self._proven
            return not self._proven
        dataset.use_checksums(self._values[right : right + dataset.chunks])
        self._next = right + dataset.chunks
        return True

    def _fits(self, place: int, chunks: int, samples: list[tuple[int, int]]) -> bool:
        values = self._values
        if values is None or not 0 <= place <= len(values) - chunks:
            return False
        return any(int(values[place + number]) == found for number, found in samples)


@dataclasses.dataclass
class GroupStream:
    """A stream of which all datasets could be opened; a `tracerec.formats.contract.StreamSource`.

    Attributes:
        site: the site.
        records: how many records there are.
        datasets: by name.
        unplaced: names of the datasets whose checksums could not be found.
        cut_off: for each dataset the rows whose chunks lie behind the end of the file.
    """

    site: Site
    records: int
    datasets: dict[str, Dataset]
    unplaced: frozenset[str]
    cut_off: dict[str, list[tuple[int, int]]]

    @property
    def nbytes(self) -> int:
        """Bytes of its chunks in the file."""
        return sum(dataset.nbytes for dataset in self.datasets.values())

    def leaf_nbytes(self, number: int) -> int:
        """Returns the bytes of a leaf's chunks in the file."""
        return self.datasets[f"data_{number}"].nbytes

    def summaries(self) -> Sequence[LeafSummary]:
        """Returns one summary a leaf, made from the records."""
        found = summarizers(self)
        for number, leaf in enumerate(found):
            leaf.add(self.leaf(number, 0, self.records))
        return [leaf.summary() for leaf in found]

    def index(self, start: int, stop: int) -> np.ndarray:
        """Returns rows of the index table."""
        return self._read(layout.INDEX, start, stop)

    def leaf(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns a leaf."""
        return self._read(f"data_{number}", start, stop)

    def column(self, number: int, start: int, stop: int) -> np.ndarray:
        """Returns a column."""
        column = self.site.columns[number]
        if column.in_index:
            return self.index(start, stop)["step"].astype(dtypes.from_name(column.dtype))
        return self._read(f"kwarg_{number}", start, stop)

    def bad_rows(self, number: int) -> Iterator[BadRows]:
        """Reads all of one dataset; yields what cannot be read of it."""
        name = list(layout.tables(self.site))[number].name
        if name in self.unplaced:
            yield BadRows(0, self.records, "chunk-checksum", "its checksums cannot be found among those of the file")
            return
        for first, last in self.cut_off[name]:
            yield BadRows(first, last, "chunk-whole", f"chunks of {name} lie behind the end of the file")
        yield from bad_rows_of(self.datasets[name])

    def _read(self, name: str, start: int, stop: int) -> np.ndarray:
        if name in self.unplaced:
            message = f"{name}: its checksums cannot be found"
            raise TraceFormatError(message)
        if any(first < stop and start < last for first, last in self.cut_off[name]):
            message = f"{name}: chunks lie behind the end of the file"
            raise TraceFormatError(message)
        return self.datasets[name].read(start, stop)


def open_stream(
    group: h5g.GroupID, site: Site, place: Place, checksums: Checksums, line: layout.StreamLine | None
) -> GroupStream:
    """Returns the stream of a group.

    Args:
        group: the group.
        site: its site.
        place: where it is.
        checksums: of the file; called for one group after the other, in the order of the file.
        line: what the list of streams says of it, believed where it fits.

    Raises:
        TraceFormatError: a dataset cannot be opened, or they contradict each other.
    """
    tables = list(layout.tables(site))
    hints = None if line is None else line.checksums
    hints = hints if hints is not None and len(hints) == len(tables) else [None] * len(tables)
    datasets: dict[str, Dataset] = {}
    cut_off: dict[str, list[tuple[int, int]]] = {}
    unplaced: set[str] = set()
    try:
        for table, hint in zip(tables, hints, strict=True):
            lead = _lead(group, table.name, place)
            whole = Dataset(group, table, None, place.child(table.name))
            dataset = Dataset(group, table, max(0, whole.records - lead), place.child(table.name), lead)
            if not checksums.use(dataset, whole.records, hint):
                unplaced.add(table.name)
            datasets[table.name] = dataset
            cut_off[table.name] = _behind_the_end(group, table.name, dataset, place)
    except TraceFormatError:
        # How many chunks, and so checksums, the others have is not known.
        checksums.skip()
        raise
    records = datasets[layout.INDEX].records
    for name, dataset in datasets.items():
        if dataset.records != records:
            reason = f"{name} has {dataset.records} rows, the index {records}"
            raise place.error(reason)
    return GroupStream(site, records, datasets, frozenset(unplaced), cut_off)


def bad_rows_of(dataset: Dataset) -> Iterator[BadRows]:
    """Reads all of a dataset; yields what cannot be read of it."""
    for damage in dataset.damage():
        invariant = "chunk-checksum" if damage.checksum else "chunk-whole"
        corner = ", ".join(map(str, damage.chunk))
        yield BadRows(damage.start, damage.stop, invariant, f"chunk at ({corner}) of {damage.dataset}: {damage.reason}")


def classify(error: TraceFormatError) -> str:
    """Returns the invariant that an error in opening something in an HDF5 file breaks."""
    text = str(error)
    for part, invariant in _INVARIANTS:
        if part in text:
            return invariant
    return "readable"


_INVARIANTS = (
    ("data lie in other files", "stays-inside"),
    ("unknown filters", "stays-inside"),
    ("is a link", "stays-inside"),
    ("has shape", "shape-declared"),
    ("has elements of", "shape-declared"),
    (" data sets", "size-declared"),
    (" checksums", "size-declared"),
    (" declares ", "size-declared"),
    (" rows, the index ", "index-count"),
    ("its CRC-32C is", "chunk-checksum"),
    ("chunk at (", "chunk-whole"),
)


def reason_of(error: BaseException) -> str:
    """Returns what an error says, without the file, which a report names anyway."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rpartition(" is no intact trace: ")[2]


def _behind_the_end(group: h5g.GroupID, name: str, dataset: Dataset, place: Place) -> list[tuple[int, int]]:
    """Returns the rows of a dataset whose chunks are not all in the file; HDF5 would read zeros there.

    That is so of a file that was cut off, and of one that `tracerec.salvaging.patched` shows longer than it is.
    """
    grid = dataset.grid
    if grid is None:
        return []
    found: list[tuple[int, int]] = []

    def look(chunk: Any) -> None:
        if chunk.byte_offset is None or chunk.byte_offset + chunk.size > place.size:
            first = chunk.chunk_offset[0] - grid.lead
            found.append((max(0, first), min(first + grid.chunk[0], dataset.records)))

    try:
        h5d.open(group, name.encode()).chunk_iter(look)
    except HDF5_ERRORS:
        # What the index of chunks does not say, reading them does.
        return found
    return found


def _lead(group: h5g.GroupID, name: str, place: Place) -> int:
    """Returns how many rows of a dataset come before the first record's."""
    try:
        text = attribute(h5d.open(group, name.encode()), layout.LEAD_ATTRIBUTE, place.child(name))
    except HDF5_ERRORS as error:
        raise place.child(name).error(error) from error
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < _DIGITS else 0


_DIGITS = 12


def _samples(dataset: Dataset, rows: int) -> Iterator[tuple[int, int]]:
    """Yields the numbers and the CRC-32C of some chunks, of those that can be read."""
    if dataset.grid is None:
        return
    chunk = dataset.grid.chunk
    across = -(-rows // chunk[0])
    stride = dataset.chunks // max(1, across)
    for number in sorted({n * (across - 1) // (_SAMPLES - 1) for n in range(_SAMPLES)}):
        try:
            data = dataset.stored((number * chunk[0], *[0] * (len(chunk) - 1)))
        except TraceFormatError:
            continue
        yield number * stride, crc32c.crc32c(data)
