"""Writing what was salvaged, in either form."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tracerec.formats.contract import TraceSource

__all__ = ["write"]


def write(source: TraceSource, target: Path, suffix: str, compression: str | None) -> None:
    """Writes a source to a file or folder; raises SealingError."""
    if suffix == ".arrow":
        from tracerec.formats.arrow.seal import seal as seal_arrow

        seal_arrow(source, target, compression=None if compression in ("default", "gzip") else compression)
        return
    from tracerec.formats.hdf5.seal import seal as seal_hdf5

    seal_hdf5(source, target, compression="lz4" if compression == "default" else compression)
