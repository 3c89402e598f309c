"""A connection to one broker: version negotiation, pipelined requests, timeouts, bounded buffers.

`ClusterConnections` opens connections; no other module of the client uses sockets. Requests are pipelined, as the
broker responds in order.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from penstock.client.authentication import authenticate
from penstock.client.errors import ConnectionFailed, RequestTimedOut, TlsFailed, UnsupportedByBroker
from penstock.client.frames import ResponseReader, request_frame, response_body
from penstock.client.security import Sasl
from penstock.config.addresses import join_host_port
from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schema import MalformedMessage, Payload

R = TypeVar("R", bound=Payload)

MAX_RESPONSE_BYTES = 128 * 1024 * 1024
MAX_RESPONSE_ELEMENTS = 8_000_000
CLOSE_TIMEOUT_S = 5.0
SESSION_RENEWAL_SHARE = 0.85
"""Share of a SASL session's lifetime after which the connection is replaced (KIP-368)."""
CORRELATION = struct.Struct(">i")

MAX_USED_VERSIONS = {0: 12, 1: 12, 8: 9, 9: 7, 22: 5}
"""Maximum used version by API key: newer ones use topic ids or several groups, which most callers do not need."""


class PendingResponse:
    """A request whose response is outstanding."""

    __slots__ = ("correlation_id", "deadline", "flexible", "future", "key", "response", "version")

    def __init__(
        self, correlation_id: int, request: Payload, version: int, response: type[Payload], deadline: float,
        future: asyncio.Future[Any],
    ) -> None:  # fmt: skip
        self.correlation_id, self.key, self.version = correlation_id, request.KEY, version
        self.response, self.deadline, self.future = response, deadline, future
        self.flexible = version >= request.FLEXIBLE_FROM


