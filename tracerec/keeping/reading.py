"""Which of a site's arrays stand for which tapped leaf, and what they say of it.

A tap that keeps something smaller than its leaves records other arrays than these. `rows` puts them together again: one
row is a tapped leaf whose statistics are known, from all of it or from what the device counted; what else was kept of
it (a slice, quantiles, ...) is a row of its own, as any array is. Arrays whose description this version does not know,
or whose shapes contradict it, stand for themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.keeping.bins import is_wide
from tracerec.keeping.parsing import WORDS, from_json
from tracerec.keeping.specs import COUNTED, MOMENTS, OUTSIDE, Full, Function, Histogram, Keep, Slice
from tracerec.keeping.summaries import summary_columns
from tracerec.model import Leaf
from tracerec.statistics import COUNTS, MEASURES, Moments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracerec.model import Kept, Site

    Read = Callable[[int], np.ndarray]
    """Returns the array at a place in ``site.leaves``, of the records at hand: ``(n, *shape)``."""

__all__ = ["NOT_KNOWN", "Kind", "Row", "fault", "keep_text", "moments_at", "places_at", "rows", "told"]

NOT_KNOWN = -1
"""Stands for a count that what was kept does not tell."""

_TELLING = ("full", "summary", "fingerprint", "histogram")
"""The kinds that tell statistics of the whole leaf, the one that tells most first."""

_COMPLEX = {"complex64": "float32", "complex128": "float64"}


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind that was kept of a leaf.

    Attributes:
        keep: which.
        lanes: how many leading axes of its arrays are lanes.
        places: the places of its arrays in ``site.leaves``, by part.
    """

    keep: Keep
    lanes: int
    places: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A tapped leaf, or an array that stands for itself.

    Attributes:
        leaf: the leaf as tapped, with the number of its first array; or the array.
        places: the places of its arrays in ``site.leaves``.
        kinds: what was kept, of a tapped leaf the kinds that tell its statistics, the one that tells most first;
            empty for a leaf recorded as ever.
        array: the place of the array whose elements the row speaks of; None where no such was recorded.
    """

    leaf: Leaf
    places: tuple[int, ...]
    kinds: tuple[Kind, ...] = ()
    array: int | None = None

    @property
    def kept(self) -> tuple[str, ...]:
        """What was kept, as texts: ``("full",)`` for a leaf recorded as ever."""
        return tuple(keep_text(kind.keep) for kind in self.kinds) or ("full",)

    @property
    def source(self) -> Kind | None:
        """What tells its statistics, where no array does."""
        return None if self.array is not None else self.kinds[0]

    @property
    def summary_place(self) -> int:
        """The place of an array whose summary, of `tracerec.summaries`, is that of the row."""
        return self.array if self.array is not None else min(self.kinds[0].places.values())

    @property
    def zeros_known(self) -> bool:
        """Whether its statistics tell how many elements are zero: a histogram by value does not."""
        keep = None if self.source is None else self.source.keep
        return not isinstance(keep, Histogram) or keep.by != "linear"

    def kind(self, name: str) -> Kind | None:
        """Returns the first kind of a name, such as ``"histogram"``, all of whose arrays are there."""
        found = (kind for kind in self.kinds if kind.keep.name == name and set(kind.places) == set(kind.keep.parts))
        return next(found, None)

    def statistics(self, read: Read) -> dict[str, np.ndarray]:
        """Returns what `source` tells of some records, as `told` has it.

        Args:
            read: returns an array by its place, of these records.
        """
        return told(self.kinds[0], read, key=self.leaf.key_impl is not None)

    def scalars(self, read: Read) -> np.ndarray | None:
        """Returns the values of a scalar leaf of some records, ``(n,)``, which its summary tells; else None."""
        kind = self.kind("summary")
        plain = self.leaf.shape == () and self.leaf.key_impl is None and self.leaf.dtype not in _COMPLEX
        if kind is None or not plain:
            return None
        counts, values = read(kind.places["counts"]), read(kind.places["range"])[..., 0].copy()
        for name, value in (("nan", np.nan), ("posinf", np.inf), ("neginf", -np.inf)):
            which = counts[..., COUNTED.index(name)] > 0
            if which.any():
                values[which] = value
        return values

    def digests(self, read: Read, live: Callable[[int], np.ndarray | None] | None = None) -> list[str] | None:
        """Returns the fingerprint's digest of some records: 16 hexadecimal digits, of lanes one each, between spaces.

        Args:
            read: returns an array by its place, of these records.
            live: returns which elements of an array count, bools that broadcast to it (None: all); a lane that does
                not is ``"-"``.

        Returns:
            A text a record; None where no fingerprint was kept.
        """
        kind = self.kind("fingerprint")
        if kind is None:
            return None
        words = read(kind.places["digest"]).astype(np.uint64)
        numbers = _flat((words[..., 1] << np.uint64(32)) | words[..., 0])
        shown = np.ones(numbers.shape, bool)
        counts = None if live is None else live(kind.places["digest"])
        if counts is not None:
            shown = _flat(np.broadcast_to(counts, words.shape)[..., 0])
        pairs = zip(numbers.tolist(), shown.tolist(), strict=True)
        return [" ".join(f"{n:016x}" if s else "-" for n, s in zip(*pair, strict=True)) for pair in pairs]


def rows(site: Site) -> tuple[Row, ...]:
    """Returns the rows that a site's records have in tables, in order; every array is in one of them.

    Example:
        >>> from tracerec.model import Kept, Site
        >>> fingerprint = '{"kind":"fingerprint"}'
        >>> parts = (("digest", 2), ("counts", 6))
        >>> leaves = [
        ...     Leaf(f".fingerprint.{part}", (size,), "uint32", i, kept=Kept(fingerprint, part, "", (3, 4), "bfloat16"))
        ...     for i, (part, size) in enumerate(parts)
        ... ]
        >>> (row,) = rows(Site("act", tuple(leaves)))
        >>> row.leaf.dtype, row.leaf.shape, row.kept, row.array
        ('bfloat16', (3, 4), ('fingerprint',), None)
    """
    if all(leaf.kept is None for leaf in site.leaves):
        return tuple(Row(leaf, (place,), (), place) for place, leaf in enumerate(site.leaves))
    found: list[Row] = []
    for group in _groups(site):
        found += _rows(site, group)
    return tuple(sorted(found, key=lambda row: row.places[0]))


def told(kind: Kind, read: Read, *, key: bool = False) -> dict[str, np.ndarray]:
    """Returns the statistics that a kind tells of some records: of all lanes together, without what does not count.

    Args:
        kind: a summary, a fingerprint or a histogram, with all its arrays.
        read: returns an array by its place, of these records.
        key: whether the leaf is a PRNG key: as of one that was recorded whole, its elements are counted alone.

    Returns:
        Arrays ``(n,)``: int64 for each of `tracerec.statistics.COUNTS`, `NOT_KNOWN` where the kind does not tell;
        float64 for each of `tracerec.statistics.MEASURES`, NaN where no element is finite or the kind does not tell.
    """
    out = _TOLD[kind.keep.name](kind, read)
    if key:
        out = {name: out[name] if name == "count" else np.zeros_like(out[name]) for name in COUNTS}
    nothing = np.full(len(out["count"]), np.nan)
    return {name: out[name] for name in COUNTS} | {name: out.get(name, nothing) for name in MEASURES}


def places_at(site: Site, path: str) -> list[int]:
    """Returns the places of the arrays at a key path: of an array, of a tapped leaf, or of one kind kept of it."""
    exact = [place for place, leaf in enumerate(site.leaves) if leaf.path == path]
    if exact:
        return exact
    kept = [(place, leaf.path, leaf.kept.path) for place, leaf in enumerate(site.leaves) if leaf.kept is not None]
    tapped = [place for place, _, of in kept if of == path]
    return tapped or [place for place, own, of in kept if own.rpartition(".")[0] == path and path != of]


def fault(site: Site) -> str | None:
    """Returns what contradicts itself in what a site says was kept; None where nothing does.

    A kind that this version does not know is no fault: a newer one may have made it.
    """
    for group in _groups(site):
        for kind, parts in _kinds(site, group):
            path = parts[0][0].path or "a leaf"
            for leaf, kept in parts:
                if (wrong := _wrong(kind, leaf, kept)) is not None:
                    return f"{leaf.path or 'a leaf'}: {wrong}"
            if len({leaf.shape[: kind.lanes] for leaf, _ in parts}) > 1:
                return f"{path}: the arrays of {keep_text(kind.keep)} have lanes of different shapes"
            missing = set(kind.keep.parts) - set(kind.places)
            if missing and not isinstance(kind.keep, Function):
                return f"{path}: {keep_text(kind.keep)} lacks {', '.join(sorted(missing))}"
    return None


def keep_text(keep: Keep) -> str:
    """Returns a kind as short text.

    Example:
        >>> from tracerec.keeping import Sample, Summary
        >>> keep_text(Summary()), keep_text(Sample(10)), keep_text(Slice(0, ..., slice(None, 4)))
        ('summary', 'sample(n=10)', 'slice[0,...,:4]')
    """
    if isinstance(keep, Function) or keep == WORDS.get(keep.name):
        return keep.name
    if isinstance(keep, Slice):
        return f"slice[{','.join(map(_index_text, keep.index))}]"
    fields: Any = dataclasses.fields(keep)  # type: ignore[arg-type] - every kind is a dataclass
    said = [(field.name, getattr(keep, field.name)) for field in fields if getattr(keep, field.name) != field.default]
    return f"{keep.name}({', '.join(f'{name}={value}' for name, value in said)})" if said else keep.name


def moments_at(statistics: Mapping[str, np.ndarray], number: int) -> Moments:
    """Returns the moments of one record from `Row.statistics`; a count that is not known is 0."""
    counts = {name: max(0, int(statistics[name][number])) for name in COUNTS}
    measures = {name: float(statistics[name][number]) for name in MEASURES}
    finite = counts["count"] - counts["nan"] - counts["posinf"] - counts["neginf"]
    known: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in measures.items()}
    return Moments(finite=max(0, finite), **counts, **known)


def _index_text(item: int | str | tuple[int | None, ...]) -> str:
    if not isinstance(item, tuple):
        return str(item)
    start, stop, step = ("" if x is None else str(x) for x in item)
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def _groups(site: Site) -> Iterator[list[int]]:
    """Yields the places of arrays that stand for the same tapped leaf."""

    def leaf_of(place: int) -> Any:
        kept = site.leaves[place].kept
        return place if kept is None else (kept.path, kept.shape, kept.dtype, kept.key_impl)

    for _, places in itertools.groupby(range(len(site.leaves)), leaf_of):
        group: list[int] = []
        seen: set[Any] = set()
        for place in places:
            kept = site.leaves[place].kept
            part = None if kept is None else (kept.keep, kept.part)
            if part in seen:
                # Leaves of a user's class can have one key path.
                yield group
                group, seen = [], set()
            group.append(place)
            seen.add(part)
        yield group


def _kinds(site: Site, group: Sequence[int]) -> list[tuple[Kind, list[tuple[Leaf, Kept]]]]:
    """Returns the kinds that a group's arrays are of, as far as they are known, each with its arrays."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for place in group:
        kept = site.leaves[place].kept
        if kept is not None:
            found.setdefault((kept.keep, kept.lanes), {})[kept.part] = place
    kinds: list[tuple[Kind, list[tuple[Leaf, Kept]]]] = []
    for (text, lanes), places in found.items():
        try:
            keep = from_json(json.loads(text))
        except (ValueError, RecursionError):
            continue
        leaves = [site.leaves[place] for place in places.values()]
        kinds.append((Kind(keep, lanes, places), [(leaf, leaf.kept) for leaf in leaves if leaf.kept is not None]))
    return kinds


