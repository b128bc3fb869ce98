"""The benchmarks' harness, and that each benchmark runs."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from tools.bench import __main__ as command
from tools.bench import harness


def test_best_of_keeps_the_least_of_each_time():
    """Each time of a variant has its own best round."""
    times = {"a": iter([{"run": 3.0, "close": 1.0}, {"run": 2.0, "close": 4.0}])}
    best = harness.best_of({"a": lambda: next(times["a"])}, rounds=2)
    assert best == {"a": {"run": 2.0, "close": 1.0}}


def test_best_of_turns_the_order_from_round_to_round():
    """Every variant is first once, so that no one always runs on a cold machine."""
    order = []

    def variant(name):
        return lambda: order.append(name) or {"run": 1.0}

    harness.best_of({name: variant(name) for name in "abc"}, rounds=3)
    assert "".join(order) == "abc" + "bca" + "cab"


def test_a_report_is_a_table_and_a_json_file(tmp_path):
    """The table shows headings and notes; the file keeps full precision and the environment's facts."""
    report = harness.Report("name", "The title", {"x": "heading"}, [{"x": math.pi}], ("a note",))
    out = io.StringIO()
    harness.show(report, Console(width=100, file=out))
    shown = out.getvalue()
    assert all(text in shown for text in ("The title", "heading", "3.142", "a note", "jaxlib"))
    data = json.loads(harness.write(report, tmp_path / "new").read_text(encoding="utf-8"))
    assert data["rows"] == [{"x": math.pi}]
    assert data["environment"]["cores"] >= 1
    assert set(data["environment"]["versions"]) == {"tracerec", *harness.LIBRARIES}


def test_the_list_names_every_benchmark(capsys):
    """``--list`` prints each name with the first line of what it measures, and runs nothing."""
    command.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(command.BENCHMARKS)
    assert all(line.partition(": ")[2] for line in lines)


def test_an_unknown_benchmark_is_refused(capsys):
    """A wrong name gives status 2 and the names that exist."""
    with pytest.raises(SystemExit) as stopped:
        command.main(["no_such"])
    assert stopped.value.code == 2
    assert "tap_in_scan" in capsys.readouterr().err


def test_tap_in_scan_measures_each_size(tmp_path):
    """A quick run gives a row a size, each variant having run; how fast is not looked at."""
    command.main(["tap_in_scan", "--quick", "--out", str(tmp_path)])
    data = json.loads((tmp_path / "tap_in_scan.json").read_text(encoding="utf-8"))
    assert [row["size"] for row in data["rows"]] == ["4 B", "1 KB", "1 MB"]
    assert all(row["records"] == 24 for row in data["rows"])
    assert all(math.isfinite(row[key]) for row in data["rows"] for key in data["columns"] if key != "size")
