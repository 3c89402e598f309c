"""Delayed topics with replicas: leaders change while records wait, and only the leader serves consumers."""

from __future__ import annotations

import asyncio

from client_requests import fetch_first
from cluster_kit import Cluster
from log_kit import headers_in
from replica_kit import until

from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import PartitionData

DELAY_MS = 60_000


def pass_time(cluster: Cluster, by_ms: int) -> None:
    """Move the clock, and let the timers fire."""
    cluster.clock.advance(by_ms)
    for broker in cluster.brokers.values():
        broker.replicas.delayed.on_timer()


def ends(data: PartitionData) -> list[int]:
    assert not data.error_code
    return [h.last_offset for h in headers_in(bytes(data.records or b""))]


async def test_records_that_wait_survive_their_leader_and_none_is_early(cluster: Cluster) -> None:
    await cluster.create(delivery_delay_ms=str(DELAY_MS), min_insync_replicas="2")
    for _ in range(5):
        await cluster.acknowledged(1, 2)
        pass_time(cluster, 10_000)
    await cluster.caught_up(1, 2, 3)
    await cluster.kill(1)
    await cluster.elect(2, [2, 3])
    leader = cluster[2].leader()
    await until(lambda: leader.high_watermark == 10 and leader.is_end_known)
    seen: list[int] = []
    for number in range(5):
        pass_time(cluster, 9_999)
        assert ends(await fetch_first(cluster, 2, 2 * number)) == []
        pass_time(cluster, 1)
        await until(lambda end=2 * number + 2: leader.visible_offset == end)
        data = await fetch_first(cluster, 2, 2 * number)
        assert data.high_watermark == 2 * number + 2
        seen += ends(data)
    assert seen == [1, 3, 5, 7, 9]


async def test_a_leader_whose_clock_is_ahead_delays_no_record_longer_than_its_successor_does(cluster: Cluster) -> None:
    await cluster.create(delivery_delay_ms=str(DELAY_MS))
    cluster.clock.advance(3_600_000)
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)
    await cluster.kill(1)
    pass_time(cluster, -3_600_000)
    await cluster.elect(2, [2, 3])
    leader = cluster[2].leader()
    await until(lambda: leader.high_watermark == 3 and leader.delivery.next_due_ms is not None)
    pass_time(cluster, DELAY_MS - 1)
    assert leader.visible_offset == 0
    pass_time(cluster, 1)
    assert leader.visible_offset == 3


async def test_consumers_are_not_sent_to_a_follower_and_are_refused_there(cluster: Cluster) -> None:
    cluster.racks = {1: "a", 2: "b", 3: "c"}
    await cluster.restart_all(replica_selector_class="RackAwareReplicaSelector")
    await cluster.create(replicas=(1, 2), delivery_delay_ms=str(DELAY_MS))
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2)
    pass_time(cluster, DELAY_MS)
    here = await fetch_first(cluster, 1, 0, rack_id="b")
    assert (here.preferred_read_replica, ends(here)) == (-1, [2])
    refused = await fetch_first(cluster, 2, 0, rack_id="b")
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.current_leader.leader_id == 1


async def test_a_consumer_that_waits_at_a_follower_is_sent_away_once_the_topic_has_a_delay(cluster: Cluster) -> None:
    await cluster.restart_all(replica_selector_class="RackAwareReplicaSelector")
    topic_id = await cluster.create()
    waiting = asyncio.ensure_future(fetch_first(cluster, 2, 0, max_wait_ms=60_000))
    await until(lambda: (found := cluster[2].replicas.find_follower("t", 0)) is not None and found.readers)
    await cluster.configure(topic_id, **{"delivery.delay.ms": str(DELAY_MS)})
    await cluster.acknowledged(1)
    assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster[1].leader().visible_offset == 0


async def test_followers_copy_records_that_wait(cluster: Cluster) -> None:
    await cluster.create(delivery_delay_ms=str(DELAY_MS))
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)
    follower = cluster[2].follower()
    await until(lambda: follower.high_watermark == 3)
    assert cluster[1].leader().visible_offset == 0
