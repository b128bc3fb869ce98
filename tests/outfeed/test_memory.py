"""Memory stays within the queue's bound, however slow the consumer is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.outfeed.watched import run_watched

if TYPE_CHECKING:
    from pathlib import Path

BOUND_MIB = 32
SLACK_MIB = 64

PROGRAM = f"""
from tools.bench.outfeed_memory import PeakMemory
ELEMENTS, CALLS, LENGTH, SLEEP = SIZES
def body(x, _):
    return tracerec.tap(x + 1, "x"), None
scan = jax.jit(lambda x: jax.lax.scan(body, x, length=LENGTH)[0])
x = scan(np.zeros(ELEMENTS, np.float32))
rec = tracerec.record(path, max_queue_bytes={BOUND_MIB} << 20, block_timeout=None)
x = scan(x)
rec.flush()
quick = rec.recorder.consume
def slow(batch):
    time.sleep(SLEEP * batch.count)
    quick(batch)
rec.recorder.consume = slow
with PeakMemory() as memory:
    for _ in range(CALLS):
        x = scan(x)
    rec.flush()
rec.recorder.consume = quick
tracerec.sealer.Sealer.finish = lambda self, _: self.stop()
summary = rec.close()
print(rec.records, dict(summary.dropped), int(memory.grown_bytes), summary.high_water_bytes, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("elements", "calls", "length", "sleep"),
    [(1, 100, 2000, 1e-5), (262_144, 30, 10, 0.01)],
    ids=["200,000 of 4 B", "300 of 1 MB"],
)
def test_memory_stays_within_the_bound_and_64_mib(
    tmp_path: Path, elements: int, calls: int, length: int, sleep: float
) -> None:
    """Through a consumer that is slower than the computation; nothing is dropped."""
    done = run_watched(tmp_path, PROGRAM.replace("SIZES", repr((elements, calls, length, sleep))))
    assert done.returncode == 0, done.stderr
    records, dropped, grown, high_water = done.stdout.replace("{}", "0").split()
    assert (int(records), dropped) == (length * (calls + 1), "0")
    assert int(high_water) <= BOUND_MIB << 20
    assert int(grown) <= (BOUND_MIB + SLACK_MIB) << 20
