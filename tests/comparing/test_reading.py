"""Equal chunks are passed over as they lie in the files, and what is found is the same as by reading everything."""

from __future__ import annotations

import numpy as np
import pytest

import tracerec
from tests.comparing.runs import chain, compare, site
from tests.memory_source import make_stream
from tracerec.comparing import reading
from tracerec.comparing.ordering import TraceIndex, streams_of
from tracerec.comparing.spool import Spool
from tracerec.formats.hdf5.datasets import Dataset
from tracerec.trace.order import places


@pytest.fixture
def decoded(monkeypatch):
    """How many chunks of leaves were decoded."""
    count = []
    decode = Dataset._decode

    def counted(self, offset, out):
        if self._table.name.startswith("data_"):
            count.append(offset)
        return decode(self, offset, out)

    monkeypatch.setattr(Dataset, "_decode", counted)
    return count


def large(steps=40, size=100_000):
    """Records of 400 kB each."""
    return np.random.default_rng(0).normal(size=(1, steps, size)).astype(np.float32)


def test_equal_chunks_are_not_decoded(written, decoded):
    """Not one of them; of a run that differs in one record, few."""
    x = large()
    y = x.copy()
    y[0, 17, 5] += 1
    a, b, c = (written(*chain(each, ("act",))) for each in (x, x, y))
    assert compare(a, b).ok
    assert decoded == []
    found = compare(a, c)
    assert (found.different, found.first_divergence.record) == (1, "act step=17")
    assert 0 < len(decoded) <= 24


def test_the_same_is_found_without_raw_chunks(written, monkeypatch):
    """Pair by pair, through every measure: the fast way and the plain one agree."""
    rng = np.random.default_rng(1)
    for shape, steps in (((), 3000), ((5,), 900), ((70_000,), 30)):
        x = rng.normal(size=(2, steps, *shape)).astype(np.float32)
        y = x.copy()
        some = rng.random((2, steps)) < 0.1
        y[some] *= np.float32(1.001)
        a, b = written(*chain(x, ("u", "v"))), written(*chain(y, ("u", "v")))
        fast = compare(a, b).to_pandas()
        with monkeypatch.context() as patch:
            patch.setattr("tracerec.comparing.cells.raw_chunks", lambda *_: None)
            plain = compare(a, b).to_pandas()
        assert fast.equals(plain)
        assert (some == (fast.kind != "equal").to_numpy().reshape(steps, 2).T).all()


def test_where_all_differs_chunks_are_read_raw_now_and_then():
    """After two that differ, one of sixteen is tried."""

    class Stored:
        def __init__(self, sign):
            self.sign, self.reads = sign, 0

        def stored(self, *_):
            self.reads += 1
            return bytes([self.sign])

    class Grid:
        chunk, lead = (1,), 0

    a, b = Stored(0), Stored(1)
    assert not reading.RawChunks(a, b, 1, Grid(), ()).equal(0, 160).any()
    assert a.reads == 2 + 10


def test_the_order_is_that_of_the_reader(tmp_path):
    """Places found from one stream a process are those that `tracerec.trace.order` finds."""
    import jax
    import jax.numpy as jnp

    def loss(x, step):
        def body(c, i):
            return tracerec.tap(jnp.sin(c), "act", step=step, layer=i), None

        y = tracerec.tap(jax.lax.scan(body, x, jnp.arange(3))[0], "out", step=step)
        return y.sum()

    with tracerec.record(tmp_path / "a.h5"):
        for step in range(4):
            jax.jit(jax.grad(loss))(jnp.arange(4.0), step)
            tracerec.tap(np.float32(step), "eager", step=step)
    with tracerec.open(tmp_path / "a.h5") as trace:
        views = streams_of(trace)
        index = TraceIndex(views)
        for number, expected in enumerate(places(views)):
            assert index.places(number).tolist() == expected.tolist()


def test_the_spool_goes_to_a_file_when_it_is_large():
    """What was put in comes out, whatever the size."""
    spool = Spool()
    arrays = [np.arange(n, dtype=np.int64) for n in (3, 0, 6_000_000, 5)]
    handles = [spool.put(array) for array in arrays]
    for array, handle in zip(arrays, handles, strict=True):
        assert (spool.get(handle) == array).all()


def test_rows_in_another_order_are_read_by_blocks(written):
    """A permutation of large records, each with its partner."""
    x = large(30)[0]
    mixed = np.random.default_rng(2).permutation(30)
    a = written(make_stream(site("act", x.shape[1:]), [x], numbers=[np.arange(30)]))
    b = written(make_stream(site("act", x.shape[1:]), [x[mixed]], numbers=[mixed]))
    found = compare(a, b)
    assert (found.ok, found.kinds["equal"]) == (True, 30)
