"""Whole conversations of clients with a listener: SASL frames in any order, and bytes that are not TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

BROKER_TESTS = Path(__file__).parents[3] / "broker" / "tests"
sys.path[:0] = [str(BROKER_TESTS / folder) for folder in ("api", "server")]


from authentication_kit import Bench  # noqa: E402
from core_kit import CoreBench, framed  # noqa: E402

from penstock.api.authentication import AuthenticationLimits  # noqa: E402
from penstock.api.dispatch import Dispatcher, encode  # noqa: E402
from penstock.api.exchange import PeerConnection, PeerInfo  # noqa: E402
from penstock.api.versions import ApiVersionsApi  # noqa: E402
from penstock.control.features import Features  # noqa: E402
from penstock.security.principal import ANONYMOUS, Principal  # noqa: E402
from penstock.security.sasl.exchange import SaslMechanism  # noqa: E402
from penstock.server.hub import Hub  # noqa: E402
from penstock.server.limits import ServerLimits  # noqa: E402
from penstock.server.stats import CloseReason  # noqa: E402
from penstock.server.tls.connection import TlsConnection  # noqa: E402
from penstock.server.tls.listener_tls import ListenerTls  # noqa: E402
from penstock.state.view import ClusterView  # noqa: E402
from penstock.wire import codec  # noqa: E402
from penstock.wire.frame import RequestHeader, request_head  # noqa: E402
from penstock.wire.messages.api_versions import ApiVersionsRequest  # noqa: E402
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse  # noqa: E402
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest  # noqa: E402
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest  # noqa: E402
from penstock.wire.schema import Payload  # noqa: E402
from penstock_fuzz_security.mutations import Draws  # noqa: E402

ANA = Principal("User", "ana")
SESSION_MS = 1000
FAILURES = (CloseReason.FAILED, CloseReason.ABORTED)
"""How a connection ends after an unexpected error."""
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Guard(Dispatcher):
    """What is behind authentication: nothing may reach it before."""

    def __init__(self) -> None:
        self.requests = 0
        self.versions = ApiVersionsApi([], Features(None, ClusterView(), None, 1))  # type: ignore[arg-type]

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        assert connection.peer.principal == ANA, f"a request of {connection.peer.principal}"
        self.requests += 1
        connection.reply(encode(ListGroupsResponse(), 0, RequestHeader(ListGroupsRequest.KEY, 0, 1, None, 0)))


class SaslConversations:
    """Clients of a SASL listener on which `first_messages` has a message for each mechanism; that of PLAIN is valid."""

    def __init__(self, mechanisms: list[SaslMechanism], first_messages: Mapping[str, bytes]) -> None:
        self.mechanisms, self.first_messages = mechanisms, first_messages
        self.served = 0

    async def fuzz(self, rng: Draws) -> None:
        """Send requests in a mutated order, one of them mutated, in pieces, while time passes."""
        bench = Bench(*self.mechanisms, limits=AuthenticationLimits(max_session_ms=SESSION_MS))
        guard = bench.authenticator.dispatcher = Guard()
        server = CoreBench(guard)
        bench.authenticator.accept(server.core)
        stream = b"".join(self.frames(rng))
        while stream and not server.ending:
            size = rng.randint(1, len(stream))
            server.arriving += stream[:size]
            stream = stream[size:]
            while server.receive(1 << 16):
                pass
            await asyncio.gather(*bench.authenticator.tasks)
            bench.pass_time(rng.choice((0.0, 0.2, 0.2, 2.0)))
            server.turn()
        bench.pass_time(1)
        server.turn()
        assert server.core.reason not in FAILURES, server.warnings
        assert server.core.peer.principal in (ANONYMOUS, ANA)
        self.served += guard.requests
        server.core.on_lost()
        del server.core  # a cycle, which would keep its buffers until it is collected

    def frames(self, rng: Draws) -> list[bytes]:
        """Return the requests of a client that authenticates, uses its session and authenticates again."""
        requests = [
            *rng.choices((request(ApiVersionsRequest(), 3), b""), k=1),
            *self.authentication(rng),
            request(ListGroupsRequest(), 4),
            *self.authentication(rng),
            request(ListGroupsRequest(), 4),
        ]
        if rng.random() < 0.5:
            position = rng.randrange(len(requests))
            requests[position : position + 1] = rng.choice(([], [requests[position]] * 2, [rng.choice(requests)]))
        frames = [framed(each) for each in requests if each]
        if frames and rng.random() < 0.8:
            position = rng.randrange(len(frames))
            whole = rng.random() < 0.3  # the size is mutated as well
            frames[position] = rng.mutated(frames[position]) if whole else framed(rng.mutated(frames[position][4:]))
        return frames

    def authentication(self, rng: Draws) -> list[bytes]:
        """Return the requests of an authentication."""
        name = rng.choice(("PLAIN", "PLAIN", *self.first_messages, "GSSAPI"))
        version = rng.choice((0, 1, 1))
        message = self.first_messages.get(name, b"")
        token = message if not version else request(SaslAuthenticateRequest(auth_bytes=message), rng.randrange(3))
        return [request(SaslHandshakeRequest(mechanism=name), version), token]


def request(payload: Payload, version: int) -> bytes:
    """Return a request without its size."""
    return bytes(codec.encode(payload, version, bytes(request_head(payload.KEY, version, 7, "fuzz")))[4:])


class QuietHub(Hub):
    """A hub that does not log what clients do wrong."""

    def log_peer_warning(self, event: str, peer: PeerInfo, why: str) -> None:
        """Do nothing."""


class PlainText:
    """Clients of a TLS listener that do not speak TLS, or stop to."""

    def __init__(self, tls: ListenerTls, hello: bytes) -> None:
        kafka = framed(request(ApiVersionsRequest(), 3))
        self.tls, self.openings = tls, (kafka, HTTP, hello, hello[:5], b"\x16\x03\x01\x40\x00")

    async def fuzz(self, rng: Draws) -> None:
        """Send mutated bytes in two pieces, then end the connection."""
        errors: list[Mapping[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        hub = QuietHub(refuse_requests, ServerLimits(), None)
        client, served = socket.socketpair()
        client.setblocking(False)
        await loop.connect_accepted_socket(factory(hub, self.tls), served)
        try:
            data = rng.mutated(rng.choice(self.openings))
            middle = rng.randrange(len(data) + 1)
            for piece in (data[:middle], data[middle:]):
                await send(client, piece)
        finally:
            client.close()
        await hub.close(grace_s=5)
        assert not errors, errors
        assert not hub.connections
        assert not any(hub.stats.closed[reason] for reason in FAILURES), hub.stats.closed


def factory(hub: Hub, tls: ListenerTls) -> Callable[[], TlsConnection]:
    """Return what creates a connection."""
    return lambda: TlsConnection(hub, "FUZZED", tls)


async def send(client: socket.socket, piece: bytes) -> None:
    """Send bytes, unless the server has closed the connection."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await asyncio.get_running_loop().sock_sendall(client, piece)
    await asyncio.sleep(0)  # the server receives it


def refuse_requests(connection: PeerConnection, frame: memoryview) -> None:
    """The handler of the listener: no client completes the handshake."""
    raise AssertionError("a request without TLS")
