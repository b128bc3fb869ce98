"""The benchmark of what the device keeps runs, and measures every kind of array."""

from __future__ import annotations

import math

import pytest

from tools.bench import reductions


@pytest.mark.slow
def test_each_array_is_measured():
    """Times and sizes of programs; how fast is not looked at."""
    report = reductions.run(quick=True)
    assert len(report.rows) == 8
    assert set(report.columns) <= set(report.rows[0])
    assert all(
        value > 0 and math.isfinite(value) for row in report.rows for name, value in row.items() if name != "array"
    )
