"""What two runs have in common of a tapped leaf of which something else than the whole was kept.

Leaves that were kept whole by both are compared element by element. Else fingerprints are compared with fingerprints,
summaries with summaries, histograms with histograms of the same bins; where one side has the whole leaf, a fingerprint
or a summary of it is computed. Other arrays (slices, quantiles, ...) are compared as the arrays they are.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing.ordinals import is_float
from tracerec.comparing.reading import NotComparable
from tracerec.keeping.reading import rows
from tracerec.lanes import LeafLanes
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracerec.comparing.reading import Side
    from tracerec.keeping.reading import Kind, Row
    from tracerec.model import Site

__all__ = [
    "By",
    "KeptSide",
    "Pair",
    "Stream",
    "has_kept",
    "kept_side",
    "kept_text",
    "lanes_alike",
    "pairs_of",
    "tapped",
]

_EXACT = {"digest", "counts", "bins", "outside", "positions"}
"""Parts whose numbers are no measurements: no tolerance is for them, and the size of a difference means nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class By:
    """How a leaf is compared that was not kept whole by both.

    Attributes:
        kind: ``"fingerprint"``, ``"summary"`` or ``"histogram"``.
        whole: the run whose whole leaf the kind is computed of, ``"a"`` or ``"b"``; None: both kept it.
    """

    kind: str
    whole: str | None = None

    def __str__(self) -> str:
        return self.kind if self.whole is None else f"{self.kind} (of the full leaf in {self.whole})"


