"""A pytest plugin: golden traces.

::

    def test_step(trace_golden):
        with trace_golden("step.h5"):
            train_step(...)

compares what the block records with the golden trace ``step.h5`` beside the test file. ``pytest
--trace-golden-update`` writes it. Golden traces hold no times, hosts or paths: they change only where the run does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from tracerec.testing import GoldenResult

__all__ = ["pytest_addoption", "trace_golden"]

_OPTION = "--trace-golden-update"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that writes golden traces."""
    parser.getgroup("tracerec").addoption(
        _OPTION, action="store_true", default=False, help="write the golden traces of tests that use trace_golden"
    )


@pytest.fixture
def trace_golden(request: pytest.FixtureRequest) -> Callable[..., contextlib.AbstractContextManager[GoldenResult]]:
    """Returns a function: ``trace_golden(path, **options)`` is a context that compares with a golden trace.

    The path is relative to the test's file. The options are those of `tracerec.compare`. A test fails where the run
    differs, and where there is no golden trace yet; the message then has the command that makes it.
    """
    update = bool(request.config.getoption(_OPTION))
    folder = request.path.parent
    command = f"pytest {_OPTION} {_shown(request)!r}"

    def context(path: str | os.PathLike[str], **options: Any) -> contextlib.AbstractContextManager[GoldenResult]:
        # Here, so that pytest starts no slower for those who do not use the fixture.
        from tracerec.testing import golden

        __tracebackhide__ = True
        target = folder / path
        if not update and not target.exists():
            pytest.fail(f"there is no golden trace {_relative(target)}; make it with: {command}", pytrace=False)
        return golden(target, update=update, command=command, **options)

    return context


def _shown(request: pytest.FixtureRequest) -> str:
    return request.node.nodeid


def _relative(path: Path) -> str:
    return os.path.relpath(path)
