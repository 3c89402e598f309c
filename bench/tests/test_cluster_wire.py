"""The hand-written messages of a cluster's client, checked against an independent codec."""

from __future__ import annotations

import importlib
import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from bench import cluster_wire, wire


def schema(name: str, version: int, kind: str) -> Any:
    return importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")


METADATA = schema("metadata", 7, "response")
MEMBERS = schema("describe_cluster", 0, "response")
QUORUM = schema("describe_quorum", 0, "response")
COORDINATORS = schema("find_coordinator", 4, "response")
ELECTION = schema("elect_leaders", 2, "response")
PRODUCED = schema("produce", 9, "response")


def read(frame: bytes, entity: Any, *, flexible: bool) -> Any:
    size, _api, _version, _correlation, client_id_length = struct.unpack_from(">ihhih", frame)
    assert size == len(frame) - 4
    body = frame[14 + client_id_length + flexible :]
    request, used = entity_reader(entity)(body, 0)
    assert used == len(body)
    return request


def written(entity: Any, *, flexible: bool = True) -> bytes:
    buffer = io.BytesIO()
    buffer.write(b"\0\0\0\5\0" if flexible else b"\0\0\0\5")
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def test_a_metadata_request_makes_no_topic() -> None:
    request = read(
        cluster_wire.metadata_request(["a", "b"]), schema("metadata", 7, "request").MetadataRequest, flexible=False
    )
    assert [topic.name for topic in request.topics] == ["a", "b"]
    assert request.allow_auto_topic_creation is False


def _partition(index: int, leader: int, epoch: int, isr: tuple[int, ...]) -> Any:
    return METADATA.MetadataResponsePartition(
        error_code=ErrorCode.none if leader >= 0 else ErrorCode.leader_not_available,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2, 3),
        isr_nodes=isr,
        offline_replicas=tuple({1, 2, 3} - set(isr)),
    )


def test_metadata_tells_brokers_leaders_epochs_and_how_many_are_in_sync() -> None:
    def topic(name: str, error: ErrorCode, *partitions: Any) -> Any:
        return METADATA.MetadataResponseTopic(error_code=error, name=name, is_internal=False, partitions=partitions)

    response = METADATA.MetadataResponse(
        throttle_time=timedelta(),
        brokers=(
            METADATA.MetadataResponseBroker(node_id=1, host="one", port=9, rack=None),
            METADATA.MetadataResponseBroker(node_id=2, host="two", port=10, rack="r"),
        ),
        cluster_id="c",
        controller_id=2,
        topics=(
            topic("t", ErrorCode.none, _partition(0, 2, 7, (2, 3)), _partition(4, -1, 8, (1,))),
            topic("gone", ErrorCode.unknown_topic_or_partition),
        ),
    )
    told = cluster_wire.metadata_response(written(response, flexible=False))
    assert told.brokers == {1: "one:9", 2: "two:10"}
    assert told.topics == {
        "t": [cluster_wire.PartitionState(0, 2, 7, 2), cluster_wire.PartitionState(4, -1, 8, 1)],
    }


def test_the_controller_is_who_leads_the_quorum() -> None:
    request = read(
        cluster_wire.quorum_request(),
        schema("describe_quorum", 0, "request").DescribeQuorumRequest,
        flexible=True,
    )
    (topic,) = request.topics
    assert (topic.topic_name, [part.partition_index for part in topic.partitions]) == ("__cluster_metadata", [0])

    def response(top: ErrorCode, error: ErrorCode) -> Any:
        partition = QUORUM.PartitionData(
            partition_index=0,
            error_code=error,
            leader_id=3,
            leader_epoch=1,
            high_watermark=9,
            current_voters=(),
            observers=(),
        )
        topics = (QUORUM.TopicData(topic_name="__cluster_metadata", partitions=(partition,)),)
        return QUORUM.DescribeQuorumResponse(error_code=top, topics=topics)

    good, bad = ErrorCode.none, ErrorCode.leader_not_available
    assert cluster_wire.quorum_response(written(response(good, good))) == 3
    assert cluster_wire.quorum_response(written(response(good, bad))) == -1
    assert cluster_wire.quorum_response(written(response(bad, good))) == -1


