"""What a sealed trace says of itself, checked: its format version and the JSON of its run.

Free of any format's library. Everything wrong is a ValueError, to which the caller adds the file.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tracerec.formats.contract import FORMAT_VERSION, RunInfo

__all__ = ["JSON_ERRORS", "parse_json", "parse_run", "parse_version"]

JSON_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What parsing JSON of the wrong form raises."""

_VERSION_CHARACTERS = 9
"""int() of a long text takes long."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    "run_id": str,
    "started": int,
    "ended": (int, type(None)),
    "clean": bool,
    "host": str,
    "pid": int,
    "command": tuple,
    "versions": dict,
    "devices": tuple,
    "metadata": dict,
    "records": int,
    "dropped": dict,
    "high_water_bytes": int,
    "attempts": tuple,
    "retired": dict,
    "over_budget": dict,
    "notes": tuple,
}

_ITEM_TYPES: dict[str, type] = {
    "command": str,
    "versions": str,
    "devices": dict,
    "dropped": int,
    "attempts": dict,
    "retired": int,
    "over_budget": int,
    "notes": str,
}
"""What tuples and mappings of a RunInfo hold."""


def parse_version(text: str) -> tuple[int, int]:
    """Returns the major and the minor version; raises ValueError when it is none, or one that is too new.

    Example:
        >>> parse_version("1.7")
        (1, 7)
    """
    major, _, minor = text.partition(".")
    if not (text.isascii() and major.isdigit() and minor.isdigit() and len(text) <= _VERSION_CHARACTERS):
        message = f"format_version is {text[:40]!r}, no version"
        raise ValueError(message)
    if int(major) > FORMAT_VERSION[0]:
        message = (
            f"it has format version {text}; this tracerec reads up to {FORMAT_VERSION[0]}.x. "
            "Upgrade tracerec to read it."
        )
        raise ValueError(message)
    return int(major), int(minor)


def parse_run(text: str | bytes, version: tuple[int, int]) -> RunInfo:
    """Returns the run that a JSON text describes; raises ValueError when it describes none."""
    try:
        info = RunInfo.from_json({**parse_json(text), "format_version": version})
    except JSON_ERRORS as error:
        message = f"run: {error!r}"
        raise ValueError(message) from error
    for name, kind in _TYPES.items():
        value = getattr(info, name)
        items = value.values() if isinstance(value, dict) else value
        item = _ITEM_TYPES.get(name)
        if not isinstance(value, kind) or (item and not all(isinstance(x, item) for x in items)):
            message = f"run: {name} is {value!r}"
            raise ValueError(message)
    return info


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a strict JSON text (RFC 8259): NaN and Infinity are refused."""
    return _decoder.decode(text if isinstance(text, str) else text.decode("utf-8", "surrogatepass"))


def _no_constant(token: str) -> NoReturn:
    message = f"{token} is no JSON"
    raise ValueError(message)


# json.loads with arguments makes one for every text, of which a file has thousands.
_decoder = json.JSONDecoder(parse_constant=_no_constant)
