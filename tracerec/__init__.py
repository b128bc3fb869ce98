"""tracerec: a flight recorder for JAX programs.

The names are loaded when they are first used: reading a trace does not import jax.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tracerec._version import __version__ as __version__

if TYPE_CHECKING:
    from tracerec import consumers as consumers
    from tracerec import errors as errors
    from tracerec import keeping as keeping
    from tracerec.comparing import Comparison as Comparison
    from tracerec.comparing import compare as compare
    from tracerec.controlling import control as control
    from tracerec.errors import TracerecError as TracerecError
    from tracerec.exporting import Exported as Exported
    from tracerec.exporting import export as export
    from tracerec.merging import Merge as Merge
    from tracerec.merging import merge as merge
    from tracerec.model import Leaf as Leaf
    from tracerec.model import Record as Record
    from tracerec.model import Site as Site
    from tracerec.model import Transform as Transform
    from tracerec.outfeed.receiver import barrier_wait as barrier_wait
    from tracerec.outfeed.receiver import outfeed_receiver as outfeed_receiver
    from tracerec.recording import Recording as Recording
    from tracerec.recording import RecordingSummary as RecordingSummary
    from tracerec.recording import record as record
    from tracerec.repairing import Repair as Repair
    from tracerec.repairing import repair as repair
    from tracerec.tapping import above as above
    from tracerec.tapping import changed as changed
    from tracerec.tapping import disabled as disabled
    from tracerec.tapping import id_print as id_print
    from tracerec.tapping import id_tap as id_tap
    from tracerec.tapping import nonfinite as nonfinite
    from tracerec.tapping import scope as scope
    from tracerec.tapping import tap as tap
    from tracerec.trace import Tap as Tap
    from tracerec.trace import Trace as Trace
    from tracerec.trace import open_trace as open  # noqa: A004 - tracerec.open, as io.open, gzip.open
    from tracerec.verifying import Verification as Verification
    from tracerec.verifying import verify as verify

__all__ = [
    "Comparison",
    "Exported",
    "Leaf",
    "Merge",
    "Record",
    "Recording",
    "RecordingSummary",
    "Repair",
    "Site",
    "Tap",
    "Trace",
    "TracerecError",
    "Transform",
    "Verification",
    "above",
    "barrier_wait",
    "changed",
    "compare",
    "consumers",
    "control",
    "disabled",
    "errors",
    "export",
    "id_print",
    "id_tap",
    "keeping",
    "merge",
    "nonfinite",
    "open",
    "outfeed_receiver",
    "record",
    "repair",
    "scope",
    "tap",
    "verify",
]

_HOMES = {
    "Comparison": "tracerec.comparing",
    "Exported": "tracerec.exporting",
    "Leaf": "tracerec.model",
    "Merge": "tracerec.merging",
    "Record": "tracerec.model",
    "Recording": "tracerec.recording",
    "RecordingSummary": "tracerec.recording",
    "Repair": "tracerec.repairing",
    "Site": "tracerec.model",
    "Tap": "tracerec.trace",
    "Trace": "tracerec.trace",
    "TracerecError": "tracerec.errors",
    "Transform": "tracerec.model",
    "Verification": "tracerec.verifying",
    "above": "tracerec.tapping",
    "barrier_wait": "tracerec.outfeed.receiver",
    "changed": "tracerec.tapping",
    "compare": "tracerec.comparing",
    "control": "tracerec.controlling",
    "disabled": "tracerec.tapping",
    "export": "tracerec.exporting",
    "id_print": "tracerec.tapping",
    "id_tap": "tracerec.tapping",
    "merge": "tracerec.merging",
    "nonfinite": "tracerec.tapping",
    "outfeed_receiver": "tracerec.outfeed.receiver",
    "open": "tracerec.trace",
    "record": "tracerec.recording",
    "repair": "tracerec.repairing",
    "scope": "tracerec.tapping",
    "tap": "tracerec.tapping",
    "verify": "tracerec.verifying",
}


if "jax" in sys.modules:
    # JAX must know the taps' context before it traces the first function, or it traces that one twice.
    from tracerec import tapping as tapping


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("consumers", "errors", "keeping"):
        return import_module(f"tracerec.{name}")
    if name not in _HOMES:
        message = f"module 'tracerec' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOMES[name]), "open_trace" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
