from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tracerec import outfeed
from tracerec.errors import ConsumerError, ReceiverTimeout
from tracerec.model import NO_SHARD, Leaf, Site
from tracerec.outfeed.batch import Batch, Batcher
from tracerec.outfeed.programs import EAGER, Program
from tracerec.outfeed.queue import QueueOptions, RecordQueue
from tracerec.tapping.emitters import Emitter

PROGRAMS = {0: EAGER, 1: Program(1), 2: Program(2)}


def an_emitter(
    name: str = "t",
    nbytes: int = 1000,
    *,
    program: int = 0,
    position: int = 0,
    once: bool = True,
    is_mark: bool = False,
) -> Any:
    """An emitter of float64 vectors."""
    site = Site(name, (Leaf("", (nbytes // 8,), "float64"),))
    return Emitter(site, PROGRAMS[program], position, once, is_mark, None, (), (), nbytes)


def put(queue: RecordQueue, emitter: Any) -> bool:
    """Puts one record."""
    return queue.put(emitter, (np.zeros(emitter.nbytes // 8),), 0, NO_SHARD)


def test_records_come_out_in_order_with_their_arrival_numbers() -> None:
    """First in, first out."""
    queue = RecordQueue()
    emitters = [an_emitter(f"t{i}") for i in range(5)]
    assert all(put(queue, e) for e in emitters)
    items = queue.take()
    assert [item[0] for item in items] == emitters
    assert [item[5] for item in items] == list(range(5))


def test_a_full_queue_drops_the_newest_after_the_timeout_and_counts_it() -> None:
    """Never silently, and the bound holds."""
    queue = RecordQueue(QueueOptions(max_bytes=5000, block_timeout=0.01))
    emitter = an_emitter()
    kept = sum(put(queue, emitter) for _ in range(10))
    assert queue.dropped == {"t": 10 - kept}
    assert 0 < kept < 5
    assert queue.high_water_bytes <= 5000


def test_a_full_queue_makes_the_computation_wait_until_there_is_room() -> None:
    """Nothing is dropped when the receiver catches up in time."""
    queue = RecordQueue(QueueOptions(max_bytes=3000, block_timeout=60))
    got: list[Any] = []

    def receive() -> None:
        while len(got) < 200:
            items = queue.take()
            got.extend(items)
            queue.done()

    receiver = threading.Thread(target=receive)
    receiver.start()
    emitter = an_emitter()
    assert all(put(queue, emitter) for _ in range(200))
    assert queue.wait_consumed(60) == {}
    receiver.join(60)
    assert [item[5] for item in got] == list(range(200))
    assert queue.dropped == {}


def test_a_record_larger_than_the_queue_passes_alone() -> None:
    """It could never fit; it waits until the queue is empty instead."""
    queue = RecordQueue(QueueOptions(max_bytes=100, block_timeout=0.01))
    assert put(queue, an_emitter(nbytes=8000))
    assert not put(queue, an_emitter(nbytes=8))


def test_waiting_for_a_receiver_that_is_stuck_times_out_with_the_count() -> None:
    """The number of records that were not consumed is told."""
    queue = RecordQueue()
    for _ in range(3):
        put(queue, an_emitter())
    assert queue.wait_consumed(0.01) == {0: 3}


class Raising:
    """A consumer that fails on its third batch and after."""

    def __init__(self) -> None:
        self.batches = 0

    def consume(self, batch: Batch) -> None:  # noqa: ARG002
        """Counts, then raises."""
        self.batches += 1
        if self.batches >= 3:
            message = "no more"
            raise ValueError(message)


def test_a_consumer_that_raises_is_named_when_it_is_removed_and_others_go_on() -> None:
    """The computation and the other consumers see nothing of it."""
    from tests.support import Keeper

    bad, good = Raising(), Keeper()
    outfeed.add_consumer(bad)
    outfeed.add_consumer(good)
    emitter = an_emitter("bad/tap")
    for _ in range(5):
        outfeed.put(emitter, (np.zeros(125),), 0, NO_SHARD)
        outfeed.barrier(60)
    error = outfeed.remove_consumer(bad).error
    assert str(error) == "Raising failed on 3 records, first on one of tap 'bad/tap': ValueError: no more"
    assert isinstance(error, ConsumerError)
    assert isinstance(error.__cause__, ValueError)
    assert (error.tap, error.failures) == ("bad/tap", 3)
    outfeed.remove_consumer(good)
    assert len(good.records) == 5
    assert not outfeed.listening()


def test_barrier_times_out_on_a_stuck_consumer_and_refuses_the_receivers_thread() -> None:
    """It never waits for itself."""
    release = threading.Event()
    inside: list[BaseException] = []

    class Stuck:
        def consume(self, batch: Batch) -> None:  # noqa: ARG002
            try:
                outfeed.barrier()
            except ConsumerError as error:
                inside.append(error)
            release.wait(60)

    stuck = Stuck()
    outfeed.add_consumer(stuck)
    outfeed.put(an_emitter(), (np.zeros(125),), 0, NO_SHARD)
    with pytest.raises(
        ReceiverTimeout, match=r"not consumed within 0.05 s: 1 record, 1 from device 0; a consumer is slow"
    ) as caught:
        outfeed.barrier(0.05)
    assert caught.value.pending == 1
    release.set()
    outfeed.barrier(60)
    outfeed.remove_consumer(stuck)
    assert "wait for itself" in str(inside[0])


def firings(*order: tuple[Any, int]) -> list[Any]:
    """Queue items of emitters and shards, in this order."""
    return [(e, (np.zeros(125),), 0, shard, 0, i) for i, (e, shard) in enumerate(order)]


def calls_of(items: list[Any]) -> list[tuple[int, int]]:
    """(call, iteration) of each item, in order."""
    rows = np.concatenate([g.rows for g in Batcher().batch(items).groups])
    return [(int(r["call"]), int(r["iteration"])) for r in np.sort(rows, order="arrival")]


def test_a_tap_outside_loops_begins_a_call_when_it_fires_again() -> None:
    """Loop taps in between count iterations."""
    a = an_emitter("a", program=1, position=0)
    b = an_emitter("b", program=1, position=1, once=False)
    order = [(a, -1), (b, -1), (b, -1), (a, -1), (b, -1), (b, -1)]
    assert calls_of(firings(*order)) == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0), (1, 1)]


def test_a_mark_begins_a_call_and_is_no_record() -> None:
    """A program whose taps are all in loops is told apart by its marks; they take no arrival number."""
    mark = an_emitter("", program=1, is_mark=True)
    loop = an_emitter("l", program=1, position=1, once=False)
    items = firings((mark, -1), (loop, -1), (loop, -1), (mark, -1), (loop, -1))
    batch = Batcher().batch(items)
    assert batch.count == 3
    assert calls_of(items) == [(0, 0), (0, 1), (1, 0)]


def test_a_tap_that_overtakes_the_mark_of_its_call_begins_it() -> None:
    """The mark that follows belongs to the same call."""
    mark = an_emitter("", program=1, is_mark=True)
    a = an_emitter("a", program=1, position=1)
    assert [c for c, _ in calls_of(firings((mark, -1), (a, -1), (a, -1), (mark, -1), (a, -1)))] == [0, 1, 2]


def test_shards_of_one_call_share_its_number_whatever_the_interleaving() -> None:
    """The k-th call on one shard is the k-th on the other."""
    a = an_emitter("a", program=1)
    assert [c for c, _ in calls_of(firings((a, 0), (a, 0), (a, 1), (a, 0), (a, 1), (a, 1)))] == [0, 1, 0, 2, 1, 2]


def test_programs_and_eager_taps_never_share_a_call() -> None:
    """Each eager record is a call of its own."""
    a, b, e = an_emitter("a", program=1), an_emitter("b", program=2), an_emitter("e")
    calls = [c for c, _ in calls_of(firings((a, -1), (b, -1), (e, -1), (e, -1)))]
    assert len(set(calls)) == 4
