"""That the benchmarks of the outfeed run; how fast is not looked at."""

from __future__ import annotations

import json
import math

from tools.bench import __main__ as command
from tools.bench.outfeed_memory import PeakMemory


def test_outfeed_cost_has_a_row_for_each_measurement(tmp_path):
    """Each variant has run, and every record has reached its consumer, or it would have raised."""
    command.main(["outfeed_cost", "--quick", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "outfeed_cost.json").read_text(encoding="utf-8"))["rows"]
    assert [row["what"] for row in rows] == [
        "4 B in a scan",
        "1 KB in a scan",
        "4 B, busy thread",
        "1 KB, busy thread",
        "one tap",
        "32 taps",
        "tap of 32 leaves",
    ]
    assert all(math.isfinite(row[key]) for row in rows for key in ("none_us", "base_us", "consumer_us", "ratio"))


def test_outfeed_memory_writes_every_record_within_the_queues_bound(tmp_path):
    """A quick run gives a row a size."""
    command.main(["outfeed_memory", "--quick", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "outfeed_memory.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["size"], row["records"]) for row in rows] == [("4 B", 2000), ("1 MB", 10)]
    assert all(0 < row["high_water_mib"] <= row["bound_mib"] for row in rows)


def test_peak_memory_sees_memory_that_was_freed_before_its_end():
    """64 MiB, written and let go."""
    with PeakMemory() as memory:
        held = bytearray(b"x" * (64 << 20))
        while memory.grown_bytes < 48 << 20:
            pass
        del held
    assert memory.grown_bytes >= 48 << 20
