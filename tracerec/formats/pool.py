"""What the files of one trace share, so that a thousand of them cost little: sites, and a bound on open files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tracerec.model import Site

__all__ = ["MOST_OPEN", "Pool", "Shuttable"]

MOST_OPEN = 64
"""Files of a trace open at once. A process may often have no more than 256 or 1,024, and has others."""


class Shuttable(Protocol):
    """A file that opens again when it is needed."""

    def shut(self) -> None:
        """Closes it for now."""
        ...


class Pool:
    """What the files of one trace share.

    Args:
        most: how many of them are open at once; beyond that the one that was used longest ago is shut.

    Attributes:
        sites: the sites that were parsed, by their ids.
        site_texts: the JSON of sites, by their ids as text.
        lock: held while a file is read, so that no other thread shuts it.

    Example:
        >>> pool = Pool(most=1)
        >>> class File:
        ...     def shut(self):
        ...         print("shut", self.name)
        >>> a, b = File(), File()
        >>> a.name, b.name = "a", "b"
        >>> pool.use(a), pool.use(b)
        shut a
        (None, None)
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        self.sites: dict[int, Site] = {}
        self.site_texts: dict[str, bytes] = {}
        self.lock = threading.RLock()
        self._most = most
        self._open: OrderedDict[int, Shuttable] = OrderedDict()

    def use(self, file: Shuttable) -> None:
        """Notes that a file is open and being used; shuts the one used longest ago when there are too many."""
        self._open[id(file)] = file
        self._open.move_to_end(id(file))
        while len(self._open) > self._most:
            _, oldest = self._open.popitem(last=False)
            oldest.shut()

    def forget(self, file: Shuttable) -> None:
        """Notes that a file is no longer open."""
        self._open.pop(id(file), None)
