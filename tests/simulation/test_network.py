"""Simulated connections behave as TCP does: order, delays after losses and cuts, resets, silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from penstock_simulation.machine import Machine
from penstock_simulation.network import Network
from penstock_simulation.process import Process
from penstock_simulation.world import World

HOST, PORT = "server", 7


class Receiver(asyncio.Protocol):
    """Protocol that stores the received data."""

    def __init__(self) -> None:
        self.data = b""
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Buffered(asyncio.BufferedProtocol):
    """Protocol that receives into a small buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.data = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]


class Place:
    """A listening server and a client machine."""

    def __init__(self, seed: int = 1, make: Callable[[], Any] = Receiver) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.server, self.client = Machine(self.world, self.network, HOST), Machine(self.world, self.network, "client")
        self.accepted: list[Any] = []
        self.make = make
        self.process = self.serve()

    def serve(self) -> Process:
        def made() -> Any:
            self.accepted.append(self.make())
            return self.accepted[-1]

        async def main() -> None:
            await asyncio.get_running_loop().create_server(made, HOST, PORT)
            await asyncio.get_running_loop().create_future()

        return self.world.spawn("server", main, self.server)

    def run(self, main: Callable[[Any, Receiver], Coroutine[Any, Any, Any]]) -> Any:
        async def body() -> Any:
            await asyncio.sleep(0.1)
            transport, protocol = await connect()
            return await main(transport, protocol)

        return self.world.run_main(body, self.client)


async def connect() -> tuple[Any, Receiver]:
    found: tuple[Any, Receiver] = await asyncio.get_running_loop().create_connection(Receiver, HOST, PORT)
    return found


@pytest.mark.parametrize("make", [Receiver, Buffered])
@pytest.mark.parametrize("seed", range(8))
def test_bytes_arrive_once_in_order_whatever_is_lost_on_the_way(seed: int, make: Callable[[], Any]) -> None:
    place = Place(seed, make)
    place.network.loss = 0.2
    sent = [bytes([i % 251]) * (i * 7 % 500 + 1) for i in range(300)]

    async def main(transport: Any, protocol: Receiver) -> None:
        for chunk in sent:
            transport.write(chunk)
            await asyncio.sleep(0.001)
        await asyncio.sleep(600)

    place.run(main)
    assert place.accepted[0].data == b"".join(sent)


def test_connections_overtake_each_other() -> None:
    def order(seed: int) -> list[int]:
        place, found = Place(seed), []

        class Noting(Receiver):
            def data_received(self, data: bytes) -> None:
                found.append(data[0])

        place.make = Noting

        async def main(transport: Any, protocol: Receiver) -> None:
            others = [(await connect())[0] for _ in range(5)]
            for number, one in enumerate([transport, *others]):
                one.write(bytes([number]))
            await asyncio.sleep(60)

        place.run(main)
        return found

    orders = [order(seed) for seed in range(5)]
    assert all(sorted(o) == list(range(6)) for o in orders)
    assert any(o != sorted(o) for o in orders)


def test_nobody_who_listens_refuses_and_a_machine_that_is_down_says_nothing() -> None:
    place = Place()

    async def main() -> list[str]:
        await asyncio.sleep(0.1)
        found = []
        place.process.kill()
        for _ in range(2):
            try:
                await connect()
            except OSError as e:
                found.append(f"{type(e).__name__} {place.world.now > 15}")
            if place.server.up:
                place.server.lose_power()
        return found

    assert place.world.run_main(main, place.client) == ["ConnectionRefusedError False", "TimeoutError True"]


def test_a_cut_stalls_what_is_sent_until_it_is_healed() -> None:
    place = Place()

    async def main(transport: Any, protocol: Receiver) -> list[bytes]:
        place.network.cut("client", HOST)
        transport.write(b"there")
        await asyncio.sleep(30)
        first = place.accepted[0].data
        place.accepted[0].transport.write(b"back")
        await asyncio.sleep(1)
        assert protocol.data == b"back", "the other direction is not cut"
        place.network.heal("client", HOST)
        await asyncio.sleep(5)
        return [first, place.accepted[0].data]

    assert place.run(main) == [b"", b"there"]


