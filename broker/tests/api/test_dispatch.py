"""Dispatch of frames to handlers: invalid requests, failing handlers and handlers that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from replica_kit import until
from wire_in_memory import PEER, RecordedExchange, Wire, opened_wire

from penstock.api.exchange import ProtocolViolation
from penstock.api.metadata import decode_request
from penstock.api.routes import RequestContext, Route
from penstock.wire import codec
from penstock.wire.apis import APIS, ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.schema import Payload


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


def heartbeat_failure(request: HeartbeatRequest, error: int) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


def serve(wire: Wire, handler: Any, failure: Any = heartbeat_failure, first: int = 0, last: int = 4) -> None:
    """Make Heartbeat, served with `handler`, the dispatcher's only route."""
    route = Route(HeartbeatRequest, handler, failure, first=first, last=last)
    wire.dispatcher = wire.make_dispatcher([route])


def beat(wire: Wire, member: str = "m", version: int = 4) -> RecordedExchange:
    exchange = wire.send(HeartbeatRequest(group_id="g", member_id=member, generation_id=1), version)
    assert exchange is not None
    return exchange


def error_in(wire: Wire, exchange: RecordedExchange, version: int = 4) -> int:
    return wire.decoded(exchange, HeartbeatResponse, version).error_code


def head(api_key: int, version: int, client_id: str | None = "tester") -> bytearray:
    return request_head(api_key, version, 9, client_id)[4:]


# Responses


@pytest.mark.parametrize("version", range(5))
async def test_the_handler_is_given_the_request_and_who_asks(wire: Wire, version: int) -> None:
    seen: list[tuple[HeartbeatRequest, RequestContext]] = []

    def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        seen.append((request, context))
        return HeartbeatResponse(error_code=27)

    serve(wire, handler)
    assert error_in(wire, beat(wire, "me", version), version) == 27
    ((request, context),) = seen
    assert (request.group_id, request.member_id) == ("g", "me")
    assert (context.version, context.correlation_id, context.client_id) == (version, 1, "tester")
    assert context.peer is PEER
    assert wire.stats.by_api[ApiKey.HEARTBEAT].count == 1


async def test_a_handler_that_waits_does_not_hold_up_the_next_and_each_answer_has_its_place(wire: Wire) -> None:
    gates = {name: asyncio.Event() for name in "abc"}

    async def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        await gates[request.member_id].wait()
        return HeartbeatResponse(error_code=ord(request.member_id))

    serve(wire, handler)
    exchanges = [beat(wire, name) for name in "abc"]
    assert wire.connection.exchanges == exchanges
    for name in "cab":
        gates[name].set()
        await until(lambda name=name: exchanges["abc".index(name)].completed)
    for exchange, name, correlation_id in zip(exchanges, "abc", (1, 2, 3), strict=True):
        wire.correlation_id = correlation_id
        assert error_in(wire, exchange) == ord(name)
    await until(lambda: not wire.dispatcher.tasks)


async def test_a_handler_may_return_a_future_which_closing_cancels(wire: Wire) -> None:
    futures: list[asyncio.Future[HeartbeatResponse]] = []

    def handler(request: HeartbeatRequest, context: RequestContext) -> asyncio.Future[HeartbeatResponse]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    serve(wire, handler)
    first = beat(wire)
    await asyncio.sleep(0)
    assert not first.completed
    futures[0].set_result(HeartbeatResponse(error_code=27))
    await until(lambda: first.completed)
    assert error_in(wire, first) == 27
    second = beat(wire)
    await wire.dispatcher.close()
    assert futures[1].cancelled()
    assert not second.completed


async def test_handlers_begin_in_the_order_of_their_requests(wire: Wire) -> None:
    begun: list[str] = []

    async def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        begun.append(request.member_id)
        await asyncio.sleep(0)
        return HeartbeatResponse()

    serve(wire, handler)
    exchanges = [beat(wire, str(n)) for n in range(20)]
    await until(lambda: all(e.completed for e in exchanges))
    assert begun == [str(n) for n in range(20)]


async def test_a_client_that_left_gets_no_answer_written(wire: Wire) -> None:
    gate = asyncio.Event()

    async def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        await gate.wait()
        return HeartbeatResponse()

    serve(wire, handler)
    exchange = beat(wire)
    exchange.lose()
    gate.set()
    await until(lambda: not wire.dispatcher.tasks)
    assert not exchange.completed


async def test_closing_ends_the_handlers_that_still_wait(wire: Wire) -> None:
    ended: list[bool] = []

    async def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return HeartbeatResponse()

    serve(wire, handler)
    exchange = beat(wire)
    await asyncio.sleep(0)
    await wire.dispatcher.close()
    assert ended == [True]
    assert not exchange.completed


# Failures


class Planted(Exception):
    """The exception that a handler raises."""


