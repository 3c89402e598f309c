"""A connection whose stage is tested without sockets, threads or a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.api.authentication import (
    PAUSED_FOR_AUTHENTICATION,
    AuthenticationClock,
    AuthenticationLimits,
    SaslAuthenticator,
)
from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.dispatch import Dispatcher, encode
from penstock.api.exchange import FrameHandler, PeerConnection, PeerInfo, ResponsePart
from penstock.security.sasl.exchange import SaslMechanism
from penstock.wire import codec
from penstock.wire.apis import ApiKey, response_header_version
from penstock.wire.frame import RequestHeader, parse_request_header, request_head
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)


class Pending:
    """An exchange of `FakeConnection`."""

    is_disconnected = False

    def __init__(self, connection: FakeConnection) -> None:
        self.connection = connection

    def reply(self, parts: Sequence[ResponsePart]) -> None:
        for part in parts:
            assert not self.connection.closed, "a response after the end"
            self.connection.responses.append(bytes(part))  # type: ignore[arg-type]

    def complete_without_response(self) -> None:
        self.reply([])

    def abort(self, reason: str) -> None:
        self.connection.reject("aborted", reason)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        raise AssertionError("not used")


class FakeConnection:
    """Implements `api.authentication.SaslConnection`."""

    produce_template = None
    stage: FrameHandler

    def __init__(self) -> None:
        self.peer = PeerInfo(1, "SASL_PLAINTEXT", "10.0.0.7", 4711)
        self.responses: list[bytes] = []
        self.closed: tuple[str, str] | None = None
        self.is_handshaking = self.is_paused = False
        self.max_frame_bytes: int | None = None

    def open_exchange(self) -> Pending:
        return Pending(self)

    def reply(self, frame: bytes | bytearray | memoryview) -> None:
        self.open_exchange().reply([frame])

    def begin_handshake(self, stage: FrameHandler, max_frame_bytes: int, setting: str) -> None:
        self.stage, self.max_frame_bytes, self.is_handshaking = stage, max_frame_bytes, True

    def end_handshake(self, peer: PeerInfo, stage: FrameHandler) -> None:
        self.peer, self.stage, self.max_frame_bytes, self.is_handshaking = peer, stage, None, False

    def pause(self, reason: int) -> None:
        assert reason == PAUSED_FOR_AUTHENTICATION
        self.is_paused = True

    def resume(self, reason: int) -> None:
        assert reason == PAUSED_FOR_AUTHENTICATION
        self.is_paused = False

    def reject(self, event: str, why: str) -> None:
        self.closed = (event, why)

    def send(self, request: Payload, version: int) -> None:
        """Dispatch a request, as the server does while the connection is not paused."""
        frame = codec.encode(request, version, bytes(request_head(request.KEY, version, 7, "tester")))
        self.send_raw(bytes(frame[4:]))

    def send_raw(self, content: bytes) -> None:
        assert not self.is_paused, "a paused connection dispatches nothing"
        assert self.closed is None, "a closed connection dispatches nothing"
        self.stage(self, memoryview(bytearray(content)))

    def answer(self, response: type[R], version: int) -> R:
        """Return the oldest response that was not looked at."""
        frame = self.responses.pop(0)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        start = 8 + response_header_version(response.KEY, version)
        return codec.decode(response, version, memoryview(frame), start)


class Served(Dispatcher):
    """The dispatcher of the broker: records what reaches it."""

    def __init__(self) -> None:
        self.frames: list[int] = []

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        self.frames.append(parse_request_header(frame).api_key)

    def on_api_versions(self, connection: PeerConnection, frame: memoryview, header: RequestHeader) -> None:
        assert header.api_key == ApiKey.API_VERSIONS
        connection.reply(encode(ApiVersionsResponse(), header.version, header))


class Bench:
    """An authenticator whose clock and timers the test controls."""

    def __init__(self, *mechanisms: SaslMechanism, limits: AuthenticationLimits | None = None) -> None:
        self.now_s, self.wall_ms = 100.0, 1_800_000_000_000
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.stats, self.dispatcher = AuthenticationStats(), Served()
        clock = AuthenticationClock(lambda: self.now_s, lambda: self.wall_ms, self.call_later)
        self.authenticator = SaslAuthenticator(
            {each.name: each for each in mechanisms},
            limits or AuthenticationLimits(),
            self.dispatcher,
            self.stats,
            clock,
        )

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, callback))

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_ms += int(seconds * 1000)
        due = [callback for at, callback in self.timers if at <= self.now_s]
        self.timers = [each for each in self.timers if each[0] > self.now_s]
        for callback in due:
            callback()

    def connect(self) -> FakeConnection:
        connection = FakeConnection()
        self.authenticator.accept(connection)
        return connection
