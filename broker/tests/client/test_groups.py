"""Consumers that share a topic in a group, against a real broker."""

from __future__ import annotations

import asyncio

import pytest
from group_readers import CallingListener, Notes, Reader, consumer_of, reading, shared, until

from penstock.client import (
    Admin,
    CommitFailed,
    GroupFenced,
    NewTopic,
    Producer,
    TopicPartition,
)
from penstock.client.assignors import find_assignor
from penstock.client.classic_membership import ClassicMembership
from penstock.client.classic_rebalancing import ClassicRebalancing
from penstock.client.cluster import ClusterConnections
from penstock.client.membership import GroupOptions
from penstock.client.positions import Positions

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "assignors", [["range"], ["roundrobin"], ["cooperative-sticky"], ["range", "cooperative-sticky"]]
)
async def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
    bootstrap: str, topic: str, name: str, assignors: list[str]
) -> None:
    async with reading(consumer_of(bootstrap, name, assignors=assignors), topic) as one:
        await until(shared([one]))
        async with reading(consumer_of(bootstrap, name, assignors=assignors), topic) as two:
            await until(shared([one, two]))
        await until(shared([one]))


async def test_everything_is_read_once_while_members_come_and_go_in_order(
    bootstrap: str, topic: str, name: str
) -> None:
    options = {"assignors": ["cooperative-sticky"], "auto_commit": True, "auto_commit_interval_ms": 50}
    async with Producer(bootstrap) as producer, reading(consumer_of(bootstrap, name, **options), topic) as one:

        async def send(first: int) -> None:
            for number in range(first, first + 400):
                await producer.send(topic, b"%d" % number, partition=number % 4)
            await producer.flush()

        await send(0)
        await until(lambda: len(one.read) == 400)
        async with reading(consumer_of(bootstrap, name, **options), topic) as two:
            await until(shared([one, two]))
            await send(400)
            await until(lambda: len(one.read) + len(two.read) == 800)
        await until(shared([one]))
        await send(800)
        await until(lambda: len(one.read) + len(two.read) >= 1200)
    assert sorted(one.read + two.read) == sorted((p, n) for p in range(4) for n in range(300))


async def test_a_cooperative_member_keeps_what_it_has_when_another_joins(bootstrap: str, topic: str, name: str) -> None:
    notes = Notes()
    options = {"assignors": ["cooperative-sticky"]}
    async with reading(consumer_of(bootstrap, name, **options), topic, notes) as one:
        await until(shared([one]))
        async with reading(consumer_of(bootstrap, name, **options), topic) as two:
            await until(shared([one, two]))
        assert [len(revoked) for revoked in notes.revoked] == [2]


async def test_a_cooperative_member_is_not_settled_before_the_partitions_that_others_revoke_are_assigned(
    bootstrap: str, topic: str, name: str
) -> None:
    may_revoke, is_revoking = asyncio.Event(), asyncio.Event()

    async def hold(_: set[TopicPartition]) -> None:
        is_revoking.set()
        await may_revoke.wait()

    options = {"assignors": ["cooperative-sticky"]}
    async with reading(consumer_of(bootstrap, name, **options), topic, CallingListener(hold)) as one:
        await until(shared([one]))
        async with reading(consumer_of(bootstrap, name, **options), topic) as two:
            await is_revoking.wait()
            rebalancing = two.consumer._polling.rebalancing
            assert rebalancing is not None
            await until(lambda: rebalancing._is_quiet)
            assert (await two.consumer.is_settled(), two.partitions) == (False, set())
            may_revoke.set()
            while not await two.consumer.is_settled():
                await asyncio.sleep(0.01)
            assert len(two.partitions) == 2


async def test_a_member_is_not_settled_before_it_knows_the_partitions_of_its_topics(
    bootstrap: str, topic: str, name: str
) -> None:
    async with reading(consumer_of(bootstrap, name, assignors=["range"]), topic) as leader:
        await until(shared([leader]))
        cluster = ClusterConnections(bootstrap)
        await cluster.start()
        membership = ClassicMembership(cluster, GroupOptions(name, [find_assignor("range")]), lambda: None)
        assert len(await membership.join([topic], ())) == 2
        assert topic not in cluster.metadata.topics
        assert not await membership.has_final_assignment()
        await cluster.topic(topic)
        assert await membership.has_final_assignment()
        await membership.close(leave=True)
        await cluster.close()


async def test_partitions_are_given_up_only_while_records_are_asked_for(bootstrap: str, topic: str, name: str) -> None:
    options = {"assignors": ["cooperative-sticky"]}
    notes = Notes()
    async with Producer(bootstrap) as producer:
        for number in range(4_000):
            await producer.send(topic, b"v", partition=number % 4)
    async with consumer_of(bootstrap, name, **options) as one:
        one.subscribe([topic], listener=notes)
        while not await one.getmany(max_records=1):
            pass
        generation = one.generation
        async with reading(consumer_of(bootstrap, name, **options), topic):
            while one.generation == generation:
                assert await one.getmany(max_records=1), "records go on coming while others join"
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert notes.revoked == []
            assert len(one.assignment) == 4
            while not notes.revoked:
                await one.getmany(max_records=1)
            assert len(notes.revoked[0]) == 2


