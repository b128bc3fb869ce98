"""Which elements a sample has: a choice that depends on seed and size alone, the same for ever."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["sample_positions"]

_ROUNDS = 4
"""Rounds of a Feistel network: four make a pseudo-random permutation (Luby and Rackoff, 1988)."""


def sample_positions(n: int, seed: int, shape: Sequence[int]) -> np.ndarray:
    """Returns the row-major positions of the elements that `tracerec.keeping.Sample` keeps of a leaf.

    They are the images of 0 to n - 1 under a permutation of all positions: a Feistel network over the next power
    of four, walked again where it leads beyond the leaf. No random number generator of a library takes part.

    Args:
        n: how many elements.
        seed: the sample's seed.
        shape: the leaf's shape, lane axes excluded.

    Returns:
        int64 ``(min(n, size),)``, ascending, each once.

    Example:
        >>> sample_positions(4, 0, (3, 5)).tolist()
        [0, 6, 13, 14]
        >>> sample_positions(9, 0, (2, 2)).tolist()
        [0, 1, 2, 3]
    """
    size = math.prod(shape)
    if n >= size:
        return np.arange(size, dtype=np.int64)
    half = max(1, math.ceil((size - 1).bit_length() / 2))
    keys = _mix(np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(seed))
    found = _permuted(np.arange(n, dtype=np.uint64), half, keys)
    while (beyond := np.flatnonzero(found >= size)).size:
        found[beyond] = _permuted(found[beyond], half, keys)
    return np.sort(found.astype(np.int64))


_GOLDEN = 0x9E3779B97F4A7C15


def _permuted(numbers: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(words: np.ndarray) -> np.ndarray:
    """Returns 64-bit words mixed as in SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
