"""What became of each tap when it was traced: for the recording that gets no record, and must say why."""

from __future__ import annotations

import threading

__all__ = ["note", "notes"]

_MOST = 4096
_lock = threading.Lock()
_notes: dict[str, set[str]] = {}


def note(tap: str, what: str) -> None:
    """Remembers what became of a tap.

    Args:
        tap: its name.
        what: ``"traced"``; ``"left out"`` by all recordings; ``"decided on the device"``; ``"not now"``: it was known
            when it was traced that it would not fire; ``"disabled"``.
    """
    known = _notes.get(tap)
    if known is not None and what in known:
        return
    with _lock:
        if len(_notes) < _MOST or tap in _notes:
            _notes.setdefault(tap, set()).add(what)


def notes() -> dict[str, frozenset[str]]:
    """Returns what became of each tap that this process has traced, by name."""
    with _lock:
        return {tap: frozenset(known) for tap, known in _notes.items()}
