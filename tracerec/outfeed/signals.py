"""Ctrl-C and SIGTERM while a host callback runs on the main thread.

An exception raised there would become XLA's: the user's call would end in a ``JaxRuntimeError``, and its records would
be lost. So the signal is sent again a moment later, until it finds the program outside of a callback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["ignore_termination", "install"]

_RETRY_SECONDS = 0.005

# JAX's function around every host callback (jax.interpreters.mlir.emit_python_callback)
_CALLBACK = "_wrapped_callback"


def install() -> None:
    """Handles SIGINT and SIGTERM, where the program has no handler of its own: a user's handler is left alone.

    SIGINT raises KeyboardInterrupt, as always; SIGTERM ends the program as ``sys.exit(143)`` does, so that recordings
    are closed.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _handle)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)


def ignore_termination() -> None:
    """Ignores further SIGTERMs, where they are handled here: the program is ending, and is to end in good order."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _handle:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    if _in_callback(frame):
        retry = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
        retry.daemon = True
        retry.start()
    elif number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    else:
        sys.exit(128 + number)


def _in_callback(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == _CALLBACK:
            return True
        frame = frame.f_back
    return False
