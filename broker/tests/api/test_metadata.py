"""Metadata at every version."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from penstock.api.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from penstock.control.results import TopicRequest
from penstock.state import keys
from penstock.state.records import BrokerRecord, PartitionRecord, decode, encode
from penstock.state.store import DeleteOp, PutOp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.primitives import ZERO_UUID

VERSIONS = range(14)
NO_OPERATIONS = -(1 << 31)


def asking(*names: str, create: bool = True, **more: bool) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **more)


async def created(broker, *names: str, partitions: int = 2) -> None:
    await broker.admin.create([TopicRequest(name, partitions, 1) for name in names])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_is_described_with_its_partitions_and_the_brokers(broker, version: int) -> None:
    await created(broker, "t")
    response = await broker.ask(asking("t"), version)
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (0, "10.0.0.1", 9092)
    (topic,) = response.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (ErrorCode.NONE, "t", False)
    assert [(p.error_code, p.partition_index, p.leader_id) for p in topic.partitions] == [(0, 0, 0), (0, 1, 0)]
    assert all(p.replica_nodes == p.isr_nodes == [0] and not p.offline_replicas for p in topic.partitions)
    assert node.rack == ("rack-1" if version >= 1 else None)
    assert response.controller_id == (0 if version >= 1 else -1)
    assert response.cluster_id == (broker.view.cluster_id if version >= 2 else None)
    assert topic.topic_id == (broker.view.topics["t"].topic_id if version >= 10 else ZERO_UUID)
    assert {p.leader_epoch for p in topic.partitions} == {0 if version >= 7 else -1}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_between_two_controllers_this_broker_is_named_as_every_broker_takes_an_administrators_requests(
    broker, version: int
) -> None:
    broker.view.controller_id = -1
    assert (await broker.ask(asking(), version)).controller_id == broker.config.node_id


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_topics_are_asked_for_with_null_and_in_version_0_with_an_empty_list(broker, version: int) -> None:
    await created(broker, "a", "b")
    response = await broker.ask(MetadataRequest(topics=[] if version == 0 else None), version)
    assert {t.name for t in response.topics} == {"a", "b"}
    if version > 0:
        response = await broker.ask(MetadataRequest(topics=[]), version)
        assert response.topics == []
        assert len(response.brokers) == 1


async def test_each_listener_is_told_its_own_addresses(broker) -> None:
    response = await broker.ask(asking(), 12, listener="OUTSIDE")
    assert [(b.host, b.port) for b in response.brokers] == [("example.org", 19092)]
    assert (await broker.ask(asking(), 12, listener="ABSENT")).brokers == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_that_is_not_there_is_created_by_asking(broker, version: int) -> None:
    response = await broker.ask(asking("new"), version)
    assert [(t.name, t.error_code, len(t.partitions)) for t in response.topics] == [("new", 0, 1)]
    assert "new" in broker.view.topics


@pytest.mark.parametrize("version", range(4, 14))
async def test_a_client_can_ask_without_creating(broker, version: int) -> None:
    response = await broker.ask(asking("new", create=False), version)
    assert [(t.name, t.error_code) for t in response.topics] == [("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert not broker.view.topics


@pytest.mark.parametrize("settings", [{"auto.create.topics.enable": "false"}])
async def test_creating_by_asking_can_be_switched_off(broker) -> None:
    response = await broker.ask(asking("new"), 9)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not broker.view.topics


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", ["a/b", "", "x" * 300])
async def test_a_name_that_cannot_be_is_said_to_be_wrong(broker, name: str, create: bool) -> None:
    response = await broker.ask(asking(name, create=create), 12)
    (topic,) = response.topics
    assert (topic.name, topic.error_code) == (name, ErrorCode.INVALID_TOPIC_EXCEPTION)


@pytest.mark.parametrize("settings", [{"max.partitions": "1"}])
async def test_why_a_topic_could_not_be_created_is_told(broker) -> None:
    response = await broker.ask(asking("a"), 12)
    assert response.topics[0].error_code == 0
    response = await broker.ask(asking("a", "b"), 12)
    assert [t.error_code for t in response.topics] == [0, ErrorCode.INVALID_PARTITIONS]


async def test_a_topic_asked_for_twice_is_answered_once(broker) -> None:
    response = await broker.ask(asking("a", "a", "b", "a"), 12)
    assert [t.name for t in response.topics] == ["a", "b"]


@pytest.mark.parametrize("name", [None, ""], ids=["null", "empty"])
@pytest.mark.parametrize("version", range(10, 14))
async def test_topics_can_be_asked_for_by_id_with_a_null_or_an_empty_name(
    broker, version: int, name: str | None
) -> None:
    await created(broker, "t")
    topic_id, other = broker.view.topics["t"].topic_id, uuid4()
    topics = [MetadataRequestTopic(topic_id=each, name=name) for each in (topic_id, other)]
    known, unknown = (await broker.ask(MetadataRequest(topics=topics), version)).topics
    assert (known.error_code, known.name, known.topic_id) == (0, "t", topic_id)
    assert (unknown.error_code, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, other)
    assert unknown.name == (None if version >= 12 else "")


async def test_answers_follow_every_change(broker) -> None:
    await created(broker, "t", "other")
    for version in (1, 12):
        assert len((await broker.ask(MetadataRequest(topics=None), version)).topics) == 2
    await broker.admin.create_partitions("t", 4)
    both = (await broker.ask(MetadataRequest(topics=None), 12)).topics
    assert {t.name: len(t.partitions) for t in both} == {"t": 4, "other": 2}
    old_id = broker.view.topics["t"].topic_id
    await broker.admin.delete(broker.view.topics["t"])
    assert [t.name for t in (await broker.ask(MetadataRequest(topics=None), 12)).topics] == ["other"]
    await created(broker, "t")
    (topic,) = (await broker.ask(asking("t"), 12)).topics
    assert topic.topic_id not in (old_id, ZERO_UUID)
    assert len(topic.partitions) == 2


async def test_a_new_leader_epoch_is_told(broker) -> None:
    await created(broker, "t")
    await broker.ask(MetadataRequest(topics=None), 12)
    topic_id = broker.view.topics["t"].topic_id
    value = encode(PartitionRecord(replicas=[0], leader=0, leader_epoch=5, isr=[0]))
    result = await broker.store.txn([], [PutOp(keys.partition(topic_id, 1), value)])
    await broker.admin.watcher.applied(result.revision)
    for request in (MetadataRequest(topics=None), asking("t")):
        (topic,) = (await broker.ask(request, 12)).topics
        assert [p.leader_epoch for p in topic.partitions] == [0, 5]


async def test_a_partition_whose_leader_is_away_says_so(broker) -> None:
    await created(broker, "t")
    await broker.ask(MetadataRequest(topics=None), 12)
    result = await broker.store.txn([], [DeleteOp(keys.broker(0))])
    await broker.admin.watcher.applied(result.revision)
    (topic,) = (await broker.ask(MetadataRequest(topics=None), 12)).topics
    (partition, _) = topic.partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert partition.offline_replicas == [0]


async def test_a_broker_that_is_gone_is_named_by_nothing_and_named_again_once_it_registers(broker) -> None:
    await created(broker, "t")
    entry = await broker.store.get(keys.broker(0))
    await broker.admin.watcher.applied((await broker.store.txn([], [DeleteOp(keys.broker(0))])).revision)
    response = await broker.ask(asking("t"), 12)
    assert response.brokers == []
    assert {p.leader_id for p in response.topics[0].partitions} == {-1}
    result = await broker.store.txn([], [PutOp(keys.broker(0), entry.value)])
    await broker.admin.watcher.applied(result.revision)
    assert len((await broker.ask(asking("t"), 12)).brokers) == 1


async def test_a_controller_that_is_gone_is_not_named_to_administrators(broker) -> None:
    entry = await broker.store.get(keys.broker(0))
    record = msgspec.structs.replace(decode(BrokerRecord, entry.key, entry.value), broker_id=1)
    operations = [PutOp(keys.broker(1), encode(record)), DeleteOp(keys.broker(0))]
    await broker.admin.watcher.applied((await broker.store.txn([], operations)).revision)
    assert (await broker.ask(MetadataRequest(topics=[]), 12)).controller_id == 1


async def test_a_topic_asked_for_before_a_broker_has_registered_is_asked_for_again(broker) -> None:
    result = await broker.store.txn([], [DeleteOp(keys.broker(0))])
    await broker.admin.watcher.applied(result.revision)
    response = await broker.ask(asking("new"), 12)
    assert response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert not broker.view.topics


@pytest.mark.parametrize("version", range(8, 14))
async def test_what_may_be_done_is_told_when_asked_for(broker, version: int) -> None:
    await created(broker, "t")
    plain = await broker.ask(asking("t"), version)
    assert plain.topics[0].topic_authorized_operations == NO_OPERATIONS
    request = asking("t", include_topic_authorized_operations=True, include_cluster_authorized_operations=version <= 10)
    response = await broker.ask(request, version)
    assert response.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
    assert response.cluster_authorized_operations == (CLUSTER_OPERATIONS if version <= 10 else NO_OPERATIONS)
    again = await broker.ask(asking("t"), version)
    assert again.topics[0].topic_authorized_operations == NO_OPERATIONS


@pytest.mark.parametrize("version", range(8, 14))
async def test_what_may_be_done_is_told_of_a_name_without_a_topic_too(broker, version: int) -> None:
    request = asking("nowhere", create=False, include_topic_authorized_operations=True)
    (topic,) = (await broker.ask(request, version)).topics
    assert (topic.error_code, topic.topic_authorized_operations) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TOPIC_OPERATIONS,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failure_is_told_for_each_topic(broker, version: int) -> None:
    response = broker.ask.failed(asking("a", "b"), version, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert [(t.name, t.error_code) for t in response.topics] == [("a", -1), ("b", -1)]
    assert broker.ask.failed(MetadataRequest(topics=None), version, -1).topics == []
