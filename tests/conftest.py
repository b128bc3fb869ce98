"""The environment of every test: four CPU devices, JAX's own checks, no implicit promotion of dtypes.

The settings are environment variables, set before anything imports jax, so that subprocesses have them too.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

DEVICES = 4

if "jax" in sys.modules:
    message = "jax was imported before tests/conftest.py could set the number of devices"
    raise RuntimeError(message)

os.environ["XLA_FLAGS"] = " ".join(
    [*os.environ.get("XLA_FLAGS", "").split(), f"--xla_force_host_platform_device_count={DEVICES}"]
)
os.environ["JAX_ENABLE_CHECKS"] = "1"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
# The same backend on every machine; `JAX_PLATFORMS=cuda,cpu pytest -m device` runs the tests of accelerators.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests that need an accelerator where JAX has none."""
    if set(os.environ["JAX_PLATFORMS"].split(",")) - {"cpu"}:
        return
    skip = pytest.mark.skip(reason="needs an accelerator: set JAX_PLATFORMS, for example to cuda,cpu")
    for item in items:
        if item.get_closest_marker("device"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Generator[None]:
    """Fails a test that would make others fail, or pass: in which order they run is chance."""
    yield
    left: list[str] = []
    if logging.root.manager.disable:
        logging.disable(logging.NOTSET)
        left.append("logging is disabled")
    hub = sys.modules.get("tracerec.outfeed.hub")
    if hub is not None and hub.listening():
        left += [f"{listener.consumer!r} listens" for listener in hub._hub.listeners]
        for listener in hub._hub.listeners:
            hub.remove_consumer(listener.consumer)
    repairing = sys.modules.get("tracerec.repairing")
    if repairing is not None and repairing.run_order.__module__ != "tracerec.salvaging.process":
        left.append("repairs are carried out by a function of a test")
    if left:
        pytest.fail(f"{request.node.nodeid} leaves behind: {'; '.join(left)}")
