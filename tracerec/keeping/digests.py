"""The digest of a fingerprint, in numpy: for arrays that were kept whole.

An element is one to four 32-bit words. Word ``j`` of the element at row-major position ``p`` stands at place
``p + j * 2**30``; each of the digest's two words is a sum, modulo 2**32, over all words ``w`` of

    mix(w ^ (place * K + C))

with a ``K``, a ``C`` and a mixing function of its own, and a constant that dtype and shape give. Sums commute: the
order in which elements come does not matter, nor how a device splits them. What a digest can tell apart:

* The mixing functions are bijections of 32 bits whose every output bit depends evenly on every input bit: MurmurHash3's
  ``fmix32`` (Appleby, 2011) and ``lowbias32``, found by search
  (Wellons, "Prospecting for Hash Functions", 2018). So a change of one
  word always changes both sums.
* ``place * K`` with an odd ``K`` is one too, so no two places disturb a word alike. For two arrays that differ in
  more than one word both sums agree by chance alone, with probability 2**-64: for a billion comparisons of differing
  arrays, 5e-11 in all. Were one ``K`` shared, pairs of places near each other modulo 2**32 would let certain
  exchanges of small integers pass through both sums.
* It is no cryptographic hash: who wants to make two arrays of the same digest can.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ELEMENT_BITS", "LANES", "WORD_STRIDE", "Lane", "fingerprint", "fingerprint_seed"]

_BLOCK = 1 << 16
"""Elements worked on at once."""

WORD_STRIDE = 1 << 30
"""How far apart the places of an element's words are."""

ELEMENT_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
"""The bits that count of an element with fewer than eight."""

Lane = tuple[int, int, tuple[int, int, int, int, int]]
"""Constants of one of the digest's words: K, C, and of the mixing: shift, factor, shift, factor, shift."""

LANES: tuple[Lane, Lane] = (
    (0x9E3779B1, 0x2545F491, (16, 0x85EBCA6B, 13, 0xC2B2AE35, 16)),
    (0xC2B2AE3D, 0x6A09E667, (16, 0x7FEB352D, 15, 0x846CA68B, 16)),
)
"""The digest's low word, and its high one."""


def fingerprint(array: np.ndarray, lanes: int = 0, valid: np.ndarray | None = None) -> np.ndarray:
    """Returns the digest that `tracerec.keeping.Fingerprint` keeps of a leaf.

    Args:
        array: the leaf, of a dtype in `tracerec.protocol.dtypes.NAMES`.
        lanes: how many leading axes have a digest each: a batch's, or the records of a stream.
        valid: which elements count, bools that broadcast to the array; None: all.

    Returns:
        uint32 ``(*lane axes, 2)``: the low word, the high word.

    Raises:
        ValueError: the dtype is none that a trace can hold.

    Example:
        >>> [hex(word) for word in fingerprint(np.array([1.0, 2.0], np.float32))]
        ['0x3d2964c5', '0xd51bfb98']
        >>> fingerprint(np.zeros((3, 2)), lanes=1).shape
        (3, 2)
    """
    dtypes.code_of(array.dtype)
    shape, size = array.shape[lanes:], math.prod(array.shape[lanes:])
    rows = math.prod(array.shape[:lanes])
    seed = np.array(fingerprint_seed(array.dtype.name, shape), np.uint32)
    flat = np.ascontiguousarray(array).reshape(rows, size)
    counts = None if valid is None else np.broadcast_to(valid, array.shape).reshape(rows, size)
    out = np.zeros((rows, 2), np.uint32)
    together = max(1, _BLOCK // max(size, 1))
    for first in range(0, rows, together):
        here = slice(first, first + together)
        for start in range(0, size, _BLOCK):
            block = (here, slice(start, start + _BLOCK))
            out[here] += _sums(flat[block], start, None if counts is None else counts[block])
    return (out + seed).reshape(*array.shape[:lanes], 2)


def fingerprint_seed(dtype: str, shape: Sequence[int]) -> tuple[int, int]:
    """Returns what a dtype and a shape add to the digest's two words."""
    text = f"{dtype}:{','.join(str(n) for n in shape)}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _sums(block: np.ndarray, start: int, counts: np.ndarray | None) -> np.ndarray:
    """Returns the two sums of each row ``(rows, elements)``, whose elements stand at positions from ``start``."""
    places = np.arange(start, start + block.shape[1], dtype=np.uint64).astype(np.uint32)
    sums = np.zeros((len(block), 2), np.uint32)
    for words in _words(block):
        for number, lane in enumerate(LANES):
            mixed = _mixed(words, places, lane)
            if counts is not None:
                mixed *= counts
            sums[:, number] += mixed.sum(axis=1, dtype=np.uint32)
        places = places + np.uint32(WORD_STRIDE)
    return sums


def _words(block: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the first words of all elements as uint32, then the second ones, ..."""
    size = block.dtype.itemsize
    if size < 4:  # noqa: PLR2004 - bytes of a word
        words = np.ascontiguousarray(block).view(f"<u{size}").astype(np.uint32)
        bits = ELEMENT_BITS.get(block.dtype.name)
        yield words if bits is None else words & np.uint32((1 << bits) - 1)
        return
    words = np.ascontiguousarray(block).view("<u4").reshape(*block.shape, size // 4)
    for number in range(size // 4):
        yield words[..., number].astype(np.uint32)


def _mixed(words: np.ndarray, places: np.ndarray, lane: Lane) -> np.ndarray:
    factor, addend, (first, one, second, two, third) = lane
    x = words ^ (places * np.uint32(factor) + np.uint32(addend))
    x = (x ^ (x >> np.uint32(first))) * np.uint32(one)
    x = (x ^ (x >> np.uint32(second))) * np.uint32(two)
    return x ^ (x >> np.uint32(third))
