"""Loads in their client processes, on librdkafka's mock broker, which supports all requests but Fetch 12."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from bench import admin, client
from bench.loads import specs
from bench.peers.broker import Broker, Peer, free_port
from bench.peers.mock import Mock

CORE = min(os.sched_getaffinity(0))
MOCK_PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(Mock())


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    admin.wait_for_leaders(broker.addresses, name, MOCK_PARTITIONS, create=True)
    return name


def _produce(broker: Broker, topic: str, messages: int, **settings: str | int) -> specs.Metrics:
    return client.run(
        specs.Produce(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            size_bytes=100,
            messages=messages,
            acks=-1,
            settings=settings,
        )
    )


def test_producing_counts_messages_requests_and_the_brokers_cpu_time(broker: Broker, topic: str) -> None:
    metrics = _produce(broker, topic, 20_000)
    assert metrics["messages"] == 20_000
    assert metrics["mb_per_s"] == pytest.approx(metrics["messages_per_s"] / 10_000)
    assert 0 < metrics["broker_cpu_s"] <= 1.1 * metrics["wall_s"] + 0.01
    assert metrics["cpu_s_per_million"] == pytest.approx(metrics["broker_cpu_s"] * 50)
    assert metrics["messages_per_request"] > 10


def test_small_batches_make_more_requests(broker: Broker, topic: str) -> None:
    metrics = _produce(broker, topic, 5_000, **{"batch.size": 1000, "linger.ms": 0})
    assert 1 <= metrics["messages_per_request"] < 10


def test_producing_without_a_broker_fails_in_time(topic: str) -> None:
    spec = specs.Produce(
        address=f"127.0.0.1:{free_port()}",
        topic=topic,
        broker_pids=(os.getpid(),),
        core=CORE,
        size_bytes=100,
        messages=10,
        acks=1,
        limit_s=0.5,
    )
    with pytest.raises(client.ClientFailed, match="the first message was not accepted"):
        client.run(spec)


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_consuming_reads_the_whole_topic_as_often_as_it_says(broker: Broker, topic: str, seconds: float) -> None:
    _produce(broker, topic, 5_000)
    metrics = client.run(
        specs.Consume(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            size_bytes=100,
            partitions=MOCK_PARTITIONS,
            messages=5_001,  # includes the one that opens the connection
            seconds=seconds,
        )
    )
    assert metrics["messages"] == 5_001 * metrics["passes"]
    assert metrics["passes"] > 1 if seconds else metrics["passes"] == 1
    assert metrics["wall_s"] >= seconds


def test_consuming_more_than_there_is_fails_in_time(broker: Broker, topic: str) -> None:
    _produce(broker, topic, 10)
    spec = specs.Consume(
        address=broker.address,
        topic=topic,
        broker_pids=broker.pids,
        core=CORE,
        size_bytes=100,
        partitions=MOCK_PARTITIONS,
        messages=12,
        seconds=0.3,
        limit_s=0.5,
    )
    with pytest.raises(client.ClientFailed, match=r"only \d+ of 12 messages"):
        client.run(spec)


def test_single_round_trips_have_ordered_percentiles(broker: Broker, topic: str) -> None:
    metrics = client.run(
        specs.OneByOne(
            address=broker.address, topic=topic, broker_pids=broker.pids, core=CORE, size_bytes=100, requests=200
        )
    )
    assert 0 < metrics["p50_ms"] <= metrics["p99_ms"] <= metrics["p999_ms"]
    assert metrics["messages_per_s"] * metrics["wall_s"] == pytest.approx(200)


def _surge(broker: Broker, topic: str, size_bytes: int, seconds: float) -> specs.Metrics:
    return client.run(
        specs.Surge(
            address=broker.address,
            topic=topic,
            broker_pids=broker.pids,
            core=CORE,
            producers=4,
            partitions=MOCK_PARTITIONS,
            factor=2.0,
            size_bytes=size_bytes,
            seconds=seconds,
            limit_bytes=100_000_000,
        )
    )


def test_a_surge_finds_every_acknowledged_message(broker: Broker, topic: str) -> None:
    metrics = _surge(broker, topic, size_bytes=64, seconds=0.1)
    assert metrics["acknowledged"] > 0
    assert (metrics["lost"], metrics["refused"], metrics["repeated"]) == (0, 0, 0)


def test_a_surge_catches_a_broker_that_forgets(broker: Broker, topic: str) -> None:
    metrics = _surge(broker, topic, size_bytes=900_000, seconds=3)  # the mock keeps five megabytes of a partition
    assert 0 < metrics["lost"] < metrics["acknowledged"]
