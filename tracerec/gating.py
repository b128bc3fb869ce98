"""What of the records that arrive a recording takes: changed while it runs, from inside and from outside.

From outside the settings come in a small file in the live folder, which ``tracerec ctl`` writes. Free of JAX.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import RecordingError
from tracerec.model import FLAG_STEP
from tracerec.plans import Plan, Policy, matches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracerec.outfeed.batch import Group

__all__ = ["CONTROL_FILE", "Gate", "Settings", "read_settings", "write_settings"]

_log = logging.getLogger("tracerec")

CONTROL_FILE = "control.json"
"""The name of the file, in the live folder."""

_LOOK_SECONDS = 0.25
_REMEMBERED = 1000
"""Earlier settings that are known for what still waits in the queue."""
_MOST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What can be changed while a recording runs.

    Attributes:
        paused: whether nothing is recorded.
        every: only records of steps that this number divides, and those without a step; None: of each step.
        taps: patterns of tap names (`tracerec.plans.matches`); empty: all.
    """

    paused: bool = False
    every: int | None = None
    taps: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Any) -> Settings:
        """Returns the settings; raises RecordingError where they are none."""
        if not isinstance(data, dict) or not isinstance(data.get("paused", False), bool):
            message = f"{data!r:.80} are no settings of a recording"
            raise RecordingError(message)
        fields: Mapping[str, Any] = data
        policy = Policy.parsed(fields.get("taps") or None, fields.get("every"))
        return cls(bool(fields.get("paused", False)), policy.every, policy.taps)

    def to_json(self) -> dict[str, Any]:
        """Returns the settings as JSON values."""
        return {"paused": self.paused, "every": self.every, "taps": list(self.taps)}

    def changed(self, **changes: Any) -> Settings:
        """Returns the settings with some of them changed, by name; raises RecordingError as `from_json`."""
        return Settings.from_json(self.to_json() | changes)


class Gate:
    """Says which records a recording takes.

    Args:
        policy: what the recording wants of each tap.
        folder: the live folder, in which settings from outside are looked for.

    Attributes:
        seen: how many records have arrived, taken or not.
        skipped: how many were not taken.
    """

    def __init__(self, policy: Policy, folder: Path | None) -> None:
        self.policy = policy
        self.seen = 0
        self.skipped = 0
        self._file = None if folder is None else folder / CONTROL_FILE
        if self._file is not None:
            # what was set for an earlier attempt, which was killed, is not for this one
            self._file.unlink(missing_ok=True)
        self._settings: list[tuple[int, Settings]] = [(0, Settings())]
        self._lock = threading.Lock()
        self._looked = 0.0
        self._stamp: tuple[int, int] | None = None

    @property
    def settings(self) -> Settings:
        """What holds now."""
        return self._settings[-1][1]

    def set(self, arrival: int, **changes: Any) -> Settings:
        """Changes settings for the records that arrive as number ``arrival`` or later.

        What arrived before may still wait in the queue.

        Returns:
            All settings.

        Raises:
            RecordingError: one is wrong.
        """
        with self._lock:
            settings = self.settings.changed(**changes)
            # a new list: another thread may be reading the old one
            self._settings = [*self._settings[-_REMEMBERED:], (arrival, settings)]
            return settings

    def admit(self, group: Group) -> Group | None:
        """Returns those of some records that are taken; None: none is."""
        arrivals = group.rows["arrival"]
        self._look(int(arrivals[0]))
        self.seen += len(group.arrays)
        known = self._settings
        if len(known) == 1 or arrivals[0] >= known[-1][0]:
            return self._admitted(group, known[-1][1])
        firsts = np.array([first for first, _ in known], np.uint64)
        of = np.maximum(np.searchsorted(firsts, arrivals, side="right") - 1, 0)
        parts = [self._admitted(group.picked(np.flatnonzero(of == n)), known[n][1]) for n in np.unique(of).tolist()]
        taken = [row for part in parts if part is not None for row in part.rows["arrival"].tolist()]
        return group.picked(np.flatnonzero(np.isin(arrivals, np.array(taken, np.uint64)))) if taken else None

    def _admitted(self, group: Group, settings: Settings) -> Group | None:
        """Returns those of some records that are taken under some settings."""
        count = len(group.arrays)
        if settings.paused or not self._wants(group) or (settings.taps and not matches(group.site.name, settings.taps)):
            self.skipped += count
            return None
        taken = self._of_steps(group, settings)
        if taken is None:
            return group
        self.skipped += count - len(taken)
        return group.picked(taken) if len(taken) else None

    def _wants(self, group: Group) -> bool:
        """Returns whether the recording wants records that were traced so."""
        choice, tap = group.choice, group.site.name
        if choice is None and not self.policy.taps:
            # as most are: no recording had a say when the tap was traced, and this one leaves no tap out
            return True
        wanted = self.policy.plan(tap, Plan() if choice is None else choice.asked)
        if wanted is None:
            return False
        # What was traced before the recording began, and so does not know of it, is taken as it is.
        return choice is None or self.policy not in choice.policies or wanted == choice.plan

    def _of_steps(self, group: Group, settings: Settings) -> np.ndarray | None:
        """Returns the numbers of the rows whose steps are wanted; None: all are."""
        choice = group.choice
        known = choice is not None and self.policy in choice.policies
        every = [n for n in (settings.every, None if known else self.policy.every) if n is not None and n > 1]
        if not every:
            return None
        steps, stepped = group.rows["step"], (group.rows["flags"] & FLAG_STEP) != 0
        wanted = np.logical_and.reduce([steps % n == 0 for n in every])
        return np.flatnonzero(wanted | ~stepped)

    def _look(self, arrival: int) -> None:
        """Takes over settings from outside, when the file is new, for records from a number on."""
        now = time.monotonic()
        if self._file is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        try:
            found = self._file.stat()
        except OSError:
            return  # nobody has set anything
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            settings = read_settings(self._file.parent)
        except (OSError, RecordingError) as error:
            _log.warning("%s: what was set from outside is not understood: %s", self._file, error)
            return
        with self._lock:
            self._settings = [*self._settings[-_REMEMBERED:], (max(arrival, self._settings[-1][0]), settings)]
        _log.info("%s: set from outside: %s", self._file.parent, settings.to_json())


def read_settings(folder: Path) -> Settings:
    """Returns the settings in a live folder; those of a recording that nobody has changed where there are none.

    Raises:
        RecordingError: the file is damaged, or says something impossible.
        OSError: it cannot be read.
    """
    path = folder / CONTROL_FILE
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return Settings()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{path} is no JSON: {error}"
        raise RecordingError(message, path=str(path)) from error
    return Settings.from_json(data)


def write_settings(folder: Path, settings: Settings) -> None:
    """Puts settings into a live folder, whole or not at all; raises OSError where that fails."""
    path = folder / CONTROL_FILE
    beside = folder / f"{CONTROL_FILE}.tmp-{secrets.token_hex(8)}"
    try:
        beside.write_text(json.dumps(settings.to_json()) + "\n", "ascii")
        os.replace(beside, path)  # noqa: PTH105 - Path.replace does not say that it is atomic
    finally:
        beside.unlink(missing_ok=True)
