"""Fuzzing the outfeed protocol: ``python -m tools.fuzz_frames [--mutations N] [--seed S] [--first K]``.

Streams of frames are damaged and read in every way there is. A fault is a crash, a hang, an exception other than
FrameError, a frame that was never sent, bytes counted twice or never, pieces that change the result, or a frame that
was not touched and is not found. All of it happens in a child process whose memory and time are limited. Mutation K of
a seed is the same in every run: ``--first K --mutations 1`` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import json
import os
import random
import resource
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import crc32c
import msgpack
import numpy as np

from tracerec.errors import FrameError
from tracerec.protocol import dtypes, frames
from tracerec.protocol.stream import FrameStream, Gap, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEMORY_BYTES = 512 << 20
"""What the child may have beside what it starts with."""
HANG_S = 20
"""A single mutation takes milliseconds; one that takes this long is a hang."""
FORGED = 0xF0_46_ED
"""Consumer id of frames whose checksum is right though nobody sent them: any content will do, but no other fault."""


class FaultError(AssertionError):
    """The protocol did something that it must not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutations in a limited child; prints figures; returns 0, or 1 when there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_frames", description="Fuzzes the outfeed protocol.")
    parser.add_argument("--mutations", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation; default: %(default)s")
    parser.add_argument("--in-process", action="store_true", help="no child and no limits, for a debugger")
    options = parser.parse_args(arguments)
    if options.in_process:
        print(json.dumps(fuzz(options.seed, options.first, options.mutations)))
        return 0
    return watch(options)


def watch(options: argparse.Namespace) -> int:
    """Runs the child, shows what it found, and ends it when it takes too long as a whole."""
    command = [sys.executable, "-X", "faulthandler", "-c", "from tools import fuzz_frames; fuzz_frames.child()"]
    given = json.dumps([options.seed, options.first, options.mutations])
    limit = 60 + options.mutations * 0.1
    start = time.monotonic()
    try:
        done = subprocess.run([*command, given], capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        print(f"FAULT: not done after {limit:.0f} s\n{(error.stderr or b'').decode(errors='replace')}")
        return 1
    if done.returncode:
        print(f"FAULT: the child ended with status {done.returncode}\n{done.stderr}")
        return 1
    figures: dict[str, Any] = json.loads(done.stdout)
    for name, value in figures.items():
        print(f"{name:>24}: {value}")
    print(f"{'seconds':>24}: {time.monotonic() - start:.1f}")
    return 0


def child() -> None:
    """What the child runs: the mutations that its last argument tells, under limits."""
    seed, first, mutations = json.loads(sys.argv[-1])
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file, the kernel's answer
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    cpu = int(60 + mutations * 0.1)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    print(json.dumps(fuzz(seed, first, mutations, watchdog=True)))


def fuzz(seed: int, first: int, mutations: int, *, watchdog: bool = False) -> dict[str, Any]:
    """Runs mutations; returns figures. A fault raises, with the number of the mutation in a note.

    With the watchdog, a hang ends the process and shows where it was.
    """
    figures: collections.Counter[str] = collections.Counter(mutations=0)
    for number in range(first, first + mutations):
        if watchdog:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            run_one(random.Random(f"{seed}:{number}"), figures)  # noqa: S311 - must be repeatable
        except BaseException as error:
            error.add_note(f"mutation {number} of seed {seed}")
            raise
    if watchdog:
        faulthandler.cancel_dump_traceback_later()
    figures["peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return dict(figures)


def run_one(rng: random.Random, figures: collections.Counter[str]) -> None:
    """Makes a stream, damages it, reads it in every way and checks what comes out."""
    sent = [frame(rng) for _ in range(rng.randint(1, 8))]
    original = b"".join(sent)
    mutated = bytearray(original)
    chosen = rng.choices(MUTATIONS, k=rng.choice((1, 1, 1, 2, 3, 8)))
    for mutation in chosen:
        mutation(rng, mutated)
        figures[mutation.__name__] += 1
    data = bytes(mutated)
    # A copied stretch may bring a payload's frames into the stream while the frame that held them is whole.
    damaged = sent if duplicate in chosen else [one for one in sent if data.count(one) < sent.count(one)]
    found = check_scan(data, sent, damaged)
    check_untouched(sent, original, data, found)
    check_stream(rng, data, found)
    check_single(rng, data)
    figures["mutations"] += 1
    figures["frames sent"] += len(sent)
    figures["frames found"] += sum(isinstance(item, frames.Frame) for item in found)
    figures["gaps"] += sum(isinstance(item, Gap) and not item.torn for item in found)
    figures["torn"] += sum(isinstance(item, Gap) and item.torn for item in found)


def check_scan(data: bytes, sent: list[bytes], damaged: list[bytes]) -> list[frames.Frame | Gap]:
    """Scans; every byte is in one item, and every frame was sent.

    A frame that was sent as an array of another may come when that one's header is damaged, or its end is lost: nothing
    then says that it is one (`docs/protocol.md`).
    """
    known = {content(frames.decode(one)) for one in sent}
    known |= {content(inner) for one in damaged for inner in inner_frames(one)}
    items = list(scan(data))
    at = 0
    for item in items:
        start = item.start if isinstance(item, Gap) else item.head.start
        require(start == at < item.end, f"an item begins at {start}, the one before ended at {at}")
        at = item.end
        if isinstance(item, frames.Frame) and item.consumer_id != FORGED:
            require(content(item) in known, f"the frame at byte {start} was never sent")
    require(at == len(data), f"the items end at {at}, the stream at {len(data)}")
    return items


def inner_frames(one: bytes) -> list[frames.Frame]:
    """Returns the frames that a frame's arrays hold, at any depth."""
    items = scan(one, frames.peek(one).payload)
    found = [item for item in items if isinstance(item, frames.Frame)]
    return found + [inner for f in found for inner in inner_frames(one[f.head.start : f.end])]


def check_untouched(sent: list[bytes], original: bytes, data: bytes, items: list[frames.Frame | Gap]) -> None:
    """All frames before the first byte that differs, and all behind the last, are found where they are."""
    at = {item.head.start for item in items if isinstance(item, frames.Frame)}
    before, behind = common(original, data), common(original[::-1], data[::-1])
    moved = len(data) - len(original)
    ends = list(itertools.accumulate(map(len, sent)))
    for start, end in zip([0, *ends], ends, strict=False):
        require(end > before or start in at, f"the frame at byte {start}, before all damage, is missing")
        intact = start >= len(original) - behind
        require(not intact or start + moved in at, f"the frame at byte {start + moved}, behind all damage, is missing")


def check_stream(rng: random.Random, data: bytes, items: list[frames.Frame | Gap]) -> None:
    """In pieces of any size the same frames come, and the counts add up."""
    # `scan` has no limit either: forged sizes of any number of bytes are then judged alike.
    stream = FrameStream(max_frame_bytes=1 << 100)
    found: list[frames.Frame] = []
    at = 0
    while at < len(data):
        size = rng.choice((1, 3, 17, 130, 1000, 100_000))
        found += stream.feed(data[at : at + size])
        at += size
    found += stream.close()
    expected = [item for item in items if isinstance(item, frames.Frame)]
    same = [(f.head, content(f)) for f in found] == [(f.head, content(f)) for f in expected]
    require(same, "in pieces other frames come")
    counts = stream.counts
    total = sum(f.end - f.head.start for f in found) + counts.skipped_bytes + counts.torn
    require(counts.frames == len(found) and total == len(data), f"{counts} do not add up to {len(data)} bytes")


def check_single(rng: random.Random, data: bytes) -> None:
    """Single frames and heads, from the start and from anywhere, give a value or a FrameError."""
    for offset in (0, rng.randint(0, len(data))):
        for read in (frames.decode, frames.peek, lambda d, o: list(frames.heads(d, o))):
            try:
                read(data, offset)
            except FrameError as error:
                require(len(str(error)) < 1000, "the message is as long as the damage")  # noqa: PLR2004 - any bound


def require(condition: bool, fault: str) -> None:  # noqa: FBT001 - as assert
    """Raises FaultError unless the condition holds; also under ``python -O``."""
    if not condition:
        raise FaultError(fault)


def content(frame: frames.Frame) -> Any:
    """Returns all that a frame carries, bit for bit, to be compared."""
    return (frame.consumer_id, *((a.dtype.name, a.shape, a.tobytes()) for a in frame.arrays))


def common(a: bytes, b: bytes) -> int:
    """Returns how many bytes two strings have in common at their start."""
    size = min(len(a), len(b))
    differ = np.frombuffer(a, np.uint8, size) != np.frombuffer(b, np.uint8, size)
    return int(differ.argmax()) if differ.any() else size


def frame(rng: random.Random) -> bytes:
    """Returns a frame: small, of many arrays, of records, or one that holds frames itself."""
    kind = rng.randrange(8)
    if kind == 0:
        values = [np.zeros((k % 3,), np.int16) for k in range(rng.randint(30, 200))]
    elif kind == 1:
        values = [np.frombuffer(b"".join(frame(rng) for _ in range(rng.randint(1, 2))), np.uint8)]
    elif kind == 2:  # noqa: PLR2004 - of eight
        values = [np.full((rng.randint(1, 300),), frames.MAGIC, np.int32)]
    else:
        values = [array(rng) for _ in range(rng.randint(0, 4))]
    return b"".join(bytes(b) for b in frames.encode(rng.choice((0, 1, 2, rng.getrandbits(64))), values))


def array(rng: random.Random) -> np.ndarray:
    """Returns an array of any dtype and shape, of random bits."""
    dtype = dtypes.from_name(rng.choice(dtypes.NAMES))
    shape = [rng.choice((0, 1, 2, 3, 8)) for _ in range(rng.randint(0, 4))]
    bits = np.frombuffer(rng.randbytes(int(np.prod(shape)) * dtype.itemsize), np.uint8)
    return (bits & 1 if dtype.name == "bool" else bits).view(dtype).reshape(shape)


def flip_bits(rng: random.Random, data: bytearray) -> None:
    """Flips some bits."""
    for _ in range(rng.choice((1, 1, 2, 16))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    """Removes a stretch, as a write that failed leaves it out."""
    start, end = stretch(rng, data)
    del data[start:end]


def truncate(rng: random.Random, data: bytearray) -> None:
    """Ends the stream early, as a kill does."""
    del data[rng.randint(0, len(data)) :]


def swap(rng: random.Random, data: bytearray) -> None:
    """Exchanges two stretches."""
    (a, b), (c, d) = sorted((stretch(rng, data), stretch(rng, data)))
    if b <= c:
        data[a:d] = data[c:d] + data[b:c] + data[a:b]


def duplicate(rng: random.Random, data: bytearray) -> None:
    """Puts a copy of a stretch anywhere."""
    start, end = stretch(rng, data)
    at = rng.randint(0, len(data))
    data[at:at] = data[start:end]


def overwrite(rng: random.Random, data: bytearray) -> None:
    """Fills a stretch with zeros, ones or noise, as a lost block is."""
    start, end = stretch(rng, data)
    data[start:end] = rng.choice((bytes(end - start), b"\xff" * (end - start), rng.randbytes(end - start)))


def insert_magic(rng: random.Random, data: bytearray) -> None:
    """Puts in magic numbers, alone or as the start of headers."""
    unit = struct.pack("<I", frames.MAGIC)
    if rng.random() < 0.5:  # noqa: PLR2004 - one half
        metadata = packed([(4, [rng.choice((0, 10, 1000, 2**20, 2**40))])])
        unit += struct.pack("<III", 0, 9, len(metadata)) + metadata
        unit = unit.ljust(rng.choice((28, 128)), b"\0")
    at = rng.randint(0, len(data))
    data[at:at] = unit * rng.choice((1, 2, 50))


def change_size(rng: random.Random, data: bytearray) -> None:
    """Changes the metadata's length, or a byte of the metadata, in one of the headers."""
    at = header(rng, data)
    if at < 0:
        return
    if rng.random() < 0.3:  # noqa: PLR2004 - about a third
        sizes = (0, 1, 112, 113, rng.getrandbits(8), rng.getrandbits(32), frames.MAX_METADATA_BYTES)
        data[at + 12 : at + 16] = struct.pack("<I", rng.choice(sizes))
    else:
        data[at + 16 + rng.randrange(16)] = rng.getrandbits(8)


def move_end(rng: random.Random, data: bytearray) -> None:
    """Rewrites the metadata of a frame, so that it ends at another frame, or inside one."""
    at, other = header(rng, data), header(rng, data)
    if 0 <= at < other:
        metadata = packed([(4, [max(0, other - at - 132 + rng.choice((0, 0, 0, 4, -4)))])])
        data[at + 12 : at + 16] = struct.pack("<I", len(metadata))
        data[at + 16 : at + 128] = metadata.ljust(112, b"\0")


def forge(rng: random.Random, data: bytearray) -> None:
    """Puts in a frame of hostile metadata whose checksum is right."""
    metadata = rng.choice((hostile_metadata, lambda r: r.randbytes(r.randint(0, 40))))(rng)
    body = struct.pack("<IIII", frames.MAGIC, FORGED >> 32, FORGED & 0xFFFFFFFF, len(metadata)) + metadata
    body = body.ljust(max(128, (len(body) + 3) // 4 * 4), b"\0") + rng.randbytes(rng.choice((0, 1, 8, 64)))
    at = rng.choice((0, len(data), rng.randint(0, len(data))))
    data[at:at] = body + struct.pack("<I", crc32c.crc32c(body))


def hostile_metadata(rng: random.Random) -> bytes:
    """Returns msgpack that is nearly metadata."""
    edges = (0, 0, 1, 8, 64, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1)
    odd = (True, None, 1.5, float("nan"), "a", b"a", [], [[1]], {})

    def dim() -> Any:
        return rng.choice(odd) if rng.random() < 0.1 else rng.choice(edges)  # noqa: PLR2004 - seldom

    pairs = [
        [rng.choice((*range(30), -1, True, 9.0)), [dim() for _ in range(rng.choice((0, 1, 2, 3, 64, 65)))]]
        for _ in range(rng.choice((0, 1, 2, 30)))
    ]
    nested: Any = pairs
    for _ in range(rng.choice((0, 0, 0, 1, 500))):
        nested = [nested]
    return packed(nested) + rng.choice((b"", b"", b"", b"\x90"))


def header(rng: random.Random, data: bytearray) -> int:
    """Returns where one of the stream's magic numbers is, with a header's length behind it; -1 if there is none."""
    magic = struct.pack("<I", frames.MAGIC)
    places: list[int] = []
    at = data.find(magic)
    while 0 <= at <= len(data) - frames.HEADER_BYTES:
        places.append(at)
        at = data.find(magic, at + frames.HEADER_BYTES)
    return rng.choice(places) if places else -1


def stretch(rng: random.Random, data: bytearray) -> tuple[int, int]:
    """Returns the start and the end of a stretch, short as a rule."""
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((0, 1, 4, 64, rng.randint(0, 600), rng.randint(0, len(data)))))


def packed(value: Any) -> bytes:
    """Returns msgpack, whose stubs allow for None."""
    return bytes(msgpack.packb(value) or b"")


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip_bits,
    cut,
    truncate,
    swap,
    duplicate,
    overwrite,
    insert_magic,
    change_size,
    move_end,
    forge,
)


if __name__ == "__main__":
    sys.exit(main())
