"""Consumers of groups whose coordinator assigns (KIP-848), against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from group_readers import CallingListener, Notes, Reader, consumer_of, reading, shared, until

from penstock.client import (
    Admin,
    AlterConfig,
    BrokerError,
    CommitFailed,
    Consumer,
    ErrorCode,
    GroupFenced,
    NewTopic,
    Producer,
    TopicPartition,
)
from penstock.client.cluster import ClusterConnections
from penstock.client.consumer_rebalancing import ConsumerRebalancing
from penstock.client.heartbeat_membership import LEAVE_EPOCH
from penstock.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

pytestmark = pytest.mark.integration

member_of: Callable[..., Consumer] = partial(consumer_of, group_protocol="consumer")


async def fill(bootstrap: str, topic: str, first: int, count: int) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number, partition=number % 4)


@asynccontextmanager
async def connections(bootstrap: str) -> AsyncIterator[ClusterConnections]:
    cluster = ClusterConnections(bootstrap)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


async def expel(bootstrap: str, group: str, member_id: str) -> None:
    """Remove a member, as if its session had expired."""
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=LEAVE_EPOCH)
    async with connections(bootstrap) as cluster:
        response = await cluster.call_coordinator(group, request, ConsumerGroupHeartbeatResponse)
        assert response.error_code == 0


async def members_of(bootstrap: str, group: str) -> set[str]:
    """Return the ids of the members that the coordinator has."""
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    async with connections(bootstrap) as cluster:
        response = await cluster.call_coordinator(group, request, ConsumerGroupDescribeResponse)
        return {member.member_id for member in response.groups[0].members}


async def answered_heartbeat(reader: Reader) -> None:
    """Wait for the next response to a heartbeat of a member."""
    rebalancing = reader.consumer._polling.rebalancing
    assert isinstance(rebalancing, ConsumerRebalancing)
    await asyncio.shield(rebalancing.membership._answered)


@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
async def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
    bootstrap: str, topic: str, name: str, assignor: str | None
) -> None:
    async with reading(member_of(bootstrap, name, remote_assignor=assignor), topic) as one:
        await until(shared([one]))
        async with reading(member_of(bootstrap, name, remote_assignor=assignor), topic) as two:
            await until(shared([one, two]))
            assert await members_of(bootstrap, name) == {one.consumer.member_id, two.consumer.member_id}
            assert one.consumer.generation > 0
        await until(shared([one]))


async def test_everything_is_read_once_while_members_come_and_go_in_order(
    bootstrap: str, topic: str, name: str
) -> None:
    options = {"auto_commit": True, "auto_commit_interval_ms": 50}
    async with reading(member_of(bootstrap, name, **options), topic) as one:
        await fill(bootstrap, topic, 0, 400)
        await until(lambda: len(one.read) == 400)
        async with reading(member_of(bootstrap, name, **options), topic) as two:
            await until(shared([one, two]))
            await fill(bootstrap, topic, 400, 400)
            await until(lambda: len(one.read) + len(two.read) == 800)
        await until(shared([one]))
        await fill(bootstrap, topic, 800, 400)
        await until(lambda: len(one.read) + len(two.read) >= 1200)
    assert sorted(one.read + two.read) == sorted((p, n) for p in range(4) for n in range(300))


async def test_only_partitions_that_move_are_revoked(bootstrap: str, topic: str, name: str) -> None:
    notes = Notes()
    async with reading(member_of(bootstrap, name), topic, notes) as one:
        await until(shared([one]))
        async with reading(member_of(bootstrap, name), topic) as two:
            await until(shared([one, two]))
            assert [len(revoked) for revoked in notes.revoked] == [2]
        await until(shared([one]))
    assert [len(new) for new in notes.assigned if new] == [4, 2]
    assert notes.lost == []


async def test_a_partition_is_assigned_to_another_member_after_its_owner_has_revoked_it(
    bootstrap: str, topic: str, name: str
) -> None:
    may_revoke, is_revoking = asyncio.Event(), asyncio.Event()

    async def hold(_: set[TopicPartition]) -> None:
        is_revoking.set()
        await may_revoke.wait()
        await one.consumer.commit({TopicPartition(topic, p): 7 for p in range(4)})

    await fill(bootstrap, topic, 0, 28)
    async with reading(member_of(bootstrap, name), topic, CallingListener(hold)) as one:
        await until(shared([one]))
        async with reading(member_of(bootstrap, name), topic) as two:
            await is_revoking.wait()
            for reader in (one, two, one, two, one, two):
                await answered_heartbeat(reader)
            assert not await two.consumer.is_settled()
            assert two.partitions == set(), "the owner has not acknowledged yet"
            may_revoke.set()
            await until(shared([one, two]))
            for tp in two.consumer.assignment:
                assert await two.consumer.position(tp) == 7


async def test_a_static_member_that_restarts_gets_its_partitions_back_and_moves_no_others(
    bootstrap: str, topic: str, name: str
) -> None:
    notes = Notes()
    async with reading(member_of(bootstrap, name, group_instance_id="a"), topic, notes) as one:
        async with reading(member_of(bootstrap, name, group_instance_id="b"), topic) as two:
            await until(shared([one, two]))
            before = two.partitions
        revoked, epoch = list(notes.revoked), one.consumer.generation
        async with reading(member_of(bootstrap, name, group_instance_id="b"), topic) as again:
            await until(shared([one, again]))
            assert again.partitions == before
            assert (notes.revoked, one.consumer.generation) == (revoked, epoch)


async def test_an_instance_id_that_is_in_use_cannot_join(bootstrap: str, topic: str, name: str) -> None:
    async with reading(member_of(bootstrap, name, group_instance_id="a"), topic) as one:
        await until(shared([one]))
        async with member_of(bootstrap, name, group_instance_id="a") as two:
            two.subscribe([topic])
            with pytest.raises(GroupFenced, match='"a" is in use by another member'):
                await two.getmany(timeout_ms=60_000)


async def test_a_member_that_dies_is_replaced_when_its_session_is_over(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    await admin.alter_group_configs({name: [AlterConfig("consumer.session.timeout.ms", "1000")]})
    dead = member_of(bootstrap, name)
    async with reading(dead, topic) as two:
        await until(shared([two]))
        await two.stop()
        # As after a crash: no further heartbeats.
        await dead.close(leave=False)
    async with reading(member_of(bootstrap, name), topic) as one:
        await until(shared([one]))


async def test_a_member_that_was_removed_loses_its_partitions_and_joins_again(
    bootstrap: str, topic: str, name: str
) -> None:
    notes = Notes()
    async with reading(member_of(bootstrap, name), topic, notes) as one:
        await until(shared([one]))
        await expel(bootstrap, name, one.consumer.member_id)
        await until(lambda: len(notes.assigned) == 2)
        await until(shared([one]))
    assert (notes.lost, notes.revoked) == ([notes.assigned[0]], [])


async def test_a_commit_of_a_member_that_was_removed_fails(bootstrap: str, topic: str, name: str) -> None:
    async with member_of(bootstrap, name) as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment) != 4:
            await consumer.getmany(timeout_ms=100)
        await expel(bootstrap, name, consumer.member_id)
        with pytest.raises(CommitFailed):
            await consumer.commit({TopicPartition(topic, 0): 1})


async def test_a_commit_with_an_older_epoch_is_repeated_with_the_current_one(
    bootstrap: str, topic: str, name: str
) -> None:
    async with reading(member_of(bootstrap, name), topic) as one:
        await until(shared([one]))
        rebalancing = one.consumer._polling.rebalancing
        assert rebalancing is not None
        assert isinstance(rebalancing, ConsumerRebalancing)
        rebalancing.membership.reset()
        rebalancing.membership.generation = 0  # as before the response to the first heartbeat
        tp = TopicPartition(topic, 0)
        await one.consumer.commit({tp: 5})
        assert (await one.consumer.committed(tp))[tp].offset == 5


async def test_one_who_does_not_ask_for_records_leaves_the_group_and_may_come_back(
    bootstrap: str, topic: str, name: str
) -> None:
    async with member_of(bootstrap, name, max_poll_interval_ms=1_500) as consumer:
        notes = Notes()
        consumer.subscribe([topic], listener=notes)
        while len(consumer.assignment) != 4:
            await consumer.getmany(timeout_ms=100)
        while await members_of(bootstrap, name):
            await asyncio.sleep(0.02)
        with pytest.raises(CommitFailed, match="not a member"):
            await consumer.commit({TopicPartition(topic, 0): 1})
        while len(notes.assigned) != 2:
            await consumer.getmany(timeout_ms=200)
        assert [len(lost) for lost in notes.lost] == [4]


async def test_new_partitions_are_taken_up_by_a_running_group(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    async with reading(member_of(bootstrap, name), topic) as one:
        await until(shared([one]))
        await admin.create_partitions({topic: 6})
        await until(shared([one], 6))


async def test_the_coordinator_matches_a_pattern_and_takes_up_topics_that_are_created_later(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    async with member_of(bootstrap, topic) as consumer:
        consumer.subscribe(pattern=f"{topic}.*")
        reader = Reader(consumer)
        reader.task = asyncio.create_task(reader.run())
        try:
            await until(lambda: {tp.topic for tp in consumer.assignment} == {topic})
            await admin.create_topics([NewTopic(f"{topic}-later", 1)])
            await until(lambda: {tp.topic for tp in consumer.assignment} == {topic, f"{topic}-later"})
            consumer.subscribe([f"{topic}-later"])
            await until(lambda: {tp.topic for tp in consumer.assignment} == {f"{topic}-later"})
        finally:
            await reader.stop()
            await admin.delete_topics([f"{topic}-later"])


async def test_a_topic_that_is_created_again_is_read_from_its_start(bootstrap: str, admin: Admin, topic: str) -> None:
    async with reading(member_of(bootstrap, topic, auto_create_topics=False), topic) as one:
        await fill(bootstrap, topic, 0, 8)
        await until(lambda: len(one.read) == 8)
        await admin.delete_topics([topic])
        await until(lambda: not one.partitions)
        await admin.create_topics([NewTopic(topic, 4)])
        await fill(bootstrap, topic, 0, 4)
        await until(lambda: len(one.read) == 12)
    assert sorted(one.read[8:]) == [(p, 0) for p in range(4)]


async def test_an_invalid_pattern_is_reported_by_the_poll(bootstrap: str, name: str) -> None:
    async with member_of(bootstrap, name) as consumer:
        consumer.subscribe(pattern="(")
        with pytest.raises(BrokerError, match="not a valid regular expression") as raised:
            await consumer.getmany(timeout_ms=60_000)
        assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_unsubscribing_leaves_the_group(bootstrap: str, topic: str, name: str) -> None:
    async with member_of(bootstrap, name) as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment) != 4:
            await consumer.getmany(timeout_ms=100)
        await consumer.unsubscribe()
        assert await members_of(bootstrap, name) == set()
        assert (consumer.assignment, consumer.generation) == (set(), -1)


async def test_a_transaction_commits_offsets_as_a_member(bootstrap: str, topic: str, name: str) -> None:
    tp = TopicPartition(topic, 0)
    async with reading(member_of(bootstrap, name), topic) as one:
        await until(shared([one]))
        async with Producer(bootstrap, transactional_id=name) as producer, producer.transaction():
            await producer.send_offsets({tp: 3}, one.consumer.group_metadata)
        assert (await one.consumer.committed(tp))[tp].offset == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"group_protocol": "consumer", "assignors": ["range"]}, "assignors"),
        ({"group_protocol": "consumer", "session_timeout_ms": 1000}, "session_timeout_ms"),
        ({"group_protocol": "consumer", "heartbeat_interval_ms": 1000}, "heartbeat_interval_ms"),
        ({"remote_assignor": "range"}, "remote_assignor"),
        ({"group_protocol": "share"}, "group_protocol"),
    ],
)
def test_options_of_the_other_protocol_are_rejected(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Consumer(group_id="g", **options)  # type: ignore[arg-type]
