"""Connections of throttled clients: not read until they are due, with one timer and bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from core_kit import CoreBench
from server_kit import Desk, Run, echo, framed, serving

from penstock.api.exchange import PeerConnection
from penstock.server.throttled import MAX_RESUMED, TICK_S, ThrottledConnections


class VirtualLoop:
    """The time and timers of an event loop that the test advances."""

    def __init__(self) -> None:
        self.now = 500.0
        self.timers: list[VirtualTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> VirtualTimer:
        self.timers.append(VirtualTimer(when, callback, self.timers))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [t for t in self.timers if t.due <= self.now]:
            timer.cancel()
            timer.callback()


class VirtualTimer:
    """A handle without `when`, like that of uvloop for a time that has passed."""

    def __init__(self, when: float, callback: Callable[[], None], timers: list[VirtualTimer]) -> None:
        self.due, self.callback, self.timers = when, callback, timers

    def cancel(self) -> None:
        self.timers.remove(self)


class Room:
    """Cores whose quota pauses end by the connections under test."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.throttled = ThrottledConnections(self.loop)  # type: ignore[arg-type]

    def bench(self) -> CoreBench:
        made = CoreBench(self.handle)
        made.resume_later = self.throttled.add  # type: ignore[method-assign]
        return made

    def handle(self, connection: PeerConnection, frame: memoryview) -> None:
        """Echo, and throttle for the time that the request starts with."""
        throttle_ms, _, _ = bytes(frame).partition(b" ")
        connection.reply(framed(bytes(frame)))
        if throttle_ms != b"0":
            connection.throttle(int(throttle_ms))


def test_the_response_leaves_first_and_the_next_request_waits_for_its_time() -> None:
    room = Room()
    bench = room.bench()
    bench.arrive(b"100 a", b"0 b")
    assert (bench.answers, bench.is_reading) == ([b"100 a"], False)
    room.loop.advance(0.05)
    assert bench.answers == [b"100 a"]
    room.loop.advance(0.06)
    assert (bench.answers, bench.is_reading) == ([b"100 a", b"0 b"], True)
    assert room.loop.timers == []


def test_a_client_that_keeps_sending_is_not_read() -> None:
    room = Room()
    bench = room.bench()
    bench.arrive(b"1000 a")
    held = bench.core.reader.held_bytes
    for _ in range(100):
        bench.arrive(b"0 " + b"x" * 10_000)
    assert len(bench.arriving) > 1_000_000, "it stays in the socket"
    assert bench.core.reader.held_bytes == held
    assert bench.answers == [b"1000 a"]


def test_a_longer_throttle_time_replaces_a_shorter_one_and_not_the_reverse() -> None:
    room = Room()
    bench = room.bench()
    bench.arrive(b"1000 a")
    bench.core.throttle(100)
    bench.core.throttle(2000)
    room.loop.advance(1.9)
    assert not bench.is_reading
    room.loop.advance(0.2)
    assert bench.is_reading


def test_one_timer_serves_all_connections_and_lost_ones_leave_nothing() -> None:
    room = Room()
    benches = [room.bench() for _ in range(200)]
    for number, bench in enumerate(benches):
        bench.arrive(b"%d a" % (1000 - number))
        assert len(room.loop.timers) == 1
    for bench in benches[100:]:
        bench.core.on_lost()
        room.throttled.remove(bench.core)
    assert len(room.throttled) == 100
    room.loop.advance(2)
    while room.loop.timers:
        room.loop.advance(TICK_S)
    assert len(room.throttled) == 0
    assert room.throttled._due == {}
    assert all(bench.is_reading for bench in benches[:100])
    lost = benches[-1].core
    lost.throttle(1000)
    assert len(room.throttled) == 0, "a lost connection is not paused"


def test_many_connections_that_are_due_together_are_resumed_in_parts() -> None:
    room = Room()
    benches = [room.bench() for _ in range(3 * MAX_RESUMED)]
    for bench in benches:
        bench.arrive(b"500 a", b"500 b")
    for part in range(1, 4):
        room.loop.advance(0.52 if part == 1 else 0)
        assert sum(len(bench.answers) == 2 for bench in benches) == part * MAX_RESUMED
    assert len(room.throttled) == len(benches), "each is throttled again"


class SlowAddress:
    """Delays each connection after the first."""

    limits_connections = True

    def __init__(self) -> None:
        self.hosts: list[str] = []

    def connection_delay_s(self, host: str) -> float:
        self.hosts.append(host)
        return 0.0 if len(self.hosts) == 1 else 3600.0


@pytest.mark.integration
def test_a_connection_above_the_rate_of_its_address_is_not_read_before_its_time(run: Run) -> None:
    async def scenario() -> None:
        desk = Desk(echo)
        async with serving(desk) as service:
            quotas = SlowAddress()
            hub = service.server.hub
            hub.quotas = quotas
            first, second = await service.connect(), await service.connect()
            second.send(b"early")
            assert await first.ask(b"hello") == b"hello"
            assert await first.ask(b"again") == b"again"
            assert desk.requests == [b"hello", b"again"]
            assert quotas.hosts == ["127.0.0.1"] * 2
            assert len(hub.throttled) == 1
            hub.quotas = None
            second.hang_up()
            (delayed,) = [c for c in hub.connections.values() if c.paused]
            delayed.transport.abort()
            while len(hub.throttled):
                await asyncio.sleep(0.001)

    run(scenario())


@pytest.mark.integration
def test_a_throttled_client_on_a_socket_fills_no_memory_and_is_served_afterwards(run: Run) -> None:
    async def scenario() -> None:
        def throttle(connection: PeerConnection, frame: memoryview) -> None:
            requests.append(bytes(frame[:5]))
            connection.reply(framed(bytes(frame[:5])))
            connection.throttle(50)

        requests: list[bytes] = []
        async with serving(Desk(echo)) as service:
            service.server.hub.handler = throttle
            noisy = await service.connect()
            noisy.send(*[b"n%04d" % number + bytes(100_000) for number in range(100)])
            assert await noisy.receive() == b"n0000"
            assert await noisy.receive() == b"n0001"
            assert service.server.hub.pool.held_bytes < 1 << 20
            assert len(requests) < 20
            noisy.hang_up()
            service.server.hub.handler = Desk(echo)

    run(scenario())
