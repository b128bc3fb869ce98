"""Choosing records by the options that several commands have; what is wrong is said in their words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import numpy as np

from tracerec.errors import SelectionError
from tracerec.trace.single import main_rows

if TYPE_CHECKING:
    from tracerec.model import Transform
    from tracerec.trace import Tap

__all__ = ["one_kind", "parsed_slice", "slice_text"]

_NONE = "none"
"""What ``--transforms`` calls records that went through none."""


def one_kind(tap: Tap, transforms: str | None, leaf: str | None) -> Tap:
    """Returns the tap with one leaf, whatever was kept of it, and one chain of transforms.

    Args:
        tap: the tap.
        transforms: what ``--transforms`` says: names, innermost first, with commas between them, as
            ``"jvp,transpose"`` or ``"batch(8)"``; ``"none"``; None: there has to be one chain.
        leaf: a key path; None: there has to be one leaf.

    Raises:
        SelectionError: there are none such, or several; the message has the options that choose one.
    """
    found = _of_chain(tap, transforms)
    if leaf is not None:
        return found.leaf(leaf)
    paths = list(dict.fromkeys(row.leaf.path for site in found.sites for row in main_rows(site)))
    if not paths:
        message = f"the value of tap {tap.name!r} has no arrays"
        raise SelectionError(message)
    if len(paths) > 1:
        raise _several(tap.name, "leaves", [f"--leaf {_quoted(path)}" for path in paths])
    return found.leaf(paths[0])


def _of_chain(tap: Tap, wanted: str | None) -> Tap:
    chains = list(tap.transforms)
    if wanted is not None:
        names = _names(wanted)
        chains = [chain for chain in chains if names in (tuple(t.name for t in chain), tuple(map(str, chain)))]
        if not chains:
            exist = [_option(chain, tap.transforms) for chain in tap.transforms]
            message = f"tap {tap.name!r} has no records with --transforms {wanted!r}; it has {', '.join(exist)}"
            raise SelectionError(message, choices=tuple(exist))
    if len(chains) > 1:
        options = [_option(chain, chains) for chain in chains]
        if len(set(options)) == len(options):
            raise _several(tap.name, "chains of transforms", options)
    return tap if len(chains) == len(tap.transforms) else tap.sel(transforms=chains[0])


def _names(wanted: str) -> tuple[str, ...]:
    text = wanted.strip()
    return () if text in ("", _NONE) else tuple(name.strip() for name in text.split(","))


def _option(
    chain: tuple[Transform, ...], others: list[tuple[Transform, ...]] | tuple[tuple[Transform, ...], ...]
) -> str:
    names = tuple(t.name for t in chain)
    same = [other for other in others if tuple(t.name for t in other) == names]
    text = ",".join(names if len(same) == 1 else map(str, chain)) or _NONE
    return f"--transforms {shlex.quote(text)}"


def _quoted(text: str) -> str:
    """Returns a word for a shell; a key path, which has single quotes, in double ones."""
    return f'"{text}"' if not set(text) & set('"$`\\!') else shlex.quote(text)


def _several(tap: str, what: str, options: list[str]) -> SelectionError:
    more = f", and {len(options) - _MOST} more" if len(options) > _MOST else ""
    message = f"tap {tap!r} has records of different {what}; choose one: {', '.join(options[:_MOST])}{more}"
    return SelectionError(message, choices=tuple(options))


_MOST = 12


def parsed_slice(text: str, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    """Returns an index of an array from text such as ``"0,:,::2"`` or ``"...,-1"``.

    Raises:
        SelectionError: the text is no such index, or lies outside the shape.

    Example:
        >>> parsed_slice("0,1:3", (2, 5))
        (0, slice(1, 3, None))
    """
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    dots = [number for number, part in enumerate(parts) if part == "..."]
    if len(dots) == 1:
        parts[dots[0] : dots[0] + 1] = [":"] * (len(shape) - len(parts) + 1)
    try:
        index = tuple(_parsed(part) for part in parts)
    except ValueError:
        message = f"--slice {text!r} is no index; write one such as '0,:,::2', '-1' or '...,3'"
        raise SelectionError(message) from None
    try:
        _ = np.broadcast_to(np.zeros((), bool), shape)[index]
    except IndexError as error:
        message = f"--slice {text!r} does not fit an array of shape {shape}: {error}"
        raise SelectionError(message) from None
    return index


def slice_text(index: tuple[int | slice, ...]) -> str:
    """Returns an index as Python writes it.

    Example:
        >>> slice_text((0, slice(1, 3), slice(None, None, 2)))
        '[0, 1:3, ::2]'
    """
    return f"[{', '.join(str(part) if isinstance(part, int) else _range(part) for part in index)}]"


def _range(part: slice) -> str:
    ends = f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}"
    return ends if part.step is None else f"{ends}:{part.step}"


def _parsed(part: str) -> int | slice:
    if ":" not in part:
        return int(part)
    numbers = [int(number) if number.strip() else None for number in part.split(":")]
    if len(numbers) > 3 or (len(numbers) == 3 and numbers[2] == 0):  # noqa: PLR2004 - start, stop and step
        raise ValueError
    return slice(*numbers)
