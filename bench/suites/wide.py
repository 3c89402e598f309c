"""How the costs of a cluster grow with its brokers and partitions: idle, creation, first record, failover, restart.

Each case is a new cluster on all cores. A small Kafka cluster is measured beside Penstock's, since thirty JVMs do not
fit; the other cases show the growth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench import admin, cluster_wire, procfs
from bench.connection import Connection
from bench.loads.everywhere import Everywhere
from bench.peers.cluster import Cluster, ResizableCluster
from bench.requirements import WIDE_BESIDE_KAFKA, WIDE_CASES
from bench.session import Session
from bench.suites.footprint import MB

ROUNDS = 1
TOPIC_PARTITIONS = 1000
SAMPLED = 100
"""Number of partitions of a topic that must accept a message after a failover or a restart."""
SIZE_BYTES = 100
LIMIT_S = 600.0
POLL_S = 0.05
IDLE_AFTER_S = 15.0
IDLE_S = 20.0
MOST_FLUSHED = 10_000
"""Up to this number of partitions they are durable; the flushes of more would measure the disk."""


class Subject:
    """A cluster with topics of `partitions` partitions in all."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self.cluster = cluster
        self.each = min(TOPIC_PARTITIONS, partitions)
        self.partitions = partitions
        self.names = [f"wide-{number}" for number in range(partitions // self.each)]

    def create(self) -> None:
        """Create the topics; return when each broker knows a leader of each partition."""
        contender = self.cluster.contender
        is_durable = self.partitions <= MOST_FLUSHED
        settings = contender.durable_topic if is_durable else contender.unflushed_topic
        for name in self.names:
            admin.create_topics(self.cluster.address, [name], self.each, settings, contender.replicas)
        for name in self.names:
            admin.wait_for_leaders(self.cluster.addresses, name, self.each)

    def write_all(self) -> None:
        """Write one message to each partition."""
        self._write(range(self.each), self.cluster.addresses)

    def kill(self, victim: int) -> None:
        """Kill a broker; return when others lead its partitions and accept messages."""
        self.cluster.broker(victim).kill()
        addresses = [broker.address for broker in self.cluster.brokers if broker.process is not None]
        deadline = time.monotonic() + LIMIT_S
        while any(led_by(addresses[0], name, victim) for name in self.names):
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {victim} is still a leader {LIMIT_S:.0f} s after its end")
            time.sleep(POLL_S)
        self._write(self._sample(), addresses)

    def heal(self, victim: int) -> None:
        """Start a killed broker again; return when all brokers know each other."""
        self.cluster.broker(victim).start()
        self.cluster.wait_until_whole()

    def start_again(self) -> None:
        """Start all brokers together; return when sampled partitions accept a message."""
        self.cluster.spawn()
        self._write(self._sample(), self.cluster.addresses)

    def _sample(self) -> range:
        return range(0, self.each, max(self.each // SAMPLED, 1))

    def _write(self, indexes: range, addresses: list[str]) -> None:
        writers = Everywhere(addresses, dict.fromkeys(self.names, indexes), SIZE_BYTES, LIMIT_S)
        try:
            writers.until_acknowledged(LIMIT_S)
        finally:
            writers.close()


def run(session: Session) -> None:
    """Measure each case on new clusters; Kafka's in one of them."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("wide", rounds, clusters=True)
    for case, (brokers, partitions) in WIDE_CASES.items():
        rivals = session.rival_clusters if case == WIDE_BESIDE_KAFKA else [session.subject_cluster]
        for round_, contender in session.in_turns(rivals, rounds):
            assert isinstance(contender, ResizableCluster), f"{contender.label} has a fixed number of brokers"
            with session.cluster(contender.resized(brokers)) as cluster:
                for step, metrics in measure(session, Subject(cluster, session.options.scaled(partitions))):
                    session.record(f"{case}: {step}", contender.label, round_, metrics)
                    figures = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())
                    session.console.print(f"  round {round_}, {contender.label}, {case}: {step}: {figures}")


def measure(session: Session, subject: Subject) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the steps of a cluster's life with their metrics."""
    cluster = subject.cluster
    empty = idle(session, cluster)
    yield "empty", empty
    yield "created", timed(session, cluster, subject.create)
    whole = idle(session, cluster)
    growth_mb = (whole["resident_mb"] - empty["resident_mb"]) * len(cluster.broker_pids)
    yield "idle", whole | {"mb_per_thousand": growth_mb / subject.partitions * 1000}
    yield "first record", timed(session, cluster, subject.write_all)
    victim = 2 if cluster.controller() == 1 else 1
    yield "a broker lost", timed(session, cluster, lambda: subject.kill(victim))
    subject.heal(victim)
    cluster.stop()
    yield "all restarted", timed(session, cluster, subject.start_again)


def timed(session: Session, cluster: Cluster, action: Callable[[], None]) -> dict[str, float]:
    """Return the duration of an action, and the CPU seconds of all processes that live at its end."""
    session.settle([cluster])
    before = {pid: procfs.cpu_s(pid) for pid in cluster.pids}
    started = time.perf_counter()
    action()
    seconds = time.perf_counter() - started
    used = sum(procfs.cpu_s(pid) - before.get(pid, 0.0) for pid in cluster.pids)
    return {"seconds": seconds, "cluster_cpu_s": used}


def idle(session: Session, cluster: Cluster) -> dict[str, float]:
    """Return the cores that the idle cluster uses, its store's included, and a broker's mean memory."""
    time.sleep(session.options.seconds(IDLE_AFTER_S))
    seconds = session.options.seconds(IDLE_S)
    before = procfs.cpu_s(*cluster.pids)
    time.sleep(seconds)
    used = procfs.cpu_s(*cluster.pids) - before
    broker_mb = procfs.resident_bytes(*cluster.broker_pids) / MB / len(cluster.broker_pids)
    return {"cores": used / seconds, "resident_mb": broker_mb}


def led_by(address: str, topic: str, broker_id: int) -> bool:
    """Return whether a partition of the topic has no leader or this one, as the broker at `address` reports it."""
    connection = Connection(address)
    try:
        metadata = cluster_wire.metadata_response(connection.ask(cluster_wire.metadata_request([topic])))
    finally:
        connection.close()
    return any(state.leader in (-1, broker_id) for state in metadata.topics[topic])
