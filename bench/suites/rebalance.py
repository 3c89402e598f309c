"""Consumer groups of KIP-848: the time until all partitions are consumed again after a member died or left."""

from __future__ import annotations

from bench.loads import specs
from bench.peers.kafka import Kafka
from bench.peers.penstock import Penstock
from bench.requirements import REBALANCE_CASES
from bench.session import Session

ROUNDS = 5
MEMBERS, PARTITIONS = 200, 1000
SESSION_TIMEOUT_MS = 10_000
SETTLE_S = 6.0
"""More than one heartbeat interval, so that all members know that nothing moves."""
LIMIT_S = 120.0
SETTINGS = {
    "group.consumer.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
}


def run(session: Session) -> None:
    """Each section is a new group. Other settings, such as the heartbeat interval of 5 s, are the defaults."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("rebalance", rounds, session_timeout_ms=str(SESSION_TIMEOUT_MS))
    members, partitions = session.options.scaled(MEMBERS), session.options.scaled(PARTITIONS)
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    with session.brokers(*(_configured(peer) for peer in peers), cores=session.all_cores) as brokers:
        lanes = session.rivals(brokers, durable=True)
        for case, leaves in REBALANCE_CASES.items():
            for round_ in range(rounds):
                for lane in lanes if round_ % 2 == 0 else reversed(lanes):
                    with session.topic(lane, partitions) as topic:
                        spec = specs.Rebalance(
                            address=lane.broker.address,
                            topic=topic,
                            broker_pids=lane.broker.pids,
                            core=session.cores.client,
                            limit_s=LIMIT_S,
                            members=members,
                            partitions=partitions,
                            session_timeout_ms=SESSION_TIMEOUT_MS,
                            leaves=leaves,
                            seed=round_,
                            settle_s=session.options.seconds(SETTLE_S),
                        )
                        session.record(case, lane.name, round_, session.measure(lane, spec, brokers))


def _configured(peer: object) -> Penstock | Kafka:
    assert isinstance(peer, Penstock | Kafka), "the suite needs a broker with consumer groups"
    return peer.with_settings(SETTINGS)
