"""What a tap and a trace turn into: tables, labelled arrays, Arrow, Dask, batches of bounded size, SQL."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from tracerec.trace import selection
from tracerec.trace.blocks import blocks
from tracerec.trace.view import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from functools import cached_property

    import dask.array as da
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import xarray as xr

    from tracerec.errors import SelectionError
    from tracerec.model import Leaf, Site
    from tracerec.trace.view import StreamView

    Patterns = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]

__all__ = ["TapBatch", "TapConversions", "TraceConversions"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TapBatch:
    """Some records of a tap that follow each other; see `TapConversions.iter_batches`.

    Attributes:
        start: the place of the first record in the tap: ``tap[batch.start]``.
        values: the leaf's values, ``(n, *shape)``, as `Tap.to_numpy` gives them.
        steps: the step of each record, ``(n,)`` of int64 as a rule; None when some records of the tap have none.
    """

    start: int
    values: np.ndarray
    steps: np.ndarray | None

    @property
    def stop(self) -> int:
        """The place behind the last record."""
        return self.start + len(self.values)

    def __len__(self) -> int:
        return len(self.values)


class TapConversions:
    """What a `Tap` turns into. A base of that class alone."""

    if TYPE_CHECKING:
        _name: str
        _views: tuple[StreamView, ...]

        @cached_property
        def _places(self) -> list[np.ndarray]: ...

        def _leaf(self, *, ragged: bool = False, whole: bool = False) -> Leaf: ...

        def _ambiguous(self, what: str, calls: Sequence[str], notes: Sequence[str] = ()) -> SelectionError: ...

    @property
    def views(self) -> tuple[StreamView, ...]:
        """The streams as selected: what conversions and exports read, block by block."""
        return self._views

    def to_pandas(self, *, stats: bool | str | Iterable[str] = True, progress: bool | None = None) -> pd.DataFrame:
        """Returns a tidy table, one row a record and leaf; see `Trace.to_pandas` for its columns and arguments.

        ``tap.raw.to_pandas()`` has the statistics over all elements, whatever is known of them.

        Raises:
            SelectionError: there is no such statistic.
            MissingExtra: pandas is not installed.
        """
        from tracerec.trace import tables

        return tables.table(self._views, tables.statistics_named(stats), progress=progress)

    def to_xarray(self, *, assemble: bool = False) -> xr.DataArray:
        """Returns the leaf's values as a labelled array, in program order, bit for bit as recorded.

        Dimensions are ``record``; for each vmap, from the outermost, its ``axis_name`` or ``batch_0``, ``batch_1``, ...
        where the leaf has that axis; and ``dim_0``, ``dim_1``, ... for the value's own axes.

        Coordinates along ``record`` are ``step``, ``time`` (datetime64[ns], UTC), ``device``, ``call``, and every kwarg
        that all records have and that changes; for records of shard_map and pmap the position on each mesh axis. Steps
        have an index: ``array.sel(step=100)``, and for plots ``array.plot(x="step")``. What tap, leaf and transforms
        it is of, and kwargs that are the same for all records, are in ``attrs``, as JSON values.

        Types that numpy lacks are those of ``ml_dtypes``. xarray carries them, and few of its functions and no netCDF
        file know them: ``array.astype("float32")``.

        Args:
            assemble: whether to put what devices recorded at one firing together. Shards (``shards="local"``) become
                the whole array; records of shard_map and pmap, one a device, become one with the mesh's axes as
                dimensions behind ``record``. Coordinates are then those of the firing's first record.

        Raises:
            SelectionError: as `Tap.to_numpy` does; with ``assemble``, also when a device's record is missing.
            MissingExtra: xarray is not installed.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("labelled.h5"):
            ...     for step in range(3):
            ...         _ = tracerec.tap(np.full(2, step, np.float32), "act", step=10 * step)
            >>> with tracerec.open("labelled.h5") as trace:
            ...     array = trace["act"].to_xarray()
            >>> array.sizes["record"], array.sel(step=20).values.tolist()
            (3, [2.0, 2.0])
        """
        from tracerec.trace import labelled

        leaf = self._leaf(whole=assemble)
        return labelled.labelled(self._views, self._places, self._name, leaf, assemble=assemble)

    def to_arrow(self) -> pa.Table:
        """Returns the records as an Arrow table, a row each, in program order.

        Columns are ``step``, ``time``, ``device``, ``call``, ``process`` where there are several, one a kwarg (called
        ``kwargs.NAME`` where NAME is taken), and one a leaf: ``value`` with the leaf's key path behind it. A leaf is a
        column of numbers, or of fixed-shape tensors. Numbers that Arrow lacks are in a type that holds them exactly
        (bfloat16 and float8 in float32, int4 in int8), a complex number is two floats, a PRNG key its data. A leaf
        without elements has no column. The fields' metadata have the recorded ``dtype`` and the ``leaf``.

        polars, DuckDB and pyarrow take the tap itself, block by block: ``polars.DataFrame(tap)``,
        ``duckdb.from_arrow(tap)``, ``pyarrow.RecordBatchReader.from_stream(tap)``.

        Raises:
            SelectionError: records went through different transforms, or their leaves differ.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("arrow.h5"):
            ...     _ = tracerec.tap(np.zeros((2, 3), np.float32), "act", step=7)
            >>> with tracerec.open("arrow.h5") as trace:
            ...     table = trace["act"].to_arrow()
            >>> table.column_names, table["step"].to_pylist()
            (['step', 'time', 'device', 'call', 'value'], [7])
        """
        return self._arrow_reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns `to_arrow` as an Arrow PyCapsule stream, of which a block is in memory at a time."""
        return self._arrow_reader().__arrow_c_stream__(requested_schema)

    def to_dask(self) -> da.Array:
        """Returns the leaf's values as a Dask array, in program order, of which nothing is read yet.

        A block is about 8 MiB of records, read when it is computed. Threads compute it, which is what Dask does unless
        told otherwise; they read one after the other. The trace must be open until then. The array cannot be sent to
        other processes.

        Raises:
            SelectionError: as `Tap.to_numpy` does.
            MissingExtra: Dask is not installed.
        """
        from tracerec.trace import lazy

        return lazy.dask_array(self._views, self._places, self._name, self._leaf())

    def iter_batches(self, bytes: int = BLOCK_BYTES) -> Iterator[TapBatch]:  # noqa: A002 - what it counts
        """Yields the leaf's values in program order, some records at a time, so that any tap fits into memory.

        Args:
            bytes: the most bytes of the arrays of a batch; a record that is larger is a batch of its own.

        Raises:
            SelectionError: as `Tap.to_numpy` does, when called.
            ValueError: ``bytes`` is not a positive number.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("batches.h5"):
            ...     for step in range(5):
            ...         _ = tracerec.tap(np.full(2, step, np.float32), "act", step=step)
            >>> with tracerec.open("batches.h5") as trace:
            ...     for batch in trace["act"].iter_batches(bytes=16):
            ...         print(batch.start, batch.steps.tolist(), batch.values.sum())
            0 [0, 1] 2.0
            2 [2, 3] 10.0
            4 [4] 8.0
        """
        if isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 1:
            message = f"bytes= takes a positive number of bytes, not {bytes!r}"
            raise ValueError(message)
        self._leaf()
        return self._batches(bytes)

    def _batches(self, nbytes: int) -> Iterator[TapBatch]:
        from tracerec.trace.columnar import steps_of

        views = self._views
        steps = steps_of(views)
        for block in blocks(views, self._places, nbytes):
            values = block.read(lambda stream, low, high: views[stream].leaf(0, low, high))
            yield TapBatch(block.start, values, None if steps is None else block.read(steps))

    def _arrow_reader(self) -> pa.RecordBatchReader:
        from tracerec.trace import columnar

        sites = list(dict.fromkeys(view.site for view in self._views))
        if len({site.transforms for site in sites}) > 1 and any(site.leaves for site in sites):
            # It says which chains there are.
            self._leaf()
        if len({_arrays(site) for site in sites}) > 1:
            what, calls = "leaves, shapes or dtypes", [f".streams[{n}]" for n in range(len(sites))]
            raise self._ambiguous(what, calls)
        return columnar.reader(self._views, self._places)


