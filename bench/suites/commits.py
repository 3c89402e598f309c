"""Commits through one coordinator: 1,000 groups, 10,000 keys, each commit durable when it is answered."""

from __future__ import annotations

from bench import client
from bench.loads import specs
from bench.session import Session

ROUNDS = 3
GROUPS, PARTITIONS = 1000, 10
CONNECTIONS, DEPTH = 32, 32
SECONDS = 5.0


def run(session: Session) -> None:
    """RuntimeError where an acknowledged commit is missing."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("commits", rounds, groups=str(GROUPS), keys=str(GROUPS * PARTITIONS), depth=str(DEPTH))
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    for round_ in range(rounds):
        for peer in peers if round_ % 2 == 0 else reversed(peers):
            with session.brokers(peer) as brokers:
                lane = session.rivals(brokers, durable=True)[0]
                with session.topic(lane, PARTITIONS) as topic:
                    spec = spec_of(lane.broker.address, topic, lane.broker.pid, session.cores.client)
                    metrics = client.run(spec)
                lane.broker.check()
                session.record("commits", lane.name, round_, metrics)
                if metrics["lost"]:
                    raise RuntimeError(f"{lane.name} lost {metrics['lost']:.0f} acknowledged commits")


def spec_of(address: str, topic: str, broker_pid: int, core: int, seconds: float = SECONDS) -> specs.Commits:
    return specs.Commits(
        address=address,
        topic=topic,
        broker_pid=broker_pid,
        core=core,
        groups=GROUPS,
        partitions=PARTITIONS,
        connections=CONNECTIONS,
        depth=DEPTH,
        seconds=seconds,
    )
