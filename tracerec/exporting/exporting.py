"""Exporting: which records, to where, and in which form."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tracerec.errors import ExportError, SelectionError
from tracerec.exporting import output
from tracerec.exporting.job import Job, kinds
from tracerec.exporting.targets import TARGETS, Target
from tracerec.progress import Progress
from tracerec.trace import open_trace, selection
from tracerec.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracerec.trace.conversions import Patterns
    from tracerec.trace.tap import Tap

__all__ = ["Exported", "default_path", "export"]

_SUFFIXES = {
    "parquet": ".parquet",
    "arrow": ".ipc",
    "npz": ".npz",
    "zarr": ".zarr",
    "tensorboard": ".tensorboard",
    "hdf5": ".export.h5",
}

_RECORDINGS = (".h5", ".hdf5", ".arrow", ".live")
"""What names of recordings end in."""


class _Writer(Protocol):
    """A module of this folder: one form; whether it is a folder, how it is written, and which folders it made."""

    FOLDER: bool

    def write(self, job: Job, place: Path) -> None: ...

    def made(self, folder: Path) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the file or folder.
        to: the form.
        taps: how many taps there are in it.
        records: how many records.
        nbytes: bytes of the file, or of all files in the folder.
        left_out: sentences about what the form cannot hold; empty when all is there.
    """

    path: str
    to: Target
    taps: int
    records: int
    nbytes: int
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return dataclasses.asdict(self) | {"left_out": list(self.left_out)}


def export(
    trace: Trace | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    to: Target = "parquet",
    *,
    taps: Patterns | None = None,
    steps: int | slice | Iterable[int] | None = None,
    transforms: str | Iterable[Any] | None = None,
    force: bool = False,
    progress: bool | None = None,
) -> Exported:
    r"""Writes records of a trace in a form that other programs read. Memory stays bounded, and the result is whole.

    Records that do not count are left out, as everywhere; ``export(trace.raw, ...)`` has all. Numbers that a form lacks
    are in a type that holds them exactly: bfloat16 and float8 as float32, int4 as int8. Names of taps are
    percent-escaped: ``encoder%2Fact``. Records with different transforms or leaves are kept apart. In other texts lone
    surrogates are escaped as ``\ud800``, and where they would end the text (HDF5, names of arrays) NULs as ``\x00``.

    * ``"parquet"``: a folder ``tap=NAME/part-0.parquet``, a part a stream, which DuckDB, polars, Dask and Spark read as
      one table with a column ``tap``. A row is a record and leaf: ``leaf``, ``transforms``, ``dtype``, ``shape``,
      ``value`` (the elements as a list, row by row), ``step``, ``time``, ``device``, ``call``, ``arrival`` and kwargs.
    * ``"arrow"``: a folder of Arrow IPC files, one a tap (and kind), as `Tap.to_arrow` gives them.
    * ``"npz"``: one file for `numpy.load`: arrays ``NAME/value``, ``NAME/step``, ``NAME/time`` and so on.
    * ``"zarr"``: a Zarr v3 folder, a group a tap, with named dimensions: ``xarray.open_zarr(out, group=NAME,
      consolidated=False)``, or ``xarray.open_datatree``. Text is numbers of the attribute ``categories``.
    * ``"hdf5"``: one plain HDF5 file, a group a tap, with datasets ``value``, ``step``, ``time`` and so on.
    * ``"tensorboard"``: a folder of event files: leaves with one element as scalars, others as histograms.

    Args:
        trace: a trace, or what `tracerec.open` takes as a path.
        out: the file or folder to write; None: the trace's name with the form's suffix, in the current folder.
        to: the form.
        taps: which taps: a name, a glob, a compiled regular expression, or several; None: all.
        steps: which steps, as for `Tap.sel`; taps without any of them, or without steps, are left out.
        transforms: which chain of transforms, as for `Tap.sel`: ``()`` for none.
        force: whether to replace what is at ``out``: a file, or the folder of an earlier export. What is read is never
            replaced, and nothing is written into it.
        progress: whether to show a bar on standard error; None: on a terminal, when it takes more than a second.

    Raises:
        ExportError: there is no such form, ``out`` exists or is what is read, or it cannot be written.
        SelectionError: no record matches.
        MissingExtra: the library of the form is not installed.
        TraceError: the trace cannot be read.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("run.h5"):
        ...     for step in range(3):
        ...         _ = tracerec.tap(np.float32(step / 2), "loss", step=step)
        >>> done = tracerec.export("run.h5", "run.npz", "npz")
        >>> np.load("run.npz")["loss/value"].tolist(), done.records
        ([0.0, 0.5, 1.0], 3)
    """
    writer = _writer(to)
    with contextlib.ExitStack() as stack:
        if not isinstance(trace, Trace):
            trace = stack.enter_context(open_trace(trace))
        path = Path(default_path(trace.path, to) if out is None else os.fspath(out))
        output.check_free(path, force=force, inputs=trace.paths, folder=writer.FOLDER, is_ours=writer.made)
        found = kinds(_chosen(trace, taps, steps, transforms))
        bar = stack.enter_context(Progress(f"to {to}", sum(kind.nbytes for kind in found), show=progress))
        job = Job(found, bar, {"path": trace.path, "run": trace.info.to_json()})
        with output.written(path, folder=writer.FOLDER) as place:
            writer.write(job, place)
    names = len({kind.tap for kind in found})
    return Exported(str(path), to, names, sum(kind.records for kind in found), _size(path), tuple(job.left_out))


