"""The benchmark of comparing runs, and its cases are what they say."""

from __future__ import annotations

import pytest

from tools.bench import comparing


@pytest.mark.slow
def test_each_case_is_measured():
    """Equal runs have no difference, the others differ in every record; how fast is not looked at."""
    report = comparing.run(quick=True)
    assert [row["different"] for row in report.rows] == [0, 4, 0, 1000]
    assert all(row["seconds"] > 0 and row["peak_mb"] > 10 for row in report.rows)
    assert set(report.columns) <= set(report.rows[0])
