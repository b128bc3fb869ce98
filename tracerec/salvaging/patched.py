"""A damaged HDF5 file as HDF5 can open it: with another superblock in front, and zeros where it was cut off.

The superblock is made anew, since all of it but two addresses is the same in every file of ours: HDF5 File Format
Specification 3.0, II.A (version 3). Everything else HDF5 finds by addresses, and protects by checksums of its own.
"""

from __future__ import annotations

import io
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT", "PatchedFile", "lookup3", "object_headers"]

ROOT = 48
"""Where the root group's header is in every file of ours: behind the superblock."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_VERSION = 3
_SIZES = 8
_UNDEFINED = (1 << 64) - 1
_MOST = 1 << 48
"""No file is longer: an end beyond is damage."""

_HEADER = re.compile(rb"OHDR\x02", re.DOTALL)
_WINDOW = 1 << 24


class PatchedFile(io.RawIOBase):
    """The bytes of a file with a sound superblock; what is missing at the end reads as zeros.

    Args:
        path: the file.
        root: the address of the group that is to be the root.
    """

    def __init__(self, path: str, root: int = ROOT) -> None:
        super().__init__()
        self._file: BinaryIO = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed with this
        self._size = self._file.seek(0, 2)
        self._file.seek(0)
        self._end = max(self._size, _stored_end(self._file.read(ROOT)))
        self._superblock = _superblock(self._end, root)
        self._at = 0

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fills a buffer from the current position on; returns how many bytes."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._end - self._at))
        filled = 0
        if self._at < len(self._superblock):
            head = self._superblock[self._at : self._at + count]
            view[: len(head)] = head
            filled = len(head)
        while filled < count and self._at + filled < self._size:
            self._file.seek(self._at + filled)
            part = self._file.read(min(count - filled, self._size - self._at - filled))
            if not part:
                break
            view[filled : filled + len(part)] = part
            filled += len(part)
        view[filled:count] = bytes(count - filled)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves the position."""
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def tell(self) -> int:
        """Returns the position."""
        return self._at

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def object_headers(path: str) -> Iterator[int]:
    """Yields the addresses at which a header of an HDF5 object may begin, all through a file."""
    with Path(path).open("rb") as file:
        start, left = 0, b""
        while piece := file.read(_WINDOW):
            data = left + piece
            for match in _HEADER.finditer(data):
                yield start + match.start()
            keep = min(len(data), 4)
            start, left = start + len(data) - keep, data[len(data) - keep :]


def lookup3(data: bytes) -> int:
    """Returns the checksum of HDF5's metadata: Bob Jenkins' lookup3, "hashlittle", from 0.

    Example:
        >>> hex(lookup3(b"Four score and seven years ago"))
        '0x17770551'
    """
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    padded = data.ljust(-(-max(len(data), 1) // 12) * 12, b"\0")
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    if not data:
        return c
    for at in range(0, len(words) - 3, 3):
        a, b, c = (a + words[at]) & _MASK, (b + words[at + 1]) & _MASK, (c + words[at + 2]) & _MASK
        a, b, c = _mixed(a, b, c)
    a, b, c = (a + words[-3]) & _MASK, (b + words[-2]) & _MASK, (c + words[-1]) & _MASK
    for (one, other), turn in _FINAL:
        words_by_name = {"a": a, "b": b, "c": c}
        words_by_name[one] = (words_by_name[one] ^ words_by_name[other]) - _turned(words_by_name[other], turn) & _MASK
        a, b, c = words_by_name.values()
    return c


_FINAL = (("cb", 14), ("ac", 11), ("ba", 25), ("cb", 16), ("ac", 4), ("ba", 14), ("cb", 24))
_MASK = 0xFFFFFFFF


def _turned(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _MASK


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = (a - c & _MASK) ^ _turned(c, 4)
    c = c + b & _MASK
    b = (b - a & _MASK) ^ _turned(a, 6)
    a = a + c & _MASK
    c = (c - b & _MASK) ^ _turned(b, 8)
    b = b + a & _MASK
    a = (a - c & _MASK) ^ _turned(c, 16)
    c = c + b & _MASK
    b = (b - a & _MASK) ^ _turned(a, 19)
    a = a + c & _MASK
    c = (c - b & _MASK) ^ _turned(b, 4)
    b = b + a & _MASK
    return a, b, c


def _superblock(end: int, root: int) -> bytes:
    block = _SIGNATURE + struct.pack("<BBBBQQQQ", _VERSION, _SIZES, _SIZES, 0, 0, _UNDEFINED, end, root)
    return block + struct.pack("<I", lookup3(block))


def _stored_end(block: bytes) -> int:
    """Returns the file's length as its superblock has it; 0 where that is damaged."""
    if len(block) < ROOT or block[:8] != _SIGNATURE or struct.unpack_from("<I", block, 44)[0] != lookup3(block[:44]):
        return 0
    end = struct.unpack_from("<Q", block, 28)[0]
    return end if end <= _MOST else 0
