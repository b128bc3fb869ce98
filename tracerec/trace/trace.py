"""A recorded run, opened for reading."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from tracerec.errors import SelectionError, TraceError
from tracerec.trace import records, selection
from tracerec.trace.attempts import Attempts
from tracerec.trace.tap import Tap
from tracerec.trace.view import StreamView

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from tracerec.formats.contract import RunInfo, TraceSource
    from tracerec.model import Record
    from tracerec.trace.order import Order

__all__ = ["Taps", "Trace"]


_Default = TypeVar("_Default")


class Taps(Mapping[str, Tap]):
    """The taps of a trace by name, in the order in which they first fired."""

    def __init__(self, taps: dict[str, Tap], path: str) -> None:
        self._taps = taps
        self._path = path

    def __getitem__(self, name: str) -> Tap:
        """Returns the tap; raises SelectionError, with the nearest names, when there is none."""
        try:
            return self._taps[name]
        except (KeyError, TypeError):
            hint = selection.nearest(str(name), list(self._taps), "its taps are")
            message = f"{self._path} has no tap {name!r}; {hint}"
            raise SelectionError(message, choices=tuple(self._taps)) from None

    @overload
    def get(self, key: str, /) -> Tap | None: ...

    @overload
    def get(self, key: str, default: Tap, /) -> Tap: ...

    @overload
    def get(self, key: str, default: _Default, /) -> Tap | _Default: ...

    def get(self, key: str, default: Any = None, /) -> Any:
        """Returns the tap, or the default when there is none."""
        return self._taps.get(key, default)

    def __contains__(self, name: object) -> bool:
        return name in self._taps

    def __iter__(self) -> Iterator[str]:
        return iter(self._taps)

    def __len__(self) -> int:
        return len(self._taps)

    def __repr__(self) -> str:
        lines = [f"  {name!r}: {selection.counted(len(tap), 'record')}" for name, tap in self.items()]
        return "\n".join([f"<{selection.counted(len(self), 'tap')}>", *lines])


class Trace:
    """A recorded run, opened for reading; see `open_trace`. Reading is lazy and does not import jax.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("run.h5"):
        ...     _ = tracerec.tap(np.float32(0.5), "loss", step=0)
        >>> with tracerec.open("run.h5") as trace:
        ...     for record in trace.records():
        ...         print(record.tap, record.step, record.value)
        loss 0 0.5
    """

    def __init__(self, source: TraceSource, _raw_of: _Closing | None = None) -> None:
        self._source = source
        self._is_raw = _raw_of is not None
        # A raw trace shares the source, and whether it is closed, with the trace that was opened.
        self._closing = _raw_of or _Closing(source)
        streams = source.streams
        attempts = Attempts(source.info.attempts, streams) if len(source.info.attempts) > 1 else None
        self._views = [StreamView.of(stream, raw=self._is_raw, attempts=attempts) for stream in streams]
        views: dict[str, list[StreamView]] = {}
        for view in self._views:
            views.setdefault(view.site.name, []).append(view)
        call = "trace.raw" if self._is_raw else "trace"
        taps = {
            name: Tap(name, group, f"{call}[{name!r}]", lambda name=name: self.raw[name])
            for name, group in views.items()
        }
        self._taps = Taps(taps, source.path)

    @property
    def raw(self) -> Trace:
        """The trace with everything that was recorded; see `Tap.raw`. Closing one of the two closes both."""
        return self if self._is_raw else self._made_raw

    @cached_property
    def _made_raw(self) -> Trace:
        return Trace(self._source, self._closing)

    @property
    def path(self) -> str:
        """The file or folder."""
        return self._source.path

    @property
    def info(self) -> RunInfo:
        """What is known of the run: when, where, with which versions, and whether it ended cleanly."""
        return self._source.info

    @property
    def taps(self) -> Taps:
        """The taps by name, in the order in which they first fired."""
        return self._taps

    def __getitem__(self, name: str) -> Tap:
        """Returns a tap by its full name.

        Raises:
            SelectionError: there is no such tap; the message has the nearest names.
        """
        return self._taps[name]

    def __contains__(self, name: object) -> bool:
        return name in self._taps

    def __iter__(self) -> Iterator[str]:
        return iter(self._taps)

    def __len__(self) -> int:
        """How many records there are that count."""
        return sum(view.records for view in self._views)

    def records(self, *, order: Order = "program") -> Iterator[Record]:
        """Yields all records that count, lazily and with bounded memory. Their arrays are read-only.

        Args:
            order: ``"program"``: the order of the program on each device, call by call, as far as positions and
                arrival tell it (`tracerec.trace.order` has the rules). ``"arrival"``: that in which records
                reached the host, in which live consumers saw them.
        """
        self._check_open()
        return records.iterate(self._views, order)

    def to_pandas(self) -> pd.DataFrame:
        """Returns a tidy table, one row a record and leaf, in program order.

        Columns: ``tap``, ``leaf`` (its key path), ``transforms`` (text such as ``"jvp, transpose"``), ``step``
        (nullable Int64), ``time`` (UTC), ``device``, ``call``; one column a kwarg, in its own nullable type;
        ``value`` for scalar leaves; and the leaf's statistics ``count``, ``nan``, ``posinf``, ``neginf``,
        ``zeros``, ``min``, ``max``, ``mean``, ``std``, ``l2``, of `tracerec.statistics.moments`. A kwarg whose
        name is that of another column is called ``kwargs.NAME``. All tensors are read, a block at a time.

        Records, lanes and padding that do not count are left out, of rows and of statistics. Of streams whose lanes
        may be invalid (a tap in a branch or loop under vmap, without ``where``) the statistics are missing.
        ``trace.raw.to_pandas()`` has all.

        Columns that are there only where they say something: ``valid_lanes``, how many lanes of a record count, such as
        ``"3/4"``; ``lanes_may_be_invalid``; ``call_sure``, False where a record's call is a good guess; ``attempt``,
        where a recording was continued.

        Raises:
            MissingExtra: pandas is not installed.
        """
        from tracerec.trace.tables import table

        self._check_open()
        return table(self._views)

    def overview(self) -> dict[str, Any]:
        """Returns what ``tracerec inspect`` shows, as JSON values by ``schemas/inspect.schema.json``.

        It reads summaries and index tables, no tensors. A leaf of a stream whose lanes may be invalid has no summary,
        except in ``trace.raw.overview()``.
        """
        from tracerec.trace.overview import overview

        self._check_open()
        return overview(self._source, raw=self._is_raw)

    def close(self) -> None:
        """Closes the file. What was read stays valid; reading more does not work. Closing twice is harmless."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing.closed else _STATES[self.info.state]
        counts: dict[str, int] = {}
        for view in self._views:
            counts[view.site.name] = counts.get(view.site.name, 0) + view.shown_records
        records, taps = selection.counted(sum(counts.values()), "record"), selection.counted(len(self._taps), "tap")
        head = f"<tracerec.Trace {self.path!r}: {records}, {taps}, {state}>"
        names = list(self._taps)
        lines = [f"  {name!r}: {selection.counted(counts[name], 'record')}" for name in names[:_SHOWN]]
        more = [f"  {selection.counted(len(names) - _SHOWN, 'more tap')}"] if len(names) > _SHOWN else []
        return "\n".join([head, *lines, *more])

    def _check_open(self) -> None:
        if self._closing.closed:
            message = f"the trace of {self.path} is closed"
            raise TraceError(message, path=self.path)


class _Closing:
    """Closes a source once. Attribute: whether it is closed."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._source.close()


_STATES = {
    "clean": "clean",
    "recording": "still being recorded",
    "killed": "did not end cleanly",
    "stopped early": "recording stopped early",
}

_SHOWN = 20
