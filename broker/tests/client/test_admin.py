"""The admin client against a real broker."""

from __future__ import annotations

import pytest

from penstock.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Admin,
    AlterConfig,
    BrokerError,
    ClientQuota,
    Consumer,
    ErrorCode,
    NewTopic,
    Producer,
    Reassignment,
    TopicPartition,
    UnknownTopic,
)

pytestmark = pytest.mark.integration


async def test_the_cluster_is_described(admin: Admin) -> None:
    cluster = await admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller_id in {broker.node_id for broker in cluster.brokers}
    assert "num.partitions" in await admin.broker_configs(cluster.brokers[0].node_id)


async def test_a_topic_that_is_there_is_not_created_again(admin: Admin, topic: str) -> None:
    with pytest.raises(BrokerError, match=topic) as raised:
        await admin.create_topics([NewTopic(topic, 1)])
    assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert not raised.value.retriable


async def test_validating_creates_nothing(admin: Admin, name: str) -> None:
    (found,) = await admin.create_topics([NewTopic(name, 3)], validate_only=True)
    assert (found.name, found.partitions) == (name, 3)
    assert name not in await admin.list_topics()


async def test_partitions_are_added_and_never_taken(admin: Admin, topic: str) -> None:
    await admin.create_partitions({topic: 6})
    assert len((await admin.describe_topics([topic]))[topic].partitions) == 6
    with pytest.raises(BrokerError) as raised:
        await admin.create_partitions({topic: 2})
    assert raised.value.code == ErrorCode.INVALID_PARTITIONS


async def test_settings_are_changed_and_given_back(admin: Admin, topic: str) -> None:
    await admin.alter_topic_configs(topic, [AlterConfig("retention.ms", "60000")])
    entry = (await admin.topic_configs(topic))["retention.ms"]
    assert (entry.value, entry.source, entry.is_default) == ("60000", "topic", False)
    await admin.alter_topic_configs(topic, [AlterConfig("retention.ms", None, "delete")])
    assert (await admin.topic_configs(topic))["retention.ms"].source != "topic"
    with pytest.raises(BrokerError) as raised:
        await admin.alter_topic_configs(topic, [AlterConfig("retention.ms", "soon")])
    assert raised.value.code == ErrorCode.INVALID_CONFIG


async def test_what_is_not_there_is_an_unknown_topic(admin: Admin, name: str) -> None:
    with pytest.raises(UnknownTopic, match=name):
        await admin.describe_topics([name])
    with pytest.raises(UnknownTopic, match=name):
        await admin.topic_configs(name)
    with pytest.raises(UnknownTopic, match=name):
        await admin.list_offsets({TopicPartition(name, 0): LATEST})


async def test_offsets_are_found_and_records_deleted(bootstrap: str, admin: Admin, topic: str) -> None:
    tp = TopicPartition(topic, 1)
    async with Producer(bootstrap) as producer:
        for when in (1000, 5000, 3000):
            await (await producer.send(topic, b"v", partition=1, timestamp_ms=when))
    assert (await admin.list_offsets({tp: EARLIEST}))[tp].offset == 0
    assert (await admin.list_offsets({tp: LATEST}))[tp].offset == 3
    assert (await admin.list_offsets({tp: 2000}))[tp][:2] == (1, 5000)
    assert (await admin.list_offsets({tp: MAX_TIMESTAMP}))[tp][:2] == (1, 5000)
    assert await admin.delete_records({tp: 2}) == {tp: 2}
    assert await admin.ends([tp]) == {tp: (2, 3)}
    sizes = {p: size for directory in await admin.log_dirs() for p, size in directory.partitions.items()}
    assert sizes[tp] > 0


