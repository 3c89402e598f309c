"""The first read of a topic that was just produced, from its beginning: with what the broker left in the page cache, or
with the page cache dropped before.

Each section has its own topic, because a second read finds what the first one brought into the page cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.loads import specs
from bench.peers.broker import Broker
from bench.peers.service import Service
from bench.requirements import size_name
from bench.session import Lane, Session
from bench.suites import work
from bench.suites.warming import warm_up

ROUNDS = 5
VOLUME_FACTOR = 50  # 2 GB with the default volume of a section


@dataclass(frozen=True)
class FirstRead:
    """A case: messages of `size_bytes`, produced with acks=1, or acks=all and `durable`."""

    size_bytes: int
    durable: bool
    cold: bool

    @property
    def name(self) -> str:
        return f"{size_name(self.size_bytes)}{', durable' if self.durable else ''}, {'cold' if self.cold else 'warm'}"


def cases(sizes: Iterable[int]) -> Iterator[FirstRead]:
    """Yield the cases of the suite: each size without flushing, and 1 KiB durable."""
    for size in sizes:
        for cold in (False, True):
            yield FirstRead(size, durable=False, cold=cold)
    yield FirstRead(1024, durable=True, cold=False)


def run(session: Session) -> None:
    """Produce a topic, then read it once: `warm` right after producing, `cold` with the page cache dropped."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("catch-up", rounds, megabytes=str(session.options.megabytes * VOLUME_FACTOR))
    brokers = work.real(session.standing_brokers(warm_up))
    for case in cases(session.options.sizes):
        lanes = session.rivals(brokers, durable=case.durable)
        for round_, lane in turns(lanes, rounds):
            session.record(case.name, lane.name, round_, first_read(session, lane, case))


def turns(lanes: list[Lane], rounds: int) -> Iterator[tuple[int, Lane]]:
    """Yield each lane in each round, in an order that reverses each time."""
    for round_ in range(rounds):
        for lane in lanes if round_ % 2 == 0 else reversed(lanes):
            yield round_, lane


def first_read(session: Session, lane: Lane, case: FirstRead) -> specs.Metrics:
    """Return the metrics of reading a new topic, and those of producing it with the prefix `fill_`."""
    messages = session.options.messages(case.size_bytes, session.options.scaled(VOLUME_FACTOR))
    acks = -1 if case.durable else 1
    with session.topic(lane, work.PARTITIONS) as topic:
        fill = work.produce(session, lane, topic, case.size_bytes, acks, messages)
        produced = session.measure(lane, fill, [lane.broker])
        if case.cold:
            drop_page_cache(lane.broker)
        read = session.measure(lane, work.consume(session, lane, topic, case.size_bytes, messages), [lane.broker])
    return {**read, **{f"fill_{name}": produced[name] for name in ("cpu_s_per_million", "mb_per_s")}}


def drop_page_cache(service: Service) -> None:
    """Evict a broker's segments from the page cache, after a sync."""
    assert isinstance(service, Broker), "one broker has one data directory"
    os.sync()
    for path in service.data_dir.rglob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # a deleted segment
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
