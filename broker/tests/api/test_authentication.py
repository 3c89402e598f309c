"""The stage of a connection on a listener with SASL: every order of requests, failures, sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest
from authentication_kit import Bench, FakeConnection

from penstock.api.authentication import FAILED_MESSAGE, MAX_REQUESTS, AuthenticationLimits
from penstock.api.exchange import ProtocolViolation
from penstock.security.principal import ANONYMOUS, Principal
from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason, Identity, Step
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.list_groups import ListGroupsRequest
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

ANA = Principal("User", "ana")


class Echo:
    """A mechanism: `user:NAME` or `user:NAME+GROUP` authenticates, `more` is answered, `wait:NAME` takes a thread.

    `stale` is answered with a rejection. Others are rejected.
    """

    name = "ECHO"

    def __init__(self, expires_at_ms: int | None = None) -> None:
        self.expires_at_ms = expires_at_ms
        self.gate: asyncio.Event | None = None

    def start(self) -> Echo:
        return self

    def respond(self, message: bytes) -> Step | Awaitable[Step]:
        word, _, name = message.decode().partition(":")
        if word == "user" and name:
            return self.done(name)
        if word == "wait":
            return self.wait(name)
        if word == "more":
            return Step(b"challenge")
        if word == "stale":
            return Step(b"why", rejection=AuthenticationRejected(FailureReason.TOKEN, "the token is too old"))
        raise AuthenticationRejected(FailureReason.CREDENTIALS, "unknown user or wrong password")

    def done(self, text: str) -> Step:
        name, *groups = text.split("+")
        return Step(b"ok", Identity(Principal("User", name, tuple(groups)), self.expires_at_ms))

    async def wait(self, name: str) -> Step:
        self.gate = asyncio.Event()
        await self.gate.wait()
        if name == "bad":
            raise AuthenticationRejected(FailureReason.CREDENTIALS, "unknown user or wrong password")
        if name == "broken":
            raise RuntimeError("broken")
        return self.done(name)


def handshake(connection: FakeConnection, mechanism: str = "ECHO", version: int = 1) -> SaslHandshakeResponse:
    connection.send(SaslHandshakeRequest(mechanism=mechanism), version)
    return connection.answer(SaslHandshakeResponse, version)


def authenticate(connection: FakeConnection, token: str, version: int = 2) -> SaslAuthenticateResponse:
    connection.send(SaslAuthenticateRequest(auth_bytes=token.encode()), version)
    return connection.answer(SaslAuthenticateResponse, version)


def logged_in(bench: Bench, user: str = "ana") -> FakeConnection:
    connection = bench.connect()
    handshake(connection)
    authenticate(connection, f"user:{user}")
    return connection


def test_a_client_is_authenticated_and_its_next_requests_reach_the_dispatcher() -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    assert connection.max_frame_bytes == 512 * 1024
    connection.send(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
    connection.answer(ApiVersionsResponse, 3)
    assert handshake(connection).mechanisms == ["ECHO"]
    assert authenticate(connection, "more") == SaslAuthenticateResponse(auth_bytes=b"challenge")
    assert connection.peer.principal == ANONYMOUS
    assert authenticate(connection, "user:ana") == SaslAuthenticateResponse(auth_bytes=b"ok")
    assert connection.peer.principal == ANA
    assert not connection.is_handshaking
    connection.send(ListGroupsRequest(), 3)
    assert bench.dispatcher.frames == [ApiKey.LIST_GROUPS]
    assert bench.stats.successes == {"ECHO": 1}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_all_versions_of_saslauthenticate_are_served(version: int) -> None:
    connection = Bench(Echo()).connect()
    handshake(connection)
    assert authenticate(connection, "user:ana", version).auth_bytes == b"ok"


def test_after_a_handshake_of_version_0_tokens_have_no_headers() -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    handshake(connection, version=0)
    connection.send_raw(b"more")
    connection.send_raw(b"user:ana")
    assert connection.responses == [b"\0\0\0\x09challenge", b"\0\0\0\x02ok"]
    connection.responses.clear()
    connection.send(ListGroupsRequest(), 3)
    assert bench.dispatcher.frames == [ApiKey.LIST_GROUPS]
    connection = bench.connect()
    handshake(connection, version=0)
    connection.send_raw(b"wrong")
    bench.pass_time(1)
    assert connection.responses == []
    assert connection.closed is not None


@pytest.mark.parametrize("after_handshake", [False, True])
def test_before_authentication_other_requests_are_violations(after_handshake: bool) -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    if after_handshake:
        handshake(connection)
    with pytest.raises(ProtocolViolation, match="before authentication"):
        connection.send(MetadataRequest(topics=[]), 12)
    assert bench.dispatcher.frames == []
    assert bench.stats.failures.total() == 1


def test_api_versions_between_handshake_and_token_is_a_violation() -> None:
    connection = Bench(Echo()).connect()
    handshake(connection)
    with pytest.raises(ProtocolViolation):
        connection.send(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"\0\x11", b"\0\x11\0\x01", b"\xff" * 40, b"\0\x24\0\x02\0\0\0\x01\xff\xff\0"]
)
def test_a_frame_that_is_no_request_is_a_violation(content: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        Bench(Echo()).connect().send_raw(content)


def test_a_token_before_the_handshake_is_answered_with_illegal_sasl_state() -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    connection.send(SaslAuthenticateRequest(auth_bytes=b"user:ana"), 2)
    bench.pass_time(1)
    assert connection.answer(SaslAuthenticateResponse, 2).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.closed is not None
    assert bench.stats.failures == {("none", FailureReason.STATE): 1}


@pytest.mark.parametrize("version", [0, 1])
def test_an_unknown_mechanism_is_answered_with_the_list_and_closed(version: int) -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    connection.send(SaslHandshakeRequest(mechanism="GSSAPI"), version)
    bench.pass_time(1)
    response = connection.answer(SaslHandshakeResponse, version)
    assert (response.error_code, response.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["ECHO"])
    assert connection.closed is not None


def test_a_second_handshake_is_answered_with_illegal_sasl_state() -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    handshake(connection)
    connection.send(SaslHandshakeRequest(mechanism="ECHO"), 1)
    bench.pass_time(1)
    assert connection.answer(SaslHandshakeResponse, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.closed is not None


def test_a_failure_is_answered_after_the_delay_while_the_connection_is_paused_and_says_nothing() -> None:
    bench = Bench(Echo(), limits=AuthenticationLimits(failure_delay_s=0.1))
    connection = bench.connect()
    handshake(connection)
    connection.send(SaslAuthenticateRequest(auth_bytes=b"secret-password"), 2)
    bench.pass_time(0.05)
    assert (connection.is_paused, connection.responses, connection.closed) == (True, [], None)
    assert not bench.authenticator.tasks
    bench.pass_time(0.06)
    response = connection.answer(SaslAuthenticateResponse, 2)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (response.error_message, response.auth_bytes) == (FAILED_MESSAGE, b"")
    assert connection.closed == ("authentication failed", "ECHO: unknown user or wrong password")
    assert bench.stats.failures == {("ECHO", FailureReason.CREDENTIALS): 1}
    assert connection.peer.principal == ANONYMOUS


def test_a_rejection_that_a_response_describes_counts_at_once_because_the_client_may_hang_up() -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    handshake(connection)
    assert authenticate(connection, "stale").auth_bytes == b"why"
    assert bench.stats.failures == {("ECHO", FailureReason.TOKEN): 1}
    connection.send(SaslAuthenticateRequest(auth_bytes=b"acknowledged"), 2)
    bench.pass_time(1)
    assert connection.answer(SaslAuthenticateResponse, 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert bench.stats.failures == {("ECHO", FailureReason.TOKEN): 1}, "one authentication fails once"


def test_a_request_instead_of_the_acknowledgement_of_a_rejection_ends_the_connection_after_the_delay() -> None:
    bench = Bench(Echo(), limits=AuthenticationLimits(failure_delay_s=0.1))
    connection = bench.connect()
    handshake(connection)
    authenticate(connection, "stale")
    connection.send(MetadataRequest(topics=[]), 12)
    bench.pass_time(0.05)
    assert (connection.is_paused, connection.closed) == (True, None)
    bench.pass_time(0.06)
    assert connection.closed == (
        "authentication failed",
        "ECHO: the token is too old; the client sent Metadata nevertheless",
    )
    assert (connection.responses, bench.dispatcher.frames) == ([], [])


def test_a_client_cannot_go_on_without_end() -> None:
    connection = Bench(Echo()).connect()
    handshake(connection)
    for _ in range(MAX_REQUESTS - 1):
        authenticate(connection, "more")
    with pytest.raises(ProtocolViolation, match="requests without authentication"):
        authenticate(connection, "more")


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("user", ["ana", "bad", "broken"])
async def test_while_a_step_takes_a_thread_the_connection_is_paused(user: str) -> None:
    echo = Echo()
    bench = Bench(echo)
    connection = bench.connect()
    handshake(connection)
    connection.send(SaslAuthenticateRequest(auth_bytes=f"wait:{user}".encode()), 2)
    await turn()
    assert connection.is_paused
    assert not connection.responses
    assert echo.gate is not None
    echo.gate.set()
    await turn()
    bench.pass_time(1)
    if user == "ana":
        assert connection.answer(SaslAuthenticateResponse, 2).auth_bytes == b"ok"
        assert not connection.is_paused
        assert connection.peer.principal == ANA
    else:
        assert connection.closed is not None
        assert connection.peer.principal == ANONYMOUS
    assert not bench.authenticator.tasks


async def test_close_cancels_the_steps_in_progress() -> None:
    bench = Bench(Echo())
    connection = bench.connect()
    handshake(connection)
    connection.send(SaslAuthenticateRequest(auth_bytes=b"wait:ana"), 2)
    await turn()
    await bench.authenticator.close()
    assert not bench.authenticator.tasks
    assert connection.peer.principal == ANONYMOUS


def test_a_session_without_limits_has_no_lifetime() -> None:
    bench = Bench(Echo())
    connection = logged_in(bench)
    bench.pass_time(10**9)
    connection.send(ListGroupsRequest(), 3)
    assert bench.dispatcher.frames == [ApiKey.LIST_GROUPS]


@pytest.mark.parametrize(
    ("setting_ms", "token_ms", "lifetime_ms"),
    [(60_000, None, 60_000), (0, 20_000, 20_000), (60_000, 20_000, 20_000), (10_000, 20_000, 10_000), (0, -5, 1)],
)
def test_the_lifetime_is_the_shorter_of_setting_and_token(
    setting_ms: int, token_ms: int | None, lifetime_ms: int
) -> None:
    bench = Bench(
        Echo(None if token_ms is None else 1_800_000_000_000 + token_ms),
        limits=AuthenticationLimits(max_session_ms=setting_ms),
    )
    connection = bench.connect()
    handshake(connection)
    assert authenticate(connection, "user:ana").session_lifetime_ms == lifetime_ms
    bench.pass_time(lifetime_ms / 1000 - 0.0005)
    connection.send(ListGroupsRequest(), 3)
    bench.pass_time(0.001)
    assert connection.closed is None
    connection.send(ListGroupsRequest(), 3)
    assert connection.closed == ("session expired", "the client has not re-authenticated in time")
    assert bench.dispatcher.frames == [ApiKey.LIST_GROUPS]
    assert bench.stats.expired_sessions == 1


@pytest.mark.parametrize("late_s", [5, 100])
def test_re_authentication_starts_a_new_session_even_after_the_end_of_the_old_one(late_s: float) -> None:
    bench = Bench(Echo(), limits=AuthenticationLimits(max_session_ms=10_000))
    connection = logged_in(bench)
    bench.pass_time(late_s)
    handshake(connection)
    assert connection.is_handshaking
    assert authenticate(connection, "user:ana").session_lifetime_ms == 10_000
    bench.pass_time(9)
    connection.send(ListGroupsRequest(), 3)
    assert bench.dispatcher.frames == [ApiKey.LIST_GROUPS]
    assert connection.closed is None


def test_re_authentication_must_not_change_the_principal() -> None:
    bench = Bench(Echo())
    connection = logged_in(bench)
    handshake(connection)
    connection.send(SaslAuthenticateRequest(auth_bytes=b"user:eve"), 2)
    bench.pass_time(1)
    assert connection.answer(SaslAuthenticateResponse, 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert connection.closed is not None
    assert connection.peer.principal == ANA
    assert bench.stats.failures == {("ECHO", FailureReason.CHANGED): 1}


def test_re_authentication_may_change_the_groups() -> None:
    connection = logged_in(Bench(Echo()), "ana+dev")
    assert connection.peer.principal == Principal("User", "ana", ("dev",))
    handshake(connection)
    assert authenticate(connection, "user:ana+ops").error_code == ErrorCode.NONE
    assert connection.peer.principal == Principal("User", "ana", ("ops",))


@pytest.mark.parametrize(("name", "is_accepted"), [("CN=a-broker,O=x", False), ("CN=a-broker", True), ("ana", True)])
def test_a_user_cannot_have_the_name_of_a_certificate_that_is_a_super_user(name: str, is_accepted: bool) -> None:
    bench = Bench(Echo(), limits=AuthenticationLimits(reserved=frozenset({"User:CN=a-broker,O=x"})))
    connection = bench.connect()
    handshake(connection)
    connection.send(SaslAuthenticateRequest(auth_bytes=f"user:{name}".encode()), 2)
    bench.pass_time(1)
    answer = connection.answer(SaslAuthenticateResponse, 2)
    assert answer.error_code == (ErrorCode.NONE if is_accepted else ErrorCode.SASL_AUTHENTICATION_FAILED)
    assert connection.peer.principal == (Principal("User", name) if is_accepted else ANONYMOUS)
    assert bench.stats.failures == ({} if is_accepted else {("ECHO", FailureReason.RESERVED): 1})


def test_re_authentication_must_not_change_the_mechanism() -> None:
    other = Echo()
    other.name = "OTHER"
    bench = Bench(Echo(), other)
    connection = logged_in(bench)
    connection.send(SaslHandshakeRequest(mechanism="OTHER"), 1)
    bench.pass_time(1)
    assert connection.answer(SaslHandshakeResponse, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.closed is not None


def test_failed_re_authentication_closes_the_connection() -> None:
    bench = Bench(Echo())
    connection = logged_in(bench)
    handshake(connection)
    connection.send(SaslAuthenticateRequest(auth_bytes=b"wrong"), 2)
    bench.pass_time(1)
    assert connection.closed is not None


def test_during_re_authentication_no_other_request_is_served() -> None:
    bench = Bench(Echo())
    connection = logged_in(bench)
    handshake(connection)
    with pytest.raises(ProtocolViolation):
        connection.send(ListGroupsRequest(), 3)
    assert bench.dispatcher.frames == []


def test_no_order_of_requests_reaches_the_dispatcher_without_authentication() -> None:
    draw = random.Random(29)
    for _ in range(500):
        bench = Bench(Echo())
        connection = bench.connect()
        requests = [
            (ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3),
            (SaslHandshakeRequest(mechanism="ECHO"), draw.randrange(2)),
            (SaslHandshakeRequest(mechanism="NONE"), 1),
            (SaslAuthenticateRequest(auth_bytes=b"more"), 2),
            (SaslAuthenticateRequest(auth_bytes=b"user"), 2),
            (ListGroupsRequest(), 3),
        ]
        for _ in range(6):
            try:
                connection.send(*draw.choice(requests))
            except ProtocolViolation:
                break
            if connection.is_paused:
                break
        assert bench.dispatcher.frames == []
        assert connection.peer.principal == ANONYMOUS
