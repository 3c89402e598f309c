"""Measure a controller with the metadata of 100,000 partitions in a real etcd: `python -m bench.controller_on_etcd`.

Three brokers without data are members. Two of them are controller candidates, each with its own view. The results are
the size of etcd with these leader records, the time in which a broker reads them at its start, the time from a
controller's election until it has checked all of them, and the time from the death of the controller until its
successor is elected and has given every partition of the dead broker another leader.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import uvloop

from bench import procfs
from bench.peers.broker import Broker
from bench.peers.etcd import Etcd
from penstock.config.broker import BrokerConfig
from penstock.control.controller.controller import ControllerContext, ControllerTask
from penstock.control.membership import Registration, ensure_cluster
from penstock.runtime import logging
from penstock.runtime.clock import SystemClock
from penstock.state import keys, records
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import MAX_TXN_OPERATIONS, Operation, PutOp
from penstock.state.view import BrokerView, ClusterView
from penstock.state.watcher import Watcher

MB = 1 << 20
IDS = (1, 2, 3)
PER_TOPIC = 1000
LEASE_MS = 120_000  # three brokers share this process and its event loop, which loads two views meanwhile
UNDER_WAY = 8
LOOK_S = 0.005


class Link:
    """A connection that ends when the broker at its other end dies."""

    def __init__(self, end: asyncio.Event) -> None:
        self._end = end

    async def wait_closed(self) -> None:
        await self._end.wait()

    def close(self) -> None:
        return


class Links:
    """Connections to members in this process; a member dies when its event is set."""

    def __init__(self) -> None:
        self.ends = {broker_id: asyncio.Event() for broker_id in IDS}

    async def connect(self, broker: BrokerView) -> Link:
        end = self.ends[broker.broker_id]
        if end.is_set():
            raise ConnectionRefusedError
        return Link(end)


class NoLogs:
    """Log ends of brokers without data. The controller requests none, because all replicas are in sync."""

    async def log_ends(
        self, broker_id: int, partitions: list[tuple[UUID, int]]
    ) -> dict[tuple[UUID, int], tuple[int, int]]:
        raise ConnectionRefusedError(f"broker {broker_id} has no logs, of which {len(partitions)} were asked for")


class Member:
    """A registered broker; a controller candidate after `stand`."""

    def __init__(self, endpoint: str, broker_id: int) -> None:
        self.store = EtcdStore(EtcdOptions(endpoints=(endpoint,)))
        self.config = BrokerConfig.from_texts({"node.id": str(broker_id)})
        record = records.BrokerRecord(
            broker_id=broker_id, incarnation=uuid4(), endpoints=[], directory_id=uuid4(), boot_id="boot"
        )
        self.registration = Registration(self.store, SystemClock(), record, LEASE_MS)
        self.view = ClusterView()
        self.watcher = Watcher(self.store, self.view, self.config)
        self.tasks: list[asyncio.Task[None]] = []
        self.controller: ControllerTask | None = None

    async def register(self) -> None:
        await ensure_cluster(self.store, uuid4)
        await self.registration.register()
        self.tasks.append(asyncio.ensure_future(self.registration.keep_alive().run()))

    async def load(self) -> float:
        """Load the view and return the duration in seconds."""
        started = time.perf_counter()
        await self.watcher.start()
        return time.perf_counter() - started

    def stand(self, links: Links) -> None:
        given = ControllerContext(
            self.store,
            self.view,
            self.watcher,
            self.config,
            SystemClock(),
            self.registration,
            links,
            NoLogs(),
            uuid4,
            [],
        )
        self.controller = ControllerTask(given)
        self.tasks.append(asyncio.ensure_future(self.controller.run()))

    @property
    def leads(self) -> bool:
        return self.controller is not None and self.controller.term is not None

    @property
    def is_done(self) -> bool:
        """Return whether the elected controller has checked every partition and the view has its writes."""
        term = self.controller.term if self.controller is not None else None
        return term is not None and bool(term.registry.members) and term.keeper.is_idle

    def led_by(self, broker_id: int) -> int:
        topics = self.view.topics.values()
        return sum(broker_id in (part.leader, *part.isr) for topic in topics for part in topic.partitions)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        self.tasks.clear()
        await self.watcher.stop()
        await self.store.close()


async def until(condition: Callable[[], bool]) -> float:
    """Wait for `condition` and return the duration in seconds."""
    started = time.perf_counter()
    while not condition():
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - started


async def write(store: EtcdStore, epochs: list[int], partitions: int) -> None:
    """Write topics of 1,000 partitions, each led by its first replica and with all replicas in sync."""
    gate = asyncio.Semaphore(UNDER_WAY)

    async def put(operations: list[Operation]) -> None:
        async with gate:
            await store.txn((), operations)

    puts: list[Operation] = []
    for number in range(partitions // PER_TOPIC):
        topic_id, name = uuid4(), f"topic-{number:04d}"
        topic = records.TopicRecord(name=name, topic_id=topic_id, partition_count=PER_TOPIC)
        puts.append(PutOp(keys.topic(topic_id), records.encode(topic)))
        puts.append(PutOp(keys.topic_name(name), records.encode(records.TopicNameRecord(topic_id=topic_id))))
        for index in range(PER_TOPIC):
            turned = [IDS[(index + step) % len(IDS)] for step in range(len(IDS))]
            known = [epochs[broker_id - 1] for broker_id in turned]
            record = records.PartitionRecord(replicas=turned, leader=turned[0], isr=turned, isr_epochs=known)
            puts.append(PutOp(keys.partition(topic_id, index), records.encode(record)))
    chunks = [puts[start : start + MAX_TXN_OPERATIONS] for start in range(0, len(puts), MAX_TXN_OPERATIONS)]
    await asyncio.gather(*[put(chunk) for chunk in chunks])


def told(what: str, value: float, unit: str) -> None:
    print(f"{what:76} {value:10,.2f} {unit}", flush=True)


async def measure(etcd: Broker, partitions: int) -> None:
    endpoint, file = f"http://{etcd.address}", etcd.data_dir / "member" / "snap" / "db"
    members = [Member(endpoint, broker_id) for broker_id in IDS]
    first, second, third = members
    for member in members:
        await member.register()
    started = time.perf_counter()
    await write(third.store, [member.registration.epoch for member in members], partitions)
    told(f"{partitions:,} partitions written", time.perf_counter() - started, "s")
    told("etcd's file", file.stat().st_size / MB, "MB")
    told("etcd's resident memory", procfs.resident_bytes(etcd.pid) / MB, "MB")
    before = procfs.resident_bytes(os.getpid())
    told("a broker's view read", await first.load(), "s")
    told("its memory", (procfs.resident_bytes(os.getpid()) - before) / MB, "MB")
    await second.load()
    assert all(len(member.view.topics) == partitions // PER_TOPIC for member in (first, second)), "the views are whole"
    links = Links()
    first.stand(links)
    told("the first controller: from standing to elected", await until(lambda: first.leads), "s")
    told("the first controller: from elected to all partitions looked at", await until(lambda: first.is_done), "s")
    second.stand(links)
    await asyncio.sleep(2)
    moved = second.led_by(1)
    links.ends[1].set()
    died = time.perf_counter()
    for task in first.tasks:
        task.cancel()
    await until(lambda: second.leads)
    told("the second controller: elected after the first has died", time.perf_counter() - died, "s")
    await until(lambda: second.is_done and 1 not in second.view.brokers and not second.led_by(1))
    told(f"and {moved:,} partitions rid of the dead broker", time.perf_counter() - died, "s")
    told("etcd's file then, nothing compacted", file.stat().st_size / MB, "MB")
    for member in members:
        await member.end()


def main() -> None:
    logging.configure("warning", "text")
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        etcd = Broker(Etcd(), os.sched_getaffinity(0), Path(directory))
        try:
            etcd.start()
            uvloop.run(measure(etcd, options.partitions))
        finally:
            etcd.remove()


if __name__ == "__main__":
    main()
