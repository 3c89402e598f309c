"""Commits through one coordinator: 1,000 groups, 10,000 keys, each commit durable when answered."""

from __future__ import annotations

from collections.abc import Sequence

from bench import client
from bench.loads import specs
from bench.peers.service import Contender
from bench.session import Session

ROUNDS = 3
GROUPS, PARTITIONS = 1000, 10
CONNECTIONS, DEPTH = 32, 32
SECONDS = 5.0


def run(session: Session) -> None:
    """Measure one broker."""
    _measure(session, "commits", [peer for peer in (session.subject, session.kafka) if peer is not None])


def on_cluster(session: Session) -> None:
    """Measure one coordinator of a cluster on all cores: the first broker, with groups that it coordinates."""
    _measure(session, "cluster-commits", session.rival_clusters, clusters=True)


def _measure(session: Session, suite: str, contenders: Sequence[Contender], *, clusters: bool = False) -> None:
    """Run the sections. Raises RuntimeError if an acknowledged commit is missing."""
    rounds = session.options.rounds_of(ROUNDS)
    sizes = {"groups": str(GROUPS), "keys": str(GROUPS * PARTITIONS), "depth": str(DEPTH)}
    session.open_suite(suite, rounds, clusters=clusters, **sizes)
    cores = {session.cores.broker, session.cores.client} if clusters else {session.cores.broker}
    for round_, contender in session.in_turns(contenders, rounds):
        with session.brokers(contender, cores=cores) as brokers:
            lane = session.rivals(brokers, durable=True)[0]
            with session.topic(lane, PARTITIONS) as topic:
                spec = spec_of(lane.broker.addresses[0], topic, lane.broker.pids, session.cores.client)
                metrics = client.run(spec)
            lane.broker.check()
            session.record("commits", lane.name, round_, metrics)
            if metrics["lost"]:
                raise RuntimeError(f"{lane.name} lost {metrics['lost']:.0f} acknowledged commits")


def spec_of(
    address: str, topic: str, broker_pids: tuple[int, ...], core: int, seconds: float = SECONDS
) -> specs.Commits:
    return specs.Commits(
        address=address,
        topic=topic,
        broker_pids=broker_pids,
        core=core,
        groups=GROUPS,
        partitions=PARTITIONS,
        connections=CONNECTIONS,
        depth=DEPTH,
        seconds=seconds,
    )
