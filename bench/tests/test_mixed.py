"""A consumer at the tail, one that starts at the beginning, and a producer at a fixed rate: cases and the load."""

from __future__ import annotations

import importlib
import io
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.serial import entity_reader, entity_writer

from bench import admin, client, requirements, wire
from bench.connection import Connection
from bench.loads import specs
from bench.loads.mixed import BatchProducer, LaggingConsumer, ResponseBuffer
from bench.loads.stream import Stream
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock
from bench.suites import mixed

# Built field by field from plain numbers: the schema's own types would wrap each of them.
FETCHED: Any = importlib.import_module("kio.schema.fetch.v12.response")
CORE = min(os.sched_getaffinity(0))
LIMIT_S = 60.0
MESSAGES = 5_000


@pytest.mark.parametrize(("suite", "cases"), [("mixed", mixed.CASES), ("cluster-mixed", mixed.CLUSTER_CASES)])
def test_every_required_line_has_a_case(suite: str, cases: tuple[str, ...]) -> None:
    required = {line.case for line in requirements.ALL if line.suite == suite}
    assert required == set(cases) - {mixed.ALONE}


@pytest.fixture
def connected() -> Iterator[tuple[Connection, socket.socket]]:
    """Return the client's connection and the broker's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(f"127.0.0.1:{server.getsockname()[1]}")
        broker_end, _ = server.accept()
    connection.socket.setblocking(False)
    broker_end.settimeout(LIMIT_S)
    with connection.socket, broker_end:
        yield connection, broker_end


def _wait_for_data(sock: socket.socket) -> None:
    assert select.select([sock], [], [], LIMIT_S)[0], "nothing arrived"


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_responses_are_complete_however_they_are_split(connected: tuple[Connection, socket.socket], step: int) -> None:
    connection, broker_end = connected
    buffer = ResponseBuffer(connection.socket, 1000)
    assert buffer.receive() is None
    for body in (b"a" * 0x2FF, b"b" * 0x300):  # the first bytes of one size and the last of the other do not fit
        data = struct.pack(">i", len(body)) + body
        for start in range(0, len(data), step):
            broker_end.sendall(data[start : start + step])
        received = None
        while received is None:
            _wait_for_data(connection.socket)
            received = buffer.receive()
        assert bytes(received) == body


def test_a_response_that_does_not_fit_is_an_error(connected: tuple[Connection, socket.socket]) -> None:
    connection, broker_end = connected
    broker_end.sendall(struct.pack(">i", 97) + b"x")
    _wait_for_data(connection.socket)
    with pytest.raises(wire.WireError, match="at most 100 bytes, got 101"):
        ResponseBuffer(connection.socket, 100).receive()


def test_a_closed_connection_is_an_error(connected: tuple[Connection, socket.socket]) -> None:
    connection, broker_end = connected
    broker_end.close()
    _wait_for_data(connection.socket)
    with pytest.raises(ConnectionError):
        ResponseBuffer(connection.socket, 100).receive()


def _requested_offset(broker_end: socket.socket) -> int:
    (size,) = struct.unpack(">i", broker_end.recv(4, socket.MSG_WAITALL))
    frame = broker_end.recv(size, socket.MSG_WAITALL)
    client_id_length = struct.unpack_from(">h", frame, 8)[0]
    request, _ = entity_reader(FetchRequest)(frame[11 + client_id_length :], 0)
    return int(request.topics[0].partitions[0].fetch_offset)


def _fetched(base_offset: int, messages: int, error: ErrorCode = ErrorCode.none) -> bytes:
    """Return a framed response with one batch."""
    batch = struct.pack(">q", base_offset) + wire.record_batch([b"x"] * messages)[8:]
    partition = FETCHED.PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=100,
        last_stable_offset=100,
        log_start_offset=0,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=batch,
    )
    topic = FETCHED.FetchableTopicResponse(topic="t", partitions=(partition,))
    response = FETCHED.FetchResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=(topic,)
    )
    out = io.BytesIO()
    entity_writer(type(response))(out, response)
    body = bytes(4) + b"\0" + out.getvalue()
    return struct.pack(">i", len(body)) + body


def test_the_consumer_behind_starts_again_at_its_end_offset_and_counts_no_message_after_it(
    connected: tuple[Connection, socket.socket],
) -> None:
    connection, broker_end = connected
    consumer = LaggingConsumer(connection.socket, "t", end_offset=7)
    consumer.fetch()
    requested = []
    for base_offset, messages in ((0, 4), (4, 4), (0, 4)):
        requested.append(_requested_offset(broker_end))
        broker_end.sendall(_fetched(base_offset, messages))
        _wait_for_data(connection.socket)
        consumer.on_readable()
    assert requested == [0, 4, 0]
    assert _requested_offset(broker_end) == 4
    assert (consumer.messages, consumer.passes) == (7 + 4, 1)


def test_a_failed_fetch_of_the_consumer_behind_is_an_error(connected: tuple[Connection, socket.socket]) -> None:
    connection, broker_end = connected
    consumer = LaggingConsumer(connection.socket, "t", end_offset=7)
    broker_end.sendall(_fetched(0, 1, ErrorCode.not_leader_or_follower))
    _wait_for_data(connection.socket)
    with pytest.raises(RuntimeError, match="error code 6"):
        consumer.on_readable()


def _spec(address: str, pids: tuple[int, ...], topic: str, messages: int, **more: float) -> specs.Mixed:
    return specs.Mixed(
        address=address,
        topic=topic,
        broker_pids=pids,
        core=CORE,
        size_bytes=100,
        batch_messages=10,
        rate_per_s=1_000,
        seconds=more.get("seconds", 0.5),
        lagging_messages=messages,
        limit_s=more.get("limit_s", LIMIT_S),
    )


def test_a_late_producer_sends_every_batch_and_counts_from_its_schedule(
    connected: tuple[Connection, socket.socket],
) -> None:
    connection, broker_end = connected
    producer = BatchProducer(Stream(connection), _spec("", (), "t", 0), start_ns=0)
    producer.schedule(9_999_999)
    assert producer.scheduled_ns == []
    producer.schedule(35_000_000)
    assert producer.scheduled_ns == [10_000_000, 20_000_000, 30_000_000]
    producer.send_scheduled()
    assert len(broker_end.recv(3 * len(producer.request), socket.MSG_WAITALL)) == 3 * len(producer.request)
    assert len(producer.send_delays_ns) == 3


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(Penstock())


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """Return a topic of one partition with `MESSAGES` messages."""
    name = "".join(letter if letter.isalnum() else "-" for letter in str(request.node.name))
    admin.create_topics(broker.address, [name], 1, {"flush.messages": "1000000"})
    fill = specs.Produce(
        address=broker.address,
        topic=name,
        broker_pids=broker.pids,
        core=CORE,
        size_bytes=100,
        messages=MESSAGES,
        acks=-1,
        settings={"batch.size": 5_000},
    )
    client.run(fill)
    return name


@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_all_roles_are_measured_until_the_consumer_behind_has_read_everything(
    broker: Broker, topic: str, seconds: float
) -> None:
    metrics = client.run(_spec(broker.address, broker.pids, topic, MESSAGES, seconds=seconds))
    assert metrics["passes"] >= 1
    assert metrics["wall_s"] >= seconds
    assert metrics["lagging_mb_per_s"] * metrics["wall_s"] > 0.99 * MESSAGES * 100 / 1e6
    assert 0 < metrics["produce_p50_ms"] <= metrics["produce_p99_ms"]
    assert metrics["send_delay_p99_ms"] <= metrics["produce_p99_ms"]
    assert 0 < metrics["end_to_end_p50_ms"] <= metrics["end_to_end_p99_ms"]
    assert metrics["messages"] >= MESSAGES
    assert metrics["cpu_s_per_million"] > 0


def test_without_a_consumer_behind_only_the_tail_is_read(broker: Broker, topic: str) -> None:
    metrics = client.run(_spec(broker.address, broker.pids, topic, 0, seconds=1.0))
    assert (metrics["passes"], metrics["lagging_mb_per_s"]) == (0, 0)
    assert metrics["messages_per_s"] * metrics["wall_s"] == pytest.approx(10 * metrics["batches"])
    assert metrics["end_to_end_p99_ms"] > 0


def test_a_consumer_behind_that_does_not_reach_the_end_fails_in_time(broker: Broker, topic: str) -> None:
    spec = _spec(broker.address, broker.pids, topic, 1_000_000_000, seconds=0.2, limit_s=0.5)
    with pytest.raises(client.ClientFailed, match=r"the consumer behind read \d+ of 1000000000 messages"):
        client.run(spec)
