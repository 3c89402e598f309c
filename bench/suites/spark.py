"""Penstock's Spark data source beside Spark's own Kafka connector, both on the same Penstock broker.

local[2] of either Spark, its Python workers and the broker share all cores.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.peers.service import Service
from bench.requirements import SPARK_CODECS, SPARK_SIZES, size_name
from bench.session import Lane, Session
from bench.spark import filling, process

ROUNDS = 5
PARTITIONS = 4
READ_FACTORS = {100: 10, 1024: 30}  # a query's start has a fixed cost, so sections last several seconds
WRITE_FACTOR = 4
LIMIT_S = 300.0
FOLLOW_RATE_PER_S = 1000
FOLLOW_S = 30.0
FOLLOW_WARM_UP_S = 10.0
Command = Mapping[str, Any]


@dataclass(frozen=True)
class Contestant:
    """A lane of the table: a session, and the options that distinguish its command."""

    name: str
    spark: process.Spark
    changes: Command


@contextmanager
def _sessions(session: Session, broker: Service, *flavours: process.Flavour) -> Iterator[dict[str, process.Spark]]:
    """Run sessions by label; end them with the block. The broker runs as long."""
    cores = {session.cores.broker, session.cores.client}
    running: dict[str, process.Spark] = {}
    home = session.work_dir / "spark"
    try:
        for flavour in flavours:
            spark = running[flavour.label] = process.Spark(flavour, cores, home / flavour.label)
            spark.start()
        broker.check()
        yield running
    finally:
        for spark in running.values():
            spark.stop()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _broker(session: Session) -> Iterator[Service]:
    with session.brokers(session.subject, cores={session.cores.broker, session.cores.client}) as [running]:
        yield running


def _open(session: Session, name: str, flavours: tuple[process.Flavour, ...], usual: int = ROUNDS) -> int:
    rounds = session.options.rounds_of(usual)
    versions = {flavour.label: flavour.version for flavour in flavours}
    session.open_suite_of(name, rounds, versions, {"megabytes": str(session.options.megabytes)})
    return rounds


def _rounds(
    session: Session, broker: Service, case: str, lanes: list[Contestant], rounds: int, rows: int, command: Command
) -> None:
    """Run each lane in each round, in an order that reverses each time, after an uncounted round."""
    for round_ in range(-1, rounds):
        for lane in lanes if round_ % 2 == 0 else reversed(lanes):
            session.settle([broker])
            figures = lane.spark.measure({**command, **lane.changes}, rows, LIMIT_S)
            broker.check()
            if round_ >= 0:
                session.record(case, lane.name, round_, figures)
    session.console.print(f"  {case}: {rounds} x {len(lanes)} sections")


def _sizes(session: Session) -> tuple[int, ...]:
    """Return the sizes; a smoke run has the first only."""
    return SPARK_SIZES[:1] if session.options.quick else SPARK_SIZES


def _codecs(session: Session) -> tuple[str, ...]:
    return SPARK_CODECS[-1:] if session.options.quick else SPARK_CODECS


def _reading(address: str, topic: str, *, starting: str = "earliest") -> dict[str, str]:
    return {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": starting}


def read_cases(running: Mapping[str, process.Spark]) -> Iterator[tuple[str, str, list[Contestant]]]:
    """Yield mode, sink and contestants. Both sources write Parquet with Spark's own writer; each writes Delta by its
    own means, which for Penstock is the archive job."""
    ours, theirs = running["penstock"], running["connector"]
    plain = {"writer": "spark"}
    both = [Contestant("penstock", ours, plain), Contestant("connector", theirs, plain)]
    archive = Contestant("penstock archive", ours, {"writer": "archive"})
    untuned = Contestant("penstock untuned", running["penstock-untuned"], plain)
    for mode in ("batch", "AvailableNow"):
        yield mode, "noop", both
    yield "batch", "parquet", both
    yield "AvailableNow", "parquet", [*both, archive, untuned]
    yield "AvailableNow", "delta", [archive, both[1]]


def read_case(size: int, codec: str, mode: str, sink: str) -> str:
    return f"{size_name(size)} {codec}, {mode} to {sink}"


def read(session: Session) -> None:
    """Read a whole topic into each sink, as a batch and with Trigger.AvailableNow."""
    flavours = (process.penstock(), process.connector(), process.penstock_untuned())
    rounds = _open(session, "spark-read", flavours)
    with _broker(session) as broker, _sessions(session, broker, *flavours) as running:
        lane = Lane("penstock", broker, dict(broker.contender.unflushed_topic))
        for size in _sizes(session):
            for codec in _codecs(session):
                rows = session.options.messages(size, READ_FACTORS[size])
                with session.topic(lane, PARTITIONS) as topic:
                    filling.fill(broker.address, topic, size, rows, codec)
                    _read_topic(session, broker, running, topic, size, codec, rows, rounds)


def _read_topic(
    session: Session,
    broker: Service,
    running: Mapping[str, process.Spark],
    topic: str,
    size: int,
    codec: str,
    rows: int,
    rounds: int,
) -> None:
    for mode, sink, lanes in read_cases(running):
        command = {
            "do": "read",
            "mode": mode,
            "sink": sink,
            "rows": rows,
            "path": str(session.work_dir / "spark" / "out"),
            "options": _reading(broker.address, topic),
        }
        _rounds(session, broker, read_case(size, codec, mode, sink), lanes, rounds, rows, command)


def write(session: Session) -> None:
    """Write keyed rows to a topic: exactly once, at least once, and the connector's at least once."""
    flavours = (process.penstock(), process.connector())
    rounds = _open(session, "spark-write", flavours)
    with _broker(session) as broker, _sessions(session, broker, *flavours) as running:
        for size in _sizes(session):
            for flushing, settings in (
                ("durable", broker.contender.durable_topic),
                ("unflushed", broker.contender.unflushed_topic),
            ):
                lane = Lane("penstock", broker, dict(settings))
                rows = session.options.messages(size, WRITE_FACTOR)
                with session.topic(lane, PARTITIONS) as topic:
                    options = {"kafka.bootstrap.servers": broker.address, "topic": topic}
                    exactly = {**options, "penstock.delivery": "exactly-once"}
                    lanes = [
                        Contestant("penstock exactly-once", running["penstock"], {"options": exactly}),
                        Contestant("penstock", running["penstock"], {}),
                        Contestant("connector", running["connector"], {}),
                    ]
                    command = {"do": "write", "rows": rows, "size_bytes": size, "options": options}
                    _rounds(session, broker, f"{size_name(size)} {flushing}", lanes, rounds, rows, command)


