"""Three replicas, acks=all, min.insync.replicas=2: CPU of all brokers and throughput, then latency at fixed rates.

Penstock by default flushes on every replica before it acknowledges; the comparison is Kafka with flush.messages=1, and
both with flushing left to the operating system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench import admin
from bench.loads import specs
from bench.peers.service import Service
from bench.requirements import size_name
from bench.session import Lane, Session
from bench.suites import work

ROUNDS = 5
SIZES = (100, 1024)
SIZE_BYTES = 1024
WARM_SIZE_BYTES = 1024
WARM_S = 30.0
WARM_WINDOW = 5
CASE_WARM_S = 6.0
PACED_WARM_S = 1.0  # one section: the brokers are warm, and a section takes seconds
IN_FLIGHT = 1  # Kafka processes one request of a connection at a time, each until it is replicated
PACES = ((5000, 4.0), (200, 5.0))  # messages per second, seconds; the first is the warm-up of the second


def warm_up(session: Session, clusters: list[Service]) -> None:
    """Send many small requests with acks=all until their cost is steady; the number of follower fetches varies."""
    messages = session.options.messages(WARM_SIZE_BYTES, 0.5)
    for lane in session.rivals(clusters, durable=False):
        with session.topic(lane, work.PARTITIONS) as topic:
            spec = work.produce(session, lane, topic, WARM_SIZE_BYTES, -1, messages, small=True)
            session.warm_up(lane, spec, WARM_S, WARM_WINDOW)


def lanes_of(session: Session, clusters: Sequence[Service]) -> list[Lane]:
    """Return lanes with and without a flush before the acknowledgement."""
    unflushed = [
        Lane(f"{lane.name} unflushed", lane.broker, lane.topic_settings)
        for lane in session.rivals(clusters, durable=False)
    ]
    return session.rivals(clusters, durable=True) + unflushed


def _case(
    session: Session,
    case: str,
    lanes: list[Lane],
    partitions: int,
    warm_s: float,
    spec: Callable[[Lane, str], specs.AnySpec],
) -> None:
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, partitions)) for lane in lanes}
        rounds = session.options.rounds_of(ROUNDS)
        session.run_rounds(case, lanes, rounds, lambda lane: spec(lane, topics[lane.name]), warm_s)


def throughput(session: Session) -> None:
    """Measure produce at the client's full speed."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("rf3", rounds, clusters=True, megabytes=str(session.options.megabytes))
    lanes = lanes_of(session, session.standing_brokers(warm_up, clusters=True))
    for size in SIZES:
        messages = session.options.messages(size)

        def spec(lane: Lane, topic: str, size: int = size, messages: int = messages) -> specs.AnySpec:
            return work.produce(session, lane, topic, size, -1, messages)

        _case(session, size_name(size), lanes, work.PARTITIONS, CASE_WARM_S, spec)


def latency(session: Session) -> None:
    """Measure produce and end-to-end latency through the leader of one partition, on raw connections.

    Messages that are due while a request is in flight share the next request: one request per message would saturate a
    Kafka broker at 5,000 per second, and the figure would be the length of its queue.
    """
    session.open_suite("rf3-latency", session.options.rounds_of(ROUNDS), clusters=True, size_bytes=str(SIZE_BYTES))
    lanes = lanes_of(session, session.standing_brokers(warm_up, clusters=True))
    for rate, seconds in PACES:

        def spec(lane: Lane, topic: str, rate: int = rate, seconds: float = seconds) -> specs.AnySpec:
            leader = admin.leader_address(lane.broker.addresses, topic, 0)
            return work.paced(session, lane, topic, SIZE_BYTES, rate, seconds, leader, IN_FLIGHT)

        _case(session, f"{rate:,}/s", lanes, 1, PACED_WARM_S, spec)