async def test_a_group_is_described_moved_and_deleted(bootstrap: str, admin: Admin, topic: str, name: str) -> None:
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Consumer(bootstrap, group_id=name, client_id="me") as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment:
            await consumer.getmany(timeout_ms=200)
        await consumer.commit({tp: 0, other: 0})
        group = await admin.describe_group(name)
        assert (group.state, group.protocol, group.is_active) == ("Stable", "range", True)
        (member,) = group.members
        assert (member.client_id, len(member.partitions)) == ("me", 4)
        assert name in {listed.group_id for listed in await admin.list_groups()}
        with pytest.raises(BrokerError) as raised:
            await admin.alter_offsets(name, {tp: 0})
        assert raised.value.code == ErrorCode.UNKNOWN_MEMBER_ID
        with pytest.raises(BrokerError) as raised:
            await admin.delete_groups([name])
        assert raised.value.code == ErrorCode.NON_EMPTY_GROUP
    async with Producer(bootstrap) as producer:
        for _ in range(5):
            await producer.send(topic, b"v", partition=0)
    await admin.alter_offsets(name, {tp: 2})
    lag = await admin.group_lag(name)
    assert (lag[tp].lag, lag[other].lag) == (3, 0)
    await admin.delete_offsets(name, [other])
    assert set(await admin.committed(name)) == {tp}
    await admin.delete_groups([name])
    assert (await admin.describe_group(name)).state == "Dead"
    assert await admin.committed(name) == {}


async def test_what_can_not_be_moved_is_refused_partition_by_partition(admin: Admin, topic: str) -> None:
    (node,) = (await admin.describe_cluster()).brokers
    unknown, here = TopicPartition("there-is-none", 0), TopicPartition(topic, 1)
    stays = TopicPartition(topic, 0)
    refused = await admin.alter_partition_reassignments({unknown: [node.node_id], here: [4711], stays: [node.node_id]})
    assert {tp: error.code for tp, error in refused.items()} == {
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        here: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    assert "4711" in str(refused[here])
    assert await admin.list_partition_reassignments() == {}
    assert await admin.list_partition_reassignments([stays, unknown]) == {}
    cancelled = await admin.alter_partition_reassignments({stays: None})
    assert cancelled[stays].code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_more_partitions_than_fit_into_a_request_are_asked_for_in_several(admin: Admin, topic: str) -> None:
    wanted = {TopicPartition(topic, index): None for index in range(2500)}
    refused = await admin.alter_partition_reassignments(wanted)
    assert refused.keys() == wanted.keys()


async def test_an_election_that_is_not_needed_is_no_failure(admin: Admin, topic: str) -> None:
    here, unknown = TopicPartition(topic, 0), TopicPartition("there-is-none", 0)
    failed = await admin.elect_leaders([here, unknown])
    assert {tp: error.code for tp, error in failed.items()} == {unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await admin.elect_leaders(None) == {}
    assert await admin.elect_leaders([here], unclean=True) == {}


async def test_a_reassignment_has_what_is_wanted_and_what_was() -> None:
    change = Reassignment((4, 2, 1, 3), (4,), (1, 3))
    assert (change.target, change.original) == ((4, 2), (2, 1, 3))


async def test_single_settings_of_a_broker_are_asked_for_by_name(admin: Admin) -> None:
    (node,) = (await admin.describe_cluster()).brokers
    found = await admin.broker_configs(node.node_id, ["broker.draining", "no.such.thing"])
    assert {name: entry.value for name, entry in found.items()} == {"broker.draining": "false"}


async def test_sizes_can_be_asked_for_by_partition(admin: Admin, topic: str) -> None:
    (node,) = (await admin.describe_cluster()).brokers
    (directory,) = await admin.log_dirs([TopicPartition(topic, 2)], brokers=[node.node_id])
    assert list(directory.partitions) == [TopicPartition(topic, 2)]


async def test_client_quotas_are_set_found_and_removed(admin: Admin, name: str) -> None:
    user: dict[str, str | None] = {"user": name}
    everywhere: dict[str, str | None] = {"user": name, "client-id": None}
    quotas = {"producer_byte_rate": 1e12, "request_percentage": 150.5}
    await admin.alter_client_quotas([(user, quotas), (everywhere, {"producer_byte_rate": 2e12})])
    assert await admin.describe_client_quotas(user, strict=True) == [ClientQuota(user, quotas)]
    assert len(await admin.describe_client_quotas(user)) == 2
    (found,) = await admin.describe_client_quotas(user, any_name=["client-id"])
    assert found.entity == everywhere
    with pytest.raises(BrokerError, match=f'user "{name}".*greater than 0') as raised:
        await admin.alter_client_quotas([(user, {"request_percentage": -1})])
    assert raised.value.code == ErrorCode.INVALID_REQUEST
    await admin.alter_client_quotas([(user, {"consumer_byte_rate": 1})], validate_only=True)
    await admin.alter_client_quotas([(user, dict.fromkeys(quotas)), (everywhere, {"producer_byte_rate": None})])
    assert await admin.describe_client_quotas(user) == []
