"""``python -m tracerec``: the same as the command ``tracerec``."""

from tracerec.cli import main

if __name__ == "__main__":
    main()
