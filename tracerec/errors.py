"""Every error that tracerec raises, in one tree.

::

    TracerecError
    ├── TapError                 (also TypeError)   a call of tap cannot be recorded as written
    ├── RecordingError                              a recording cannot be started, written or closed
    │   ├── RecordingExists      (also FileExistsError)
    │   ├── RecordingClosed
    │   ├── RecordingIncomplete
    │   └── SealingError
    ├── ConsumerError                               a consumer raised; the computation went on
    ├── NotFinite                (also FloatingPointError) a watch that was told to raise saw a NaN or an infinity
    ├── ReceiverTimeout          (also TimeoutError)
    ├── FrameError                                  bytes are not a whole, intact frame
    ├── TraceError                                  a trace cannot be opened or read
    │   ├── TraceNotFound        (also FileNotFoundError)
    │   └── TraceFormatError
    ├── ComparisonError          (also ValueError)  two traces cannot be compared as asked
    ├── SelectionError           (also LookupError) nothing, or more than one thing, matches
    ├── ExportError                                 a trace cannot be exported, or not to that place
    └── MissingExtra             (also ImportError)

A message says what was wrong, with which value, in which file or tap, and what to do.
The same facts are fields, so that a program need not parse the text.
"""

from __future__ import annotations

__all__ = [
    "ComparisonError",
    "ConsumerError",
    "ExportError",
    "FrameError",
    "MissingExtra",
    "NotFinite",
    "ReceiverTimeout",
    "RecordingClosed",
    "RecordingError",
    "RecordingExists",
    "RecordingIncomplete",
    "SealingError",
    "SelectionError",
    "TapError",
    "TraceError",
    "TraceFormatError",
    "TraceNotFound",
    "TracerecError",
]


class TracerecError(Exception):
    """The base of all errors of tracerec; never raised itself."""


class TapError(TracerecError, TypeError):
    """A call of ``tap`` cannot be recorded as written. Raised at the call, while tracing.

    Attributes:
        tap: the tap's full name.
    """

    def __init__(self, message: str, *, tap: str = "") -> None:
        super().__init__(message)
        self.tap = tap


class RecordingError(TracerecError):
    """A recording could not be started, written or closed.

    Attributes:
        path: the recording's path.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class RecordingExists(RecordingError, FileExistsError):
    """``record`` was given a path that already holds a recording, and no mode that allows it."""


class RecordingClosed(RecordingError):
    """``flush`` was called on a recording that is closed."""


class RecordingIncomplete(RecordingError):
    """Records could not be written; what was written is intact. Raised by ``flush`` and ``close``.

    Attributes:
        lost: how many records are missing, by tap name.
    """

    def __init__(self, message: str, *, path: str = "", lost: dict[str, int] | None = None) -> None:
        super().__init__(message, path=path)
        self.lost = lost or {}


class SealingError(RecordingError):
    """The journal could not be turned into a sealed file; the journal is intact."""


class ConsumerError(TracerecError):
    """A consumer raised while it was handed records; the computation went on.

    Raised when the consumer is waited for or removed, with the first exception as its cause.

    Attributes:
        tap: the name of the tap whose record failed first.
        failures: how many records the consumer failed on.
    """

    def __init__(self, message: str, *, tap: str = "", failures: int = 1) -> None:
        super().__init__(message)
        self.tap = tap
        self.failures = failures


class NotFinite(TracerecError, FloatingPointError):
    """A `tracerec.consumers.NaNWatch` that was told to raise saw the first element that is not finite.

    Attributes:
        tap: the tap's name.
        step: the kwarg ``step`` of the record, or None.
    """

    def __init__(self, message: str, *, tap: str = "", step: object = None) -> None:
        super().__init__(message)
        self.tap = tap
        self.step = step


class ReceiverTimeout(TracerecError, TimeoutError):
    """The receiver did not consume all records in the time given.

    Attributes:
        pending: how many records were still waiting.
    """

    def __init__(self, message: str, *, pending: int = 0) -> None:
        super().__init__(message)
        self.pending = pending


class FrameError(TracerecError):
    """Bytes do not hold a whole, intact frame.

    Attributes:
        torn: True when the bytes end before the frame does; False when they are corrupt.
    """

    def __init__(self, message: str, *, torn: bool = False) -> None:
        super().__init__(message)
        self.torn = torn


class TraceError(TracerecError):
    """A trace could not be opened or read.

    Attributes:
        path: the file or folder.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class TraceNotFound(TraceError, FileNotFoundError):
    """There is nothing at the path given."""

    # FileNotFoundError's own __str__ would look for an errno.
    __str__ = Exception.__str__


class TraceFormatError(TraceError):
    """A file is not a trace, is damaged, or is of a newer major version than this reader knows."""


class ComparisonError(TracerecError, ValueError):
    """Two traces cannot be compared as asked: an argument of ``compare`` says what there is not, or says it twice."""


class SelectionError(TracerecError, LookupError):
    """A selection matches nothing, or more than the call can return; the message says which exist.

    Attributes:
        choices: what could have been selected.
    """

    def __init__(self, message: str, *, choices: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.choices = choices


class ExportError(TracerecError):
    """A trace cannot be exported: the place is taken or cannot be written, or the form cannot hold what there is.

    Attributes:
        path: the file or folder that was to be written.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class MissingExtra(TracerecError, ImportError):
    """An optional library is not installed; the message names the extra that brings it.

    Attributes:
        extra: the name of the extra, as in ``pip install 'tracerec[pandas]'``.
    """

    def __init__(self, message: str, *, extra: str = "") -> None:
        super().__init__(message)
        self.extra = extra
