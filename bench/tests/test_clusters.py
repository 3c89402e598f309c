"""Loads of clusters, on a real one whose brokers are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from bench import admin, client
from bench.loads import specs
from bench.loads.everywhere import Everywhere
from bench.peers.cluster import Cluster
from bench.peers.penstock import PenstockCluster

PARTITIONS = 12
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = PenstockCluster().service(os.sched_getaffinity(0), tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        yield running
    finally:
        running.remove()


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"{request.node.name}-0"
    admin.create_topics(cluster.address, [name], PARTITIONS, cluster.contender.durable_topic, 3)
    admin.wait_until_in_sync(cluster.addresses, [name], PARTITIONS, 3)
    yield name
    admin.delete_topic(cluster.address, name)


def _writers(cluster: Cluster, topic: str) -> Everywhere:
    return Everywhere(cluster.addresses, {topic: range(PARTITIONS)}, 100, interval_s=0.05)


def test_each_partition_is_written_at_its_leader_again_and_again(cluster: Cluster, topic: str) -> None:
    writers = _writers(cluster, topic)
    try:
        took = writers.until_acknowledged(LIMIT_S)
        assert len(took) == PARTITIONS
        assert all(seconds > 0 for seconds in took.values())
        assert {slot.leader for slot in took} == {1, 2, 3}
        before = writers.acknowledged
        while writers.acknowledged < before + 3 * PARTITIONS:
            writers.step()
        assert not writers.errors
        future_s = time.perf_counter() + 0.3
        assert min(writers.until_acknowledged(LIMIT_S, future_s).values()) > 0  # earlier sends do not count
    finally:
        writers.close()


@pytest.mark.timeout(180)
def test_a_killed_brokers_partitions_are_written_at_others_and_at_it_again(cluster: Cluster, topic: str) -> None:
    writers = _writers(cluster, topic)
    try:
        writers.until_acknowledged(LIMIT_S)
        victim = cluster.broker(2)
        os.kill(victim.pid, signal.SIGKILL)
        took = writers.until_acknowledged(LIMIT_S)
        assert {slot.leader for slot in took} == {1, 3}
        victim.kill()
        victim.start()
        cluster.wait_until_whole()
        admin.wait_until_in_sync(cluster.addresses, [topic], PARTITIONS, 3)
        admin.elect_preferred(cluster.addresses[0])
        while {slot.leader for slot in writers.until_acknowledged(LIMIT_S)} != {1, 2, 3}:
            writers.go_on(0.1)
    finally:
        writers.close()


@pytest.mark.timeout(180)
def test_the_failover_load_tells_when_the_last_partition_took_writes_again(cluster: Cluster, topic: str) -> None:
    victim = cluster.broker(3)
    spec = specs.Failover(
        address=cluster.address,
        topic=topic.removesuffix("-0"),
        broker_pids=cluster.pids,
        core=min(os.sched_getaffinity(0)),
        topics=1,
        partitions=PARTITIONS,
        size_bytes=100,
        interval_s=0.2,
        victim=3,
        victim_pid=victim.pid,
        signal=signal.SIGKILL,
        limit_s=LIMIT_S,
    )
    metrics = client.run(spec)
    assert victim.process is not None
    assert victim.process.wait(LIMIT_S) == -signal.SIGKILL
    assert metrics["partitions_of_victim"] == PARTITIONS / 3
    assert metrics["seconds"] == max(metrics["led_by_victim_s"], metrics["led_by_others_s"]) > metrics["first_s"] > 0
    victim.kill()
    victim.start()
    cluster.wait_until_whole()


def test_what_nobody_answers_is_a_timeout_that_names_partitions(cluster: Cluster) -> None:
    writers = Everywhere(cluster.addresses, {"nowhere": [7]}, 100, interval_s=1.0)
    try:
        with pytest.raises(TimeoutError, match=r"1 partitions accepted nothing .* nowhere-7; 1 without a leader"):
            writers.until_acknowledged(0.3)
    finally:
        writers.close()


def test_messages_that_are_due_while_a_request_is_under_way_share_the_next(cluster: Cluster, topic: str) -> None:
    metrics = client.run(
        specs.Paced(
            address=admin.leader_address(cluster.addresses, topic, 0),
            topic=topic,
            broker_pids=cluster.pids,
            core=min(os.sched_getaffinity(0)),
            size_bytes=100,
            rate_per_s=4000,
            seconds=0.5,
            in_flight=1,
        )
    )
    assert metrics["messages"] == 2000
    assert metrics["requests"] < 2000
    assert 0 < metrics["produce_p50_ms"] <= metrics["end_to_end_p99_ms"]


def test_the_groups_of_the_commits_load_are_coordinated_by_one_broker(cluster: Cluster, topic: str) -> None:
    spec = specs.Commits(
        address=cluster.addresses[1],
        topic=topic,
        broker_pids=cluster.pids,
        core=min(os.sched_getaffinity(0)),
        groups=30,
        partitions=PARTITIONS,
        connections=3,
        depth=4,
        seconds=0.3,
        warm_up_s=0.1,
    )
    metrics = client.run(spec)
    assert metrics["commits_per_s"] > 0
    assert (metrics["refused"], metrics["lost"]) == (0, 0)
