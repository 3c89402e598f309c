"""The stage of a connection in which the client authenticates with SASL (KIP-43, KIP-152, KIP-368).

`SaslAuthenticator` is one listener's configuration. `AuthenticationStage` dispatches a connection's frames until the
client is authenticated, and again while it re-authenticates; `Session` dispatches them in between. A failed client
learns nothing but that it failed, after a delay in which the connection is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, cast

from penstock.api.authentication_stats import UNKNOWN_MECHANISM, AuthenticationStats
from penstock.api.dispatch import Dispatcher, check_version, encode
from penstock.api.exchange import FrameHandler, PeerConnection, PeerInfo, ProtocolViolation, RequestExchange
from penstock.runtime.tasks import report, report_failure
from penstock.security.principal import Principal
from penstock.security.sasl.exchange import (
    AuthenticationRejected,
    FailureReason,
    Identity,
    SaslMechanism,
    ServerExchange,
    Step,
)
from penstock.wire import codec
from penstock.wire.apis import ApiKey, api_name
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import RequestHeader, parse_request_header
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.schema import MalformedMessage

PAUSED_FOR_AUTHENTICATION = 1 << 8
"""The pause reason of a connection whose authentication waits for a thread, for keys, or for the delay of a failure."""
MAX_REQUESTS = 16
"""Requests of one authentication, above what any mechanism needs."""
HANDSHAKE_KEY = SaslHandshakeRequest.KEY.to_bytes(2, "big")
FAILED_MESSAGE = "Authentication failed: invalid credentials or not allowed to use them"
"""The same for every reason, so that a client cannot tell them apart."""


class SaslConnection(PeerConnection, Protocol):
    """A connection, as authentication sees it; `server.core.ConnectionCore` implements it."""

    stage: FrameHandler

    def begin_handshake(self, stage: FrameHandler, max_frame_bytes: int, setting: str) -> None:
        """Let `stage` dispatch the next frames, and close the connection if no `end_handshake` follows in time.

        Frames are limited to `max_frame_bytes`, by the setting of this name.
        """

    def end_handshake(self, peer: PeerInfo, stage: FrameHandler) -> None:
        """Let `stage` dispatch the next frames, of usual size, from the client that `peer` describes."""

    def pause(self, reason: int) -> None:
        """Stop reading and dispatching."""

    def resume(self, reason: int) -> None:
        """Remove a pause reason."""

    def reject(self, event: str, why: str) -> None:
        """Log `event`, and close the connection behind the completed responses."""


@dataclass(frozen=True, slots=True)
class AuthenticationLimits:
    """Settings of a listener: `sasl.server.max.receive.size`, `connection.failed.authentication.delay.ms`,
    `connections.max.reauth.ms` (0 for no limit). `reserved` are principals that no SASL user can have: the super users
    of `super.users` that are names of certificates, such as those of brokers."""

    max_receive_bytes: int = 512 * 1024
    failure_delay_s: float = 0.1
    max_session_ms: int = 0
    reserved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AuthenticationClock:
    """Times for authentication: the loop's clock in seconds, the wall clock in ms, and timers of the loop."""

    now_s: Callable[[], float]
    wall_ms: Callable[[], int]
    call_later: Callable[[float, Callable[[], None]], object]


class SaslAuthenticator:
    """What the connections of one SASL listener share."""

    def __init__(
        self,
        mechanisms: Mapping[str, SaslMechanism],
        limits: AuthenticationLimits,
        dispatcher: Dispatcher,
        stats: AuthenticationStats,
        clock: AuthenticationClock,
    ) -> None:
        self.mechanisms, self.limits, self.dispatcher = mechanisms, limits, dispatcher
        self.stats, self.clock = stats, clock
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, connection: SaslConnection) -> None:
        """Start the authentication of a new connection."""
        self.start(connection, AuthenticationStage(self, None))

    def start(self, connection: SaslConnection, stage: AuthenticationStage) -> None:
        """Let a stage dispatch the connection's frames."""
        connection.begin_handshake(stage, self.limits.max_receive_bytes, "sasl.server.max.receive.size")

    def run(self, work: Awaitable[None]) -> None:
        """Run the rest of a step in a task."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(report_failure)

    async def close(self) -> None:
        """Cancel the authentications in progress."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Session:
    """Dispatches the requests of an authenticated client until its session ends, and begins re-authentication."""

    __slots__ = ("authenticator", "ends_at_s", "mechanism")

    def __init__(self, authenticator: SaslAuthenticator, mechanism: str, ends_at_s: float | None) -> None:
        self.authenticator, self.mechanism, self.ends_at_s = authenticator, mechanism, ends_at_s

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        """Dispatch a frame; close the connection if the session is over (KIP-368)."""
        authenticator = self.authenticator
        if frame[:2] == HANDSHAKE_KEY:
            stage = AuthenticationStage(authenticator, self)
            authenticator.start(cast(SaslConnection, connection), stage)
            stage(connection, frame)
        elif self.ends_at_s is not None and authenticator.clock.now_s() >= self.ends_at_s:
            authenticator.stats.expired_sessions += 1
            cast(SaslConnection, connection).reject("session expired", "the client has not re-authenticated in time")
        else:
            authenticator.dispatcher(connection, frame)


