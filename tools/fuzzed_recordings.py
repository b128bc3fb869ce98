"""Small recordings of every form for ``tools.fuzz_recordings``, and ways to damage them.

A recording is a mapping of names to bytes, so that a damaged one is written in a moment. Made without JAX.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from tracerec.continuing import attempt_of
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.contract import RunInfo
from tracerec.formats.hdf5.seal import seal as seal_hdf5
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.journal.writing import JournalWriter, SegmentHead
from tracerec.model import FLAG_STEP, INDEX_DTYPE, NO_SHARD, Column, Leaf, Site, Transform
from tracerec.protocol import dtypes, frames
from tracerec.salvaging.patched import lookup3

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

__all__ = ["FORMATS", "Recording", "damage", "is_cut_cleanly", "made", "truth_of"]

RUN_ID = "f0220f0220f0220f0220f0220f0220f0"
STARTED = 1_700_000_000_000_000_000

FORMATS = (
    "h5-lz4",
    "h5-zstd",
    "h5-gzip",
    "h5-none",
    "arrow",
    "arrow-lz4",
    "arrow-zstd",
    "journal",
    "killed",
    "parts",
    "parts-arrow",
    "live",
)
"""Sealed files by their compression; journals, closed and not; folders of parts, and of parts and segments."""

Truth = dict[int, tuple[int, bytes, tuple[bytes, ...]]]
"""By arrival number: the site's id, the row of the index table, the arrays."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """A recording, intact.

    Attributes:
        name: of the file or folder.
        files: its files by their paths in the folder; of a single file by ``""``.
        truth: its records.
    """

    name: str
    files: dict[str, bytes]
    truth: Truth

    def write(self, folder: Path, files: dict[str, Any] | None = None) -> Path:
        """Writes it, or other files, into a folder; returns its path. What is no bytes is a call that makes a file."""
        path = folder / self.name
        for name, data in (self.files if files is None else files).items():
            file = path / name if name else path
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, bytes):
                file.write_bytes(data)
            else:
                data(file)
        return path


SITES = (
    Site(
        "encoder/act",
        (Leaf("['w']", (3, 16), "float32"), Leaf("['b']", (5,), "bfloat16", 1)),
        (Column("step", "int64", (), "int"), Column("lr", "float64", (), "float")),
        kwargs='{"lr":{"slot":1},"step":{"slot":0}}',
        structure='{"dict":[["b",{"slot":1}],["w",{"slot":0}]]}',
    ),
    Site("loss", (Leaf("", (), "float64"),), transforms=(Transform("jvp"),)),
    Site("mask", (Leaf("", (7,), "bool"), Leaf("q", (4,), "int4", 1), Leaf("z", (0, 2), "complex64", 2))),
    Site("big", (Leaf("", (16, 24), "float16"),)),
    Site(
        "lanes",
        (Leaf("", (2, 3), "float32"),),
        (Column("where", "bool", (2,), role="where"),),
        transforms=(Transform("batch", size=2, dims=(0,), kwarg_dims=(0,)),),
    ),
)
_RECORDS = 90
_SEGMENTS = 3


def made(name: str) -> Recording:
    """Returns the recording of a format, one of `FORMATS`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        live = folder / "run.h5.live"
        suffix = ".arrow" if "arrow" in name else ".h5"
        _journal(live, f"run{suffix}", ended=name != "killed")
        with JournalSource(live) as source:
            truth = truth_of(source)
            compression = name.partition("-")[2] or None
            if name.startswith("h5"):
                seal_hdf5(source, folder / "run.h5", compression=None if compression == "none" else compression)
            elif name.startswith("arrow"):
                seal_arrow(source, folder / "run.arrow", compression=compression)
            info = source.info
        if name in ("journal", "killed"):
            return _read(live, truth)
        if name in ("parts", "parts-arrow", "live"):
            return _read(_with_parts(live, name, suffix, info), truth)
        return _read(folder / f"run{suffix}", truth)


def truth_of(source: Any) -> Truth:
    """Returns all records of a source."""
    found: Truth = {}
    for stream in source.streams:
        site, n = stream.site, stream.records
        index = stream.index(0, n)
        arrays = [stream.leaf(k, 0, n) for k in range(len(site.leaves))]
        arrays += [stream.column(k, 0, n) for k in range(len(site.columns))]
        for row in range(n):
            values = tuple(np.ascontiguousarray(array[row]).tobytes() for array in arrays)
            found[int(index["arrival"][row])] = (site.id, index[row].tobytes(), values)
    return found


