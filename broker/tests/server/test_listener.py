"""Listeners report why they cannot open, admit connections within limits, and close in order."""

from __future__ import annotations

import asyncio
import socket

import pytest
from server_kit import Desk, Run, echo, framed, serving, until

from penstock.api.exchange import PeerConnection
from penstock.config.listeners import ListenerAddress
from penstock.server.limits import ServerLimits
from penstock.server.listener import ListenError, Server, bind_sockets
from penstock.server.stats import CloseReason

pytestmark = pytest.mark.integration


def test_each_listener_has_its_name_and_gets_a_port(run: Run) -> None:
    async def scenario() -> None:
        names: list[str] = []

        def handler(connection: PeerConnection, frame: memoryview) -> None:
            names.append(connection.peer.listener)
            assert connection.peer.host == "127.0.0.1"
            connection.open_exchange().reply([framed(b"hello")])

        server = Server(handler, ServerLimits())
        wanted = [ListenerAddress("INSIDE", "127.0.0.1", 0), ListenerAddress("OUTSIDE", "127.0.0.1", 0)]
        bound = await server.listen(wanted)
        assert [b.name for b in bound] == ["INSIDE", "OUTSIDE"]
        assert all(b.port for b in bound)
        for address in bound:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(framed(b"who?"))
            assert await reader.readexactly(9) == framed(b"hello")
            writer.transport.abort()
        assert names == ["INSIDE", "OUTSIDE"]
        await server.close(0)

    run(scenario())


