"""Followers: restarts, gaps, lost sessions, reassignments, and consumers in their rack."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from client_requests import fetch_first
from cluster_kit import Cluster
from log_kit import headers_in
from replica_kit import batch_of, until

from penstock.log import opening
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    ReplicaState,
)

# Log starts and gaps


async def test_a_follower_whose_place_the_leader_has_no_more_starts_at_the_leaders_start(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2), segment_bytes="1024")
    await cluster.acknowledged(1, 3)
    await cluster.kill(2, fence=False)
    leader = cluster[1].leader()
    for _ in range(10):
        leader.append(batch_of(10))
    await cluster.lag()
    await cluster.in_sync(1)
    await until(lambda: leader.high_watermark == 103)
    await leader.log.delete_records_before(58)  # within a batch
    await cluster.start(2)
    await cluster.in_sync(1, 2)
    role = cluster[2].role()
    assert role is not None
    assert cluster[2].content()[0] == (53, 62, 0)
    assert role.log.end_offset == 103
    await until(lambda: role.log.start_offset == 58)
    await cluster.acknowledged(1)
    assert cluster[2].content()[-1] == (103, 105, 0)


async def test_a_follower_deletes_what_the_leader_has_deleted(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    for _ in range(3):
        await cluster.acknowledged(1)
    await cluster.caught_up(1, 2)
    await cluster[1].leader().log.delete_records_before(6)
    follower = cluster[2].follower()
    await cluster.acknowledged(1)
    await cluster.acknowledged(1)
    await until(lambda: follower.log.start_offset == 6)


async def test_a_log_with_gaps_is_followed_and_survives_a_crash(cluster: Cluster, tmp_path: Path) -> None:
    """A compacted leader's batches skip offsets."""
    await cluster.create(replicas=(1, 2))
    await cluster.kill(2)
    await cluster.elect(1, [1])
    leader = cluster[1].leader()
    await leader.log.permit_gaps()
    for base_offset in (0, 40, 90):
        batch = batch_of(5)
        batch[:8] = base_offset.to_bytes(8, "big")
        batch[12:16] = leader.leader_epoch.to_bytes(4, "big")
        header = headers_in(bytes(batch))[0]
        leader.log.append(batch, header, leader.leader_epoch)
    await cluster.settled()
    await cluster.start(2)
    await cluster.in_sync(1, 2)
    expected = [(0, 4, 1), (40, 44, 1), (90, 94, 1)]
    assert cluster[2].content() == expected
    await cluster.kill(2)
    await cluster.start(2)
    await cluster.caught_up(1, 2)
    assert cluster[2].content() == expected
    await cluster.acknowledged(1)


