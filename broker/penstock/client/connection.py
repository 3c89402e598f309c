"""One connection to one broker: versions negotiated, requests pipelined, answers matched, everything bounded.

`Cluster` opens and keeps connections; nothing else in the client touches a socket. Requests may be sent without
waiting for earlier answers; the broker answers in order.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
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
SESSION_USED = 0.85
"""The part of a session's lifetime after which the connection is replaced by a new one (KIP-368)."""
CORRELATION = struct.Struct(">i")

NEWEST_USED = {0: 12, 1: 12, 8: 9, 9: 7, 22: 5}
"""By API key, where newer versions name topics by id, or several groups, which most callers have no use for."""


class PendingResponse:
    """A request whose answer has not come."""

    __slots__ = ("correlation_id", "deadline", "flexible", "future", "key", "response", "version")

    def __init__(
        self, correlation_id: int, request: Payload, version: int, response: type[Payload], deadline: float,
        future: asyncio.Future[Any],
    ) -> None:  # fmt: skip
        self.correlation_id, self.key, self.version = correlation_id, request.KEY, version
        self.response, self.deadline, self.future = response, deadline, future
        self.flexible = version >= request.FLEXIBLE_FROM


class ClientConnection(asyncio.BufferedProtocol):
    """A connection whose versions are negotiated; make one with `ClientConnection.open`."""

    def __init__(
        self,
        address: str,
        client_id: str,
        request_timeout_ms: float,
        max_response_bytes: int,
        newest_used: Mapping[int, int],
    ) -> None:
        self.address = address
        self.newest_used = newest_used
        self.request_timeout_ms = request_timeout_ms
        self._client_id = client_id.encode()
        self._loop = asyncio.get_running_loop()
        self._frames = ResponseReader(max_response_bytes)
        self._pending: deque[PendingResponse] = deque()
        self._next_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: ConnectionFailed | TlsFailed | None = None
        self._answers = 0
        self._expires_s = float("inf")
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()

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
        newest_used: Mapping[int, int] = NEWEST_USED,
        tls: ssl.SSLContext | None = None,
        sasl: Sasl | None = None,
    ) -> ClientConnection:
        """Connects, by TLS where there is a context, asks for the broker's versions and says who it is.

        Raises `ConnectionFailed`, `TlsFailed`, `AuthenticationFailed`, naming the address. `newest_used` has, by API
        key, versions beyond which none is spoken though both sides know them.
        """
        loop = asyncio.get_running_loop()
        address = join_host_port(host, port)
        connected = False
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, request_timeout_ms, max_response_bytes, newest_used),
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
                    connection._fail(ConnectionFailed(f"{address}: the connection was given up"))
                    raise
                return connection
        except TimeoutError:
            hint = f" ({PLAIN_PORT})" if tls is not None else f" ({TLS_PORT})" if connected else ""
            raise ConnectionFailed(f"{address}: no connection within {connect_timeout_ms:.0f} ms{hint}") from None
        except ssl.CertificateError as e:
            reason = e.verify_message or e.reason or str(e)
            raise TlsFailed(f"{address}: the broker's certificate is not accepted: {reason}") from None
        except ssl.SSLError as e:
            raise tls_error(address, e) from None
        except ConnectionError as e:
            hint = f" ({PLAIN_PORT})" if tls is not None and not isinstance(e, ConnectionRefusedError) else ""
            raise ConnectionFailed(f"{address}: {os.strerror(e.errno) if e.errno else 'closed'}{hint}") from None
        except OSError as e:
            raise ConnectionFailed(f"{address}: {os.strerror(e.errno) if e.errno and e.errno > 0 else e}") from None
        except (UnicodeError, OverflowError) as e:  # a host or port that a broker advertises and nobody can resolve
            raise ConnectionFailed(f"{address}: not a valid address: {e}; correct advertised.listeners") from None

    @property
    def closed(self) -> bool:
        return self._gone is not None

    @property
    def expiring(self) -> bool:
        """Whether the broker will soon want to hear again who this is: time for a new connection in its place."""
        return self._loop.time() >= self._expires_s

    @property
    def writable(self) -> bool:
        """Whether little enough waits to be written."""
        return self._writable.is_set()

    @property
    def in_flight(self) -> int:
        """Requests without an answer yet."""
        return len(self._pending)

    def version(self, request: type[Payload], newest: int | None = None) -> int:
        """The newest version that both sides know, and that is used; or up to `newest`, for who knows more of an API.

        Raises `UnsupportedByBroker`.
        """
        low, high = self._versions.get(request.KEY, (0, -1))
        first, last = request.VERSIONS
        chosen = min(high, last, self.newest_used.get(request.KEY, last) if newest is None else newest)
        if chosen < max(low, first):
            name = request.__name__.removesuffix("Request")
            offers = f"versions {low} to {high}" if high >= 0 else "no version"
            raise UnsupportedByBroker(
                f"{self.address} serves {offers} of {name} (API {request.KEY}), this client speaks {first} to {last}"
            )
        return chosen

    def serves(self, request: type[Payload]) -> bool:
        """Whether there is a version of this API that both sides know."""
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
        """Sends a request and waits for its answer. `newest` is as in `version`.

        Raises `ConnectionFailed` (also when it is lost meanwhile), `RequestTimedOut`, `UnsupportedByBroker`.
        Cancelling drops the answer, not the request.
        """
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
        """As `call`, but returns at once with a future, in the order of sending."""
        version = self.version(type(request), newest)
        if max_version is not None:
            version = min(version, max_version)
        return self._send(request, version, response, timeout_ms)

    def send_only(self, request: Payload) -> None:
        """Sends a request that gets no answer (Produce with acks=0)."""
        self._write(request_frame(request, self.version(type(request)), self._correlation_id(), self._client_id))

    async def drained(self) -> None:
        """Returns once little enough waits to be written; raises `ConnectionFailed` where it is gone."""
        await self._writable.wait()
        if self._gone is not None:
            raise self._gone

    async def close(self) -> None:
        """Closes once what was written has left; what is under way fails with `ConnectionFailed`."""
        if self._transport is not None and self._gone is None:
            self._transport.close()
        self._fail(ConnectionFailed(f"{self.address}: closed by this client"), abort=False)
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._lost.wait()
        except TimeoutError:
            pass  # a broker that does not read: what is left is given up
        finally:
            self._transport.abort()

    async def retire(self) -> None:
        """Closes once everything that was sent is answered, or has failed."""
        under_way = [pending.future for pending in self._pending]
        if under_way:
            await asyncio.wait(under_way)
        await self.close()

    # What follows is called by the loop or by the methods above.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self._why_lost(exc))
        self._lost.set()

    def _why_lost(self, exc: Exception | None) -> ConnectionFailed | TlsFailed:
        if isinstance(exc, ssl.SSLError):  # in TLS 1.3 a broker turns away a client's certificate after the handshake
            return tls_error(self.address, exc)
        reason = f"connection lost ({exc})" if exc else "closed by the broker"
        if self._answers == 0:
            is_tls = self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
            reason += f" before it answered at all: {WANTS_CERTIFICATE if is_tls else TLS_PORT}"
        elif self._answers == 1 and self._pending:
            reason += " at the first request: does its listener want SASL?"
        return ConnectionFailed(f"{self.address}: {reason}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.received(nbytes):
                self._answer(frame)
        except MalformedMessage as e:
            self._fail(ConnectionFailed(f"{self.address}: {e}"))

    def _answer(self, frame: memoryview) -> None:
        if len(frame) < 4 or not self._pending:
            raise MalformedMessage("an answer that nobody asked for")
        pending = self._pending.popleft()
        (correlation_id,) = CORRELATION.unpack_from(frame)
        if correlation_id != pending.correlation_id:
            self._pending.appendleft(pending)
            raise MalformedMessage(f"answer {correlation_id} where {pending.correlation_id} is next")
        self._answers += 1
        if pending.future.done():
            return
        try:
            pending.future.set_result(self._decode(pending, response_body(pending.key, pending.flexible, frame)))
        except MalformedMessage as e:
            pending.future.set_exception(ConnectionFailed(f"{self.address}: {e}"))
            raise

    @staticmethod
    def _decode(pending: PendingResponse, body: memoryview) -> Payload:
        version = pending.version
        if pending.response is ApiVersionsResponse and bytes(body[:2]) == UNSUPPORTED_VERSION:
            version = 0  # the broker answers a version it does not know in the oldest one
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
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadlines)
        return future

    def _write(self, frame: bytearray) -> None:
        if self._gone is not None:
            raise self._gone
        assert self._transport is not None, "a request before the connection was made"
        self._transport.write(frame)

    def _check_deadlines(self) -> None:
        """One timer for all that is pending: a request that is over its time takes the connection with it."""
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        soonest = min(pending.deadline for pending in self._pending)
        if soonest > now:
            self._timer = self._loop.call_at(soonest, self._check_deadlines)
            return
        self._fail(RequestTimedOut(f"{self.address}: no answer in time"))

    def _fail(self, error: ConnectionFailed | TlsFailed, *, abort: bool = True) -> None:
        if self._gone is not None:
            return
        self._gone = error
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None and abort:
            self._transport.abort()
        for pending in self._pending:
            if not pending.future.done():
                pending.future.set_exception(type(error)(str(error)))
        self._pending.clear()

    async def _authenticate(self, sasl: Sasl) -> None:
        lifetime_ms = await authenticate(self, sasl)
        if lifetime_ms:
            self._expires_s = self._loop.time() + SESSION_USED * lifetime_ms / 1000

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
    """What an error of the TLS library means; only what may pass is a `ConnectionFailed`."""
    reason = error.reason or str(error)
    if reason in NO_TLS:
        return ConnectionFailed(f"{address}: no TLS handshake ({reason}): {PLAIN_PORT}")
    hint = f": {WANTS_CERTIFICATE}" if "ALERT" in reason else ""
    return TlsFailed(f"{address}: TLS failed ({reason}){hint}")


TLS_PORT = "is this a TLS port, spoken to without TLS?"
WANTS_CERTIFICATE = "does it want a client's certificate (certificate_file, key_file)?"
PLAIN_PORT = "is this a port without TLS?"
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"})
VERSIONS_REQUEST = ApiVersionsRequest(client_software_name="penstock", client_software_version="0.1.0")
UNSUPPORTED_VERSION = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
