from __future__ import annotations

import math

import pytest

from tools.bench.large import measured

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", ["h5", "arrow"])
def test_every_command_is_measured(tmp_path, form):
    """On a small recording: each has a row with its seconds and its peak, and leaves nothing."""
    rows = measured(5_000_000, form, None, str(tmp_path))
    commands = {row["what"].split()[0].strip(",") for row in rows}
    assert commands == {
        *("record", "inspect", "show", "plot", "tail", "stats", "export", "replay", "compare", "verify", "merge"),
        "repair",
    }
    assert all(math.isfinite(row["seconds"]) and 10 < row["peak"] < 2_000 for row in rows)
    assert list(tmp_path.iterdir()) == []