@dataclasses.dataclass(eq=False, slots=True)
class KeptSide:
    """A tapped leaf of one run, of which there is one kind, or the whole to compute it of.

    It is a `tracerec.comparing.reading.Side` of the leaf as tapped.

    Attributes:
        shape: the leaf's shape.
        dtype: its dtype.
        key_impl: of a PRNG key: the implementation.
        unknown: as of `Side`.
        nbytes: bytes of a record that are read.
        parts: the kind's arrays, by part; or ``{"full": the leaf}``.
        lanes: how many leading axes of the arrays are lanes.
        axes: of a whole leaf: the axes on which its lanes are, the outermost first; None of a kind's arrays.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key_impl: str | None
    unknown: bool
    nbytes: int
    parts: Mapping[str, Side]
    lanes: int
    axes: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the kind is computed of the whole leaf."""
        return self.axes is not None

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the first of its arrays; see `Side.read`."""
        return next(iter(self.parts.values())).read(numbers)

    def part(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Returns one array of some records, ``(n, *lanes, *own)``."""
        return self.parts[name].read(numbers)[0]

    def live(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Returns which lanes count of some records, as far as their masks tell, ``(n, *lanes)``."""
        array, valid = self.parts[name].read(numbers)
        own = (0,) * (array.ndim - 1 - self.lanes)
        mask = True if valid is None else valid
        return np.broadcast_to(mask, array.shape)[(..., *own)] if array.size else np.zeros(array.shape[:-1], bool)

    def whole(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the whole leaf of some records with its lanes first, and which elements count; None: all."""
        array, valid = self.parts["full"].read(numbers)
        from_, to = [1 + axis for axis in self.axes or ()], range(1, 1 + len(self.axes or ()))
        moved = np.moveaxis(array, from_, to)
        return moved, None if valid is None else np.moveaxis(np.broadcast_to(valid, array.shape), from_, to)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """What is compared of a leaf.

    Attributes:
        path: the leaf's key path.
        a: the first side.
        b: the second side.
        by: how, where it is not element by element.
        opaque: whether the size of a difference means nothing, and no tolerance applies.
        of: the dtype of the tapped leaf, where the elements are made of it.
    """

    path: str
    a: Side
    b: Side
    by: By | None = None
    opaque: bool = False
    of: np.dtype[Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Stream:
    """The records of one run whose leaves are compared.

    Attributes:
        site: their site, as if no leaf were a shard.
        side: returns the array at a place in ``site.leaves``.
    """

    site: Site
    side: Callable[[int], Side]


def has_kept(site: Site) -> bool:
    """Returns whether an array of a site is something that was kept of a leaf."""
    return any(leaf.kept is not None for leaf in site.leaves)


def tapped(site: Site) -> dict[str, list[Row]]:
    """Returns what there is of each tapped leaf, by its key path."""
    out: dict[str, list[Row]] = {}
    for row in rows(site):
        kept = site.leaves[row.places[0]].kept
        out.setdefault(row.leaf.path if kept is None else kept.path, []).append(row)
    return out


def kept_text(found: Sequence[Row]) -> str:
    """Returns what was kept of a leaf, as text."""
    return ", ".join(dict.fromkeys(text for row in found for text in row.kept))


def pairs_of(a: Stream, b: Stream, found_a: Sequence[Row], found_b: Sequence[Row]) -> Iterator[Pair]:
    """Yields what two runs have in common of a tapped leaf; nothing where they have nothing in common."""
    for one in found_a:
        for other in found_b:
            if one.leaf.path == other.leaf.path:
                yield from _common(a, b, one, other)


def kept_side(stream: Stream, found: Row, kind: str, lanes: int | None = None) -> KeptSide | None:
    """Returns a leaf as something of one kind; None where nothing tells of it.

    Args:
        stream: whose leaf it is.
        found: the leaf.
        kind: the kind.
        lanes: how many axes of lanes the other side has, as whose the whole leaf is taken; None: it must be kept.
    """
    leaf, kept = found.leaf, found.kind(kind)
    if kept is not None:
        parts = {part: stream.side(place) for part, place in kept.places.items()}
        sides, count, axes = parts, kept.lanes, None
    elif lanes is not None and found.array is not None:
        there = (axis for axis in LeafLanes(stream.site, found.array).axes if axis is not None)
        axes = tuple(there)
        sides, count = {"full": stream.side(found.array)}, lanes
    else:
        return None
    return KeptSide(
        shape=leaf.shape,
        dtype=dtypes.from_name(leaf.dtype),
        key_impl=leaf.key_impl,
        unknown=next(iter(sides.values())).unknown,
        nbytes=sum(math.prod(side.shape) * side.dtype.itemsize for side in sides.values()),
        parts=sides,
        lanes=count,
        axes=axes,
    )


def _common(a: Stream, b: Stream, one: Row, other: Row) -> Iterator[Pair]:
    if one.array is not None and other.array is not None:
        yield _arrays(a, b, one, other)
        return
    for kind in ("fingerprint", "summary", "histogram"):
        kinds = one.kind(kind), other.kind(kind)
        if kind == "histogram" and not _same_bins(*kinds):
            continue
        # Lanes of a whole leaf are taken apart as the other side has them.
        lanes = [None if of is None or kind == "histogram" else of.lanes for of in (kinds[1], kinds[0])]
        sides = kept_side(a, one, kind, lanes[0]), kept_side(b, other, kind, lanes[1])
        if sides[0] is not None and sides[1] is not None:
            whole = "a" if sides[0].is_whole else "b" if sides[1].is_whole else None
            yield Pair(one.leaf.path, sides[0], sides[1], By(kind, whole))


def _same_bins(a: Kind | None, b: Kind | None) -> bool:
    return a is not None and b is not None and a.keep == b.keep


def _arrays(a: Stream, b: Stream, one: Row, other: Row) -> Pair:
    places = one.places[0] if one.array is None else one.array, other.places[0] if other.array is None else other.array
    leaf = a.site.leaves[places[0]]
    kept = [stream.site.leaves[place].kept for stream, place in zip((a, b), places, strict=True)]
    opaque = any(of is not None and of.part in _EXACT for of in kept)
    of = None
    if leaf.kept is not None and is_float(dtypes.from_name(leaf.dtype)):
        # Quantiles of bfloat16 are float32, and no nearer than what they are of.
        of = dtypes.from_name(leaf.kept.dtype)
    return Pair(one.leaf.path, a.side(places[0]), b.side(places[1]), opaque=opaque, of=of)


def lanes_alike(a: KeptSide, b: KeptSide, kind: str) -> None:
    """Raises NotComparable where the lanes of two sides are not the same ones."""
    if a.lanes != b.lanes:
        message = f"kept with {a.lanes} axes of lanes and with {b.lanes}: a {kind} is of each lane, or of all together"
        raise NotComparable(message)
    for side in (a, b):
        if side.axes is not None and side.lanes not in (0, len(side.axes)):
            message = f"the full leaf has {len(side.axes)} axes of lanes, the {kind} of the other run {side.lanes}"
            raise NotComparable(message)
