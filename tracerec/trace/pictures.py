"""What a plot of a tap shows: its course over the records as a line, a heatmap or histograms, as arrays.

All are computed a block at a time, so that memory does not depend on how much was recorded. Long runs are thinned to a
number of columns, each of which stands for the records of a stretch, none left out.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tracerec.errors import MissingExtra, SelectionError
from tracerec.model import FLAG_STEP
from tracerec.statistics import moments, moments_by_row
from tracerec.trace.kept_histograms import shares_of_kept
from tracerec.trace.single import main_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tracerec.keeping.reading import Row
    from tracerec.model import Site
    from tracerec.trace.view import StreamView

__all__ = ["Kind", "Picture", "picture", "usual_kind"]

Kind = Literal["line", "heatmap", "histogram"]

_MEASURES = ("mean", "std", "min", "max")


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """What is drawn of a tap. Arrays are of float64; NaN is where there is no finite value.

    Attributes:
        name: the tap's name, with the leaf's key path and the transforms.
        kind: ``"line"``, ``"heatmap"`` or ``"histogram"``.
        scalar: whether a record is one number.
        records: how many records there are.
        missing: how many of them have no finite value that counts; of a line.
        x: where each column begins, ``(columns,)``: steps, or numbers of records.
        x_name: ``"step"`` or ``"record"``.
        measures: of a line: ``mean``, ``std``, ``min`` and ``max`` of each column, ``(columns,)`` each. Of several
            records: the mean of the means, the root mean square of the deviations, and the extremes.
        y: of a heatmap the first element of each row, ``(rows,)``; of a histogram the edges of its bins,
            ``(rows + 1,)``.
        values: of a heatmap the means, of a histogram the shares of the elements, ``(rows, columns)``.
        y_name: what ``y`` is: ``"value"``, ``"element"``, or ``"magnitude"`` of a histogram by exponent that was kept:
            its bins are powers of two, and zeros are not in it.
    """

    name: str
    kind: Kind
    scalar: bool
    records: int
    missing: int
    x: np.ndarray
    x_name: str
    measures: dict[str, np.ndarray]
    y: np.ndarray
    values: np.ndarray
    y_name: str = "value"

    def draw(self, axes: Any = None) -> Any:
        """Draws with matplotlib; returns the axes.

        Args:
            axes: where to draw; None: those of a new figure, 8 by 4.5 inches.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        if axes is None:
            axes = _new_axes()
        if self.kind == "line":
            self._draw_line(axes)
        else:
            self._draw_mesh(axes)
        axes.set_xlabel(self.x_name)
        # A name is no formula: matplotlib would read what is between dollar signs.
        axes.set_title(self.name, parse_math=False)
        return axes

    def _draw_line(self, axes: Any) -> None:
        mean, std = self.measures["mean"], self.measures["std"]
        marker = "." if len(self.x) == 1 else None
        axes.plot(self.x, mean, color="C0", label="value" if self.scalar else "mean", marker=marker, zorder=3)
        if not self.scalar:
            axes.fill_between(self.x, mean - std, mean + std, color="C0", alpha=0.35, label="mean ± std", linewidth=0)
        if not self.scalar or len(self.x) < self.records:
            low, high = self.measures["min"], self.measures["max"]
            axes.fill_between(self.x, low, high, color="C0", alpha=0.12, label="min to max", linewidth=0)
            axes.legend(loc="best", frameon=False)
        axes.margins(x=0.01)

    def _draw_mesh(self, axes: Any) -> None:
        x = _edges(self.x)
        y = _edges(self.y) if self.kind == "heatmap" else self.y
        label, colours = ("mean", "viridis") if self.kind == "heatmap" else ("share of the values", "magma")
        mesh = axes.pcolormesh(x, y, np.ma.masked_invalid(self.values), cmap=colours, shading="flat")
        axes.figure.colorbar(mesh, ax=axes, label=label)
        axes.set_ylabel(self.y_name)
        if self.y_name == "magnitude":
            axes.set_yscale("log", base=2)


