"""The queue: each key once, none lost, none concurrently, backoff of failures, round-robin between kinds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine

import pytest
from doubles.virtual import run_virtually

from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.engine.queue import FIRST_PAUSE_S, MAX_PAUSE_S, MIN_PAUSE_S, WorkQueue
from penstock_operator.model.common import Kind, ObjectKey


def key(number: int | str, namespace: str = "ns", kind: Kind = "Topic") -> ObjectKey:
    return ObjectKey(kind, namespace, str(number))


def queue_of(jitter: Callable[[], float] = lambda: 0.5) -> WorkQueue:
    return WorkQueue(jitter, lambda key: (key.namespace, ""))


def now() -> float:
    return asyncio.get_running_loop().time()


def virtually(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtually
async def test_ten_thousand_events_for_one_object_are_one_look() -> None:
    queue = queue_of()
    for _ in range(10_000):
        queue.put(key("a"))
    assert await queue.pop_batch("Topic", 100) == [key("a")]
    assert queue.depth("Topic") == 0


@virtually
async def test_five_thousand_objects_at_once_are_all_looked_at_once() -> None:
    """A topic operator exited when its queue passed 1,024 entries; this queue has no such limit."""
    queue = queue_of()
    for number in range(5_000):
        queue.put(key(number))
    taken: list[ObjectKey] = []
    while len(taken) < 5_000:
        batch = await queue.pop_batch("Topic", 100)
        assert len(batch) == 100
        taken += batch
        for one in batch:
            queue.complete(one, ReconcileResult())
    assert len(set(taken)) == 5_000
    assert (queue.depth("Topic"), queue.waiting()) == (0, 0)


@virtually
async def test_a_key_that_is_being_looked_at_is_not_given_out_and_looked_at_again_afterwards() -> None:
    queue = queue_of()
    queue.put(key("a"))
    await queue.pop_batch("Topic", 10)
    queue.put(key("a"))
    queue.put(key("a"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await queue.pop_batch("Topic", 10)
    queue.complete(key("a"), ReconcileResult())
    assert await queue.pop_batch("Topic", 10) == [key("a")]
    queue.complete(key("a"), ReconcileResult())
    assert queue.depth("Topic") == 0


@virtually
async def test_failures_wait_longer_each_time_and_never_longer_than_the_bound() -> None:
    queue = queue_of()
    queue.put(key("a"))
    pauses = []
    for _ in range(12):
        began = now()
        assert await queue.pop_batch("Topic", 10) == [key("a")]
        pauses.append(now() - began)
        queue.complete(key("a"), ReconcileResult(error="no"))
    assert pauses[:4] == pytest.approx([0, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert pauses[-1] == pytest.approx(MAX_PAUSE_S)
    await queue.pop_batch("Topic", 10)
    queue.complete(key("a"), ReconcileResult())
    queue.put(key("a"))
    began = now()
    await queue.pop_batch("Topic", 10)
    assert now() == began
    queue.complete(key("a"), ReconcileResult(error="again"))
    await queue.pop_batch("Topic", 10)
    assert now() - began == pytest.approx(FIRST_PAUSE_S), "a success begins the pauses anew"


@virtually
async def test_an_event_brings_a_failing_key_forward_but_not_at_once() -> None:
    """The status that a failing reconciliation writes comes back as an event."""
    queue = queue_of()
    queue.put(key("a"))
    for _ in range(8):
        await queue.pop_batch("Topic", 1)
        queue.complete(key("a"), ReconcileResult(error="no"))
    looks, began = 0, now()
    while now() - began < 60:
        queue.put(key("a"))
        await queue.pop_batch("Topic", 1)
        looks += 1
        queue.complete(key("a"), ReconcileResult(error="no"))
    assert looks == pytest.approx(60 / MIN_PAUSE_S, abs=2)


@virtually
async def test_jitter_spreads_keys_that_failed_together() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    queue = queue_of(random.Random(seed).random)
    for number in range(100):
        queue.put(key(number))
    for one in await queue.pop_batch("Topic", 100):
        queue.complete(one, ReconcileResult(error="no"))
    moments: Counter[float] = Counter()
    while sum(moments.values()) < 100:
        taken = await queue.pop_batch("Topic", 100)
        moments[now()] += len(taken)
    assert len(moments) > 50
    assert max(moments) - min(moments) <= FIRST_PAUSE_S / 2


@virtually
async def test_a_later_wish_does_not_put_an_earlier_one_off() -> None:
    queue = queue_of()
    began = now()
    queue.put(key("a"), 50)
    queue.put(key("a"), 10)
    queue.put(key("a"), 90)
    assert await queue.pop_batch("Topic", 10) == [key("a")]
    assert now() - began == pytest.approx(10)
    queue.complete(key("a"), ReconcileResult(requeue_after_s=30))
    assert await queue.pop_batch("Topic", 10) == [key("a")]
    assert now() - began == pytest.approx(40)
    queue.complete(key("a"), ReconcileResult())
    assert queue.waiting() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1_000):
            await queue.pop_batch("Topic", 10)


@virtually
async def test_a_cluster_with_thousands_of_topics_does_not_keep_another_ones_waiting() -> None:
    queue = queue_of()
    for number in range(5_000):
        queue.put(key(number, "big"))
    for number in range(3):
        queue.put(key(number, "small"))
    batch = await queue.pop_batch("Topic", 10)
    assert Counter(one.namespace for one in batch) == {"big": 7, "small": 3}


@virtually
async def test_kinds_do_not_wait_for_each_other() -> None:
    queue = queue_of()
    for number in range(1_000):
        queue.put(key(number))
    waiting = asyncio.create_task(queue.pop_batch("Cluster", 10))
    await asyncio.sleep(0)
    queue.put(key("c", kind="Cluster"))
    assert await waiting == [key("c", kind="Cluster")]


@virtually
async def test_keys_put_back_are_there_again_at_once() -> None:
    queue = queue_of()
    queue.put(key("a"))
    queue.put_back(await queue.pop_batch("Topic", 10))
    assert await queue.pop_batch("Topic", 10) == [key("a")]


@pytest.mark.slow
@virtually
async def test_delays_that_are_shortened_a_million_times_do_not_pile_up() -> None:
    queue = queue_of()
    for step in range(20_000):
        queue.put(key("a"), 20_000 - step)
    assert len(queue._heap) < 200