def _rows(site: Site, group: Sequence[int]) -> Iterator[Row]:
    telling: list[Kind] = []
    alone: dict[int, Kind] = {}
    tapped: Kept | None = None
    for kind, parts in _kinds(site, group):
        if kind.keep.name in _TELLING and not isinstance(kind.keep, Function) and _fits(kind, parts):
            telling.append(kind)
            tapped = parts[0][1]
        else:
            alone |= dict.fromkeys(kind.places.values(), kind)
    if tapped is not None:
        telling.sort(key=lambda kind: _TELLING.index(kind.keep.name))
        places = tuple(sorted(place for kind in telling for place in kind.places.values()))
        leaf = Leaf(tapped.path, tapped.shape, tapped.dtype, site.leaves[places[0]].number, tapped.key_impl)
        whole = telling[0].places["full"] if telling[0].keep == Full() else None
        yield Row(leaf, places, tuple(telling), whole)
    said = {place for kind in telling for place in kind.places.values()}
    for place in group:
        if place not in said:
            yield Row(site.leaves[place], (place,), (alone[place],) if place in alone else (), place)


def _fits(kind: Kind, parts: Sequence[tuple[Leaf, Kept]]) -> bool:
    together = {leaf.shape[: kind.lanes] for leaf, _ in parts}
    whole = set(kind.places) == set(kind.keep.parts)
    return whole and len(together) == 1 and all(_wrong(kind, leaf, kept) is None for leaf, kept in parts)


