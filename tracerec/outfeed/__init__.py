"""Between the computation and the consumers: one bounded queue, one receiver thread. Free of JAX."""

from __future__ import annotations

from tracerec.outfeed.hub import add_consumer as add_consumer
from tracerec.outfeed.hub import barrier as barrier
from tracerec.outfeed.hub import high_water_bytes as high_water_bytes
from tracerec.outfeed.hub import listening as listening
from tracerec.outfeed.hub import lost as lost
from tracerec.outfeed.hub import put as put
from tracerec.outfeed.hub import remove_consumer as remove_consumer

__all__ = ["add_consumer", "barrier", "high_water_bytes", "listening", "lost", "put", "remove_consumer"]
