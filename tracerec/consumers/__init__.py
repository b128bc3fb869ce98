"""Useful consumers, for `tracerec.id_tap` while a program runs and for `tracerec.Trace.replay` afterwards.

All are called as functions are, and are told which tap a record is of: in a replay by its name, live by the kwarg
``tap``, as in ``id_tap(watch, x, tap="encoder/act", step=step)``. Live they run on the receiver's thread; look at them
after `tracerec.barrier_wait`. Elements that ``where`` or a logical shape rules out do not count. Free of JAX.
"""

from __future__ import annotations

from tracerec.consumers.csv_writer import CSVWriter
from tracerec.consumers.histogram import Counts, Histogram
from tracerec.consumers.nan_watch import Finding, NaNWatch
from tracerec.consumers.printing import Printer
from tracerec.consumers.running import RunningStatistics
from tracerec.consuming import Firing, TapConsumer

__all__ = [
    "CSVWriter",
    "Counts",
    "Finding",
    "Firing",
    "Histogram",
    "NaNWatch",
    "Printer",
    "RunningStatistics",
    "TapConsumer",
]
