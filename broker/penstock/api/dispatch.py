"""From a frame to the handler of its API, and back: the one place where requests are told apart.

Called by the server for each frame. Produce is served from the frame itself; everything else is decoded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from penstock.api.exchange import PeerConnection, ProtocolViolation, RequestExchange
from penstock.api.fetch import FetchApi
from penstock.api.produce import ProduceApi
from penstock.api.routes import RequestContext, Route
from penstock.api.versions import ApiVersionsApi
from penstock.runtime.logging import get_logger
from penstock.runtime.stats import RequestStats
from penstock.wire import codec
from penstock.wire.apis import ApiKey, name_of, response_header_version
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import RequestHeader, parse_request_header, response_head
from penstock.wire.messages.fetch import FetchRequest
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.schema import MalformedMessage, Payload

log = get_logger(__name__)

P = TypeVar("P", bound=Payload)
MAX_FETCH_ELEMENTS = 120_000
"""Topics and partitions that one Fetch may name: each is looked at on the event loop."""


class Dispatcher:
    """Implements `api.exchange.FrameHandler`."""

    def __init__(
        self,
        produce: ProduceApi,
        fetch: FetchApi,
        versions: ApiVersionsApi,
        routes: Iterable[Route],
        stats: RequestStats,
    ) -> None:
        self.produce, self.fetch, self.versions = produce, fetch, versions
        self.stats = stats
        self.routes = {route.request.KEY: route for route in routes}
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        try:
            if connection.produce_template is not None and self.produce.handle_alike(
                connection, frame, connection.produce_template
            ):
                return
            header = parse_request_header(frame)
            if header.api_key == ApiKey.PRODUCE:
                check_version(header, 0, ProduceRequest.VERSIONS[1])
                self.produce.handle(connection, frame, header.body_offset, header.version, header.correlation_id)
            elif header.api_key == ApiKey.FETCH:
                self.on_fetch(connection, frame, header)
            elif header.api_key == ApiKey.API_VERSIONS:
                self.on_api_versions(connection, frame, header)
            else:
                self.on_other(connection, frame, header)
        except MalformedMessage as e:
            raise ProtocolViolation(str(e)) from e

    def on_fetch(self, connection: PeerConnection, frame: memoryview, header: RequestHeader) -> None:
        check_version(header, *FetchRequest.VERSIONS)
        request = codec.decode(FetchRequest, header.version, frame, header.body_offset, MAX_FETCH_ELEMENTS)
        exchange = connection.open_exchange()
        self.fetch.handle(request, header.version, header.correlation_id, exchange, connection.peer.host)

    def on_api_versions(self, connection: PeerConnection, frame: memoryview, header: RequestHeader) -> None:
        """Asked before the client knows any version, so one that is not served gets an answer too (KIP-511)."""
        response, version = self.versions.answer(frame, header)
        connection.open_exchange().reply([encode(response, version, header)])

    def on_other(self, connection: PeerConnection, frame: memoryview, header: RequestHeader) -> None:
        route = self.routes.get(header.api_key)
        if route is None:
            raise ProtocolViolation(f"API {name_of(header.api_key)} is not served")
        check_version(header, route.first, route.last)
        request = decode(route.request, frame, header)
        exchange = connection.open_exchange()
        context = RequestContext(header.version, header.correlation_id, header.client_id, connection.peer, exchange)
        self.run(route, request, context, header)

    def run(self, route: Route, request: Payload, context: RequestContext, header: RequestHeader) -> None:
        """Calls the handler; where it waits, the connection goes on."""
        started = self.stats.now_s()
        try:
            result = route.handler(request, context)
            if isinstance(result, Payload):
                self.reply(result, header, context.exchange, started)
                return
        except Exception as e:
            self.failed(e, route, request, context.exchange, header)
            return
        task = asyncio.ensure_future(self.finish(result, route, request, context, header, started))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def finish(
        self,
        result: Awaitable[Payload],
        route: Route,
        request: Payload,
        context: RequestContext,
        header: RequestHeader,
        started: float,
    ) -> None:
        try:
            self.reply(await result, header, context.exchange, started)
        except Exception as e:
            self.failed(e, route, request, context.exchange, header)

    def reply(self, response: Payload, header: RequestHeader, exchange: RequestExchange, started: float) -> None:
        self.stats.observe(header.api_key, self.stats.now_s() - started)
        if not exchange.is_disconnected:
            exchange.reply([encode(response, header.version, header)])

    def failed(
        self, error: Exception, route: Route, request: Payload, exchange: RequestExchange, header: RequestHeader
    ) -> None:
        """A handler let an exception escape: our bug, or a room below that failed."""
        log.error("request failed", api=name_of(header.api_key), version=header.version, exc_info=error)
        answer = None
        if route.failure is not None:
            try:
                answer = encode(route.failure(request, ErrorCode.UNKNOWN_SERVER_ERROR), header.version, header)
            except Exception as e:  # the connection must not wait for an answer that never comes
                log.error("a failure could not be told", api=name_of(header.api_key), exc_info=e)
        if answer is None:
            exchange.abort(f"{name_of(header.api_key)} failed")
        else:
            exchange.reply([answer])

    async def close(self) -> None:
        """Cancels what still waits; its connections are gone by now."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.produce.close()


def check_version(header: RequestHeader, first: int, last: int) -> None:
    """Raises ProtocolViolation for a version that is not served."""
    if not first <= header.version <= last:
        served = f"{first} to {last}"
        raise ProtocolViolation(f"{name_of(header.api_key)} is served in versions {served}, not {header.version}")


def decode(cls: type[P], frame: memoryview, header: RequestHeader) -> P:
    check_version(header, *cls.VERSIONS)
    if header.api_key == ApiKey.METADATA:
        # librdkafka asks for all topics with an array count of four bytes where one is due, so at most three are
        # left over: of the flags that follow it.
        request, end = codec.decode_from(cls, header.version, frame, header.body_offset)
        left_over = bytes(frame[end:])
        if left_over and (len(left_over) > 3 or max(left_over) > 1):
            raise MalformedMessage(f"Metadata v{header.version} ends at byte {end} of {len(frame)}")
        return request
    return codec.decode(cls, header.version, frame, header.body_offset)


def encode(response: Payload, version: int, header: RequestHeader) -> bytearray:
    """The whole frame, size field included."""
    head = response_head(header.correlation_id, response_header_version(header.api_key, version))
    frame = codec.encode(response, version, head)
    frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
    return frame
