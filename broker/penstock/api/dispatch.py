"""Dispatches request frames to the handlers of their APIs, and encodes the responses.

The server calls it for each frame. Produce is served from the raw frame; everything else is decoded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock.api.authorization.access import OUTDATED_RIGHTS
from penstock.api.authorization.enforcement import Admission, Enforcement
from penstock.api.exchange import PeerConnection, PeerInfo, ProtocolViolation, RequestExchange
from penstock.api.fetch import FetchApi
from penstock.api.metering import RequestMetering
from penstock.api.produce import ProduceApi
from penstock.api.routes import RequestContext, Route
from penstock.api.versions import ApiVersionsApi
from penstock.runtime.logging import get_logger
from penstock.runtime.stats import RequestStats
from penstock.runtime.tasks import report
from penstock.security.quotas.client_quotas import ClientQuotas
from penstock.state.store import StoreError
from penstock.wire import codec
from penstock.wire.acl import CLUSTER_NAME, AclOperation, ResourceType
from penstock.wire.apis import ApiKey, api_name, response_header_version
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import RequestHeader, parse_request_header, response_head
from penstock.wire.messages.fetch import FetchRequest
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.schema import MalformedMessage, Payload

log = get_logger(__name__)

MAX_FETCH_ELEMENTS = 120_000
"""Topics and partitions per Fetch request: each one is processed on the event loop."""


class Dispatcher:
    """Implements `api.exchange.FrameHandler`."""

    def __init__(
        self,
        produce: ProduceApi,
        fetch: FetchApi,
        versions: ApiVersionsApi,
        routes: Iterable[Route],
        stats: RequestStats,
        quotas: ClientQuotas,
        enforcement: Enforcement | None = None,
    ) -> None:
        self.quotas, self.metering = quotas, RequestMetering(quotas, stats.now_s, self.may_be_broker)
        self.produce, self.fetch, self.versions = produce, fetch, versions
        self.stats, self.enforcement = stats, enforcement
        self.routes = {route.request.KEY: route for route in routes}
        self.tasks: set[asyncio.Future[Any]] = set()

    def may_be_broker(self, peer: PeerInfo) -> bool:
        """Return whether a client may do what only brokers do; without authorization everyone may."""
        return self.enforcement is None or self.enforcement.authorizer.is_allowed(
            peer.principal, peer.host, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        """Dispatch a frame. Raises ProtocolViolation if it is not a valid request."""
        if self.quotas.limits_clients:
            self.metering.dispatch(connection, frame, self.serve)
        else:
            self.serve(connection, frame)

    def serve(self, connection: PeerConnection, frame: memoryview) -> None:
        """Serve a request. Raises ProtocolViolation if it is not valid."""
        if self.enforcement is not None and not self.enforcement.authorizer.may_decide(connection.peer.principal):
            connection.open_exchange().abort(OUTDATED_RIGHTS)
            return
        try:
            if connection.produce_template is not None and self.produce.handle_template(
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
        """Decode and serve a Fetch request."""
        check_version(header, *FetchRequest.VERSIONS)
        request = codec.decode_request(FetchRequest, header.version, frame, header.body_offset, MAX_FETCH_ELEMENTS)
        exchange = connection.open_exchange()
        self.fetch.handle(request, header.version, header.correlation_id, exchange, connection.peer, connection.meter)

    def on_api_versions(self, connection: PeerConnection, frame: memoryview, header: RequestHeader) -> None:
        """Serve ApiVersions. An unsupported version gets a response too: the client knows no version yet (KIP-511)."""
        response, version = self.versions.respond(frame, header)
        exchange = connection.open_exchange()
        exchange.reply([encode_throttled(response, version, header, exchange)])

    def on_other(self, connection: PeerConnection, frame: memoryview, header: RequestHeader) -> None:
        """Decode a request and run the handler of its route."""
        route = self.routes.get(header.api_key)
        if route is None:
            raise ProtocolViolation(f'API "{api_name(header.api_key)}" is not supported')
        check_version(header, route.first, route.last)
        request = route.decode(header.version, frame, header.body_offset)
        exchange = connection.open_exchange()
        context = RequestContext(
            header.version, header.correlation_id, header.client_id, connection.peer, exchange, connection.meter
        )
        self.run_handler(route, request, context, header)

    def run_handler(self, route: Route, request: Payload, context: RequestContext, header: RequestHeader) -> None:
        """Call the handler with what is allowed of the request; a coroutine of the response runs in a task."""
        started, admission = self.stats.now_s(), None
        try:
            if self.enforcement is not None:
                admission = self.enforcement.admit(route, request, context)
                request = admission.request
                if admission.response is not None:
                    self.reply(admission.response, header, context.exchange, started)
                    return
            result = route.handler(request, context)
            if result is None:
                return
            if isinstance(result, Payload):
                self.reply(result, header, context.exchange, started, admission)
                return
        except Exception as e:
            self.handle_failure(e, route, request, context.exchange, header)
            return
        if context.meter is not None:
            result = context.meter.timed(result)
        response = asyncio.ensure_future(result)  # a future needs no task
        self.tasks.add(response)
        response.add_done_callback(partial(self.on_response, route, request, context, header, started, admission))

    def on_response(
        self,
        route: Route,
        request: Payload,
        context: RequestContext,
        header: RequestHeader,
        started: float,
        admission: Admission | None,
        response: asyncio.Future[Payload],
    ) -> None:
        """Send the response of a handler that has returned an awaitable."""
        self.tasks.discard(response)
        if response.cancelled():
            return
        try:
            self.reply(response.result(), header, context.exchange, started, admission)
        except Exception as e:
            self.handle_failure(e, route, request, context.exchange, header)

    def reply(
        self,
        response: Payload,
        header: RequestHeader,
        exchange: RequestExchange,
        started: float,
        admission: Admission | None = None,
    ) -> None:
        """Send the response, completed by the admission, and record the request's latency."""
        if admission is not None:
            response = admission.finish(response)
        self.stats.observe(header.api_key, self.stats.now_s() - started)
        if not exchange.is_disconnected:
            throttle_ms: int = getattr(response, "throttle_time_ms", 0)
            if throttle_ms:  # by a quota that the handler has charged
                exchange.throttle(throttle_ms)
            exchange.reply([encode_throttled(response, header.version, header, exchange)])

    def handle_failure(
        self, error: Exception, route: Route, request: Payload, exchange: RequestExchange, header: RequestHeader
    ) -> None:
        """Log an exception from a handler and send UNKNOWN_SERVER_ERROR; abort if the response cannot carry it."""
        if isinstance(error, StoreError):
            log.error("request failed", api=api_name(header.api_key), version=header.version, reason=str(error))
        else:
            report("request failed", error, api=api_name(header.api_key), version=header.version)
        response_frame = None
        if route.failure is not None:
            try:
                response = route.failure(request, ErrorCode.UNKNOWN_SERVER_ERROR)
                response_frame = encode_throttled(response, header.version, header, exchange)
            except Exception as e:  # the connection must not wait for a response that never comes
                report("failed to encode an error response", e, api=api_name(header.api_key))
        if response_frame is None:
            exchange.abort(f"{api_name(header.api_key)} failed")
        else:
            exchange.reply([response_frame])

    async def close(self) -> None:
        """Cancel the waiting handlers. Called once all connections are closed."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.produce.close()
        self.fetch.close()


def check_version(header: RequestHeader, first: int, last: int) -> None:
    """Raise ProtocolViolation for an unsupported version."""
    if not first <= header.version <= last:
        served = f"{first} to {last}"
        raise ProtocolViolation(
            f'version "{header.version}" of {api_name(header.api_key)} is not supported; use {served}'
        )


def encode_throttled(response: Payload, version: int, header: RequestHeader, exchange: RequestExchange) -> bytearray:
    """Return the response frame, with the throttle time of the exchange if the API reports it."""
    if exchange.throttle_ms and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = max(response.throttle_time_ms, exchange.throttle_ms)
    return encode(response, version, header)


def encode(response: Payload, version: int, header: RequestHeader) -> bytearray:
    """Return the whole response frame, including its size field."""
    head = response_head(header.correlation_id, response_header_version(header.api_key, version))
    frame = codec.encode(response, version, head)
    frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
    return frame
