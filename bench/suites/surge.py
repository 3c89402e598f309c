"""A surge: 100 producers that send several times the broker's capacity.

No acknowledged message may be missing, and the broker's memory must stay bounded. The suite measures the time until a
single request takes as long as before.
"""

from __future__ import annotations

from bench import client
from bench.loads import specs
from bench.session import Lane, Session
from bench.suites.footprint import resident
from bench.suites.work import PARTITIONS

ROUNDS = 3
PRODUCERS = 100
FACTOR = 4.0
SIZE_BYTES = 65536
SURGE_S = 5.0
LIMIT_BYTES = 4_000_000_000


def run(session: Session) -> None:
    """Run the suite. Raises RuntimeError if an acknowledged message is missing."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("surge", rounds, producers=str(PRODUCERS), factor=str(FACTOR), size_bytes=str(SIZE_BYTES))
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    for round_ in range(rounds):
        for peer in peers if round_ % 2 == 0 else reversed(peers):
            with session.brokers(peer) as brokers:
                lane = session.rivals(brokers, durable=True)[0]
                metrics = _surge(session, lane)
                session.record("surge", lane.name, round_, {**metrics, **resident(lane.broker)})
                if metrics["lost"]:
                    raise RuntimeError(f"{lane.name} lost {metrics['lost']:.0f} acknowledged messages")


def _surge(session: Session, lane: Lane) -> specs.Metrics:
    with session.topic(lane, PARTITIONS) as topic:
        session.settle([lane.broker])
        metrics = client.run(
            specs.Surge(
                address=lane.broker.address,
                topic=topic,
                broker_pids=lane.broker.pids,
                core=session.cores.client,
                producers=PRODUCERS,
                partitions=PARTITIONS,
                factor=FACTOR,
                size_bytes=SIZE_BYTES,
                seconds=session.options.seconds(SURGE_S),
                limit_bytes=LIMIT_BYTES,
            )
        )
        lane.broker.check()
        return metrics
