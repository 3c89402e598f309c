"""The heartbeats of consumer groups, checked against an independent codec, and the load of a member's death."""

from __future__ import annotations

import importlib
import io
import os
import struct
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from bench import admin, client, group_wire
from bench.loads import specs
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock

# Built field by field from plain numbers: the schema's own types would wrap each of them.
RESPONSE: Any = importlib.import_module("kio.schema.consumer_group_heartbeat.v1.response")
TOPIC_ID = UUID(int=7)
MEMBERS, PARTITIONS, SESSION_TIMEOUT_MS = 4, 10, 1500


def _request(**fields: Any) -> Any:
    frame = group_wire.heartbeat_request("g", "m", **fields)
    _size, _api, _version, _correlation, client_id_length = struct.unpack_from(">ihhih", frame)
    body = frame[15 + client_id_length :]
    request, used = entity_reader(ConsumerGroupHeartbeatRequest)(body, 0)
    assert used == len(body)
    return request


def test_a_member_joins_with_its_topic_and_without_partitions() -> None:
    request = _request(epoch=0, topic="t", owned=(), rebalance_timeout_ms=5000)
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "m", 0)
    assert request.subscribed_topic_names == ("t",)
    assert request.topic_partitions == ()
    assert request.subscribed_topic_regex is None
    assert request.rebalance_timeout == timedelta(seconds=5)


def test_a_heartbeat_has_the_owned_partitions_only_if_they_changed() -> None:
    request = _request(epoch=3, topic_id=TOPIC_ID.bytes, owned=[1, 5])
    assert [(each.topic_id, each.partitions) for each in request.topic_partitions] == [(TOPIC_ID, (1, 5))]
    request = _request(epoch=3)
    assert (request.member_epoch, request.topic_partitions, request.subscribed_topic_names) == (3, None, None)


def _response(error: ErrorCode, partitions: Iterable[int] | None) -> bytes:
    assignment = None
    if partitions is not None:
        topic = RESPONSE.TopicPartitions(topic_id=TOPIC_ID, partitions=tuple(partitions))
        assignment = RESPONSE.Assignment(topic_partitions=(topic,))
    response = RESPONSE.ConsumerGroupHeartbeatResponse(
        throttle_time=timedelta(0),
        error_code=error,
        error_message=None,
        member_id="m",
        member_epoch=4,
        heartbeat_interval=timedelta(seconds=5),
        assignment=assignment,
    )
    out = io.BytesIO()
    entity_writer(type(response))(out, response)
    return bytes(4) + b"\0" + out.getvalue()


@pytest.mark.parametrize("partitions", [None, (), (3, 4, 200)])
def test_a_response_has_the_assignment_if_it_changed(partitions: tuple[int, ...] | None) -> None:
    found = group_wire.heartbeat_response(_response(ErrorCode.none, partitions))
    expected = None if partitions is None else frozenset(partitions)
    assert found == group_wire.Heartbeat(0, 4, 5000, expected)


def test_a_response_names_the_error() -> None:
    assert group_wire.heartbeat_response(_response(ErrorCode.fenced_member_epoch, None)).error == 110


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    settings = {
        f"group.consumer.{name}": str(value)
        for name, value in (
            ("min.session.timeout.ms", SESSION_TIMEOUT_MS),
            ("session.timeout.ms", SESSION_TIMEOUT_MS),
            ("min.heartbeat.interval.ms", 200),
            ("heartbeat.interval.ms", 200),
        )
    }
    return start_broker(Penstock().with_settings(settings))


@pytest.mark.parametrize("leaves", [False, True])
def test_the_partitions_of_a_member_that_is_gone_are_consumed_by_the_others(broker: Broker, leaves: bool) -> None:
    topic = f"rebalanced-{leaves}"
    admin.create_topics(broker.address, [topic], PARTITIONS, {})
    metrics = client.run(
        specs.Rebalance(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=min(os.sched_getaffinity(0)),
            members=MEMBERS,
            partitions=PARTITIONS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            leaves=leaves,
        )
    )
    assert metrics["joining_s"] > 0
    assert metrics["with_session_s"] - metrics["seconds"] == pytest.approx(0 if leaves else SESSION_TIMEOUT_MS / 1000)
    assert metrics["with_session_s"] > 0
