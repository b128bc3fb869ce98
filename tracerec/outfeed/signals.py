"""Ctrl-C and SIGTERM while a host callback runs on the main thread.

An exception raised there would become XLA's: the user's call would end in a ``JaxRuntimeError``, and its records would
be lost. So it is raised in the function that made the call, once the call has ended: where Python raises it when no
callback runs. For that the function is traced (`sys.settrace`) until then; where something else traces the program,
such as a debugger, the signal is sent again a moment later, until it finds the program outside of a callback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["ignore_termination", "install"]

_RETRY_SECONDS = 0.005

# JAX's function around every host callback (jax.interpreters.mlir.emit_python_callback)
_CALLBACK = "_wrapped_callback"
_JAX = ("jax", "jaxlib")


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
    callback = _callback_around(frame)
    if callback is None:
        _end(number, frame)
    elif sys.gettrace() is None and (caller := _caller(callback)) is not None:
        _end_later(number, caller)
    elif sys.gettrace() is not _trace_nothing:
        retry = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
        retry.daemon = True
        retry.start()
    # else a signal already waits for the same call to end


def _end(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    sys.exit(128 + number)


def _end_later(number: int, caller: FrameType) -> None:
    """Ends the program at the next line of a function that is running, or when it returns or is raised through."""

    def end(frame: FrameType, _event: str, _argument: Any) -> Any:
        sys.settrace(None)
        frame.f_trace = None
        _end(number, frame)

    caller.f_trace = end
    sys.settrace(_trace_nothing)


def _trace_nothing(_frame: FrameType, _event: str, _argument: Any) -> None:
    """The functions called meanwhile are not traced; but unless there is a tracer, none is."""


def _callback_around(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_name != _CALLBACK:
        frame = frame.f_back
    return frame


def _caller(callback: FrameType) -> FrameType | None:
    """Returns the function whose call of JAX the callback runs in."""
    frame = callback.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _JAX:
        frame = frame.f_back
    return frame