def _journal(folder: Path, target: str, *, ended: bool) -> None:
    folder.mkdir()
    info = RunInfo(RUN_ID, STARTED, host="fuzz", metadata={"text": "π\x1b[31m"})
    info = dataclasses.replace(info, attempts=(attempt_of(info, 0),))
    layout.write_manifest(folder, info, layout.Journal(0, target))
    generator = np.random.default_rng(7)
    arrival = 0
    for segment in range(_SEGMENTS):
        writer = JournalWriter(folder, head=SegmentHead(RUN_ID, 0), first=segment)
        for _ in range(_RECORDS // _SEGMENTS // 5):
            for site in SITES:
                count = 1 + arrival % 5
                writer.append(site, _arrays(site, arrival, count, generator))
                arrival += count
        writer.flush()
        if ended and segment == _SEGMENTS - 1:
            writer.end({"ended": STARTED + 10**10, "dropped": {"loss": 2}})
        writer.close()
    (folder / "ballast").unlink(missing_ok=True)


def _arrays(site: Site, arrival: int, count: int, generator: np.random.Generator) -> list[np.ndarray]:
    rows = np.zeros(count, INDEX_DTYPE)
    rows["arrival"] = rows["number"] = rows["call"] = np.arange(arrival, arrival + count)
    rows["time"] = STARTED + 1000 * rows["arrival"].astype(np.int64)
    rows["shard"] = NO_SHARD
    if any(column.in_index for column in site.columns):
        rows["step"], rows["flags"] = rows["arrival"].astype(np.int64) // 10, FLAG_STEP
    stored = [*site.leaves, *(column for column in site.columns if not column.in_index)]
    values = [_values(part.dtype, (count, *part.shape), generator) for part in stored]
    return [rows.view(np.uint8).reshape(count, INDEX_DTYPE.itemsize), *values]


def _values(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Returns numbers that compress, as those of a computation do."""
    dtype = dtypes.from_name(name)
    if name == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if name == "int4":
        return generator.integers(0, 16, shape).astype(np.uint8).view(dtype)
    return np.round(generator.normal(size=shape), 1).astype(dtype)


def _with_parts(live: Path, name: str, suffix: str, info: RunInfo) -> Path:
    """Seals segments of a journal into parts: all of them, or all but the last."""
    for number in range(_SEGMENTS if name != "live" else _SEGMENTS - 1):
        with JournalSource(live, only=number) as segment:
            seal = seal_arrow if suffix == ".arrow" else seal_hdf5
            seal(segment, layout.part_path(live, number, suffix))
        layout.segment_path(live, number).unlink()
    if name == "live":
        return live
    layout.write_manifest(live, info, layout.Journal(0, f"run{suffix}"))
    (live / "lock").unlink(missing_ok=True)
    return live.rename(live.with_name(f"run{suffix}"))


def _read(path: Path, truth: Truth) -> Recording:
    if path.is_file():
        return Recording(path.name, {"": path.read_bytes()}, truth)
    files = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    return Recording(path.name, files, truth)


def damage(rng: random.Random, recording: Recording) -> tuple[dict[str, Any], list[str], bool]:
    """Returns a recording's files, damaged; the names of what was done; and whether checksums were made to fit."""
    files: dict[str, Any] = dict(recording.files)
    done: list[str] = []
    forged = False
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if len(files) > 1 and rng.random() < 0.15:  # noqa: PLR2004 - seldom
            one = rng.choice(_FOLDER_DAMAGE)
            one(rng, files)
        elif rng.random() < 0.15:  # noqa: PLR2004 - seldom
            one = rng.choice(_FORGERIES)
            forged = one(rng, files) or forged
        else:
            one = rng.choice(_DAMAGE)
            name = rng.choice(sorted(name for name, data in files.items() if isinstance(data, bytes)) or [""])
            data = bytearray(files[name]) if isinstance(files.get(name), bytes) else bytearray()
            one(rng, data)
            files[name] = bytes(data)
        done.append(one.__name__)
    return files, done, forged


def is_cut_cleanly(recording: Recording, files: dict[str, Any]) -> bool:
    """Returns whether the last segment is gone, or cut off between two frames: nothing tells that there was more."""
    last = max((name for name in recording.files if name.endswith(".frames")), default=None)
    if last is None:
        return False
    data, whole = files.get(last, b""), recording.files[last]
    if not isinstance(data, bytes) or data == whole or not whole.startswith(data):
        return False
    return len(data) in {0, *(head.end for head in frames.heads(whole))}


def flip_bits(rng: random.Random, data: bytearray) -> None:
    """Flips some bits."""
    for _ in range(rng.choice((1, 1, 2, 16))):
        if data:
            data[min(_place(rng, data), len(data) - 1)] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    """Removes a stretch."""
    start, end = _stretch(rng, data)
    del data[start:end]


def truncate(rng: random.Random, data: bytearray) -> None:
    """Ends the file early."""
    del data[rng.choice((0, rng.randint(0, len(data)), max(0, len(data) - rng.randint(1, 200)))) :]


def swap(rng: random.Random, data: bytearray) -> None:
    """Exchanges two stretches."""
    (a, b), (c, d) = sorted((_stretch(rng, data), _stretch(rng, data)))
    if b <= c:
        data[a:d] = data[c:d] + data[b:c] + data[a:b]


def duplicate(rng: random.Random, data: bytearray) -> None:
    """Puts a copy of a stretch anywhere."""
    start, end = _stretch(rng, data)
    at = rng.randint(0, len(data))
    data[at:at] = data[start:end]


def append(rng: random.Random, data: bytearray) -> None:
    """Adds zeros or noise at the end."""
    data += rng.choice((bytes(512), rng.randbytes(rng.randint(1, 600))))


def overwrite(rng: random.Random, data: bytearray) -> None:
    """Fills a stretch with zeros, ones or noise."""
    start, end = _stretch(rng, data)
    data[start:end] = rng.choice((bytes(end - start), b"\xff" * (end - start), rng.randbytes(end - start)))


def zero_page(rng: random.Random, data: bytearray) -> None:
    """Fills a block of a disk with zeros."""
    size = rng.choice((512, 4096))
    start = rng.randrange(len(data) // size + 1) * size
    end = min(start + size, len(data))
    data[start:end] = bytes(end - start)


def set_size(rng: random.Random, data: bytearray) -> None:
    """Puts an extreme number in the place of another, as a size that lies."""
    width = rng.choice((1, 2, 4, 8))
    if len(data) >= width:
        at = min(_place(rng, data), len(data) - width)
        most = (1 << 8 * width) - 1
        old = int.from_bytes(data[at : at + width], "little")
        data[at : at + width] = rng.choice(
            (0, most, most >> 1, old + 1 & most, old - 1 & most, 1 << 8 * width - 2)
        ).to_bytes(width, "little")


_DAMAGE: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip_bits,
    flip_bits,
    cut,
    truncate,
    swap,
    duplicate,
    append,
    overwrite,
    zero_page,
    set_size,
)


def remove_file(rng: random.Random, files: dict[str, Any]) -> None:
    """Removes a file."""
    del files[rng.choice(sorted(files))]


def copy_file(rng: random.Random, files: dict[str, Any]) -> None:
    """Puts a copy of a file under a name that another could have."""
    name = rng.choice(sorted(files))
    number = rng.choice((0, 1, 2, 3, 7, 999_999_999))
    files[re.sub(r"[0-9]{6,}", f"{number:06}", name)] = files[name]


def swap_files(rng: random.Random, files: dict[str, Any]) -> None:
    """Exchanges the contents of two files."""
    one, other = rng.choice(sorted(files)), rng.choice(sorted(files))
    files[one], files[other] = files[other], files[one]


def odd_file(rng: random.Random, files: dict[str, Any]) -> None:
    """Puts a pipe, a link or a folder in the place of a file."""
    makers: tuple[Callable[[Path], Any], ...] = (
        os.mkfifo,
        Path.mkdir,
        lambda file: file.symlink_to("/etc/passwd"),
        lambda file: file.symlink_to("/dev/zero"),
        lambda file: file.symlink_to(file.name),
    )
    files[rng.choice(sorted(files))] = rng.choice(makers)


_FOLDER_DAMAGE = (remove_file, copy_file, swap_files, odd_file)


def forge_frame(rng: random.Random, files: dict[str, Any]) -> bool:
    """Changes bytes of a frame's head or of its JSON, and makes its checksum right."""
    name = _any(rng, files, ".frames")
    if name is None:
        return False
    data = bytearray(files[name])
    try:
        heads = list(frames.heads(bytes(data)))
    except frames.FrameError:
        return False
    if not heads:
        return False
    head = rng.choice(heads)
    if head.consumer_id in (frames.DEFINE, frames.END) and rng.random() < 0.8:  # noqa: PLR2004 - mostly
        end = head.end - frames.CRC_BYTES
        data[head.payload : end] = _lie(rng, bytes(data[head.payload : end]))[: end - head.payload].ljust(
            end - head.payload
        )
    else:
        at = head.start + rng.randrange(4, 40)
        data[at] = rng.choice((0, 0xFF, rng.getrandbits(8)))
    end = head.end - frames.CRC_BYTES
    data[end : head.end] = struct.pack("<I", crc32c.crc32c(bytes(data[head.start : end])))
    files[name] = bytes(data)
    return True


def forge_index(rng: random.Random, files: dict[str, Any]) -> bool:
    """Changes streams.arrow, and makes its checksum right."""
    name = _any(rng, files, "streams.arrow")
    if name is None:
        return False
    data = bytearray(files[name])
    rng.choice((flip_bits, set_size, overwrite))(rng, data)
    files[name] = bytes(data)
    files[name.replace("streams.arrow", "streams.crc32c")] = f"{crc32c.crc32c(bytes(data)):08x}\n".encode()
    return True


def forge_header(rng: random.Random, files: dict[str, Any]) -> bool:
    """Changes the header of an object in an HDF5 file, and makes its checksum right."""
    name = _any(rng, files, ".h5", "")
    if name is None:
        return False
    data = bytearray(files[name])
    places = [match.start() for match in re.finditer(rb"OHDR\x02", data)]
    if not places:
        return False
    at = rng.choice(places)
    flags = data[at + 5]
    size_at = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(data[size_at : size_at + width], "little")
    end = size_at + width + size
    if end + 4 > len(data):
        return False
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(size_at + width, end)
        data[place] = rng.choice((0, 0xFF, data[place] ^ 1 << rng.randrange(8), rng.getrandbits(8)))
    data[end : end + 4] = struct.pack("<I", lookup3(bytes(data[at:end])))
    files[name] = bytes(data)
    return True


def forge_manifest(rng: random.Random, files: dict[str, Any]) -> bool:
    """Changes numbers and texts in the manifest, which stays JSON."""
    name = _any(rng, files, "manifest.json")
    if name is None:
        return False
    files[name] = _lie(rng, files[name])
    return True


_FORGERIES: tuple[Callable[[random.Random, dict[str, Any]], bool], ...] = (
    forge_frame,
    forge_index,
    forge_header,
    forge_manifest,
)


def _lie(rng: random.Random, text: bytes) -> bytes:
    """Returns JSON in which one value is another; text that is no JSON as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    odd: tuple[Any, ...] = (0, -1, 1, 2**31, 2**62, 2**70, 1.5, None, True, "", "x", [], {}, [[]], "\x1b[2J", "float64")
    places = list(_places(value))
    if not places:
        return text
    holder, key = rng.choice(places)
    holder[key] = rng.choice(odd)
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _places(item)


def _any(rng: random.Random, files: dict[str, Any], *ends: str) -> str | None:
    """Returns the name of a file that ends so; ``""`` is that of a single file."""
    fit = [
        name
        for name, data in files.items()
        if isinstance(data, bytes) and any(name.endswith(e) if e else not name for e in ends)
    ]
    return rng.choice(sorted(fit)) if fit else None


_STRUCTURE = re.compile(rb"OHDR|OCHK|FAHD|FADB|\x89HDF|ARROW1|\xff{4}|\x82\x08\0\0|[{]\"")
"""What begins something that a reader parses."""


def _place(rng: random.Random, data: bytearray) -> int:
    """Returns a position: any, or one near what a reader parses."""
    if rng.random() < 0.5:  # noqa: PLR2004 - one half
        return rng.randint(0, len(data))
    near = [match.start() for match in _STRUCTURE.finditer(data)]
    return min(len(data), (rng.choice(near) if near else 0) + rng.randrange(200))


def _stretch(rng: random.Random, data: bytearray) -> tuple[int, int]:
    start = _place(rng, data)
    return start, min(len(data), start + rng.choice((0, 1, 4, 64, rng.randint(0, 600), rng.randint(0, len(data)))))
