"""For tests: traces that must be equal, and golden traces; `tracerec.integrations.pytest_plugin` has the fixture."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing import compare

if TYPE_CHECKING:
    from collections.abc import Generator

    from tracerec.comparing import Comparison
    from tracerec.trace import Trace

__all__ = ["GoldenResult", "assert_traces_equal", "content_hash", "golden", "write_golden"]


def assert_traces_equal(a: str | os.PathLike[str] | Trace, b: str | os.PathLike[str] | Trace, **options: Any) -> None:
    """Raises AssertionError unless two traces are equal within tolerance.

    The message has the first divergence with the values around its worst element, a table of the taps that differ,
    and what only one of them has.

    Args:
        a: the trace that is taken to be right: a path, or an open `Trace`.
        b: the other trace.
        options: those of `tracerec.compare`.

    Example:
        >>> import numpy as np, tracerec
        >>> for name, value in (("a.h5", 1.0), ("b.h5", 2.0)):
        ...     with tracerec.record(name):
        ...         _ = tracerec.tap(np.float32(value), "loss", step=0)
        >>> assert_traces_equal("a.h5", "b.h5", rtol=0.1)
        Traceback (most recent call last):
            ...
        AssertionError: traces are not equal
        different: 1 of 1 compared differ, a.h5 and b.h5; first: loss step=0
        ...
    """
    __tracebackhide__ = True
    found = compare(a, b, **options)
    if not found.ok:
        message = f"traces are not equal\n{found}"
        raise AssertionError(message)


@contextlib.contextmanager
def golden(path: str | os.PathLike[str], *, update: bool, command: str = "", **options: Any) -> Generator[GoldenResult]:
    """Records what runs inside, and compares it with a golden trace or makes it one.

    Args:
        path: the golden trace.
        update: whether to write it.
        command: what writes it, for messages.
        options: those of `tracerec.compare`.

    Yields:
        What will hold the comparison, when the block has ended.

    Raises:
        AssertionError: the traces differ. What was recorded stays beside the golden trace, as ``NAME.new.h5``.
        FileNotFoundError: there is no golden trace, and none was to be made.
    """
    __tracebackhide__ = True
    from tracerec.recording import record

    target = Path(path)
    if not update and not target.exists():
        message = f"there is no golden trace {target}"
        raise FileNotFoundError(message)
    result = GoldenResult()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "fresh.h5"
        with record(fresh):
            yield result
        if update:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_golden(fresh, target)
            return
        result.comparison = compare(target, fresh, **options)
        if not result.comparison.ok:
            kept = target.with_name(f"{target.stem}.new{target.suffix}")
            shutil.copyfile(fresh, kept)
            text = str(result.comparison).replace(str(fresh), str(kept))
            accept = f" If it is right: {command}" if command else ""
            message = f"the run differs from its golden trace\n{text}\n\nWhat was recorded is in {kept}.{accept}"
            raise AssertionError(message)


class GoldenResult:
    """What comparing with a golden trace found.

    Attributes:
        comparison: the comparison; None before the block has ended, and where the golden trace was written.
    """

    comparison: Comparison | None = None


def write_golden(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Writes a trace as a golden one: small, and byte for byte the same for runs that recorded the same.

    Times, host, process, command, versions and paths are left out; records of a stream are in order of execution, with
    arrival and call numbers counted anew.

    Args:
        source: the trace.
        target: the file to write; one that is there is replaced.

    Raises:
        TraceError: the trace cannot be read.
    """
    from tracerec.comparing.stable import StableSource
    from tracerec.formats.hdf5.seal import seal
    from tracerec.trace import open_trace

    aside = Path(os.fspath(target) + ".tmp")
    with open_trace(source) as trace:
        seal(StableSource(trace), aside, compression="zstd")
    aside.replace(target)


def content_hash(path: str | os.PathLike[str]) -> str:
    """Returns a digest of what a trace recorded: equal for two runs of one program, whatever the time and the machine.

    It covers taps, kwargs, steps, devices, order of execution and every bit of every array: 32 hexadecimal digits.

    Args:
        path: the trace.

    Raises:
        TraceError: the trace cannot be read.
    """
    import hashlib

    from tracerec.comparing.stable import StableSource
    from tracerec.structure import canonical
    from tracerec.trace import open_trace

    digest = hashlib.blake2b(digest_size=16)
    with open_trace(path) as trace:
        for stream in StableSource(trace).streams:
            digest.update(canonical(stream.site.to_json()).encode() + b"\n")
            for start in range(0, stream.records, _ROWS):
                stop = min(start + _ROWS, stream.records)
                digest.update(np.ascontiguousarray(stream.index(start, stop)).tobytes())
                for number in range(len(stream.site.leaves)):
                    digest.update(np.ascontiguousarray(stream.leaf(number, start, stop)).tobytes())
                for number in range(len(stream.site.columns)):
                    digest.update(np.ascontiguousarray(stream.column(number, start, stop)).tobytes())
    return digest.hexdigest()


_ROWS = 1 << 10
