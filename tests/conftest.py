"""The environment of every test: four CPU devices, JAX's own checks, no implicit promotion of dtypes.

The settings are environment variables, set before anything imports jax, so that subprocesses have them too.
"""

from __future__ import annotations

import os
import sys

import pytest

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
