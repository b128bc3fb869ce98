"""The forms that a trace can be exported to."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["TARGETS", "Target"]

Target = Literal["parquet", "arrow", "npz", "zarr", "tensorboard", "hdf5"]

TARGETS: tuple[Target, ...] = get_args(Target)
"""The forms that there are."""
