"""What a recording wants of each tap: a policy, and the plan that it makes of what the tap asks for. Free of JAX.

Policies are part of JAX's cache key, and plans of what is traced: both are hashable, and equal for equal content.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from tracerec.errors import RecordingError
from tracerec.keeping import Full, Keep, parse

__all__ = ["PLAIN", "Choice", "Plan", "Policy", "matches"]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is recorded of a tap.

    Attributes:
        keep: what of each leaf.
        over: what one row of a reduction is of: ``"lanes"``: one lane of each vmap, ``"batch"``: all of them.
        every: only of steps that this number divides; None: of each.
        derivatives: whether tangents and cotangents, too.
    """

    keep: tuple[Keep, ...] = (Full(),)
    over: str = "lanes"
    every: int | None = None
    derivatives: bool = True

    @property
    def keeps_all(self) -> bool:
        """Whether leaves are recorded as they are."""
        return self.keep == (Full(),)


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """What a recording wants.

    Attributes:
        taps: patterns of names; those that begin with ``!`` leave taps out. Empty: all taps.
        every: as `Plan.every`; None: as the tap asks.
        keep: patterns of names, each with what is kept; the first that matches holds. Empty: as the tap asks.
        derivatives: False: no tangents and cotangents; None: as the tap asks.

    Example:
        >>> policy = Policy.parsed(taps=["encoder/*", "!*/debug"], keep={"*/act": "summary"})
        >>> policy.plan("encoder/act", Plan()).keep
        (Summary(),)
        >>> policy.plan("encoder/debug", Plan()) is None
        True
    """

    taps: tuple[str, ...] = ()
    every: int | None = None
    keep: tuple[tuple[str, tuple[Keep, ...]], ...] = ()
    derivatives: bool | None = None

    @classmethod
    def parsed(
        cls,
        taps: str | Sequence[str] | None = None,
        every: int | None = None,
        keep: object = None,
        derivatives: bool | None = None,  # noqa: FBT001 - as record() has it
    ) -> Policy:
        """Returns the policy of a caller's arguments.

        Args:
            taps: a pattern or patterns.
            every: a number of steps.
            keep: a mapping of patterns to what `tracerec.keeping.parse` takes, or that alone, for all taps.
            derivatives: as `Policy.derivatives`.

        Raises:
            RecordingError: an argument is none of these.
            TapError: nothing can be kept so.
        """
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            message = f"every={every!r}: give a number of steps, 1 or more"
            raise RecordingError(message)
        if derivatives not in (True, False, None):
            message = f"derivatives={derivatives!r}: give True, False or None, which leaves it to each tap"
            raise RecordingError(message)
        kept: Mapping[Any, Any] = {} if keep is None else keep if isinstance(keep, Mapping) else {"*": keep}
        for pattern in kept:
            if not isinstance(pattern, str):
                message = f"keep={keep!r}: {pattern!r} is no pattern of tap names"
                raise RecordingError(message)
        patterns = tuple((str(pattern), parse(value)) for pattern, value in kept.items())
        return cls(_patterns(taps), every, patterns, None if derivatives else derivatives)

    def plan(self, tap: str, asked: Plan) -> Plan | None:
        """Returns what is recorded of a tap that asks for something; None: nothing."""
        if self.taps and not matches(tap, self.taps):
            return None
        keep = next((keep for pattern, keep in self.keep if _is_like(tap, pattern)), asked.keep)
        return dataclasses.replace(
            asked,
            keep=keep,
            every=asked.every if self.every is None else self.every,
            derivatives=asked.derivatives and self.derivatives is not False,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Why a tap was traced as it was.

    Attributes:
        policies: those of the recordings that ran.
        asked: what the tap asks for.
        plan: what one or several of the policies made of it.
    """

    policies: tuple[Policy, ...]
    asked: Plan
    plan: Plan


PLAIN = Policy()
"""The policy of a recording that takes what the taps give."""


def matches(tap: str, patterns: Sequence[str]) -> bool:
    """Returns whether a name matches one of some patterns, and none of those that begin with ``!``.

    Patterns of the second kind alone leave out of all taps.

    Example:
        >>> matches("encoder/act", ["encoder/*"]), matches("loss", ["!encoder/*"]), matches("loss", ["!l*", "*"])
        (True, True, False)
    """
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    if any(_is_like(tap, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return not wanted or any(_is_like(tap, pattern) for pattern in wanted)


def _is_like(tap: str, pattern: str) -> bool:
    return tap == pattern or fnmatch.fnmatchcase(tap, pattern)


def _patterns(taps: Any) -> tuple[str, ...]:
    if taps is None:
        return ()
    found = (taps,) if isinstance(taps, str) else tuple(taps) if isinstance(taps, Sequence) else None
    if not found or not all(isinstance(pattern, str) and pattern not in ("", "!") for pattern in found):
        message = f"taps={taps!r}: give patterns of tap names, such as ['encoder/*', '!*/debug']"
        raise RecordingError(message)
    return found