def default_path(path: str, to: Target) -> str:
    """Returns where a trace is exported to unless told otherwise.

    Example:
        >>> default_path("runs/a.h5", "parquet"), default_path("run.h5.live", "hdf5")
        ('a.parquet', 'run.export.h5')
    """
    name = Path(path.partition(",")[0]).name.replace("*", "all")
    for suffix in reversed(_RECORDINGS):
        name = name.removesuffix(suffix)
    return (name or "trace") + _SUFFIXES[to]


def _writer(to: str) -> _Writer:
    if to not in TARGETS:
        message = f"there is no form {to!r} to export to; {selection.nearest(str(to), TARGETS, 'there are')}"
        raise ExportError(message)
    from importlib import import_module

    module: Any = import_module(f"tracerec.exporting.{to}")
    return module


def _chosen(trace: Trace, taps: Patterns | None, steps: Any, transforms: Any) -> list[tuple[str, Sequence[Any]]]:
    """Returns the views of each tap that has records to export."""
    names = list(trace.taps) if taps is None else list(trace.taps(*_patterns(taps)))
    if transforms is not None and not isinstance(transforms, str):
        transforms = tuple(transforms)
    if steps is not None and not isinstance(steps, (int, slice)):
        steps = list(steps)
    found: list[tuple[str, Sequence[Any]]] = []
    for name in names:
        tap = _selected(trace[name], steps, transforms)
        if tap is not None and len(tap):
            found.append((name, [view for view in tap.views if view.records]))
    if not found:
        given = {"taps": taps, "steps": steps, "transforms": transforms}
        said = ", ".join(f"{key}={value!r}" for key, value in given.items() if value is not None)
        message = f"{trace.path} has no records{f' with {said}' if said else ''}, so that there is nothing to export"
        raise SelectionError(message, choices=tuple(trace.taps))
    return found


def _patterns(taps: Patterns) -> list[Any]:
    """Returns patterns as a list."""
    return [taps] if isinstance(taps, (str, re.Pattern)) else list(taps)


def _selected(tap: Tap, steps: Any, transforms: Any) -> Tap | None:
    try:
        return tap if steps is None and transforms is None else tap.sel(step=steps, transforms=transforms)
    except SelectionError:
        # Another tap may have them.
        return None


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
