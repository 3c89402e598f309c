"""The names of Kafka's internal topics: no request creates them or writes to them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from replica_kit import batch_of, until
from wire_in_memory import opened_wire

from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.control.results import TopicRequest
from penstock.state import keys
from penstock.state.records import PartitionRecord, TopicNameRecord, TopicRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.messages.delete_topics import DeleteTopicsRequest
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

NAMES = sorted(INTERNAL_TOPICS)


async def make_as_earlier_releases_did(store, view, name: str) -> None:
    topic_id = uuid4()
    puts = {
        keys.topic(topic_id): TopicRecord(name=name, topic_id=topic_id, partition_count=1),
        keys.partition(topic_id, 0): PartitionRecord(replicas=[0], leader=0, isr=[0]),
        keys.topic_name(name): TopicNameRecord(topic_id=topic_id),
    }
    await store.txn((), [PutOp(key, encode(record)) for key, record in puts.items()])
    await until(lambda: name in view.topics)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_creation_is_refused(broker, name: str, validate_only: bool) -> None:
    topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in (name, name + "_")]
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    refused, made = (await broker.ask(request, 7)).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert f"Creation of internal topic {name} is prohibited" in refused.error_message
    assert made.error_code == 0


@pytest.mark.parametrize("version", range(14))
async def test_asking_for_it_never_makes_it(broker, version: int) -> None:
    topics = [MetadataRequestTopic(name=name) for name in [*NAMES, "other"]]
    for create in (True, False) if version >= 4 else (True,):
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        answer = {t.name: t.error_code for t in (await broker.ask(request, version)).topics}
        expected = ErrorCode.INVALID_TOPIC_EXCEPTION if create else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer == {**dict.fromkeys(NAMES, expected), "other": 0}
    assert set(broker.view.topics) == {"other"}
    for name in NAMES:
        resource = DescribeConfigsResource(resource_type=2, resource_name=name)
        (result,) = (await broker.ask(DescribeConfigsRequest(resources=[resource]), 4)).results
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("settings", [{"auto.create.topics.enable": "false"}])
async def test_it_is_unknown_where_topics_are_not_made_by_asking(broker) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES])
    answer = {t.error_code for t in (await broker.ask(request, 12)).topics}
    assert answer == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", range(3, 13))
async def test_a_record_for_it_is_refused(tmp_path: Path, version: int) -> None:
    async with opened_wire(tmp_path) as wire:
        await wire.path.create()
        answer = await wire.produced(version, {("t", 0): batch_of(), **{(name, 0): batch_of() for name in NAMES}})
        codes = {t.name: t.partition_responses[0].error_code for t in answer.responses}
        assert codes == {"t": 0, **dict.fromkeys(NAMES, ErrorCode.INVALID_TOPIC_EXCEPTION)}


@pytest.mark.parametrize("version", [9, 13])
async def test_one_that_an_earlier_release_made_takes_no_records_and_is_told_as_internal(
    tmp_path: Path, version: int
) -> None:
    async with opened_wire(tmp_path) as wire:
        await make_as_earlier_releases_did(wire.path.topics.store, wire.path.view, "__consumer_offsets")
        assert wire.path.view.topics["__consumer_offsets"].is_internal
        answer = await wire.produced(version, {("__consumer_offsets", 0): batch_of()})
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "belongs to Kafka itself" in partition.error_message


async def test_one_that_an_earlier_release_made_can_be_read_about_and_deleted(broker) -> None:
    name = "__consumer_offsets"
    await make_as_earlier_releases_did(broker.store, broker.view, name)
    (topic,) = (await broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)).topics
    assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 1)
    (deleted,) = (await broker.ask(DeleteTopicsRequest(topic_names=[name]), 5)).responses
    assert deleted.error_code == 0
    assert name not in broker.view.topics


async def test_auto_creation_of_it_is_refused_too(broker) -> None:
    assert (await broker.admin.auto_create("__transaction_state")).error is ErrorCode.INVALID_REQUEST
    (outcome,) = await broker.admin.create([TopicRequest("__transaction_states", 1, 1)])
    assert outcome.error is ErrorCode.NONE