def test_members_are_who_is_registered() -> None:
    read(cluster_wire.members_request(), schema("describe_cluster", 0, "request").DescribeClusterRequest, flexible=True)

    def response(error: ErrorCode) -> Any:
        brokers = (
            MEMBERS.DescribeClusterBroker(broker_id=1, host="one", port=9, rack=None),
            MEMBERS.DescribeClusterBroker(broker_id=3, host="three", port=9, rack="r"),
        )
        return MEMBERS.DescribeClusterResponse(
            throttle_time=timedelta(),
            error_code=error,
            error_message=None,
            cluster_id="c",
            controller_id=1,
            brokers=brokers,
            cluster_authorized_operations=0,
        )

    assert cluster_wire.members_response(written(response(ErrorCode.none))) == {1, 3}
    assert cluster_wire.members_response(written(response(ErrorCode.not_controller))) == set()


def test_coordinators_are_told_for_many_groups_at_once() -> None:
    request = read(
        cluster_wire.coordinators_request(["g", "h"]),
        schema("find_coordinator", 4, "request").FindCoordinatorRequest,
        flexible=True,
    )
    assert (request.key_type, request.coordinator_keys) == (0, ("g", "h"))
    coordinators = tuple(
        COORDINATORS.Coordinator(
            key=key, node_id=2, host="two", port=10, error_code=error, error_message="why" if error else None
        )
        for key, error in (("g", ErrorCode.none), ("h", ErrorCode.coordinator_not_available))
    )
    response = COORDINATORS.FindCoordinatorResponse(throttle_time=timedelta(), coordinators=coordinators)
    assert cluster_wire.coordinators_response(written(response)) == {"g": "two:10"}


def test_an_election_is_asked_for_every_partition() -> None:
    request = read(
        cluster_wire.election_request(), schema("elect_leaders", 2, "request").ElectLeadersRequest, flexible=True
    )
    assert (request.election_type, request.topic_partitions) == (0, None)
    response = ELECTION.ElectLeadersResponse(
        throttle_time=timedelta(), error_code=ErrorCode.cluster_authorization_failed, replica_election_results=()
    )
    assert cluster_wire.election_response(written(response)) == 31


def test_a_produce_holds_the_shares_of_several_topics() -> None:
    batch = wire.record_batch([b"x"])
    shares = {
        "a": [cluster_wire.part_of_produce(3, batch)],
        "b": [cluster_wire.part_of_produce(i, batch) for i in (0, 1)],
    }
    request = read(
        cluster_wire.produce_request(shares, 700), schema("produce", 9, "request").ProduceRequest, flexible=True
    )
    assert (request.acks, request.timeout) == (-1, timedelta(milliseconds=700))
    found = [(topic.name, part.index, part.records) for topic in request.topic_data for part in topic.partition_data]
    assert found == [("a", 3, batch), ("b", 0, batch), ("b", 1, batch)]


def test_each_partition_of_each_topic_is_answered() -> None:
    def answer(index: int, error: ErrorCode) -> Any:
        return PRODUCED.PartitionProduceResponse(
            index=index,
            error_code=error,
            base_offset=5,
            log_append_time=None,
            log_start_offset=0,
            record_errors=(PRODUCED.BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="bad"),),
            error_message=None,
        )

    topics = (
        PRODUCED.TopicProduceResponse(name="a", partition_responses=(answer(3, ErrorCode.none),)),
        PRODUCED.TopicProduceResponse(
            name="b", partition_responses=(answer(0, ErrorCode.not_leader_or_follower), answer(1, ErrorCode.none))
        ),
    )
    data = written(PRODUCED.ProduceResponse(responses=topics, throttle_time=timedelta()))
    assert list(cluster_wire.produce_response(data)) == [("a", 3, 0), ("b", 0, 6), ("b", 1, 0)]
    with pytest.raises((wire.WireError, IndexError)):
        list(cluster_wire.produce_response(data[:-30]))
