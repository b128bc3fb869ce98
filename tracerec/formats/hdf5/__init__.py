"""Sealed traces as HDF5: what is in a file (`layout`, `types`, `codecs`), writing it (`seal`), reading it (`reading`).

``docs/format.md`` describes the file for people who read it without tracerec.
"""
