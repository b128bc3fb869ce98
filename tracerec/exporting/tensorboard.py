"""Event files for TensorBoard: leaves with one element as scalars, others as histograms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.errors import MissingExtra
from tracerec.model import FLAG_STEP
from tracerec.trace.columns import well_formed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracerec.exporting.job import Job, Kind
    from tracerec.model import Leaf
    from tracerec.trace.view import StreamView

__all__ = ["FOLDER", "made", "write"]

FOLDER = True

_BINS = 64


def write(job: Job, place: Path) -> None:
    """Writes an event file. A record without a step is shown at its place in the tap.

    Raises:
        MissingExtra: tensorboardX is not installed.
    """
    with _writer()(logdir=str(place), write_to_disk=True) as events:
        for kind in job.kinds:
            _add(events, job, kind)


def made(folder: Path) -> bool:
    """Returns whether a folder is one that `write` made."""
    return all(path.name.startswith("events.out.tfevents.") for path in folder.iterdir())


def _add(events: Any, job: Job, kind: Kind) -> None:
    numbers = [n for n, leaf in enumerate(kind.site.leaves) if leaf.key_impl is None and math.prod(leaf.shape)]
    for leaf in kind.site.leaves:
        if leaf.key_impl is not None:
            job.left_out.append(f"{kind.tap}{leaf.path}: PRNG keys are no numbers that TensorBoard shows")
    hidden = dict.fromkeys(numbers, 0)
    for view, places in zip(kind.views, kind.places, strict=True):
        for low, high in view.blocks(view.site.record_nbytes):
            rows = view.index(low, high)
            steps = np.where(rows["flags"] & FLAG_STEP, rows["step"], places[low:high]).tolist()
            times = (rows["time"] / 1e9).tolist()
            for number in numbers:
                leaf = kind.site.leaves[number]
                tag, single = _tag(kind, leaf), math.prod(leaf.shape) == 1
                for values, step, time in zip(_valid(view, number, low, high), steps, times, strict=True):
                    at = {"global_step": step, "walltime": time}
                    hidden[number] += not (_scalar if single else _histogram)(events, tag, values, at)
            job.advance(kind, high - low)
    for number, count in hidden.items():
        if count:
            path = kind.site.leaves[number].path
            job.left_out.append(f"{kind.tap}{path}: {count:,} records have no finite element to make a histogram of")


def _scalar(events: Any, tag: str, values: np.ndarray, at: Mapping[str, Any]) -> bool:
    """Adds a scalar; returns whether there was one to add."""
    if values.size:
        events.add_scalar(tag, float(values[0]), **at)
    return bool(values.size)


def _histogram(events: Any, tag: str, values: np.ndarray, at: Mapping[str, Any]) -> bool:
    """Adds a histogram of the finite elements; returns whether there was one to add."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return False
    counts, edges = np.histogram(finite, bins=_BINS)
    events.add_histogram_raw(
        tag,
        min=float(finite.min()),
        max=float(finite.max()),
        num=int(finite.size),
        sum=float(finite.sum()),
        sum_squares=float(np.square(finite).sum()),
        bucket_limits=edges[1:].tolist(),
        bucket_counts=counts.tolist(),
        **at,
    )
    return True


def _valid(view: StreamView, number: int, low: int, high: int) -> list[np.ndarray]:
    """Returns the elements that count of each record, as float64; of complex numbers the magnitudes."""
    block = view.leaf(number, low, high)
    valid = view.valid(number, low, high)
    wide = np.abs(block) if block.dtype.kind == "c" else block
    with np.errstate(all="ignore"):
        wide = wide.astype(np.float64)
    if valid is None:
        return list(wide.reshape(len(wide), -1))
    masks = np.broadcast_to(valid, wide.shape)
    return [wide[row, ...][masks[row, ...]].reshape(-1) for row in range(len(wide))]


def _tag(kind: Kind, leaf: Leaf) -> str:
    transforms = ", ".join(map(str, kind.site.transforms))
    return well_formed(f"{kind.tap}{leaf.path}" + (f" ({transforms})" if transforms else ""))


def _writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        message = (
            "exporting to TensorBoard needs tensorboardX, which is not installed: pip install 'tracerec[tensorboard]'"
        )
        raise MissingExtra(message, extra="tensorboard") from error
    return SummaryWriter