class ClientConnection(asyncio.BufferedProtocol):
    """A connection with negotiated versions; open one with `ClientConnection.open`."""

    def __init__(
        self,
        address: str,
        client_id: str,
        request_timeout_ms: float,
        max_response_bytes: int,
        max_used_versions: Mapping[int, int],
    ) -> None:
        self.address = address
        self.max_used_versions = max_used_versions
        self.request_timeout_ms = request_timeout_ms
        self._client_id = client_id.encode()
        self._loop = asyncio.get_running_loop()
        self._frames = ResponseReader(max_response_bytes)
        self._pending: deque[PendingResponse] = deque()
        self._next_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0  # uvloop's handle of a time that has passed has no when()
        self._failure: ConnectionFailed | TlsFailed | None = None
        self._response_count = 0
        self._expires_s = float("inf")
        self._writable = asyncio.Event()
        self._is_buffer_full = False
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._throttled_until = 0.0
        self._lost = asyncio.Event()
        self.on_lost: Callable[[], None] | None = None
        """Called when the broker or the network has ended the connection, before outstanding requests fail."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "penstock",
        connect_timeout_ms: float = 10_000,
        request_timeout_ms: float = 30_000,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        max_used_versions: Mapping[int, int] = MAX_USED_VERSIONS,
        tls: ssl.SSLContext | None = None,
        sasl: Sasl | None = None,
    ) -> ClientConnection:
        """Connect (with TLS if `tls` is set), negotiate versions and authenticate.

        Raises `ConnectionFailed`, `TlsFailed`, `AuthenticationFailed`, naming the address. `max_used_versions` limits
        the used version by API key, even if both sides support newer ones.
        """
        loop = asyncio.get_running_loop()
        address = join_host_port(host, port)
        connected = False
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, request_timeout_ms, max_response_bytes, max_used_versions),
                    host,
                    port,
                    ssl=tls,
                )
                connected = True
                try:
                    await connection._negotiate()
                    if sasl is not None:
                        await connection._authenticate(sasl)
                except BaseException:
                    connection._fail(ConnectionFailed(f"{address}: connecting was cancelled"))
                    raise
                return connection
        except TimeoutError:
            hint = f" ({PLAIN_PORT_HINT})" if tls is not None else f" ({TLS_PORT_HINT})" if connected else ""
            raise ConnectionFailed(f"{address}: no connection within {connect_timeout_ms:.0f} ms{hint}") from None
        except ssl.CertificateError as e:
            reason = e.verify_message or e.reason or str(e)
            raise TlsFailed(f"{address}: the broker's certificate is not trusted: {reason}") from None
        except ssl.SSLError as e:
            raise tls_error(address, e) from None
        except ConnectionError as e:
            hint = f" ({PLAIN_PORT_HINT})" if tls is not None and not isinstance(e, ConnectionRefusedError) else ""
            raise ConnectionFailed(f"{address}: {os.strerror(e.errno) if e.errno else 'closed'}{hint}") from None
        except OSError as e:
            raise ConnectionFailed(f"{address}: {os.strerror(e.errno) if e.errno and e.errno > 0 else e}") from None
        except (UnicodeError, OverflowError) as e:  # a broker may advertise an invalid host or port
            raise ConnectionFailed(
                f"{address}: invalid address: {e}; correct the broker's advertised.listeners"
            ) from None

    @property
    def closed(self) -> bool:
        """Return whether the connection is closed or has failed."""
        return self._failure is not None

    @property
    def expiring(self) -> bool:
        """Return whether the SASL session ends soon, so that a new connection is needed."""
        return self._loop.time() >= self._expires_s

    @property
    def writable(self) -> bool:
        """Return whether the write buffer is below its limit and the broker does not throttle this client."""
        return self._writable.is_set()

    @property
    def throttled(self) -> bool:
        """Return whether this client exceeds a quota, so that the broker reads no request at present (KIP-219)."""
        return self._throttle_timer is not None

    @property
    def in_flight(self) -> int:
        """Return the number of outstanding responses."""
        return len(self._pending)

    def version(self, request: type[Payload], newest: int | None = None) -> int:
        """Return the newest used version of an API that both sides support, or up to `newest` if set.

        Raises `UnsupportedByBroker`.
        """
        low, high = self._versions.get(request.KEY, (0, -1))
        first, last = request.VERSIONS
        chosen = min(high, last, self.max_used_versions.get(request.KEY, last) if newest is None else newest)
        if chosen < max(low, first):
            name = request.__name__.removesuffix("Request")
            offers = f"versions {low} to {high}" if high >= 0 else "no version"
            raise UnsupportedByBroker(
                f"{self.address} supports {offers} of {name} (API {request.KEY}), this client {first} to {last}"
            )
        return chosen

    def serves(self, request: type[Payload]) -> bool:
        """Return whether both sides support a common version of this API."""
        try:
            return self.version(request) >= 0
        except UnsupportedByBroker:
            return False

    async def call(
        self,
        request: Payload,
        response: type[R],
        *,
        timeout_ms: float | None = None,
        max_version: int | None = None,
        newest: int | None = None,
    ) -> R:
        """Send a request, after the throttle time if the broker throttles this client, and return its response.

        `newest` is as in `version`.
        Raises `ConnectionFailed`, `RequestTimedOut`, `UnsupportedByBroker`. Cancelling discards the response, not the
        request.
        """
        if self._throttle_timer is not None:
            await self.drained()
        return await self.send(request, response, timeout_ms=timeout_ms, max_version=max_version, newest=newest)

    def send(
        self,
        request: Payload,
        response: type[R],
        *,
        timeout_ms: float | None = None,
        max_version: int | None = None,
        newest: int | None = None,
    ) -> asyncio.Future[R]:
        """Send a request and return a future of its response at once."""
        version = self.version(type(request), newest)
        if max_version is not None:
            version = min(version, max_version)
        return self._send(request, version, response, timeout_ms)

    def send_only(self, request: Payload) -> None:
        """Send a request without response (Produce with acks=0)."""
        self._write(request_frame(request, self.version(type(request)), self._correlation_id(), self._client_id))

    async def drained(self) -> None:
        """Wait until the connection is `writable`. Raises `ConnectionFailed` if it has failed."""
        await self._writable.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Close after the write buffer is flushed. Outstanding requests fail with `ConnectionFailed`."""
        if self._transport is not None and self._failure is None:
            self._transport.close()
        self._fail(ConnectionFailed(f"{self.address}: closed by this client"), abort=False)
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._lost.wait()
        except TimeoutError:
            pass  # the broker does not read: discard the write buffer
        finally:
            self._transport.abort()

    async def retire(self) -> None:
        """Close once all outstanding requests are answered or have failed."""
        outstanding = [pending.future for pending in self._pending]
        if outstanding:
            await asyncio.wait(outstanding)
        await self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and disable Nagle's algorithm."""
        self._transport = cast(asyncio.Transport, transport)
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail outstanding requests."""
        if self.on_lost is not None and self._failure is None:
            self.on_lost()
        self._fail(self._lost_reason(exc))
        self._lost.set()

    def _lost_reason(self, exc: Exception | None) -> ConnectionFailed | TlsFailed:
        if isinstance(exc, ssl.SSLError):  # in TLS 1.3, client certificates are rejected after the handshake
            return tls_error(self.address, exc)
        reason = f"connection lost ({exc})" if exc else "closed by the broker"
        if self._response_count == 0:
            is_tls = self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
            reason += f" before the first response: {CERTIFICATE_HINT if is_tls else TLS_PORT_HINT}"
        elif self._response_count == 1 and self._pending:
            reason += " at the first request; check whether the listener requires SASL"
        return ConnectionFailed(f"{self.address}: {reason}")

    def pause_writing(self) -> None:
        """Mark the connection as not writable."""
        self._is_buffer_full = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Mark the connection as writable, unless the broker throttles this client."""
        self._is_buffer_full = False
        if self._throttle_timer is None:
            self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for received bytes."""
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the responses that received bytes complete."""
        try:
            for frame in self._frames.received(nbytes):
                self._handle_response(frame)
        except MalformedMessage as e:
            self._fail(ConnectionFailed(f"{self.address}: {e}"))

    def _handle_response(self, frame: memoryview) -> None:
        if len(frame) < 4 or not self._pending:
            raise MalformedMessage("unexpected response")
        pending = self._pending.popleft()
        (correlation_id,) = CORRELATION.unpack_from(frame)
        if correlation_id != pending.correlation_id:
            self._pending.appendleft(pending)
            raise MalformedMessage(f"response {correlation_id} instead of {pending.correlation_id}")
        self._response_count += 1
        if pending.future.done():
            return
        try:
            message = self._decode(pending, response_body(pending.key, pending.flexible, frame))
        except MalformedMessage as e:
            pending.future.set_exception(ConnectionFailed(f"{self.address}: {e}"))
            raise
        throttle_ms = getattr(message, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttle(throttle_ms / 1000)
        pending.future.set_result(message)

    def _throttle(self, delay_s: float) -> None:
        """Mark the connection as not writable for a time: the broker does not read it before (KIP-219)."""
        until = self._loop.time() + delay_s
        if self._throttle_timer is not None:
            if self._throttled_until >= until:
                return
            self._throttle_timer.cancel()
        self._writable.clear()
        self._throttled_until = until
        self._throttle_timer = self._loop.call_at(until, self._end_throttle)

    def _end_throttle(self) -> None:
        self._throttle_timer = None
        if not self._is_buffer_full:
            self._writable.set()

    @staticmethod
    def _decode(pending: PendingResponse, body: memoryview) -> Payload:
        version = pending.version
        if pending.response is ApiVersionsResponse and bytes(body[:2]) == UNSUPPORTED_VERSION:
            version = 0  # brokers answer an unsupported ApiVersions request with version 0
        message, _ = codec.decode_from(pending.response, version, body, max_elements=MAX_RESPONSE_ELEMENTS)
        return message

    def _correlation_id(self) -> int:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return self._next_id

    def _send(self, request: Payload, version: int, response: type[R], timeout_ms: float | None) -> asyncio.Future[R]:
        correlation_id = self._correlation_id()
        frame = request_frame(request, version, correlation_id, self._client_id)
        self._write(frame)
        deadline = self._loop.time() + (self.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        future: asyncio.Future[R] = self._loop.create_future()
        self._pending.append(PendingResponse(correlation_id, request, version, response, deadline, future))
        if self._timer is not None and self._timer_due > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set_timer(deadline)
        return future

    def _set_timer(self, due: float) -> None:
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._check_deadlines)

    def _write(self, frame: bytearray) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None, "request before connection_made"
        self._transport.write(frame)

    def _check_deadlines(self) -> None:
        """Close the connection if a request has timed out. One timer serves all requests."""
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        soonest = min(pending.deadline for pending in self._pending)
        if soonest > now:
            self._set_timer(soonest)
            return
        self._fail(RequestTimedOut(f"{self.address}: request timed out"))

    def _fail(self, error: ConnectionFailed | TlsFailed, *, abort: bool = True) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        if self._transport is not None and abort:
            self._transport.abort()
        for pending in self._pending:
            if not pending.future.done():
                pending.future.set_exception(type(error)(str(error)))
        self._pending.clear()

    async def _authenticate(self, sasl: Sasl) -> None:
        lifetime_ms = await authenticate(self, sasl)
        if lifetime_ms:
            self._expires_s = self._loop.time() + SESSION_RENEWAL_SHARE * lifetime_ms / 1000

    async def _negotiate(self) -> None:
        request = VERSIONS_REQUEST
        answer = await self._send(request, 3, ApiVersionsResponse, None)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            own = [api.max_version for api in answer.api_keys if api.api_key == ApiVersionsRequest.KEY]
            newest = max(own, default=0)
            answer = await self._send(request, min(newest, 2), ApiVersionsResponse, None)
        if answer.error_code:
            raise ConnectionFailed(f"{self.address}: ApiVersions failed with error {answer.error_code}")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def tls_error(address: str, error: ssl.SSLError) -> ConnectionFailed | TlsFailed:
    """Map an error of the TLS library; only retriable ones become `ConnectionFailed`."""
    reason = error.reason or str(error)
    if reason in PLAIN_PORT_REASONS:
        return ConnectionFailed(f"{address}: no TLS handshake ({reason}): {PLAIN_PORT_HINT}")
    hint = f": {CERTIFICATE_HINT}" if "ALERT" in reason else ""
    return TlsFailed(f"{address}: TLS failed ({reason}){hint}")


TLS_PORT_HINT = "this may be a TLS port; configure TLS"
CERTIFICATE_HINT = "the broker may require a client certificate (certificate_file, key_file)"
PLAIN_PORT_HINT = "this may be a port without TLS"
PLAIN_PORT_REASONS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"})
VERSIONS_REQUEST = ApiVersionsRequest(client_software_name="penstock", client_software_version="0.1.0")
UNSUPPORTED_VERSION = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
