"""The benchmarks' command line: ``python -m tools.bench [--list] [--quick] [--out FOLDER] [NAME ...]``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tools.bench import (
    comparing,
    digits_step,
    harness,
    keep,
    large,
    offline,
    outfeed_cost,
    outfeed_memory,
    reductions,
    sealed_files,
    storage,
    tap_in_scan,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BENCHMARKS: dict[str, Callable[[bool], harness.Report]] = {
    "tap_in_scan": tap_in_scan.run,
    "outfeed_cost": outfeed_cost.run,
    "outfeed_memory": outfeed_memory.run,
    "storage": storage.run,
    "digits_step": digits_step.run,
    "keep": keep.run,
    "merging": sealed_files.merging,
    "listing": sealed_files.listing,
    "offline": offline.run,
    "comparing": comparing.run,
    "reductions": reductions.run,
    "large": large.run,
}

APART = {"large"}
"""Those that take many minutes and gigabytes of disk, and run by name alone."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmarks named, or all; prints a table and writes a JSON file for each."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Benchmarks of tracerec.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (default: all but large)")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it runs, not how fast")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")

    console = Console()
    if options.list:
        for name, benchmark in BENCHMARKS.items():
            console.print(f"{name}: {(benchmark.__doc__ or '').splitlines()[0]}", highlight=False, soft_wrap=True)
        return
    for name in options.names or [name for name in BENCHMARKS if name not in APART]:
        report = BENCHMARKS[name](options.quick)
        harness.show(report, console)
        console.print(f"written to {harness.write(report, options.out)}\n", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
