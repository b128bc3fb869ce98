"""The one leaf that all records of a tap have; where there are several, an error with the calls that choose one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracerec.errors import SelectionError
from tracerec.keeping.reading import rows
from tracerec.trace import shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracerec.keeping.reading import Row
    from tracerec.model import Leaf, Site, Transform

__all__ = ["ambiguous", "main_rows", "one_leaf", "one_row", "row_text"]


def one_leaf(name: str, call: str, sites: Sequence[Site], *, ragged: bool = False, whole: bool = False) -> Leaf:
    """Returns the one array that all streams of a tap have.

    Args:
        name: the tap's name.
        call: how the caller got the tap, as Python.
        sites: the streams' sites.
        ragged: whether shapes may differ.
        whole: whether those of the arrays that leaves are shards of are meant.

    Raises:
        SelectionError: there is none, or there are several.
    """
    _check_chain(name, call, sites)
    paths = list(dict.fromkeys(leaf.path for site in sites for leaf in site.leaves))
    if len(paths) > 1:
        raise _several(name, call, sites, paths)
    leaves = [leaf for site in sites for leaf in site.leaves]
    shapes = {() if ragged else shards.whole_shape(leaf) if whole else leaf.shape for leaf in leaves}
    if len(shapes) > 1 or len({(leaf.dtype, leaf.key_impl) for leaf in leaves}) > 1:
        what, calls = "shapes or dtypes", [f".streams[{n}]" for n in range(len(sites))]
        notes = [_array_text(site.leaves[0]) for site in sites]
        if not whole and any(leaf.global_shape is not None for leaf in leaves):
            calls, notes = [".to_numpy(assemble=True)", *calls], ["the shards put together", *notes]
        raise ambiguous(name, call, what, calls, notes)
    return sites[0].leaves[0]


def one_row(name: str, call: str, sites: Sequence[Site]) -> Row:
    """Returns the one tapped leaf that all streams of a tap have, whatever its shapes and whatever was kept of it.

    Where other arrays were kept beside it, it is that leaf all the same.

    Args:
        name: the tap's name.
        call: how the caller got the tap, as Python.
        sites: the streams' sites.

    Raises:
        SelectionError: there is none, or there are several.
    """
    _check_chain(name, call, sites)
    found = [main_rows(site) for site in sites]
    paths = list(dict.fromkeys(row.leaf.path for group in found for row in group))
    if len(paths) > 1:
        raise ambiguous(name, call, "leaves", [f".leaf({path!r})" for path in paths])
    kinds = {(row.leaf.dtype, row.leaf.key_impl) for group in found for row in group}
    if len(kinds) > 1:
        notes = [row_text(group[0]) for group in found]
        raise ambiguous(name, call, "shapes or dtypes", [f".streams[{n}]" for n in range(len(sites))], notes)
    return found[0][0]


def main_rows(site: Site) -> list[Row]:
    """Returns the rows of a site, without those of arrays that were kept beside a leaf whose statistics are known."""
    found = rows(site)
    known = {row.leaf.path for row in found if row.kinds and row.leaf.kept is None}
    return [row for row in found if row.leaf.kept is None or row.leaf.kept.path not in known]


def ambiguous(name: str, call: str, what: str, calls: Sequence[str], notes: Sequence[str] = ()) -> SelectionError:
    """Returns the error that says in what records differ, with the calls that choose one."""
    return _choose(name, call, f"has records of different {what}", calls, notes)


def row_text(row: Row) -> str:
    """Returns a row as short text: its path, dtype and shape, and what was kept if that is not all of it."""
    kept = "" if not row.kinds or row.leaf.kept is not None else f" as {', '.join(row.kept)}"
    return _array_text(row.leaf) + kept


_CHOICES = 20


def _check_chain(name: str, call: str, sites: Sequence[Site]) -> None:
    if not any(site.leaves for site in sites):
        message = f"the value of tap {name!r} has no arrays"
        raise SelectionError(message)
    chains: list[tuple[Transform, ...]] = list(dict.fromkeys(site.transforms for site in sites))
    if len(chains) > 1:
        names = [tuple(t.name for t in chain) for chain in chains]
        shown = names if len(set(names)) == len(names) else chains
        raise ambiguous(name, call, "chains of transforms", [f".sel(transforms={chain!r})" for chain in shown])


def _several(name: str, call: str, sites: Sequence[Site], paths: Sequence[str]) -> SelectionError:
    calls = [f".leaf({path!r})" for path in paths]
    kept = list(dict.fromkeys(text for site in sites for row in rows(site) if row.kinds for text in row.kept))
    if not kept:
        return ambiguous(name, call, "leaves", calls)
    whole = {row.leaf.path for site in sites for row in rows(site) if row.array is not None and not row.kinds}
    whole |= {leaf.path for site in sites for leaf in site.leaves if leaf.kept is not None and leaf.kept.part == "full"}
    order = sorted(paths, key=lambda path: path not in whole)
    notes = ["the leaf itself" if path in whole else "" for path in order]
    calls = [f".leaf({path!r})" for path in order]
    what = f"has kept {', '.join(kept)}, which is more than one array"
    return _choose(name, call, what, [".to_pandas()", *calls], ["the statistics", *notes])


def _choose(name: str, call: str, what: str, calls: Sequence[str], notes: Sequence[str] = ()) -> SelectionError:
    choices = tuple(call + each for each in calls)
    lines = [f"{c}  # {n}" if n else c for c, n in zip(choices, notes, strict=True)] if notes else list(choices)
    shown = "".join(f"\n    {line}" for line in lines[:_CHOICES])
    more = f"\n    and {len(lines) - _CHOICES} more" if len(lines) > _CHOICES else ""
    message = f"tap {name!r} {what}; choose one:{shown}{more}"
    return SelectionError(message, choices=choices)


def _array_text(leaf: Leaf) -> str:
    kind = leaf.dtype if leaf.key_impl is None else f"key<{leaf.key_impl}>"
    return f"{leaf.path or 'array'} {kind}[{','.join(map(str, leaf.shape))}]"
