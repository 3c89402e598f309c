"""The messages of share groups, checked against an independent codec, and the load on a broker."""

from __future__ import annotations

import importlib
import io
import os
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest
from kio.schema.share_fetch.v2.request import ShareFetchRequest
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from kio.serial import entity_reader, entity_writer

from bench import admin, client, share_wire, wire
from bench.loads import specs
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock
from bench.share_wire import ShareMember

# Built field by field from plain numbers: the schema's own types would wrap each of them.
FETCHED: Any = importlib.import_module("kio.schema.share_fetch.v2.response")
ACKNOWLEDGED: Any = importlib.import_module("kio.schema.share_acknowledge.v2.response")
TOPIC_ID = UUID(int=7)
CORE = min(os.sched_getaffinity(0))
PARTITIONS = 3
MESSAGES = 400_000  # more than two members accept in a section if a fetch returns one small batch


def _read(kind: Any, frame: bytes) -> Any:
    size, _api, _version, _correlation, client_id_length = struct.unpack_from(">ihhih", frame)
    assert size == len(frame) - 4
    body = frame[15 + client_id_length :]
    request, used = entity_reader(kind)(body, 0)
    assert used == len(body)
    return request


def _written(response: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(response))(out, response)
    return bytes(4) + b"\0" + out.getvalue()


def _acks(request: Any) -> dict[int, list[tuple[int, int, tuple[int, ...]]]]:
    return {
        p.partition_index: [
            (b.first_offset, b.last_offset, tuple(b.acknowledge_types)) for b in p.acknowledgement_batches
        ]
        for topic in request.topics
        for p in topic.partitions
    }


def test_the_first_share_fetch_opens_a_session_and_later_ones_accept_records() -> None:
    member = ShareMember("g", "m", TOPIC_ID.bytes, 2)
    first = _read(ShareFetchRequest, member.fetch({}, max_records=5, max_wait_ms=70))
    assert (first.group_id, first.member_id, first.share_session_epoch) == ("g", "m", 0)
    assert (first.max_records, first.batch_size) == (5, 5)
    assert _acks(first) == {0: [], 1: []}
    then = _read(ShareFetchRequest, member.fetch({1: [(3, 9), (12, 12)]}, max_records=5, max_wait_ms=70))
    assert then.share_session_epoch == 1
    assert _acks(then) == {1: [(3, 9, (1,)), (12, 12, (1,))]}


def test_an_acknowledgement_has_the_next_epoch_of_the_session() -> None:
    member = ShareMember("g", "m", TOPIC_ID.bytes, 1)
    member.fetch({}, max_records=5, max_wait_ms=70)
    request = _read(ShareAcknowledgeRequest, member.acknowledge({0: [(4, 4)]}))
    assert request.share_session_epoch == 1
    assert _acks(request) == {0: [(4, 4, (1,))]}


def test_a_heartbeat_subscribes_to_the_topic() -> None:
    request = _read(ShareGroupHeartbeatRequest, share_wire.heartbeat_request("g", "m", 0, "t"))
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "m", 0)
    assert request.subscribed_topic_names == ("t",)


def test_a_setting_of_the_group_is_set() -> None:
    request = _read(IncrementalAlterConfigsRequest, share_wire.group_config_request("g", "a.setting", "x"))
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (32, "g")
    assert [(c.name, c.config_operation, c.value) for c in resource.configs] == [("a.setting", 0, "x")]


def _fetched(error: ErrorCode, acknowledge_error: ErrorCode, records: bytes, acquired: tuple[Any, ...]) -> bytes:
    leader = FETCHED.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    data = FETCHED.PartitionData(
        partition_index=1,
        error_code=error,
        error_message=None,
        acknowledge_error_code=acknowledge_error,
        acknowledge_error_message=None,
        current_leader=leader,
        records=records,
        acquired_records=acquired,
    )
    topic = FETCHED.ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,))
    return _written(
        FETCHED.ShareFetchResponse(
            throttle_time=timedelta(0),
            error_code=ErrorCode.none,
            error_message=None,
            acquisition_lock_timeout=timedelta(seconds=30),
            responses=(topic,),
            node_endpoints=(),
        )
    )


def test_a_share_fetch_response_has_the_acquired_ranges_and_where_its_batches_are() -> None:
    one, two = wire.record_batch([b"1"]), wire.record_batch([b"2", b"3"])
    acquired = (FETCHED.AcquiredRecords(first_offset=0, last_offset=2, delivery_count=1),)
    body = _fetched(ErrorCode.none, ErrorCode.none, one + two, acquired)
    (delivery,) = share_wire.fetch_response(body)
    assert (delivery.partition, delivery.error, delivery.acquired) == (1, 0, [(0, 2)])
    assert [body[start:end] for start, end, _ in delivery.batches] == [one, two]


@pytest.mark.parametrize("is_of_fetch", [True, False])
def test_a_share_fetch_response_names_errors(is_of_fetch: bool) -> None:
    error = ErrorCode.invalid_record_state
    errors = (error, ErrorCode.none) if is_of_fetch else (ErrorCode.none, error)
    (delivery,) = share_wire.fetch_response(_fetched(*errors, b"", ()))
    assert delivery.error == error.value


def test_a_failed_acknowledgement_is_an_error() -> None:
    leader = ACKNOWLEDGED.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)

    def response(error: ErrorCode) -> bytes:
        data = ACKNOWLEDGED.PartitionData(
            partition_index=0, error_code=error, error_message=None, current_leader=leader
        )
        topic = ACKNOWLEDGED.ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=(data,))
        return _written(
            ACKNOWLEDGED.ShareAcknowledgeResponse(
                throttle_time=timedelta(0),
                error_code=ErrorCode.none,
                error_message=None,
                acquisition_lock_timeout=timedelta(seconds=30),
                responses=(topic,),
                node_endpoints=(),
            )
        )

    share_wire.acknowledge_response(response(ErrorCode.none))
    with pytest.raises(wire.WireError, match="121"):
        share_wire.acknowledge_response(response(ErrorCode.invalid_record_state))


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(Penstock())


def _share(broker: Broker, topic: str, *, one_by_one: bool = False, rate_per_s: int = 0) -> specs.Metrics:
    return client.run(
        specs.Share(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            partitions=PARTITIONS,
            members=2,
            size_bytes=100,
            seconds=1.0,
            max_records=1,
            one_by_one=one_by_one,
            rate_per_s=rate_per_s,
        )
    )


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_group_accepts_the_records_of_a_topic(broker: Broker, one_by_one: bool) -> None:
    topic = f"full-{one_by_one}"
    admin.create_topics(broker.address, [topic], PARTITIONS, {})
    client.run(
        specs.Produce(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            size_bytes=100,
            messages=MESSAGES,
            acks=1,
            settings={"batch.size": 1000},
        )
    )
    metrics = _share(broker, topic, one_by_one=one_by_one)
    assert 0 < metrics["messages"] <= MESSAGES
    assert metrics["cpu_s_per_million"] > 0


def test_a_group_gets_what_is_produced_at_a_fixed_rate(broker: Broker) -> None:
    admin.create_topics(broker.address, ["paced"], PARTITIONS, {})
    metrics = _share(broker, "paced", rate_per_s=50)
    assert metrics["messages"] > 0
    assert 0 < metrics["end_to_end_p50_ms"] <= metrics["end_to_end_p99_ms"]
