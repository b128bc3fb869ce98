"""A recorded run, opened for reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from tracerec.errors import SelectionError, TraceError
from tracerec.trace import inputs, records, selection
from tracerec.trace.attempts import Attempts
from tracerec.trace.availability import Progress
from tracerec.trace.conversions import TraceConversions
from tracerec.trace.refreshing import Opened
from tracerec.trace.tap import Tap
from tracerec.trace.view import StreamView

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from tracerec.formats.contract import RunInfo, TraceSource
    from tracerec.model import Record
    from tracerec.trace.availability import Availability
    from tracerec.trace.following import Following
    from tracerec.trace.order import Order
    from tracerec.trace.replaying import Consumers
    from tracerec.trace.tap import Variant

__all__ = ["Taps", "Trace"]


_Default = TypeVar("_Default")


class Taps(Mapping[str, Tap]):
    """The taps of a trace by name, in the order in which they first fired.

    Called with patterns, it gives the taps whose names match; see `__call__`.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("taps.h5"):
        ...     for name in ("encoder/act", "encoder/mlp/act", "loss"):
        ...         _ = tracerec.tap(np.float32(0), name)
        >>> with tracerec.open("taps.h5") as trace:
        ...     list(trace.taps("encoder/*"))
        ['encoder/act', 'encoder/mlp/act']
    """

    def __init__(self, taps: dict[str, Tap], path: str, *, going_on: bool = False) -> None:
        self._taps = taps
        self._path = path
        self._going_on = going_on

    def __call__(self, *patterns: str | re.Pattern[str]) -> Taps:
        """Returns the taps that match one of some patterns, in the order that they have here.

        Args:
            patterns: names; glob patterns as `fnmatch.fnmatchcase` takes them, of which ``*`` also matches a ``/``, as
                in ``record(budget=)``; and compiled regular expressions, which match where `re.Pattern.search` finds
                something. A name that is there is itself alone, whatever characters it has.

        Raises:
            SelectionError: a pattern matches no tap; the message has the nearest names.
        """
        found = {name for pattern in patterns for name in selection.names_like(pattern, list(self._taps), self._path)}
        taps = {name: tap for name, tap in self._taps.items() if name in found}
        return Taps(taps, self._path, going_on=self._going_on)

    def __getitem__(self, name: str) -> Tap:
        """Returns the tap; raises SelectionError, with the nearest names, when there is none."""
        try:
            return self._taps[name]
        except (KeyError, TypeError):
            hint = selection.nearest(str(name), list(self._taps), "its taps are")
            yet = " yet: the run goes on" if self._going_on else ""
            message = f"{self._path} has no tap {name!r}{yet}; {hint}"
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


class Trace(TraceConversions):
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

    def __init__(self, source: TraceSource | Opened, _variant: Variant | None = None) -> None:
        # Variants share the source, and whether it is closed, with the trace that was opened.
        self._opened = source if isinstance(source, Opened) else Opened(source)
        self._variant: Variant | None = _variant
        self._load()

    def _load(self) -> None:
        """Makes the taps of the source that is open."""
        source = self._opened.source
        self._variants: dict[Variant, Trace] = {}
        self._views = _views(self._opened, self._variant)
        self._progress = [progress for progress in {v.progress: None for v in self._views} if progress is not None]
        views: dict[str, list[StreamView]] = {}
        for view in self._views:
            views.setdefault(view.tap, []).append(view)
        call = "trace.raw" if self._variant == "raw" else "trace"
        taps = {
            name: Tap(name, group, f"{call}[{name!r}]", lambda variant, name=name: self._as(variant)[name])
            for name, group in views.items()
        }
        self._taps = Taps(taps, source.path, going_on=source.info.state == "recording")

    @property
    def raw(self) -> Trace:
        """The trace with everything that was recorded; see `Tap.raw`. Closing one of the two closes both."""
        return self._as("raw")

    def _as(self, variant: Variant) -> Trace:
        if self._variant in ("raw", variant):
            return self
        if variant not in self._variants:
            self._variants[variant] = Trace(self._opened, variant)
        return self._variants[variant]

    @property
    def path(self) -> str:
        """The file or folder; of several processes the pattern, or the paths."""
        return self._opened.source.path

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders that are read: of several recordings each, and the parts of those that have some."""
        return inputs.files(self._opened.source)

    @property
    def info(self) -> RunInfo:
        """What is known of the run: when, where, with which versions, and whether it ended cleanly.

        Of several processes it is a sum, and ``info.processes`` has what each file says.
        """
        return self._opened.source.info

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes, which records have; ``info.processes`` is in their order."""
        return self._opened.numbers

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

    def refresh(self) -> int:
        """Looks again at a recording that goes on, and returns how many records are new: these are then in the trace.

        Files whose size has not changed are not read. When the recording was closed meanwhile, the trace goes over to
        the file that it became. Of several processes the files that were opened are looked at, and no others. A trace
        whose run has ended stays as it is.

        Taps that were got before, and ``trace.raw``, stay what they were, as long as the files are there that they were
        in: get them anew.

        Raises:
            TraceError: the trace is closed; or the recording is gone, was replaced by another or cannot be read. The
                trace is then as it was.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("growing.h5") as rec:
            ...     _ = tracerec.tap(np.float32(0.5), "loss", step=0)
            ...     rec.flush()
            ...     trace = tracerec.open("growing.h5")
            ...     _ = tracerec.tap(np.float32(0.25), "loss", step=1)
            ...     rec.flush()
            ...     trace.refresh(), trace["loss"].to_numpy().tolist()
            (1, [0.5, 0.25])
            >>> trace.refresh(), trace.info.state
            (0, 'clean')
            >>> trace.close()
        """
        self._check_open()
        before = self._opened.source
        new = self._opened.refresh()
        if self._opened.source is not before:
            self._load()
        return new

    def last(self, count: int, *patterns: str | re.Pattern[str]) -> list[Record]:
        """Returns the last records that count, in order of arrival; the arrays of no others are read.

        Args:
            count: how many at most.
            patterns: which taps', as `Taps.__call__` takes them; none: all.

        Raises:
            SelectionError: a pattern matches no tap.
        """
        from tracerec.trace.following import last_records

        self._check_open()
        taps = self._taps(*patterns) if patterns else self._taps
        return last_records([view for view in self._views if view.tap in taps], count)

    def follow(self, *patterns: str | re.Pattern[str]) -> Following:
        """Refreshes the trace, and returns what gives the records that come after those that are then in it.

        Args:
            patterns: which taps', as `Taps.__call__` takes them, also taps that have not fired yet; none: all.

        Raises:
            TraceError: as `refresh`.
        """
        from tracerec.trace.following import Following

        self._check_open()
        before = self._opened.source
        following = Following(
            self._opened, lambda name: not patterns or any(selection.is_like(name, each) for each in patterns)
        )
        if self._opened.source is not before:
            self._load()
        return following

    def availability(self, tap: str, step: Any = None) -> Availability:
        """Returns whether a tap, or a step of it, is recorded: ``"present"``, ``"never"`` or ``"not yet"``.

        Args:
            tap: the tap's name.
            step: a step, a half-open slice or an iterable of steps, of which one will do; None: any record.

        Returns:
            ``"not yet"`` only of a run that goes on, and only of what its program has not left behind: a step is behind
            it once any tap has recorded a later one. Of a run that was closed or killed what is not present is never.
        """
        self._check_open()
        found = self._taps.get(tap)
        if found is not None and found.has_step(step):
            return "present"
        return "not yet" if any(step is None or each.may_bring(step) for each in self._progress) else "never"

    def records(self, *, order: Order = "program") -> Iterator[Record]:
        """Yields all records that count, lazily and with bounded memory. Their arrays are read-only.

        Args:
            order: ``"program"``: the order of the program on each device, call by call, as far as positions and
                arrival tell it (`tracerec.trace.order` has the rules). ``"arrival"``: that in which records
                reached the host, in which live consumers saw them. Those of several processes are merged by time,
                each in its own order.
        """
        self._check_open()
        return records.iterate(self._views, order)

    def replay(self, consumer: Consumers, *, order: Order = "program", realtime: bool | float = False) -> int:
        """Calls functions with what was recorded, as `tracerec.id_tap` called them, or would have.

        A function is called as ``func(value, **kwargs)``: with the tapped pytree of numpy arrays, the tap's kwargs, and
        for transformed values ``transforms=`` and the other keyword arguments that ``id_tap`` documents. Its log is
        that of a live ``id_tap(func, value, **kwargs)`` at the tap's place. Named tuples and classes of the program,
        and members of its enums, which a reader does not import, are `tracerec.structure` nodes that look like them.

        Args:
            consumer: a function for the records of all taps, such as one of `tracerec.consumers`; or a mapping of
                patterns (names, ``"encoder/*"``, compiled regular expressions) to functions. A record goes to each
                function whose pattern matches, in the mapping's order.
            order: ``"program"``, or ``"arrival"``: that in which live functions were called.
            realtime: True: waits as long between records as the program took; a number: so many times as fast.

        Returns:
            How many records functions were called with.

        Raises:
            ConsumerError: a function raised; the message names the record, the cause is what it raised. The replay
                ends there (live, where the program goes on, so do the calls).
            SelectionError: a pattern matches no tap; the message has the nearest names.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("replayed.h5"):
            ...     for step in range(2):
            ...         _ = tracerec.tap(np.float32(step / 2), "loss", step=step)
            >>> with tracerec.open("replayed.h5") as trace:
            ...     trace.replay(lambda loss, *, step: print(step, loss))
            0 0.0
            1 0.5
            2
        """
        from tracerec.trace import replaying

        self._check_open()
        views = [replaying.as_seen(view) for view in self._views]
        return replaying.replay(views, consumer, where=self.path, order=order, realtime=realtime)

    def overview(self, *patterns: str | re.Pattern[str]) -> dict[str, Any]:
        """Returns what ``tracerec inspect`` shows, as JSON values by ``schemas/inspect.schema.json``.

        It reads summaries and index tables, no tensors. A leaf of a stream whose lanes may be invalid has no summary,
        except in ``trace.raw.overview()``.

        Args:
            patterns: which taps are wanted, as ``trace.taps(...)`` takes them; none: all.

        Raises:
            SelectionError: a pattern matches no tap; the message has the nearest names.
        """
        from tracerec.trace.overview import overview

        self._check_open()
        taps = set(self.taps(*patterns)) if patterns else None
        return overview(self._opened.source, raw=self._variant == "raw", taps=taps)

    def close(self) -> None:
        """Closes the file. What was read stays valid; reading more does not work. Closing twice is harmless."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Returns what a notebook shows; see `tracerec.trace.pages`."""
        from tracerec.trace.pages import trace_page

        views: dict[str, list[StreamView]] = {}
        for view in self._views:
            views.setdefault(view.tap, []).append(view)
        return trace_page(self.path, self.info, views, closed=self._opened.closed)

    def __repr__(self) -> str:
        state = "closed" if self._opened.closed else _STATES[self.info.state]
        counts: dict[str, int] = {}
        for view in self._views:
            counts[view.tap] = counts.get(view.tap, 0) + view.shown_records
        records, taps = selection.counted(sum(counts.values()), "record"), selection.counted(len(self._taps), "tap")
        several = f" of {selection.counted(len(self.processes), 'process', 'es')}" if len(self.processes) > 1 else ""
        head = f"<tracerec.Trace {self.path!r}: {records}{several}, {taps}, {state}>"
        names = list(self._taps)
        lines = [f"  {name!r}: {selection.counted(counts[name], 'record')}" for name in names[:_SHOWN]]
        more = [f"  {selection.counted(len(names) - _SHOWN, 'more tap')}"] if len(names) > _SHOWN else []
        return "\n".join([head, *lines, *more])

    def _check_open(self) -> None:
        if self._opened.closed:
            message = f"the trace of {self.path} is closed"
            raise TraceError(message, path=self.path)


def _views(opened: Opened, variant: Variant | None) -> list[StreamView]:
    """Returns the views of all streams of all processes."""
    views: list[StreamView] = []
    for number, part in zip(opened.numbers, opened.parts, strict=True):
        attempts = Attempts(part.info.attempts, part.streams) if len(part.info.attempts) > 1 else None
        progress = Progress(part.streams, attempts) if part.info.state == "recording" else None
        views += [
            StreamView.of(
                stream,
                raw=variant == "raw",
                superseded=variant == "superseded",
                attempts=attempts,
                process=number,
                progress=progress,
                owner=part,
            )
            for stream in part.streams
        ]
    return views


_STATES = {
    "clean": "clean",
    "recording": "still being recorded",
    "killed": "did not end cleanly",
    "stopped early": "recording stopped early",
}

_SHOWN = 20
