"""Publishing with confirms to a topic, and members of a share group that release records once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from bench import admin, client
from bench.loads import specs
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock

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
