"""One tap of a trace: its records as numpy arrays, as `Record` values, as a table; and parts of it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import numpy as np

from tracerec.errors import SelectionError
from tracerec.keeping.reading import rows
from tracerec.model import FLAG_STEP
from tracerec.protocol import dtypes
from tracerec.trace import indexing, order, ragged, records, selection, shards, single
from tracerec.trace.conversions import TapConversions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracerec.model import Leaf, Record, Site, Transform
    from tracerec.trace.pictures import Kind, Picture
    from tracerec.trace.view import StreamView

__all__ = ["Tap", "Variant"]

Variant = Literal["raw", "superseded"]
"""Forms of a tap or trace: with everything that was recorded, and with what later attempts recorded again."""


class Tap(TapConversions):
    """The records of one tap, or some of them. Nothing is read before it is asked for.

    A tap can have records of several kinds: its primal values and their cotangents, several leaves, calls with
    different shapes. `sel`, `leaf` and `streams` choose among them.

    Records that do not count are not there: those whose ``where`` was False, in every lane if there are several. Nor
    do lanes whose ``where`` was False, and padding outside the logical shapes, count in statistics. `raw` is the tap
    with all that was recorded.

    Example:
        >>> import numpy as np, tracerec
        >>> with tracerec.record("run.h5"):
        ...     for step in range(3):
        ...         _ = tracerec.tap(np.full(2, step, np.float32), "act", step=step)
        >>> with tracerec.open("run.h5") as trace:
        ...     trace["act"].sel(step=slice(1, 3)).to_numpy()
        array([[1., 1.],
               [2., 2.]], dtype=float32)
    """

    def __init__(self, name: str, views: Sequence[StreamView], call: str, variant: Callable[[Variant], Tap]) -> None:
        self._name = name
        self._views = tuple(views)
        self._call = call
        self._as = variant

    @property
    def name(self) -> str:
        """The tap's full name."""
        return self._name

    @property
    def streams(self) -> tuple[Tap, ...]:
        """One `Tap` a stream, that is, for each site: one shape, one dtype a leaf, one chain of transforms.

        Of several processes the records of a site are one.
        """
        groups: dict[Site, list[StreamView]] = {}
        for view in self._views:
            groups.setdefault(view.site, []).append(view)
        return tuple(
            Tap(self._name, views, f"{self._call}.streams[{i}]", partial(self._stream_as, views))
            for i, views in enumerate(groups.values())
        )

    @cached_property
    def raw(self) -> Tap:
        """The tap with everything that was recorded: records that do not count, too, and statistics over all elements.

        Statistics then count padding, lanes whose ``where`` was False, and lanes of which nothing is known
        (`Site.lanes_may_be_invalid`). The raw tap of a selection is that selection of the raw tap.
        """
        return self._as("raw")

    @property
    def sites(self) -> tuple[Site, ...]:
        """What is static of each stream, with the leaves selected."""
        return tuple(dict.fromkeys(view.site for view in self._views))

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes that recorded it, ascending; ``(0,)`` unless the trace is of several."""
        return tuple(sorted({view.process for view in self._views}))

    @property
    def leaves(self) -> tuple[str, ...]:
        """The key paths of the leaves, as ``jax.tree_util.keystr`` prints them; ``""`` is a bare array."""
        return tuple(dict.fromkeys(leaf.path for site in self.sites for leaf in site.leaves))

    @property
    def kept(self) -> tuple[str, ...]:
        """What was kept of the leaves: ``("full",)``, or what `tracerec.tap`'s ``keep=`` asked for.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("kept.h5"):
            ...     _ = tracerec.tap(np.arange(4.0), "act", keep=["summary", "fingerprint"])
            >>> with tracerec.open("kept.h5") as trace:
            ...     act = trace["act"]
            ...     act.kept, act.to_pandas()["mean"].tolist(), act[0].value.summary.counts.tolist()
            (('summary', 'fingerprint'), [1.5], [4, 0, 0, 0, 1, 0])
        """
        return tuple(dict.fromkeys(text for site in self.sites for row in rows(site) for text in row.kept))

    @property
    def transforms(self) -> tuple[tuple[Transform, ...], ...]:
        """The chains of transforms that records went through, innermost first; ``()`` is none."""
        return tuple(dict.fromkeys(site.transforms for site in self.sites))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `to_numpy`: ``(records, *shape)``; raises SelectionError as it does."""
        return (len(self), *self._leaf().shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of `to_numpy`; raises SelectionError as it does."""
        return dtypes.from_name(self._leaf().dtype)

    @property
    def steps(self) -> np.ndarray:
        """The step of each record, in the order of `to_numpy`: ``(records,)`` of int64 as a rule.

        Raises:
            SelectionError: some records have no step, or their steps are of different shapes or dtypes.
        """
        reads = [_steps(view) for view in self._views]
        kinds = {(part.shape[1:], part.dtype) for part in (read(0, 0) for read in reads if read is not None)}
        if None in reads or len(kinds) != 1:
            what = "not every record has a step" if None in reads else "steps are not all of one shape and dtype"
            message = f"tap {self._name!r}: {what}; {self._call}.to_pandas() shows them all"
            raise SelectionError(message)
        return self._read([read for read in reads if read is not None])

    def __len__(self) -> int:
        return sum(view.records for view in self._views)

    def __iter__(self) -> Iterator[Record]:
        """Yields the records in program order, with bounded memory."""
        return records.iterate(self._views)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Record: ...

    @overload
    def __getitem__(self, key: slice | Sequence[Any] | np.ndarray) -> Tap: ...

    def __getitem__(self, key: SupportsIndex | slice | Sequence[Any] | np.ndarray) -> Record | Tap:
        """Returns the record at a place in program order, or the tap of some records, as numpy takes an index.

        Nothing but the places is read; of the records chosen later only the chunks that hold them. The order of
        ``tap[::-1]`` and of ``tap[[7, 2, 2]]`` is that of the tap which it gives.

        Args:
            key: a number, negative ones counted from the end; a slice; a mask, ``(len(tap),)`` of bool; or an array of
                numbers.

        Raises:
            IndexError: there is no such record. A slice may go beyond the ends.
            SelectionError: a mask is of another length.
            TypeError: it is no index; `sel` selects by step.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("loss.h5"):
            ...     for step in range(5):
            ...         _ = tracerec.tap(np.float32(step / 2), "loss", step=step)
            >>> with tracerec.open("loss.h5") as trace:
            ...     loss = trace["loss"]
            ...     loss[-1].step, loss[1:3].to_numpy(), loss[loss.to_numpy() > 1].steps
            (4, array([0.5, 1. ], dtype=float32), array([3, 4]))
        """
        count = len(self)
        try:
            index = None if isinstance(key, (bool, np.bool_)) else operator.index(key)  # type: ignore[arg-type]
        except TypeError:
            index = None
        if index is None:
            wanted = indexing.numbers(key, count, self._name)
            views = indexing.picked(self._views, self._inverse, wanted)
            text = f"{self._call}[{indexing.text(key)}]"
            return Tap(self._name, views, text, partial(self._picked_as, views, text))
        if not -count <= index < count:
            message = f"record {index} of tap {self._name!r}, which has {count}"
            raise IndexError(message)
        stream, row = self._inverse[index % count]
        return records.read_one(self._views[stream], int(row))

    def sel(
        self,
        *,
        step: Any = None,
        transforms: str | Transform | Iterable[str | Transform] | None = None,
        device: int | slice | Iterable[int] | None = None,
        call: int | slice | Iterable[int] | None = None,
        attempt: int | slice | Iterable[int] | None = None,
        time: Any = None,
        process: int | slice | Iterable[int] | None = None,
        **kwargs: Any,
    ) -> Tap:
        """Returns the tap with only the records that match all that is given.

        Args:
            step: a step; a slice of steps, half-open as in Python: ``slice(100, 200)`` is 100 up to 199, and
                ``slice(0, None, 10)`` every tenth; or an iterable of steps, of which those recorded are taken.
                A batched step matches where any lane does.
            transforms: the whole chain, innermost first, as names and `Transform` values:
                ``("jvp", "transpose")`` for cotangents, ``()`` for records that went through none.
            device: JAX's id of a device, a slice or an iterable of ids.
            call: the number of a program execution (`Record.call`), a slice or an iterable of numbers.
            attempt: which process's turn at a recording that was continued (`Record.attempt`), a slice or an iterable.
                What that attempt recorded is then all there, also the steps that a later one recorded again, which else
                are there in the later version alone.
            time: when records reached the host: a datetime, a `numpy.datetime64` or an ISO 8601 text, each of which
                stands for all times within its precision (``"2026-05-01"`` for a day, ``"2026-05-01T12:30"`` for a
                minute), a half-open slice of them, or an iterable. Without a zone they are UTC.
            process: the number of a process, in a trace of several files (`Record.process`), a slice or an iterable.
            kwargs: values, slices or iterables for kwargs of the tap: ``phase="train"``. A kwarg whose name is that of
                another argument here cannot be selected by.

        Raises:
            SelectionError: the tap has no such kwarg or transforms, or no record matches. Of a step the message says
                whether it was never recorded or, in a run that goes on, is not yet.
        """
        views = list(self._views if attempt is None else self._as("superseded")._views)  # noqa: SLF001 - a tap, too
        said: list[str] = []
        if transforms is not None:
            transforms = transforms if isinstance(transforms, str) else _as_tuple(transforms)
            views = selection.with_transforms(views, transforms, self._name)
            said.append(f"transforms={transforms!r}")
        kwargs = {name: list(wanted) if isinstance(wanted, Iterator) else wanted for name, wanted in kwargs.items()}
        given = {"attempt": attempt, "step": step, "device": device, "call": call, "time": time, "process": process}
        given = {name: list(w) if isinstance(w, Iterator) else w for name, w in given.items() if w is not None}
        for name, wanted in {**given, **kwargs}.items():
            views = selection.matching(views, name, wanted, self._name)
            said.append(f"{name}={wanted!r}")
        return Tap(
            self._name,
            views,
            f"{self._call}.sel({', '.join(said)})",
            lambda variant: self._as(variant).sel(transforms=transforms, **given, **kwargs),
        )

    def has_step(self, step: Any = None) -> bool:
        """Returns whether there is a record of a step; without one, whether there is a record at all.

        Args:
            step: a step, a half-open slice or an iterable of steps, of which one will do.
        """
        return bool(len(self)) if step is None else selection.has(self._views, "step", step)

    def leaf(self, path: str) -> Tap:
        """Returns the tap with one leaf of its pytree.

        Args:
            path: the leaf's key path, one of `leaves`. Where something else than the leaf was kept, the key path of the
                tapped leaf has all arrays of it, ``"['w'].summary"`` those of one kind, ``"['w'].summary.range"`` one.

        Raises:
            SelectionError: there is no such leaf; the message has the nearest.
        """
        views = [view for view in (view.with_leaf(path) for view in self._views) if view.site.leaves]
        if not views:
            choices = tuple(
                dict.fromkeys([row.leaf.path for site in self.sites for row in rows(site)] + [*self.leaves])
            )
            hint = selection.nearest(path, choices, "it has")
            message = f"tap {self._name!r} has no leaf {path!r}; {hint}"
            raise SelectionError(message, choices=choices)
        return Tap(self._name, views, f"{self._call}.leaf({path!r})", lambda variant: self._as(variant).leaf(path))

    @overload
    def to_numpy(self, *, trim: Literal[False] = False, assemble: bool = False) -> np.ndarray: ...

    @overload
    def to_numpy(self, *, trim: Literal[True], assemble: bool = False) -> list[Any]: ...

    def to_numpy(self, *, trim: bool = False, assemble: bool = False) -> np.ndarray | list[Any]:
        """Returns the leaf's values, in program order, as ``(records, *shape)``, bit for bit as recorded.

        Types that numpy lacks, such as bfloat16, are those of ``ml_dtypes``. A PRNG key is its key data. Under vmap a
        record is the whole batch: lanes that do not count are in it.

        Args:
            trim: whether to leave out padding and lanes that do not count. The result is then a list with an array a
                record, trimmed to its logical shape; under vmap with a list of such arrays a record, one a lane
                that counts. Lanes are in the order of ``out[i, j]`` of a vmap of a vmap; a leaf that is the same for
                all lanes is there once, unless ``where`` or its logical shape differs from lane to lane.
            assemble: whether to put the shards of a tap with ``shards="local"`` together: a record is then one
                firing of the tap on all devices, of the whole array's shape.

        Raises:
            SelectionError: the records are of more than one kind; the message has the calls that choose one. With
                ``assemble``: they are no shards of a whole, or a shard is missing.
            TraceError: with ``assemble``: copies of a replicated part differ.
        """
        if assemble:
            return self._whole(trim=trim)
        self._leaf(ragged=trim)
        if trim:
            return ragged.ragged(self._views, self._places)
        return self._read([lambda start, stop, v=view: v.leaf(0, start, stop) for view in self._views])

    @cached_property
    def replicated(self) -> np.ndarray:
        """For each record whether all devices had the same bits at that firing: ``(records,)`` of bool.

        It is for taps in shard_map and pmap, whose records are one a device; all leaves selected are read and
        compared, those of the devices selected. In the order of `to_numpy`.

        Raises:
            SelectionError: no record is of a single device of several.
        """
        return shards.replicated(self._views, self._places, self._name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001 - numpy's protocol
        """Returns `to_numpy`, so that ``np.asarray(tap)`` works; raises ValueError for ``copy=False``."""
        if copy is False:
            message = "an array of a trace is always a copy"
            raise ValueError(message)
        array = self.to_numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def picture(self, kind: Kind | None = None, *, columns: int = 512, rows: int = 128) -> Picture:
        """Returns what `plot` draws, as arrays: the course of the values over the records, in program order.

        A block at a time is read, and long runs are thinned to columns that stand for several records each. Values
        that are not finite, or do not count, are left out.

        Args:
            kind: ``"line"``: mean, standard deviation and extremes; of scalars the value. ``"heatmap"``: each element,
                or means of neighbours, flattened. ``"histogram"``: how values are spread. None: a line for scalars
                and tensors, a heatmap for vectors.
            columns: the most columns.
            rows: the most rows of a heatmap, and the number of bins of a histogram.

        Raises:
            SelectionError: records are of several chains of transforms, leaves or dtypes (the message has the calls
                that choose one), there is no record, or a kind does not fit them.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("picture.h5"):
            ...     for step in range(3):
            ...         _ = tracerec.tap(np.array([step, 10.0]), "act", step=step)
            >>> with tracerec.open("picture.h5") as trace:
            ...     trace["act"].picture("line").measures["mean"].tolist()
            [5.0, 5.5, 6.0]
        """
        from tracerec.trace.pictures import picture

        leaf = single.one_row(self._name, self._call, self.sites).leaf
        chain = ", ".join(map(str, self.transforms[0]))
        name = " ".join(filter(None, [self._name, leaf.path, f"({chain})" if chain else ""]))
        return picture(self._views, self._places, name, kind, columns=columns, rows=rows)

    def plot(self, kind: Kind | None = None, *, axes: Any = None) -> Any:
        """Draws `picture` with matplotlib, and returns the axes; ``.figure.savefig("x.png")`` saves it.

        Args:
            kind: as `picture` has it.
            axes: where to draw; None: those of a new figure.

        Raises:
            MissingExtra: matplotlib is not installed.
            SelectionError: as `picture`.
        """
        return self.picture(kind).draw(axes)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows; see `tracerec.trace.pages`."""
        from tracerec.trace.pages import tap_page

        return tap_page(self._name, self._views)

    def __repr__(self) -> str:
        counts: dict[Site, int] = {}
        for view in self._views:
            counts[view.site] = counts.get(view.site, 0) + view.shown_records
        size = f"{selection.counted(sum(counts.values()), 'record')}, {selection.counted(len(counts), 'stream')}"
        if len(self.processes) > 1:
            size += f", {selection.counted(len(self.processes), 'process', 'es')}"
        lines = [f"<tracerec.Tap {self._name!r}: {size}>"]
        for site, count in list(counts.items())[:_SHOWN]:
            chain = ", ".join(map(str, site.transforms)) or "primal"
            found = rows(site)
            arrays = ", ".join(map(single.row_text, found[:_SHOWN]))
            more = f", {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            unknown = ", lanes may be invalid" if site.lanes_may_be_invalid else ""
            lines.append(f"  {chain}: {count} x {arrays}{more}{unknown}")
        if len(counts) > _SHOWN:
            lines.append(f"  {selection.counted(len(counts) - _SHOWN, 'more stream')}")
        return "\n".join(lines)

    @cached_property
    def _places(self) -> list[np.ndarray]:
        return order.places(self._views)

    @cached_property
    def _inverse(self) -> np.ndarray:
        """The view and the row in it of each place: ``(records, 2)``."""
        inverse = np.empty((len(self), 2), np.int64)
        for stream, places in enumerate(self._places):
            inverse[places, 0] = stream
            inverse[places, 1] = np.arange(len(places))
        return inverse

    def _stream_as(self, views: Sequence[StreamView], variant: Variant) -> Tap:
        """Returns a variant of the tap of one of the streams."""
        sources = {id(view.source) for view in views}
        found = [stream for stream in self._as(variant).streams if sources & {id(v.source) for v in stream._views}]  # noqa: SLF001 - a tap, too
        return found[0]

    def _picked_as(self, views: Sequence[StreamView], text: str, variant: Variant) -> Tap:
        """Returns a variant of the tap of some records: it has the same records."""
        if variant == "raw":
            views = [view.as_raw() for view in views]
        return Tap(self._name, views, text, partial(self._picked_as, views, text))

    def _whole(self, *, trim: bool) -> np.ndarray | list[Any]:
        """Returns the values put together from shards."""
        leaf = self._leaf(whole=True)
        firings = shards.firings(self._views, self._places)
        whole = shards.assembled(self._views, firings, self._name)
        if trim:
            sites = {v.site: ragged.counting(shards.whole_site(v.site), raw=v.raw) for v in self._views}
            return ragged.ragged_records(whole, sites)
        out = np.empty((len(firings), *shards.whole_shape(leaf)), dtypes.from_name(leaf.dtype))
        for number, (_, array) in enumerate(whole):
            out[number, ...] = array
        return out

    def _read(self, reads: Sequence[Callable[[int, int], np.ndarray]]) -> np.ndarray:
        """Returns what the reads, one a view, give, in program order."""
        if len(self._views) == 1 and _ascending(self._places[0]):
            return reads[0](0, len(self))
        out: np.ndarray | None = None
        for view, read, places in zip(self._views, reads, self._places, strict=True):
            for start, stop in view.blocks(view.site.record_nbytes):
                block = read(start, stop)
                if out is None:
                    out = np.empty((len(self), *block.shape[1:]), block.dtype)
                out[places[start:stop]] = block
        return reads[0](0, 0) if out is None else out

    def _leaf(self, *, ragged: bool = False, whole: bool = False) -> Leaf:
        """Returns the one leaf that all streams have, as `tracerec.trace.single.one_leaf`."""
        return single.one_leaf(self._name, self._call, self.sites, ragged=ragged, whole=whole)

    def _ambiguous(self, what: str, calls: Sequence[str], notes: Sequence[str] = ()) -> SelectionError:
        return single.ambiguous(self._name, self._call, what, calls, notes)


_SHOWN = 6


def _steps(view: StreamView) -> Callable[[int, int], np.ndarray] | None:
    """Returns what reads a view's steps; None when some of its records have none."""
    for number, column in enumerate(view.site.columns):
        if column.name == "step" and column.role is None and not column.in_index:
            return lambda start, stop: view.column(number, start, stop)
    flags = [view.index(start, stop)["flags"] for start, stop in view.blocks(_ROW_NBYTES)]
    if not all(np.all(part & FLAG_STEP) for part in flags):
        return None
    return lambda start, stop: view.index(start, stop)["step"]


_ROW_NBYTES = 64


def _as_tuple(transforms: Any) -> tuple[Any, ...]:
    from tracerec.model import Transform

    return (transforms,) if isinstance(transforms, Transform) else tuple(transforms)


def _ascending(places: np.ndarray) -> bool:
    return bool(np.all(np.diff(places) > 0))
