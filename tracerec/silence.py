"""Why a recording has no record: what its taps say. Free of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracerec.gating import Gate

__all__ = ["reason"]

_SHOWN = 5


def reason(gate: Gate, notes: Mapping[str, frozenset[str]]) -> str:
    """Returns sentences that say why no record has come.

    Args:
        gate: the recording's.
        notes: what became of each tap that was traced, as `tracerec.tapping.traced` has it.

    Example:
        >>> from tracerec.gating import Gate
        >>> from tracerec.plans import Policy
        >>> reason(Gate(Policy(), None), {"loss": frozenset({"not now"})})
        'loss: when=, every=, first= or steps= said no each time it was traced'
    """
    if gate.settings.paused:
        return "it is paused"
    if gate.skipped:
        return (
            f"{gate.skipped} records have come, none of which it takes: its policy is {gate.policy}, "
            f"its settings are {gate.settings.to_json()}"
        )
    if not notes:
        return (
            "no tap was traced meanwhile: the functions that have taps were not called, or under tracerec.disabled(), "
            "or were compiled before and did not run"
        )
    by_reason: dict[str, list[str]] = {}
    for tap, known in notes.items():
        by_reason.setdefault(_of_tap(known), []).append(tap)
    return "; ".join(f"{_names(taps)}: {why}" for why, taps in by_reason.items())


def _of_tap(known: frozenset[str]) -> str:
    if "decided on the device" in known:
        return "when=, every=, first= or steps= said no whenever it ran, or the program did not run"
    if "traced" not in known and "left out" in known:
        return "left out by taps="
    if known & {"not now"}:
        return "when=, every=, first= or steps= said no each time it was traced"
    if "left out" in known:
        return "left out by taps=, or traced and its program did not run meanwhile"
    return "traced, but its program did not run while this recorded"


def _names(taps: list[str]) -> str:
    more = f" and {len(taps) - _SHOWN} more" if len(taps) > _SHOWN else ""
    return ", ".join(taps[:_SHOWN]) + more
