"""Connections that authenticate first: limits until then, and the end of their time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from core_kit import CoreBench
from server_kit import Client, Desk, echo

from penstock.api.exchange import PeerConnection
from penstock.config.listeners import ListenerAddress
from penstock.security.principal import Principal
from penstock.server.core import ConnectionCore
from penstock.server.limits import ServerLimits
from penstock.server.listener import Server
from penstock.server.stats import CloseReason

ANA = Principal("User", "ana")


def refuse(connection: PeerConnection, frame: memoryview) -> None:
    raise AssertionError("the handler of a client that is not authenticated")


def test_a_handshake_limits_frames_and_its_end_names_the_peer_and_restores_the_limit() -> None:
    bench = CoreBench(refuse)
    served: list[bytes] = []
    bench.core.begin_handshake(lambda connection, frame: served.append(bytes(frame)), 10, "some.setting")
    bench.arrive(b"x" * 10)
    assert bench.is_handshaking
    bench.core.end_handshake(
        replace(bench.core.peer, principal=ANA), lambda connection, frame: served.append(bytes(frame))
    )
    assert not bench.is_handshaking
    assert bench.core.peer.principal == ANA
    bench.arrive(b"y" * 11)
    assert [len(each) for each in served] == [10, 11]


def test_cve_2022_34917_a_larger_frame_before_authentication_is_refused_before_it_arrives() -> None:
    bench = CoreBench(refuse)
    bench.core.begin_handshake(refuse, 10, "some.setting")
    bench.arriving += (1 << 20).to_bytes(4, "big")
    bench.receive(4)
    assert bench.core.reason is CloseReason.VIOLATION
    assert bench.pool.held_bytes == 0
    assert "some.setting" in bench.warnings[0][1]


def test_a_rejected_client_gets_its_responses_before_the_end_and_is_logged() -> None:
    bench = CoreBench(refuse)
    bench.core.begin_handshake(lambda connection, frame: connection.reply(b"\0\0\0\x02no"), 10, "some.setting")
    bench.arrive(b"x")
    bench.core.reject("authentication failed", "why")
    bench.turn()
    assert bench.answers == [b"no"]
    assert bench.ending == "aborted"
    assert bench.warnings == [("authentication failed", "why")]
    assert bench.core.reason is CloseReason.AUTHENTICATION


@pytest.mark.integration
@pytest.mark.parametrize("is_sending", [False, True])
async def test_a_connection_that_does_not_authenticate_in_time_is_closed_and_others_are_not(is_sending: bool) -> None:
    desk = Desk()
    desk.answer = echo

    def accept(connection: ConnectionCore) -> None:
        connection.begin_handshake(desk, 1000, "some.setting")
        if not is_sending:
            return
        connection.end_handshake(connection.peer, desk)
        connection.begin_handshake(desk, 1000, "some.setting")

    server = Server(desk, ServerLimits(handshake_s=0.05), accept={"SASL": accept})
    addresses = [ListenerAddress("SASL", "127.0.0.1", 0), ListenerAddress("PLAINTEXT", "127.0.0.1", 0)]
    late, other = [
        Client(*await asyncio.open_connection("127.0.0.1", each.port)) for each in await server.listen(addresses)
    ]
    try:
        assert await other.ask(b"one") == b"one"
        if is_sending:
            late.send(b"half"[:2])
        await late.closed()
        assert server.stats.closed[CloseReason.HANDSHAKE] == 1
        assert await other.ask(b"two") == b"two"
        assert not server.hub.handshakes.deadlines
        assert server.hub.handshakes.timer is None
    finally:
        await server.close(0)
        late.hang_up()
        other.hang_up()


@pytest.mark.integration
async def test_an_authenticated_connection_is_not_closed_when_the_time_of_its_handshake_is_over() -> None:
    desk = Desk()
    desk.answer = echo
    accepted: list[ConnectionCore] = []

    def accept(connection: ConnectionCore) -> None:
        connection.begin_handshake(desk, 1000, "some.setting")
        accepted.append(connection)

    server = Server(desk, ServerLimits(handshake_s=0.05), accept={"SASL": accept})
    (address,) = await server.listen([ListenerAddress("SASL", "127.0.0.1", 0)])
    done, late = [Client(*await asyncio.open_connection("127.0.0.1", address.port)) for _ in range(2)]
    try:
        assert await done.ask(b"one") == b"one"
        first = next(each for each in accepted if each.peer.port == done.writer.get_extra_info("sockname")[1])
        first.end_handshake(first.peer, desk)
        await late.closed()
        assert await done.ask(b"two") == b"two"
    finally:
        await server.close(0)
        done.hang_up()
        late.hang_up()
