"""Waiting for the computations that were dispatched, whichever thread did."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from tracerec.errors import ReceiverTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["finish_computations", "wait_with"]

_log = logging.getLogger("tracerec")

_wait: Callable[[], None] | None = None


def wait_with(function: Callable[[], None]) -> None:
    """Sets the function that waits for the effects of everything dispatched; the taps know how."""
    global _wait  # noqa: PLW0603
    _wait = function


def finish_computations(timeout: float | None = None) -> None:
    """Waits until the computations dispatched so far have put their records on the outfeed.

    Args:
        timeout: seconds to wait at most; None for ever.

    Raises:
        ReceiverTimeout: the time was up.
    """
    if _wait is None:
        return
    if timeout is None:
        _finish(_wait)
        return
    finished = threading.Thread(target=_finish, args=(_wait,), daemon=True)
    finished.start()
    finished.join(timeout)
    if finished.is_alive():
        message = f"computations had not finished within {timeout} s"
        raise ReceiverTimeout(message)


def _finish(wait: Callable[[], None]) -> None:
    try:
        wait()
    except Exception as error:  # noqa: BLE001 - the user's computation failed, and said so there
        _log.warning("a computation had failed before the outfeed was flushed: %s", error)