def _wrong(kind: Kind, leaf: Leaf, kept: Kept) -> str | None:
    """Returns what is wrong with one array of a kind, if its shape or dtype cannot be; else None."""
    if not isinstance(kind.keep, Function) and kept.part not in kind.keep.parts:
        return f"{keep_text(kind.keep)} has no part {kept.part!r}"
    if not 0 <= kind.lanes <= min(len(leaf.shape), len(kept.shape)):
        return f"{kind.lanes} axes of lanes in an array of shape {leaf.shape}, of a leaf of shape {kept.shape}"
    dtype, shape = _expected(kind.keep, kept)
    if dtype is not None and leaf.dtype != dtype:
        return f"part {kept.part!r} of {keep_text(kind.keep)} is {leaf.dtype}, not {dtype}"
    own = leaf.shape[kind.lanes :]
    if shape is not None and not _alike(own, shape):
        return f"part {kept.part!r} of {keep_text(kind.keep)} has the shape {own} a lane, not {shape}"
    return None


def _alike(shape: tuple[int, ...], pattern: tuple[int | None, ...]) -> bool:
    return len(shape) == len(pattern) and all(n in (None, m) for m, n in zip(shape, pattern, strict=True))


def _expected(keep: Keep, kept: Kept) -> tuple[str | None, tuple[int | None, ...] | None]:
    """Returns dtype and shape of an array without its lanes; None for what its kind does not fix."""
    real = _COMPLEX.get(kept.dtype, kept.dtype)
    measured = "float64" if is_wide(kept.dtype) else "float32"
    fixed: dict[tuple[str, str], tuple[str, tuple[int | None, ...]]] = {
        ("full", "full"): (kept.dtype, kept.shape),
        ("summary", "counts"): ("uint32", (len(COUNTED),)),
        ("summary", "range"): (real, (2,)),
        ("summary", "moments"): (measured, (len(MOMENTS),)),
        ("fingerprint", "digest"): ("uint32", (2,)),
        ("fingerprint", "counts"): ("uint32", (len(COUNTED),)),
        ("histogram", "bins"): ("uint32", (None,)),
        ("histogram", "outside"): ("uint32", (len(OUTSIDE),)),
        ("histogram", "edges"): (measured, (None,)),
    }
    return (None, None) if isinstance(keep, Function) else fixed.get((keep.name, kept.part), (None, None))


