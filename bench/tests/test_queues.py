"""The load of queues on a server in memory and on a topic, and members of a share group that release records once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from bench import admin, client
from bench.loads import specs
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock
from bench.tests.amqp_server_kit import AmqpServer

CORE = min(os.sched_getaffinity(0))
PARTITIONS = 3


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(Penstock())


def _publish(broker: Broker, topic: str, messages: int) -> specs.Metrics:
    admin.create_topics(broker.address, [topic], PARTITIONS, {})
    return client.run(
        specs.Queue(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            protocol="kafka",
            size_bytes=100,
            messages=messages,
            members=0,
            seconds=30.0,
            partitions=PARTITIONS,
        )
    )


def test_messages_are_published_to_a_topic_until_all_are_confirmed(broker: Broker) -> None:
    metrics = _publish(broker, "published", 2050)
    assert metrics["messages"] == 2050
    assert metrics["messages_per_s"] > 0


@pytest.mark.parametrize("in_flight", [1, 20])
def test_members_that_release_every_second_record_once_accept_all(broker: Broker, in_flight: int) -> None:
    topic = f"alternating-{in_flight}"
    _publish(broker, topic, 100_000)
    metrics = client.run(
        specs.Share(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            partitions=PARTITIONS,
            members=2,
            size_bytes=100,
            seconds=1.0,
            one_by_one=True,
            in_flight=in_flight,
            alternating=True,
        )
    )
    assert metrics["messages"] > 0


@pytest.fixture
def server() -> Iterator[AmqpServer]:
    running = AmqpServer()
    yield running
    running.close()


MESSAGES = 410


def _queue(
    server: AmqpServer,
    members: int,
    *,
    one_by_one: bool = False,
    alternating: bool = False,
    rate_per_s: int = 0,
    seconds: float = 60.0,
) -> specs.Metrics:
    return client.run(
        specs.Queue(
            address=server.address,
            topic="",
            broker_pids=(os.getpid(),),
            core=CORE,
            protocol="amqp",
            size_bytes=100,
            messages=MESSAGES,
            members=members,
            seconds=seconds,
            one_by_one=one_by_one,
            alternating=alternating,
            rate_per_s=rate_per_s,
            prefetch=50,
        )
    )


def test_a_queue_is_filled_and_its_members_accept_all_messages_together(server: AmqpServer) -> None:
    assert _queue(server, 3)["messages"] == MESSAGES
    assert server.record.accepted == MESSAGES
    assert len(server.record.acks) < MESSAGES / 10


def test_members_accept_messages_one_by_one(server: AmqpServer) -> None:
    assert _queue(server, 2, one_by_one=True)["messages"] == MESSAGES
    assert server.record.acks == [False] * MESSAGES


def test_members_release_every_second_message_once_and_accept_all(server: AmqpServer) -> None:
    assert _queue(server, 2, one_by_one=True, alternating=True)["messages"] == MESSAGES
    assert server.record.accepted == MESSAGES
    assert server.record.released >= MESSAGES / 4
    assert server.record.released_again == 0


def test_without_members_a_section_is_the_confirmed_messages(server: AmqpServer) -> None:
    assert _queue(server, 0)["messages"] == MESSAGES
    assert len(server.messages) == 2 * MESSAGES  # with the warm-up


def test_at_a_rate_each_message_counts_from_its_schedule(server: AmqpServer) -> None:
    metrics = _queue(server, 2, rate_per_s=100, seconds=0.5)
    assert metrics["messages"] == 50
    assert 0 < metrics["end_to_end_p50_ms"] <= metrics["end_to_end_p99_ms"]
    assert server.record.accepted == 100  # with the warm-up
