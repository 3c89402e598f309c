"""Delayed delivery: memory and restart with a million records that wait, and how late 1,000 a second are delivered."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench import procfs
from bench.loads import specs
from bench.peers.broker import Broker
from bench.peers.service import Service
from bench.requirements import DELAYED_KINDS, DELAYED_LATENESS, DELAYED_RESTARTS, DELAYED_WAITING
from bench.session import Lane, Session
from bench.suites import work
from bench.suites.footprint import resident
from bench.suites.partitions import write_topic
from penstock.client import Admin, ClientError, TopicPartition

ROUNDS = 3
OUTSTANDING = 1_000_000
SIZE_BYTES = 100
HOUR_MS = 3_600_000
DUE_DELAY_MS = 2000
DUE_PER_S = 1000
DUE_S = 15.0
RESTART_LIMIT_S = 120.0
POLL_S = 0.02


@dataclass(frozen=True)
class Kind:
    """A way to delay: settings of a topic whose records wait for `delay_ms`."""

    is_scheduled: bool

    def settings(self, delay_ms: int) -> dict[str, str]:
        return {"delivery.schedule.enable": "true"} if self.is_scheduled else {"delivery.delay.ms": str(delay_ms)}


KINDS = dict(zip(DELAYED_KINDS, (Kind(is_scheduled=False), Kind(is_scheduled=True)), strict=True))
"""Each kind has a lane."""


def run(session: Session) -> None:
    """Measure Penstock alone: Kafka has no delays. Each round and kind has a new broker."""
    rounds = session.options.rounds_of(ROUNDS)
    outstanding = session.options.restart or session.options.scaled(OUTSTANDING)
    version = session.subject.version()
    parameters = {"outstanding": str(outstanding), "size_bytes": str(SIZE_BYTES)}
    suite = "delayed-restart" if session.options.restart else "delayed"
    session.open_suite_of(suite, rounds, dict.fromkeys(KINDS, version), parameters)
    for round_ in range(rounds):
        for name, kind in KINDS.items():
            with session.brokers(session.subject, cores=session.all_cores) as [broker]:
                _life(session, broker, round_, name, kind, outstanding)


def _life(session: Session, broker: Service, round_: int, name: str, kind: Kind, outstanding: int) -> None:
    empty_mb = resident(broker)["resident_mb"]
    waiting = Lane(name, broker, kind.settings(HOUR_MS))
    due = Lane(name, broker, kind.settings(DUE_DELAY_MS))
    with ExitStack() as stack:
        topic = stack.enter_context(session.topic(waiting, work.PARTITIONS))
        filled = session.measure(waiting, _fill(session, waiting, topic, kind, outstanding), [broker])
        session.settle([broker])
        memory = resident(broker)
        session.record(DELAYED_WAITING, name, round_, filled | memory | {"empty_mb": empty_mb})
        for case, is_killed in DELAYED_RESTARTS.items():
            seconds = _restart_s(broker, topic, outstanding, is_killed=is_killed)
            cpu_s = procfs.cpu_s(*broker.pids)
            session.record(case, name, round_, {"seconds": seconds, "broker_cpu_s": cpu_s, **resident(broker)})
            session.console.print(f"  round {round_}, {name}, {case}: {seconds:.2f} s, {cpu_s:.2f} s of CPU")
        if session.options.restart:
            return
        due_topic = stack.enter_context(session.topic(due, 1))
        spec = _due(session, due, due_topic, kind)
        session.record(DELAYED_LATENESS, name, round_, session.measure(due, spec, [broker]))


def _fill(session: Session, lane: Lane, topic: str, kind: Kind, outstanding: int) -> specs.Delayed:
    return specs.Delayed(
        address=lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        limit_s=600.0,
        partitions=work.PARTITIONS,
        messages=outstanding,
        size_bytes=SIZE_BYTES,
        delay_ms=HOUR_MS,
        is_scheduled=kind.is_scheduled,
    )


def _due(session: Session, lane: Lane, topic: str, kind: Kind) -> specs.Delayed:
    return specs.Delayed(
        address=lane.broker.address,
        topic=topic,
        broker_pids=lane.broker.pids,
        core=session.cores.client,
        partitions=1,
        messages=0,
        size_bytes=SIZE_BYTES,
        delay_ms=DUE_DELAY_MS,
        is_scheduled=kind.is_scheduled,
        rate_per_s=DUE_PER_S,
        seconds=session.options.seconds(DUE_S),
    )


def _restart_s(broker: Service, topic: str, outstanding: int, *, is_killed: bool) -> float:
    """Return seconds from the restart until each partition has accepted a message, and the broker knows what waits."""
    if is_killed:
        assert isinstance(broker, Broker), "the suite runs one broker"
        broker.kill()
    else:
        broker.stop()
    started = time.perf_counter()
    broker.spawn()
    write_topic(broker, topic, range(work.PARTITIONS), time.monotonic() + RESTART_LIMIT_S)
    asyncio.run(wait_until_known(broker.address, topic, work.PARTITIONS, outstanding))
    return time.perf_counter() - started


async def wait_until_known(address: str, topic: str, partitions: int, outstanding: int) -> None:
    """Wait until the broker reports that at least this many records wait. Raises TimeoutError."""
    async with asyncio.timeout(RESTART_LIMIT_S), Admin(address) as admin:
        while True:
            try:
                found = await admin.undelivered([TopicPartition(topic, index) for index in range(partitions)])
            except ClientError:
                found = {}
            if sum(waiting.records for waiting in found.values()) >= outstanding:
                return
            await asyncio.sleep(POLL_S)
