"""Records and arrays as JSON values for programs: no number that JSON lacks, no character that a terminal obeys."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from tracerec.model import Record

__all__ = ["plain", "record_object", "text"]


def record_object(record: Record) -> dict[str, Any]:
    """Returns what is known of a record, its arrays excepted."""
    return {
        "tap": record.tap,
        "transforms": [str(transform) for transform in record.transforms],
        "step": plain(record.step),
        "time": f"{record.time}Z",
        "device": record.device,
        "call": record.call,
        "arrival": record.arrival,
        "attempt": record.attempt,
        "process": record.process,
        "kwargs": {name: plain(value) for name, value in record.kwargs.items()},
    }


def plain(value: Any) -> Any:
    """Returns arrays as nested lists, NaN and infinities as ``"nan"``, ``"inf"`` and ``"-inf"``, complex as text.

    Example:
        >>> import numpy as np
        >>> plain({"a": np.array([1.5, np.nan]), "b": (True, None)})
        {'a': [1.5, 'nan'], 'b': [True, None]}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    import numpy as np  # help must come at once

    if isinstance(value, (np.ndarray, np.generic)):
        known = value.dtype.kind in "biufc"
        return plain(value.tolist() if known else _widened(np.asarray(value)).tolist())
    if isinstance(value, dict):
        items: dict[Any, Any] = value
        return {str(key): plain(item) for key, item in items.items()}
    if isinstance(value, (list, tuple)):
        sequence: Any = value
        return [plain(item) for item in sequence]
    return str(value)


def text(value: dict[str, Any], *, indent: int | None = None) -> str:
    """Returns JSON for standard output, with a line end."""
    # DEL is the one control character that JSON leaves as it is.
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f") + "\n"


def _widened(array: np.ndarray) -> np.ndarray:
    """Returns an array of a type that numpy lacks as one that it has, exactly."""
    import numpy as np

    integer = array.dtype.name.startswith(("int", "uint"))
    return array.astype(np.int64 if integer else np.float64)