def _of_summary(kind: Kind, read: Read) -> dict[str, np.ndarray]:
    counts, ranges, moments = (read(kind.places[part]) for part in ("counts", "range", "moments"))
    return summary_columns(counts, ranges, moments, lanes=kind.lanes)


def _of_fingerprint(kind: Kind, read: Read) -> dict[str, np.ndarray]:
    counts = _over_lanes(read(kind.places["counts"]))
    return {name: counts[:, COUNTED.index(name)] for name in COUNTS}


def _of_histogram(kind: Kind, read: Read) -> dict[str, np.ndarray]:
    outside = _over_lanes(read(kind.places["outside"]))
    inside = _flat(read(kind.places["bins"])).sum(axis=1, dtype=np.int64)
    out = {name: outside[:, OUTSIDE.index(name)] for name in ("nan", "posinf", "neginf", "zeros")}
    if isinstance(kind.keep, Histogram) and kind.keep.by == "linear":
        out["zeros"] = np.full(len(inside), NOT_KNOWN, np.int64)
    return out | {"count": inside + outside.sum(axis=1)}


def _over_lanes(counts: np.ndarray) -> np.ndarray:
    return counts.sum(axis=tuple(range(1, counts.ndim - 1)), dtype=np.int64)


def _flat(array: np.ndarray) -> np.ndarray:
    """Returns an array as ``(n, all else)``."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


_TOLD: dict[str, Callable[[Kind, Read], dict[str, np.ndarray]]] = {
    "summary": _of_summary,
    "fingerprint": _of_fingerprint,
    "histogram": _of_histogram,
}
