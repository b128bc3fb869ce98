"""Sealed traces as Arrow: what is in a folder (`layout`), writing it (`seal`), reading it (`reading`, `files`, `ipc`).

``docs/format.md`` describes the folder for people who read it without tracerec.
"""
