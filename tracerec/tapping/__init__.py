"""Inside the computation: the tap primitive, its rules and lowering, and the user's calls."""

from __future__ import annotations

from tracerec.tapping.calls import tap as tap
from tracerec.tapping.context import disabled as disabled
from tracerec.tapping.context import scope as scope

__all__ = ["disabled", "scope", "tap"]
