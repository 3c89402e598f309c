"""CreateTopics, DeleteTopics and CreatePartitions at every version."""

from __future__ import annotations

from uuid import uuid4

import pytest

from penstock.config.definition import SettingSource
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.primitives import ZERO_UUID

CREATE, DELETE, GROW = range(2, 8), range(1, 7), range(4)


def new(name: str, partitions: int = 1, factor: int = 1, **more) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


async def create(broker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False):
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return (await broker.ask(request, version)).topics


@pytest.mark.parametrize("version", CREATE)
async def test_a_topic_is_created(broker, version: int) -> None:
    (result,) = await create(broker, new("t", 3), version=version)
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    topic = broker.view.topics["t"]
    assert len(topic.partitions) == 3
    assert result.num_partitions == (3 if version >= 5 else -1)
    assert result.replication_factor == (1 if version >= 5 else -1)
    assert result.topic_id == (topic.topic_id if version >= 7 else ZERO_UUID)


@pytest.mark.parametrize("version", range(5, 8))
async def test_the_new_topics_settings_are_told_with_their_sources(broker, version: int) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value="99")]
    (result,) = await create(broker, new("t", configs=configs), version=version)
    told = {c.name: (c.value, c.config_source) for c in result.configs}
    assert told["retention.ms"] == ("99", SettingSource.TOPIC)
    assert told["flush.messages"] == ("1", SettingSource.DEFAULT)
    assert len(told) > 20


@pytest.mark.parametrize("version", CREATE)
async def test_refusals_are_told_by_topic(broker, version: int) -> None:
    await create(broker, new("there"))
    configs = [CreatableTopicConfig(name="retention.ms", value="x")]
    results = await create(
        broker, new("there"), new("a/b"), new("c", 0), new("d", 1, 3), new("e", configs=configs), version=version
    )
    assert [r.error_code for r in results] == [
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_CONFIG,
    ]
    assert all(r.error_message for r in results)
    assert set(broker.view.topics) == {"there"}


@pytest.mark.parametrize("version", range(4, 8))
@pytest.mark.parametrize("settings", [{"num.partitions": "5"}])
async def test_numbers_can_be_left_to_the_broker(broker, version: int) -> None:
    (result,) = await create(broker, new("t", -1, -1), version=version)
    assert result.error_code == 0
    assert len(broker.view.topics["t"].partitions) == 5


@pytest.mark.parametrize("version", CREATE)
async def test_replicas_can_be_assigned_by_hand(broker, version: int) -> None:
    by_hand = [CreatableReplicaAssignment(partition_index=i, broker_ids=[0]) for i in range(2)]
    (result,) = await create(broker, new("t", -1, -1, assignments=by_hand), version=version)
    assert result.error_code == 0
    assert len(broker.view.topics["t"].partitions) == 2


async def test_a_partition_assigned_twice_is_refused(broker) -> None:
    by_hand = [CreatableReplicaAssignment(partition_index=0, broker_ids=[0]) for _ in range(2)]
    (result,) = await create(broker, new("t", -1, -1, assignments=by_hand))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("version", CREATE)
async def test_creating_can_be_tried(broker, version: int) -> None:
    (result,) = await create(broker, new("t"), version=version, validate_only=True)
    assert result.error_code == 0
    assert not broker.view.topics


@pytest.mark.parametrize("version", DELETE)
async def test_topics_are_deleted_by_name(broker, version: int) -> None:
    await create(broker, new("a"), new("b"), new("c"))
    names = ["a", "absent", "b"]
    states = [DeleteTopicState(name=name) for name in names]
    response = await broker.ask(DeleteTopicsRequest(topic_names=names, topics=states), version)
    assert [(r.name, r.error_code) for r in response.responses] == [
        ("a", 0),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", 0),
    ]
    assert set(broker.view.topics) == {"c"}


