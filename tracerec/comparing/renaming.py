"""Which tap of one run is which of the other: names that changed, names to leave out, names that nearly agree."""

from __future__ import annotations

import difflib
import fnmatch
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracerec.errors import ComparisonError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Renaming", "ignored", "nearest_name", "patterns"]

Rename = Mapping[str, str] | str | os.PathLike[str] | None


class Renaming:
    """The new names of taps.

    Args:
        rename: new names by old name; a ``*`` stands for any text, which goes where the new name has its ``*``. The
            first pattern that matches counts. Or the path of a JSON file with such an object.

    Raises:
        ComparisonError: it is no such mapping, or a new name has more ``*`` than the old.

    Example:
        >>> Renaming({"block*/mlp": "layers.*/ffn"}).new("block7/mlp")
        'layers.7/ffn'
    """

    def __init__(self, rename: Rename = None) -> None:
        self._patterns = [(old, _expression(old, new), new) for old, new in _mapping(rename).items()]

    def new(self, name: str) -> str:
        """Returns the name that a tap has in the other run."""
        for _, expression, new in self._patterns:
            match = expression.fullmatch(name)
            if match:
                pieces = new.split("*")
                return pieces[0] + "".join(f + p for f, p in zip(match.groups(), pieces[1:], strict=False))
        return name

    def check(self, names: Iterable[str], path: str) -> None:
        """Raises ComparisonError where a pattern matches none of the names, or two names become one."""
        names = list(dict.fromkeys(names))
        for old, expression, _ in self._patterns:
            if not any(expression.fullmatch(name) for name in names):
                message = f"rename: no tap of {path} matches {old!r}{_meant(old, names)}"
                raise ComparisonError(message)
        known: dict[str, str] = {}
        for name in names:
            other = known.setdefault(self.new(name), name)
            if other != name:
                message = f"rename: the taps {other!r} and {name!r} of {path} both become {self.new(name)!r}"
                raise ComparisonError(message)


def patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns one pattern or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def ignored(name: str, given: Sequence[str]) -> bool:
    """Returns whether a tap's name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in given)


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Returns the name that is most like another, if one is: ``layers.0/act`` is like ``layer0/act``.

    Example:
        >>> nearest_name("layer0/act", ["loss", "layers.0/act", "layers.1/act"])
        'layers.0/act'
    """
    plain = {each: _plain(each) for each in names if each != name}
    same = [each for each, text in plain.items() if text == _plain(name)]
    if same:
        return same[0]
    numbers = re.findall(r"\d+", name)
    # A name with other numbers is another layer.
    close = [each for each in plain if re.findall(r"\d+", each) == numbers]
    found = difflib.get_close_matches(_plain(name), [plain[each] for each in close], n=1, cutoff=0.6)
    return next(each for each in close if plain[each] == found[0]) if found else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _meant(old: str, names: Sequence[str]) -> str:
    near = nearest_name(old, names)
    return f"; did you mean {near!r}?" if near else ""


def _mapping(rename: Rename) -> Mapping[str, str]:
    if rename is None:
        return {}
    given: Any = rename
    if isinstance(rename, (str, os.PathLike)):
        given = _loaded(Path(rename))
    if not isinstance(given, Mapping) or not all(isinstance(x, str) for item in given.items() for x in item):
        message = f"rename is a mapping of names to names, or the path of a JSON file with one, not {rename!r}"
        raise ComparisonError(message)
    return given


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"rename: {path} cannot be read: {error.strerror or error}"
        raise ComparisonError(message) from error
    except ValueError as error:
        message = f"rename: {path} is not JSON: {error}"
        raise ComparisonError(message) from error


def _expression(old: str, new: str) -> re.Pattern[str]:
    if new.count("*") > old.count("*"):
        message = f"rename: {new!r} has more * than {old!r}, which it is made from"
        raise ComparisonError(message)
    return re.compile("(.*)".join(map(re.escape, old.split("*"))), re.DOTALL)
