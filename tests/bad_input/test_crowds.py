"""Too many, too slow or too demanding clients: memory stays bounded, and other clients are served."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time

import pytest
from bad_input_kit import Rude, frame_of

from bench.fuzz.broker import Broker, started
from bench.fuzz.canary import Canary
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.metadata import MetadataRequest

PING = bytes(frame_of(ApiVersionsRequest(), 0))


def test_ten_thousand_idle_connections_cost_little(broker: Broker, canary: Canary) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    number = min(10_000, hard - 500)
    assert number >= 3000, f"the limit of open files, {hard}, leaves no room for this test: raise it (ulimit -n)"
    before = broker.status_kib("VmRSS")
    idle = []
    try:
        for _ in range(number):
            sock = socket.create_connection((broker.host, broker.port), 60)
            sock.sendall(PING)
            idle.append(sock)
        for sock in idle:
            sock.settimeout(60)
            assert sock.recv(4)
        grown = broker.status_kib("VmRSS") - before
        assert grown / number < 8, f"{grown} KiB for {number} connections"
        canary.sing(b"among ten thousand")
    finally:
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pipeline_of_100_000_requests_is_answered_in_order(rude: Rude, broker: Broker) -> None:
    number = 100_000
    block = bytearray(PING * 1000)
    rude.socket.settimeout(0.0)
    sent = got = 0
    outgoing = memoryview(b"")
    incoming = bytearray()
    deadline = time.monotonic() + 100
    while got < number:
        assert time.monotonic() < deadline, f"{got} answers to {sent} requests"
        if not outgoing and sent < number:
            for i in range(1000):
                struct.pack_into(">i", block, i * len(PING) + 8, sent + i)
            sent += 1000
            outgoing = memoryview(bytes(block))
        with contextlib.suppress(BlockingIOError):
            outgoing = outgoing[rude.socket.send(outgoing) :]
        try:
            incoming += rude.socket.recv(1 << 20)
        except BlockingIOError:
            continue
        start = 0
        while len(incoming) - start >= 8:
            size, correlation_id = struct.unpack_from(">ii", incoming, start)
            if len(incoming) - start < 4 + size:
                break
            assert correlation_id == got
            got += 1
            start += 4 + size
        del incoming[:start]
    assert broker.status_kib("VmRSS") < 300_000


def test_clients_that_never_read_their_answers_are_held_in_bounds(broker: Broker, canary: Canary) -> None:
    request = bytes(frame_of(MetadataRequest(topics=None), 1)) * 2000
    before = broker.status_kib("VmRSS")
    deaf = [socket.create_connection((broker.host, broker.port)) for _ in range(10)]
    for sock in deaf:
        sock.setblocking(False)
    stuck = 0
    deadline = time.monotonic() + 60
    while stuck < 3:  # no connection could send for a while: the broker has stopped reading
        assert time.monotonic() < deadline, "the broker goes on reading"
        moved = 0
        for sock in deaf:
            try:
                moved += sock.send(request)
            except BlockingIOError:
                continue
        stuck = 0 if moved else stuck + 1
        if not moved:
            canary.ping()
            time.sleep(0.2)
    canary.sing(b"among the deaf")
    assert broker.status_kib("VmRSS") - before < 10 * 4096 + 20_000
    for sock in deaf:
        sock.close()


def test_connections_that_stop_mid_frame_or_do_nothing_are_closed_in_time() -> None:
    with (
        started(settings=("connections.max.idle.ms=4000",)) as impatient,
        Canary(impatient.host, impatient.port, "patience") as good,
    ):
        good.create(good.topic)
        stopped, silent = Rude(impatient.host, impatient.port), Rude(impatient.host, impatient.port)
        stopped.say(PING[:-3])
        answered = Rude(impatient.host, impatient.port)
        answered.ping()
        closed = 0
        for client in (stopped, silent, answered):
            client.socket.settimeout(0.1)
        deadline = time.monotonic() + 60
        waiting = [stopped, silent, answered]
        while waiting:
            assert time.monotonic() < deadline, f"{len(waiting)} are still open"
            good.sing(b"busy")  # otherwise the connection would be idle
            for client in list(waiting):
                try:
                    assert client.is_closed()
                except TimeoutError:
                    continue
                waiting.remove(client)
                closed += 1
        assert closed == 3
        good.listen()


def test_a_request_that_is_never_finished_waits_alone(broker: Broker, canary: Canary) -> None:
    halves = []
    for _ in range(200):
        half = Rude(broker.host, broker.port)
        half.say(struct.pack(">i", 50 << 20) + b"x" * 50_000)
        halves.append(half)
    canary.sing(b"among the half")
    assert broker.status_kib("VmRSS") < 400_000
    for half in halves:
        half.socket.close()


@pytest.mark.parametrize("piece", [1, 7])
def test_a_request_that_comes_byte_by_byte_is_a_request(rude: Rude, piece: int) -> None:
    rude.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(PING), piece):
        rude.say(PING[start : start + piece])
    assert struct.unpack_from(">i", rude.receive()) == (1,)
