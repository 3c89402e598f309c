"""Failover: one of three brokers is killed or paused; the time until each partition accepts acknowledged writes again.

Runs on all cores, with the default flushing of each cluster: Penstock flushes on every replica before it acknowledges.
With 10,000 partitions the operating system flushes: three brokers on one disk would otherwise flush 30,000 files.
"""

from __future__ import annotations

import signal

from bench import admin, client
from bench.loads import specs
from bench.peers.broker import Broker
from bench.peers.cluster import BROKERS, Cluster
from bench.peers.service import Contender
from bench.session import Session

ROUNDS = 5
FEW_ROUNDS = 3  # rounds of cases with an absolute bound, for Penstock only
TOPIC = "failing"
PARTITIONS_EACH = 1000
WIDE_TOPICS = 10
SIZE_BYTES = 100
INTERVAL_S = 1.0  # from a partition's acknowledgement to its next write, before the fault
WIDE_INTERVAL_S = 5.0
LIMIT_S = 60.0


class Subject:
    """A cluster with its topics, through a sequence of faults."""

    def __init__(
        self, session: Session, cluster: Cluster, topics: int, interval_s: float, settings: dict[str, str]
    ) -> None:
        self.session, self.cluster, self.topics, self.interval_s = session, cluster, topics, interval_s
        self.victim: Broker | None = None
        self.each = session.options.scaled(PARTITIONS_EACH)
        self.names = [f"{TOPIC}-{number}" for number in range(topics)]
        for name in self.names:
            admin.create_topics(cluster.address, [name], self.each, settings, cluster.contender.replicas)
        self.wait_until_in_sync()

    def wait_until_in_sync(self) -> None:
        admin.wait_until_in_sync(self.cluster.addresses, self.names, self.each, self.cluster.contender.replicas)

    def controller(self) -> int:
        controller = self.cluster.controller()
        if controller is None:
            raise RuntimeError(self.cluster.failure("has no controller"))
        return controller

    def another(self) -> int:
        """Return a broker that is not the controller."""
        return self.controller() % BROKERS + 1

    def fail(self, victim: int, number: int) -> specs.Metrics:
        """Send a signal to a broker during the load."""
        self.session.settle([self.cluster])
        spec = specs.Failover(
            address=self.cluster.address,
            topic=TOPIC,
            broker_pids=self.cluster.pids,
            core=self.session.cores.client,
            limit_s=LIMIT_S,
            topics=self.topics,
            partitions=self.each,
            size_bytes=SIZE_BYTES,
            interval_s=self.interval_s,
            victim=victim,
            victim_pid=self.cluster.broker(victim).pid,
            signal=number,
        )
        return client.run(spec)

    def told(self, case: str, round_: int, victim: int, number: int = signal.SIGKILL) -> None:
        """Cause one fault, record and print the result."""
        label = self.cluster.contender.label
        metrics = self.fail(victim, number)
        self.session.record(case, label, round_, metrics)
        self.session.console.print(
            f"  round {round_}, {label}, {case}: {metrics['seconds']:.2f} s"
            f" (led by it {metrics['led_by_victim_s']:.2f}, by others {metrics['led_by_others_s']:.2f})"
        )
        self.victim = self.cluster.broker(victim)

    def heal(self) -> None:
        """Restart the killed broker; return when all replicas are in sync and led by their preferred leaders."""
        assert self.victim is not None, "healing follows a fault"
        self.victim.kill()
        self.victim.start()
        self.cluster.wait_until_whole()
        self.wait_until_in_sync()
        admin.elect_preferred(self.cluster.addresses[0])
        self.wait_until_in_sync()


def run(session: Session) -> None:
    """Kill a broker of each cluster at 1,000 partitions; pause Penstock's; kill Penstock's at 10,000."""
    rounds = session.options.rounds_of(ROUNDS)
    each = session.options.scaled(PARTITIONS_EACH)
    session.open_suite("failover", rounds, clusters=True, partitions=str(each), wide=str(WIDE_TOPICS * each))
    few = min(rounds, FEW_ROUNDS)
    for round_, contender in session.in_turns(session.rival_clusters, rounds):
        is_paused = contender is session.subject_cluster and round_ < few
        _round(session, contender, round_, is_paused=is_paused)
    _wide(session, few)


def _round(session: Session, contender: Contender, round_: int, *, is_paused: bool) -> None:
    with session.cluster(contender) as cluster:
        subject = Subject(session, cluster, 1, INTERVAL_S, default_topic(session, contender))
        subject.told("kill -9 of a broker", round_, subject.another())
        subject.heal()
        subject.told("kill -9 of the controller", round_, subject.controller())
        if is_paused:
            subject.heal()
            subject.told("a paused broker", round_, subject.another(), signal.SIGSTOP)


def _wide(session: Session, rounds: int) -> None:
    with session.cluster(session.subject_cluster) as cluster:
        subject = Subject(session, cluster, WIDE_TOPICS, WIDE_INTERVAL_S, cluster.contender.unflushed_topic)
        for round_ in range(rounds):
            if round_:
                subject.heal()
            victim = subject.controller() if round_ % 2 else subject.another()
            subject.told("kill -9, 10,000 partitions", round_, victim)


def default_topic(session: Session, contender: Contender) -> dict[str, str]:
    """Return the default topic settings, with default flushing."""
    return contender.durable_topic if contender is session.subject_cluster else contender.unflushed_topic
