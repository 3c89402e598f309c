"""Connections with TLS on real sockets: requests, limits, and clients that do not play by the rules."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit import Desk, Run, SegmentFile, echo, framed, until
from tls_kit import CLIENT, STRANGER, TlsService, client_context, loaded, serving_tls

from penstock.api.exchange import PeerConnection, RequestExchange
from penstock.server.limits import ServerLimits
from penstock.server.stats import CloseReason
from penstock.server.tls import connection as connection_module

pytestmark = pytest.mark.integration


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def hello() -> bytes:
    """The first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    session = client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_of_any_size_are_answered_in_order(run: Run, version: ssl.TLSVersion) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            context = client_context()
            context.maximum_version = version
            client = await service.connect_tls(context)
            sizes = [0, 1, 16_379, 16_380, 70_000, 3_000_000, 5, 200_000]
            contents = [bytes([n]) * size for n, size in enumerate(sizes)]
            client.send(*contents)
            assert [await client.receive() for _ in contents] == contents
            assert (service.tls.handshakes, service.tls.failed_handshakes) == (1, 0)

    run(scenario())


@pytest.mark.parametrize("is_cached", [True, False])
def test_slices_of_files_are_sent_between_buffers(run: Run, segment: SegmentFile, is_cached: bool) -> None:
    async def scenario() -> None:
        segment.cached = is_cached
        sizes = [10, 40_000, 1_500_000, 3_000_000]

        def answer(exchange: RequestExchange, content: bytes) -> None:
            size = sizes[int(content)]
            exchange.reply([struct.pack(">i", size + 3), b"abc", segment.slice(100, size)])

        async with serving_tls(Desk(answer), loaded()) as service:
            client = await service.connect_tls()
            client.send(*[b"%d" % n for n in range(len(sizes))])
            for size in sizes:
                assert await client.receive() == b"abc" + segment.content[100 : 100 + size]
            assert segment.lent == 0

    run(scenario())


