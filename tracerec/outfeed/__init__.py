"""Between the computation and the consumers: one bounded queue, one receiver thread."""

from __future__ import annotations

from tracerec.outfeed.functions import HostFunction as HostFunction
from tracerec.outfeed.hub import Consumer as Consumer
from tracerec.outfeed.hub import Farewell as Farewell
from tracerec.outfeed.hub import add_consumer as add_consumer
from tracerec.outfeed.hub import barrier as barrier
from tracerec.outfeed.hub import drain as drain
from tracerec.outfeed.hub import listening as listening
from tracerec.outfeed.hub import lost as lost
from tracerec.outfeed.hub import next_arrival as next_arrival
from tracerec.outfeed.hub import put as put
from tracerec.outfeed.hub import raise_at_next_tap as raise_at_next_tap
from tracerec.outfeed.hub import raise_at_tap as raise_at_tap
from tracerec.outfeed.hub import raise_failures as raise_failures
from tracerec.outfeed.hub import remove_consumer as remove_consumer
from tracerec.outfeed.hub import start as start
from tracerec.outfeed.queue import QueueOptions as QueueOptions
from tracerec.outfeed.waiting import wait_with as wait_with

__all__ = [
    "Consumer",
    "Farewell",
    "HostFunction",
    "QueueOptions",
    "add_consumer",
    "barrier",
    "drain",
    "listening",
    "lost",
    "next_arrival",
    "put",
    "raise_at_next_tap",
    "raise_at_tap",
    "raise_failures",
    "remove_consumer",
    "start",
    "wait_with",
]
