"""Added or listed replicas respect their rate limits; replicas that lag by too many records leave the ISR."""

from __future__ import annotations

import asyncio

import pytest
from cluster_kit import Cluster
from replica_kit import batch_of, until

from penstock.state import keys
from penstock.state.records import TopicRecord, decode, encode
from penstock.state.store import PutOp

MOVING = "reassignment.throttle.bytes.per.second"


class Leaps:
    """Event loop time with jumps. At one byte per second, a batch takes minutes: the throttle ends only by a jump."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real, self.ahead_s = loop.time, 0.0
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]

    def leap(self) -> None:
        """Jump far enough to end any throttling."""
        self.ahead_s += 1e6


async def moments() -> None:
    """Wait long enough for a request and its response."""
    for _ in range(50):
        await asyncio.sleep(0.002)


async def written(cluster: Cluster, batches: int = 4) -> None:
    for _ in range(batches):
        await cluster.acknowledged(1)


async def add_third(cluster: Cluster) -> None:
    await cluster.change(replicas=[1, 2, 3], adding=[3])


async def copies_batch_by_batch(cluster: Cluster, leaps: Leaps, follower: int, start: int, end: int) -> None:
    """Check that a follower copies one batch of three records per jump."""
    for reached in range(start + 3, end, 3):
        await until(lambda reached=reached: cluster[follower].end() == reached)  # type: ignore[misc]
        await moments()
        assert cluster[follower].end() == reached, "the next one has to wait"
        leaps.leap()
    await until(lambda: cluster[follower].end() >= end)


@pytest.mark.slow
@pytest.mark.parametrize("side", [1, 3], ids=["leader", "follower"])
async def test_a_replica_that_is_being_added_is_held_back_by_either_sides_bound(cluster: Cluster, side: int) -> None:
    leaps = Leaps()
    cluster[side].config.apply_dynamic({MOVING: "1"}, {})
    await cluster.create(replicas=(1, 2))
    await written(cluster)
    await add_third(cluster)
    await copies_batch_by_batch(cluster, leaps, 3, 0, 12)
    leaps.leap()
    await cluster.in_sync(1, 2, 3)


@pytest.mark.slow
async def test_one_bound_is_for_all_partitions_that_a_broker_copies(cluster: Cluster) -> None:
    leaps = Leaps()
    cluster[3].config.apply_dynamic({MOVING: "1"}, {})
    await cluster.create(replicas=(1, 2), partitions=3)
    for index in range(3):
        leader = cluster[1].leader("t", index)
        leader.append(batch_of(3))
        await cluster.caught_up(1, 2, index=index)
    for index in range(3):
        await cluster.change("t", index, replicas=[1, 2, 3], adding=[3])
    ends = [0, 0, 0]
    for copied in (1, 2, 3):
        await until(lambda: sum(max(cluster[3].end("t", i), 0) for i in range(3)) >= 3 * copied)  # noqa: B023
        await moments()
        ends = [max(cluster[3].end("t", i), 0) for i in range(3)]
        if copied < 3:
            assert sum(ends) == 3 * copied
        leaps.leap()
    assert ends == [3, 3, 3], "each has had its turn"


async def test_who_is_in_sync_is_not_held_back(cluster: Cluster) -> None:
    Leaps()
    for broker in cluster.brokers.values():
        broker.config.apply_dynamic({MOVING: "1"}, {})
    await cluster.create(replicas=(1, 2))
    await written(cluster)
    await add_third(cluster)
    await until(lambda: cluster[3].end() == 3)
    await written(cluster, 10)
    assert cluster[2].end() == 42
    await moments()
    assert cluster[3].end() == 3


async def test_a_bound_that_is_lifted_no_longer_holds(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        broker.config.apply_dynamic({MOVING: "1"}, {})
    await cluster.create(replicas=(1, 2))
    await written(cluster)
    await add_third(cluster)
    await until(lambda: cluster[3].end() == 3)
    for broker in cluster.brokers.values():
        broker.config.apply_dynamic({}, {})
    await cluster.in_sync(1, 2, 3)


async def list_replicas(cluster: Cluster, **lists: str) -> None:
    topic_id = cluster[1].view.topics["t"].topic_id
    entry = await cluster.store.get(keys.topic(topic_id))
    assert entry is not None
    record = decode(TopicRecord, entry.key, entry.value)
    overrides = {name.replace("_", "."): text for name, text in lists.items()}
    new = TopicRecord(name=record.name, topic_id=topic_id, partition_count=record.partition_count, overrides=overrides)
    await cluster.applied((await cluster.store.txn([], [PutOp(entry.key, encode(new))])).revision)


@pytest.mark.slow
async def test_a_listed_follower_that_fell_out_of_sync_is_bounded_by_either_side(cluster: Cluster) -> None:
    leaps = Leaps()
    for rate, listed, replica in (
        ("leader.replication.throttled.rate", "leader_replication_throttled_replicas", "0:1"),
        ("follower.replication.throttled.rate", "follower_replication_throttled_replicas", "0:2"),
    ):
        if "t" not in cluster[1].view.topics:
            await cluster.create(replicas=(1, 2))
        await list_replicas(cluster, **{listed: replica})
        for broker in cluster.brokers.values():
            broker.config.apply_dynamic({rate: "1"}, {})
        cluster.cut(2, 1)
        start = cluster[1].end()
        for _ in range(3):
            cluster[1].leader().append(batch_of(3))
        await cluster.lag()
        await cluster.in_sync(1)
        cluster.heal()
        await copies_batch_by_batch(cluster, leaps, 2, max(start, 0), max(start, 0) + 9)
        leaps.leap()
        await cluster.in_sync(1, 2)


async def test_a_follower_that_lacks_many_records_stays_in_sync_until_its_time_is_over(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    cluster.cut(2, 1)
    leader = cluster[1].leader()
    leader.append(batch_of(500))
    cluster[1].keeper.check_leaders()
    await moments()
    assert leader.isr is not None
    assert leader.isr.pending is None
    assert leader.isr.placed.isr == [1, 2]
