"""10,000 partitions: created, restarted, each written to, restarted again, and idle beside a load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

from bench import admin, wire
from bench.connection import Connection
from bench.peers.broker import Peer
from bench.peers.service import Service
from bench.session import Lane, Session
from bench.suites import pairs
from bench.suites.footprint import resident
from bench.suites.warming import warm_up
from bench.suites.work import PARTITIONS

ROUNDS = 3
TOPICS = [f"wide-{index}" for index in range(10)]
PARTITIONS_EACH = 1000
SAMPLES_EACH = 10  # partitions of each topic that must accept a message before the topic is writable
WRITE_CHUNK = 250  # partitions in one Produce
WRITE_LIMIT_S = 300.0
CASE = "10,000 idle partitions"


def create_wide(broker: Service, each: int) -> None:
    """Create one wide topic after the other (Kafka rejects all in one request), then wait for all leaders."""
    for topic in TOPICS:
        admin.create_topics(broker.address, [topic], each, broker.contender.unflushed_topic)
    for topic in TOPICS:
        admin.wait_for_leaders(broker.addresses, topic, each)


def write_each(broker: Service, partitions: Sequence[int]) -> None:
    """Write one message to each of these partitions of every wide topic; retry until all are accepted."""
    deadline = time.monotonic() + WRITE_LIMIT_S
    for topic in TOPICS:
        write_topic(broker, topic, partitions, deadline)


def write_topic(broker: Service, topic: str, partitions: Sequence[int], deadline: float) -> None:
    """Write one message to each of these partitions; retry until all are accepted, or until `deadline` (monotonic)."""
    batch = wire.record_batch([b"x"])
    left = partitions
    while left:
        try:
            refused = _write(broker.address, topic, left, batch)
        except OSError:
            broker.check()
            refused = list(left)
        if refused and time.monotonic() > deadline:
            raise TimeoutError(broker.failure(f"refused {len(refused)} partitions of {topic}"))
        if len(refused) == len(left):
            time.sleep(0.01)
        left = refused


def _write(address: str, topic: str, partitions: Sequence[int], batch: bytes) -> list[int]:
    """Return the partitions that did not accept the batch."""
    refused = set(partitions)
    connection = Connection(address, timeout_s=60.0)
    try:
        for start in range(0, len(partitions), WRITE_CHUNK):
            chunk = partitions[start : start + WRITE_CHUNK]
            answer = connection.ask(wire.produce_request(topic, [(index, batch) for index in chunk]))
            refused -= {one.partition for one in wire.produce_response(answer) if one.error == 0}
    finally:
        connection.close()
    return sorted(refused)


def sample(each: int) -> range:
    """Return evenly spaced partitions, the last one included."""
    step = max(each // SAMPLES_EACH, 1)
    return range(step - 1, each, step)


def _create_s(broker: Service, each: int) -> float:
    started = time.perf_counter()
    create_wide(broker, each)
    write_each(broker, sample(each))
    return time.perf_counter() - started


def _restart_s(broker: Service, each: int) -> float:
    """Return seconds from the restart after a clean stop to a message accepted by every sampled partition."""
    broker.stop()
    started = time.perf_counter()
    broker.spawn()
    write_each(broker, sample(each))
    return time.perf_counter() - started


def _write_all_s(broker: Service, each: int) -> float:
    started = time.perf_counter()
    write_each(broker, range(each))
    return time.perf_counter() - started


def _life(session: Session, peer: Peer, round_: int, each: int) -> None:
    with session.brokers(peer) as brokers:
        for case, timed in (
            ("created", _create_s),
            ("restart, empty", _restart_s),
            ("one message into each", _write_all_s),
            ("restart, one message in each", _restart_s),
        ):
            seconds = timed(brokers[0], each)
            session.record(case, peer.label, round_, {"seconds": seconds, **resident(brokers[0])})
            session.console.print(f"  round {round_}, {peer.label}, {case}: {seconds:.2f} s")


def run(session: Session) -> None:
    """Measure the partitions beside Kafka's, then CPU per message with and without them, in pairs on two brokers."""
    rounds = session.options.rounds_of(ROUNDS)
    count = session.options.rounds_of(pairs.ROUNDS)
    each = session.options.scaled(PARTITIONS_EACH)
    session.open_suite("partitions", rounds, pairs=str(count), partitions=str(each * len(TOPICS)))
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    for round_ in range(rounds):
        for peer in peers if round_ % 2 == 0 else reversed(peers):
            _life(session, peer, round_, each)
    with session.brokers(session.subject, session.subject) as brokers, ExitStack() as stack:
        warm_up(session, brokers)
        create_wide(brokers[1], each)
        write_each(brokers[1], range(each))
        settings = session.subject.unflushed_topic
        without, wide = Lane("without", brokers[0], settings), Lane("with", brokers[1], settings)
        lanes = {lane.name: (lane, stack.enter_context(session.topic(lane, PARTITIONS))) for lane in (without, wide)}
        pairs.run(session, CASE, lanes, count, lambda _lane: nullcontext())