def picture(
    views: Sequence[StreamView],
    places: Sequence[np.ndarray],
    name: str,
    kind: Kind | None = None,
    *,
    columns: int = 512,
    rows: int = 128,
) -> Picture:
    """Returns the picture of streams with one leaf each; `tracerec.Tap.picture` says what it shows.

    Args:
        views: the streams.
        places: for each stream the place of each row in program order.
        name: what the picture is called.
        kind: what is drawn; None: a line for scalars and tensors, a heatmap for vectors.
        columns: the most columns.
        rows: the most rows of a heatmap, and the number of bins of a histogram.

    Raises:
        SelectionError: there is no record, the leaf is a PRNG key, there is no such kind, or a heatmap is asked for
            records of different shapes.
    """
    told = [main_rows(view.site)[0] for view in views]
    _check(told, name, kind, sum(map(len, places)))
    kind = kind or usual_kind([view.site for view in views])
    _check_kept(told, name, kind)
    shapes = {row.leaf.shape for row in told}
    if kind == "heatmap" and len(shapes) > 1:
        text = ", ".join(map(str, sorted(shapes)))
        message = f"a heatmap needs records of one shape; {name} has {text}. A line or a histogram takes them all"
        raise SelectionError(message)
    # Of a leaf that was kept whole beside others, that array alone.
    views = [v if row.array is None else v.with_places([row.array]) for v, row in zip(views, told, strict=True)]
    blocks = _Blocks(views, places, columns)
    steps = blocks.steps()
    first = blocks.first_of_columns()
    counted = kind == "histogram" and told[0].array is None
    measures = {} if kind == "heatmap" or counted else _measures(blocks, told)
    if counted:
        y, values, y_name = shares_of_kept(views, places, told, blocks.column_of, (rows, blocks.columns))
    else:
        (y, values), y_name = _meshed(blocks, kind, rows, measures), "element" if kind == "heatmap" else "value"
    return Picture(
        name=name,
        kind=kind,
        scalar=shapes == {()},
        records=blocks.records,
        missing=int(np.isnan(measures["mean"]).sum()) if kind == "line" else 0,
        x=(first if steps is None else steps[first]).astype(np.float64),
        x_name="record" if steps is None else "step",
        measures=_thinned(measures, blocks) if kind == "line" else {},
        y=y,
        values=values,
        y_name=y_name,
    )


def usual_kind(sites: Collection[Site]) -> Kind:
    """Returns what is drawn of records of these sites, of one leaf each, unless told otherwise."""
    told = [main_rows(site)[0] for site in sites]
    if any(row.array is None for row in told):
        return "histogram" if all(row.kind("histogram") and not row.kind("summary") for row in told) else "line"
    shapes = {row.leaf.shape for row in told}
    if len(shapes) > 1:
        return "line"
    ((*shape,),) = shapes
    return "heatmap" if len(shape) == 1 and shape[0] > 1 else "line"


def _check(told: Sequence[Row], name: str, kind: str | None, records: int) -> None:
    if any(row.leaf.key_impl is not None for row in told):
        message = f"{name} is a PRNG key, whose bits are no numbers to draw"
        raise SelectionError(message)
    if kind is not None and kind not in get_args(Kind):
        message = f"kind is one of {', '.join(map(repr, get_args(Kind)))}, not {kind!r}"
        raise SelectionError(message, choices=get_args(Kind))
    if not records:
        message = f"{name} has no record that counts"
        raise SelectionError(message)


def _check_kept(told: Sequence[Row], name: str, kind: Kind) -> None:
    """Raises SelectionError where what was kept of the leaf does not tell what is to be drawn."""
    needed = {"line": ("summary",), "heatmap": (), "histogram": ("histogram",)}[kind]
    lacking = [row for row in told if row.array is None and not any(map(row.kind, needed))]
    if kind == "histogram" and len({row.array is None for row in told}) > 1:
        lacking = [row for row in told if row.array is None]
    if lacking:
        kept = ", ".join(lacking[0].kept)
        what = "line, with its mean" if kind == "line" else kind
        message = f"there is no {what} of {name}: {kept} is what was kept of it"
        can = [each for each, kinds in (("line", "summary"), ("histogram", "histogram")) if lacking[0].kind(kinds)]
        raise SelectionError(message + (f"; kind={can[0]!r} can be drawn" if can else ""), choices=tuple(can))


