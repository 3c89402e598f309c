"""TLS listeners of the bench's brokers, and the loads that only security suites use."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable

import pytest

from bench import admin, client, procfs
from bench.loads import specs
from bench.loads.flood import DiscardedResponses
from bench.peers.broker import Broker, Peer
from bench.peers.tls import Certificates, TlsListener, TlsPenstock, create_certificates

pytestmark = pytest.mark.integration

CORE = min(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def listener(certificates: Certificates) -> TlsListener:
    return TlsListener(certificates, "required")


@pytest.fixture(scope="module")
def broker(listener: TlsListener, start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(TlsPenstock(listener))


def test_messages_travel_over_tls(broker: Broker, listener: TlsListener) -> None:
    admin.create_topics(broker.address, ["travel"], 2, {})
    admin.wait_for_leaders(broker.addresses, "travel", 2)
    settings = listener.certificates.client_settings()
    produce = specs.Produce(
        address=listener.address,
        topic="travel",
        broker_pids=broker.pids,
        core=CORE,
        size_bytes=100,
        messages=500,
        acks=1,
        settings=settings,
    )
    assert client.run(produce)["messages"] == 500
    consume = specs.Consume(
        address=listener.address,
        topic="travel",
        broker_pids=broker.pids,
        core=CORE,
        size_bytes=100,
        messages=500,
        partitions=2,
        settings=settings,
    )
    assert client.run(consume)["messages"] == 500


@pytest.mark.parametrize("has_certificate", [True, False])
def test_handshakes_are_counted_and_a_required_certificate_is_sent(
    broker: Broker, listener: TlsListener, has_certificate: bool
) -> None:
    spec = specs.Handshakes(
        address=listener.address,
        topic="",
        broker_pids=broker.pids,
        core=CORE,
        connections=20,
        authority=str(listener.certificates.authority),
        certificate=str(listener.certificates.client) if has_certificate else "",
    )
    if has_certificate:
        assert client.run(spec)["per_cpu_s"] > 1
    else:
        with pytest.raises(client.ClientFailed):
            client.run(spec)


@pytest.mark.parametrize("is_fetch", [False, True])
def test_a_flood_runs_beside_other_work_and_ends_with_it(broker: Broker, is_fetch: bool) -> None:
    topic = f"flooded-{is_fetch}"
    admin.create_topics(broker.address, [topic], 1, {})
    admin.wait_for_leaders(broker.addresses, topic, 1)
    spec = specs.Flood(
        address=broker.address,
        topic=topic,
        broker_pids=broker.pids,
        core=CORE,
        limit_s=3.0,
        client_id="noisy",
        size_bytes=10_000,
        depth=3,
        is_fetch=is_fetch,
    )
    assert client.run(spec)["answers"] > 3
    before = len(procfs.tree(os.getpid()))
    with client.beside(spec):
        assert len(procfs.tree(os.getpid())) > before
    assert len(procfs.tree(os.getpid())) == before


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_a_flood_counts_responses_however_they_are_split_and_copies_none(step: int) -> None:
    stream = b"".join(struct.pack(">i", size) + b"r" * size for size in (5, 0, 900, 1, 0))
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker_end = socket.create_connection(server.getsockname())
        client_end, _ = server.accept()
    with broker_end, client_end:
        client_end.setblocking(False)
        responses = DiscardedResponses(client_end)
        assert responses.discard() == 0
        completed = 0
        for start in range(0, len(stream), step):
            broker_end.sendall(stream[start : start + step])
            select.select([client_end], [], [])
            completed += responses.discard()
        while completed < 5:
            select.select([client_end], [], [])
            completed += responses.discard()
        assert completed == 5
        assert not any(responses.unused)
        broker_end.close()
        select.select([client_end], [], [])
        with pytest.raises(ConnectionError):
            responses.discard()


def test_a_load_that_ends_before_the_work_beside_it_is_an_error(broker: Broker) -> None:
    spec = specs.Flood(
        address="127.0.0.1:1", topic="t", broker_pids=broker.pids, core=CORE, client_id="n", size_bytes=1, depth=1
    )
    with pytest.raises(client.ClientFailed, match="refused"), client.beside(spec) as process:
        process.wait(30)
