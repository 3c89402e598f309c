"""Cost of 1,000 idle connections: CPU time per message, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench import wire
from bench.connection import Connection
from bench.session import Lane, Session
from bench.suites import pairs
from bench.suites.footprint import resident
from bench.suites.warming import warm_up
from bench.suites.work import PARTITIONS

IDLE_CONNECTIONS = 1000
CASE = "1,000 idle connections"


@contextmanager
def idle_connections(address: str, count: int) -> Iterator[None]:
    """Open connections that send one ApiVersions request and then stay idle."""
    with ExitStack() as stack:
        for _ in range(count):
            idle = Connection(address)
            stack.callback(idle.close)
            idle.ask(wire.api_versions_request())
        yield


def run(session: Session) -> None:
    """Measure CPU per message with and without idle connections, in pairs on one broker; then memory beside Kafka."""
    rounds = session.options.rounds_of(pairs.ROUNDS)
    count = session.options.scaled(IDLE_CONNECTIONS)
    session.open_suite("connections", rounds, idle_connections=str(count))
    settings = session.subject.unflushed_topic
    with session.brokers(session.subject) as brokers:
        warm_up(session, brokers)
        lanes = [Lane(name, brokers[0], settings) for name in ("without", "with")]
        with session.topic(lanes[0], PARTITIONS) as topic:

            @contextmanager
            def around(lane: Lane) -> Iterator[None]:
                with idle_connections(lane.broker.address, count if lane.name == "with" else 0):
                    yield

            pairs.run(session, CASE, {lane.name: (lane, topic) for lane in lanes}, rounds, around)
    _memory(session, count)


def _memory(session: Session, count: int) -> None:
    with session.brokers(session.subject, session.kafka) as brokers:
        for broker in brokers:
            session.record("memory without connections", broker.contender.label, 0, resident(broker))
            with idle_connections(broker.address, count):
                session.record("memory with connections", broker.contender.label, 0, resident(broker))