class _Blocks:
    """The records of some streams, block by block, and which column each is in."""

    def __init__(self, views: Sequence[StreamView], places: Sequence[np.ndarray], columns: int) -> None:
        self._views = views
        self._places = places
        self.records = sum(map(len, places))
        self.columns = min(columns, self.records)
        self.elements = math.prod(views[0].site.leaves[0].shape)

    def first_of_columns(self) -> np.ndarray:
        """Returns the place of each column's first record."""
        return np.array([-(-column * self.records // self.columns) for column in range(self.columns)])

    def steps(self) -> np.ndarray | None:
        """Returns the step of each record; None where some have none, or they go back."""
        steps = np.zeros(self.records, np.int64)
        for view, places in zip(self._views, self._places, strict=True):
            for start, stop in view.blocks(64):
                index = view.index(start, stop)
                if not (index["flags"] & FLAG_STEP).all():
                    return None
                steps[places[start:stop]] = index["step"]
        return steps if (np.diff(steps) >= 0).all() else None

    def column_of(self, places: np.ndarray) -> np.ndarray:
        """Returns the columns of records with these places."""
        return places * self.columns // self.records

    def told(self, told: Sequence[Row]) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields places, and what was kept tells of the records there, of streams that have no elements."""
        for view, places, row in zip(self._views, self._places, told, strict=True):
            for start, stop in view.blocks(view.site.record_nbytes) if row.array is None else ():
                found = row.statistics(lambda place, v=view, a=start, b=stop: v.leaf(place, a, b))
                yield places[start:stop], found

    def read(self, told: Sequence[Row] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yields places, values ``(n, *shape)`` and which of them count (None: all), of streams that have elements."""
        for number, (view, places) in enumerate(zip(self._views, self._places, strict=True)):
            if told is not None and told[number].array is None:
                continue
            for start, stop in view.blocks(view.site.record_nbytes):
                block = view.leaf(0, start, stop)
                valid = view.valid(0, start, stop)
                yield places[start:stop], block, None if valid is None else np.broadcast_to(valid, block.shape)


def _meshed(blocks: _Blocks, kind: Kind, rows: int, measures: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``y`` and ``values`` of a picture."""
    if kind == "heatmap":
        return _heat(blocks, rows)
    if kind == "histogram":
        return _shares(blocks, rows, measures["min"], measures["max"])
    return np.empty(0), np.empty((0, 0))


def _measures(blocks: _Blocks, told: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the measures of each record."""
    out = {name: np.full(blocks.records, np.nan) for name in _MEASURES}
    for places, found in blocks.told(told):
        for name in _MEASURES:
            out[name][places] = found[name]
    for places, block, valid in blocks.read(told):
        if valid is None:
            found = moments_by_row(block)
            for name in _MEASURES:
                out[name][places] = found[name]
        else:
            for place, row, counts in zip(places.tolist(), block, valid, strict=True):
                one = moments(row[counts])
                for name in _MEASURES:
                    out[name][place] = np.nan if getattr(one, name) is None else getattr(one, name)
    return out


def _thinned(measures: dict[str, np.ndarray], blocks: _Blocks) -> dict[str, np.ndarray]:
    if blocks.columns == blocks.records:
        return measures
    column = blocks.column_of(np.arange(blocks.records))
    there = ~np.isnan(measures["mean"])
    count = np.bincount(column[there], minlength=blocks.columns)

    def mean(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.bincount(column[there], values[there], blocks.columns) / count

    low, high = np.full(blocks.columns, np.inf), np.full(blocks.columns, -np.inf)
    np.minimum.at(low, column[there], measures["min"][there])
    np.maximum.at(high, column[there], measures["max"][there])
    low[count == 0] = high[count == 0] = np.nan
    return {"mean": mean(measures["mean"]), "std": np.sqrt(mean(measures["std"] ** 2)), "min": low, "max": high}


def _heat(blocks: _Blocks, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first element of each row, and the mean of the finite values of each row and column."""
    rows = max(1, min(rows, blocks.elements))
    first = np.array([-(-row * blocks.elements // rows) for row in range(rows)])
    sums, counts = np.zeros((blocks.columns, rows)), np.zeros((blocks.columns, rows), np.int64)
    for places, block, valid in blocks.read():
        if not blocks.elements:
            continue
        values, there = _plain(block, valid)
        column = blocks.column_of(places)
        np.add.at(sums, column, np.add.reduceat(values.reshape(len(block), -1), first, axis=1))
        np.add.at(counts, column, np.add.reduceat(there.reshape(len(block), -1), first, axis=1, dtype=np.int64))
    with np.errstate(all="ignore"):
        return first.astype(np.float64), (sums / counts).T


def _shares(blocks: _Blocks, bins: int, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the edges of the bins, and the share of the finite values of each bin and column."""
    there = ~np.isnan(low)
    least, most = (float(low[there].min()), float(high[there].max())) if there.any() else (0.0, 1.0)
    if not most > least:
        least, most = least - max(0.5, abs(least) * 1e-3), most + max(0.5, abs(most) * 1e-3)
    edges = np.linspace(least, most, bins + 1)
    counts = np.zeros(blocks.columns * bins, np.int64)
    for places, block, valid in blocks.read():
        values, finite = _plain(block, valid)
        # Halves, so that the widest range of float64 does not overflow.
        share = (values / 2 - least / 2) / (most / 2 - least / 2)
        inside = np.clip((share * bins).astype(np.int64), 0, bins - 1)
        column = blocks.column_of(places).reshape(-1, *(1 for _ in block.shape[1:]))
        counts += np.bincount((column * bins + inside)[finite], minlength=len(counts))
    table = counts.reshape(blocks.columns, bins).astype(np.float64)
    with np.errstate(all="ignore"):
        return edges, (table / table.sum(axis=1, keepdims=True)).T


def _plain(block: np.ndarray, valid: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns values as float64, 0 where they do not count or are not finite, and which of them do."""
    with np.errstate(all="ignore"):
        values = np.abs(block).astype(np.float64) if block.dtype.kind == "c" else block.astype(np.float64)
    there = np.isfinite(values)
    if valid is not None:
        there &= valid
    return np.where(there, values, 0.0), there


def _edges(starts: np.ndarray) -> np.ndarray:
    """Returns the edges of cells that begin at some numbers; the last is as wide as the one before."""
    width = starts[-1] - starts[-2] if len(starts) > 1 else 1.0
    edges = np.append(starts, starts[-1] + (width or 1.0))
    # Steps that stand still, as in a loop, would be cells without a width.
    flat = np.flatnonzero(np.diff(edges) <= 0)
    return np.linspace(edges[0], edges[-1], len(edges)) if len(flat) else edges


def _new_axes() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "plots need matplotlib, which is not installed: pip install 'tracerec[plot]'"
        raise MissingExtra(message, extra="plot") from error
    make: Callable[..., Any] = Figure
    return make(figsize=(8, 4.5), layout="constrained").add_subplot()
