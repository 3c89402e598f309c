"""The growth of clusters: the life of a small one of four brokers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bench import admin, requirements
from bench.peers.cluster import Cluster
from bench.peers.penstock import PenstockCluster
from bench.requirements import WIDE_BESIDE_KAFKA, WIDE_CASES
from bench.suites import wide
from bench.suites.wide import Subject

PARTITIONS = 12
BROKERS = 4


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    contender = PenstockCluster().resized(BROKERS)
    running = contender.service(os.sched_getaffinity(0), tmp_path_factory.mktemp("wide"))
    try:
        running.start()
        yield running
    finally:
        running.remove()


def test_the_required_lines_are_those_of_the_case_beside_kafka() -> None:
    required = {line.case.split(": ")[0] for line in requirements.ALL if line.suite == "wide"}
    assert required == {WIDE_BESIDE_KAFKA}
    assert WIDE_BESIDE_KAFKA in WIDE_CASES


@pytest.mark.timeout(240)
def test_all_partitions_accept_messages_after_a_kill_and_after_a_restart(cluster: Cluster) -> None:
    subject = Subject(cluster, PARTITIONS)
    subject.create()
    subject.write_all()
    admin.wait_until_in_sync(cluster.addresses, subject.names, PARTITIONS, cluster.contender.replicas)
    victim = 2 if cluster.controller() == 1 else 1
    assert any(wide.led_by(cluster.addresses[0], name, victim) for name in subject.names)
    subject.kill(victim)
    survivor = next(broker.address for broker in cluster.brokers if broker.process is not None)
    assert not any(wide.led_by(survivor, name, victim) for name in subject.names)
    subject.heal(victim)
    assert len(cluster.broker_pids) == BROKERS
    before = cluster.broker_pids
    cluster.stop()
    assert not cluster.broker_pids
    subject.start_again()
    assert not set(before) & set(cluster.broker_pids)
