"""Requests of clients with quotas on virtual time: what is charged, what the response says, and who is exempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from authorized_broker import ANA, ROOT, opened_broker
from fetch_kit import answered, fetch, filled, only, read, request, waiting
from replica_kit import accepted, batch_of, until
from wire_in_memory import PEER, Wire, opened_wire

from penstock.api.exchange import ProtocolViolation
from penstock.api.routes import RequestContext, Route
from penstock.security.principal import Principal
from penstock.security.quotas.resolution import QuotaKind
from penstock.state import keys
from penstock.state.security_records import ClientQuotaRecord
from penstock.wire.acl import CLUSTER_NAME, AclOperation, ResourceType
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.fetch import FetchResponse, ReplicaState
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.produce import ProduceResponse
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

Entity = dict[str, str | None]
ANONYMOUS: Entity = {"user": "ANONYMOUS"}


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        opened.now_s, opened.timer_s = 1000.0, 5000.0
        yield opened


def limit(wire: Wire, entity: Entity, **quotas: float) -> None:
    key, view = keys.client_quota(entity), wire.path.view
    view.security.quotas[key] = ClientQuotaRecord(entity=entity, quotas=quotas)
    for listener in view.security_listeners:
        listener({key})


def frame_size(wire: Wire, version: int) -> int:
    return len(wire.frame_of(wire.produce_request(version), version))


# Produce


@pytest.mark.parametrize("version", [3, 5, 8, 9, 10, 13])
@pytest.mark.parametrize("acks", [1, -1])
async def test_a_producer_over_its_quota_is_told_how_long_its_connection_pauses(
    wire: Wire, version: int, acks: int
) -> None:
    await wire.path.partition("t")
    size = frame_size(wire, version)
    limit(wire, ANONYMOUS, producer_byte_rate=size * 2 / 10)
    times = [(await wire.produced(version, acks=acks)).throttle_time_ms for _ in range(4)]
    assert times == pytest.approx([0, 0, 5000, 10_000], abs=1)
    assert wire.connection.throttles_ms == [ms for ms in times if ms]
    wire.now_s += 20
    assert (await wire.produced(version, acks=acks)).throttle_time_ms == 0


async def test_every_record_of_a_throttled_producer_is_in_the_log(wire: Wire) -> None:
    partition = await wire.path.partition("t")
    limit(wire, ANONYMOUS, producer_byte_rate=1)
    for _ in range(5):
        response = await wire.produced(9)
        assert response.responses[0].partition_responses[0].error_code == 0
    assert partition.log.end_offset == 15


async def test_acks_0_has_no_response_and_the_connection_pauses(wire: Wire) -> None:
    await wire.path.partition("t")
    limit(wire, ANONYMOUS, producer_byte_rate=1)
    exchange = wire.send(wire.produce_request(9, acks=0), 9)
    assert exchange is not None
    await until(lambda: exchange.completed)
    assert exchange.dropped
    assert len(wire.connection.throttles_ms) == 1


async def test_a_producer_within_its_quota_keeps_the_fast_path(wire: Wire) -> None:
    await wire.path.partition("t")
    limit(wire, ANONYMOUS, producer_byte_rate=1 << 30)
    for _ in range(3):
        assert (await wire.produced(9, acks=1)).throttle_time_ms == 0
    assert wire.connection.produce_template is not None
    assert wire.connection.throttles_ms == []


async def test_clients_without_a_quota_are_not_measured(wire: Wire) -> None:
    await wire.path.partition("t")
    limit(wire, {"user": "ana"}, producer_byte_rate=1)
    assert (await wire.produced(9)).throttle_time_ms == 0
    wire.connection.peer = replace(PEER, principal=Principal("User", "ana"))
    assert (await wire.produced(9)).throttle_time_ms > 0
    assert wire.quotas.throttles[QuotaKind.PRODUCE] == 1


async def test_the_client_id_of_the_request_selects_the_quota(wire: Wire) -> None:
    await wire.path.partition("t")
    limit(wire, {"client-id": None}, producer_byte_rate=1 << 30)
    limit(wire, {"client-id": "tester"}, producer_byte_rate=1)
    assert (await wire.produced(9)).throttle_time_ms > 0


@pytest.mark.parametrize("head", [b"\0\0\0\x09", b"\0\0\0\x09\0\0\0\1\0\2\xff\xfe\0", b"\0\0\0\x09\0\0\0\1\x7f\xff"])
async def test_a_malformed_header_is_refused_as_without_quotas(wire: Wire, head: bytes) -> None:
    limit(wire, {"client-id": None}, producer_byte_rate=1)
    with pytest.raises(ProtocolViolation):
        wire.dispatcher(wire.connection, memoryview(bytearray(head)))
    assert wire.connection.meter is None


# Fetch


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 18])
async def test_a_response_that_exceeds_the_quota_is_sent_and_the_next_ones_are_empty(wire: Wire, version: int) -> None:
    await filled(wire, 3)
    size = len(only(await fetch(wire, version)).records or b"")
    limit(wire, ANONYMOUS, consumer_byte_rate=size / 20)
    response = await fetch(wire, version)
    assert (read(only(response)), response.throttle_time_ms) == ([(0, 2)], 10_000)
    response = await fetch(wire, version)
    assert (response.responses, response.throttle_time_ms, response.error_code) == ([], 10_000, 0)
    assert wire.connection.throttles_ms == [10_000, 10_000]
    wire.now_s += 11
    assert read(only(await fetch(wire, version))) == [(0, 2)], "a batch larger than the quota is delivered in the end"


async def test_a_client_without_a_quota_on_fetches_may_fetch_at_will(wire: Wire) -> None:
    await filled(wire, 3)
    limit(wire, ANONYMOUS, producer_byte_rate=1)
    assert [(await fetch(wire)).throttle_time_ms for _ in range(2)] == [0, 0]


async def test_a_throttled_fetch_does_not_wait_for_data(wire: Wire) -> None:
    await filled(wire, 3)
    limit(wire, ANONYMOUS, consumer_byte_rate=1)
    await fetch(wire)
    response = await fetch(wire, 11, {("t", 0): 3}, max_wait_ms=60_000)
    assert response.responses == []


async def test_a_response_is_no_larger_than_what_the_quota_allows_at_once(wire: Wire) -> None:
    await filled(wire, 3, 3, 3, 3)
    size = len(batch_of(3))
    limit(wire, ANONYMOUS, consumer_byte_rate=2 * size / 10)
    assert len(read(only(await fetch(wire)))) == 2


async def test_a_session_goes_on_after_a_throttled_response(wire: Wire) -> None:
    await filled(wire, 3)
    first = await fetch(wire, 12, session_epoch=0)
    limit(wire, ANONYMOUS, consumer_byte_rate=1)
    next_fetch = {"session_id": first.session_id, "session_epoch": 1}
    assert read(only(await fetch(wire, 12, {("t", 0): 0}, **next_fetch))) == [(0, 2)]
    next_fetch["session_epoch"] = 2
    throttled = await fetch(wire, 12, {}, **next_fetch)
    assert (throttled.session_id, throttled.responses) == (first.session_id, [])
    wire.now_s += 11
    next_fetch["session_epoch"] = 3
    assert read(only(await fetch(wire, 12, {}, **next_fetch))) == [(0, 2)], "nothing was lost with the empty response"


async def test_a_throttled_full_fetch_leaves_no_session(wire: Wire) -> None:
    await filled(wire, 3)
    limit(wire, ANONYMOUS, consumer_byte_rate=1)
    await fetch(wire, 12)
    throttled = await fetch(wire, 12, session_epoch=0)
    assert (throttled.session_id, throttled.responses) == (0, [])
    assert wire.sessions.sessions == {}


async def test_a_fetch_that_waited_is_charged_when_it_is_answered(wire: Wire) -> None:
    partition = await filled(wire, 3)
    limit(wire, ANONYMOUS, consumer_byte_rate=1)
    exchange = waiting(wire, 11, {("t", 0): 3})
    accepted(partition, batch_of(3))
    response = await answered(wire, exchange)
    assert read(only(response)) == [(3, 5)]
    assert response.throttle_time_ms > 0
    assert wire.connection.throttles_ms == [response.throttle_time_ms]


async def test_a_follower_is_exempt(wire: Wire) -> None:
    await filled(wire, 3)
    limit(wire, {"user": None}, consumer_byte_rate=1, request_percentage=0.001)
    await fetch(wire, 15)
    wire.timer_s += 50
    follower = request(wire, 15, replica_state=ReplicaState(replica_id=7, replica_epoch=1), max_wait_ms=1)
    exchange = wire.send(follower, 15)
    assert exchange is not None
    await until(lambda: exchange.completed)
    assert wire.decoded(exchange, FetchResponse, 15).throttle_time_ms == 0
    assert len(wire.connection.throttles_ms) == 1


# Time on the event loop


def serve(wire: Wire, request_type: Any, handler: Callable[[Any, RequestContext], Any]) -> None:
    wire.dispatcher = wire.make_dispatcher([Route(request_type, handler)])


async def test_time_of_a_handler_counts_and_the_next_request_is_told(wire: Wire) -> None:
    def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        wire.timer_s += 0.8
        return HeartbeatResponse()

    serve(wire, HeartbeatRequest, handler)
    limit(wire, ANONYMOUS, request_percentage=4)
    beat = HeartbeatRequest(group_id="g", member_id="m")
    assert (await wire.ask(beat, HeartbeatResponse, 4)).throttle_time_ms == 0
    # 0.8 of 10 s are 8 %; a client over its share is slowed down by a window at most
    assert (await wire.ask(beat, HeartbeatResponse, 4)).throttle_time_ms == 1000
    assert wire.connection.throttles_ms == [1000]
    assert (await wire.ask(ApiVersionsRequest(), ApiVersionsResponse, 3)).throttle_time_ms == 1000
    assert wire.quotas.throttles[QuotaKind.REQUEST] == 2


async def test_only_the_steps_of_a_coroutine_count_and_not_what_it_waits_for(wire: Wire) -> None:
    gate, failing = asyncio.Event(), asyncio.Event()

    async def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        wire.timer_s += 0.25
        await gate.wait()
        wire.timer_s += 0.25
        try:
            await asyncio.wait_for(failing.wait(), 0.001)
        except TimeoutError:
            wire.timer_s += 0.5
        return HeartbeatResponse(error_code=27)

    serve(wire, HeartbeatRequest, handler)
    limit(wire, ANONYMOUS, request_percentage=1)
    exchange = wire.send(HeartbeatRequest(group_id="g"), 4)
    assert exchange is not None
    await asyncio.sleep(0)
    wire.timer_s += 1000
    gate.set()
    await until(lambda: exchange.completed)
    assert wire.decoded(exchange, HeartbeatResponse, 4).error_code == 27
    client = wire.quotas.client("ANONYMOUS", b"tester")
    assert client is not None
    assert client.request is not None
    client.request.quota = 8  # percent: 1 of 10 s is 10 percent
    assert client.request.throttle_s(wire.now_s) == 1
    client.request.quota = 9.9
    assert client.request.throttle_s(wire.now_s) == pytest.approx(100 / 9.9 - 10)


async def test_a_cancelled_coroutine_is_cancelled_inside(wire: Wire) -> None:
    ended: list[bool] = []

    async def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return HeartbeatResponse()

    serve(wire, HeartbeatRequest, handler)
    limit(wire, ANONYMOUS, request_percentage=1)
    wire.send(HeartbeatRequest(group_id="g"), 4)
    await asyncio.sleep(0)
    await wire.dispatcher.close()
    assert ended == [True]


async def test_a_throttled_producer_is_told_the_longer_of_its_throttle_times(wire: Wire) -> None:
    await wire.path.partition("t")
    limit(wire, ANONYMOUS, producer_byte_rate=frame_size(wire, 9) / 20, request_percentage=1)
    client = wire.quotas.client("ANONYMOUS", b"tester")
    assert client is not None
    assert client.request is not None
    client.request.record(1000, wire.now_s)
    assert (await wire.produced(9)).throttle_time_ms == 10_000
    assert wire.connection.throttles_ms == [10_000]


@pytest.mark.parametrize(("client_id", "is_exempt"), [("tester", False), ("penstock-broker-2", True)])
@pytest.mark.parametrize(
    ("request_type", "response_type", "version"),
    [
        (WriteTxnMarkersRequest, WriteTxnMarkersResponse, 1),
        (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 4),
        (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 3),
    ],
)
async def test_no_api_is_exempt_by_itself_although_brokers_use_it(
    wire: Wire, request_type: Any, response_type: Any, version: int, client_id: str, is_exempt: bool
) -> None:
    def handler(request: Any, context: RequestContext) -> Any:
        wire.timer_s += 10
        return response_type()

    serve(wire, request_type, handler)
    limit(wire, {"user": None}, request_percentage=1)
    wire.client_id = client_id
    for _ in range(2):
        await wire.ask(request_type(), response_type, version)
    assert wire.connection.throttles_ms == ([] if is_exempt else [1000])


@pytest.mark.parametrize(
    ("client_id", "has_right", "is_exempt"),
    [
        ("penstock-broker-2", True, True),
        ("penstock-fetch-2", True, True),
        ("penstock-metrics-2", True, True),
        ("penstock-x-2", True, False),
        ("penstock-broker-2", False, False),
    ],
)
async def test_a_default_quota_does_not_throttle_the_connections_of_brokers(
    wire: Wire, client_id: str, has_right: bool, is_exempt: bool
) -> None:
    def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        wire.timer_s += 10
        return HeartbeatResponse()

    serve(wire, HeartbeatRequest, handler)
    wire.dispatcher.metering.may_be_broker = lambda peer: has_right
    limit(wire, {"user": None}, request_percentage=1)
    wire.client_id = client_id
    for _ in range(2):
        await wire.ask(HeartbeatRequest(), HeartbeatResponse, 4)
    assert wire.connection.throttles_ms == ([] if is_exempt else [1000])


@pytest.mark.integration
async def test_only_those_with_the_rights_of_a_broker_are_exempt_from_quotas_as_brokers(tmp_path: Path) -> None:
    async with opened_broker(tmp_path) as broker:

        def may_be_broker(principal: Principal) -> bool:
            return broker.dispatcher.may_be_broker(replace(PEER, principal=principal))

        assert (may_be_broker(ROOT), may_be_broker(ANA)) == (True, False)
        await broker.allow(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        assert may_be_broker(ANA)


async def test_a_produce_response_of_a_failed_request_has_the_throttle_time(wire: Wire) -> None:
    limit(wire, ANONYMOUS, producer_byte_rate=1)
    response: ProduceResponse = await wire.produced(9)
    assert response.responses[0].partition_responses[0].error_code == 3
    assert response.throttle_time_ms > 0
