"""Scheduled records with replicas: leaders change while records are due, and each is delivered once."""

from __future__ import annotations

from pathlib import Path

from client_requests import fetch_first
from cluster_kit import Broker, Cluster
from replica_kit import until

from penstock.replica.leader import Leader
from penstock.replica.scheduled_delivery import LeaderSchedule
from penstock.wire.record import Record
from penstock.wire.records import build_batch, iterate_batches, iterate_records
from penstock.wire.scheduled_batch import CANCEL, DELIVER_AFTER, ORIGIN

SCHEDULED = {"delivery_schedule_enable": "true", "min_insync_replicas": "2"}


async def pass_time(cluster: Cluster, by_ms: int) -> None:
    """Move the clock, let the timers fire, and wait until what is due is delivered."""
    cluster.clock.advance(by_ms)
    for broker in cluster.brokers.values():
        broker.replicas.delayed.on_timer()
    for broker in cluster.brokers.values():
        role = broker.role()
        if isinstance(role, Leader):
            schedule = schedule_of(role)
            await until(lambda schedule=schedule: not schedule.is_delivering)


def schedule_of(leader: Leader) -> LeaderSchedule:
    assert leader.schedule is not None
    return leader.schedule


async def loaded(leader: Leader) -> LeaderSchedule:
    schedule = schedule_of(leader)
    await until(lambda: schedule.index is not None)
    return schedule


async def scheduled(broker: Broker, *times_ms: int, first: int = 0) -> None:
    """Produce records with these delays, numbered from `first`, and wait until they are acknowledged."""
    leader = broker.leader()
    records = [
        Record(key=b"%d" % n, value=b"%d" % n, headers=((DELIVER_AFTER, b"%d" % ms),), timestamp_ms=broker.clock.now_ms)
        for n, ms in enumerate(times_ms, first)
    ]
    done = leader.append(memoryview(bytearray(build_batch(records))), all_in_sync=True)
    assert not done.error, done
    await until(lambda: leader.high_watermark >= done.required_offset)


def delivered(broker: Broker) -> list[int]:
    """Return the numbers of the records that consumers can read."""
    role = broker.role()
    assert role is not None
    data = b"".join(Path(segment.path).read_bytes()[: segment.size] for segment in role.log.segments)
    found = []
    for header, batch in iterate_batches(data):
        if not header.is_control and header.last_offset < role.high_watermark:
            for record in iterate_records(batch, header, 1 << 20):
                assert record.headers[-1][0] == ORIGIN
                found.append(int(record.value or b""))
    return found


async def test_records_that_wait_survive_their_leader_and_are_delivered_once(cluster: Cluster) -> None:
    await cluster.create(**SCHEDULED)
    await loaded(cluster[1].leader())
    await scheduled(cluster[1], *(1_000 * n for n in range(1, 11)))
    await pass_time(cluster, 4_500)
    await cluster.caught_up(1, 2, 3)
    await cluster.kill(1)
    await cluster.elect(2, [2, 3])
    leader = cluster[2].leader()
    assert (await loaded(leader)).waiting == 6
    await until(lambda: leader.is_end_known)
    await pass_time(cluster, 2_000)
    await scheduled(cluster[2], 500, first=10)
    await pass_time(cluster, 10_000)
    await until(lambda: leader.high_watermark == leader.log.end_offset)
    assert delivered(cluster[2]) == [0, 1, 2, 3, 4, 5, 6, 10, 7, 8, 9]
    data = await fetch_first(cluster, 2, 0)
    assert not data.error_code


async def test_a_delivery_that_no_replica_has_is_repeated_by_the_next_leader_alone(cluster: Cluster) -> None:
    await cluster.create(**SCHEDULED)
    leader = cluster[1].leader()
    await loaded(leader)
    await scheduled(cluster[1], 1_000, 2_000)
    await pass_time(cluster, 1_000)
    await cluster.caught_up(1, 2, 3)
    cluster.cut(2, 1)
    cluster.cut(3, 1)
    await pass_time(cluster, 1_000)
    assert leader.log.end_offset > leader.high_watermark
    assert delivered(cluster[1]) == [0], "what is not committed is not visible"
    await cluster.elect(2, [2, 3])
    cluster.heal()
    await loaded(cluster[2].leader())
    await until(lambda: cluster[2].leader().is_end_known)
    await pass_time(cluster, 1)
    await cluster.caught_up(2, 1, 3)
    assert delivered(cluster[2]) == [0, 1]
    await until(lambda: delivered(cluster[1]) == [0, 1])
    assert cluster[1].bytes() == cluster[2].bytes()


async def test_nothing_is_delivered_below_min_isr(cluster: Cluster) -> None:
    await cluster.create(**SCHEDULED)
    leader = cluster[1].leader()
    await loaded(leader)
    await scheduled(cluster[1], 1_000)
    await cluster.change(isr=[1], isr_epochs=[cluster.epoch_of(1)])
    assert leader.under_min_isr
    end_offset = leader.log.end_offset
    await pass_time(cluster, 1_000)
    assert leader.log.end_offset == end_offset
    await cluster.change(isr=[1, 2, 3], isr_epochs=[cluster.epoch_of(i) for i in (1, 2, 3)])
    await pass_time(cluster, 1_000)
    await until(lambda: delivered(cluster[1]) == [0])


async def test_a_restarted_broker_delivers_without_a_request(cluster: Cluster) -> None:
    await cluster.create(replicas=(1,), delivery_schedule_enable="true")
    await loaded(cluster[1].leader())
    await scheduled(cluster[1], 1_000)
    await cluster.kill(1)
    await cluster.start(1)
    cluster.clock.advance(1_000)
    await cluster.elect(1, [1])
    await until(lambda: isinstance(cluster[1].role(), Leader))
    await until(lambda: delivered(cluster[1]) == [0])


async def test_followers_delete_only_what_the_leader_has_deleted(cluster: Cluster) -> None:
    await cluster.create(**SCHEDULED, retention_ms="1000", segment_ms="1000")
    await loaded(cluster[1].leader())
    await scheduled(cluster[1], 100_000)
    cluster.clock.advance(2_000)
    await cluster.acknowledged(1)
    cluster.clock.advance(10_000)
    await cluster.caught_up(1, 2, 3)
    for broker in cluster.brokers.values():
        role = broker.role()
        assert role is not None
        await until(lambda role=role: role.high_watermark == role.log.end_offset)
        broker.log_dir.retention.apply(role.log)
        assert role.log.start_offset == 0


async def test_a_cancellation_survives_the_leader(cluster: Cluster) -> None:
    await cluster.create(**SCHEDULED)
    leader = cluster[1].leader()
    await loaded(leader)
    await scheduled(cluster[1], 1_000, 1_000, 1_000)
    record = Record(key=b"1", value=b"", headers=((CANCEL, None),), timestamp_ms=cluster.clock.now_ms)
    assert not leader.append(memoryview(bytearray(build_batch([record]))), all_in_sync=True).error
    await cluster.caught_up(1, 2, 3)
    await cluster.kill(1)
    await cluster.elect(3, [2, 3])
    found = cluster[3].leader()
    await loaded(found)
    await until(lambda: found.is_end_known)
    await pass_time(cluster, 1_000)
    await until(lambda: delivered(cluster[3]) == [0, 2])
