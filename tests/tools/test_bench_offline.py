from __future__ import annotations

import json
import math

from tools.bench import __main__ as command


def test_offline_measures_what_has_a_bar(tmp_path):
    """A quick run gives a row for each; how fast is not looked at."""
    command.main(["offline", "--quick", "--out", str(tmp_path)])
    data = json.loads((tmp_path / "offline.json").read_text(encoding="utf-8"))
    rows = {row["what"].partition(",")[0]: row for row in data["rows"]}
    assert set(rows) == {"a whole tap", "to_pandas with statistics", "inspect", "import tracerec"}
    assert all(math.isfinite(row["value"]) and float(row["bar"]) > 0 for row in data["rows"])
