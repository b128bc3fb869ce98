"""Inside the computation: the tap primitive, its rules and lowering, and the user's calls."""

from __future__ import annotations

from tracerec.tapping.calls import tap as tap
from tracerec.tapping.context import disabled as disabled
from tracerec.tapping.context import scope as scope
from tracerec.tapping.deciding import above as above
from tracerec.tapping.deciding import changed as changed
from tracerec.tapping.deciding import nonfinite as nonfinite
from tracerec.tapping.host_calls import id_print as id_print
from tracerec.tapping.host_calls import id_tap as id_tap

__all__ = ["above", "changed", "disabled", "id_print", "id_tap", "nonfinite", "scope", "tap"]
