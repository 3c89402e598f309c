"""Restart after `kill -9`: the time until every partition accepts a message again, and the CPU time that it takes.

The kill follows the last acknowledgement at once, so nothing was written back or checkpointed for it. Nothing is
flushed on either side (Kafka's default), and the page cache survives, as when a process crashes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench import admin, procfs, wire
from bench.connection import Connection
from bench.peers.broker import Broker
from bench.peers.service import Service
from bench.requirements import RESTART_CASES
from bench.session import Session
from bench.suites.footprint import resident
from bench.suites.partitions import write_topic

ROUNDS = 3
TOPIC = "restarted"
SEGMENT_BYTES = 1 << 20  # the smallest that Kafka accepts
RECORD_BYTES = 1024
BATCH_RECORDS = 63  # about 64 KiB with their headers
PARTITIONS_PER_REQUEST = 32
LIMIT_S = 300.0


@dataclass(frozen=True)
class Fill:
    """What is written before the kill: `segments` of `SEGMENT_BYTES` in each partition."""

    partitions: int
    segments: int

    @property
    def batches(self) -> int:
        """Number of batches in a partition."""
        return -(-self.segments * SEGMENT_BYTES // len(batch()))

    @property
    def records(self) -> int:
        """Number of records in a partition."""
        return self.batches * BATCH_RECORDS


def batch() -> bytes:
    """Return the batch that is written again and again."""
    return wire.record_batch([b"x" * RECORD_BYTES] * BATCH_RECORDS)


def run(session: Session) -> None:
    """Measure each case on a new broker in each round."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("restart", rounds, segment_bytes=str(SEGMENT_BYTES), record_bytes=str(RECORD_BYTES))
    peers = [peer for peer in (session.subject, session.kafka) if peer is not None]
    for case, (partitions, segments) in RESTART_CASES.items():
        fill = Fill(session.options.scaled(partitions), max(session.options.scaled(segments), 1))
        for round_, peer in session.in_turns(peers, rounds):
            with session.brokers(peer, cores=session.all_cores) as [broker]:
                metrics = restart(broker, fill)
            session.record(case, peer.label, round_, metrics)
            session.console.print(
                f"  round {round_}, {peer.label}, {case}: {metrics['seconds']:.2f} s,"
                f" {metrics['broker_cpu_s']:.2f} s of CPU, {metrics['lost']:.0f} lost"
            )


def restart(broker: Service, fill: Fill) -> dict[str, float]:
    """Fill a new topic, kill the broker, start it again, and return the metrics of the restart."""
    assert isinstance(broker, Broker), "the suite runs one broker"
    settings = broker.contender.unflushed_topic | {"segment.bytes": str(SEGMENT_BYTES)}
    admin.create_topics(broker.address, [TOPIC], fill.partitions, settings)
    # Kafka names the leaders of a new topic before they accept messages.
    write_topic(broker, TOPIC, range(fill.partitions), time.monotonic() + LIMIT_S)
    write(broker.address, fill)
    broker.kill()
    started = time.perf_counter()
    broker.spawn()
    write_topic(broker, TOPIC, range(fill.partitions), time.monotonic() + LIMIT_S)
    seconds, cpu_s = time.perf_counter() - started, procfs.cpu_s(*broker.pids)
    lost = count_lost(broker.address, fill)
    return {"seconds": seconds, "broker_cpu_s": cpu_s, "lost": float(lost), **resident(broker)}


def write(address: str, fill: Fill) -> None:
    """Write all batches, each acknowledged. Raises RuntimeError if the broker refuses one."""
    data = batch()
    connection = Connection(address, timeout_s=LIMIT_S)
    try:
        for _ in range(fill.batches):
            produce_to_all(connection, fill.partitions, data)
    finally:
        connection.close()


def count_lost(address: str, fill: Fill) -> int:
    """Return how many acknowledged records are missing; each partition has one before the fill, and one since the
    restart."""
    connection = Connection(address, timeout_s=LIMIT_S)
    try:
        produced = produce_to_all(connection, fill.partitions, wire.record_batch([b"after"]))
    finally:
        connection.close()
    return sum(max(fill.records + 2 - one.base_offset, 0) for one in produced)


def produce_to_all(connection: Connection, partitions: int, data: bytes) -> list[wire.Produced]:
    """Write one batch to each partition and return the results. Raises RuntimeError if the broker refuses one."""
    found: list[wire.Produced] = []
    for start in range(0, partitions, PARTITIONS_PER_REQUEST):
        chunk = range(start, min(start + PARTITIONS_PER_REQUEST, partitions))
        answer = connection.ask(wire.produce_request(TOPIC, [(index, data) for index in chunk]))
        found += wire.produce_response(answer)
    refused = next((one for one in found if one.error), None)
    if refused is not None or len(found) != partitions:
        raise RuntimeError(f"{len(found)} of {partitions} partitions responded; first refusal: {refused}")
    return found