def test_a_file_that_ends_too_early_closes_the_connection(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        size = len(segment.content)
        desk = Desk(lambda exchange, _: exchange.reply([struct.pack(">i", size), segment.slice(100, size)]))
        async with serving_tls(desk, loaded()) as service:
            client = await service.connect_tls()
            client.send(b"fetch")
            assert len(await client.closed()) < size
            await until(lambda: service.server.stats.closed[CloseReason.FAILED] == 1)
            assert segment.lent == 0

    run(scenario())


class Listing(Desk):
    """Answers with the principal."""

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        connection.reply(framed(str(connection.peer.principal).encode()))


def test_the_client_certificate_is_the_principal(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving_tls(Listing(), loaded(client_auth="required")) as service:
            ana = await service.connect_tls(client_context(CLIENT, tmp_path))
            assert await ana.ask(b"who?") == rb"User:CN=ana,O=Ana\, Inc"
            for context in client_context(), client_context(STRANGER, tmp_path):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await (await service.connect_tls(context)).ask(b"who?")
            await until(lambda: service.server.stats.closed[CloseReason.TLS] == 2)
            assert (service.tls.handshakes, service.tls.failed_handshakes) == (1, 2)

    run(scenario())


def test_a_refused_client_that_sends_on_reads_the_alert_that_says_why(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS 1.3 a client sends requests before it learns that its certificate is refused."""
    monkeypatch.setattr(connection_module, "ALERT_LINGER_S", 600.0)

    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded(client_auth="required")) as service:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await service.connect()
            while session.version() is None or outgoing.pending:
                try:
                    session.do_handshake()
                except ssl.SSLWantReadError:
                    client.writer.write(outgoing.read())
                    incoming.write(await client.reader.read(1 << 16))
                else:
                    break
            client.writer.write(outgoing.read())
            await until(lambda: service.tls.failed_handshakes == 1)
            for _ in range(10):
                session.write(framed(b"request"))
                client.writer.write(outgoing.read())
                await asyncio.sleep(0)
            incoming.write(await client.reader.read(1 << 16))
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                session.read(1)
            client.hang_up()
            await until(lambda: service.server.stats.closed[CloseReason.TLS] == 1)
            assert (service.tls.failed_handshakes, service.server.stats.requests) == (1, 0)

    run(scenario())


def test_a_refused_client_that_stays_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "ALERT_LINGER_S", 0.01)

    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            client = await service.connect()
            client.writer.write(b"\x16\x03\x01\x00\x04none")
            await until(lambda: service.server.stats.closed[CloseReason.TLS] == 1)
            assert (await client.closed())[:1] == b"\x15", "an alert"

    run(scenario())


def test_a_connection_over_a_limit_is_closed_before_the_handshake(run: Run) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded(), ServerLimits(max_connections_per_ip=1)) as service:
            first = await service.connect_tls()
            second = await service.connect()
            assert await second.closed() == b""
            assert service.server.stats.closed[CloseReason.TOO_MANY] == 1
            assert await first.ask(b"x") == b"x"

    run(scenario())


def test_a_handshake_that_arrives_byte_by_byte_succeeds(run: Run) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await service.connect()
            while True:
                try:
                    session.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                else:
                    break
                finally:
                    await one_by_one(service, outgoing.read())
                incoming.write(await client.reader.read(1 << 16))
            session.write(framed(b"slow"))
            await one_by_one(service, outgoing.read())
            await until(lambda: service.server.stats.requests == 1)

    async def one_by_one(service: TlsService, data: bytes) -> None:
        writer = service.clients[-1].writer
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    run(scenario())


Attack = Callable[[], list[bytes]]
PLAIN_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
HOSTILE: dict[str, tuple[Attack, str, CloseReason]] = {
    "a plain Kafka request": (lambda: [PLAIN_REQUEST], "speaks without TLS", CloseReason.VIOLATION),
    "an HTTP request": (lambda: [b"GET / HTTP/1.1\r\n\r\n"], "speaks HTTP without TLS", CloseReason.VIOLATION),
    "one byte": (lambda: [b"\0"], "speaks without TLS", CloseReason.VIOLATION),
    "garbage": (lambda: [b"\x16" + os.urandom(200)], "handshake failed", CloseReason.TLS),
    "garbage behind a hello": (lambda: [hello(), os.urandom(500)], "handshake failed", CloseReason.TLS),
    "endless records": (lambda: [b"\x16\x03\x01\x00\x01\x01"] * 200_000, "handshake failed", CloseReason.TLS),
    "an alert": (lambda: [b"\x15\x03\x01\x00\x02\x02\x28"], "speaks TLS without TLS", CloseReason.VIOLATION),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_handshake_is_closed_with_one_warning_and_leaves_nothing(
    run: Run, attack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        parts, _, reason = HOSTILE[attack]
        async with serving_tls(Desk(echo), loaded()) as service:
            await service.connect_tls()
            before, tasks = descriptors(), len(asyncio.all_tasks())
            for _ in range(3):
                client = await service.connect()
                client.writer.writelines(parts())
                await client.closed()
                client.hang_up()
            await until(lambda: service.server.stats.closed[reason] == 3)
            await until(lambda: descriptors() <= before and len(asyncio.all_tasks()) <= tasks)
            assert service.tls.failed_handshakes == 3

    run(scenario())


def test_an_http_client_is_answered_in_its_protocol(run: Run) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            client = await service.connect()
            client.writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await client.closed()).startswith(b"HTTP/1.1 400 Bad Request\r\n")

    run(scenario())


def test_a_client_that_ends_or_stops_in_the_handshake_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            before = descriptors()
            closed = service.server.stats.closed
            half_closed = await service.connect()
            half_closed.writer.write(hello()[:50])
            half_closed.writer.write_eof()
            await half_closed.closed()
            monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.05)
            silent, stopped = [await service.connect() for _ in range(2)]
            stopped.writer.write(hello())
            for client in silent, stopped:
                await client.closed()
            for client in half_closed, silent, stopped:
                client.hang_up()
            await until(lambda: (closed[CloseReason.PEER], closed[CloseReason.TLS]) == (1, 2))
            await until(lambda: descriptors() <= before)
            assert service.tls.failed_handshakes == 3

    run(scenario())


def test_damaged_records_close_an_established_connection(run: Run) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            client = await service.connect_tls()
            assert await client.ask(b"x") == b"x"
            raw = client.writer.get_extra_info("socket")
            os.write(raw.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
                await client.closed()
            await until(lambda: service.server.stats.closed[CloseReason.TLS] == 1)

    run(scenario())


def test_a_client_cannot_renegotiate(run: Run) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            process = await asyncio.create_subprocess_exec(
                "openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{service.port}",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            await until(lambda: service.tls.handshakes == 1)
            _, errors = await process.communicate(b"R\n")
            assert b"no renegotiation" in errors or b"handshake failure" in errors
            assert service.tls.handshakes == 1

    run(scenario())


def test_a_client_that_never_reads_holds_bounded_memory_and_gets_everything_later(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk(lambda exchange, content: exchange.reply([framed(content * 1000)]))
        async with serving_tls(desk, loaded(), ServerLimits(max_unsent_bytes=50_000)) as service:
            client = await service.connect_tls()
            client.writer.transport.pause_reading()
            contents = [b"%04d" % i for i in range(5000)]
            client.send(*contents)
            (connection,) = service.server.hub.connections.values()
            await until(lambda: connection.paused != 0)
            assert connection.unsent_bytes <= 50_000 + 4004
            client.writer.transport.resume_reading()
            assert [await client.receive() for _ in contents] == [content * 1000 for content in contents]
            await until(lambda: service.server.stats.paused == 0)

    run(scenario())


def test_what_was_received_before_a_pause_is_processed_after_it(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving_tls(desk, loaded(), ServerLimits(max_in_flight=1)) as service:
            client = await service.connect_tls()
            for size in range(150_000, 400_000, 10_000):  # so that a receive buffer ends with the first of two requests
                desk.open.clear()
                desk.requests.clear()
                client.send(b"x" * size, b"second")
                for number in range(2):
                    await desk.received(number + 1)
                    desk.open[number].reply([framed(b"%d" % number)])
                    assert await client.receive() == b"%d" % number

    run(scenario())


def test_the_bytes_of_a_handshake_are_limited(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        reasons: list[str] = []
        monkeypatch.setattr(connection_module, "MAX_HANDSHAKE_BYTES", 200)
        async with serving_tls(Desk(echo), loaded()) as service:
            monkeypatch.setattr(service.server.hub, "log_peer_warning", lambda event, peer, why: reasons.append(why))
            client = await service.connect()
            client.writer.write(hello())
            await client.closed()
            await until(lambda: service.server.stats.closed[CloseReason.TLS] == 1)
        assert reasons == ["the client sent more than 200 bytes"]

    run(scenario())


def test_responses_in_progress_are_sent_before_the_server_ends(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving_tls(desk, loaded(), grace_s=5) as service:
            client = await service.connect_tls()
            client.send(b"last")
            await desk.received(1)
            closing = asyncio.ensure_future(service.server.close(5))
            await asyncio.sleep(0)
            desk.open[0].reply([framed(b"answer" * 50_000)])
            assert await client.receive() == b"answer" * 50_000
            await closing
            assert await client.closed() == b""

    run(scenario())


class MemoryClient:
    """A TLS client that sees whether the server ends the session with close_notify."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = client_context().wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def call(self, operation: Callable[[], object]) -> object:
        """Repeat an operation until it has what it needs of the server. Raises EOFError at the end of the socket."""
        while True:
            try:
                return operation()
            except ssl.SSLWantReadError:
                self.writer.write(self.outgoing.read())
                data = await self.reader.read(1 << 16)
                if not data:
                    raise EOFError("the socket was closed without close_notify") from None
                self.incoming.write(data)

    async def ask(self, content: bytes) -> object:
        self.session.write(framed(content))
        self.writer.write(self.outgoing.read())
        return await self.call(lambda: self.session.read(100))

    def fatal_alert(self) -> bytes:
        """Return the alert with which the client answers a record that it cannot decrypt."""
        self.incoming.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            self.session.read(100)
        return self.outgoing.read()


@pytest.mark.parametrize("by", ["shutdown", "idleness", "client"])
def test_an_orderly_close_sends_close_notify(run: Run, by: str) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            client = MemoryClient(*await asyncio.open_connection("127.0.0.1", service.port))
            await client.call(client.session.do_handshake)
            assert await client.ask(b"hello") == framed(b"hello")
            (connection,) = service.server.hub.connections.values()
            if by == "shutdown":
                connection.finish()
            elif by == "idleness":
                connection.close(CloseReason.IDLE)
            else:
                await client.call(client.session.unwrap)  # completes when the server has answered with its own
                client.writer.close()
                return
            assert await client.call(lambda: client.session.read(1)) == b""
            client.writer.close()

    run(scenario())


def test_an_alert_that_was_not_read_when_its_connection_closed_fails_no_other_connection(run: Run) -> None:
    async def scenario() -> None:
        async with serving_tls(Desk(echo), loaded()) as service:
            client = MemoryClient(*await asyncio.open_connection("127.0.0.1", service.port))
            await client.call(client.session.do_handshake)
            assert await client.ask(b"hello") == framed(b"hello")
            (connection,) = service.server.hub.connections.values()
            assert isinstance(connection, connection_module.TlsConnection)
            other = await service.connect_tls()
            assert await other.ask(b"hello") == b"hello"
            connection.incoming.write(client.fatal_alert())
            connection.close(CloseReason.IDLE)
            await client.reader.read()
            client.writer.close()
            assert await other.ask(b"again") == b"again"

    run(scenario())
