"""One way to break each invariant, alone as far as that can be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from tests.formats.arrow.test_reading import edit_rows
from tests.formats.hdf5.checksums import set_chunk_checksum, set_sums
from tests.formats.hdf5.test_reading import edit_lines, replace
from tests.journal.folders import record_frame
from tests.memory_source import MemorySource, make_stream
from tools.fuzzed_recordings import SITES, made
from tracerec.formats.hdf5.seal import seal
from tracerec.journal.layout import MANIFEST, segments
from tracerec.merging import merge
from tracerec.model import INDEX_DTYPE, Leaf, Site
from tracerec.protocol import frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["BREAKERS", "flip", "intact"]

X = Site("x", (Leaf("", (2,), "float32"),))
Y = Site("y", (Leaf("", (), "bool"),))


def intact(form: str, folder: Path) -> Path:
    """Writes a recording of one of the fuzzer's forms; returns its path."""
    return made(form).write(folder)


def flip(path: Path, at: float, bit: int = 1) -> None:
    """Flips a bit at a share of a file."""
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= bit
    path.write_bytes(data)


def sealed(folder: Path, *streams: Any, **info: Any) -> Path:
    """Seals streams to an HDF5 file."""
    source = MemorySource(list(streams))
    for name, value in info.items():
        object.__setattr__(source.info, name, value)
    seal(source, folder / "run.h5")
    return folder / "run.h5"


def edited(path: Path, edit: Callable[[Any], None]) -> Path:
    """Changes the JSON of a folder's manifest."""
    data = json.loads((path / MANIFEST).read_text())
    edit(data)
    (path / MANIFEST).write_text(json.dumps(data))
    return path


def with_rows(folder: Path, edit: Callable[[list[dict[str, Any]]], None]) -> Path:
    """Changes rows of an Arrow recording's list of streams, whose checksum fits again."""
    path = intact("arrow", folder)
    edit_rows(path, edit)
    return path


def with_frames(folder: Path, *buffers: list[Any] | bytes) -> Path:
    """Appends frames to the first segment of a journal."""
    path = intact("killed", folder)
    with segments(path)[0].open("ab") as file:
        for frame in buffers:
            file.write(frame if isinstance(frame, bytes) else b"".join(map(bytes, frame)))
    return path


def missing_file(folder: Path) -> Path:
    path = intact("arrow", folder)
    (path / "pool-000000.arrow").unlink()
    return path


def external_data(folder: Path) -> Path:
    path = intact("h5-none", folder)
    external = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
    replace(
        path,
        "streams/000000/data_0",
        lambda file, name, old: file.create_dataset(name, old.shape, old.dtype, external=external),
    )
    return path


def unlisted_group(folder: Path) -> Path:
    path = intact("h5-lz4", folder)
    with h5py.File(path, "r+") as file:
        file.create_group("streams/000077")
    return path


def flipped_segment(folder: Path) -> Path:
    path = intact("journal", folder)
    flip(segments(path)[1], 0.5)
    return path


