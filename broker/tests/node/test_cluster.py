"""Three broker processes with etcd: behaviour that a single broker does not have."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from cluster_processes import Cluster, in_sync, partitions, read_all, until, write
from node_kit import Process

from penstock.client import Admin, AlterConfig, ClusterConnections, Consumer, NewTopic, Producer, TopicPartition
from penstock.client.membership import GroupProtocol

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


async def test_a_topic_has_three_replicas_by_default_and_all_have_what_is_acknowledged(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        about = await admin.describe_cluster()
        assert sorted(node.node_id for node in about.brokers) == [1, 2, 3]
        await admin.create_topics([NewTopic("t", 6)])
        placed = await partitions(admin, "t")
        assert all(sorted(p.replicas) == [1, 2, 3] for p in placed)
        assert sorted(p.leader for p in placed) == [1, 1, 2, 2, 3, 3]
        await admin.create_topics([NewTopic("one", 1)])
        sent = await write(producer, "one", 0, 500)
    assert await read_all(cluster.bootstrap, "one", 500) == sent


async def test_a_killed_leader_and_controller_is_succeeded_and_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 300)
        controller = (await admin.describe_cluster()).controller_id
        [placed] = await partitions(admin, "t")
        for victim in {placed.leader, controller}:
            cluster.brokers[victim].kill()
            sent += await write(producer, "t", len(sent), 300)
            others = [b for b in (1, 2, 3) if b != victim]
            await in_sync(admin, "t", *others)
            [after] = await partitions(admin, "t")
            assert after.leader in others
            cluster.start(victim)
            await in_sync(admin, "t", 1, 2, 3)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent


async def test_what_each_broker_has_to_tell_is_not_asked_of_one_that_died(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("t", 3)])
        assert {directory.broker_id for directory in await admin.log_dirs()} == {1, 2, 3}
        cluster.brokers[2].kill()
        await in_sync(admin, "t", 1, 3)
        assert {directory.broker_id for directory in await admin.log_dirs()} == {1, 3}
        assert await admin.list_groups() == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_members_of_a_group_go_on_when_its_coordinator_is_killed(
    cluster: Cluster, protocol: GroupProtocol
) -> None:
    found: list[tuple[TopicPartition, int]] = []

    async def read() -> None:
        options: dict[str, Any] = {"offset_reset": "earliest", "auto_commit": True, "group_protocol": protocol}
        async with Consumer(cluster.bootstrap, group_id="g", auto_commit_interval_ms=50, **options) as consumer:
            consumer.subscribe(["t"])
            while True:
                for tp, records in (await consumer.getmany()).items():
                    found.extend((tp, record.offset) for record in records)

    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer, asyncio.TaskGroup() as tasks:
        await admin.create_topics([NewTopic("t", 4)])
        readers = [tasks.create_task(read()) for _ in range(2)]
        for number in range(40):
            await producer.send("t", b"%d" % number, partition=number % 4)
        await until(lambda: has_read(found, 10), "all records")
        connections = ClusterConnections(cluster.bootstrap)
        await connections.start()
        cluster.brokers[await connections.coordinator("g")].kill()
        await connections.close()
        for number in range(40, 80):
            await producer.send("t", b"%d" % number, partition=number % 4)
        await until(lambda: has_read(found, 20), "all records after the failover")
        for reader in readers:
            reader.cancel()


async def has_read(found: list[tuple[TopicPartition, int]], end: int) -> bool:
    return set(found) == {(TopicPartition("t", p), offset) for p in range(4) for offset in range(end)}


async def test_a_broker_that_is_told_to_end_hands_its_leaderships_over_first(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 3)])
        await write(producer, "t", 0, 90)
        epochs = {p.partition: p.leader_epoch for p in await partitions(admin, "t")}
        [led] = [p.partition for p in await partitions(admin, "t") if p.leader == 2]
        assert cluster.brokers[2].stop() == 0
        await in_sync(admin, "t", 1, 3)
        for p in await partitions(admin, "t"):
            assert p.leader in (1, 3)
            assert p.leader_epoch == epochs[p.partition] + (p.partition == led), "only what it led has changed hands"
        assert cluster.brokers[2].was_clean


async def test_a_broker_that_was_paused_for_longer_than_its_lease_comes_back_as_another_incarnation(
    cluster: Cluster,
) -> None:
    async with Admin(cluster.bootstrap) as patient:
        await patient.create_topics([NewTopic("t", 1)])
    quick = {"request_timeout_ms": 1000}
    async with Admin(cluster.bootstrap, **quick) as admin, Producer(cluster.bootstrap, **quick) as producer:
        sent = await write(producer, "t", 0, 100)
        [placed] = await partitions(admin, "t")
        paused: Process = cluster.brokers[placed.leader]
        paused.process.send_signal(signal.SIGSTOP)
        try:
            await in_sync(admin, "t", *(b for b in (1, 2, 3) if b != placed.leader))
            sent += await write(producer, "t", len(sent), 100)
        finally:
            paused.process.send_signal(signal.SIGCONT)
        await in_sync(admin, "t", 1, 2, 3)
        assert paused.process.poll() is None, "it is the same process"
        sent += await write(producer, "t", len(sent), 100)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent


async def test_all_brokers_killed_at_once_come_back_with_all_that_was_acknowledged(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 500)
    for broker in cluster.brokers.values():
        broker.kill()
    cluster.start(1, 2, 3)
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await in_sync(admin, "t", 1, 2, 3)
        sent += await write(producer, "t", len(sent), 100)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent


async def test_writes_go_on_while_etcd_is_away_and_what_needs_it_succeeds_when_it_is_back(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 100)
        [member] = cluster.etcd.members
        member.pause()
        try:
            sent += await write(producer, "t", len(sent), 100)
        finally:
            member.resume()
        await until(lambda: created(admin, "later"), "a topic can be created again")
        await in_sync(admin, "t", 1, 2, 3)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent


async def created(admin: Admin, name: str) -> bool:
    if name not in await admin.list_topics():
        await admin.create_topics([NewTopic(name, 1)])
    return name in await admin.list_topics()


async def test_a_broker_that_drains_is_emptied_and_says_when_it_is_removable(cluster: Cluster) -> None:
    cluster.start(4)
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 4)])
        await write(producer, "t", 0, 100)
        await admin.alter_broker_configs(1, [AlterConfig("broker.draining", "true")])

        async def is_removable() -> bool:
            return (await admin.broker_configs(1))["broker.removable"].value == "true"

        await until(is_removable, "broker 1 is removable")
    async with Admin(f"127.0.0.1:{cluster.brokers[1].port}") as admin:  # other brokers may lag behind it
        placed = await partitions(admin, "t")
    assert all(1 not in p.replicas for p in placed)
    assert all(len(p.isr) == 3 for p in placed)


def test_two_brokers_of_one_id_are_told_apart_by_their_directories(cluster: Cluster) -> None:
    kept = cluster.brokers[1]
    code, _, err = cluster.begin(1, data=cluster.home / "another").ended()
    cluster.brokers[1] = kept
    assert code == 1
    assert "broker 1 is running already" in err
    assert "Traceback" not in err
    assert kept.process.poll() is None
