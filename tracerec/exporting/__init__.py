"""Traces in the forms that other programs read: Parquet, Arrow, npz, Zarr, TensorBoard, plain HDF5. Free of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracerec.exporting.targets import TARGETS, Target

if TYPE_CHECKING:
    from tracerec.exporting.exporting import Exported, default_path, export

__all__ = ["TARGETS", "Exported", "Target", "default_path", "export"]


def __getattr__(name: str) -> Any:
    # The command line needs the names of the forms alone, and starts in a moment.
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    value = getattr(import_module("tracerec.exporting.exporting"), name)
    globals()[name] = value
    return value
