"""The program table: what records each program makes. ``test_programs.py`` runs it."""

from __future__ import annotations

import importlib

MODULES = (
    "differentiation",
    "control_flow",
    "loop_invariants",
    "checkpoint",
    "custom_rules",
    "batching",
    "masks",
    "nesting",
    "sharding",
    "libraries",
)

PROGRAMS = [
    program for name in MODULES for program in importlib.import_module(f"tests.tapping.programs.{name}").PROGRAMS
]