class TraceConversions:
    """What a `Trace` turns into. A base of that class alone."""

    if TYPE_CHECKING:
        _views: list[StreamView]

        @property
        def path(self) -> str:
            """The file or folder."""
            ...

        def _check_open(self) -> None: ...

    def to_pandas(
        self,
        taps: Patterns | None = None,
        *,
        stats: bool | str | Iterable[str] = True,
        progress: bool | None = None,
    ) -> pd.DataFrame:
        r"""Returns a tidy table, one row a record and leaf, in program order.

        Columns: ``tap``, ``leaf`` (its key path), ``transforms`` (text such as ``"jvp, transpose"``), ``step``
        (nullable Int64), ``time`` (UTC), ``device``, ``call``; one column a kwarg, in its own nullable type;
        ``value`` for scalar leaves; and the leaf's statistics ``count``, ``nan``, ``posinf``, ``neginf``,
        ``zeros``, ``min``, ``max``, ``mean``, ``std``, ``l2``, of `tracerec.statistics.moments`: over finite values, in
        float64. A kwarg whose name is that of another column is called ``kwargs.NAME``. Tensors are read for
        statistics alone, a block at a time.

        Records, lanes and padding that do not count are left out, of rows and of statistics. Of streams whose lanes
        may be invalid (a tap in a branch or loop under vmap, without ``where``) the statistics are missing.
        ``trace.raw.to_pandas()`` has all.

        Columns that are there only where they say something: ``valid_lanes``, how many lanes of a record count, such as
        ``"3/4"``; ``lanes_may_be_invalid``; ``call_sure``, False where a record's call is a good guess; ``attempt``,
        where a recording was continued; ``process``, of a trace of several.

        Tables hold text as UTF-8, which has no lone surrogates: in names, key paths and kwargs they are escaped, as
        ``errors="backslashreplace"`` does it (``\ud800``). ``taps`` takes names as they were recorded.

        Args:
            taps: the taps: a name, a glob such as ``"encoder/*"``, a compiled regular expression, or several of them;
                None: all.
            stats: which statistics: True: all; False: none, and of tensors the scalars alone are read; or their names.
            progress: whether to show a bar on standard error; None: on a terminal, when it takes more than a second.

        Raises:
            SelectionError: there is no such tap or statistic.
            MissingExtra: pandas is not installed.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("table.h5"):
            ...     _ = tracerec.tap(np.array([3.0, -4.0, np.nan], np.float32), "act", step=0)
            >>> with tracerec.open("table.h5") as trace:
            ...     trace.to_pandas("a*", stats=["nan", "l2"])[["tap", "step", "nan", "l2"]].to_dict("records")
            [{'tap': 'act', 'step': 0, 'nan': 1, 'l2': 5.0}]
        """
        from tracerec.trace import tables

        self._check_open()
        wanted = tables.statistics_named(stats)
        views = self._views if taps is None else self._views_named(taps)
        return tables.table(views, wanted, progress=progress)

    def sql(self, query: str, *, progress: bool | None = None) -> pd.DataFrame:
        """Returns what a query in DuckDB's SQL gives.

        There is one table, ``records``: that of `to_pandas`, with times as UTC timestamps without a zone, and kwargs
        that are no scalars as JSON text. Statistics are computed where the query mentions one, or ``*``. The query can
        reach no file and nothing else outside of the trace.

        Args:
            query: one statement, such as ``"select tap, max(l2) from records group by tap"``.
            progress: as for `to_pandas`.

        Returns:
            A table with nullable types, so that no integer becomes a float for want of another.

        Raises:
            SelectionError: DuckDB refuses the query; the message says why.
            MissingExtra: DuckDB or pandas is not installed.

        Example:
            >>> import numpy as np, tracerec
            >>> with tracerec.record("sql.h5"):
            ...     for step in range(3):
            ...         _ = tracerec.tap(np.float32(step / 2), "loss", step=step)
            >>> with tracerec.open("sql.h5") as trace:
            ...     trace.sql("select max(value) as worst, count(*) as n from records").to_dict("records")
            [{'worst': 1.0, 'n': 3}]
        """
        from tracerec.trace import sql

        self._check_open()
        return sql.run(query, self.path, lambda stats: self.to_pandas(stats=stats, progress=progress))

    def _views_named(self, taps: Patterns) -> list[StreamView]:
        there = list(dict.fromkeys(view.tap for view in self._views))
        patterns = [taps] if isinstance(taps, (str, re.Pattern)) else list(taps)
        names = {name for pattern in patterns for name in selection.names_like(pattern, there, self.path)}
        return [view for view in self._views if view.tap in names]


def _arrays(site: Site) -> tuple[Any, ...]:
    """Returns what must be the same for leaves that share a column."""
    return tuple((leaf.path, leaf.shape, leaf.dtype, leaf.key_impl) for leaf in site.leaves)