def latency(session: Session) -> None:
    """Measure the duration of micro-batches with few rows, one after the other without a pause."""
    flavours = (process.penstock(), process.connector())
    rounds = _open(session, "spark-latency", flavours, usual=3)
    seconds = session.options.seconds(FOLLOW_S) if not session.options.quick else 5.0
    with _broker(session) as broker, _sessions(session, broker, *flavours) as running:
        lane = Lane("penstock", broker, dict(broker.contender.durable_topic))
        with session.topic(lane, PARTITIONS) as topic:
            command = {
                "do": "follow",
                "seconds": seconds,
                "warm_up_s": FOLLOW_WARM_UP_S,
                "path": str(session.work_dir / "spark" / "follow"),
                "options": _reading(broker.address, topic, starting="latest"),
            }
            for round_ in range(rounds):
                for label in running if round_ % 2 == 0 else reversed(list(running)):
                    with filling.Pace(broker.address, topic, 100, FOLLOW_RATE_PER_S):
                        figures = running[label].ask(command, LIMIT_S)
                    session.record(f"{FOLLOW_RATE_PER_S:,} rows/s", label, round_, figures)


def memory(session: Session) -> None:
    """Measure the maximum resident memory of a new session and its Python processes, after one batch to Parquet."""
    flavours = (process.penstock(), process.connector())
    rounds = _open(session, "spark-memory", flavours, usual=3)
    with _broker(session) as broker:
        lane = Lane("penstock", broker, dict(broker.contender.unflushed_topic))
        rows = session.options.messages(100, READ_FACTORS[100])
        with session.topic(lane, PARTITIONS) as topic:
            filling.fill(broker.address, topic, 100, rows, "none")
            command = {
                "do": "read",
                "mode": "batch",
                "sink": "parquet",
                "writer": "spark",
                "rows": rows,
                "path": str(session.work_dir / "spark" / "out"),
                "options": _reading(broker.address, topic),
            }
            for round_ in range(rounds):
                for flavour in flavours if round_ % 2 == 0 else reversed(flavours):
                    with _sessions(session, broker, flavour) as running:
                        figures = running[flavour.label].ask(command, LIMIT_S)
                        peak = {"peak_mb": running[flavour.label].peak_mb(), "seconds": figures["seconds"]}
                        session.record("100 B to parquet", flavour.label, round_, peak)


SUITES: dict[str, tuple[Callable[[Session], None], float]] = {  # suites, with their approximate duration in minutes
    "spark-read": (read, 25),
    "spark-write": (write, 6),
    "spark-latency": (latency, 5),
    "spark-memory": (memory, 3),
}
