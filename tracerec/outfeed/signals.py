"""Ctrl-C and SIGTERM while a host callback runs on the main thread.

An exception raised there would become XLA's: the user's call would end in a ``JaxRuntimeError``, and its records would
be lost. So it is raised in the function that made the call, once the call has ended: where Python raises it when no
callback runs. For that the function is traced (`sys.settrace`) until then; where something else traces the program,
such as a debugger, the signal is sent again a moment later, until it finds the program outside of a callback.

A second signal, after a second or more, does not wait: it ends the call itself. So can a program be
ended whose call is very long, or one of many that a function in C makes, such as `map`, between which no Python runs.

In a forked child the handlers are the defaults again: its recordings are the parent's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["ignore_termination", "install"]

_RETRY_SECONDS = 0.005

# Who sends the signal again after so long does not want to wait for the call to end.
_INSIST_SECONDS = 1.0

# Since when a signal waits, and the function in which it will be raised.
_waits_since = 0.0
_waits_in: FrameType | None = None

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
        _forget_pending()
        _end(number, frame)
    elif sys.gettrace() is _trace_nothing:
        # A signal already waits for the call to end.
        if time.monotonic() - _waits_since > _INSIST_SECONDS:
            _end(number, frame)
    elif sys.gettrace() is None and (caller := _caller(callback)) is not None:
        _end_later(number, caller)
    else:
        retry = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
        retry.daemon = True
        retry.start()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    sys.exit(128 + number)


def _end_later(number: int, caller: FrameType) -> None:
    """Ends the program at the next line of a function that is running, or when it returns or is raised through."""
    global _waits_since, _waits_in

    def end(frame: FrameType, _event: str, _argument: Any) -> Any:
        _forget_pending()
        _end(number, frame)

    _waits_since, _waits_in = time.monotonic(), caller
    caller.f_trace = end
    sys.settrace(_trace_nothing)


def _forget_pending() -> None:
    """Stops waiting for a call to end, if a signal does."""
    global _waits_in  # noqa: PLW0603
    if _waits_in is not None:
        _waits_in.f_trace = None
        _waits_in = None
    if sys.gettrace() is _trace_nothing:
        sys.settrace(None)


def _trace_nothing(_frame: FrameType, _event: str, _argument: Any) -> None:
    """The functions called meanwhile are not traced; but unless there is a tracer, none is."""


def _callback_around(frame: FrameType | None) -> FrameType | None:
    """Returns the outermost callback: a user's own may have called JAX again."""
    found = None
    while frame is not None:
        if frame.f_code.co_name == _CALLBACK:
            found = frame
        frame = frame.f_back
    return found


def _caller(callback: FrameType) -> FrameType | None:
    """Returns the function whose call of JAX the callback runs in."""
    frame = callback.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _JAX:
        frame = frame.f_back
    return frame


def _forget_in_child() -> None:
    _forget_pending()
    if threading.current_thread() is not threading.main_thread():
        return
    for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is _handle:
            signal.signal(number, default)


os.register_at_fork(after_in_child=_forget_in_child)
