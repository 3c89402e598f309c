"""A cluster without data: brokers as members and candidates, on one store, in virtual time.

The kit does the work of other packages: it admits followers as leaders do, and provides probes of brokers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from penstock.config.broker import BrokerConfig
from penstock.control.broker_availability import RegisteredBrokers
from penstock.control.controller.controller import ControllerContext, ControllerTask
from penstock.control.controller.probes import Probe
from penstock.control.membership import FEATURE_LEVEL, Registration, ensure_cluster
from penstock.control.results import TopicRequest
from penstock.control.topic_admin import TopicService
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import (
    BrokerRecord,
    EndpointRecord,
    PartitionRecord,
    TopicNameRecord,
    TopicRecord,
    decoder,
    encode,
)
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, Operation, PutOp
from penstock.state.view import BrokerView, ClusterView, PartitionView
from penstock.state.watcher import Watcher

LEASE_MS = 9000
STEP_S = 0.02
PATIENCE_S = 60.0
"""Maximum wait for a thread, in real time, during which virtual time stands still."""


class Time:
    """The event loop's clock, advanced by the tests, and a matching `Clock`. It stands still while a thread works."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.threads: set[asyncio.Future[Any]] = set()
        self.loop = asyncio.get_running_loop()
        self._run_in_executor = self.loop.run_in_executor
        self.loop.run_in_executor = self.in_thread  # type: ignore[method-assign]
        self._real, self.passed_s = self.loop.time, 0.0
        self._start_s = self._real()
        self.loop.time = lambda: self._start_s + self.passed_s  # type: ignore[method-assign]
        self.wall_offset_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.wall_offset_ms + int(self.passed_s * 1000)

    def boot_ms(self) -> int:
        return 1_000_000 + int(self.passed_s * 1000)

    def in_thread(self, executor: Any, function: Any, *arguments: Any) -> asyncio.Future[Any]:
        work = self._run_in_executor(executor, function, *arguments)
        self.threads.add(work)
        work.add_done_callback(self.threads.discard)
        return work

    def is_busy(self) -> bool:
        return bool(self.threads or self.store._queue or self.store._in_flight)

    async def settle(self) -> None:
        """Run everything that is due, including work in threads, however slow the machine is."""
        for _ in range(10):
            await asyncio.sleep(0)
        end_s = time.monotonic() + PATIENCE_S
        while self.is_busy() and time.monotonic() < end_s:
            time.sleep(0.0002)
            await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        end_s = self.passed_s + seconds
        while self.passed_s < end_s:
            self.passed_s = min(self.passed_s + STEP_S, end_s)
            await self.settle()

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> float:
        """Advance until a condition holds; return the virtual seconds that it took."""
        start_s = self.passed_s
        while not condition():
            assert self.passed_s < start_s + limit_s, f"not within {limit_s} s"
            await self.advance(STEP_S)
        return self.passed_s - start_s


class FakeProbe:
    def __init__(self) -> None:
        self.is_broken = asyncio.Event()

    async def wait_closed(self) -> None:
        await self.is_broken.wait()

    def close(self) -> None:
        return


@dataclass
class Network:
    """Reachability of brokers. Probes of `dead` brokers are refused; probes of `silent` ones time out."""

    dead: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    probes: dict[int, list[FakeProbe]] = field(default_factory=dict)

    async def connect(self, broker: BrokerView) -> Probe:
        if broker.broker_id in self.dead:
            raise ConnectionRefusedError
        if broker.broker_id in self.silent:
            raise TimeoutError
        probe = FakeProbe()
        self.probes.setdefault(broker.broker_id, []).append(probe)
        return probe

    def break_connections(self, broker_id: int) -> None:
        for probe in self.probes.pop(broker_id, []):
            probe.is_broken.set()


@dataclass
class Ends:
    """Log ends reported by brokers: (broker, topic id, partition) → (epoch, offset)."""

    known: dict[tuple[int, UUID, int], tuple[int, int]] = field(default_factory=dict)
    queried: list[int] = field(default_factory=list)

    async def log_ends(self, broker_id: int, partitions):
        self.queried.append(broker_id)
        return {p: self.known[broker_id, *p] for p in partitions if (broker_id, *p) in self.known}


class Node:
    """One broker's process."""

    def __init__(self, world: World, broker_id: int, record: BrokerRecord, settings: dict[str, str]) -> None:
        self.world, self.broker_id = world, broker_id
        self.config = BrokerConfig.from_texts({"node.id": str(broker_id), **settings})
        self.registration = Registration(
            world.store, world.time, record, self.config.broker_session_timeout_ms, world.damage.get(broker_id, ())
        )
        self.view = ClusterView()
        self.watcher = Watcher(world.store, self.view, self.config)
        self.tasks: list[asyncio.Task[Any]] = []
        self.controller: ControllerTask | None = None
        self.topics: TopicService | None = None

    async def start(self) -> None:
        await self.registration.register()
        await self.watcher.start()
        context = ControllerContext(
            self.world.store,
            self.view,
            self.watcher,
            self.config,
            self.world.time,
            self.registration,
            self.world.network,
            self.world.ends,
            uuid4,
            self.world.topic_cleaners,
        )
        self.controller = ControllerTask(context)
        brokers = RegisteredBrokers(self.world.store, self.view, self.world.time, self.config)
        self.topics = TopicService(
            self.world.store, self.view, self.watcher, self.world.time, self.config, uuid4, brokers
        )
        self.run(self.registration.keep_alive().run())
        self.run(self.controller.run())

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self.watcher.stop()
        for result in results:
            if isinstance(result, Exception):
                raise result


