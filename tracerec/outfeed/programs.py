"""Programs and calls: which records belong to one execution of one compiled program."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from tracerec.outfeed.queue import Emitter

__all__ = ["EAGER", "CallCounter", "Place", "Program"]

_REMEMBERED_CALLS = 1024


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Program:
    """A program that was lowered, or the eager world.

    Attributes:
        number: unique in this process; 0 is the eager world.
        has_mark: whether it tells the host when a call begins.
        may_wait: whether its callbacks may wait for room in a full queue. On several CPU devices they may not: XLA can
            then run out of threads, so that a collective never completes.
        eager_call: for an eager tap that fires once a device: the call that these records share, once it is known.
    """

    number: int
    has_mark: bool = False
    may_wait: bool = True
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
        # programs that were let go are forgotten
        self._programs: WeakKeyDictionary[Program, _OpenProgram] = WeakKeyDictionary()

    def place(self, emitter: Emitter, shard: int) -> Place:
        """Returns where a firing stands; a mark's own firing counts too."""
        if emitter.program is EAGER:
            return Place(self._new(), 0, guessed=False)
        program = emitter.program
        if program.number == EAGER.number:
            if program.eager_call is None:
                program.eager_call = self._new()
            return Place(program.eager_call, 0, guessed=False)
        known = self._programs.get(program)
        if known is None:
            known = self._programs[program] = _OpenProgram({}, {})
        call = known.calls.get(shard)
        if call is None or _begins(emitter, call):
            ordinal = 0 if call is None else call.ordinal + 1
            call = known.calls[shard] = _OpenCall(self._number(known.numbers, ordinal), ordinal)
        return Place(call.number, call.fire(emitter), guessed=not emitter.once)

    def _number(self, numbers: dict[int, int], ordinal: int) -> int:
        # The k-th call of a program on one shard is its k-th call on every other.
        if ordinal not in numbers:
            numbers[ordinal] = self._new()
        numbers.pop(ordinal - _REMEMBERED_CALLS, None)
        return numbers[ordinal]

    def _new(self) -> int:
        self._next += 1
        return self._next - 1


def _begins(emitter: Emitter, call: _OpenCall) -> bool:
    if emitter.is_mark:
        return call.marked
    # A tap of the main block that overtook the mark of its call still fires once a call.
    return emitter.once and emitter.position in call.counts


class _OpenProgram(NamedTuple):
    """The call that each shard is in, and the numbers of the calls by their ordinal."""

    calls: dict[int, _OpenCall]
    numbers: dict[int, int]


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