async def test_topics_are_deleted_by_id(broker) -> None:
    await create(broker, new("a"), new("b"))
    topic_id, absent = broker.view.topics["a"].topic_id, uuid4()
    states = [
        DeleteTopicState(topic_id=topic_id),
        DeleteTopicState(topic_id=absent),
        DeleteTopicState(name="b", topic_id=topic_id),
    ]
    response = await broker.ask(DeleteTopicsRequest(topics=states), 6)
    assert [(r.name, r.topic_id, r.error_code) for r in response.responses] == [
        ("a", topic_id, 0),
        (None, absent, ErrorCode.UNKNOWN_TOPIC_ID),
        ("b", topic_id, ErrorCode.INVALID_REQUEST),
    ]
    assert set(broker.view.topics) == {"b"}


@pytest.mark.parametrize("version", DELETE)
@pytest.mark.parametrize("settings", [{"delete.topic.enable": "false"}])
async def test_deletion_that_is_switched_off_is_said_so_in_words_that_the_client_knows(broker, version: int) -> None:
    await create(broker, new("a"))
    request = DeleteTopicsRequest(topic_names=["a"], topics=[DeleteTopicState(name="a")])
    (result,) = (await broker.ask(request, version)).responses
    assert result.error_code == (ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("version", GROW)
async def test_partitions_are_added(broker, version: int) -> None:
    await create(broker, new("a"), new("b"), new("c"))
    topics = [
        CreatePartitionsTopic(name="a", count=3),
        CreatePartitionsTopic(name="b", count=2, assignments=[CreatePartitionsAssignment(broker_ids=[0])]),
        CreatePartitionsTopic(name="c", count=1),
        CreatePartitionsTopic(name="absent", count=2),
    ]
    response = await broker.ask(CreatePartitionsRequest(topics=topics), version)
    assert [(r.name, r.error_code) for r in response.results] == [
        ("a", 0),
        ("b", 0),
        ("c", ErrorCode.INVALID_PARTITIONS),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert {name: len(t.partitions) for name, t in broker.view.topics.items()} == {"a": 3, "b": 2, "c": 1}


@pytest.mark.parametrize("version", GROW)
async def test_adding_partitions_can_be_tried(broker, version: int) -> None:
    await create(broker, new("a"))
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=3)], validate_only=True)
    (result,) = (await broker.ask(request, version)).results
    assert result.error_code == 0
    assert len(broker.view.topics["a"].partitions) == 1


async def test_a_topic_named_twice_grows_not_at_all(broker) -> None:
    await create(broker, new("a"))
    topics = [CreatePartitionsTopic(name="a", count=count) for count in (2, 3)]
    response = await broker.ask(CreatePartitionsRequest(topics=topics), 3)
    assert [r.error_code for r in response.results] == [ErrorCode.INVALID_REQUEST] * 2
    assert len(broker.view.topics["a"].partitions) == 1


@pytest.mark.parametrize("version", CREATE)
def test_a_failed_creation_is_told_for_each_topic(broker, version: int) -> None:
    response = broker.ask.failed(CreateTopicsRequest(topics=[new("a"), new("b")]), version, -1)
    assert [(t.name, t.error_code) for t in response.topics] == [("a", -1), ("b", -1)]


@pytest.mark.parametrize("version", DELETE)
def test_a_failed_deletion_is_told_for_each_topic(broker, version: int) -> None:
    by_name = (
        DeleteTopicsRequest(topic_names=["a"])
        if version < 6
        else DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])
    )
    response = broker.ask.failed(by_name, version, -1)
    assert [(t.name, t.error_code) for t in response.responses] == [("a", -1)]


@pytest.mark.parametrize("version", GROW)
def test_a_failed_growth_is_told_for_each_topic(broker, version: int) -> None:
    response = broker.ask.failed(CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a")]), version, -1)
    assert [(t.name, t.error_code) for t in response.results] == [("a", -1)]


@pytest.mark.parametrize("version", range(5, 8))
async def test_a_refused_topic_has_an_empty_list_of_settings(broker, version: int) -> None:
    (result,) = await create(broker, new("a b"), version=version)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.configs == []


async def test_a_deletion_that_names_no_topic_is_an_invalid_request(broker) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None)])
    (result,) = (await broker.ask(request, 6)).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
