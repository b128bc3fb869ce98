"""What is to be exported: records of taps, kind by kind, read a block at a time."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tracerec.trace.blocks import blocks
from tracerec.trace.order import places
from tracerec.trace.view import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np

    from tracerec.model import Site
    from tracerec.progress import Progress
    from tracerec.trace.blocks import Block
    from tracerec.trace.view import StreamView

__all__ = ["Job", "Kind", "escaped", "kinds"]

_LONGEST_NAME = 160
"""Bytes of an escaped name: file systems allow 255, some of which stand before and behind it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    """Records of a tap that are alike: the same leaves, and the same transforms.

    Attributes:
        tap: the tap's name.
        name: a name of its own, which any file system and HDF5 take: the tap's, percent-escaped, with the
            transforms behind it where the tap has several kinds.
        views: its streams.
    """

    tap: str
    name: str
    views: tuple[StreamView, ...]

    @property
    def site(self) -> Site:
        """What is static of it, but for kwargs that differ between streams."""
        return self.views[0].site

    @property
    def records(self) -> int:
        """How many records there are."""
        return sum(view.records for view in self.views)

    @property
    def nbytes(self) -> int:
        """Bytes of their arrays."""
        return sum(view.records * view.site.record_nbytes for view in self.views)

    @cached_property
    def places(self) -> list[np.ndarray]:
        """For each view the place of its records in program order."""
        return places(self.views)

    def blocks(self) -> Iterator[Block]:
        """Yields the records in program order, about 8 MiB at a time."""
        return blocks(self.views, self.places, BLOCK_BYTES)


@dataclasses.dataclass(eq=False)
class Job:
    """One export.

    Attributes:
        kinds: what to export, in the order in which taps first fired.
        progress: told of bytes that are done.
        about: of the run, JSON values: what is worth keeping beside the data.
        left_out: sentences about what the form could not hold; the writer adds to it.
        rounded: how many numbers of each tap the form could not hold exactly; the writer counts.
    """

    kinds: Sequence[Kind]
    progress: Progress
    about: dict[str, Any]
    left_out: list[str] = dataclasses.field(default_factory=list[str])
    rounded: dict[str, int] = dataclasses.field(default_factory=dict[str, int])

    def advance(self, kind: Kind, records: int) -> None:
        """Says that so many records of a kind are done."""
        self.progress.advance(records * kind.site.record_nbytes)


def kinds(taps: Iterable[tuple[str, Sequence[StreamView]]]) -> list[Kind]:
    """Returns the kinds of some taps, given by name with their views."""
    found: list[Kind] = []
    for tap, views in taps:
        groups: dict[Any, list[StreamView]] = {}
        for view in views:
            arrays = tuple((leaf.path, leaf.shape, leaf.dtype, leaf.key_impl) for leaf in view.site.leaves)
            groups.setdefault((arrays, view.site.transforms), []).append(view)
        for label, group in zip(_labels(groups), groups.values(), strict=True):
            name = escaped(tap) if len(groups) == 1 else f"{escaped(tap)}.{label}"
            found.append(Kind(tap, name, tuple(group)))
    return found


def escaped(name: str) -> str:
    """Returns a tap's name as a file can have it: percent-escaped UTF-8; of a long one the beginning and a digest.

    Example:
        >>> escaped("encoder/act"), escaped("..")
        ('encoder%2Fact', '%2E%2E')
    """
    text = quote(name.encode("utf-8", "surrogatepass"), safe="")
    if text.startswith("."):
        text = text.replace(".", "%2E")
    if len(text) <= _LONGEST_NAME:
        return text or "%"
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{text[: _LONGEST_NAME - 20].rsplit('%', 1)[0]}~{digest}"


def _labels(groups: Iterable[tuple[Any, Any]]) -> list[str]:
    """Returns a label for each kind of a tap, from its transforms; numbered where these do not tell them apart."""
    found: list[str] = []
    counts: dict[str, int] = {}
    for _, transforms in groups:
        label = "-".join(t.name for t in transforms) or "primal"
        counts[label] = counts.get(label, 0) + 1
        found.append(label if counts[label] == 1 else f"{label}-{counts[label]}")
    return found
