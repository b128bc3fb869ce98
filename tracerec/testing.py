"""For tests: traces that must be equal, and golden traces; `tracerec.integrations.pytest_plugin` has the fixture."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing import compare
from tracerec.errors import ComparisonError, TraceNotFound

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tracerec.comparing import Comparison
    from tracerec.comparing.stable import StableSource
    from tracerec.formats.contract import StreamSource
    from tracerec.trace import Trace

__all__ = ["GoldenResult", "MissingGolden", "assert_traces_equal", "content_hash", "golden", "write_golden"]


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

    Where JAX runs in several processes (``jax.distributed``) each has a golden trace of its own: of ``step.h5`` process
    3 has ``step.3.h5``.

    Args:
        path: the golden trace, ending in ``.h5``.
        update: whether to write it.
        command: what writes it, for messages.
        options: those of `tracerec.compare`.

    Yields:
        What will hold the comparison, when the block has ended.

    Raises:
        AssertionError: the traces differ. What was recorded stays beside the golden trace, as ``NAME.new.h5``.
        MissingGolden: there is no golden trace, and none was to be made.
        ComparisonError: the path does not end in ``.h5``.
    """
    __tracebackhide__ = True
    from tracerec.comparing.stable import StableSource
    from tracerec.recording import record
    from tracerec.trace import open_trace

    target = Path(path)
    _check_golden(target)
    if not (update or target.exists() or _of_processes(target)):
        raise MissingGolden(_missing(target, command), path=os.fspath(target))
    result = GoldenResult()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "fresh.h5"
        with record(fresh):
            yield result
        # Not before the block, which may be what joins the processes.
        number = _process()
        target = target if number is None else _numbered(target, number)
        if update:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_trace(fresh) as trace:
                _sealed(StableSource(trace, number=number or 0), target)
            return
        if not target.exists():
            raise MissingGolden(_missing(target, command), path=os.fspath(target))
        result.comparison = compare(target, fresh, **options)
        if not result.comparison.ok:
            kept = Path(path).with_name(f"{Path(path).stem}.new{target.suffix}")
            kept = kept if number is None else _numbered(kept, number)
            shutil.copyfile(fresh, kept)
            text = str(result.comparison).replace(str(fresh), str(kept))
            accept = f" If it is right: {command}" if command else ""
            message = f"the run differs from its golden trace\n{text}\n\nWhat was recorded is in {kept}.{accept}"
            raise AssertionError(message)


class MissingGolden(TraceNotFound):
    """There is no golden trace, and none was to be made."""


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
        target: the file to write; one that is there is replaced. Of a trace of several processes each gets a file, and
            the target has a ``*`` where the number of the process goes: ``step.*.h5``.

    Raises:
        ComparisonError: the trace is of several processes, and the target is one file; or it does not end in ``.h5``.
        TraceError: the trace cannot be read.
    """
    from tracerec.comparing.stable import StableSource
    from tracerec.trace import open_trace

    name = os.fspath(target)
    _check_golden(Path(name))
    with open_trace(source) as trace:
        numbers = trace.processes
        if "*" not in Path(name).name:
            if len(numbers) > 1:
                where = _numbered(Path(name), "*")
                message = f"{trace.path} is of {len(numbers)} processes, each of which has a file: write to {where}"
                raise ComparisonError(message)
            _sealed(StableSource(trace), Path(name))
            return
        for number in numbers:
            _sealed(
                StableSource(trace, number, number=number),
                Path(name).with_name(Path(name).name.replace("*", str(number))),
            )


def content_hash(path: str | os.PathLike[str]) -> str:
    """Returns a digest of what a trace recorded: equal for two runs of one program, whatever the time and the machine.

    It covers taps, kwargs, steps, devices, order of execution and every bit of every array: 32 hexadecimal digits. Of
    several processes each one's order counts, but not how they took turns.

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
        numbers = trace.processes
        for process in numbers if len(numbers) > 1 else (None,):
            if process is not None:
                digest.update(b"process %d\n" % process)
            for stream in StableSource(trace, process).streams:
                digest.update(canonical(stream.site.to_json()).encode() + b"\n")
                for start in range(0, stream.records, _ROWS):
                    for array in _arrays(stream, start, min(start + _ROWS, stream.records)):
                        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


_ROWS = 1 << 10


def _arrays(stream: StreamSource, start: int, stop: int) -> Iterator[np.ndarray]:
    yield stream.index(start, stop)
    for number in range(len(stream.site.leaves)):
        yield stream.leaf(number, start, stop)
    for number in range(len(stream.site.columns)):
        yield stream.column(number, start, stop)


def _sealed(source: StableSource, target: Path) -> None:
    from tracerec.formats.hdf5.seal import seal

    # Two processes may write one golden trace, as tests that run side by side.
    aside = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        seal(source, aside, compression="zstd")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _process() -> int | None:
    """Returns JAX's number of this process; None where it is the only one."""
    import jax

    return jax.process_index() if jax.process_count() > 1 else None


def _numbered(path: Path, number: int | str) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _of_processes(path: Path) -> list[Path]:
    """Returns the golden traces of several processes that have this name."""
    pattern = re.compile(re.escape(path.stem) + r"\.\d+" + re.escape(path.suffix))
    folder = path.parent
    return sorted(each for each in folder.iterdir() if pattern.fullmatch(each.name)) if folder.is_dir() else []


def _check_golden(path: Path) -> None:
    if path.suffix.lower() not in (".h5", ".hdf5"):
        message = f"a golden trace is an HDF5 file, whose name ends in .h5, not {str(path)!r}"
        raise ComparisonError(message)


def _missing(path: Path, command: str) -> str:
    there = _of_processes(path)
    stem, _, number = path.stem.rpartition(".")
    whole = path.with_name(f"{stem}{path.suffix}")
    if there:
        other = f"; {there[0].name} is of a run of several processes, and this one has one"
    elif number.isdecimal() and whole.exists():
        other = f"; {whole.name} is of a run of one process, and this one has several"
    else:
        other = ""
    make = f"; make it with: {command}" if command else ""
    return f"there is no golden trace {os.path.relpath(path)}{other}{make}"
