"""What every benchmark shares: interleaved measuring, facts about the machine, a table, a JSON file.

A benchmark compares *variants* that do the same work in different ways. All variants run in every round, in
an order that turns from round to round, so that a machine that slows down slows all of them; each keeps its
best time. What is worth quoting is a ratio of two best times of one run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from tracerec._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

__all__ = ["Report", "best_of", "environment", "show", "write"]

LIBRARIES = ("jax", "jaxlib", "numpy", "h5py", "hdf5plugin")


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of one benchmark.

    Attributes:
        name: the benchmark's name.
        title: one line above the table.
        columns: heading and unit of each column, by the key that rows use.
        rows: one mapping a row; numbers stay numbers, in the JSON file at full precision.
        notes: what a reader must know to believe the numbers.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()


def best_of(variants: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int) -> dict[str, dict[str, float]]:
    """Runs every variant once a round and keeps the least of each of its times.

    Args:
        variants: by name, a function that does the work once and returns its times in seconds, by name. What
            it does not time, such as compiling, it leaves out of them.
        rounds: how often each variant runs.

    Returns:
        For each variant, the least value of each of its times.

    Example:
        >>> best_of({"a": lambda: {"total": 2.0}, "b": lambda: {"total": 3.0}}, rounds=2)
        {'a': {'total': 2.0}, 'b': {'total': 3.0}}
    """
    names = list(variants)
    best: dict[str, dict[str, float]] = {name: {} for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            for label, seconds in variants[name]().items():
                best[name][label] = min(seconds, best[name].get(label, seconds))
    return best


def environment() -> dict[str, Any]:
    """Returns what the numbers depend on: machine, cores, versions, devices."""
    import jax

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [Path(sys.executable).name, *sys.orig_argv[1:]],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "devices": sorted({f"{d.platform} {d.device_kind}" for d in jax.devices()}),
        "versions": {"tracerec": __version__} | {name: metadata.version(name) for name in LIBRARIES},
    }


def show(report: Report, console: Console) -> None:
    """Prints the report as a table, with the facts and notes below it."""
    table = Table(title=report.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in report.columns.values():
        table.add_column(heading, justify="right")
    for row in report.rows:
        table.add_row(*(_cell(row[key]) for key in report.columns))
    console.print(table)
    facts = environment()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    console.print(
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f}; {', '.join(facts['devices'])}; "
        f"Python {facts['python']}; {versions}",
        highlight=False,
        soft_wrap=True,
    )
    for note in report.notes:
        console.print(f"- {note}", highlight=False, soft_wrap=True)


def write(report: Report, folder: Path) -> Path:
    """Writes the report as JSON, the environment's facts with it, and returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name}.json"
    data = {**dataclasses.asdict(report), "environment": environment()}
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path


def _cell(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
