"""DescribeCluster, DescribeTopicPartitions, ElectLeaders, reassignments and log directories at every version."""

from __future__ import annotations

import pytest

from penstock.api.log_dirs import LogDirState
from penstock.control.results import TopicRequest
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_topic_partitions as partitions
from penstock.wire.messages import elect_leaders as elect
from penstock.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.wire.messages.describe_cluster import DescribeClusterRequest
from penstock.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from penstock.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest


async def created(broker, **topics: int) -> None:
    await broker.admin.create([TopicRequest(name, count, 1) for name, count in topics.items()])


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_described_with_the_addresses_of_the_listener(broker, version: int) -> None:
    response = await broker.ask(DescribeClusterRequest(), version, listener="OUTSIDE")
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, broker.view.cluster_id, 0)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (0, "example.org", 19092, "rack-1")
    assert response.cluster_authorized_operations == -(1 << 31)
    allowed = await broker.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert allowed.cluster_authorized_operations > 0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("kind", "error"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
async def test_a_broker_is_no_endpoint_of_another_type(broker, version: int, kind: int, error: ErrorCode) -> None:
    response = await broker.ask(DescribeClusterRequest(endpoint_type=kind), version)
    assert response.error_code == error
    assert response.error_message


async def pages(broker, limit: int, *names: str) -> list[list[tuple[str, list[int]]]]:
    """Return all pages, following the cursor as a client does."""
    found, cursor = [], None
    while True:
        request = partitions.DescribeTopicPartitionsRequest(
            topics=[partitions.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        response = await broker.ask(request, 0)
        found.append([(t.name, [p.partition_index for p in t.partitions]) for t in response.topics])
        cursor = response.next_cursor
        if cursor is None:
            return found
        assert len(found) < 100, "the cursor goes round"


async def test_partitions_come_in_pages_in_the_order_of_the_names(broker) -> None:
    await created(broker, b=3, a=2, c=1)
    assert await pages(broker, 2000) == [[("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]]
    assert await pages(broker, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]]
    assert await pages(broker, 1, "c", "a") == [[("a", [0])], [("a", [1])], [("c", [0])]]
    assert await pages(broker, 0, "c") == [[("c", [0])]]


async def test_a_page_is_bounded_whatever_is_asked_for(broker) -> None:
    await created(broker, t=2_001)
    assert [len(indexes) for page in await pages(broker, 1 << 30) for _, indexes in page] == [2000, 1]


async def test_partitions_are_described_with_leaders_and_epochs(broker) -> None:
    await created(broker, t=1)
    request = partitions.DescribeTopicPartitionsRequest(topics=[partitions.TopicRequest(name="t")])
    (topic,) = (await broker.ask(request, 0)).topics
    assert (topic.error_code, topic.topic_id) == (0, broker.view.topics["t"].topic_id)
    (partition,) = topic.partitions
    assert (partition.leader_id, partition.leader_epoch) == (0, 0)
    assert partition.replica_nodes == partition.isr_nodes == [0]
    assert partition.eligible_leader_replicas == partition.last_known_elr == partition.offline_replicas == []


async def test_topics_that_are_not_there_are_named_among_the_others(broker) -> None:
    await created(broker, b=1)
    names = ["b", "absent", "x/y"]
    request = partitions.DescribeTopicPartitionsRequest(topics=[partitions.TopicRequest(name=n) for n in names])
    response = await broker.ask(request, 0)
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", 0),
        ("x/y", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert len({t.topic_authorized_operations for t in response.topics}) == 1


async def test_a_cursor_past_everything_ends(broker) -> None:
    await created(broker, a=1)
    for cursor in (partitions.Cursor(topic_name="z", partition_index=0), partitions.Cursor("a", 5)):
        response = await broker.ask(partitions.DescribeTopicPartitionsRequest(cursor=cursor), 0)
        assert not [p for t in response.topics for p in t.partitions]
        assert response.next_cursor is None
    negative = partitions.DescribeTopicPartitionsRequest(cursor=partitions.Cursor("a", -5))
    assert len((await broker.ask(negative, 0)).topics[0].partitions) == 1


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_needed_with_one_replica(broker, version: int) -> None:
    await created(broker, t=2)
    asked = [elect.TopicPartitions(topic="t", partitions=[1, 7]), elect.TopicPartitions(topic="absent", partitions=[0])]
    response = await broker.ask(elect.ElectLeadersRequest(topic_partitions=asked), version)
    assert response.error_code == 0
    assert [
        (r.topic, [(p.partition_id, p.error_code) for p in r.partition_result])
        for r in response.replica_election_results
    ] == [
        ("t", [(1, ErrorCode.ELECTION_NOT_NEEDED), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        ("absent", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
    ]
    response = await broker.ask(elect.ElectLeadersRequest(topic_partitions=None), version)
    assert response.replica_election_results == []


async def test_an_unknown_kind_of_election_is_refused(broker) -> None:
    asked = [elect.TopicPartitions(topic="t", partitions=[1])]
    response = await broker.ask(elect.ElectLeadersRequest(election_type=5, topic_partitions=asked), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2))
async def test_replicas_can_stay_and_go_nowhere_else(broker, version: int) -> None:
    await created(broker, t=3)
    asked = [
        alter.ReassignablePartition(partition_index=0, replicas=[0]),
        alter.ReassignablePartition(partition_index=1, replicas=[1]),
        alter.ReassignablePartition(partition_index=2, replicas=None),
        alter.ReassignablePartition(partition_index=3, replicas=[0]),
    ]
    request = alter.AlterPartitionReassignmentsRequest(topics=[alter.ReassignableTopic(name="t", partitions=asked)])
    response = await broker.ask(request, version)
    (topic,) = response.responses
    assert response.error_code == 0
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
        (0, 0),
        (1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (2, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [p.replicas for p in broker.view.topics["t"].partitions] == [[0]] * 3


async def test_nothing_is_being_reassigned(broker) -> None:
    response = await broker.ask(ListPartitionReassignmentsRequest(), 0)
    assert (response.error_code, response.topics) == (0, [])


@pytest.mark.parametrize("version", range(1, 6))
async def test_log_directories_are_described_with_the_sizes_of_their_logs(broker, version: int) -> None:
    await created(broker, a=2, b=1)
    a, b = broker.view.topics["a"].topic_id, broker.view.topics["b"].topic_id
    broker.disk.sizes = {(a, 0): 10, (a, 1): 0, (b, 0): 7}
    (result,) = (await broker.ask(DescribeLogDirsRequest(topics=None), version)).results
    assert (result.error_code, result.log_dir) == (0, "/data")
    assert (result.total_bytes, result.usable_bytes) == ((1000, 400) if version >= 4 else (-1, -1))
    found = {t.name: [(p.partition_index, p.partition_size) for p in t.partitions] for t in result.topics}
    assert found == {"a": [(0, 10), (1, 0)], "b": [(0, 7)]}


@pytest.mark.parametrize("version", range(1, 6))
async def test_single_partitions_can_be_asked_for(broker, version: int) -> None:
    await created(broker, a=2, b=1)
    broker.disk.sizes = {(t.topic_id, p.index): 5 for t in broker.view.topics.values() for p in t.partitions}
    asked = [
        DescribableLogDirTopic(topic="a", partitions=[1, 9, -1, 1]),
        DescribableLogDirTopic(topic="absent", partitions=[0]),
    ]
    (result,) = (await broker.ask(DescribeLogDirsRequest(topics=asked), version)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in result.topics] == [("a", [1])]


async def test_a_log_directory_that_has_stopped_says_so(broker) -> None:
    broker.disk.states = [LogDirState("/bad", True, 0, 0), LogDirState("/good", False, 1, 1)]
    response = await broker.ask(DescribeLogDirsRequest(topics=None), 5)
    assert [(r.log_dir, r.error_code) for r in response.results] == [
        ("/bad", ErrorCode.KAFKA_STORAGE_ERROR),
        ("/good", 0),
    ]


def move_to(path: str, **topics: list[int]) -> AlterReplicaLogDir:
    return AlterReplicaLogDir(
        path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=indexes) for name, indexes in topics.items()]
    )


async def moved(broker, version: int, *dirs: AlterReplicaLogDir) -> dict[tuple[str, int], int]:
    response = await broker.ask(AlterReplicaLogDirsRequest(dirs=list(dirs)), version)
    found = [((t.topic_name, p.partition_index), p.error_code) for t in response.results for p in t.partitions]
    assert len(dict(found)) == len(found), "a partition is answered once"
    return dict(found)


@pytest.mark.parametrize("version", [1, 2])
async def test_moving_a_partition_to_where_it_lies_succeeds_and_there_is_nowhere_else(broker, version: int) -> None:
    await created(broker, a=2, b=1)
    broker.disk.sizes = {(t.topic_id, p.index): 5 for t in broker.view.topics.values() for p in t.partitions}
    outcomes = await moved(broker, version, move_to("/data", a=[0]), move_to("/other", a=[1], b=[0], absent=[0]))
    assert outcomes == {
        ("a", 0): 0,
        ("a", 1): ErrorCode.LOG_DIR_NOT_FOUND,
        ("b", 0): ErrorCode.LOG_DIR_NOT_FOUND,
        ("absent", 0): ErrorCode.LOG_DIR_NOT_FOUND,
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_partitions_that_are_not_there_cannot_be_moved(broker, version: int) -> None:
    await created(broker, a=2)
    broker.disk.sizes = {(broker.view.topics["a"].topic_id, 0): 5}
    assert await moved(broker, version, move_to("/data", a=[0, 1, 2, -1], absent=[0])) == {
        ("a", 0): 0,
        ("a", 1): ErrorCode.REPLICA_NOT_AVAILABLE,
        ("a", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("a", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_nothing_moves_to_a_log_directory_that_has_stopped(broker) -> None:
    await created(broker, a=1)
    broker.disk.states = [LogDirState("/data", True, 0, 0)]
    assert await moved(broker, 2, move_to("/data", a=[0])) == {("a", 0): ErrorCode.KAFKA_STORAGE_ERROR}


async def test_of_two_directories_for_one_partition_the_last_counts(broker) -> None:
    await created(broker, a=1)
    broker.disk.sizes = {(broker.view.topics["a"].topic_id, 0): 5}
    assert await moved(broker, 2, move_to("/other", a=[0, 0]), move_to("/data", a=[0])) == {("a", 0): 0}
    assert await moved(broker, 2) == {}


def test_failures_are_told(broker) -> None:
    assert broker.ask.failed(DescribeClusterRequest(), 2, -1).error_code == -1
    named = partitions.DescribeTopicPartitionsRequest(topics=[partitions.TopicRequest(name="t")])
    assert [t.error_code for t in broker.ask.failed(named, 0, -1).topics] == [-1]
    elections = elect.ElectLeadersRequest(topic_partitions=[elect.TopicPartitions(topic="t", partitions=[0])])
    assert broker.ask.failed(elections, 2, -1).error_code == -1
    assert broker.ask.failed(alter.AlterPartitionReassignmentsRequest(), 1, -1).error_code == -1
    assert broker.ask.failed(ListPartitionReassignmentsRequest(), 0, -1).error_code == -1
    assert broker.ask.failed(DescribeLogDirsRequest(), 5, -1).error_code == -1
    moves = broker.ask.failed(AlterReplicaLogDirsRequest(dirs=[move_to("/data", a=[0, 1])]), 2, -1)
    assert [(t.topic_name, p.partition_index, p.error_code) for t in moves.results for p in t.partitions] == [
        ("a", 0, -1),
        ("a", 1, -1),
    ]
