"""The walk through two traces: groups of records, pair by pair, block by block."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracerec.comparing import unmatched as lists
from tracerec.comparing.cells import DIFFERENT, MEASURES_EMPTY, Cell, Comparer
from tracerec.comparing.comparison import Comparison, Runs
from tracerec.comparing.noise import Noise
from tracerec.comparing.pairing import Options, Pairing, Run
from tracerec.comparing.renaming import Renaming, patterns
from tracerec.comparing.spool import Spool
from tracerec.comparing.together import batches
from tracerec.comparing.tolerances import Tolerances
from tracerec.errors import ComparisonError
from tracerec.protocol import dtypes
from tracerec.trace import Trace, open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from tracerec.comparing.renaming import Rename
    from tracerec.comparing.tolerances import Given

__all__ = ["Missing", "compare"]

Missing = Literal["fail", "warn", "ignore"]
Path = str | os.PathLike[str] | Trace


def compare(
    a: Path,
    b: Path,
    *,
    rtol: Given = None,
    atol: Given = None,
    ulp: Given = None,
    exact: bool | Sequence[str] = False,
    cast: bool | str = False,
    noise: Path | None = None,
    noise_factor: float = 2.0,
    key: Sequence[str] | None = None,
    rename: Rename = None,
    ignore: str | Sequence[str] = (),
    missing: Missing = "fail",
    first: bool = False,
) -> Comparison:
    """Compares two traces, record by record, and says where they begin to differ.

    Records belong together by tap, leaf, static kwargs, transforms, step, every other integer kwarg, device or mesh
    coordinate, and by occurrence within those; their place in a file does not count. Float kwargs are compared. Shards
    of one logical array are compared once they are put together. Padding and lanes that do not count never differ.

    Where something smaller than a leaf was kept, that is compared, lane by lane: fingerprints by their digests and
    histograms by their bins, which no tolerance is for, and summaries by their statistics: counts, the smallest and the
    largest element must be equal, the mean, the standard deviation and the norms as near as elements within tolerance
    would make them. Against a leaf that was kept whole, a fingerprint or a summary of that is computed; the verdict
    says so. Leaves that were kept so differently that they have nothing in common are listed as not comparable.

    Memory is bounded whatever the size of the traces (about 100 bytes a record).

    Args:
        a: the run that is taken to be right: a path, or an open `Trace`.
        b: the other run.
        rtol: allowed difference relative to the larger magnitude of two values: a number, or one for each dtype or
            pattern of taps, ``{"bfloat16": 0.02, "encoder/*": 1e-3}``. What is not given is the dtype's default
            (`tracerec.comparing.tolerances.defaults_text` prints them).
        atol: allowed absolute difference, likewise.
        ulp: allowed number of representable values between two, likewise; where it is given, rtol and atol are 0
            unless they are, too.
        exact: whether all bits must be equal (those of NaN apart): everywhere, or for these patterns of taps.
        cast: whether a difference of dtype is accepted; values are then compared in the lower of the two
            precisions, or in the one named.
        noise: a repeated or perturbed run of ``a``: what differs by at most ``noise_factor`` times as much as ``a`` and
            this run do, by the largest difference and by its norm, is no regression.
        noise_factor: see ``noise``.
        key: names of the kwargs that records are matched by, in place of the static and integer ones.
        rename: new names of taps that ``b`` has: ``{"old/*": "new/*"}``, or the path of a JSON file with them.
        ignore: patterns of taps to leave out.
        missing: what records that only one run has, or that cannot be compared, do: ``"fail"``: make the runs
            different; ``"warn"``: are warned of; ``"ignore"``: are listed alone.
        first: whether to stop at the first difference, in order of execution.

    Returns:
        What was found.

    Raises:
        ComparisonError: an argument says what there is not.
        TraceError: a trace cannot be read.

    Example:
        >>> import numpy as np, tracerec
        >>> for name, scale in (("a.h5", 1.0), ("b.h5", 1.1)):
        ...     with tracerec.record(name):
        ...         for step in range(3):
        ...             x = tracerec.tap(np.float32(step), "input", step=step)
        ...             _ = tracerec.tap(np.float32(x * scale), "scaled", step=step)
        >>> found = tracerec.compare("a.h5", "b.h5")
        >>> found.ok, found.first_divergence.record
        (False, 'scaled step=1')
    """
    if missing not in ("fail", "warn", "ignore"):
        message = f"missing is 'fail', 'warn' or 'ignore', not {missing!r}"
        raise ComparisonError(message)
    options = Options(
        tolerances=Tolerances(rtol, atol, ulp, exact=exact),
        cast=_cast(cast),
        noise_factor=noise_factor,
        key=None if key is None else frozenset((key,) if isinstance(key, str) else key),
        renaming=Renaming(rename),
        ignore=patterns(ignore),
    )
    with contextlib.ExitStack() as stack:
        traces = [stack.enter_context(_opened(run)) for run in ((a, b) if noise is None else (a, b, noise))]
        found = _Walk(options, traces).run(missing, first=first)
    if missing == "warn" and found.unmatched:
        warnings.warn(f"not everything was compared: {'; '.join(map(str, found.unmatched))}", stacklevel=2)
    return found


class _Walk:
    def __init__(self, options: Options, traces: Sequence[Trace]) -> None:
        self._options = options
        runs = [Run(trace, options, renamed=number != 1) for number, trace in enumerate(traces)]
        self._a, self._b, *others = runs
        noise = others[0] if others else None
        self._pairing = Pairing(self._a, self._b, options, noise)
        self._spool = Spool()
        self._comparer = Comparer(cast=options.cast, noise_factor=options.noise_factor)
        self._noise = None if noise is None else Noise(self._a, noise, self._comparer)

    def run(self, missing: Missing, *, first: bool) -> Comparison:
        work = self._pairing.cells()
        cells = self._first(list(work)) if first else self._all(work)
        unmatched = [*self._pairing.unmatched, *lists.unreadable(cells)]
        a, b = self._a.trace, self._b.trace
        notes = tuple(f"{trace.path}: {note}" for trace in (a, b) for note in trace.info.notes)
        return Comparison(
            Runs(a.path, b.path, len(a), len(b), notes),
            cells,
            lists.with_losses(unmatched, self._a, self._b),
            missing,
            self._options.tolerances,
            stopped=first and any(cell.counts.first_different for cell in cells),
        )

    def _all(self, work: Iterable[tuple[Cell, np.ndarray, np.ndarray]]) -> list[Cell]:
        if self._noise is not None or self._options.cast is not False:
            return [self._whole(*each) for each in work]
        out: list[Cell] = []
        for some in batches(work):
            if len(some) == 1:
                out.append(self._whole(*some[0]))
                continue
            found = self._comparer.compare_together([(cell, pairs) for cell, pairs, _ in some])
            out += [self._kept(*each, rows) for each, rows in zip(some, found, strict=True)]
        return out

    def _whole(self, cell: Cell, pairs: np.ndarray, keys: np.ndarray) -> Cell:
        rows = self._comparer.compare(cell, pairs, self._noise_of(cell))
        return self._kept(cell, pairs, keys, rows)

    def _kept(self, cell: Cell, pairs: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> Cell:
        cell.keep(self._spool, pairs, keys, rows)
        return cell

    def _first(self, work: Sequence[tuple[Cell, np.ndarray, np.ndarray]]) -> list[Cell]:
        """Compares in order of execution, in parts of growing size, up to the first part that has a difference."""
        limit, size = 0, _FIRST
        last = max((int(pairs["place"].max()) for _, pairs, _ in work if len(pairs)), default=-1)
        orders = [np.argsort(pairs["place"], kind="stable") for _, pairs, _ in work]
        starts = [0] * len(work)
        found: list[list[np.ndarray]] = [[] for _ in work]
        different = False
        while limit <= last and not different:
            limit += size
            size *= 2
            for number, (cell, pairs, _) in enumerate(work):
                places = pairs["place"][orders[number]]
                stop = int(np.searchsorted(places, limit))
                if stop > starts[number]:
                    some = pairs[orders[number][starts[number] : stop]]
                    rows = self._comparer.compare(cell, some, self._noise_of(cell))
                    some["measured"][some["measured"] >= 0] += sum(map(len, found[number]))
                    pairs[orders[number][starts[number] : stop]] = some
                    found[number].append(rows)
                    starts[number] = stop
                    different = different or bool(np.isin(some["kind"], DIFFERENT).any())
        out: list[Cell] = []
        for number, (cell, pairs, keys) in enumerate(work):
            chosen = np.sort(orders[number][: starts[number]])
            rows = np.concatenate(found[number]) if found[number] else MEASURES_EMPTY
            if len(chosen):
                out.append(self._kept(cell, pairs[chosen], keys[chosen], rows))
        return out

    def _noise_of(self, cell: Cell) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
        return None if self._noise is None else self._noise.of(cell)


_FIRST = 4096
"""Records compared before the walk first looks whether it can stop."""


@contextlib.contextmanager
def _opened(run: Path) -> Generator[Trace]:
    """Gives a trace; closes it if it was opened for this."""
    if isinstance(run, Trace):
        yield run
        return
    with open_trace(run) as trace:
        yield trace


def _cast(cast: bool | str) -> bool | np.dtype[Any]:  # noqa: FBT001 - as the user gives it
    if isinstance(cast, bool):
        return cast
    try:
        return dtypes.from_name(cast)
    except ValueError:
        message = f"cast is True, False or the name of a dtype, not {cast!r}"
        raise ComparisonError(message) from None
