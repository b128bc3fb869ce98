"""What became of each tap when it was traced: for the recording that gets no record, and must say why."""

from __future__ import annotations

import threading

__all__ = ["begin", "note", "notes"]

_MOST = 4096
_lock = threading.Lock()
_notes: dict[str, dict[str, int]] = {}
_turn = 0


def begin() -> int:
    """Returns a number from which on `notes` tells what became of taps."""
    global _turn  # noqa: PLW0603 - one clock a process
    with _lock:
        _turn += 1
        return _turn


def note(tap: str, what: str) -> None:
    """Remembers what became of a tap.

    Args:
        tap: its name.
        what: ``"traced"``; ``"left out"`` by all recordings; ``"decided on the device"``; ``"not now"``: it was known
            when it was traced that it would not fire; ``"disabled"``.
    """
    turn = _turn
    if _notes.get(tap, {}).get(what) == turn:
        return
    with _lock:
        if len(_notes) < _MOST or tap in _notes:
            _notes.setdefault(tap, {})[what] = turn


def notes(since: int = 0) -> dict[str, frozenset[str]]:
    """Returns what became of each tap that this process has traced since then, by name."""
    with _lock:
        found = {tap: frozenset(what for what, turn in known.items() if turn >= since) for tap, known in _notes.items()}
        return {tap: known for tap, known in found.items() if known}
