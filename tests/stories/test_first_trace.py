"""The first function with a tap is traced once, and nothing that JAX starts is started early."""

from __future__ import annotations

import pytest

from tests.support import run_python

COUNT = """
{imports}
traces = []
@jax.jit
def untapped(x):
    traces.append("untapped")
    return x + 1
@jax.jit
def tapped(x, i):
    traces.append("tapped")
    return tracerec.tap(x * 2, "x", step=i)
untapped(1.0)
{start}
for i in range(5):
    tapped(1.0, i)
    untapped(1.0)
print(sorted(traces))
"""

IMPORTS = ["import jax, tracerec", "import tracerec, jax"]


@pytest.mark.parametrize("imports", IMPORTS)
def test_taps_that_load_late_do_not_make_jax_trace_twice(imports: str, tmp_path) -> None:
    """JAX's cache key grows when the taps' context is made: that must be before anything with a tap is traced."""
    start = f"rec = tracerec.record({str(tmp_path / 'run.h5')!r})"
    done = run_python(COUNT.format(imports=imports, start=start))
    untapped = 1 if imports.startswith("import jax") else 2
    assert done.stdout == f"{['tapped', *['untapped'] * untapped]}\n", done.stderr


BACKENDS = """
import sys, jax, tracerec
rec = tracerec.record(sys.argv[1])
jax.config.update("jax_num_cpu_devices", 3)
import numpy as np
tracerec.tap(np.ones(2), "x")
rec.flush()
assert jax.device_count() == 3
jax.jit(lambda x: tracerec.tap(x, "y"))(1.0)
rec.close()
print([d["id"] for d in tracerec.open(sys.argv[1]).info.devices])
"""


def test_starting_a_recording_does_not_start_jaxs_backends(tmp_path) -> None:
    """The number of devices and jax.distributed can still be set; the devices are recorded later."""
    done = run_python(BACKENDS, str(tmp_path / "run.h5"), XLA_FLAGS="")
    assert done.stdout == "[0, 1, 2]\n", done.stderr
