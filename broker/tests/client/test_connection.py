"""One connection: version negotiation, matching of responses, and errors after invalid or missing responses."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from client_doubles.scripted import ScriptedBroker

from penstock.client import (
    ClientError,
    ConnectionFailed,
    NoBrokerAvailable,
    Producer,
    RequestTimedOut,
    UnsupportedByBroker,
)
from penstock.client.connection import ClientConnection
from penstock.wire import codec
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.integration


@asynccontextmanager
async def answering(answer: Callable[[int, bytes], bytes]) -> AsyncIterator[int]:
    """Yield the port of a server that sends `answer(number, frame)` for each frame, numbered from 0."""
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        count = 0
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                writer.write(answer(count, await reader.readexactly(size)))
                count += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def open_to(broker: ScriptedBroker, **options: float) -> ClientConnection:
    return await ClientConnection.open("127.0.0.1", broker.port, **options)  # type: ignore[arg-type]


async def test_requests_are_pipelined_and_each_gets_its_answer(scripted: ScriptedBroker) -> None:
    connection = await open_to(scripted)
    futures = [connection.send(MetadataRequest(topics=None), MetadataResponse) for _ in range(20)]
    assert connection.in_flight == 20
    assert {(await f).topics[0].name for f in futures} == {"t"}
    await connection.close()


async def test_the_newest_version_that_both_know_is_used(scripted: ScriptedBroker) -> None:
    scripted.versions[MetadataRequest.KEY] = (0, 5)
    connection = await open_to(scripted)
    assert connection.version(MetadataRequest) == 5
    assert connection.version(ProduceRequest) == 12
    await connection.close()


async def test_an_api_that_the_broker_lacks_is_named(scripted: ScriptedBroker) -> None:
    del scripted.versions[ProduceRequest.KEY]
    connection = await open_to(scripted)
    assert not connection.serves(ProduceRequest)
    with pytest.raises(UnsupportedByBroker, match=r"no version of Produce \(API 0\)"):
        connection.version(ProduceRequest)
    await connection.close()


async def test_a_broker_that_knows_only_the_oldest_version_question_is_asked_again() -> None:
    asked: list[int] = []

    def answer(count: int, frame: bytes) -> bytes:
        _, version, correlation_id = struct.unpack_from(">hhi", frame)
        asked.append(version)
        keys = [
            ApiVersion(api_key=18, min_version=0, max_version=0),
            ApiVersion(api_key=3, min_version=0, max_version=1),
        ]
        body = ApiVersionsResponse(error_code=35 if version else 0, api_keys=keys)
        return framed(struct.pack(">i", correlation_id) + bytes(codec.encode(body, 0)))

    async with answering(answer) as port:
        connection = await ClientConnection.open("127.0.0.1", port)
        assert connection.version(MetadataRequest) == 1
        await connection.close()
    assert asked == [3, 0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (framed(struct.pack(">i", 99) + b"\0" * 10), "response 99 instead of 1"),
        (struct.pack(">i", -5), "invalid response length -5"),
        (struct.pack(">i", 2**31 - 1), "invalid response length 2147483647"),
        (framed(struct.pack(">i", 1)), "ApiVersionsResponse"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP; use the port of a Kafka listener"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "this is a TLS port"),
        (b"\x16\x03\x01\x00\x02\x02\x46", "this is a TLS port"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "speaks SSH"),
        (b"-ERR unknown command\r\n", "check that a Kafka broker listens on this port"),
    ],
)
async def test_nonsense_ends_the_connection_with_a_reason(answer: bytes, says: str) -> None:
    async with answering(lambda count, frame: answer) as port:
        with pytest.raises(ConnectionFailed, match=says):
            await ClientConnection.open("127.0.0.1", port)


async def test_silence_ends_the_connection_when_a_requests_time_is_over(scripted: ScriptedBroker) -> None:
    scripted.always = "silent"
    connection = await open_to(scripted, request_timeout_ms=60_000)
    patient = connection.send(ProduceRequest(acks=1, topic_data=[]), MetadataResponse)
    hasty = connection.send(ProduceRequest(acks=1, topic_data=[]), MetadataResponse, timeout_ms=20)
    with pytest.raises(RequestTimedOut):
        await hasty
    with pytest.raises(ConnectionFailed):
        await patient
    assert connection.closed


async def test_a_cancelled_call_does_not_disturb_the_next(scripted: ScriptedBroker) -> None:
    connection = await open_to(scripted)
    task = asyncio.create_task(connection.call(MetadataRequest(topics=None), MetadataResponse))
    await asyncio.sleep(0)
    task.cancel()
    assert (await connection.call(MetadataRequest(topics=None), MetadataResponse)).topics
    await connection.close()


async def test_an_address_where_nobody_listens_is_named() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: .*refused"):
        await ClientConnection.open("127.0.0.1", 1)
    with pytest.raises(NoBrokerAvailable, match=r"127\.0\.0\.1:1"):
        async with Producer("127.0.0.1:1"):
            pass


async def test_one_of_several_bootstrap_addresses_is_enough(scripted: ScriptedBroker) -> None:
    async with Producer(f"127.0.0.1:1,{scripted.address}") as producer:
        assert await producer.partitions("t") == 3


# Throttling (KIP-219)

LONG_MS = 3_600_000
"""A throttle time that is longer than any test."""


async def throttled(scripted: ScriptedBroker, throttle_ms: int) -> ClientConnection:
    scripted.throttles_ms.append(throttle_ms)
    connection = await open_to(scripted)
    assert connection.writable
    await connection.call(MetadataRequest(topics=None), MetadataResponse)
    assert connection.throttled
    assert not connection.writable
    return connection


async def test_a_throttled_connection_sends_no_request_before_its_time(scripted: ScriptedBroker) -> None:
    connection = await throttled(scripted, LONG_MS)
    call = asyncio.ensure_future(connection.call(MetadataRequest(topics=None), MetadataResponse))
    other = await open_to(scripted)
    await other.call(MetadataRequest(topics=None), MetadataResponse)
    assert connection.in_flight == 0
    await connection.close()
    with pytest.raises(ConnectionFailed, match="closed by this client"):
        await call
    assert not connection.throttled
    await other.close()


async def test_a_throttled_connection_goes_on_after_its_time(scripted: ScriptedBroker) -> None:
    connection = await throttled(scripted, 20)
    connection.pause_writing()
    connection.resume_writing()
    assert not connection.writable, "only the time ends it"
    response = await connection.call(MetadataRequest(topics=None), MetadataResponse)
    assert response.topics[0].name == "t"
    assert connection.writable
    await connection.close()


async def test_of_two_throttle_times_the_one_that_ends_later_counts(scripted: ScriptedBroker) -> None:
    scripted.throttles_ms.extend([LONG_MS, 1, LONG_MS])
    connection = await open_to(scripted)
    for future in [connection.send(MetadataRequest(topics=None), MetadataResponse) for _ in range(3)]:
        await future
    timer = connection._throttle_timer
    assert timer is not None
    assert timer.when() > asyncio.get_running_loop().time() + LONG_MS / 2000
    await connection.close()


async def test_a_throttled_producer_loses_nothing_and_waits_before_its_next_request(scripted: ScriptedBroker) -> None:
    scripted.throttles_ms.extend([0, 30, 30, LONG_MS])
    producer = Producer(scripted.address, linger_ms=0)
    await producer.start()
    for number in range(3):
        await (await producer.send("t", b"%d" % number, partition=0))
    blocked = await producer.send("t", b"3", partition=0)
    other = await open_to(scripted)
    await other.call(MetadataRequest(topics=None), MetadataResponse)
    assert len(scripted.requests) == 3
    assert scripted.log[0] == [b"0", b"1", b"2"]
    await other.close()
    await producer.close(flush=False)
    with pytest.raises(ClientError):
        await blocked


async def test_the_end_of_a_connection_is_reported_before_its_requests_fail_and_only_if_the_broker_ended_it() -> None:
    reports: list[bool] = []
    async with ScriptedBroker() as broker:
        own, cut = await open_to(broker), await open_to(broker)
        own.on_lost = lambda: reports.append(own.closed)
        cut.on_lost = lambda: reports.append(cut.closed)
        await own.close()
        assert reports == []
        await broker.stop()
        with pytest.raises(ConnectionFailed):
            await cut.call(MetadataRequest(topics=None), MetadataResponse)
        await cut.close()
    assert reports == [False]
