"""The command ``tracerec``, and ``python -m tracerec``."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line on ``sys.argv`` and exits; Ctrl-C is quiet also while it is being imported."""
    try:
        from tracerec.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
