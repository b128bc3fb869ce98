"""A pytest plugin: golden traces.

::

    def test_step(trace_golden):
        with trace_golden("step.h5"):
            train_step(...)

compares what the block records with the golden trace ``step.h5`` beside the test file. ``pytest
--trace-golden-update`` writes it. Golden traces hold no times, hosts or paths: they change only where the run does.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator

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
    differs, and where there is no golden trace yet; the message then has the command that makes it. Where JAX runs in
    several processes each has a golden trace of its own, see `tracerec.testing.golden`.
    """
    update = bool(request.config.getoption(_OPTION))
    folder = request.path.parent
    command = f"pytest {_OPTION} {shlex.quote(request.node.nodeid)}"

    @contextlib.contextmanager
    def context(path: str | os.PathLike[str], **options: Any) -> Generator[GoldenResult]:
        # Here, so that pytest starts no slower for those who do not use the fixture.
        from tracerec.testing import MissingGolden, golden

        __tracebackhide__ = True
        try:
            with golden(folder / path, update=update, command=command, **options) as result:
                yield result
        except MissingGolden as error:
            pytest.fail(str(error), pytrace=False)

    return context
