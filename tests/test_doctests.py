"""The examples in the docstrings of tracerec, run as doctests."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tracerec

MODULES = ["tracerec", *(m.name for m in pkgutil.walk_packages(tracerec.__path__, "tracerec."))]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    """Each module's examples print what they say; files that they write go to a folder of their own."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=OPTIONS)
    assert failed == 0, f"{failed} examples of {name} fail; pytest shows them above"


def test_there_are_examples():
    """The modules are found, and some of them have examples."""
    finder = doctest.DocTestFinder()
    examples = [e for m in MODULES for t in finder.find(importlib.import_module(m)) for e in t.examples]
    assert len(examples) > 20