class World:
    """A cluster. `topic` writes a topic directly to the store; `brokers` has the running processes."""

    def __init__(self) -> None:
        self.store = EmbeddedStore(":memory:")
        self.time = Time(self.store)
        self.network, self.ends = Network(), Ends()
        self.brokers: dict[int, Node] = {}
        self.settings: dict[str, str] = {}
        self.directories: dict[int, UUID] = {}
        self.boots: dict[int, str] = {}
        self.damage: dict[int, list[str]] = {}
        self.domains: dict[int, str] = {}
        self.topic_cleaners: list[Any] = []
        self._next = 0

    async def start(self, *broker_ids: int, was_unclean: bool = False) -> None:
        """Start brokers; those that ran before keep their directories."""
        for broker_id in broker_ids:
            self.network.dead.discard(broker_id)
            node = Node(self, broker_id, self.record(broker_id, was_unclean), self.settings)
            self.brokers[broker_id] = node
            await node.start()
        await self.time.settle()

    def record(self, broker_id: int, was_unclean: bool = False) -> BrokerRecord:
        self._next += 1
        return BrokerRecord(
            broker_id=broker_id,
            incarnation=UUID(int=1000 + self._next),
            endpoints=[EndpointRecord(listener="INSIDE", host="10.0.0.1", port=9000 + broker_id)],
            directory_id=self.directories.setdefault(broker_id, UUID(int=broker_id + 1)),
            boot_id=self.boots.setdefault(broker_id, "boot-1"),
            was_unclean=was_unclean,
            failure_domain=self.domains.get(broker_id, ""),
            feature_level=FEATURE_LEVEL,
        )

    async def kill(self, broker_id: int, notice: bool = False) -> None:
        """End the process. With `notice` its connections break and new ones are refused; otherwise probes time out."""
        node = self.brokers.pop(broker_id)
        (self.network.dead if notice else self.network.silent).add(broker_id)
        await node.stop()
        if notice:
            self.network.break_connections(broker_id)

    async def stop(self) -> None:
        for node in list(self.brokers.values()):
            await node.stop()
        await self.store.close()

    @property
    def view(self) -> ClusterView:
        return next(iter(self.brokers.values())).view

    def controllers(self) -> list[int]:
        """Return the brokers that consider themselves controller."""
        return [
            b for b, node in self.brokers.items() if node.controller is not None and node.controller.term is not None
        ]

    def the_controller(self) -> ControllerTask:
        (broker_id,) = self.controllers()
        controller = self.brokers[broker_id].controller
        assert controller is not None
        return controller

    def epoch(self, broker_id: int) -> int:
        return self.brokers[broker_id].registration.epoch

    async def topic(self, name: str, *replicas: list[int], overrides: dict[str, str] | None = None, isr=None) -> UUID:
        """Create a topic whose partitions have these replicas, all in sync."""
        self._next += 1
        topic_id = UUID(int=(1 << 100) + self._next)
        puts: list[Operation] = []
        for index, brokers in enumerate(replicas):
            in_sync = isr if isr is not None else brokers
            record = PartitionRecord(
                replicas=brokers, leader=in_sync[0], isr=in_sync, isr_epochs=[self.epoch(b) for b in in_sync]
            )
            puts.append(PutOp(keys.partition(topic_id, index), encode(record)))
        for start in range(0, len(puts), MAX_TXN_OPERATIONS):
            await self.store.txn([], puts[start : start + MAX_TXN_OPERATIONS])
        topic = TopicRecord(name=name, topic_id=topic_id, partition_count=len(replicas), overrides=overrides or {})
        result = await self.store.txn(
            [],
            [
                PutOp(keys.topic(topic_id), encode(topic)),
                PutOp(keys.topic_name(name), encode(TopicNameRecord(topic_id=topic_id))),
            ],
        )
        for node in self.brokers.values():
            await node.watcher.applied(result.revision)
        return topic_id

    def partition(self, name: str, index: int = 0) -> PartitionView:
        found = self.view.topic_partition(name, index)
        assert found is not None, f"there is {name}-{index}"
        return found

    async def change(self, name: str, index: int, change: Callable[[PartitionRecord], PartitionRecord]) -> None:
        """Write a partition's record as a leader does, conditional on its revision."""
        key = keys.partition(self.view.topics[name].topic_id, index)
        while True:
            entry = await self.store.get(key)
            assert entry is not None
            new = change(decoder(PartitionRecord).decode(entry.value))  # unchecked: tests repair invalid records
            if (await self.store.txn([Compare.unchanged(entry)], [PutOp(key, msgspec.json.encode(new))])).succeeded:
                break
        await self.time.settle()

    async def admit(self, name: str, index: int, broker: int) -> None:
        """Admit a follower to the ISR as the leader does."""
        epoch = self.epoch(broker)

        def admitted(record: PartitionRecord) -> PartitionRecord:
            kept = [(b, e) for b, e in zip(record.isr, record.isr_epochs, strict=True) if b != broker]
            members = [*kept, (broker, epoch)]
            return replace(record, isr=[b for b, _ in members], isr_epochs=[e for _, e in members])

        await self.change(name, index, admitted)

    async def create(self, name: str, partitions: int, factor: int):
        """Create a topic through the first broker's service."""
        admin = next(iter(self.brokers.values())).topics
        assert admin is not None
        return await self.finish(admin.create([TopicRequest(name, partitions, factor)]))

    async def finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end while time advances."""
        task = asyncio.ensure_future(work)
        await self.time.until(task.done)
        return task.result()


@asynccontextmanager
async def opened_world() -> AsyncIterator[World]:
    world = World()
    await ensure_cluster(world.store, uuid4)
    yield world
    await world.stop()
