from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import RECORDS, CountingStream, leaf, training
from tracerec.errors import SelectionError, TraceError
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.trace import Trace, open_trace, records


@pytest.fixture
def trace():
    """A run of six steps, opened."""
    return Trace(training())


def test_taps_are_in_first_seen_order(trace):
    """Several streams of one name are one tap."""
    assert list(trace.taps) == list(trace) == ["layer", "loss", "ragged"]
    assert [len(tap) for tap in trace.taps.values()] == [2 * RECORDS, RECORDS + 2, 5]
    assert len(trace) == 3 * RECORDS + 7
    assert "loss" in trace
    assert "los" not in trace.taps
    assert trace.taps.get("los") is None


def test_records_are_in_program_order(trace):
    """Each call has the layer, its cotangent and the loss, whatever the streams' order in the file."""
    got = [(r.call, r.tap, len(r.transforms)) for r in trace.records() if r.tap != "ragged"]
    expected = []
    for call in range(1, RECORDS + 1):
        losses = [(call, "loss", 0)] * (2 if call <= 2 else 1)
        expected += [(call, "layer", 0), (call, "layer", 2), *losses]
    assert got == expected


def test_records_are_in_arrival_order(trace):
    """The other order is that of the arrival numbers."""
    got = [r.arrival for r in trace.records(order="arrival")]
    assert got == sorted(got)
    assert len(got) == len(trace)


def test_record_values(trace):
    """Each record has its own arrays and kwargs."""
    source = training()
    rates = np.linspace(0.1, 0.2, RECORDS)
    for i, record in enumerate(r for r in trace.records() if r.kwargs.get("phase") == "train"):
        assert record.value == leaf(source, 2)[i]
        assert record.kwargs == {"phase": "train", "step": i * 10, "lr": rates[i]}


def test_iteration_holds_few_blocks(monkeypatch):
    """Streams are read a block at a time: after the first records, nothing but first blocks was read."""
    monkeypatch.setattr(records, "_MEMORY", 2 * 2 * 8 * 400)
    site = Site("x", leaves=(Leaf("", (100,), "float32"),))
    values = np.arange(1000, dtype=np.float32)[:, None].repeat(100, 1)
    streams = [CountingStream(make_stream(site, [values], arrival=np.arange(1000) * 2 + i)) for i in (0, 1)]
    iterator = Trace(MemorySource(streams)).records()  # type: ignore[arg-type]
    first = [next(iterator) for _ in range(4)]
    assert [stream.leaf_rows for stream in streams] == [8, 8]
    assert [r.value[0] for r in first] == [0, 0, 1, 1]
    assert [r.value[0] for r in iterator] == [i // 2 for i in range(4, 2000)]
    assert [stream.leaf_rows for stream in streams] == [1000, 1000]


def test_unknown_tap(trace):
    """The error has the nearest names, or the first ones."""
    with pytest.raises(SelectionError, match=r"<memory> has no tap 'lose'; did you mean 'loss'\?") as caught:
        trace["lose"]
    assert caught.value.choices == ("layer", "loss", "ragged")
    assert isinstance(caught.value, LookupError)
    with pytest.raises(SelectionError, match="its taps are 'layer', 'loss', 'ragged'"):
        trace["quite another"]
    with pytest.raises(SelectionError, match="its taps are none"):
        Trace(MemorySource([]))["x"]


def test_control_characters_in_a_name(trace):
    """A name that a terminal would obey is escaped in messages and reprs."""
    with pytest.raises(SelectionError) as caught:
        trace["\x1b[2J"]
    assert "\x1b" not in str(caught.value)
    hostile = Trace(MemorySource([make_stream(Site("\x1b[2J", leaves=(Leaf("", (), "int8"),)), [[1]])]))
    assert "\x1b" not in repr(hostile) + repr(hostile.taps) + repr(hostile["\x1b[2J"])


def test_close():
    """A with statement closes the source; closing twice is harmless; reading says what is wrong."""
    source = training()
    with Trace(source) as trace:
        assert not source.closed
    assert source.closed
    trace.close()
    for read in (trace.records, trace.to_pandas, trace.overview):
        with pytest.raises(TraceError, match="the trace of <memory> is closed"):
            read()
    assert "closed" in repr(trace)


def test_tap_of_a_closed_file(tmp_path):
    """A tap that outlives its trace says so."""
    seal(training(), tmp_path / "run.h5")
    with open_trace(tmp_path / "run.h5") as trace:
        loss = trace["loss"]
    with pytest.raises(TraceError, match="is closed"):
        loss.to_numpy()


def test_repr(trace):
    """The repr has the path, the size, the state, and the taps."""
    assert repr(trace).splitlines() == [
        "<tracerec.Trace '<memory>': 25 records, 3 taps, clean>",
        "  'layer': 12 records",
        "  'loss': 8 records",
        "  'ragged': 5 records",
    ]


READ_WITHOUT_JAX = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib"):
            raise ImportError("jax must not be imported to read a trace")

sys.meta_path.insert(0, Forbidden())
import tracerec

with tracerec.open(sys.argv[1]) as trace:
    print(len(list(trace.records())), len(trace.to_pandas()), trace["layer"].leaf("['b']").to_numpy().dtype)
    print(trace.info.versions["jax"], len(trace.overview()["streams"]), trace["loss"].sel(step=10).to_numpy())
"""


def test_reading_does_not_import_jax(tmp_path):
    """Everything a reader does works where importing jax raises."""
    seal(training(), tmp_path / "run.h5")
    command = [sys.executable, "-c", READ_WITHOUT_JAX, str(tmp_path / "run.h5")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    # The layer's primal has two leaves.
    assert done.stdout.split("\n")[:2] == ["25 31 bfloat16", "0.10.2 6 [2.6 3.6]"]
