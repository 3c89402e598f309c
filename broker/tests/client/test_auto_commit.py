"""Automatic commits of a group member, and cases in which it must not commit, against a real broker."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import Admin, Consumer, Producer, RebalanceListener, TopicPartition
from penstock.client.cluster import ClusterConnections
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

pytestmark = pytest.mark.integration


class Notes(RebalanceListener):
    """Records the partitions of each revocation and each loss."""

    def __init__(self) -> None:
        self.revoked: list[set[TopicPartition]] = []
        self.lost: list[set[TopicPartition]] = []

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.revoked.append(partitions)

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.lost.append(partitions)


def member_of(bootstrap: str, group: str, **options: object) -> Consumer:
    settings: dict[str, object] = {"offset_reset": "earliest", "auto_commit": True, **options}
    return Consumer(bootstrap, group_id=group, **settings)  # type: ignore[arg-type]


async def send(bootstrap: str, topic: str, count: int) -> TopicPartition:
    async with Producer(bootstrap) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=0)
    return TopicPartition(topic, 0)


async def take(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        got = await consumer.getmany(max_records=count - len(found))
        found += [r.offset for records in got.values() for r in records]
    return found


async def test_iteration_over_one_buffer_counts_as_asking_for_records(bootstrap: str, topic: str, name: str) -> None:
    await send(bootstrap, topic, 250)
    notes = Notes()
    options = {"max_poll_interval_ms": 5_000, "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 600_000}
    async with member_of(bootstrap, name, **options) as consumer:
        consumer.subscribe([topic], listener=notes)
        found: list[int] = []
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 250:
                break
            await asyncio.sleep(0.024)  # in total longer than max_poll_interval_ms
    assert found == list(range(250))
    assert notes.lost == []


async def test_iteration_over_one_buffer_commits_on_the_way(bootstrap: str, topic: str, name: str) -> None:
    tp = await send(bootstrap, topic, 250)
    async with member_of(bootstrap, name, auto_commit_interval_ms=50) as consumer:
        consumer.subscribe([topic])
        found: list[int] = []
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 125:
                while (committed := (await consumer.committed(tp))[tp].offset) <= 0:
                    await asyncio.sleep(0.01)
                assert committed < 125, "the record in hand is not processed yet"
            if len(found) == 250:
                break
            await asyncio.sleep(0.012)
    assert found == list(range(250))


async def test_what_an_application_was_dealing_with_when_it_failed_is_not_committed(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    tp = await send(bootstrap, topic, 50)

    async def process(fails_at: int) -> None:
        async with member_of(bootstrap, name, auto_commit_interval_ms=0) as consumer:
            consumer.subscribe([topic])
            for offset in (*await take(consumer, 10), *await take(consumer, 40)):
                if offset == fails_at:
                    raise RuntimeError("processing failed")

    with pytest.raises(RuntimeError):
        await process(fails_at=13)
    committed = (await admin.committed(name)).get(tp)
    assert committed is None or committed.offset <= 10
    await process(fails_at=-1)
    assert (await admin.committed(name))[tp].offset == 50


async def test_closing_commits_only_where_it_is_not_told_otherwise(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    await send(bootstrap, topic, 5)
    async with member_of(bootstrap, name) as consumer:
        consumer.subscribe([topic])
        await take(consumer, 5)
        await consumer.close(commit=False)
    assert {at.offset for at in (await admin.committed(name)).values()} <= {0}


async def test_a_cooperative_member_that_was_thrown_out_neither_keeps_its_place_nor_commits_it(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    tp, notes = await send(bootstrap, topic, 120), Notes()
    options = {"assignors": ["cooperative-sticky"], "heartbeat_interval_ms": 40_000}
    async with member_of(bootstrap, name, **options) as consumer:
        consumer.subscribe([topic], listener=notes)
        await take(consumer, 10)
        await throw_out(bootstrap, name, consumer.member_id)
        await admin.alter_offsets(name, {tp: 100})  # as the partition's new owner commits
        consumer.subscribe([topic], listener=notes)  # rejoins before a heartbeat reports the removal
        generation = consumer.generation
        while consumer.generation in (-1, generation):
            await consumer.getmany(max_records=1, timeout_ms=10)
            await asyncio.sleep(0.01)
        assert await take(consumer, 5) == [100, 101, 102, 103, 104]
        assert [len(partitions) for partitions in notes.lost] == [4]
        assert notes.revoked == []
    assert (await admin.committed(name))[tp].offset == 105


async def throw_out(bootstrap: str, group: str, member_id: str) -> None:
    cluster = ClusterConnections(bootstrap)
    await cluster.start()
    request = LeaveGroupRequest(group_id=group, member_id=member_id, members=[MemberIdentity(member_id=member_id)])
    answer = await cluster.call_coordinator(group, request, LeaveGroupResponse)
    assert (answer.error_code, [m.error_code for m in answer.members]) == (0, [0])
    await cluster.close()