async def test_a_second_rebalance_that_is_wanted_during_the_first_stops_no_records_until_that_has_ended() -> None:
    async def nothing() -> None:
        return None

    group = GroupOptions("g", [find_assignor("cooperative-sticky")])
    rebalancing = ClassicRebalancing(ClusterConnections("127.0.0.1:1"), group, Positions(), lambda: None, nothing)
    assert rebalancing.must_step, "a member joins first"
    rebalancing._task = asyncio.create_task(asyncio.sleep(0))
    rebalancing.membership.request_rejoin()
    assert not rebalancing.must_step
    await rebalancing._task
    assert rebalancing.must_step


async def test_a_member_that_dies_is_replaced_when_its_session_is_over(bootstrap: str, topic: str, name: str) -> None:
    async with reading(consumer_of(bootstrap, name), topic) as one:
        dead = consumer_of(bootstrap, name, session_timeout_ms=1_000)
        async with reading(dead, topic) as two:
            await until(shared([one, two]))
            await two.stop()
            # As after a crash: no LeaveGroup and no further heartbeats.
            await dead.close(leave=False)
        await until(shared([one]))


async def test_a_static_member_that_restarts_gets_its_partitions_back_without_a_rebalance(
    bootstrap: str, topic: str, name: str
) -> None:
    long = {"session_timeout_ms": 30_000}
    async with reading(consumer_of(bootstrap, name, group_instance_id="a", **long), topic) as one:
        async with reading(consumer_of(bootstrap, name, group_instance_id="b", **long), topic) as two:
            await until(shared([one, two]))
            before, generation = two.partitions, one.consumer.generation
        async with reading(consumer_of(bootstrap, name, group_instance_id="b", **long), topic) as again:
            await until(shared([one, again]))
            assert again.partitions == before
            assert one.consumer.generation == generation


async def test_two_members_with_one_instance_id_cannot_both_stay(bootstrap: str, topic: str, name: str) -> None:
    async with reading(consumer_of(bootstrap, name, group_instance_id="a"), topic) as one:
        await until(shared([one]))
        async with reading(consumer_of(bootstrap, name, group_instance_id="a"), topic) as two:
            await until(shared([two]))
            assert one.task is not None
            with pytest.raises(GroupFenced, match='as "a"'):
                await one.task


async def test_new_partitions_are_taken_up_by_a_running_group(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    async with reading(consumer_of(bootstrap, name), topic) as one:
        await until(shared([one]))
        await admin.create_partitions({topic: 6})
        await until(shared([one], 6))


async def test_a_pattern_takes_up_topics_that_are_created_later(bootstrap: str, admin: Admin, topic: str) -> None:
    async with consumer_of(bootstrap, topic) as consumer:
        consumer.subscribe(pattern=f"{topic}.*")
        reader = Reader(consumer)
        reader.task = asyncio.create_task(reader.run())
        try:
            await until(lambda: {tp.topic for tp in consumer.assignment} == {topic})
            await admin.create_topics([NewTopic(f"{topic}-later", 1)])
            await until(lambda: {tp.topic for tp in consumer.assignment} == {topic, f"{topic}-later"})
        finally:
            await reader.stop()
            await admin.delete_topics([f"{topic}-later"])


async def test_one_who_does_not_ask_for_records_leaves_the_group_and_may_come_back(
    bootstrap: str, topic: str, name: str
) -> None:
    async with consumer_of(bootstrap, name, max_poll_interval_ms=1_500) as consumer:
        consumer.subscribe([topic])
        member_id = ""
        while not member_id or len(consumer.assignment) != 4:
            await consumer.getmany(timeout_ms=100)
            member_id = consumer.member_id
        while consumer.member_id == member_id:
            await asyncio.sleep(0.02)
        with pytest.raises(CommitFailed, match="not a member"):
            await consumer.commit({TopicPartition(topic, 0): 1})
        while len(consumer.assignment) != 4 or not consumer.member_id:
            await consumer.getmany(timeout_ms=200)


async def test_a_member_that_was_handed_nothing_yet_has_nothing_to_commit(
    bootstrap: str, topic: str, name: str
) -> None:
    async with consumer_of(bootstrap, name) as consumer:
        consumer.subscribe([topic])
        assert await consumer.commit() == {}


async def test_auto_commit_commits_what_was_handed_out_before(
    bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    async with Producer(bootstrap) as producer:
        for _ in range(10):
            await producer.send(topic, b"v", partition=0)
    tp = TopicPartition(topic, 0)
    async with consumer_of(bootstrap, name, auto_commit=True, auto_commit_interval_ms=600_000) as consumer:
        consumer.subscribe([topic])
        taken = 0
        while taken < 4:
            taken += sum(map(len, (await consumer.getmany(max_records=4 - taken)).values()))
    assert (await admin.committed(name))[tp].offset == 4


async def test_one_consumer_left_alone_in_iteration_sees_a_rebalance(bootstrap: str, topic: str, name: str) -> None:
    async with consumer_of(bootstrap, name) as consumer, Producer(bootstrap) as producer:
        consumer.subscribe([topic])

        async def iterate() -> None:
            async for _ in consumer:
                pass

        task = asyncio.create_task(iterate())
        await until(lambda: len(consumer.assignment) == 4)
        async with reading(consumer_of(bootstrap, name), topic) as other:
            for number in range(400):
                await producer.send(topic, b"v", partition=number % 4)
            await until(lambda: len(consumer.assignment) == 2 and len(other.partitions) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
