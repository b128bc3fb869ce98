"""Programs and calls: which records belong to one execution of one compiled program."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracerec.outfeed.queue import Emitter

__all__ = ["EAGER", "CallCounter", "Place", "Program"]

_REMEMBERED_CALLS = 1024


@dataclasses.dataclass(eq=False, slots=True)
class Program:
    """A program that was lowered, or the eager world.

    Attributes:
        number: unique in this process; 0 is the eager world.
        has_mark: whether it tells the host when a call begins.
        eager_call: for an eager tap that fires once a device: the call that these records share, once it is known.
    """

    number: int
    has_mark: bool = False
    eager_call: int | None = None


EAGER = Program(0)
"""Every record is a call of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where one firing stands: its call, how often its position had fired in it, whether the call is a guess."""

    call: int
    iteration: int
    guessed: bool


class CallCounter:
    """Numbers the executions of programs from the order in which their taps fire.

    A tap outside every loop fires at most once a call, so its second firing begins the next call, for sure. A program
    with taps in loops sends a mark when a call begins. A tap in a loop may overtake the mark, so such a record's call
    is a good guess, no more.
    """

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[tuple[int, int], _OpenCall] = {}
        self._by_ordinal: dict[tuple[int, int], int] = {}

    def place(self, emitter: Emitter, shard: int) -> Place:
        """Returns where a firing stands; a mark's own firing counts too."""
        if emitter.program is EAGER:
            return Place(self._new(), 0, guessed=False)
        program = emitter.program
        if program.number == EAGER.number:
            if program.eager_call is None:
                program.eager_call = self._new()
            return Place(program.eager_call, 0, guessed=False)
        key = (program.number, shard)
        call = self._open.get(key)
        if call is None or _begins(emitter, call):
            ordinal = 0 if call is None else call.ordinal + 1
            call = self._open[key] = _OpenCall(self._number(program.number, ordinal), ordinal)
        return Place(call.number, call.fire(emitter), guessed=not emitter.once)

    def _number(self, program: int, ordinal: int) -> int:
        # The k-th call of a program on one shard is its k-th call on every other.
        number = self._by_ordinal.pop((program, ordinal), None)
        if number is None:
            number = self._new()
        self._by_ordinal[program, ordinal] = number
        self._by_ordinal.pop((program, ordinal - _REMEMBERED_CALLS), None)
        return number

    def _new(self) -> int:
        self._next += 1
        return self._next - 1


def _begins(emitter: Emitter, call: _OpenCall) -> bool:
    if emitter.is_mark:
        return call.marked
    # A tap of the main block that overtook the mark of its call still fires once a call.
    return emitter.once and emitter.position in call.counts


class _OpenCall:
    __slots__ = ("counts", "marked", "number", "ordinal")

    def __init__(self, number: int, ordinal: int) -> None:
        self.number = number
        self.ordinal = ordinal
        self.counts: dict[int, int] = {}
        self.marked = False

    def fire(self, emitter: Emitter) -> int:
        if emitter.is_mark:
            self.marked = True
            return 0
        count = self.counts.get(emitter.position, 0)
        self.counts[emitter.position] = count + 1
        return count
