"""Offline: a recorded run opened for reading. Free of JAX.

`open_trace` gives a `Trace`, which gives a `Tap` by name; both give records, numpy arrays and pandas tables.
"""

from tracerec.lanes import trim_record
from tracerec.trace.opening import open_trace
from tracerec.trace.tap import Tap
from tracerec.trace.trace import Taps, Trace

__all__ = ["Tap", "Taps", "Trace", "open_trace", "trim_record"]