def test_the_peer_of_a_killed_process_is_told_and_of_a_lost_machine_is_not_until_it_is_back() -> None:
    found = set()
    for seed in range(10):
        place = Place(seed)

        async def killed(transport: Any, protocol: Receiver, place: Place = place) -> tuple[str, ...]:
            place.process.kill()
            await asyncio.sleep(1)
            return tuple(protocol.events)

        found.add(place.run(killed))
    assert found == {("eof", "lost"), ("ConnectionResetError",)}

    place = Place()

    async def powerless(transport: Any, protocol: Receiver) -> list[list[str]]:
        place.server.lose_power()
        transport.write(b"anybody?")
        await asyncio.sleep(60)
        before = list(protocol.events)
        place.server.boot()
        await asyncio.sleep(10)
        return [before, protocol.events]

    assert place.run(powerless) == [[], ["ConnectionResetError"]]


def test_what_was_on_its_way_before_a_close_arrives_before_the_end() -> None:
    place = Place()

    async def main(transport: Any, protocol: Receiver) -> tuple[bytes, list[str], list[str]]:
        transport.write(b"last words" * 1000)
        transport.close()
        transport.write(b"too late")
        await asyncio.sleep(5)
        return place.accepted[0].data, place.accepted[0].events, protocol.events

    assert place.run(main) == (b"last words" * 1000, ["eof", "lost"], ["lost"])


def test_a_reader_that_does_not_read_makes_the_writer_wait() -> None:
    place = Place()

    async def main(transport: Any, protocol: Receiver) -> tuple[list[str], bytes]:
        await asyncio.sleep(0.1)
        peer = place.accepted[0]
        peer.transport.pause_reading()
        for _ in range(100):
            transport.write(bytes(10_000))
        await asyncio.sleep(10)
        assert peer.data == b""
        assert protocol.events == ["pause"]
        assert 64 << 10 < transport.get_write_buffer_size() < 1_000_000
        peer.transport.resume_reading()
        await asyncio.sleep(10)
        assert transport.get_write_buffer_size() == 0
        return protocol.events, peer.data

    events, data = place.run(main)
    assert events == ["pause", "resume"]
    assert data == bytes(1_000_000)


def test_a_paused_process_accepts_and_receives_when_it_goes_on() -> None:
    place = Place()

    async def main() -> bytes:
        await asyncio.sleep(0.1)
        place.process.pause()
        transport, _ = await connect()
        transport.write(b"hello")
        await asyncio.sleep(5)
        assert not place.accepted
        place.process.resume()
        await asyncio.sleep(1)
        data: bytes = place.accepted[0].data
        return data

    assert place.world.run_main(main, place.client) == b"hello"


def test_a_reset_ends_connections_for_both_sides() -> None:
    world = World(4)
    network = Network(world)
    told: list[str] = []

    class Ending(asyncio.Protocol):
        def __init__(self, who: str) -> None:
            self.who = who

        def connection_lost(self, exc: Exception | None) -> None:
            told.append(f"{self.who} {type(exc).__name__}")

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(lambda: Ending("server"), "b", 9)
        await asyncio.sleep(10)

    async def connect() -> None:
        await asyncio.get_running_loop().create_connection(lambda: Ending("client"), "b", 9)
        await asyncio.sleep(10)

    world.spawn("b", serve, Machine(world, network, "b"))
    world.at(1, world.spawn, "c", connect, Machine(world, network, "c"))
    world.at(2, network.reset, "b", 1.0)
    world.run(lambda: len(told) == 2, 5)
    assert sorted(told) == ["client ConnectionResetError", "server ConnectionResetError"]
    assert not network.transports
    world.close()
