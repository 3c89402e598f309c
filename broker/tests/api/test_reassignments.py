"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders in a cluster, at every version."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.api.reassignments import MAX_PARTITIONS, ReassignmentsApi
from penstock.control.controller.reassignment_requests import ReassignmentRequests
from penstock.control.results import TopicRequest
from penstock.runtime.clock import SystemClock
from penstock.state import keys
from penstock.state.records import BrokerRecord, encode
from penstock.state.store import PutOp
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import elect_leaders as elect
from penstock.wire.messages import list_partition_reassignments as listing
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource


@pytest.fixture
async def cluster(broker):
    """Return brokers 0, 1 and 2 without a controller; requests go to broker 0 and stay recorded."""
    for number in (1, 2):
        record = BrokerRecord(broker_id=number, incarnation=UUID(int=70 + number), endpoints=[])
        await broker.store.txn([], [PutOp(keys.broker(number), encode(record))])
    watcher: Watcher = broker.admin.watcher
    result = await broker.store.txn([], [PutOp(keys.METADATA + "done", b"{}")])
    await watcher.applied(result.revision)
    broker.admin.is_clustered = True
    wishes = ReassignmentRequests(broker.store, broker.view, watcher, SystemClock(), broker.config)
    routes = ReassignmentsApi(broker.view, wishes).routes()
    broker.ask.routes.update({route.request: route for route in routes})
    await broker.admin.create([TopicRequest("t", assignment={0: [0, 1], 1: [1, 2]})])
    return broker


def wish(topic: str, **replicas: list[int] | None) -> alter.ReassignableTopic:
    """Return a requested reassignment; `p0=[1, 2]` names the replicas of partition 0."""
    partitions = [
        alter.ReassignablePartition(partition_index=int(name[1:]), replicas=wanted) for name, wanted in replicas.items()
    ]
    return alter.ReassignableTopic(name=topic, partitions=partitions)


async def altered(cluster, version: int, *topics: alter.ReassignableTopic, **more) -> list[tuple[str, int, int]]:
    request = alter.AlterPartitionReassignmentsRequest(topics=list(topics), **more)
    response = await cluster.ask(request, version)
    assert response.error_code == 0
    return [(t.name, p.partition_index, p.error_code) for t in response.responses for p in t.partitions]


