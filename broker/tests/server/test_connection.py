"""A connection on real sockets: requests and responses, backpressure, and idle peers."""

from __future__ import annotations

import asyncio
import random
import socket
import struct

import pytest
from server_kit import Desk, Run, echo, framed, serving, until

from penstock.api.exchange import PeerConnection, ProtocolViolation, RequestExchange
from penstock.server.buffers import frame_size_violation
from penstock.server.limits import ServerLimits
from penstock.server.stats import CloseReason

pytestmark = pytest.mark.integration


def test_answers_leave_in_the_order_of_the_requests(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as service:
            client = await service.connect()
            client.send(*[b"%d" % i for i in range(50)])
            await desk.received(50)
            numbers = list(range(50))
            random.Random(3).shuffle(numbers)
            for number in numbers:
                desk.open[number].reply([framed(b"%d" % number)])
                await asyncio.sleep(0)
            assert [int(await client.receive()) for _ in range(50)] == list(range(50))

    run(scenario())


def test_a_pipeline_of_requests_is_served_within_bounds(run: Run) -> None:
    async def scenario() -> None:
        highest = 0

        def answer(exchange: RequestExchange, content: bytes) -> None:
            nonlocal highest
            hub = service.server.hub
            highest = max(highest, *(c.open_exchanges for c in hub.connections.values()))  # type: ignore[attr-defined]
            if len(desk.requests) % 2:
                exchange.reply([framed(content)])
            else:
                asyncio.get_running_loop().call_soon(exchange.reply, [framed(content)])

        desk = Desk(answer)
        async with serving(desk, ServerLimits(max_in_flight=100)) as service:
            client = await service.connect()
            total = 20_000
            client.send(*[b"%06d" % i for i in range(total)])
            got = await client.reader.readexactly(10 * total)
            assert got == b"".join(framed(b"%06d" % i) for i in range(total))
            assert highest == 100
            assert service.server.stats.requests == total

    run(scenario())


class Flood(Desk):
    """Replies to every request at once, with a large response."""

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        if self.answer is not None:
            super().__call__(connection, frame)
        else:
            connection.reply(framed(b"a" * 10_000))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_client_that_never_reads_holds_bounded_memory_and_is_closed(run: Run, at_once: bool) -> None:
    async def scenario() -> None:
        desk = Flood() if at_once else Desk(lambda exchange, content: exchange.reply([framed(b"a" * 10_000)]))
        limits = ServerLimits(max_unsent_bytes=200_000, idle_s=3)
        async with serving(desk, limits) as service:
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", service.port)) as sock:
                sock.setblocking(False)
                sending = loop.create_task(loop.sock_sendall(sock, framed(b"more") * 300_000))
                sending.add_done_callback(lambda task: task.exception())
                await until(lambda: service.server.stats.connections == 1)
                (connection,) = service.server.hub.connections.values()
                await until(lambda: connection.paused != 0)
                unsent = 0
                while service.server.stats.connections:
                    unsent = max(unsent, connection.unsent_bytes)  # type: ignore[attr-defined]
                    await asyncio.sleep(0.002)
                assert 200_000 < unsent <= 200_000 + 10_004
                assert service.server.hub.pool.held_bytes == 0
                assert service.server.stats.closed[CloseReason.IDLE] == 1

    run(scenario())


def test_a_client_that_reads_late_gets_everything(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk(lambda exchange, content: exchange.reply([framed(content * 1000)]))
        async with serving(desk, ServerLimits(max_unsent_bytes=50_000)) as service:
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", service.port)) as sock:
                sock.setblocking(False)
                contents = [b"%04d" % i for i in range(5000)]
                sending = loop.create_task(loop.sock_sendall(sock, b"".join(map(framed, contents))))
                await until(lambda: service.server.stats.paused == 1)
                got = bytearray()
                while len(got) < 4004 * 5000:
                    got += await loop.sock_recv(sock, 1 << 20)
                await sending
                assert got == b"".join(framed(content * 1000) for content in contents)
                assert service.server.stats.paused == 0

    run(scenario())


def test_an_http_client_is_told_that_it_speaks_to_a_kafka_port(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk(echo)
        async with serving(desk) as service:
            client = await service.connect()
            client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = (await client.closed()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
            assert b"port for Kafka clients" in body
            assert service.server.stats.closed[CloseReason.VIOLATION] == 1

    run(scenario())


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"GET ", "the client speaks HTTP"),
        (b"\x16\x03\x01\x02", "the client speaks TLS"),
        (b"\x7f\0\0\0", "0 to 1048576"),
    ],
)
def test_a_length_that_is_another_protocol_is_told_by_its_name(first: bytes, why: str) -> None:
    (size,) = struct.unpack(">i", first)
    assert why in str(frame_size_violation(size, 1 << 20))


def test_an_idle_connection_and_one_that_stops_mid_frame_are_closed_in_time(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk, ServerLimits(idle_s=3)) as service:
            idle, stuck, waiting = [await service.connect() for _ in range(3)]
            stuck.writer.write(struct.pack(">i", 100) + b"half")
            waiting.send(b"long poll")
            await desk.received(1)
            assert await idle.closed() == b""
            assert await stuck.closed() == b""
            assert service.server.stats.closed[CloseReason.IDLE] == 2
            desk.open[0].reply([framed(b"it waited for us, not we for it")])
            assert await waiting.receive() == b"it waited for us, not we for it"

    run(scenario())


def test_a_connection_that_is_used_is_not_idle(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Desk(echo), ServerLimits(idle_s=4)) as service:
            used, idle = await service.connect(), await service.connect()
            asking = True

            async def use() -> None:
                while asking:
                    assert await used.ask(b"x") == b"x"
                    await asyncio.sleep(0.05)

            task = asyncio.ensure_future(use())
            await idle.closed()
            asking = False
            await task
            assert await used.ask(b"y") == b"y"

    run(scenario())


def test_random_bytes_never_reach_beyond_their_connection(run: Run) -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 32)
        print("seed", seed)  # noqa: T201
        rng = random.Random(seed)

        class Fussy(Desk):
            def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
                if len(frame) > 3 and frame[0] > 200:
                    raise ProtocolViolation("a byte above 200")
                super().__call__(connection, frame)

        desk = Fussy(echo)
        async with serving(desk, ServerLimits(max_request_bytes=1 << 16)) as service:
            good = await service.connect()
            for i in range(300):
                client = await service.connect()
                stream = bytearray(b"".join(framed(rng.randbytes(rng.randrange(200))) for _ in range(5)))
                for _ in range(rng.randrange(4)):
                    stream[rng.randrange(len(stream))] = rng.randrange(256)
                client.writer.write(stream[: rng.randrange(len(stream) + 1)])
                if rng.random() < 0.3:
                    client.hang_up()
                assert await good.ask(b"%d" % i) == b"%d" % i
            assert len(service.server.hub.connections) <= 301

    run(scenario())
