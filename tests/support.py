"""Help for tests: a consumer that keeps records, and programs run in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from tracerec import outfeed

if TYPE_CHECKING:
    from collections.abc import Generator

    from tracerec.model import Record
    from tracerec.outfeed.batch import Batch

ROOT = Path(__file__).resolve().parent.parent


class Keeper:
    """A consumer that keeps every record it is given."""

    def __init__(self) -> None:
        self.kept: list[Record] = []

    def consume(self, batch: Batch) -> None:
        """Keeps a batch's records."""
        for group in batch.groups:
            self.kept.extend(group.records())

    @property
    def records(self) -> list[Record]:
        """The records so far, in arrival order."""
        return sorted(self.kept, key=lambda record: record.arrival)


@contextlib.contextmanager
def listening() -> Generator[Keeper]:
    """Keeps the records of everything that runs inside."""
    keeper = Keeper()
    outfeed.add_consumer(keeper)
    try:
        yield keeper
        jax.effects_barrier()
        outfeed.barrier(timeout=60)
    finally:
        error = outfeed.remove_consumer(keeper).error
    if error is not None:
        raise error


def records_of(function: Any, *args: Any) -> list[Record]:
    """Returns the records that one call makes, by program execution, position in the program, iteration."""
    with listening() as keeper:
        jax.block_until_ready(function(*args))
    return sorted(keeper.kept, key=lambda r: (r.call, int(r.row["position"]), int(r.row["iteration"])))


def arrivals_of(function: Any, *args: Any) -> list[Record]:
    """Returns the records that one call makes, in arrival order."""
    with listening() as keeper:
        jax.block_until_ready(function(*args))
    return keeper.records


def run_python(source: str, *args: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program text in a new interpreter that finds this checkout; returns what it printed."""
    return subprocess.run(
        [sys.executable, "-c", source, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )
