"""Order of batches after failures, deliveries, and allocation of bounded memory in the order of requests."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.client.accumulator import Accumulator, BatchResult, MemoryBudget
from penstock.client.errors import DeliveryFailed
from penstock.client.types import TopicPartition

TP = TopicPartition("t", 0)


def full_queue(batches: int) -> Accumulator:
    """Return an accumulator whose queue for `TP` holds `batches` batches of one record."""
    accumulator = Accumulator(100, MemoryBudget(10_000))
    for number in range(batches):
        assert accumulator.memory.try_acquire(90)
        accumulator.append(TP, None, b"%d" % number * 20, (), 0, 90)
    accumulator.queues[TP].due = True
    accumulator.queues[TP].recovering = False
    return accumulator


async def test_a_record_that_does_not_fit_opens_the_next_batch() -> None:
    accumulator = Accumulator(230, MemoryBudget(10_000))
    opened = [accumulator.append(TP, None, b"x" * 30, (), 0, 70)[2] for _ in range(4)]
    assert opened == [True, False, False, True]


async def test_the_first_batch_travels_alone() -> None:
    queue = full_queue(2).queues[TP]
    queue.recovering = True
    queue.pop_batch(idempotent=True)
    assert not queue.is_ready


async def test_sequences_follow_each_other_without_gaps() -> None:
    accumulator = full_queue(3)
    queue = accumulator.queues[TP]
    assert [queue.pop_batch(idempotent=True).sequence for _ in range(3)] == [0, 1, 2]


async def test_batches_that_come_back_in_any_order_wait_in_their_old_order() -> None:
    for seed in range(20):
        accumulator = full_queue(5)
        queue = accumulator.queues[TP]
        taken = [queue.pop_batch(idempotent=True) for _ in range(4)]
        random.Random(seed).shuffle(taken)
        for batch in taken:
            queue.put_back(batch)
        assert [b.sequence for b in queue.closed] == [0, 1, 2, 3], f"seed {seed}"


async def test_after_a_failure_nothing_is_taken_until_what_is_under_way_has_been_answered() -> None:
    queue = full_queue(4).queues[TP]
    first, second = queue.pop_batch(idempotent=True), queue.pop_batch(idempotent=True)
    queue.put_back(first)
    assert not queue.is_ready
    queue.put_back(second)
    assert queue.is_ready
    assert queue.pop_batch(idempotent=True) is first
    assert not queue.is_ready, "one at a time until one succeeds"


async def test_a_batch_that_came_back_waits_for_later_ones_even_when_one_of_them_succeeded() -> None:
    queue = full_queue(4).queues[TP]
    first, second, third = (queue.pop_batch(idempotent=True) for _ in range(3))
    queue.put_back(first)
    queue.in_flight.remove(second)
    queue.recovering = False
    assert not queue.is_ready
    queue.in_flight.remove(third)
    assert queue.pop_batch(idempotent=True) is first


async def test_a_delivery_knows_its_offset_within_the_batch() -> None:
    accumulator = Accumulator(1000, MemoryBudget(10_000))
    deliveries = []
    for _ in range(3):
        accumulator.memory.try_acquire(50)
        deliveries.append(accumulator.append(TP, None, b"v", (), 17, 50)[0])
    (batch,) = accumulator.outstanding
    accumulator.finish(batch, BatchResult(100, -1))
    assert [(await d).offset for d in deliveries] == [100, 101, 102]
    assert deliveries[0].result().timestamp_ms == 17
    assert accumulator.memory.used_bytes == 0


async def test_a_delivery_that_failed_raises_for_each_of_its_records() -> None:
    accumulator = full_queue(1)
    (batch,) = accumulator.outstanding
    delivery = accumulator.append(TP, None, b"", (), 0, 1)[0]
    accumulator.memory.try_acquire(1)
    accumulator.finish(batch, DeliveryFailed("no"))
    with pytest.raises(DeliveryFailed, match="no"):
        await delivery


async def test_cancelling_one_who_awaits_a_delivery_does_not_cancel_the_others() -> None:
    accumulator = full_queue(1)
    (batch,) = accumulator.outstanding
    delivery = accumulator.append(TP, None, b"", (), 0, 1)[0]
    accumulator.memory.try_acquire(1)

    async def wait() -> int:
        return (await delivery).offset

    one, other = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.sleep(0)
    accumulator.finish(batch, BatchResult(5, -1))
    assert await other == 6


async def test_memory_is_given_in_the_order_of_asking() -> None:
    memory = MemoryBudget(100)
    assert memory.try_acquire(80)
    large, small = asyncio.create_task(memory.acquire(60)), asyncio.create_task(memory.acquire(10))
    await asyncio.sleep(0)
    assert not memory.try_acquire(5), "no caller overtakes those that wait"
    memory.release(80)
    await asyncio.gather(large, small)
    assert memory.used_bytes == 70


async def test_one_who_stops_waiting_for_memory_leaves_no_trace() -> None:
    memory = MemoryBudget(100)
    memory.try_acquire(80)
    large, small = asyncio.create_task(memory.acquire(60)), asyncio.create_task(memory.acquire(10))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await small
    assert memory.used_bytes == 90


async def test_memory_granted_in_the_moment_of_cancelling_goes_back() -> None:
    memory = MemoryBudget(100)
    memory.try_acquire(80)
    waiting = asyncio.create_task(memory.acquire(60))
    await asyncio.sleep(0)
    memory.release(80)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert memory.used_bytes == 0


async def test_one_who_stopped_waiting_when_memory_came_back_leaves_it_to_the_next() -> None:
    memory = MemoryBudget(100)
    assert memory.try_acquire(100)
    first, second = asyncio.create_task(memory.acquire(60)), asyncio.create_task(memory.acquire(50))
    await asyncio.sleep(0)
    first.cancel()
    memory.release(100)
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert memory.used_bytes == 50