async def test_nothing_is_cut_off_while_the_store_may_have_gone_back_in_time(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    cluster.cut(2, 1)
    cluster.produce(1, 5)
    cluster[1].membership.discards = False
    await cluster.elect(2, [2])
    await cluster.acknowledged(2, 1)
    await until(lambda: cluster[1].links.get(2) and len(cluster[1].links[2].requests) > 3)
    assert cluster[1].end() == 8
    cluster[1].membership.discards = True
    await cluster.in_sync(1, 2)
    assert cluster[1].content() == cluster[2].content()


# Connections and sessions


async def test_a_lost_connection_is_made_again_with_a_new_session(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    for _ in range(3):
        for follower in (2, 3):
            cluster[follower].links[1].cut()
        await cluster.acknowledged(1)
    fulls = [r for r in cluster[2].links[1].requests if r.session_epoch == 0]
    assert len(fulls) == 4


async def test_a_session_that_the_leader_has_forgotten_is_made_again(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    cluster[1].followers.sessions.clear()
    await cluster.acknowledged(1)
    await cluster.acknowledged(1)


async def test_a_new_partition_is_fetched_at_once_though_a_request_hangs(cluster: Cluster) -> None:
    await cluster.restart_all(replica_fetch_wait_max_ms="60000")
    await cluster.create("a")
    await cluster.acknowledged(1, name="a")
    await cluster.create("b")
    await cluster.acknowledged(1, name="b")
    await cluster.create("t")
    await cluster.acknowledged(1, name="t")
    await cluster.acknowledged(1, name="a")


async def test_a_batch_that_was_damaged_on_the_way_is_not_taken(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    link = cluster[2].links[1]
    real, damaged = link.fetch, []

    async def fetch(request: FetchRequest) -> FetchResponse:
        response = await real(request)
        for topic in response.responses:
            for data in topic.partitions:
                if data.records and len(damaged) < 2:
                    spoiled = bytearray(data.records)
                    spoiled[-1] ^= 1
                    data.records = memoryview(spoiled)
                    damaged.append(data)
        return response

    link.fetch = fetch  # type: ignore[method-assign]
    await cluster.acknowledged(1)  # arrives in the response to an earlier request
    await cluster.acknowledged(1)
    assert len(damaged) == 2
    assert cluster[1].bytes() == cluster[2].bytes()


async def test_producers_are_known_to_the_next_leader(cluster: Cluster) -> None:
    await cluster.create()
    first = await cluster.acknowledged(1, producer=(7, 0, 0))
    await cluster.caught_up(1, 2, 3)
    await cluster.kill(1)
    await cluster.elect(2, [2, 3])
    again = await cluster.acknowledged(2, producer=(7, 0, 0))
    assert again.base_offset == first.base_offset
    assert cluster[2].end() == 3


async def test_a_repeat_waits_until_its_original_counts(cluster: Cluster) -> None:
    await cluster.create()
    cluster.cut(2, 1)
    first, one = cluster.produce(1, producer=(7, 0, 0))
    again, two = cluster.produce(1, producer=(7, 0, 0))
    assert again.base_offset == first.base_offset
    await cluster.caught_up(1, 3)
    assert one.answers == two.answers == []
    cluster.heal()
    await until(lambda: two.answers)
    assert one.answers == two.answers == [0]


# Rejected fetches


async def test_who_is_no_registered_follower_in_this_epoch_is_refused(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    epoch = cluster.epoch_of(2)
    stale = await fetch_first(cluster, 1, 0, replica_state=ReplicaState(replica_id=2, replica_epoch=epoch - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    stranger = ReplicaState(replica_id=3, replica_epoch=cluster.epoch_of(3))
    refused = await fetch_first(cluster, 1, 0, replica_state=stranger, place={"current_leader_epoch": 0})
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for claimed, error in ((1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.FENCED_LEADER_EPOCH)):
        told = await fetch_first(cluster, 1, 0, replica_state=stranger, place={"current_leader_epoch": claimed})
        assert told.error_code == error


async def test_a_fetch_in_another_leader_epoch_moves_no_high_watermark(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    cluster.cut(2, 1)
    _, waiter = cluster.produce(1)
    await cluster.settled()
    state = ReplicaState(replica_id=2, replica_epoch=cluster.epoch_of(2))
    for epoch in (1, -1):
        place = {"current_leader_epoch": epoch, "flushed_offset": 3}
        assert (await fetch_first(cluster, 1, 3, replica_state=state, place=place)).error_code
    assert not waiter.answers
    await fetch_first(cluster, 1, 3, replica_state=state, place={"current_leader_epoch": 0, "flushed_offset": 3})
    assert waiter.answers == [0]


async def test_consumers_see_only_what_counts_while_followers_get_all(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1, 2)
    cluster[3].files.hold()
    done, _ = cluster.produce(1, 4)
    await until(lambda: cluster[3].end() == done.required_offset)
    data = await fetch_first(cluster, 1, 0)
    assert [h.last_offset for h in headers_in(bytes(data.records or b""))] == [1]
    assert data.high_watermark == 2


# Fetches from followers (KIP-392)


async def test_a_consumer_is_sent_to_the_in_sync_replica_in_its_rack(cluster: Cluster) -> None:
    cluster.racks = {1: "a", 2: "b", 3: "c"}
    await cluster.restart_all(replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector")
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    away = await fetch_first(cluster, 1, 0, rack_id="b", max_wait_ms=60_000)
    assert (away.preferred_read_replica, bytes(away.records or b"")) == (2, b"")
    for rack in ("a", "c", ""):
        here = await fetch_first(cluster, 1, 0, rack_id=rack)
        assert here.preferred_read_replica == -1
        assert here.records
    follower = cluster[2].follower()
    await until(lambda: follower.high_watermark == 3)
    near = await fetch_first(cluster, 2, 0, rack_id="b")
    assert bytes(near.records or b"") == cluster[1].bytes()
    assert (await fetch_first(cluster, 2, 99, rack_id="b")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await fetch_first(cluster, 3, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_consumer_that_waits_at_a_follower_is_answered_when_it_hears_that_records_count(
    cluster: Cluster,
) -> None:
    await cluster.restart_all(replica_selector_class="RackAwareReplicaSelector")
    await cluster.create()
    waiting = asyncio.ensure_future(fetch_first(cluster, 2, 0, max_wait_ms=60_000))
    await cluster.acknowledged(1)
    data = await waiting
    assert [h.last_offset for h in headers_in(bytes(data.records or b""))] == [2]


async def test_followers_serve_no_consumer_where_that_was_not_asked_for(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    data = await fetch_first(cluster, 2, 0)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 0)


# Reassignments


def directories(cluster: Cluster, broker_id: int) -> list[str]:
    home = cluster.home / str(broker_id)
    return [p.name for p in home.iterdir() if opening.parse_partition(p.name) is not None]


async def test_a_replica_that_moved_away_is_deleted_once_the_store_confirms_it(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)
    await cluster.change(replicas=[1, 2], isr=[1, 2], isr_epochs=[cluster.epoch_of(1), cluster.epoch_of(2)])
    await until(lambda: not directories(cluster, 3))
    assert cluster[3].role() is None
    assert directories(cluster, 2)
    await cluster.acknowledged(1)


async def test_a_replica_without_data_that_moved_away_leaves_its_log_directory_in_order(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await until(lambda: cluster[2].role() is not None)
    assert cluster[1].leader().log.end_offset == 0
    await cluster.change(replicas=[3], leader=3, leader_epoch=1, isr=[3], isr_epochs=[cluster.epoch_of(3)])
    log_dirs = [cluster[broker_id].log_dir for broker_id in (1, 2)]
    await until(lambda: not any(0 in indexes for d in log_dirs for indexes in d.topics.values()))
    for log_dir in log_dirs:
        while log_dir.maintenance.tasks:
            await asyncio.wait(set(log_dir.maintenance.tasks))
        assert log_dir.failed is None


async def test_a_replica_whose_removal_the_store_does_not_confirm_is_kept(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)
    checked: list[int] = []

    async def no(topic_id: object, index: int) -> bool:
        checked.append(index)
        return False

    cluster[3].replicas.roles.is_unassigned = no
    await cluster.change(replicas=[1, 2], isr=[1, 2], isr_epochs=[cluster.epoch_of(1), cluster.epoch_of(2)])
    await until(lambda: checked)
    await cluster.settled()
    assert directories(cluster, 3)
    await cluster.change(replicas=[1, 2, 3])
    await cluster.in_sync(1, 2, 3)


async def test_a_replica_is_added_by_fetching_and_joins_the_isr(cluster: Cluster) -> None:
    await cluster.create(replicas=(1,))
    for _ in range(20):
        await cluster.acknowledged(1, 10)
    await cluster.change(replicas=[1, 2, 3], adding=[2, 3])
    await cluster.in_sync(1, 2, 3)
    await cluster.acknowledged(1)
    assert cluster[2].bytes() == cluster[3].bytes() == cluster[1].bytes()


async def test_without_a_leader_the_replicas_rest_until_there_is_one(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)
    record = await cluster.record()
    await cluster.change(leader=-1, leader_epoch=record.leader_epoch + 1)
    for broker_id in (1, 2, 3):
        assert cluster[broker_id].replicas.find("t", 0) is None
        assert cluster[broker_id].replicas.absence("t", 0)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.elect(3)
    done = await cluster.acknowledged(3)
    assert done.base_offset == 3


@pytest.mark.slow
async def test_a_follower_whose_files_are_damaged_puts_them_aside_and_fetches_all_again(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2), segment_bytes="1024")
    for _ in range(40):
        await cluster.acknowledged(1, 10)
    await cluster.caught_up(1, 2)
    files = sorted(Path(segment.path) for segment in cluster[2].follower().log.segments)
    assert len(files) > 3
    await cluster.brokers.pop(2).stop(clean=True)  # the checkpoint now covers the whole log
    await cluster.start(2)
    await cluster.in_sync(1, 2)
    await cluster.acknowledged(1, 10)
    await cluster.kill(2)
    files[1].unlink()
    await cluster.lag()
    await cluster.start(2)
    await until((cluster.home / "2" / "quarantine").exists)
    await cluster.in_sync(1, 2)
    await cluster.caught_up(1, 2)
    assert cluster[2].bytes() == cluster[1].bytes()
    assert not cluster[2].log_dir.corrupt
