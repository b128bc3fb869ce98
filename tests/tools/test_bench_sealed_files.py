"""The benchmarks of sealed files run, and compare files that hold the same."""

from __future__ import annotations

import json
import math

from tools.bench import __main__ as command


def test_merging_measures_each_mix(tmp_path):
    """A quick run gives a row a case, with rates and shares; how fast is not looked at."""
    command.main(["merging", "--quick", "--out", str(tmp_path)])
    data = json.loads((tmp_path / "merging.json").read_text(encoding="utf-8"))
    assert [(row["mix"], row["compression"]) for row in data["rows"]] == [
        ("few taps", "lz4"),
        ("many taps", "lz4"),
        ("few taps", "gzip"),
        ("few taps", "None"),
    ]
    for row in data["rows"]:
        assert row["parts"] > 1
        assert all(math.isfinite(row[key]) for key in data["columns"] if key not in ("mix", "compression"))
        assert 0 <= row["unaligned_copied"] <= row["copied"] <= 100


def test_listing(tmp_path):
    """A quick run lists a small file."""
    command.main(["listing", "--quick", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "listing.json").read_text(encoding="utf-8"))["rows"]
    assert row["streams"] == 50
    assert 0 < row["list_ms"] < row["sites_ms"] * 10