def failing(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    raise Planted


async def failing_later(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    await asyncio.sleep(0)
    raise Planted


def not_encodable(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=1 << 40)


def failing_future(request: HeartbeatRequest, context: RequestContext) -> asyncio.Future[HeartbeatResponse]:
    future: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
    future.set_exception(RuntimeError("broken"))
    return future


@pytest.mark.parametrize("handler", [failing, failing_later, failing_future, not_encodable])
@pytest.mark.parametrize("version", [0, 4])
async def test_a_handler_that_fails_is_answered_with_an_unknown_server_error(
    wire: Wire, handler: Any, version: int
) -> None:
    serve(wire, handler)
    exchange = beat(wire, version=version)
    await until(lambda: exchange.completed)
    assert error_in(wire, exchange, version) == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("handler", [failing, failing_later, failing_future])
async def test_where_the_answer_cannot_carry_an_error_the_connection_ends(wire: Wire, handler: Any) -> None:
    serve(wire, handler, failure=None)
    exchange = beat(wire)
    await until(lambda: exchange.completed)
    assert exchange.aborted == "Heartbeat failed"


@pytest.mark.parametrize("handler", [failing, failing_later, failing_future])
async def test_a_failure_that_cannot_be_told_ends_the_connection_too(wire: Wire, handler: Any) -> None:
    def failure(request: HeartbeatRequest, error: int) -> HeartbeatResponse:
        raise Planted

    serve(wire, handler, failure=failure)
    exchange = beat(wire)
    await until(lambda: exchange.completed)
    assert exchange.aborted == "Heartbeat failed"


async def test_one_failure_leaves_the_dispatcher_sound(wire: Wire) -> None:
    def handler(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        if request.member_id == "bad":
            raise Planted
        return HeartbeatResponse()

    serve(wire, handler)
    assert [error_in(wire, beat(wire, name)) for name in ("bad", "good")] == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]


# Invalid frames


@pytest.mark.parametrize("api_key", [17, 24, 71, 999, -1])
async def test_an_api_that_is_not_served_breaks_the_protocol(wire: Wire, api_key: int) -> None:
    with pytest.raises(ProtocolViolation, match="is not supported"):
        wire.dispatcher(wire.connection, memoryview(head(api_key, 0)))
    assert wire.connection.exchanges == []


@pytest.mark.parametrize("version", [-1, 2, 4, 32767])
async def test_a_version_that_the_route_leaves_out_breaks_the_protocol(wire: Wire, version: int) -> None:
    serve(wire, failing, first=3, last=3)
    frame = head(ApiKey.HEARTBEAT, version) + bytes(40)
    with pytest.raises(ProtocolViolation, match="not supported; use 3 to 3"):
        wire.dispatcher(wire.connection, memoryview(frame))
    assert wire.connection.exchanges == []


@pytest.mark.parametrize("frame", [b"", b"\x00", bytes(9)])
async def test_less_than_a_header_breaks_the_protocol(wire: Wire, frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        wire.dispatcher(wire.connection, memoryview(bytearray(frame)))


@pytest.mark.parametrize("version", range(5))
async def test_a_body_that_is_cut_short_breaks_the_protocol_before_any_handler(wire: Wire, version: int) -> None:
    serve(wire, failing)
    frame = wire.frame_of(HeartbeatRequest(group_id="g", member_id="m"), version)
    for damaged in (frame[:-1], frame[:-4]):
        with pytest.raises(ProtocolViolation):
            wire.dispatcher(wire.connection, memoryview(damaged))
    assert wire.connection.exchanges == []


@pytest.mark.parametrize("version", range(9, 14))
async def test_metadata_for_all_topics_is_understood_as_librdkafka_asks_for_it(wire: Wire, version: int) -> None:
    asked: list[MetadataRequest] = []

    def handler(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        asked.append(request)
        return MetadataResponse()

    wire.dispatcher = wire.make_dispatcher([Route(MetadataRequest, handler, decode=decode_request)])
    flags = b"\x01\0\0\0" if version <= 10 else b"\x01\0\0"
    frame = head(ApiKey.METADATA, version) + b"\0\0\0\0" + flags
    wire.dispatcher(wire.connection, memoryview(frame))
    assert [request.topics for request in asked] == [None]


@pytest.mark.parametrize(("api_key", "api"), APIS.items())
async def test_an_empty_body_is_a_request_or_breaks_the_protocol_in_every_version(
    wire: Wire, api_key: int, api: Any
) -> None:
    """The dispatcher raises no other exception for any API of the data path."""
    for version in range(api.first, api.last + 1):
        frame = head(api_key, version)
        if api_key in (ApiKey.API_VERSIONS,) and version < 3:
            wire.dispatcher(wire.connection, memoryview(frame))
        else:
            with pytest.raises(ProtocolViolation):
                wire.dispatcher(wire.connection, memoryview(frame))


# Headers


async def test_the_answers_header_is_flexible_where_the_version_is(wire: Wire) -> None:
    serve(wire, lambda request, context: HeartbeatResponse())
    assert len(beat(wire, version=3).frame or b"") == 4 + 4 + 4 + 2
    assert len(beat(wire, version=4).frame or b"") == 4 + 4 + 1 + 4 + 2 + 1


async def test_a_client_without_an_id_is_served(wire: Wire) -> None:
    ids: list[str | None] = []

    def handler(request: Payload, context: RequestContext) -> ListGroupsResponse | Awaitable[Payload]:
        ids.append(context.client_id)
        return ListGroupsResponse()

    wire.dispatcher = wire.make_dispatcher([Route(ListGroupsRequest, handler)])
    for client_id in (None, "", "é"):
        frame = codec.encode(ListGroupsRequest(), 3, bytes(head(ApiKey.LIST_GROUPS, 3, client_id)))
        wire.dispatcher(wire.connection, memoryview(frame))
    assert ids == [None, "", "é"]
