"""From queued items to what consumers get: records grouped by site, with their rows of the index table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracerec.model import FLAG_CALL_GUESSED, FLAG_STEP, INDEX_DTYPE, Record, Site
from tracerec.outfeed.programs import CallCounter, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.outfeed.functions import HostFunction
    from tracerec.outfeed.queue import Emitter, Item
    from tracerec.plans import Choice

__all__ = ["Batch", "Batcher", "Group", "joined"]

UNKNOWN_DEVICE = -1


@dataclasses.dataclass(slots=True)
class Group:
    """Records of one site, in arrival order.

    Attributes:
        site: the site.
        rows: their index rows, of `INDEX_DTYPE`.
        arrays: for each record its leaves and then its columns, numbers in their logical dtype.
        function: the function that the records are for; None: they are for recorders.
        choice: what recordings had chosen when the tap was traced; None: no recording had.
    """

    site: Site
    rows: np.ndarray
    arrays: list[tuple[np.ndarray, ...]]
    function: HostFunction | None = None
    choice: Choice | None = None

    def since(self, arrival: int) -> Group:
        """Returns the records that arrived as number ``arrival`` or later."""
        first = int(np.searchsorted(self.rows["arrival"], arrival))
        return dataclasses.replace(self, rows=self.rows[first:], arrays=self.arrays[first:])

    def picked(self, numbers: np.ndarray) -> Group:
        """Returns some of the records, by their numbers here, ascending."""
        arrays = [self.arrays[number] for number in numbers.tolist()]
        return dataclasses.replace(self, rows=self.rows[numbers], arrays=arrays)

    def records(self) -> Iterator[Record]:
        """Yields the records one by one."""
        n = len(self.site.leaves)
        for row, arrays in zip(self.rows, self.arrays, strict=True):
            numbers = tuple(c.to_python(a) for c, a in zip(self.site.columns, arrays[n:], strict=True))
            yield Record(self.site, row, arrays[:n], numbers)


@dataclasses.dataclass(slots=True)
class Batch:
    """What the receiver hands to a consumer at once."""

    groups: list[Group]
    count: int

    def recorded(self) -> Batch:
        """Returns the records that are for recorders."""
        groups = [group for group in self.groups if group.function is None]
        return Batch(groups, sum(len(group.arrays) for group in groups))

    def function_calls(self) -> list[tuple[HostFunction, Group]]:
        """Returns the records that are for functions, each as a group of its own, in the order of arrival."""
        calls = [
            (group.function, Group(group.site, group.rows[i : i + 1], group.arrays[i : i + 1], group.function))
            for group in self.groups
            if group.function is not None
            for i in range(len(group.arrays))
        ]
        return sorted(calls, key=lambda call: int(call[1].rows["arrival"][0]))

    def since(self, arrival: int) -> Batch:
        """Returns the records that arrived as number ``arrival`` or later."""
        if all(group.rows["arrival"][0] >= arrival for group in self.groups):
            return self
        groups = [group.since(arrival) for group in self.groups]
        groups = [group for group in groups if group.arrays]
        return Batch(groups, sum(len(group.arrays) for group in groups))


class Batcher:
    """Groups items by emitter and numbers their calls. One for a receiver: it remembers where calls stand."""

    def __init__(self) -> None:
        self._calls = CallCounter()
        self._numbers: dict[int, int] = {}

    def batch(self, items: list[Item]) -> Batch:
        """Returns the items of one take as a batch."""
        by_emitter: dict[Emitter, list[_Member]] = {}
        count = 0
        for item in items:
            emitter, _, device, shard, _, _ = item
            place = self._calls.place(emitter, shard)
            if emitter.is_mark:
                continue
            where = UNKNOWN_DEVICE if device is None else device
            number = self._numbers.get(where, 0)
            self._numbers[where] = number + 1
            by_emitter.setdefault(emitter, []).append(_Member(item, number, place))
            count += 1
        return Batch(_by_site([_group(emitter, members) for emitter, members in by_emitter.items()]), count)


class _Member(NamedTuple):
    item: Item
    number: int
    place: Place


def joined(groups: list[Group]) -> list[Group]:
    """Returns groups of recorders, those of one site as one, whatever was chosen when they were traced."""
    return _by_site([dataclasses.replace(group, choice=None) for group in groups])


def _by_site(groups: list[Group]) -> list[Group]:
    """Returns the groups, those of recorders with the same site as one: a tap may be in several programs.

    A stream's records are in the order of their arrival, whichever program they come from.
    """
    by_site: dict[Any, list[Group]] = {}
    for group in groups:
        if group.function is None:
            by_site.setdefault((group.site.id, group.choice), []).append(group)
    if all(len(same) == 1 for same in by_site.values()):
        return groups
    return [group for group in groups if group.function is not None] + [_joined(same) for same in by_site.values()]


def _joined(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    rows = np.concatenate([group.rows for group in groups])
    arrays = [each for group in groups for each in group.arrays]
    order = np.argsort(rows["arrival"])
    return dataclasses.replace(groups[0], rows=rows[order], arrays=[arrays[n] for n in order.tolist()])


def _group(emitter: Emitter, members: list[_Member]) -> Group:
    site = emitter.site
    arrays = [_decode_words(member.item[1], emitter.words) for member in members]
    rows = np.zeros(len(members), INDEX_DTYPE)
    rows["arrival"] = [member.item[5] for member in members]
    rows["time"] = [member.item[4] for member in members]
    rows["device"] = [UNKNOWN_DEVICE if member.item[2] is None else member.item[2] for member in members]
    rows["shard"] = [member.item[3] for member in members]
    rows["number"] = [member.number for member in members]
    rows["call"] = [member.place.call for member in members]
    rows["iteration"] = [member.place.iteration for member in members]
    rows["flags"] = [FLAG_CALL_GUESSED if member.place.guessed else 0 for member in members]
    rows["position"] = emitter.position
    rows["program"] = emitter.program.number
    _set_step(site, rows, arrays)
    return Group(site, rows, arrays, emitter.function, emitter.choice)


def _set_step(site: Site, rows: np.ndarray, arrays: list[tuple[np.ndarray, ...]]) -> None:
    for number, column in enumerate(site.columns, start=len(site.leaves)):
        if column.in_index:
            rows["step"] = [int(record[number]) for record in arrays]
            rows["flags"] |= FLAG_STEP


def _decode_words(
    arrays: tuple[np.ndarray, ...], words: tuple[tuple[int, np.dtype[Any]], ...]
) -> tuple[np.ndarray, ...]:
    if not words:
        return arrays
    decoded = list(arrays)
    for number, dtype in words:
        array = np.ascontiguousarray(decoded[number])
        decoded[number] = array.view(dtype).reshape(array.shape[:-1])
    return tuple(decoded)
