"""Waiting for what was sent: ``barrier_wait``, ``outfeed_receiver``, and the end of the program."""

from __future__ import annotations

import atexit
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import jax

from tracerec.errors import ConsumerError, ReceiverTimeout
from tracerec.outfeed import hub
from tracerec.outfeed.waiting import finish_computations

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

__all__ = ["barrier_wait", "outfeed_receiver", "start_default_receiver"]

_log = logging.getLogger("tracerec")

_EXIT_STALL_SECONDS = 120.0


def barrier_wait(timeout: float | None = None) -> None:
    """Waits until every record of every computation dispatched before has been consumed.

    ``jax.effects_barrier()`` alone waits until the records of computations that this thread dispatched have left the
    device; they may then still be in the outfeed's queue, and other threads' are not waited for.

    Args:
        timeout: seconds to wait at most; None for ever.

    Raises:
        ReceiverTimeout: the time was up; the message says how many records of which device are missing.
        ConsumerError: a function given to ``id_tap`` raised since this was last asked; or this was called while
            tracing, where there is nothing to wait for yet, or by a consumer, which would wait for itself. (In a
            function under an eager ``vmap`` or ``grad`` it works: what came before it there has run.)

    Example:
        >>> import jax, tracerec
        >>> seen = []
        >>> y = jax.jit(lambda x: tracerec.id_tap(lambda a, **_: seen.append(float(a)), x))(2.0)
        >>> tracerec.barrier_wait()
        >>> seen
        [2.0]
    """
    _refuse_while_tracing("barrier_wait")
    _wait(timeout)
    hub.raise_failures()


@contextlib.contextmanager
def outfeed_receiver(
    *,
    receiver_name: str = "",
    timeout_sec: float = 10,
    backends: str | Sequence[str] | None = None,
    devices: Sequence[Any] | None = None,
) -> Generator[None]:
    """A context at whose end every record sent has been consumed, and consumers' exceptions are raised.

    Records are received outside of it too: one receiver serves the process. Receivers nest and may be used from several
    threads: each waits for all that was sent before its end, and raises those failures, for records of its devices,
    that no other has raised.

    Args:
        receiver_name: put before messages.
        timeout_sec: seconds to wait at the end.
        backends: raise failures for records of the devices of these platforms only.
        devices: raise failures for records of these devices only.

    Raises:
        ValueError: both backends and devices were given.
        ReceiverTimeout: at the end: records are missing; the message says how many of which device. (What the body
            raised goes before this and the next; they are then among its notes.)
        ConsumerError: at the end: a function given to ``id_tap`` raised. At the beginning: called while tracing.

    Example:
        >>> import jax, tracerec
        >>> with tracerec.outfeed_receiver():
        ...     y = jax.jit(lambda x: tracerec.id_print(x, what="x"))(2.0)
        what: x
        2.
    """
    if backends is not None and devices is not None:
        message = f"outfeed_receiver {receiver_name!r}: give backends or devices, not both"
        raise ValueError(message)
    _refuse_while_tracing("outfeed_receiver")
    wanted = _device_ids(backends, devices)
    hub.start()
    try:
        yield
    except BaseException as error:
        # What the body raised goes on, and says what else went wrong.
        try:
            _end(receiver_name, timeout_sec, wanted)
        except (ReceiverTimeout, ConsumerError) as other:
            error.add_note(str(other))
        raise
    _end(receiver_name, timeout_sec, wanted)


def _end(name: str, timeout: float, devices: Collection[int] | None) -> None:
    try:
        _wait(timeout)
    except ReceiverTimeout as error:
        message = f"outfeed_receiver {name!r}: {error}"
        raise ReceiverTimeout(message, pending=error.pending) from None
    hub.raise_failures(devices)


def start_default_receiver() -> None:
    """Starts the receiver for a function, and sees to it that the end of the program waits for what was sent."""
    global _at_exit  # noqa: PLW0603
    hub.start()
    if not _at_exit:
        _at_exit = True
        atexit.register(_drain_at_exit)


_at_exit = False


def _wait(timeout: float | None) -> None:
    finish_computations(timeout)
    hub.barrier(timeout)


def _refuse_while_tracing(what: str) -> None:
    if isinstance(jax.numpy.zeros(()) + 0, jax.core.Tracer):  # pyright: ignore[reportAttributeAccessIssue]
        message = f"{what}: called while tracing, where there is nothing to wait for yet; call it outside of jit"
        raise ConsumerError(message)


def _device_ids(backends: str | Sequence[str] | None, devices: Sequence[Any] | None) -> Collection[int] | None:
    if devices is not None:
        return {device.id for device in devices}
    if backends is None:
        return None
    names = [backends] if isinstance(backends, str) else backends
    return {device.id for name in names for device in jax.local_devices(backend=name)}


def _drain_at_exit() -> None:
    finish_computations()
    try:
        hub.drain(_EXIT_STALL_SECONDS)
        hub.raise_failures()
    except Exception as error:  # noqa: BLE001 - nobody is left to catch it
        _log.error("at exit: %s", error)