async def under_way(cluster, topics=None) -> list[tuple[str, int, list[int], list[int], list[int]]]:
    response = await cluster.ask(listing.ListPartitionReassignmentsRequest(topics=topics), 0)
    assert response.error_code == 0
    return [
        (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for t in response.topics
        for p in t.partitions
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_reassignment_is_under_way_when_the_answer_comes(cluster, version: int) -> None:
    assert await altered(cluster, version, wish("t", p0=[2, 1], p9=[0]), wish("absent", p0=[0])) == [
        ("t", 0, ErrorCode.NONE),
        ("t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("absent", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await under_way(cluster) == [("t", 0, [2, 1, 0], [2], [0])]
    asked = listing.ListPartitionReassignmentsTopics
    assert await under_way(cluster, [asked(name="t", partition_indexes=[1, 7, -1]), asked(name="absent")]) == []
    assert len(await under_way(cluster, [asked(name="t", partition_indexes=[0, 0])])) == 1


@pytest.mark.parametrize("version", [0, 1])
async def test_a_reassignment_is_cancelled_once(cluster, version: int) -> None:
    await altered(cluster, version, wish("t", p0=[2, 1]))
    assert await altered(cluster, version, wish("t", p0=None)) == [("t", 0, ErrorCode.NONE)]
    assert await under_way(cluster) == []
    again = await altered(cluster, version, wish("t", p0=None))
    assert again == [("t", 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]


async def test_what_cannot_be_is_refused_with_a_reason(cluster) -> None:
    request = alter.AlterPartitionReassignmentsRequest(topics=[wish("t", p0=[0, 7], p1=[])])
    (topic,) = (await cluster.ask(request, 1)).responses
    assert [p.error_code for p in topic.partitions] == [ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 2
    assert "broker 7" in topic.partitions[0].error_message
    fixed = await altered(cluster, 1, wish("t", p0=[0]), allow_replication_factor_change=False)
    assert fixed == [("t", 0, ErrorCode.INVALID_REPLICATION_FACTOR)]


async def test_a_request_that_names_a_partition_twice_or_too_many_is_refused_as_a_whole(cluster) -> None:
    twice = alter.AlterPartitionReassignmentsRequest(topics=[wish("t", p0=[0]), wish("t", p0=[1])])
    assert (await cluster.ask(twice, 1)).error_code == ErrorCode.INVALID_REQUEST
    many = [alter.ReassignablePartition(partition_index=i, replicas=[0]) for i in range(MAX_PARTITIONS + 1)]
    request = alter.AlterPartitionReassignmentsRequest(topics=[alter.ReassignableTopic(name="t", partitions=many)])
    assert (await cluster.ask(request, 1)).error_code == ErrorCode.INVALID_REQUEST
    assert await under_way(cluster) == []


@pytest.mark.parametrize("version", range(3))
async def test_elections_are_told_partition_by_partition(cluster, version: int) -> None:
    await altered(cluster, 1, wish("t", p0=[1, 0]))  # same replicas in another order: broker 1 becomes leader at once
    assert cluster.view.topics["t"].partitions[0].leader == 1
    asked = [elect.TopicPartitions(topic="t", partitions=[0, 5]), elect.TopicPartitions(topic="x", partitions=[0])]
    response = await cluster.ask(elect.ElectLeadersRequest(topic_partitions=asked), version)
    assert [
        (r.topic, p.partition_id, p.error_code) for r in response.replica_election_results for p in r.partition_result
    ] == [
        ("t", 0, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("x", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    everything = await cluster.ask(elect.ElectLeadersRequest(topic_partitions=None), version)
    assert everything.replica_election_results == []


async def test_an_unknown_election_type_is_refused(cluster) -> None:
    asked = [elect.TopicPartitions(topic="t", partitions=[0])]
    response = await cluster.ask(elect.ElectLeadersRequest(election_type=7, topic_partitions=asked), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.replica_election_results[0].partition_result[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
def test_failures_can_be_told(cluster, version: int) -> None:
    request = alter.AlterPartitionReassignmentsRequest(topics=[wish("t", p0=[0])])
    assert cluster.ask.failed(request, version, 41).error_code == 41
    assert cluster.ask.failed(listing.ListPartitionReassignmentsRequest(), 0, 41).error_code == 41
    assert (
        cluster.ask.failed(elect.ElectLeadersRequest(topic_partitions=[]), version, 41).replica_election_results == []
    )


async def removable(cluster) -> str | None:
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=4, resource_name="0")])
    (result,) = (await cluster.ask(request, 4)).results
    return next((c.value for c in result.configs if c.name == "broker.removable"), None)


async def test_a_draining_broker_tells_when_it_is_empty(cluster) -> None:
    assert await removable(cluster) is None
    config = cluster.config
    config.apply_dynamic({}, {"broker.draining": "true"})
    assert await removable(cluster) == "false"
    await cluster.admin.delete(cluster.view.topics["t"])
    assert await removable(cluster) == "true"


@pytest.mark.parametrize(("election_type", "partitions"), [(7, [0]), (0, [0, 0])])
async def test_a_refused_election_says_why_for_each_partition(
    cluster, election_type: int, partitions: list[int]
) -> None:
    asked = [elect.TopicPartitions(topic="t", partitions=partitions)]
    response = await cluster.ask(elect.ElectLeadersRequest(election_type=election_type, topic_partitions=asked), 2)
    results = [p for r in response.replica_election_results for p in r.partition_result]
    assert [p.error_code for p in results] == [ErrorCode.INVALID_REQUEST] * len(partitions)
    assert all(p.error_message for p in results)
