"""Statistics of each tap over all its records, in the memory of a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracerec.consuming import TapConsumer
from tracerec.errors import MissingExtra
from tracerec.statistics import RunningMoments

if TYPE_CHECKING:
    import pandas as pd

    from tracerec.consuming import Firing
    from tracerec.statistics import Moments

__all__ = ["Key", "RunningStatistics", "key_of"]


class Key(NamedTuple):
    """What statistics are of.

    Attributes:
        tap: the tap's name.
        leaf: the leaf's key path; ``""`` for a bare array.
        transforms: the names of the transformations, innermost first.
    """

    tap: str
    leaf: str = ""
    transforms: tuple[str, ...] = ()


def key_of(firing: Firing, leaf: str) -> Key:
    """Returns the key of a leaf of a record."""
    return Key(firing.tap, leaf, firing.transforms)


class RunningStatistics(TapConsumer):
    """Count, mean, standard deviation, extremes and NaN of each tap, leaf and chain of transforms, over all records.

    Over finite elements, in float64, whatever the dtype; merged as `tracerec.statistics.moments` merges blocks.

    Example:
        >>> import numpy as np
        >>> statistics = RunningStatistics()
        >>> for step in range(3):
        ...     statistics(np.array([step, np.nan], np.float32), tap="act", step=step)
        >>> statistics["act"].mean, statistics["act"].nan
        (1.0, 3)
    """

    def __init__(self) -> None:
        self._running: dict[Key, RunningMoments] = {}

    def take(self, firing: Firing) -> None:
        """Adds a record."""
        for path, elements in firing.counted():
            self._running.setdefault(key_of(firing, path), RunningMoments()).add(elements)

    @property
    def results(self) -> dict[Key, Moments]:
        """The statistics so far."""
        return {key: running.moments() for key, running in self._running.items()}

    def __getitem__(self, key: str | tuple[Any, ...]) -> Moments:
        """Returns the statistics of a tap, or of a ``Key(tap, leaf, transforms)``, of which the end may be left out.

        Raises:
            KeyError: no record of it has come.
        """
        return self._running[Key(key) if isinstance(key, str) else Key(*key)].moments()

    def __len__(self) -> int:
        return len(self._running)

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table, one row a key: ``tap``, ``leaf``, ``transforms`` and the fields of `Moments`.

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            message = "tables need pandas, which is not installed: pip install 'tracerec[pandas]'"
            raise MissingExtra(message, extra="pandas") from error
        rows: list[dict[str, Any]] = []
        for key, found in self.results.items():
            names = {"tap": key.tap, "leaf": key.leaf, "transforms": ", ".join(key.transforms)}
            rows.append(names | found.to_json())
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        lines = [f"<RunningStatistics of {len(self)}>"]
        for key, found in self.results.items():
            name = " ".join(filter(None, [repr(key.tap), key.leaf, ", ".join(key.transforms)]))
            lines.append(
                f"  {name}: count {found.count:,}, mean {_short(found.mean)}, std {_short(found.std)}, "
                f"min {_short(found.min)}, max {_short(found.max)}, nan {found.nan:,}"
            )
        return "\n".join(lines)


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
