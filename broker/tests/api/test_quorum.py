"""DescribeQuorum at every version: the controller as a quorum with one voter."""

from __future__ import annotations

import pytest

from penstock.state import keys
from penstock.state.records import ControllerRecord, encode
from penstock.state.store import DeleteOp, PutOp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData

VERSIONS = range(3)
METADATA = "__cluster_metadata"


async def describe(broker, version: int = 2, **topics: list[int]):
    asked = [TopicData(topic_name=t, partitions=[PartitionData(i) for i in indexes]) for t, indexes in topics.items()]
    return await broker.ask(DescribeQuorumRequest(topics=asked), version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_controller_leads_a_quorum_of_one_voter(broker, version: int) -> None:
    await broker.store.txn([], [PutOp(keys.CONTROLLER, encode(ControllerRecord(broker_id=0, epoch=7)))])
    response = await describe(broker, version, **{METADATA: [0]})
    assert (response.error_code, response.error_message) == (0, None)
    ((partition,),) = [topic.partitions for topic in response.topics]
    assert response.topics[0].topic_name == METADATA
    assert (partition.partition_index, partition.error_code, partition.error_message) == (0, 0, None)
    assert (partition.leader_id, partition.leader_epoch, partition.observers) == (0, 7, [])
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset, voter.last_fetch_timestamp) == (0, partition.high_watermark, -1)
    assert voter.last_caught_up_timestamp == (1_700_000_000_000 if version >= 1 else -1)


async def test_the_high_watermark_is_the_revision_of_the_store_and_grows_with_it(broker) -> None:
    written = (await broker.store.txn([], [PutOp(keys.PRODUCER_IDS, b"{}")])).revision
    (before,) = (await describe(broker, **{METADATA: [0]})).topics[0].partitions
    assert before.high_watermark == written
    await broker.store.txn([], [PutOp(keys.PRODUCER_IDS, b"{ }")])
    (after,) = (await describe(broker, **{METADATA: [0]})).topics[0].partitions
    assert after.high_watermark == written + 1


async def test_the_addresses_of_the_controller_are_told_from_version_2_on(broker) -> None:
    (node,) = (await describe(broker, 2, **{METADATA: [0]})).nodes
    assert node.node_id == 0
    assert [(e.name, e.host, e.port) for e in node.listeners] == [
        ("INSIDE", "10.0.0.1", 9092),
        ("OUTSIDE", "example.org", 19092),
    ]
    assert (await describe(broker, 1, **{METADATA: [0]})).nodes == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_other_partition_has_a_quorum(broker, version: int) -> None:
    response = await describe(broker, version, **{METADATA: [1, 0], "t": [0]})
    assert [[(p.partition_index, p.error_code) for p in topic.partitions] for topic in response.topics] == [
        [(1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, 0)],
        [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
    ]
    assert bool(response.topics[1].partitions[0].error_message) == (version >= 2)


async def test_without_a_controller_there_is_no_leader(broker) -> None:
    await broker.store.txn([], [DeleteOp(keys.CONTROLLER)])
    response = await describe(broker, **{METADATA: [0]})
    (partition,) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (partition.current_voters, response.nodes) == ([], [])


async def test_a_record_that_cannot_be_read_is_told(broker) -> None:
    await broker.store.txn([], [PutOp(keys.CONTROLLER, b"?")])
    response = await describe(broker, **{METADATA: [0]})
    assert (response.error_code, response.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert keys.CONTROLLER in response.error_message


def test_failures_are_told(broker) -> None:
    assert broker.ask.failed(DescribeQuorumRequest(), 2, -1).error_code == -1