class AuthenticationStage:
    """One authentication of a connection. `session` is the one that it renews; None at the first."""

    __slots__ = ("authenticator", "exchange", "is_raw", "mechanism", "rejection", "requests", "session")

    def __init__(self, authenticator: SaslAuthenticator, session: Session | None) -> None:
        self.authenticator, self.session = authenticator, session
        self.mechanism = ""
        self.exchange: ServerExchange | None = None
        self.is_raw = False
        """Whether the client sends tokens without request headers, after version 0 of SaslHandshake."""
        self.rejection: AuthenticationRejected | None = None
        """Why the client is not authenticated, if a response has described it; the client may not acknowledge it."""
        self.requests = 0

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        """Serve a request of the authentication. Raises ProtocolViolation for other requests."""
        self.requests += 1
        if self.requests > MAX_REQUESTS:
            raise ProtocolViolation(f"more than {MAX_REQUESTS} requests without authentication")
        sasl_connection = cast(SaslConnection, connection)
        if self.is_raw:
            self.on_token(sasl_connection, bytes(frame), None)
            return
        try:
            self.on_request(sasl_connection, frame, parse_request_header(frame))
        except MalformedMessage as e:
            raise ProtocolViolation(str(e)) from e

    def on_request(self, connection: SaslConnection, frame: memoryview, header: RequestHeader) -> None:
        """Serve a request with a header."""
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            self.on_authenticate(connection, frame, header)
        elif header.api_key == ApiKey.SASL_HANDSHAKE:
            self.on_handshake(connection, frame, header)
        elif header.api_key == ApiKey.API_VERSIONS and self.exchange is None:
            self.authenticator.dispatcher.on_api_versions(connection, frame, header)
        elif self.rejection is not None:
            why = f"{self.rejection}; the client sent {api_name(header.api_key)} nevertheless"
            self.fail(connection, connection.open_exchange(), None, self.rejection.reason, why)
        else:
            self.authenticator.stats.count_failure(self.mechanism, FailureReason.STATE)
            raise ProtocolViolation(
                f"{api_name(header.api_key)} before authentication is complete; check whether the client uses SASL"
            )

    def on_handshake(self, connection: SaslConnection, frame: memoryview, header: RequestHeader) -> None:
        """Select the mechanism."""
        check_version(header, *SaslHandshakeRequest.VERSIONS)
        request = codec.decode_request(SaslHandshakeRequest, header.version, frame, header.body_offset)
        names = list(self.authenticator.mechanisms)
        mechanism = self.authenticator.mechanisms.get(request.mechanism)
        if self.exchange is not None:
            self.refuse_handshake(connection, header, ErrorCode.ILLEGAL_SASL_STATE, FailureReason.STATE)
        elif mechanism is None:
            self.refuse_handshake(connection, header, ErrorCode.UNSUPPORTED_SASL_MECHANISM, FailureReason.MECHANISM)
        elif self.session is not None and self.session.mechanism != mechanism.name:
            self.refuse_handshake(connection, header, ErrorCode.ILLEGAL_SASL_STATE, FailureReason.CHANGED)
        else:
            self.mechanism, self.exchange = mechanism.name, mechanism.start()
            self.is_raw = header.version == 0
            connection.reply(encode(SaslHandshakeResponse(mechanisms=names), header.version, header))

    def refuse_handshake(
        self, connection: SaslConnection, header: RequestHeader, error: ErrorCode, reason: FailureReason
    ) -> None:
        """Answer with an error and the mechanisms that the listener offers, and close."""
        response = SaslHandshakeResponse(error_code=error, mechanisms=list(self.authenticator.mechanisms))
        frame = encode(response, header.version, header)
        self.fail(connection, connection.open_exchange(), frame, reason, f"SaslHandshake answered with {error.name}")

    def on_authenticate(self, connection: SaslConnection, frame: memoryview, header: RequestHeader) -> None:
        """Pass a token to the mechanism."""
        check_version(header, *SaslAuthenticateRequest.VERSIONS)
        request = codec.decode_request(SaslAuthenticateRequest, header.version, frame, header.body_offset)
        if self.exchange is None:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslAuthenticate before SaslHandshake"
            )
            refusal = encode(response, header.version, header)
            why = "SaslAuthenticate before SaslHandshake"
            self.fail(connection, connection.open_exchange(), refusal, FailureReason.STATE, why)
        else:
            self.on_token(connection, request.auth_bytes, header)

    def on_token(self, connection: SaslConnection, token: bytes, header: RequestHeader | None) -> None:
        """Advance the exchange; `header` is None for a token without one."""
        assert self.exchange is not None, "a mechanism was selected"
        pending = connection.open_exchange()
        try:
            step = self.exchange.respond(token)
            if isinstance(step, Step):
                self.on_step(connection, pending, header, step)
                return
        except AuthenticationRejected as e:
            self.on_rejected(connection, pending, header, e)
            return
        connection.pause(PAUSED_FOR_AUTHENTICATION)
        self.authenticator.run(self.await_step(connection, pending, header, step))

    async def await_step(
        self,
        connection: SaslConnection,
        pending: RequestExchange,
        header: RequestHeader | None,
        step: Awaitable[Step],
    ) -> None:
        """Await a step that takes a thread or I/O, while the connection is paused."""
        try:
            self.on_step(connection, pending, header, await step)
        except AuthenticationRejected as e:
            self.on_rejected(connection, pending, header, e)
            return
        except Exception as e:
            report("authentication failed unexpectedly", e, peer=connection.peer.address)
            pending.abort("authentication failed unexpectedly")
            return
        connection.resume(PAUSED_FOR_AUTHENTICATION)

    def on_step(
        self, connection: SaslConnection, pending: RequestExchange, header: RequestHeader | None, step: Step
    ) -> None:
        """Send the response of a step; with an identity, begin the session. Raises `AuthenticationRejected`."""
        lifetime_ms = 0
        if step.rejection is not None:
            self.rejection = step.rejection
            self.authenticator.stats.count_failure(self.mechanism, step.rejection.reason)
        if step.identity is not None:
            self.check_not_reserved(step.identity.principal)
            self.check_unchanged(connection, step.identity.principal)
            lifetime_ms = self.lifetime_ms(step.identity)
            self.succeed(connection, step.identity.principal, lifetime_ms)
        if header is None:
            pending.reply([len(step.response).to_bytes(4, "big") + step.response])
        else:
            response = SaslAuthenticateResponse(auth_bytes=step.response, session_lifetime_ms=lifetime_ms)
            pending.reply([encode(response, header.version, header)])

    def check_not_reserved(self, principal: Principal) -> None:
        """Raise `AuthenticationRejected` if the principal is a certificate's: its rights are not those of a user."""
        if str(principal) in self.authenticator.limits.reserved:
            raise AuthenticationRejected(FailureReason.RESERVED, "the name is that of a certificate in super.users")

    def check_unchanged(self, connection: SaslConnection, principal: Principal) -> None:
        """Raise `AuthenticationRejected` if a re-authentication would change the principal."""
        if self.session is not None and not principal.is_same_as(connection.peer.principal):
            raise AuthenticationRejected(FailureReason.CHANGED, "the principal differs from the session's")

    def lifetime_ms(self, identity: Identity) -> int:
        """Return how long the session may last, in ms: the shorter of setting and credentials; 0 for no limit."""
        limit_ms = self.authenticator.limits.max_session_ms
        if identity.expires_at_ms is None:
            return limit_ms
        left_ms = max(identity.expires_at_ms - self.authenticator.clock.wall_ms(), 1)
        return min(left_ms, limit_ms) if limit_ms else left_ms

    def succeed(self, connection: SaslConnection, principal: Principal, lifetime_ms: int) -> None:
        """Begin the session."""
        authenticator = self.authenticator
        ends_at_s = authenticator.clock.now_s() + lifetime_ms / 1000 if lifetime_ms else None
        session = Session(authenticator, self.mechanism, ends_at_s)
        connection.end_handshake(replace(connection.peer, principal=principal), session)
        authenticator.stats.count_success(self.mechanism)

    def on_rejected(
        self,
        connection: SaslConnection,
        pending: RequestExchange,
        header: RequestHeader | None,
        error: AuthenticationRejected,
    ) -> None:
        """Answer that authentication failed, and close."""
        frame = None
        if header is not None:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=FAILED_MESSAGE
            )
            frame = encode(response, header.version, header)
        self.fail(connection, pending, frame, error.reason, str(error))

    def fail(
        self,
        connection: SaslConnection,
        pending: RequestExchange,
        frame: bytearray | None,
        reason: FailureReason,
        why: str,
    ) -> None:
        """Pause the connection, and after the delay send `frame` and close. Holds no task meanwhile."""
        authenticator = self.authenticator
        mechanism = self.mechanism or UNKNOWN_MECHANISM
        if self.rejection is None:
            authenticator.stats.count_failure(mechanism, reason)
        connection.pause(PAUSED_FOR_AUTHENTICATION)

        def close() -> None:
            pending.reply([] if frame is None else [frame])
            connection.reject("authentication failed", f"{mechanism}: {why}")

        authenticator.clock.call_later(authenticator.limits.failure_delay_s, close)
