"""Create 1,000 partitions of three replicas in a new cluster, then 10,000; measure it idle, and restart it."""

from __future__ import annotations

import time

from bench import admin, procfs
from bench.loads.everywhere import Everywhere
from bench.peers.cluster import Cluster
from bench.peers.service import Contender
from bench.session import Session
from bench.suites.footprint import resident
from bench.suites.partitions import PARTITIONS_EACH, TOPICS, sample

ROUNDS = 3
KAFKA_ROUNDS = 1  # one round takes minutes, and only the restart is compared
SIZE_BYTES = 100
LIMIT_S = 300.0
IDLE_AFTER_S = 10.0
IDLE_S = 10.0


def run(session: Session) -> None:
    """Measure a new cluster in each round; Kafka has fewer rounds unless the command line sets them."""
    rounds = session.options.rounds_of(ROUNDS)
    each = session.options.scaled(PARTITIONS_EACH)
    session.open_suite("cluster-partitions", rounds, clusters=True, partitions=str(each * len(TOPICS)))
    kafka_rounds = session.options.rounds or KAFKA_ROUNDS
    for round_, contender in session.in_turns(session.rival_clusters, rounds):
        if contender is session.kafka_cluster and round_ >= kafka_rounds:
            continue
        with session.cluster(contender) as cluster:
            _life(session, contender, cluster, round_, each)


def _life(session: Session, contender: Contender, cluster: Cluster, round_: int, each: int) -> None:
    def told(case: str, metrics: dict[str, float]) -> None:
        session.record(case, contender.label, round_, metrics)
        figures = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        session.console.print(f"  round {round_}, {contender.label}, {case}: {figures}")

    told("1,000 created", {"seconds": _create_s(cluster, ["first"], each)})
    session.settle([cluster])
    told("10,000 created", {"seconds": _create_s(cluster, TOPICS, each), **resident(cluster)})
    time.sleep(session.options.seconds(IDLE_AFTER_S))
    told("10,000 idle", _idle(cluster, session.options.seconds(IDLE_S)))
    told("whole cluster restarted", _restart(cluster, each))


def _create_s(cluster: Cluster, topics: list[str], each: int) -> float:
    """Return seconds from the first request until every partition has a leader and the samples accept a message."""
    started = time.perf_counter()
    contender = cluster.contender
    for topic in topics:
        admin.create_topics(cluster.address, [topic], each, contender.unflushed_topic, contender.replicas)
    _wait_until_writable(cluster, topics, each)
    return time.perf_counter() - started


def _wait_until_writable(cluster: Cluster, topics: list[str], each: int) -> None:
    writers = Everywhere(cluster.addresses, {topic: sample(each) for topic in topics}, SIZE_BYTES, LIMIT_S)
    try:
        writers.until_acknowledged(LIMIT_S)
    finally:
        writers.close()
    for topic in topics:
        admin.wait_for_leaders(cluster.addresses, topic, each)


def _restart(cluster: Cluster, each: int) -> dict[str, float]:
    """Stop all brokers and start them together; Penstock's metadata store keeps running, as an external etcd would."""
    ending = time.perf_counter()
    cluster.stop()
    started = time.perf_counter()
    cluster.spawn()
    _wait_until_writable(cluster, ["first", *TOPICS], each)
    return {"seconds": time.perf_counter() - started, "ending_s": started - ending}


def _idle(cluster: Cluster, seconds: float) -> dict[str, float]:
    """Return the share of a core that the busiest broker uses, and that of the store's process."""
    store = (cluster.store.pid,) if cluster.store is not None else ()
    pids = [(pid,) for pid in cluster.broker_pids] + [store]
    before = [procfs.cpu_s(*each) for each in pids]
    time.sleep(seconds)
    used = [procfs.cpu_s(*each) - earlier for each, earlier in zip(pids, before, strict=True)]
    return {"busiest_share_of_core": max(used[:-1]) / seconds, "store_share_of_core": used[-1] / seconds}
