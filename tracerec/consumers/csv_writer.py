"""Statistics of each record as lines of a CSV file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

import numpy as np

from tracerec.consuming import TRANSFORM_KWARGS, TapConsumer
from tracerec.errors import ConsumerError
from tracerec.statistics import moments

if TYPE_CHECKING:
    import os

    from tracerec.consuming import Firing

__all__ = ["CSVWriter"]

_FIRST = ("tap", "leaf", "transforms", "step", "kwargs", "value")
_COUNTS = ("count", "nan", "posinf", "neginf", "zeros")
_MEASURES = ("min", "max", "mean", "std", "l2")


class CSVWriter(TapConsumer):
    """Writes a row for each record and leaf: tap, leaf, transforms, step, kwargs (as JSON), value, statistics.

    ``value`` is there for scalars; numbers are written so that they read back exactly. Statistics are those of
    `tracerec.statistics.moments`, over elements that count. Close it, or use it in a ``with``; each row is flushed.

    Args:
        file: a path, which is overwritten, or an open text file, which stays open.

    Raises:
        OSError: the file cannot be opened.

    Example:
        >>> import numpy as np
        >>> with CSVWriter("act.csv") as writer:
        ...     writer(np.array([1.0, 3.0], np.float32), tap="act", step=7)
        >>> import pathlib
        >>> print(pathlib.Path("act.csv").read_text())
        tap,leaf,transforms,step,kwargs,value,count,nan,posinf,neginf,zeros,min,max,mean,std,l2
        act,,,7,{},,2,0,0,0,0,1.0,3.0,2.0,1.0,3.1622776601683795
        <BLANKLINE>
    """

    def __init__(self, file: str | os.PathLike[str] | TextIO) -> None:
        self._owned: TextIO | None = None
        if not hasattr(file, "write"):
            self._owned = Path(file).open("w", encoding="utf-8", newline="")  # type: ignore[arg-type]  # noqa: SIM115 - `close` closes it
        self._file: Any = self._owned or file
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow([*_FIRST, *_COUNTS, *_MEASURES])

    def take(self, firing: Firing) -> None:
        """Writes a record's rows.

        Raises:
            ConsumerError: the writer is closed.
        """
        if self._owned is not None and self._owned.closed:
            message = f"{self._owned.name} is closed; a record of tap {firing.tap!r} came after that"
            raise ConsumerError(message, tap=firing.tap)
        kwargs = {k: v for k, v in firing.kwargs.items() if k not in TRANSFORM_KWARGS and k not in ("step", "tap")}
        text = json.dumps(_json(kwargs), sort_keys=True)
        step = "" if firing.step is None else json.dumps(_json(firing.step))
        head = [firing.tap, ", ".join(firing.transforms), step, text]
        originals = dict(firing.leaves())
        for path, elements in firing.counted():
            found = moments(elements)
            array = originals[path]
            value = "" if array.shape else repr(array.item()) if array.dtype.kind in "biufc" else repr(float(array))
            numbers = [getattr(found, name) for name in (*_COUNTS, *_MEASURES)]
            self._rows.writerow([head[0], path, *head[1:], value, *numbers])
        self._file.flush()

    def close(self) -> None:
        """Closes the file, if the writer opened it. Closing twice is harmless."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json(value: Any) -> Any:
    """Returns a kwarg as JSON values; what JSON lacks is text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _json(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, dict):
        items: dict[Any, Any] = value
        return {str(key): _json(item) for key, item in items.items()}
    if isinstance(value, (list, tuple)):
        sequence: Any = value
        return [_json(item) for item in sequence]
    return str(value)