@pytest.mark.parametrize(("host", "is_paced"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True)])
def test_what_comes_by_the_loopback_address_is_not_paced(run: Run, host: str, is_paced: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        _, (listening,) = await bind_sockets(loop, ListenerAddress("A", host, 0))
        with listening, socket.socket(listening.family) as fresh:
            listening.listen()
            with socket.create_connection(listening.getsockname()[:2]):
                accepted, _ = listening.accept()
                with accepted:
                    chosen = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            default = fresh.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert chosen.rstrip(b"\0") == (default.rstrip(b"\0") if is_paced else b"reno")

    run(scenario())


def test_a_port_that_is_taken_is_named_with_the_cure_and_nothing_stays_open(run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
            port, free = taken.getsockname()[1], other.getsockname()[1]
            other.close()
            server = Server(Desk(), ServerLimits())
            with pytest.raises(ListenError, match=rf"port {port} is in use.*choose another"):
                await server.listen([ListenerAddress("A", "127.0.0.1", free), ListenerAddress("B", "127.0.0.1", port)])
            with socket.create_server(("127.0.0.1", free)):
                pass
            await server.close(0)

    run(scenario())


@pytest.mark.parametrize(("host", "why"), [("192.0.2.1", "does not have the address"), ("no.such.invalid", "resolved")])
def test_a_host_that_is_not_ours_is_explained(run: Run, host: str, why: str) -> None:
    async def scenario() -> None:
        server = Server(Desk(), ServerLimits())
        with pytest.raises(ListenError, match=why):
            await server.listen([ListenerAddress("A", host, 0)])
        await server.close(0)

    run(scenario())


def test_a_connection_too_many_is_turned_away(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Desk(echo), ServerLimits(max_connections=2)) as service:
            first, second = await service.connect(), await service.connect()
            assert await first.ask(b"1") == b"1"
            assert await second.ask(b"2") == b"2"
            third = await service.connect()
            assert await third.closed() == b""
            assert await first.ask(b"1") == b"1"
            assert service.server.stats.closed[CloseReason.TOO_MANY] == 1
            second.hang_up()
            await until(lambda: service.server.stats.connections == 1)

    run(scenario())


def test_one_address_cannot_take_all_connections(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Desk(echo), ServerLimits(max_connections_per_ip=1)) as service:
            first = await service.connect()
            assert await first.ask(b"1") == b"1"
            second = await service.connect()
            assert await second.closed() == b""
            assert service.server.stats.closed[CloseReason.TOO_MANY] == 1
            first.hang_up()
            await until(lambda: not service.server.hub.connections_by_host)

    run(scenario())


def test_closing_lets_requests_in_progress_finish(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        server = Server(desk, ServerLimits())
        (address,) = await server.listen([ListenerAddress("A", "127.0.0.1", 0)])
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", address.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(framed(b"slow"))
        await desk.received(1)
        closing = asyncio.ensure_future(server.close(30))
        assert await idle_reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", address.port)
        assert not closing.done()
        desk.open[0].reply([framed(b"done")])
        assert await reader.read() == framed(b"done")
        await closing
        assert server.stats.connections == 0
        for w in (writer, idle_writer):
            w.transport.abort()

    run(scenario())


def test_closing_waits_no_longer_than_it_was_told(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk()
        server = Server(desk, ServerLimits())
        (address,) = await server.listen([ListenerAddress("A", "127.0.0.1", 0)])
        _, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(framed(b"never answered"))
        await desk.received(1)
        await server.close(0.05)
        assert desk.open[0].is_disconnected
        writer.transport.abort()

    run(scenario())


def test_memory_for_incomplete_requests_is_bounded_and_small_ones_still_pass(run: Run) -> None:
    async def scenario() -> None:
        mib = 1 << 20
        desk = Desk(lambda e, content: e.reply([framed(b"%d" % len(content))]))
        limits = ServerLimits(max_request_bytes=8 * mib, max_receive_bytes=6 * mib, max_memory_wait_s=0.3)
        async with serving(desk, limits) as service:
            hub = service.server.hub
            greedy = [await service.connect() for _ in range(12)]
            for client in greedy:
                client.writer.write((8 * mib).to_bytes(4, "big") + b"x" * (2 * mib))  # the rest never follows
            await until(lambda: bool(hub.pressure.waiting))
            # Each event past the limit pauses one connection; the others may have doubled their buffers until then.
            assert hub.pool.held_bytes <= 4 * limits.max_receive_bytes
            modest = await service.connect()
            assert await modest.ask(b"y" * 300_000) == b"300000"
            await until(lambda: service.server.stats.closed[CloseReason.MEMORY] > 0)
            assert await modest.ask(b"y" * 300_000) == b"300000"

    run(scenario())


def test_peers_that_have_sent_large_requests_hold_no_more_for_the_beginnings_of_the_next(run: Run) -> None:
    async def scenario() -> None:
        mib = 1 << 20
        desk = Desk(lambda e, content: e.reply([framed(b"%d" % len(content))]))
        limits = ServerLimits(max_request_bytes=8 * mib, max_receive_bytes=32 * mib)
        async with serving(desk, limits) as service:
            clients = [await service.connect() for _ in range(20)]
            for client in clients:
                assert await client.ask(b"z" * (5 * mib)) == b"%d" % (5 * mib)
            for client in clients:
                client.writer.write((5 * mib).to_bytes(4, "big") + b"x")
            await until(lambda: sum(c.reader.held_bytes > 0 for c in service.server.hub.connections.values()) == 20)
            assert service.server.hub.pool.held_bytes <= limits.max_receive_bytes // 2
            assert not service.server.hub.pressure.waiting

    run(scenario())


def test_requests_larger_than_the_memory_for_all_pass_one_by_one(run: Run) -> None:
    async def scenario() -> None:
        mib = 1 << 20
        desk = Desk(lambda e, content: e.reply([framed(b"%d" % len(content))]))
        limits = ServerLimits(max_request_bytes=8 * mib, max_receive_bytes=mib, max_memory_wait_s=20)
        async with serving(desk, limits) as service:
            clients = [await service.connect() for _ in range(6)]
            for client in clients:
                client.send(b"z" * (4 * mib))
            for client in clients:
                assert await client.receive() == b"%d" % (4 * mib)

    run(scenario())
