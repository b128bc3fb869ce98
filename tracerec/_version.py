"""The version, for the package and for what it writes into traces."""

__version__ = "0.1.0"
