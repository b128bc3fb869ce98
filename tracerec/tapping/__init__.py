"""Inside the computation: the tap primitive, its rules and lowering, and the user's calls."""

from __future__ import annotations

from tracerec.tapping.calls import tap as tap
from tracerec.tapping.context import disabled as disabled
from tracerec.tapping.context import scope as scope
from tracerec.tapping.host_calls import id_print as id_print
from tracerec.tapping.host_calls import id_tap as id_tap

__all__ = ["disabled", "id_print", "id_tap", "scope", "tap"]