def flipped_chunk(folder: Path) -> Path:
    path = intact("h5-lz4", folder)
    with h5py.File(path) as file:
        at = file["streams/000000/data_0"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[at + 40] ^= 1
    path.write_bytes(data)
    return path


def half_a_chunk(folder: Path) -> Path:
    path = intact("h5-gzip", folder)
    with h5py.File(path, "r+") as file:
        dataset = file["streams/000001/data_0"].id
        whole = dataset.read_direct_chunk((0,))[1]
        half = whole[:40].ljust(len(whole), b"\0")
        dataset.write_direct_chunk((0,), half)
        number = json.loads(file["index"][:].tobytes().splitlines()[1])["checksums"][1]
    set_chunk_checksum(path, number, half)
    return path


def flipped_arrow(folder: Path) -> Path:
    path = intact("arrow", folder)
    flip(path / "pool-000001.arrow", 0.5)
    return path


def missing_part(folder: Path) -> Path:
    path = intact("parts", folder)
    (path / "part-000001.h5").unlink()
    return path


def another_run(folder: Path) -> Path:
    return edited(intact("parts", folder), lambda data: data["run"].update(run_id="0" * 32))


def records_behind_the_end(folder: Path) -> Path:
    path = intact("journal", folder)
    last = segments(path)[-1]
    data = last.read_bytes()
    frame = next(frames.decode(data, h.start) for h in frames.heads(data) if h.consumer_id == SITES[1].id)
    rows = frame.arrays[0].copy()
    rows.view(INDEX_DTYPE)["arrival"] += np.uint64(1000)
    rows.view(INDEX_DTYPE)["number"] += np.uint64(1000)
    last.write_bytes(data + b"".join(map(bytes, frames.encode(SITES[1].id, [rows, *frame.arrays[1:]]))))
    return path


def foreign_arrays(folder: Path) -> Path:
    rows = np.zeros((1, 64), np.uint8)
    return with_frames(folder, frames.encode(SITES[0].id, [rows, np.zeros((1, 2), np.int8)]))


def undefined_site(folder: Path) -> Path:
    return with_frames(folder, record_frame(X, [10_000]))


def another_site(folder: Path) -> Path:
    path = intact("h5-lz4", folder)
    with h5py.File(path, "r+") as file:
        group = file["streams/000001"]
        text = bytes(group.attrs["site"]).replace(b'"loss"', b'"lass"')
        del group.attrs["site"]
        group.attrs["site"] = np.bytes_(text)
    return path


def another_shape(folder: Path) -> Path:
    path = intact("h5-none", folder)
    replace(
        path,
        "streams/000003/data_0",
        lambda file, name, old: file.create_dataset(name, data=old[:, :8], chunks=(len(old), 8, old.shape[2])),
    )
    return path


def another_size(folder: Path) -> Path:
    path = intact("h5-lz4", folder)
    edit_lines(path, "index", lambda text: text.replace(b'"nbytes":', b'"nbytes":1', 1))
    set_sums(path)
    return path


def more_records(folder: Path) -> Path:
    return with_rows(folder, lambda rows: rows[-1].update(records=rows[-1]["records"] + 5000))


def attempts_in_disorder(folder: Path) -> Path:
    def twice(data: Any) -> None:
        (one,) = data["run"]["attempts"]
        data["run"]["attempts"] = [{**one, "first_arrival": 5}, one]

    return edited(intact("killed", folder), twice)


def falling_arrivals(folder: Path) -> Path:
    return sealed(folder, make_stream(X, [np.zeros((3, 2))], arrival=[4, 6, 5], number=[4, 6, 5]))


def shared_arrivals(folder: Path) -> Path:
    return sealed(folder, make_stream(X, [np.zeros((3, 2))]), make_stream(Y, [[True] * 3], device=1))


def falling_numbers(folder: Path) -> Path:
    return sealed(folder, make_stream(X, [np.zeros((3, 2))], number=[7, 9, 8]))


def odd_bool(folder: Path) -> Path:
    values = np.array([0, 1, 2], np.uint8).view(bool)
    return sealed(folder, make_stream(Y, [values]))


def other_summary(folder: Path) -> Path:
    path = intact("h5-lz4", folder)
    edit_lines(path, "summaries", lambda text: text.replace(b'"zeros":', b'"zeros":1', 1))
    set_sums(path)
    return path


def other_steps(folder: Path) -> Path:
    return with_rows(folder, lambda rows: rows[0].update(first_step=rows[0]["first_step"] - 1))


def other_count(folder: Path) -> Path:
    return sealed(folder, make_stream(X, [np.zeros((3, 2))]), records=4)


def unlisted_process(folder: Path) -> Path:
    for number in range(2):
        sealed(folder, make_stream(X, [[[number, 1]]]), run_id=f"{number:032x}").rename(folder / f"run.{number}.h5")
    merge(folder / "run.*.h5", folder / "all.h5")
    with h5py.File(folder / "all.h5", "a") as file:
        file.copy("processes/000001", "processes/000002")
    return folder / "all.h5"


BREAKERS: dict[str, Callable[[Path], Path]] = {
    "readable": missing_file,
    "stays-inside": external_data,
    "run-described": lambda folder: edited(intact("killed", folder), lambda data: data["run"].update(dropped=7)),
    "streams-listed": unlisted_group,
    "processes-listed": unlisted_process,
    "frame-checksum": flipped_segment,
    "chunk-checksum": flipped_chunk,
    "chunk-whole": half_a_chunk,
    "file-checksum": flipped_arrow,
    "segment-sequence": missing_part,
    "part-manifest": another_run,
    "frame-order": records_behind_the_end,
    "frame-arrays": foreign_arrays,
    "site-defined": undefined_site,
    "site-id": another_site,
    "shape-declared": another_shape,
    "size-declared": another_size,
    "index-count": more_records,
    "attempts-ordered": attempts_in_disorder,
    "arrival-monotone": falling_arrivals,
    "arrival-unique": shared_arrivals,
    "number-monotone": falling_numbers,
    "dtype-valid": odd_bool,
    "summary-true": other_summary,
    "steps-true": other_steps,
    "counts-true": other_count,
}
"""Writes a recording into a folder in which this one does not hold; returns its path."""
