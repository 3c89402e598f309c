"""Responses of a deposed leader to readers that come from its successor."""

from __future__ import annotations

import asyncio

import pytest
from client_requests import fetch_first, fetch_topics, start_fetch
from cluster_kit import Cluster

from penstock.state.store import StoreUnavailable
from penstock.wire.errors import ErrorCode

PAST = 4
"""Offset past the end of the deposed leader's log, but within its successor's log."""


async def deposed(cluster: Cluster) -> None:
    """Depose broker 1, which has three records and a frozen view; elect broker 2, which has six records."""
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2)
    cluster.cut(2, 1)
    await cluster.deafen(1)
    await cluster.elect(2, [2])
    await cluster.acknowledged(2)


async def test_a_reader_from_the_next_leader_is_sent_back_to_it(cluster: Cluster) -> None:
    await deposed(cluster)
    assert (await fetch_first(cluster, 2, PAST)).error_code == 0
    assert (await fetch_first(cluster, 1, PAST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_readers_of_what_is_there_are_served(cluster: Cluster) -> None:
    await deposed(cluster)
    data = await fetch_first(cluster, 1, 0)
    assert (data.error_code, data.high_watermark) == (0, 3)
    assert data.records


async def test_an_offset_before_the_start_is_not_out_of_range_either(cluster: Cluster) -> None:
    """The next leader may have an earlier log start."""
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2)
    await cluster.deafen(1)
    await cluster.elect(2, [2])
    await cluster[1].leader().log.delete_records_before(3)
    assert (await fetch_first(cluster, 1, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_out_of_range_is_said_where_the_store_confirms_the_leader(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    for offset in (PAST, -1, 1 << 62):
        assert (await fetch_first(cluster, 1, offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("waits_ms", [0, 60_000])
async def test_the_others_of_a_request_are_read_all_the_same(cluster: Cluster, waits_ms: int) -> None:
    await cluster.create("u", replicas=(1, 2))
    await cluster.acknowledged(1, name="u")
    await deposed(cluster)
    lost, read = await fetch_topics(cluster, 1, {"t": PAST, "u": 0}, max_wait_ms=waits_ms)
    assert lost.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (read.error_code, bool(read.records)) == (0, True)


async def test_nothing_is_called_out_of_range_without_a_lease_or_a_store(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    cluster[1].membership.serves = False
    assert (await fetch_first(cluster, 1, PAST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster[1].membership.serves = True

    async def away(key: str) -> None:
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(cluster.store, "get", away)
        assert (await fetch_first(cluster, 1, PAST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch_first(cluster, 1, PAST)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_reader_who_leaves_while_the_store_is_asked_is_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    asking = asyncio.Event()
    real = cluster.store.get

    async def get(key: str) -> object:
        asking.set()
        await asyncio.sleep(0.01)
        return await real(key)

    monkeypatch.setattr(cluster.store, "get", get)
    answered = start_fetch(cluster, 1, {"t": PAST})
    await asking.wait()
    answered.lose()
    with pytest.raises(ConnectionResetError):
        await answered.frame
    monkeypatch.undo()
    assert (await fetch_first(cluster, 1, PAST)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_partition_that_is_named_often_is_asked_for_once(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    reads = 0
    real = cluster.store.get

    async def get(key: str) -> object:
        nonlocal reads
        reads += 1
        return await real(key)

    cluster.store.get = get  # type: ignore[method-assign, assignment]
    answers = await fetch_topics(cluster, 1, {"t": PAST}, times=500)
    assert {data.error_code for data in answers} == {ErrorCode.OFFSET_OUT_OF_RANGE}
    assert (len(answers), reads) == (500, 1)


async def test_a_follower_that_is_taken_for_the_leader_calls_nothing_out_of_range(cluster: Cluster) -> None:
    """A client that sends its rack expects to read from followers, and goes to the leader when redirected."""
    cluster.racks = {1: "a", 2: "b"}
    await cluster.restart_all(replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector")
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2)
    assert (await fetch_first(cluster, 2, PAST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch_first(cluster, 2, PAST, rack_id="b")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# A new leader


async def test_what_counts_is_unknown_until_the_leader_knows_what_its_predecessor_acknowledged(
    cluster: Cluster,
) -> None:
    """A consumer takes the high watermark for the end of the partition."""
    await cluster.create(replicas=(1, 2), min_insync_replicas="2")
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2)
    for broker_id in (1, 2):
        await cluster.kill(broker_id)
    await cluster.start(1)
    await cluster.elect(1, [1])
    data = await fetch_first(cluster, 1, 0)
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, -1, -1)
    assert not data.records
    waiting = start_fetch(cluster, 1, {"t": 0}, max_wait_ms=60_000)
    await cluster.start(2)
    await cluster.in_sync(1, 2)
    assert await waiting.frame
    data = await fetch_first(cluster, 1, 0)
    assert (data.high_watermark, data.last_stable_offset) == (3, 3)
    assert data.records
